//! A node that runs, and a guest of it, as a person at the console has them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use announce::Announcement;
use xtask::console::Console;
use xtask::node::Running;
use xtask::qemu::{self, Protocol, Uplink};
use xtask::qmp::Qmp;

use crate::frames::Wire;
use crate::vhost::Card;
use crate::{GUEST_PATIENCE, PATIENCE, within};

/// Ctrl-]: leaves a guest's console.
const ESCAPE: u8 = 0x1d;

/// A running node. It ends with this value.
pub struct Node {
    running: Running,
    uplink: Uplink,
    wire: Option<Wire>,
    card: Option<Card>,
    disk: PathBuf,
    booted: Instant,
    /// The commands that were run in guests: a console that is entered again shows what it showed before, so that the
    /// marks around each command's output must not come twice.
    guest_commands: u32,
}

impl Node {
    pub(crate) fn new(
        running: Running,
        uplink: Uplink,
        wire: Option<Wire>,
        card: Option<Card>,
        disk: PathBuf,
    ) -> Node {
        Node { running, uplink, wire, card, disk, booted: Instant::now(), guest_commands: 0 }
    }

    fn console(&mut self) -> &mut Console {
        &mut self.running.console
    }

    /// Waits for an announcement that `wanted` accepts. A panic of the kernel ends the story at once.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut wanted: impl FnMut(Announcement<'_>) -> Option<T>,
    ) -> T {
        let found = self.console().wait_for(what, within(patience), |line| match Announcement::parse(line) {
            Some(Announcement::Panic { .. }) => Some(Err(line.to_owned())),
            Some(announcement) => wanted(announcement).map(Ok),
            None => None,
        });
        match found {
            Ok(Ok(answer)) => answer,
            Ok(Err(line)) => {
                let _ = self.console().next_line(within(Duration::from_secs(2)));
                panic!("the kernel panicked while the story waited for {what}: {line}\n{}", self.transcript())
            }
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Waits until a line contains `text`, and returns the line.
    pub fn expect(&mut self, text: &str) -> String {
        self.expect_within(text, PATIENCE)
    }

    pub fn expect_within(&mut self, text: &str, patience: Duration) -> String {
        self.console().expect(text, within(patience)).unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// Waits until the shell takes commands and everything that the configuration starts was dealt with. Guests may
    /// still be booting.
    pub fn ready(mut self) -> Node {
        self.wait_until_ready();
        self
    }

    pub fn wait_until_ready(&mut self) {
        self.wait_for("the end of the configuration", PATIENCE, |announcement| {
            matches!(announcement, Announcement::ConfigurationDone { .. }).then_some(())
        });
    }

    /// Waits until the uplink has its address; it may have been announced already.
    pub fn with_address(mut self) -> Node {
        let is_it = |announcement: Announcement<'_>| {
            matches!(announcement, Announcement::Address { nic: "eth0", .. })
        };
        if !self.transcript().lines().filter_map(Announcement::parse).any(is_it) {
            self.wait_for("the node's address", PATIENCE, |announcement| is_it(announcement).then_some(()));
        }
        self
    }

    /// How long it is since the machine was started.
    pub fn age(&self) -> Duration {
        self.booted.elapsed()
    }

    /// Waits until the guests have said that they are ready.
    pub fn wait_for_guests(&mut self, names: &[&str]) {
        let mut missing: Vec<&str> = names.to_vec();
        while !missing.is_empty() {
            let what = format!("guests {}", missing.join(" and "));
            let ready = self.wait_for(&what, GUEST_PATIENCE, |announcement| match announcement {
                Announcement::GuestReady { guest, .. } => Some(Ok(guest.to_owned())),
                Announcement::GuestStopped { guest, reason } => {
                    Some(Err(format!("{guest} stopped: {reason}")))
                }
                _ => None,
            });
            match ready {
                Ok(guest) => missing.retain(|name| *name != guest),
                Err(why) => panic!("{why}\n{}", self.transcript()),
            }
        }
    }

    /// Free frames of the pool. The cards are looked at first: that is when they give back what they have sent.
    pub fn free_frames(&mut self) -> u64 {
        self.run("net");
        let text = self.run("mem");
        let line = text.lines().find(|line| line.starts_with("frames")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|free| free.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    }

    /// Gives the shell a command, and returns what it answers.
    pub fn run(&mut self, command: &str) -> String {
        self.run_within(command, PATIENCE)
    }

    pub fn run_within(&mut self, command: &str, patience: Duration) -> String {
        let lines =
            self.console().command(command, within(patience)).unwrap_or_else(|error| panic!("{error:#}"));
        lines.join("\n")
    }

    /// Sends keys as they are.
    pub fn press(&mut self, keys: &[u8]) {
        self.console().send(keys).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Waits for the prompt, with nothing typed behind it.
    pub fn expect_prompt(&mut self) {
        self.console().expect_prompt(within(PATIENCE)).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Everything that the console has shown.
    pub fn transcript(&mut self) -> String {
        self.running.console.transcript()
    }

    /// Waits until the machine is off.
    pub fn expect_off(mut self) {
        self.console().expect_end(within(PATIENCE)).unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// The host's port that leads to a port of the node.
    pub fn host_port(&self, protocol: Protocol, node_port: u16) -> u16 {
        let forwards = match &self.uplink {
            Uplink::User { forwards } => forwards.as_slice(),
            Uplink::Tap { .. } | Uplink::Frames { .. } | Uplink::Vhost { .. } => &[],
        };
        forwards
            .iter()
            .find(|forward| forward.protocol == protocol && forward.node_port == node_port)
            .unwrap_or_else(|| panic!("port {node_port} of the node is not forwarded"))
            .host_port
    }

    /// The other end of the network card's cable.
    pub fn wire(&mut self) -> &mut Wire {
        self.wire.as_mut().expect("a node that is wired to the story")
    }

    /// The card that is the story's.
    pub fn card(&self) -> &Card {
        self.card.as_ref().expect("a node with the story's card")
    }

    /// The disk's image on the host.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// A command of QEMU's monitor, as pulling out a disk.
    pub fn monitor(&mut self, command: &str) -> String {
        let socket = self.running.folder.file(qemu::QMP_SOCKET);
        let answer = Qmp::connect(&socket).and_then(|mut qmp| qmp.monitor(command));
        answer.unwrap_or_else(|error| panic!("{error:#}"))
    }

    /// The power goes, with whatever the disk has in its cache.
    pub fn cut_the_power(self) {
        // QEMU is killed, not asked: it flushes nothing and closes nothing.
        drop(self);
    }

    /// Goes to a guest's console.
    pub fn guest(&mut self, name: &str) -> GuestConsole<'_> {
        self.expect_prompt();
        self.press(format!("hv console {name}\r").as_bytes());
        self.expect("Ctrl-] leaves it");
        let guest = GuestConsole { node: self };
        // Whatever the guest was showing: an empty line brings a new prompt.
        guest.node.press(b"\r");
        guest
    }
}

/// A guest's console, through the node's.
pub struct GuestConsole<'n> {
    node: &'n mut Node,
}

impl GuestConsole<'_> {
    /// Runs a command in the guest's shell and returns what it prints. The command must succeed.
    pub fn run(&mut self, command: &str) -> String {
        self.run_within(command, PATIENCE)
    }

    pub fn run_within(&mut self, command: &str, patience: Duration) -> String {
        let (output, status) = self.try_run(command, patience);
        assert_eq!(status, 0, "in the guest, {command} ended with {status}:\n{output}");
        output
    }

    /// Runs a command and returns what it prints, and its status.
    pub fn try_run(&mut self, command: &str, patience: Duration) -> (String, i32) {
        self.node.guest_commands += 1;
        let number = self.node.guest_commands;
        // The marks are put together by the guest's shell, so that the echo of the command does not look like them.
        let (begin, end) = (format!("begin-{number}"), format!("end-{number}"));
        self.node.press(format!("echo be''gin-{number}; {command}; echo e''nd-{number} $?\r").as_bytes());
        let deadline = within(patience);
        let console = self.node.console();
        let result = console
            .wait_for(&begin, deadline, |line| line.trim_end().ends_with(&begin).then_some(()))
            .and_then(|()| {
                let mut lines = Vec::new();
                let status = console.wait_for(&end, deadline, |line| match line.split_once(&end) {
                    Some((before, status)) => {
                        if !before.is_empty() {
                            lines.push(before.to_owned());
                        }
                        Some(status.trim().to_owned())
                    }
                    None => {
                        lines.push(line.to_owned());
                        None
                    }
                })?;
                Ok((lines.join("\n"), status))
            });
        match result {
            Ok((output, status)) => {
                let status = status.parse().unwrap_or_else(|_| panic!("{command} has the status {status:?}"));
                (output, status)
            }
            Err(error) => panic!("{error:#}"),
        }
    }

    /// Types without waiting for anything.
    pub fn press(&mut self, keys: &[u8]) {
        self.node.press(keys);
    }
}

impl Drop for GuestConsole<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.node.press(&[ESCAPE]);
            self.node.press(b"\r");
        }
    }
}
