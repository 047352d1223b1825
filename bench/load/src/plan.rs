//! What is asked for.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    Read,
    /// Destroys what the disk holds.
    Write,
}

/// One measurement.
#[derive(Debug, Clone)]
pub struct Plan {
    pub operation: Operation,
    /// Bytes of a request.
    pub bytes: u32,
    /// Requests under way at once.
    pub window: usize,
    /// Not measured: caches, queues and the emulator's translations fill.
    pub warm_up: Duration,
    /// Measured.
    pub duration: Duration,
    /// Only the first so many bytes of the disk are asked for.
    pub range_bytes: u64,
    /// Which places, in which order.
    pub seed: u64,
}

/// Places on the disk: random blocks, such that no two requests under way ever overlap. Overlapping writes have no
/// defined result, and netblk's clients may not send them.
#[derive(Debug)]
pub struct Places {
    state: u64,
    block_bytes: u64,
    window: u64,
    /// Blocks of one slot.
    turns: u64,
}

impl Places {
    /// `None` if the range has not a block for each request of the window.
    pub fn new(plan: &Plan) -> Option<Self> {
        let block_bytes = u64::from(plan.bytes);
        let window = plan.window as u64;
        let turns = plan.range_bytes.checked_div(block_bytes)?.checked_div(window)?;
        (turns > 0).then_some(Self { state: plan.seed, block_bytes, window, turns })
    }

    /// The next place for a slot: one of the blocks whose number is the slot's, modulo the window.
    pub fn next(&mut self, slot: usize) -> u64 {
        let turn = (u128::from(self.random()) * u128::from(self.turns)) >> 64;
        // Below `turns`, which is a u64.
        let turn = u64::try_from(turn).unwrap_or(0);
        (turn * self.window + slot as u64) * self.block_bytes
    }

    /// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(bytes: u32, window: usize, range_bytes: u64) -> Plan {
        let duration = Duration::from_secs(1);
        Plan { operation: Operation::Read, bytes, window, warm_up: duration, duration, range_bytes, seed: 7 }
    }

    #[test]
    fn places_lie_in_the_range_and_those_of_two_slots_never_meet() {
        let mut places = Places::new(&plan(1024, 3, 100_000)).unwrap();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            for slot in 0..3 {
                let offset = places.next(slot);
                assert!(offset + 1024 <= 100_000 && offset.is_multiple_of(1024));
                assert_eq!(offset / 1024 % 3, slot as u64);
                seen.insert(offset);
            }
        }
        assert_eq!(seen.len(), 96, "every block that a slot may have comes");
    }

    #[test]
    fn a_range_that_is_too_small_is_refused() {
        assert!(Places::new(&plan(4096, 64, 64 * 4096)).is_some());
        assert!(Places::new(&plan(4096, 64, 64 * 4096 - 1)).is_none());
        assert!(Places::new(&plan(0, 64, 4096)).is_none());
    }
}
