//! What is measured: services, patterns, windows, and how long each.

use serde::Serialize;

use crate::qemu::Nic;

/// What requests look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    Read1K,
    Write1K,
    Read4K,
}

impl Pattern {
    pub const ALL: [Self; 3] = [Self::Read1K, Self::Write1K, Self::Read4K];

    pub const fn label(self) -> &'static str {
        match self {
            Self::Read1K => "random reads of 1 KiB",
            Self::Write1K => "random writes of 1 KiB",
            Self::Read4K => "random reads of 4 KiB",
        }
    }

    pub const fn bytes(self) -> u32 {
        match self {
            Self::Read1K | Self::Write1K => 1024,
            Self::Read4K => 4096,
        }
    }

    pub const fn writes(self) -> bool {
        matches!(self, Self::Write1K)
    }

    /// As the generator calls it.
    pub const fn operation(self) -> &'static str {
        if self.writes() { "write" } else { "read" }
    }
}

/// Requests under way at once.
pub const WINDOWS: [u32; 3] = [1, 16, 64];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Case {
    pub pattern: Pattern,
    pub window: u32,
}

impl Case {
    pub fn all() -> impl Iterator<Item = Self> {
        Pattern::ALL.into_iter().flat_map(|pattern| WINDOWS.map(|window| Self { pattern, window }))
    }
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Service {
    /// Version 1 of the protocol.
    Netblk,
    /// Version 2: in a session, with a tag on every datagram.
    Netblk2,
    NodeEcho,
    NodeDisk,
    /// Echo and disk at the same time, neither waiting for the other: the slower of the two.
    NodeBoth,
    NbdServer,
    QemuNbd,
    Nvmet,
    LinuxEcho,
    LinuxDisk,
}

impl Service {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Netblk => "netblk",
            Self::Netblk2 => "netblk, version 2",
            Self::NodeEcho => "node: UDP echo",
            Self::NodeDisk => "node: local disk",
            Self::NodeBoth => "node: both at once",
            Self::NbdServer => "nbd-server",
            Self::QemuNbd => "qemu-nbd",
            Self::Nvmet => "nvmet over TCP",
            Self::LinuxEcho => "Linux: UDP echo",
            Self::LinuxDisk => "Linux: local disk",
        }
    }

    pub const fn on_node(self) -> bool {
        matches!(self, Self::Netblk | Self::Netblk2 | Self::NodeEcho | Self::NodeDisk | Self::NodeBoth)
    }

    /// What is measured with a card. The peers other than nbd-server, and the disks, are the same whatever the card is;
    /// they are measured with virtio only.
    pub const fn of(nic: Nic) -> &'static [Self] {
        match nic {
            Nic::Virtio => &[
                Self::Netblk,
                Self::Netblk2,
                Self::NbdServer,
                Self::QemuNbd,
                Self::Nvmet,
                Self::NodeEcho,
                Self::LinuxEcho,
                Self::NodeDisk,
                Self::NodeBoth,
                Self::LinuxDisk,
            ],
            Nic::Igb => &[
                Self::Netblk,
                Self::Netblk2,
                Self::NbdServer,
                Self::NodeEcho,
                Self::NodeBoth,
                Self::LinuxEcho,
            ],
        }
    }
}

/// How long a measurement lasts.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Timing {
    pub seconds: f64,
    pub warm_up: f64,
}

impl Timing {
    pub const FULL: Self = Self { seconds: 0.9, warm_up: 0.25 };
    pub const QUICK: Self = Self { seconds: 0.4, warm_up: 0.2 };
}
