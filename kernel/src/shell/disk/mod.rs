//! Commands about disks.

mod check;
mod flood;

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use kcore::block::{self, Disk};

use super::{Command, Done, Duration, Size, Trouble, say};
use crate::node::Node;

pub(super) const COMMANDS: &[Command] = &[DISKS, DISK];

const DISKS: Command =
    Command { name: "disks", usage: "", help: "every disk and partition, with its counters", run: disks };
const DISK: Command = Command {
    name: "disk",
    usage: "info NAME | flood NAME TRANSFERS | zero|discard|check NAME FIRST COUNT --yes",
    help: "what a disk can do; tests; gives up what its sectors hold",
    run: disk,
};

/// The first word behind `disk`.
pub(super) const VERBS: [&str; 5] = ["info", "flood", "zero", "discard", "check"];

/// What must be said before sectors lose what they hold.
const CONSENT: &str = "--yes";

fn disks(_node: &Node, arguments: &[&str]) -> Done {
    DISKS.alone(arguments)?;
    let disks = block::disks();
    if disks.is_empty() {
        say!("no disk was found; `pci` lists what the machine has");
        return Ok(());
    }
    for disk in disks {
        let stats = disk.stats();
        say!(
            "{:<12} {:>9}, {} B sectors{}  {}",
            disk.name(),
            format!("{}", size(&*disk)),
            disk.sector_bytes(),
            if disk.read_only() { ", read-only" } else { "" },
            disk.model()
        );
        say!(
            "{:<12} {} reads, {} writes, {} flushes, {} errors; {} doorbells, {} interrupts",
            "",
            stats.reads,
            stats.writes,
            stats.flushes,
            stats.errors,
            stats.doorbells,
            stats.interrupts
        );
        if stats.discards + stats.write_zeroes > 0 {
            say!("{:<12} {} discards, {} writes of zeroes", "", stats.discards, stats.write_zeroes);
        }
    }
    Ok(())
}

fn size(disk: &dyn Disk) -> Size {
    Size(disk.sectors().saturating_mul(u64::from(disk.sector_bytes())))
}

fn disk(_node: &Node, arguments: &[&str]) -> Done {
    match arguments {
        ["info", name] => info(&*find(name)?),
        ["flood", name, transfers] => {
            let transfers = transfers.parse().ok().filter(|count| (1..=flood::MOST).contains(count));
            let transfers = transfers.ok_or_else(|| format!("TRANSFERS is 1 to {}", flood::MOST))?;
            flood(&find(name)?, transfers)
        }
        [verb @ ("zero" | "discard" | "check"), name, first, count, consent @ ..] => {
            let disk = find(name)?;
            let sectors = Sectors::parse(&*disk, first, count)?;
            if *consent != [CONSENT] {
                return Err(Trouble::from(format!(
                    "sectors {} to {} of {name} would lose what they hold; say it again with {CONSENT} behind it",
                    sectors.first,
                    sectors.first + sectors.count - 1
                )));
            }
            match *verb {
                "zero" => zero(&*disk, sectors),
                "discard" => discard(&*disk, sectors),
                _ => check::run(&*disk, sectors),
            }
        }
        _ => Err(DISK.wrong_use()),
    }
}

fn find(name: &str) -> Result<Arc<dyn Disk>, Trouble> {
    Ok(block::find(name).ok_or_else(|| format!("there is no disk {name}; `disks` lists those there are"))?)
}

/// Sectors that lie on the disk they were parsed for.
#[derive(Clone, Copy)]
struct Sectors {
    first: u64,
    count: u64,
}

impl Sectors {
    fn parse(disk: &dyn Disk, first: &str, count: &str) -> Result<Sectors, Trouble> {
        let (Ok(first), Ok(count)) = (first.parse::<u64>(), count.parse::<u64>()) else {
            return Err(DISK.wrong_use());
        };
        match first.checked_add(count) {
            Some(end) if count > 0 && end <= disk.sectors() => Ok(Sectors { first, count }),
            _ => Err(Trouble::from(format!("{} has sectors 0 to {}", disk.name(), disk.sectors() - 1))),
        }
    }
}

fn info(disk: &dyn Disk) -> Done {
    let features = disk.features();
    say!("{}: {}, {}", disk.name(), size(disk), disk.model());
    say!(
        "  {} sectors of {} bytes{}; transfers of up to {} in {} pieces",
        disk.sectors(),
        disk.sector_bytes(),
        if disk.read_only() { ", read-only" } else { "" },
        Size(disk.max_transfer_bytes().into()),
        features.max_segments
    );
    say!("  volatile write cache: {}", if features.volatile_cache { "yes" } else { "no" });
    for (what, has, most) in [
        ("discard", features.discard, features.max_discard_sectors),
        ("write zeroes", features.write_zeroes, features.max_write_zeroes_sectors),
    ] {
        let limit = if has { format!("up to {most} sectors") } else { String::from("no") };
        say!("  {what}: {limit}");
    }
    Ok(())
}

fn zero(disk: &dyn Disk, sectors: Sectors) -> Done {
    block::write_zeroes(disk, sectors.first, sectors.count)?;
    block::flush(disk)?;
    say!("{}: {} sectors from {} are zero", disk.name(), sectors.count, sectors.first);
    Ok(())
}

fn discard(disk: &dyn Disk, sectors: Sectors) -> Done {
    block::discard(disk, sectors.first, sectors.count)?;
    say!("{}: {} sectors from {} are discarded", disk.name(), sectors.count, sectors.first);
    Ok(())
}

fn flood(disk: &Arc<dyn Disk>, transfers: u64) -> Done {
    let outcome = flood::run(disk, transfers)?;
    say!(
        "{}: {transfers} reads, {} at once, in {}; {} refused as busy and tried again",
        disk.name(),
        outcome.most_at_once,
        Duration(outcome.ns),
        outcome.busy
    );
    say!("  {} done, {} failed, {} with wrong memory", outcome.done, outcome.failed, outcome.wrong_memory);
    if let Some(error) = outcome.last_error {
        say!("  the last failure: {error}");
    }
    if outcome.done + outcome.failed != transfers || outcome.wrong_memory > 0 {
        return Err(Trouble::from("transfers were lost or mixed up: this is a fault of the driver"));
    }
    Ok(())
}
