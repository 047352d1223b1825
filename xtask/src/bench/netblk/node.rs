//! The node, as it is measured: one netblk service, no guests.

use std::path::Path;
use std::time::{Duration, Instant};

use announce::Announcement;
use anyhow::{Result, bail};

use crate::archive::{self, Source};
use crate::kernel;
use crate::node::{Folder, Running};
use crate::progress::Step;
use crate::qemu::{Boot, Lifetime, Machine, Nic, Protocol};

use super::cases::{Case, Timing};
use super::generator::Figures;
use super::link::Link;

pub const NETBLK_PORT: u16 = 10809;
pub const ECHO_PORT: u16 = 9000;
/// The partition that is served, and that the local disk's figures are of.
const DISK: &str = "nvme0n1p1";

const BOOT_PATIENCE: Duration = Duration::from_secs(60);
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);

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
