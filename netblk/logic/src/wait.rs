//! What a worker does when its rings are empty.
//!
//! Sleeping and being woken costs an interrupt, a task switch and, where the waker is another CPU,
//! an interrupt between processors; a disk that answers in 100 us is worth waiting for awake. But a
//! worker that polls for ever burns its CPU. So: while the disk owes completions, poll for 50 us
//! after the last piece of work, then sleep until the event.
//!
//! Whether to wait awake for the next request, too, depends on when it comes. A client that keeps few requests
//! under way asks again as soon as it has its answer, and then each of its requests pays for a wake-up; one that
//! asks a hundred times a second gains nothing. So the worker learns from its sleeps ([`IdlePoll::Learned`]): each
//! that a little polling would have saved doubles the polling, up to 400 us, and each that lasted longer than that
//! halves it, down to nothing. `poll=us` fixes it instead. No request is waited for awake while another task waits for the CPU.
//!
//! Polling means looking at the rings and offering the CPU to whoever can run. It never means
//! idling (idle halts until this CPU's next interrupt, and the ones that matter may come
//! elsewhere), and never a bare spin (a preempted softirq task on this CPU, in the middle of a
//! transmit, would not run until the tick).
//!
//! Two things come without a signal, and are asked after by the clock instead: room in a disk's
//! queue that others have filled, and room in the card's transmit ring.

/// How long a worker polls while the disk owes it completions.
pub const OWED_POLL_NS: u64 = 50_000;

/// How long a worker sleeps at most while it waits for something that nobody will signal.
pub const RETRY_NS: u64 = 500_000;

/// The longest that a worker polls because it has learned to: what an answer's way to a client and the next
/// request's way back take on a fast link.
pub const MOST_LEARNED_NS: u64 = 400_000;

/// What it begins with.
const FIRST_LEARNED_NS: u64 = 50_000;

/// How long a worker to whom nothing is owed polls for the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdlePoll {
    /// As long as has paid lately.
    Learned,
    /// For so many nanoseconds after the last piece of work; 0: not at all.
    Fixed(u64),
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Offer the CPU to a runnable task, then look again.
    Poll,
    /// Sleep until the event.
    Sleep,
    /// Sleep until the event or this time (ns since boot).
    SleepUntil(u64),
}

/// When to poll and when to sleep.
#[derive(Debug, Clone)]
pub struct WaitPolicy {
    idle_poll: IdlePoll,
    learned_ns: u64,
    last_work_ns: u64,
    /// The worker has slept since the last piece of work.
    slept: bool,
}

impl WaitPolicy {
    /// A policy for a worker that starts now.
    pub const fn new(idle_poll: IdlePoll, now_ns: u64) -> Self {
        Self { idle_poll, learned_ns: 0, last_work_ns: now_ns, slept: false }
    }

    /// A request, a completion or a reply was dealt with.
    pub fn worked(&mut self, now_ns: u64) {
        if core::mem::take(&mut self.slept) {
            self.learn(now_ns.saturating_sub(self.last_work_ns));
        }
        self.last_work_ns = now_ns;
    }

    /// So long there was nothing to do, and the worker slept meanwhile.
    fn learn(&mut self, idle_ns: u64) {
        self.learned_ns = if idle_ns > MOST_LEARNED_NS {
            let half_ns = self.learned_ns / 2;
            if half_ns < FIRST_LEARNED_NS { 0 } else { half_ns }
        } else {
            (2 * self.learned_ns).clamp(FIRST_LEARNED_NS, MOST_LEARNED_NS)
        };
    }

