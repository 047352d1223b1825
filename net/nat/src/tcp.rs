//! As much of a TCP connection's state as decides how long it may be idle.
//!
//! ```text
//!   opening --SYN seen from both sides--> established --FIN from both, or RST--> closing
//!      ^                                                                            |
//!      +--------------------- a new SYN, the ports are used again -----------------+
//! ```
//!
//! Sequence numbers are not followed, so anybody who can forge the four-tuple can make a
//! connection look closed. That shortens its idle time to the transitory one, which traffic
//! renews; it does not end it (RFC 7857 section 2 keeps it for the same reason).

use netwire::TcpFlags;

/// Which side of the NAT a packet came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Inside,
    Outside,
}

/// What was seen of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TcpTrack {
    syn: BothSides,
    fin: BothSides,
    reset: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct BothSides {
    inside: bool,
    outside: bool,
}

impl BothSides {
    fn mark(&mut self, side: Side) {
        match side {
            Side::Inside => self.inside = true,
            Side::Outside => self.outside = true,
        }
    }

    fn both(self) -> bool {
        self.inside && self.outside
    }
}

/// Whether a segment may begin a connection.
pub(crate) fn opens(flags: TcpFlags) -> bool {
    flags.contains(TcpFlags::SYN) && !flags.contains(TcpFlags::ACK) && !flags.contains(TcpFlags::RST)
}

impl TcpTrack {
    /// Takes note of a segment.
    pub fn segment(&mut self, from: Side, flags: TcpFlags) {
        if opens(flags) && self.is_closing() {
            *self = Self::default();
        }
        if flags.contains(TcpFlags::RST) {
            self.reset = true;
        } else if flags.contains(TcpFlags::SYN) {
            self.syn.mark(from);
        } else if flags.contains(TcpFlags::FIN) {
            self.fin.mark(from);
        }
    }

    pub fn is_closing(self) -> bool {
        self.reset || self.fin.both()
    }

    pub fn is_established(self) -> bool {
        self.syn.both() && !self.is_closing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN_ACK: TcpFlags = TcpFlags::SYN.with(TcpFlags::ACK);
    const FIN_ACK: TcpFlags = TcpFlags::FIN.with(TcpFlags::ACK);

    fn track(segments: &[(Side, TcpFlags)]) -> TcpTrack {
        let mut track = TcpTrack::default();
        segments.iter().for_each(|&(from, flags)| track.segment(from, flags));
        track
    }

    #[test]
    fn a_connection_opens_and_closes() {
        use Side::{Inside, Outside};
        let opening = [(Inside, TcpFlags::SYN), (Outside, SYN_ACK), (Inside, TcpFlags::ACK)];
        assert!(!track(&opening[..1]).is_established());
        assert!(track(&opening).is_established());
        assert!(track(&[(Inside, TcpFlags::SYN), (Outside, TcpFlags::SYN)]).is_established(), "simultaneous");
        let half_closed = [&opening[..], &[(Outside, FIN_ACK)]].concat();
        assert!(track(&half_closed).is_established(), "a half-closed connection may go on for hours");
        let closed = [&half_closed[..], &[(Inside, FIN_ACK)]].concat();
        assert!(track(&closed).is_closing());
        assert!(track(&[&opening[..], &[(Outside, TcpFlags::RST)]].concat()).is_closing());
        let again = [&closed[..], &[(Inside, TcpFlags::SYN)]].concat();
        assert!(!track(&again).is_closing() && !track(&again).is_established());
    }
}
