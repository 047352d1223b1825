//! Requests leave at a pace, not in a burst (RFC 8085 section 3.1.1: a sender may smooth its traffic).
//!
//! Twice a window's worth in a round trip is no limit on what flows steadily: answers bring new
//! requests at half of that pace. It is one where a whole window would leave at once, as after a dead
//! link came back: a switch or a server's card with a short queue would lose most of it.
//!
//! The form is the virtual scheduling algorithm of ITU-T I.371: a moment moves on by each request's
//! share of the round trip, and may run ahead of the clock by a short burst.

/// Requests that may leave at once.
const BURST: u64 = 32;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Pacer {
    /// When everything sent so far would have left at the pace.
    due_ns: u64,
}

impl Pacer {
    /// When the next request may leave, at `share_ns` each.
    pub fn ready_ns(&self, share_ns: u64) -> u64 {
        self.due_ns.saturating_sub(BURST.saturating_mul(share_ns))
    }

    /// A request leaves.
    pub fn sent(&mut self, now_ns: u64, share_ns: u64) {
        self.due_ns = self.due_ns.max(now_ns).saturating_add(share_ns);
    }
}

/// The share of the round trip that a request has: half a window's.
pub fn share_ns(round_trip_ns: Option<u64>, window: u32) -> u64 {
    round_trip_ns.map_or(0, |round_trip_ns| round_trip_ns / (2 * u64::from(window.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_leaves_at_once_and_the_rest_at_the_pace() {
        let share = share_ns(Some(1_000_000), 50);
        assert_eq!(share, 10_000);
        let mut pacer = Pacer::default();
        let mut now_ns = 5_000_000;
        let mut left_at_once = 0;
        for number in 0..132 {
            let ready_ns = pacer.ready_ns(share);
            if ready_ns <= now_ns {
                left_at_once += u32::from(now_ns == 5_000_000);
            } else {
                assert!(number >= 32);
                now_ns = ready_ns;
            }
            pacer.sent(now_ns, share);
        }
        assert_eq!(left_at_once, 33);
        assert_eq!(now_ns, 5_000_000 + 99 * 10_000);
    }

    #[test]
    fn nothing_is_held_before_a_round_trip_is_known() {
        let mut pacer = Pacer::default();
        for _ in 0..1000 {
            assert!(pacer.ready_ns(share_ns(None, 1)) <= 7);
            pacer.sent(7, share_ns(None, 1));
        }
    }
}
