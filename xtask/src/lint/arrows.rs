//! Rooms are layers, and an arrow may only point down.
//!
//! A lower room defines a trait, an upper one implements or registers; so nothing below has to change when something
//! above does, and the pure rooms stay free of the machine. What a package is built with counts (`dependencies` and
//! `build-dependencies`); what only its tests use does not.

use cargo_metadata::{DependencyKind, Metadata, Package};

use super::{Check, room};

/// A room, the rooms that it may use beside itself, and why.
struct Room {
    folder: &'static str,
    may_use: &'static [&'static str],
    reason: &'static str,
}

const ROOMS: &[Room] = &[
    Room { folder: "arch", may_use: &[], reason: "the machine's own terms: nothing stands below it" },
    Room {
        folder: "kcore",
        may_use: &["arch"],
        reason: "what every room stands on; it makes the machine safe to use",
    },
    Room {
        folder: "drivers",
        may_use: &["kcore"],
        reason: "a driver is handed memory, interrupts and windows by kcore, and never reaches past it",
    },
    Room {
        folder: "net",
        may_use: &["kcore"],
        reason: "formats and decisions are pure; the stack is handed frames",
    },
    Room {
        folder: "netblk",
        may_use: &["kcore", "net"],
        reason: "a module over the kernel's services; it knows disks and cards by kcore's traits only",
    },
    Room {
        folder: "hv",
        may_use: &["kcore", "net"],
        reason: "a module like netblk; the processor's virtualization is in hvarch alone",
    },
    Room {
        folder: "kernel",
        may_use: &["kcore", "drivers", "net"],
        reason: "it assembles the rooms, so it may name them; netblk and hv are modules that it loads by name",
    },
    Room {
        folder: "bench",
        may_use: &["kcore", "net", "hv"],
        reason: "the floors run in the node, over what services run over; hv's queue is compared with another; the load generator shares protocols only",
    },
    Room { folder: "tools", may_use: &[], reason: "host programs: of the node they share protocols only" },
    Room { folder: "xtask", may_use: &[], reason: "a host program: of the node it shares formats only" },
    Room {
        folder: "tests",
        may_use: &["tools", "xtask"],
        reason: "stories use the node from outside, with the programs that people use",
    },
];

/// Single arrows that the rooms' rules do not allow, and what they are needed for.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("kernel", "arch", "the entry from the boot loader and the boot information's type"),
    ("hvarch", "arch", "the world switch is the machine's business: segments, MSRs, control registers"),
    (
        "hv-smoke",
        "arch",
        "a kernel of its own: the entry from the boot loader and the boot information's type",
    ),
    ("hv", "announce", "the lines of the console that programs wait for; a pure crate that knows no room"),
    (
        "netblk-server",
        "announce",
        "the lines of the console that programs wait for; a pure crate that knows no room",
    ),
    ("load", "netblk-proto", "one protocol crate serves the node and the host"),
    ("netblk-module", "config", "it serves what nos.toml describes; a pure crate that knows no room"),
    ("netblk-module", "announce", "the lines of the console that programs wait for"),
    ("hv-module", "config", "it runs the guests that nos.toml describes"),
    ("hv-module", "announce", "the lines of the console that programs wait for"),
    ("netblk", "netblk-proto", "one protocol crate serves the node and the host"),
    ("xtask", "modfile", "it makes the modules that the node reads"),
    ("xtask", "config", "it reads the same nos.toml as the node"),
    ("xtask", "announce", "it waits for the lines that the node prints"),
    ("stories", "config", "stories write configurations"),
    ("stories", "announce", "stories wait for the lines that the node prints"),
    ("stories", "netblk-proto", "stories send requests that no client would"),
    ("stories", "modfile", "stories make modules that nobody should load"),
    ("stories", "netwire", "stories send frames that no host would"),
];

/// Packages that may use nothing of the project: what makes them usable from everywhere.
const LEAVES: &[&str] = &["announce", "config", "echo-wire", "lineedit", "netblk-proto", "netwire", "rings"];

