//! The command about the guests.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use hv::{ConsoleHandle, DiskStats, Gateway, GuestLine, Hypervisor, NicStats};
use kcore::console;
use kcore::say;
use kcore::shell::{Command, Done, Size};
use kcore::task::{self, Placement, Priority};

pub const COMMANDS: &[Command] = &[HV];

const HV: Command = Command {
    name: "hv",
    usage: "list | start GUEST | stop GUEST | console GUEST | stat GUEST",
    help: "the guests: what they do, their consoles, their exits",
};

/// Ctrl-]: leaves a guest's console.
const ESCAPE: u8 = 0x1d;

/// The command `hv`.
pub fn hv(hypervisor: &Arc<Hypervisor>, arguments: &[&str]) -> Done {
    match arguments {
        ["list"] => {
            list(hypervisor);
            Ok(())
        }
        ["start", name] => {
            hypervisor.start(name)?;
            say!("{name} starts; `hv console {name}` shows it");
            Ok(())
        }
        ["stop", name] => {
            hypervisor.stop(name)?;
            say!("{name} is stopped");
            Ok(())
        }
        ["console", name] => view(hypervisor, name),
        ["stat", name] => stat(hypervisor, name),
        _ => Err(HV.wrong_use()),
    }
}

fn list(hypervisor: &Hypervisor) {
    let guests = hypervisor.list();
    if guests.is_empty() {
        say!("no guest is described; nos.toml describes them");
        return;
    }
    for guest in guests {
        let cpus: Vec<String> = guest.host_cpus.iter().map(|cpu| format!("{cpu}")).collect();
        let place = if cpus.is_empty() { String::new() } else { format!(" on CPU {}", cpus.join(", ")) };
        let card = guest.mac.map(|mac| format!(", {mac}")).unwrap_or_default();
        say!(
            "{:<10} {}: {} CPUs{place}, {}{card}{}",
            guest.name,
            guest.state,
            guest.cpus,
            Size(guest.memory_bytes),
            milestones(&guest)
        );
    }
}

/// What `net` shows of the gateway.
pub fn nat_lines(gateway: &Gateway) -> Vec<String> {
    let nat = gateway.counters();
    let mut lines = vec![format!(
        "NAT    {} packets out, {} in, {} between guests; {} connections now, {} made, {} evicted",
        nat.outbound,
        nat.inbound,
        nat.hairpinned,
        gateway.connections(),
        nat.connections_made,
        nat.connections_evicted
    )];
    for reason in nat::DropReason::ALL {
        let dropped = nat.dropped(reason);
        if dropped > 0 {
            lines.push(format!("       dropped: {dropped} {reason}"));
        }
    }
    lines
}

/// How long the guest took, from its start.
fn milestones(guest: &GuestLine) -> String {
    let since = |later_ns: Option<u64>| Some(later_ns?.saturating_sub(guest.started_ns?) / 1_000_000);
    match (since(guest.first_output_ns), since(guest.ready_ns)) {
        (Some(output_ms), Some(ready_ms)) => {
            format!("; first output after {output_ms} ms, ready after {ready_ms} ms")
        }
        (Some(output_ms), None) => format!("; first output after {output_ms} ms"),
        (None, _) => String::new(),
    }
}

fn stat(hypervisor: &Hypervisor, name: &str) -> Done {
    let stat = hypervisor.stat(name)?;
    for (cpu, counters) in stat.cpus.iter().enumerate() {
        say!("CPU {cpu}: {} entries, {} exits", counters.entries, counters.total_exits());
        for (reason, exits) in counters.named_exits().filter(|&(_, exits)| exits > 0) {
            say!("  {exits:>12}  {reason}");
        }
        say!(
            "  injected: {} interrupts ({} by the 8259), {} NMIs, {} exceptions; {} pending toggles",
            counters.interrupts,
            counters.external_interrupts,
            counters.nmis,
            counters.exceptions,
            counters.pending_toggles
        );
        let unknown = counters.unknown_msr_reads + counters.unknown_msr_writes;
        if unknown > 0 {
            say!("  {unknown} accesses to unknown MSRs, the last {:#x}", counters.last_unknown_msr);
        }
        if counters.unclaimed_mmio > 0 {
            say!(
                "  {} accesses to memory where nothing is, the last {:#x}",
                counters.unclaimed_mmio,
                counters.last_unclaimed_mmio
            );
        }
    }
    if let Some(nic) = stat.nic {
        show_card(&nic);
    }
    stat.disks.iter().for_each(show_disk);
    Ok(())
}

