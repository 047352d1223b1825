//! What happened to frames, per ingress port.

use core::fmt;

/// Why a frame went nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// It came from a port to which nothing is attached.
    NotAttached,
    /// Shorter than an Ethernet header.
    Undersize,
    /// Longer than the switch carries.
    Oversize,
    /// Its source is a group address or all zero: no station can have sent it.
    BadSource,
    /// Its source belongs to another port, or is not one of this port's.
    SpoofedSource,
    /// For the bridge's own protocols, which no bridge passes on (802.1Q-2018 8.6.3).
    LinkLocal,
    /// Its destination is behind the port it came from, or nobody else is there.
    NobodyElse,
    /// The port has used up its rate of floods.
    Storm,
}

impl DropReason {
    pub const ALL: [Self; 8] = [
        Self::NotAttached,
        Self::Undersize,
        Self::Oversize,
        Self::BadSource,
        Self::SpoofedSource,
        Self::LinkLocal,
        Self::NobodyElse,
        Self::Storm,
    ];

    const fn index(self) -> usize {
        self as usize
    }

    /// The reason as a counter's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotAttached => "not-attached",
            Self::Undersize => "undersize",
            Self::Oversize => "oversize",
            Self::BadSource => "bad-source",
            Self::SpoofedSource => "spoofed-source",
            Self::LinkLocal => "link-local",
            Self::NobodyElse => "nobody-else",
            Self::Storm => "storm",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counters of one port. "In" is from the port into the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortCounters {
    pub frames_in: u64,
    pub bytes_in: u64,
    /// Decided to go out of this port, whoever sent them. What became of them then, its queue
    /// knows.
    pub frames_out: u64,
    pub bytes_out: u64,
    /// Frames in that went to one port, since their destination is known.
    pub forwarded: u64,
    /// Frames in that went to all ports: to a group, and to an unknown station.
    pub flooded_group: u64,
    pub flooded_unknown: u64,
    /// Addresses learned here, among them ones that were elsewhere before.
    pub learned: u64,
    pub moved_here: u64,
    /// Addresses that could not be learned: the entries they could have had are bound, or the port
    /// has its share.
    pub not_learned: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl PortCounters {
    /// Frames in that went nowhere for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Frames in that went nowhere.
    pub fn dropped_in_all(&self) -> u64 {
        self.drops.iter().sum()
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason.index()] += 1;
    }
}
