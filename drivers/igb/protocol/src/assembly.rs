//! Packets out of received pieces.
//!
//! A jumbo packet fills several buffers, and its last says that it is the last. A card that never says
//! so would have a packet grow without end: past the pieces that a packet may have, all of it is
//! dropped, up to the next end.

/// What to do with a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Keep it; the packet goes on.
    Keep,
    /// With it, the packet is whole. If it is empty, the packet ended with the piece before.
    Complete,
    /// Drop it and what was kept of its packet. With `end`, the next piece begins another.
    Drop { end: bool },
}

/// The packet that is being received.
#[derive(Debug)]
pub struct Assembly {
    max_pieces: u16,
    kept: u16,
    dropping: bool,
}

impl Assembly {
    /// None yet. No packet has more than `max_pieces`.
    #[must_use]
    pub const fn new(max_pieces: u16) -> Self {
        Assembly { max_pieces, kept: 0, dropping: false }
    }

    /// Forgets the packet under way: the ring was reset.
    pub const fn reset(&mut self) {
        (self.kept, self.dropping) = (0, false);
    }

    /// Whether part of a packet is kept.
    #[must_use]
    pub const fn is_under_way(&self) -> bool {
        self.kept > 0
    }

    /// The next piece came.
    pub fn next(&mut self, bytes: u16, end_of_packet: bool, damaged: bool) -> Step {
        // An empty last piece is no piece: the card stripped the checksum, which alone was in it.
        let pieces = self.kept + u16::from(bytes > 0);
        let good = !self.dropping && !damaged && pieces > 0 && pieces <= self.max_pieces;
        (self.kept, self.dropping) = match (good, end_of_packet) {
            (true, false) => (pieces, false),
            (false, false) => (0, true),
            (_, true) => (0, false),
        };
        match (good, end_of_packet) {
            (true, false) => Step::Keep,
            (true, true) => Step::Complete,
            (false, end) => Step::Drop { end },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn packets_of_one_and_of_several() {
        let mut assembly = Assembly::new(3);
        assert_eq!(assembly.next(60, true, false), Step::Complete);
        assert_eq!(assembly.next(2048, false, false), Step::Keep);
        assert!(assembly.is_under_way());
        assert_eq!(assembly.next(2048, false, false), Step::Keep);
        assert_eq!(assembly.next(10, true, false), Step::Complete);
        assert!(!assembly.is_under_way());
    }

    #[test]
    fn a_packet_that_ends_with_its_checksum_alone() {
        let mut assembly = Assembly::new(2);
        assert_eq!(assembly.next(2048, false, false), Step::Keep);
        assert_eq!(assembly.next(2048, false, false), Step::Keep);
        assert_eq!(assembly.next(0, true, false), Step::Complete);
        // But nothing at all is no packet.
        assert_eq!(assembly.next(0, true, false), Step::Drop { end: true });
    }

    #[test]
    fn one_that_never_ends_is_dropped_to_its_end() {
        let mut assembly = Assembly::new(2);
        assert_eq!(assembly.next(2048, false, false), Step::Keep);
        assert_eq!(assembly.next(2048, false, false), Step::Keep);
        assert_eq!(assembly.next(2048, false, false), Step::Drop { end: false });
        assert_eq!(assembly.next(2048, false, false), Step::Drop { end: false });
        assert_eq!(assembly.next(5, true, false), Step::Drop { end: true });
        assert_eq!(assembly.next(60, true, false), Step::Complete);
    }

    #[test]
    fn a_damaged_one_is_dropped() {
        let mut assembly = Assembly::new(2);
        assert_eq!(assembly.next(2048, false, false), Step::Keep);
        assert_eq!(assembly.next(60, true, true), Step::Drop { end: true });
        assert_eq!(assembly.next(60, true, false), Step::Complete);
    }

    proptest! {
        /// Whatever comes: no packet has more pieces than it may, nor none.
        #[test]
        fn packets_have_their_size(pieces: Vec<(u16, bool, bool)>, max_pieces in 1_u16..8) {
            let mut assembly = Assembly::new(max_pieces);
            let mut kept = 0;
            for (bytes, end, damaged) in pieces {
                let counts = u16::from(bytes > 0);
                match assembly.next(bytes, end, damaged) {
                    Step::Keep => kept += counts,
                    Step::Complete => {
                        prop_assert!((1..=max_pieces).contains(&(kept + counts)));
                        prop_assert!(end && !damaged);
                        kept = 0;
                    }
                    Step::Drop { end: said } => {
                        prop_assert_eq!(said, end);
                        kept = 0;
                    }
                }
                prop_assert!(kept <= max_pieces);
                prop_assert_eq!(assembly.is_under_way(), kept > 0);
            }
        }
    }
}
