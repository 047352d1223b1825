//! Why a received frame went no further: one name and one counter each.

use core::fmt;

use netwire::Malformed;

macro_rules! drop_reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a received frame went no further.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason {
            $($(#[$doc])* $name,)*
        }

        impl DropReason {
            /// Every reason, in the order of their counters.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];

            /// What the reason is called in listings.
            pub const fn name(self) -> &'static str {
                match self {
                    $(DropReason::$name => $text,)*
                }
            }
        }
    };
}

drop_reasons! {
    /// The frame ends before a header does.
    TooShort = "too short",
    /// A length field claims more than arrived, or less than its own header; of a packet that takes
    /// several frames, also less than arrived.
    LyingLength = "lying length",
    /// A packet longer than an ordinary frame, and not for a handler of datagrams.
    TooLong = "too long",
    /// The version, address family or operation is none we speak.
    Unsupported = "unsupported",
    /// The checksum of the IPv4 header or of the payload does not hold.
    BadChecksum = "bad checksum",
    /// The source is an address that no single other station can have.
    BadSource = "impossible source",
    /// The frame is addressed to another station.
    NotOurMac = "not our MAC address",
    /// The packet is addressed to another host, to a group, or to all.
    NotOurAddress = "not our IP address",
    /// A packet for us alone came in a frame for everyone (RFC 1122 section 3.3.6).
    LinkBroadcast = "unicast in a broadcast frame",
    /// A part of a larger packet; nothing here reassembles.
    Fragment = "fragment",
    /// Neither IPv4 nor ARP.
    OtherProtocol = "neither IPv4 nor ARP",
    /// An ARP packet that concerns other hosts.
    ForeignArp = "ARP between others",
    /// Another station claims our address.
    AddressConflict = "our address claimed by another",
    /// The queue to the TCP/IP library is full.
    StackBusy = "stack busy",
}

impl DropReason {
    /// Place of this reason's counter.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl From<Malformed> for DropReason {
    fn from(error: Malformed) -> DropReason {
        match error {
            Malformed::TooShort { .. } => DropReason::TooShort,
            Malformed::LengthBeyondData { .. } | Malformed::LengthBelowHeader { .. } => {
                DropReason::LyingLength
            }
            Malformed::Version { .. }
            | Malformed::ArpFamily { .. }
            | Malformed::ArpOperation { .. }
            | Malformed::NotEcho { .. } => DropReason::Unsupported,
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_have_their_places() {
        for (place, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(reason.index(), place);
        }
    }
}