/// What a guest asked of one of its disks.
fn show_disk(disk: &DiskStats) {
    let asked = &disk.requests;
    say!(
        "disk {}{}: {} reads, {}; {} writes, {}; {} flushes, {} discards, {} of zeroes; {} out",
        disk.name,
        if disk.read_only { ", read-only" } else { "" },
        asked.reads,
        Size(asked.read_bytes),
        asked.writes,
        Size(asked.written_bytes),
        asked.flushes,
        asked.discards,
        asked.write_zeroes,
        disk.in_flight
    );
    say!(
        "  {} transfers, {} of them through a buffer; {} interrupts; {} requests refused, {} failed, {} malformed",
        asked.transfers,
        asked.bounced,
        asked.interrupts,
        asked.refused,
        asked.failed,
        asked.unanswerable
    );
}

/// A card's counters, the guest's side and the switch's.
fn show_card(nic: &NicStats) {
    let (card, port) = (&nic.card, &nic.switch);
    say!(
        "card: sent {} frames, {}; received {} frames, {}; {} interrupts, {} of them delayed",
        card.transmitted_frames,
        Size(card.transmitted_bytes),
        card.received_frames,
        Size(card.received_bytes),
        card.receive_interrupts + card.transmit_interrupts,
        card.receive_interrupts_moderated
    );
    say!(
        "  refused: {} too short, {} too long, {} with an offload, {} without memory",
        card.transmit_undersize + card.receive_undersize,
        card.transmit_oversize + card.receive_oversize,
        card.transmit_offload,
        card.transmit_no_memory
    );
    say!(
        "  to the guest: {} times no buffer, {} buffers too small, {} frames found no room in the port's queue",
        card.receive_starved,
        card.receive_small_buffer,
        nic.queue_dropped
    );
    say!(
        "switch port: {} frames in ({} to one port, {} to all), {} out",
        port.frames_in,
        port.forwarded,
        port.flooded_group + port.flooded_unknown,
        port.frames_out
    );
}

/// Shows the guest's console and types to it until Ctrl-].
fn view(hypervisor: &Hypervisor, name: &str) -> Done {
    let typing = hypervisor.console(name)?;
    let viewing = hypervisor.console(name)?;
    say!("console of {name}; Ctrl-] leaves it");
    let leave = Arc::new(AtomicBool::new(false));
    let viewer_leaves = leave.clone();
    let viewer = task::spawn("viewer", Placement::Cpu(kcore::cpu::index()), Priority::Normal, move || {
        show(&viewing, &viewer_leaves);
    })?;
    loop {
        match console::read_byte() {
            ESCAPE => break,
            byte => {
                // A guest that does not read its line is shown as one that does not answer.
                typing.type_bytes(&[byte]);
            }
        }
    }
    leave.store(true, Release);
    typing.end_wait();
    viewer.join();
    say!("");
    Ok(())
}

/// The viewer's task: what the guest wrote so far, then what it writes.
fn show(guest: &ConsoleHandle, leave: &AtomicBool) {
    let mut cursor = guest.oldest();
    let mut bytes = [0; 512];
    while !leave.load(Acquire) {
        let piece = guest.read(&mut cursor, &mut bytes);
        if piece.missed > 0 {
            say!("[{} bytes were overwritten before they were shown]", piece.missed);
        }
        if piece.count > 0 {
            console::print_raw(&bytes[..piece.count]);
        } else {
            guest.wait(u64::MAX);
        }
    }
}
