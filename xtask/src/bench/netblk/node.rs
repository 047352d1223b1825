//! The node, as it is measured: one netblk service, no guests.

use std::path::Path;
use std::time::{Duration, Instant};

use announce::Announcement;
use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::archive::{self, Source};
use crate::kernel;
use crate::link::Link;
use crate::node::{Folder, Running};
use crate::progress::Step;
use crate::qemu::{Boot, Lifetime, Machine, Nic, Protocol};

use super::cases::{Case, Timing};
use super::generator::Figures;

pub const NETBLK_PORT: u16 = 10809;
pub const ECHO_PORT: u16 = 9000;
/// The partition that is served, and that the local disk's figures are of.
const DISK: &str = "nvme0n1p1";

const BOOT_PATIENCE: Duration = Duration::from_secs(60);
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);

/// Doorbells and interrupts, for each request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Traffic {
    pub disk_doorbells: f64,
    pub disk_interrupts: f64,
    pub card_doorbells: f64,
    pub card_interrupts: f64,
}

impl Traffic {
    /// Reads what `netblk list` says behind "recently".
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let before = |word: &str| {
            let places = words.iter().enumerate().filter(move |(_, one)| one.trim_end_matches(',') == word);
            places
                .filter_map(|(place, _)| words.get(place.checked_sub(1)?)?.parse().ok())
                .collect::<Vec<f64>>()
        };
        let (doorbells, interrupts) = (before("doorbells"), before("interrupts"));
        let ([disk_doorbells, card_doorbells], [disk_interrupts, card_interrupts]) =
            (doorbells.try_into().ok()?, interrupts.try_into().ok()?);
        Some(Self { disk_doorbells, disk_interrupts, card_doorbells, card_interrupts })
    }
}

pub struct Node {
    running: Running,
    pub link: Link,
    /// Whether it has the commands that measure what it could do at best.
    pub has_floors: bool,
}

impl Node {
    pub fn boot(nic: Nic, image: &Path) -> Result<Self> {
        let folder = Folder::new("bench-node")?;
        let link = Link::new(0, &[(Protocol::Udp, NETBLK_PORT), (Protocol::Udp, ECHO_PORT)])?;
        let address = link.machine_address().unwrap_or_else(|| "dhcp".to_owned());
        let configuration = format!(
            "[node]\nname = \"bench\"\naddress = \"{address}\"\n\n[[netblk]]\ndisk = \"{DISK}\"\nport = {NETBLK_PORT}\n"
        );
        let source = Source::from_text(configuration.into_bytes(), folder.path.clone());
        let kernel = kernel::build()?;
        let archive = folder.file("boot.tar");
        archive::write(&archive, &kernel, &source, None)?;
        let boot = Boot::Direct { kernel: kernel.elf, archive: Some(archive), command_line: String::new() };
        let mut machine = Machine::new(&folder.name, folder.path.clone(), boot);
        super::same_for_both(&mut machine, nic, image, &link);
        let step = Step::begin("boot the node");
        let mut running = Running::start(&machine, folder, Lifetime::OfThisThread)?;
        let deadline = Instant::now() + BOOT_PATIENCE;
        let mut refused = None;
        running.console.wait_for(
            "the end of the configuration",
            deadline,
            |line| match Announcement::parse(line)? {
                Announcement::Refused { what, reason } => {
                    refused = Some(format!("{what}: {reason}"));
                    None
                }
                Announcement::ConfigurationDone { .. } => Some(()),
                _ => None,
            },
        )?;
        if let Some(refused) = refused {
            bail!("the node refuses {refused}");
        }
        step.done("");
        let mut node = Node { running, link, has_floors: false };
        node.has_floors = node.start_echo()?;
        Ok(node)
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn command(&mut self, command: &str) -> Result<Vec<String>> {
        self.running.console.command(command, Instant::now() + COMMAND_PATIENCE)
    }

    /// Loads the floors and starts the echo; whether this node has them.
    fn start_echo(&mut self) -> Result<bool> {
        self.command("insmod floor")?;
        let answer = self.command(&format!("floor echo {ECHO_PORT}"))?;
        Ok(answer.iter().any(|line| line.starts_with("floor: echo")))
    }

    /// The echo, as the generator calls it.
    pub fn echo(&self) -> String {
        format!("echo://{}", self.link.reach(Protocol::Udp, ECHO_PORT))
    }

    /// What a request took of the devices since the last call.
    pub fn traffic(&mut self) -> Result<Traffic> {
        let answer = self.command("netblk list")?;
        let recently = answer.iter().find_map(|line| line.trim().strip_prefix("recently"));
        recently.and_then(Traffic::parse).with_context(|| format!("netblk list: {}", answer.join("\n")))
    }

    /// The node's own load on its own disk.
    pub fn disk(&mut self, case: &Case, timing: Timing) -> Result<Figures> {
        let operation = if case.pattern.writes() { "write" } else { "read" };
        // Whole milliseconds; a bench is shorter than 2^53 of them.
        let (ms, warm_up_ms) = ((timing.seconds * 1000.0) as u64, (timing.warm_up * 1000.0) as u64);
        let (window, bytes) = (case.window, case.pattern.bytes());
        let command = format!("floor disk {DISK} {operation} {bytes} {window} {ms} {warm_up_ms}");
        let answer = self.command(&command)?;
        let Some(json) = answer.iter().find(|line| line.starts_with('{')) else {
            bail!("{command}: {}", answer.join("\n"));
        };
        Ok(serde_json::from_str(json)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_list_is_understood() {
        let line = "   5000 requests; disk 0.125 doorbells, 0.250 interrupts a request; card 0.500 doorbells, 1.000 interrupts a \
                    request";
        let traffic = Traffic {
            disk_doorbells: 0.125,
            disk_interrupts: 0.25,
            card_doorbells: 0.5,
            card_interrupts: 1.0,
        };
        assert_eq!(Traffic::parse(line), Some(traffic));
        assert_eq!(Traffic::parse("5000 requests; disk 0.125 doorbells"), None);
    }
}
