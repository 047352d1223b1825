//! How soon a guest that has reset itself runs again.
//!
//! At once, unless it keeps on: a guest that resets as soon as it runs (a kernel that panics
//! early) would otherwise spend the node's time on clearing its memory and loading its kernel, and
//! fill the log with its starts.

use crate::time::SECOND_NS;

/// This many resets ...
const MOST_RESETS: usize = 3;
/// ... within this time are a loop.
const LOOP_NS: u64 = 10 * SECOND_NS;
/// The wait before each restart in a loop.
pub const LOOP_WAIT_NS: u64 = SECOND_NS;

/// One guest's resets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResetPace {
    /// The times of the last resets, the oldest first.
    last_ns: [Option<u64>; MOST_RESETS],
    in_loop: bool,
}

/// What a restart waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestartWait {
    /// This long; 0 is at once.
    pub wait_ns: u64,
    /// A loop begins: worth a word, which the further rounds of it are not.
    pub loop_begins: bool,
}

impl ResetPace {
    /// The guest has reset itself.
    pub fn reset(&mut self, now_ns: u64) -> RestartWait {
        self.last_ns.rotate_left(1);
        self.last_ns[MOST_RESETS - 1] = Some(now_ns);
        let was_in_loop = self.in_loop;
        self.in_loop = self.last_ns[0].is_some_and(|first_ns| now_ns.saturating_sub(first_ns) < LOOP_NS);
        RestartWait {
            wait_ns: if self.in_loop { LOOP_WAIT_NS } else { 0 },
            loop_begins: self.in_loop && !was_in_loop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_keeps_resetting_is_slowed_and_named_once() {
        let mut pace = ResetPace::default();
        assert_eq!(pace.reset(SECOND_NS), RestartWait::default());
        assert_eq!(pace.reset(2 * SECOND_NS), RestartWait::default());
        assert_eq!(pace.reset(3 * SECOND_NS), RestartWait { wait_ns: LOOP_WAIT_NS, loop_begins: true });
        for second in 4..20 {
            let wait = pace.reset(second * SECOND_NS);
            assert_eq!(wait, RestartWait { wait_ns: LOOP_WAIT_NS, loop_begins: false });
        }
    }

    #[test]
    fn resets_now_and_then_are_no_loop_and_a_later_loop_is_named_again() {
        let mut pace = ResetPace::default();
        for round in 1..10 {
            assert_eq!(pace.reset(round * 6 * SECOND_NS), RestartWait::default());
        }
        let later_ns = 1000 * SECOND_NS;
        let begins = |pace: &mut ResetPace, from_ns: u64| {
            (0..5).filter(|round| pace.reset(from_ns + round * SECOND_NS).loop_begins).count()
        };
        assert_eq!(begins(&mut pace, later_ns), 1);
        assert_eq!(begins(&mut pace, 2 * later_ns), 1);
    }
}
