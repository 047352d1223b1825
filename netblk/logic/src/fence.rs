//! Keeps writes to the same sectors in the order in which they arrived.
//!
//! A client that gets no answer asks again, so the same WRITE may be here twice. The first copy is
//! answered; the client now writes something newer to the same place; and the second copy may
//! still be on its way to the disk, which orders nothing by itself. Both would be with the disk at
//! once, and the older data could land last. So a write waits while another one to any of its
//! sectors is with the disk, and what is queued behind it waits too, so that it keeps its place.
//!
//! The fence is a table of bits: a run of sixteen sectors has a word, found by the hash of the run's
//! number, and each sector a bit in it. Asking costs the same however many writes are under way, and
//! the same for one sector as for sixteen of a run. Two runs with the same word can make a write wait
//! for no reason, for one disk access: with 64 random writes of two sectors under way that is one
//! write in a thousand.
//!
//! Reads need no fence. One that is with the disk together with a write to the same sectors was
//! sent before that write was answered, and may see either state.

use netblk_proto::SectorRange;

const INDEX_BITS: u32 = 13;

/// A bit for every sector of a run.
type Mask = u16;

/// Sectors of a run, as a power of two.
const RUN_SHIFT: u32 = Mask::BITS.trailing_zeros();

/// The sectors that are being written.
pub struct WriteFence {
    words: [Mask; 1 << INDEX_BITS],
}

impl WriteFence {
    /// Nothing is being written.
    pub const fn new() -> Self {
        Self { words: [0; 1 << INDEX_BITS] }
    }

    /// Takes the sectors of a write that is to start now, all or none. `false`: one of them may be
    /// in use; try again when a write has left.
    #[must_use]
    pub fn enter(&mut self, range: &SectorRange) -> bool {
        let free = masks(range).all(|(word, mask)| self.words[word] & mask == 0);
        if free {
            for (word, mask) in masks(range) {
                self.words[word] |= mask;
            }
        }
        free
    }

    /// Gives back the sectors of a write that entered and has ended.
    pub fn leave(&mut self, range: &SectorRange) {
        // A bit that is set belongs to one write alone, since `enter` wants all of its bits free.
        for (word, mask) in masks(range) {
            self.words[word] &= !mask;
        }
    }
}

impl Default for WriteFence {
    fn default() -> Self {
        Self::new()
    }
}

/// The sectors of the range, run by run: the run's word and the sectors' bits in it.
fn masks(range: &SectorRange) -> impl Iterator<Item = (usize, Mask)> + use<> {
    let first = range.first_sector();
    let last = first + u64::from(range.sectors()) - 1;
    (first >> RUN_SHIFT..=last >> RUN_SHIFT).map(move |run| {
        let from = first.saturating_sub(run << RUN_SHIFT);
        let to = (last - (run << RUN_SHIFT)).min(u64::from(Mask::BITS) - 1);
        let mask = Mask::MAX << from & Mask::MAX >> (u64::from(Mask::BITS) - 1 - to);
        // Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, section 6.4): the top
        // bits of the product, so that strides of a power of two spread as well as neighbours do.
        let hash = run.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - INDEX_BITS);
        (hash as usize, mask)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netblk_proto::Limits;
    use proptest::prelude::*;

    fn range(first: u64, sectors: u32) -> SectorRange {
        Limits::new(512, 1 << 40, 9000, false).unwrap().range(first * 512, sectors * 512, u32::MAX).unwrap()
    }

    #[test]
    fn a_doubled_write_holds_back_a_newer_one() {
        let mut fence = WriteFence::new();
        assert!(fence.enter(&range(100, 2)));
        assert!(!fence.enter(&range(101, 2)));
        assert!(!fence.enter(&range(99, 2)));
        assert!(fence.enter(&range(102, 2)));
        fence.leave(&range(100, 2));
        assert!(fence.enter(&range(100, 2)));
    }

    #[test]
    fn neighbours_and_powers_of_two_do_not_collide() {
        for stride in [2, 8, 2048, 1 << 15, 1 << 20] {
            let mut fence = WriteFence::new();
            let refused = (0..64).filter(|&nth| !fence.enter(&range(nth * stride, 2))).count();
            assert!(refused <= 2, "stride {stride}: {refused} of 64 refused");
        }
    }

    #[test]
    fn a_range_has_the_bits_of_its_sectors_and_no_others() {
        let bits =
            |first, sectors| -> Vec<Mask> { masks(&range(first, sectors)).map(|(_, mask)| mask).collect() };
        assert_eq!(bits(0, 1), [0x0001]);
        assert_eq!(bits(15, 1), [0x8000]);
        assert_eq!(bits(16, 16), [0xFFFF]);
        assert_eq!(bits(14, 4), [0xC000, 0x0003]);
        assert_eq!(bits(30, 17), [0xC000, 0x7FFF]);
        assert_eq!(bits(47, 18), [0x8000, 0xFFFF, 0x0001]);
    }

    proptest! {
        /// Whatever is let in overlaps nothing that is in; whatever left makes room again.
        #[test]
        fn no_two_writes_to_a_sector_are_ever_in(steps in proptest::collection::vec((any::<bool>(), 0u64..40, 1u32..4), 1..200)) {
            let mut fence = WriteFence::new();
            let mut inside: Vec<SectorRange> = Vec::new();
            for (enters, first, sectors) in steps {
                if enters {
                    let new = range(first, sectors);
                    let overlaps = inside.iter().any(|old| {
                        old.first_sector() < first + u64::from(sectors)
                            && first < old.first_sector() + u64::from(old.sectors())
                    });
                    let entered = fence.enter(&new);
                    prop_assert!(!(overlaps && entered));
                    if entered {
                        inside.push(new);
                    }
                } else if !inside.is_empty() {
                    let gone = inside.swap_remove(first as usize % inside.len());
                    fence.leave(&gone);
                }
            }
            for gone in inside.drain(..) {
                fence.leave(&gone);
            }
            prop_assert!(fence.words.iter().all(|&word| word == 0));
        }
    }
}