    /// The rings are empty. `owed`: commands that are with the disk. `stuck`: a request or a reply
    /// is held back by something that will not signal when it gives way. `alone`: no other task waits for
    /// this CPU.
    pub fn next(&mut self, now_ns: u64, owed: usize, stuck: bool, alone: bool) -> Wait {
        let owed_poll_ns = if owed > 0 || stuck { OWED_POLL_NS } else { 0 };
        let idle_poll_ns = match self.idle_poll {
            _ if !alone => 0,
            IdlePoll::Learned => self.learned_ns,
            IdlePoll::Fixed(ns) => ns,
        };
        // A clock that went back (it does not) would read as "just now".
        if now_ns.saturating_sub(self.last_work_ns) < idle_poll_ns.max(owed_poll_ns) {
            return Wait::Poll;
        }
        self.slept = true;
        if stuck { Wait::SleepUntil(now_ns.saturating_add(RETRY_NS)) } else { Wait::Sleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEVER: IdlePoll = IdlePoll::Fixed(0);

    #[test]
    fn an_idle_worker_sleeps_at_once() {
        for idle_poll in [NEVER, IdlePoll::Learned] {
            let mut policy = WaitPolicy::new(idle_poll, 1000);
            assert_eq!(policy.next(1000, 0, false, true), Wait::Sleep);
            assert_eq!(policy.next(u64::MAX, 0, false, true), Wait::Sleep);
        }
    }

    #[test]
    fn owed_completions_are_polled_for_50_us_after_the_last_work() {
        let mut policy = WaitPolicy::new(NEVER, 0);
        for alone in [true, false] {
            assert_eq!(policy.next(49_999, 3, false, alone), Wait::Poll);
        }
        assert_eq!(policy.next(50_000, 3, false, true), Wait::Sleep);
        policy.worked(50_000);
        assert_eq!(policy.next(99_999, 1, false, true), Wait::Poll);
        assert_eq!(policy.next(99_999, 0, false, true), Wait::Sleep);
    }

    #[test]
    fn poll_us_waits_for_requests_too_and_never_shortens_the_other_wait() {
        let mut policy = WaitPolicy::new(IdlePoll::Fixed(1_000_000), 0);
        assert_eq!(policy.next(999_999, 0, false, true), Wait::Poll);
        assert_eq!(policy.next(999_999, 0, false, false), Wait::Sleep);
        assert_eq!(policy.next(1_000_000, 0, false, true), Wait::Sleep);
        let mut short = WaitPolicy::new(IdlePoll::Fixed(10_000), 0);
        assert_eq!(short.next(20_000, 1, false, true), Wait::Poll);
        assert_eq!(short.next(20_000, 0, false, true), Wait::Sleep);
    }

    #[test]
    fn what_nobody_will_signal_is_asked_after_by_the_clock() {
        let mut policy = WaitPolicy::new(NEVER, 0);
        assert_eq!(policy.next(10_000, 0, true, true), Wait::Poll);
        assert_eq!(policy.next(60_000, 0, true, true), Wait::SleepUntil(60_000 + RETRY_NS));
        assert_eq!(policy.next(60_000, 5, true, true), Wait::SleepUntil(60_000 + RETRY_NS));
    }

    /// Work every `gap_ns`; how many of `count` pieces found the worker asleep.
    fn sleeps(policy: &mut WaitPolicy, now_ns: &mut u64, gap_ns: u64, count: u32) -> u32 {
        (0..count)
            .filter(|_| {
                let asleep = policy.next(*now_ns + gap_ns - 1, 0, false, true) != Wait::Poll;
                *now_ns += gap_ns;
                policy.worked(*now_ns);
                asleep
            })
            .count() as u32
    }

    #[test]
    fn a_client_that_asks_again_at_once_finds_the_worker_awake() {
        let (mut policy, mut now_ns) = (WaitPolicy::new(IdlePoll::Learned, 0), 0);
        // 50, 100 us: then it is long enough.
        assert_eq!(sleeps(&mut policy, &mut now_ns, 73_000, 1000), 2);
        assert_eq!(sleeps(&mut policy, &mut now_ns, 30_000, 1000), 0);
        assert_eq!(sleeps(&mut policy, &mut now_ns, 199_000, 1000), 1);
    }

    #[test]
    fn a_client_that_asks_seldom_costs_no_polling() {
        let (mut policy, mut now_ns) = (WaitPolicy::new(IdlePoll::Learned, 0), 0);
        sleeps(&mut policy, &mut now_ns, 73_000, 10);
        assert_eq!(sleeps(&mut policy, &mut now_ns, 10_000_000, 3), 3);
        // Having slept long three times, it sleeps at once.
        assert_eq!(policy.next(now_ns, 0, false, true), Wait::Sleep);
    }

    proptest! {
        /// Nothing polls for longer than 400 us after the last work.
        #[test]
        fn learning_has_an_end(gaps in proptest::collection::vec(1u64..1_000_000, 0..100)) {
            let (mut policy, mut now_ns) = (WaitPolicy::new(IdlePoll::Learned, 0), 0);
            for gap_ns in gaps {
                sleeps(&mut policy, &mut now_ns, gap_ns, 1);
                prop_assert_eq!(policy.next(now_ns + MOST_LEARNED_NS, 0, false, true), Wait::Sleep);
                policy.slept = false;
            }
        }
    }
}