/// Checks the packages of the workspace.
pub fn check(metadata: &Metadata) -> Check {
    let packages = metadata.workspace_packages();
    let mut arrows = Vec::new();
    for from in &packages {
        for dependency in &from.dependencies {
            let Some(to) = packages.iter().find(|package| package.name == dependency.name) else { continue };
            if dependency.path.is_some() && dependency.kind != DependencyKind::Development {
                arrows.push(Arrow::new(from, to, metadata));
            }
        }
    }
    let mut check = Check::new("arrows between rooms point down");
    check.problems = arrows.iter().filter_map(Arrow::problem).collect();
    for package in &packages {
        if top(room(package, metadata)).is_none() {
            check.problems.push(format!("{} is in no room that these rules know", package.name));
        }
    }
    check.notes = vec![format!("{} arrows", arrows.len())];
    check
}

#[derive(Debug)]
struct Arrow<'p> {
    from: &'p str,
    from_room: &'p str,
    to: &'p str,
    to_room: &'p str,
}

impl<'p> Arrow<'p> {
    fn new(from: &'p Package, to: &'p Package, metadata: &Metadata) -> Self {
        Arrow { from: &from.name, from_room: room(from, metadata), to: &to.name, to_room: room(to, metadata) }
    }

    fn problem(&self) -> Option<String> {
        let excepted = EXCEPTIONS.iter().any(|(from, to, _)| *from == self.from && *to == self.to);
        if excepted {
            return None;
        }
        if LEAVES.contains(&self.from) {
            return Some(format!(
                "{} uses {}, but it may use nothing of the project: rooms of every height use it",
                self.from, self.to
            ));
        }
        let (Some(from), Some(to)) = (top(self.from_room), top(self.to_room)) else { return None };
        if from.folder == to.folder || from.may_use.contains(&to.folder) {
            return None;
        }
        Some(format!(
            "{} ({}) uses {} ({}), but {} may use {}: {}",
            self.from,
            self.from_room,
            self.to,
            self.to_room,
            from.folder,
            if from.may_use.is_empty() { "no other room".to_owned() } else { from.may_use.join(", ") },
            from.reason
        ))
    }
}

/// The room that a folder lies in.
fn top(folder: &str) -> Option<&'static Room> {
    let top = folder.split('/').next().unwrap_or(folder);
    ROOMS.iter().find(|room| room.folder == top)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrow(
        from: &'static str,
        from_room: &'static str,
        to: &'static str,
        to_room: &'static str,
    ) -> Option<String> {
        Arrow { from, from_room, to, to_room }.problem()
    }

    #[test]
    fn arrows_down_and_sideways_are_fine_and_arrows_up_are_not() {
        assert_eq!(arrow("nvme", "drivers/nvme", "kcore", "kcore"), None);
        assert_eq!(arrow("nvme", "drivers/nvme", "nvme-protocol", "drivers/nvme/protocol"), None);
        assert_eq!(arrow("hvarch", "hv/hvarch", "arch", "arch"), None);
        assert!(arrow("kcore", "kcore", "nvme", "drivers/nvme").is_some());
        assert!(arrow("nvme", "drivers/nvme", "arch", "arch").is_some());
        assert!(arrow("hv", "hv/hv", "arch", "arch").is_some());
        assert!(arrow("rings", "kcore/rings", "sched", "kcore/sched").is_some());
    }

    /// A rule for something that is not there is a rule that nobody reads.
    #[test]
    fn the_exceptions_name_packages_that_exist() {
        let metadata = super::super::metadata().unwrap();
        let names: Vec<&str> =
            metadata.workspace_packages().iter().map(|package| package.name.as_str()).collect();
        for (from, to, _) in EXCEPTIONS {
            assert!(names.contains(from) && names.contains(to), "{from} -> {to}");
        }
        assert!(LEAVES.iter().all(|name| names.contains(name)));
    }
}
