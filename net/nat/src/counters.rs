//! What happened to packets.

use core::fmt;

/// Why a packet goes nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DropReason {
    /// Its headers do not fit its bytes.
    Malformed,
    /// A fragment: which connection it belongs to is in another packet.
    Fragment,
    /// Neither UDP, TCP nor an ICMP echo.
    Protocol,
    /// A UDP or TCP port of 0, which nobody can answer.
    PortZero,
    /// From inside, with a source that is no guest's; from outside, with one that is.
    SpoofedSource,
    /// From inside, for a group, a neighbour, or an address that is no host's.
    NotRoutable,
    /// The node has no address outside yet.
    NoUplink,
    /// Its time to live is used up.
    TtlExpired,
    /// It belongs to no connection and may not begin one.
    NoConnection,
    /// It would begin a connection whose answers could not be told from another's.
    Collision,
    /// The guest has its share of connections.
    ShareUsed,
    /// The table is full of connections that must not be given up.
    TableFull,
    /// There is no free port outside.
    NoPort,
}

impl DropReason {
    pub const ALL: [Self; 13] = [
        Self::Malformed,
        Self::Fragment,
        Self::Protocol,
        Self::PortZero,
        Self::SpoofedSource,
        Self::NotRoutable,
        Self::NoUplink,
        Self::TtlExpired,
        Self::NoConnection,
        Self::Collision,
        Self::ShareUsed,
        Self::TableFull,
        Self::NoPort,
    ];

    const fn index(self) -> usize {
        self as usize
    }

    /// The reason as a counter's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Fragment => "fragment",
            Self::Protocol => "protocol",
            Self::PortZero => "port-zero",
            Self::SpoofedSource => "spoofed-source",
            Self::NotRoutable => "not-routable",
            Self::NoUplink => "no-uplink",
            Self::TtlExpired => "ttl-expired",
            Self::NoConnection => "no-connection",
            Self::Collision => "collision",
            Self::ShareUsed => "share-used",
            Self::TableFull => "table-full",
            Self::NoPort => "no-port",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Counters since the NAT was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets sent on to the uplink, and to a guest.
    pub outbound: u64,
    pub inbound: u64,
    /// Packets from a guest to a forward, back to a guest.
    pub hairpinned: u64,
    /// ICMP errors translated for a guest.
    pub errors_in: u64,
    pub connections_made: u64,
    pub connections_expired: u64,
    /// Given up before their time, to make room.
    pub connections_evicted: u64,
    drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Packets that went nowhere for this reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    pub(crate) fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason.index()] += 1;
    }
}
