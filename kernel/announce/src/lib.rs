//! The lines of the console that programs wait for.
//!
//! `cargo xtask up` and the stories know when the node is ready from what it prints, and from nothing else: no delay,
//! no poll. So the words of these lines are a protocol, and a protocol has one place. The kernel prints them
//! ([`Announcement`]'s `Display`), the host reads them ([`Announcement::parse`]).
//!
//! Milliseconds count from power-on as the kernel's clock has it.
//!
//! ```
//! use announce::Announcement;
//!
//! let line = Announcement::Netblk { disk: "nvme0n1", port: 10809 }.to_string();
//! assert_eq!(line, "nos: netblk nvme0n1 on port 10809");
//! assert_eq!(Announcement::parse(&line), Some(Announcement::Netblk { disk: "nvme0n1", port: 10809 }));
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

use core::fmt;

/// What the node says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announcement<'a> {
    /// The shell takes commands.
    ShellReady { at_ms: u64 },
    /// The uplink has its address, as `ADDRESS/PREFIX`.
    Address { nic: &'a str, address: &'a str },
    /// The disk is served on this UDP port.
    Netblk { disk: &'a str, port: u16 },
    /// A TCP port of the uplink leads to a guest.
    Forward { port: u16, guest: &'a str, guest_port: u16 },
    /// The guest was entered for the first time.
    GuestStarted { guest: &'a str, at_ms: u64 },
    /// The guest's own init said that it is ready.
    GuestReady { guest: &'a str, at_ms: u64 },
    /// The guest is not running and will not be; why is for people.
    GuestStopped { guest: &'a str, reason: &'a str },
    /// Something of the configuration could not be had; the node runs without it.
    Refused { what: &'a str, reason: &'a str },
    /// Nothing of the configuration is still under way, guests' own boot excepted: whoever waits for something that
    /// was not announced waits in vain.
    ConfigurationDone { at_ms: u64 },
    /// The kernel is lost. A backtrace follows.
    Panic { cpu: u64 },
    /// The last line before the power goes off.
    PowerOff,
}

const PREFIX: &str = "nos: ";

/// What the node's shell shows when it waits for a command.
pub const PROMPT: &str = "nos> ";

impl fmt::Display for Announcement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        match self {
            Announcement::ShellReady { at_ms } => write!(f, "shell ready at {at_ms} ms"),
            Announcement::Address { nic, address } => write!(f, "{nic} has {address}"),
            Announcement::Netblk { disk, port } => write!(f, "netblk {disk} on port {port}"),
            Announcement::Forward { port, guest, guest_port } => {
                write!(f, "forward port {port} to guest {guest} port {guest_port}")
            }
            Announcement::GuestStarted { guest, at_ms } => write!(f, "guest {guest} started at {at_ms} ms"),
            Announcement::GuestReady { guest, at_ms } => write!(f, "guest {guest} ready at {at_ms} ms"),
            Announcement::GuestStopped { guest, reason } => write!(f, "guest {guest} stopped: {reason}"),
            Announcement::Refused { what, reason } => write!(f, "refused {what}: {reason}"),
            Announcement::ConfigurationDone { at_ms } => write!(f, "configuration done at {at_ms} ms"),
            Announcement::Panic { cpu } => write!(f, "panic on CPU {cpu}"),
            Announcement::PowerOff => f.write_str("power off"),
        }
    }
}

impl<'a> Announcement<'a> {
    /// Reads a line of the console. Anything before the announcement (a log line's time, a prompt that was being
    /// shown) and any escape sequence or blank behind it is skipped; a line that has none in it is `None`.
    pub fn parse(line: &'a str) -> Option<Self> {
        let start = line.find(PREFIX)?;
        let line = line[start + PREFIX.len()..].trim_end_matches(|letter: char| letter.is_ascii_whitespace());
        let line = line.strip_suffix("\x1b[0m").unwrap_or(line);
        let milliseconds = |text: &str| text.strip_suffix(" ms")?.parse().ok();
        if let Some(rest) = line.strip_prefix("shell ready at ") {
            Some(Announcement::ShellReady { at_ms: milliseconds(rest)? })
        } else if let Some(rest) = line.strip_prefix("configuration done at ") {
            Some(Announcement::ConfigurationDone { at_ms: milliseconds(rest)? })
        } else if let Some(rest) = line.strip_prefix("netblk ") {
            let (disk, port) = rest.split_once(" on port ")?;
            Some(Announcement::Netblk { disk: word(disk)?, port: port.parse().ok()? })
        } else if let Some(rest) = line.strip_prefix("forward port ") {
            let (port, rest) = rest.split_once(" to guest ")?;
            let (guest, guest_port) = rest.split_once(" port ")?;
            Some(Announcement::Forward {
                port: port.parse().ok()?,
                guest: word(guest)?,
                guest_port: guest_port.parse().ok()?,
            })
        } else if let Some(rest) = line.strip_prefix("guest ") {
            let (guest, rest) = rest.split_once(' ')?;
            if let Some(time) = rest.strip_prefix("ready at ") {
                Some(Announcement::GuestReady { guest, at_ms: milliseconds(time)? })
            } else if let Some(time) = rest.strip_prefix("started at ") {
                Some(Announcement::GuestStarted { guest, at_ms: milliseconds(time)? })
            } else {
                let reason = rest.strip_prefix("stopped: ")?;
                Some(Announcement::GuestStopped { guest, reason })
            }
        } else if let Some(rest) = line.strip_prefix("refused ") {
            let (what, reason) = rest.split_once(": ")?;
            Some(Announcement::Refused { what, reason })
        } else if let Some(rest) = line.strip_prefix("panic on CPU ") {
            Some(Announcement::Panic { cpu: rest.split(' ').next()?.parse().ok()? })
        } else if line == "power off" {
            Some(Announcement::PowerOff)
        } else {
            let (nic, address) = line.split_once(" has ")?;
            Some(Announcement::Address { nic: word(nic)?, address: word(address)? })
        }
    }
}

fn word(text: &str) -> Option<&str> {
    (!text.is_empty() && !text.contains(' ')).then_some(text)
}

/// What the init of the demonstration guests prints on the guest's own console, in front of the guest's name and
/// ` ready`.
pub const GUEST_INIT_PREFIX: &str = "nos: guest ";
/// What it prints behind the name.
pub const GUEST_INIT_SUFFIX: &str = " ready";

/// Watches a guest's console, byte by byte, for its init's word that the guest is ready. The guest may print what it
/// likes: all that this can lead to is an announcement too early.
#[derive(Debug, Default)]
pub struct GuestWatch {
    /// How much of the prefix, the name and the suffix has been seen.
    seen: usize,
}

impl GuestWatch {
    /// Takes a byte of the console of the guest called `name`. True when the line is complete.
    pub fn feed(&mut self, name: &str, byte: u8) -> bool {
        let whole = GUEST_INIT_PREFIX.len() + name.len() + GUEST_INIT_SUFFIX.len();
        let letter = |index: usize| {
            let mut letters = GUEST_INIT_PREFIX.bytes().chain(name.bytes()).chain(GUEST_INIT_SUFFIX.bytes());
            letters.nth(index)
        };
        // The longest beginning of the line that ends in this byte: what was seen and the byte, or, after a mismatch,
        // the longest end of that which is a beginning again.
        let seen = self.seen;
        let ends_here = |length: usize| {
            letter(length - 1) == Some(byte)
                && (0..length - 1).all(|index| letter(index) == letter(seen + 1 - length + index))
        };
        self.seen = (1..=seen + 1).rev().find(|length| ends_here(*length)).unwrap_or(0);
        let complete = self.seen == whole;
        if complete {
            self.seen = 0;
        }
        complete
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVERY: [Announcement<'static>; 11] = [
        Announcement::ShellReady { at_ms: 412 },
        Announcement::Address { nic: "eth0", address: "10.0.2.15/24" },
        Announcement::Netblk { disk: "nvme0n1p2", port: 10809 },
        Announcement::Forward { port: 8080, guest: "alpha", guest_port: 80 },
        Announcement::GuestStarted { guest: "alpha", at_ms: 500 },
        Announcement::GuestReady { guest: "alpha", at_ms: 4_210 },
        Announcement::GuestStopped { guest: "beta", reason: "triple fault: CPU 0, rip 0x1000" },
        Announcement::Refused { what: "guest beta", reason: "no guests/vmlinuz in the boot archive" },
        Announcement::ConfigurationDone { at_ms: 600 },
        Announcement::Panic { cpu: 3 },
        Announcement::PowerOff,
    ];

    #[test]
    fn what_is_printed_is_what_is_read() {
        for announcement in EVERY {
            let line = announcement.to_string();
            assert_eq!(Announcement::parse(&line), Some(announcement), "{line}");
            let decorated = format!("\r\x1b[K[    0.412] info: {line}\x1b[0m\r\n");
            assert_eq!(Announcement::parse(&decorated), Some(announcement), "{decorated:?}");
        }
    }

    #[test]
    fn other_lines_are_no_announcements() {
        for line in
            ["", "nos> ps", "nos: ", "nos: netblk", "nos: shell ready at soon", "nos: guest a ready at 5"]
        {
            assert_eq!(Announcement::parse(line), None, "{line}");
        }
    }

    fn watched(name: &str, console: &[u8]) -> usize {
        let mut watch = GuestWatch::default();
        console.iter().filter(|byte| watch.feed(name, **byte)).count()
    }

    proptest! {
        #[test]
        fn the_guest_is_heard_wherever_the_line_stands(before in "[nos: guetlri]{0,40}", name in "[nos]{1,6}") {
            let mut watch = GuestWatch::default();
            let mut heard = false;
            for byte in format!("{before}nos: guest {name} ready").bytes() {
                heard = watch.feed(&name, byte);
            }
            prop_assert!(heard);
        }
    }

    #[test]
    fn the_guest_is_heard_in_the_middle_of_its_noise() {
        assert_eq!(watched("alpha", b"[ 1.2] boot\r\nnos: guest alpha ready\r\n/ # "), 1);
        assert_eq!(watched("alpha", b"nonos: guest alpha ready"), 1);
        assert_eq!(watched("alpha", b"nnos: guest alpha ready"), 1);
        assert_eq!(watched("alpha", b"nos: gnos: guest alpha ready"), 1);
        assert_eq!(watched("alpha", b"nos: guest beta ready"), 0);
        assert_eq!(watched("nina", b"nos: guest ninos: guest nina ready"), 1);
    }

    proptest! {
        #[test]
        fn no_line_panics(line in ".{0,200}", tail in ".{0,60}") {
            let _ = Announcement::parse(&line);
            let _ = Announcement::parse(&format!("nos: {line}"));
            for start in ["guest", "netblk", "forward port", "refused", "panic on CPU"] {
                let _ = Announcement::parse(&format!("nos: {start} {tail}"));
            }
        }
    }
}
