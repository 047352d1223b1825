//! What a worker does when its rings are empty.
//!
//! Sleeping and being woken costs an interrupt, a task switch and, where the waker is another CPU,
//! an interrupt between processors; a disk that answers in 100 us is worth waiting for awake. But a
//! worker that polls for ever burns its CPU. So: while the disk owes completions, poll for 50 us
//! after the last piece of work, then sleep until the event; with `poll=us`, poll for that long
//! after the last piece of work whether or not anything is owed, so that the next request finds
//! the worker awake.
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
    idle_poll_ns: u64,
    last_work_ns: u64,
}

impl WaitPolicy {
    /// A policy that polls for `idle_poll_ns` after work even if nothing is owed; 0: not at all.
    pub const fn new(idle_poll_ns: u64, now_ns: u64) -> Self {
        Self { idle_poll_ns, last_work_ns: now_ns }
    }

    /// A request, a completion or a reply was dealt with.
    pub fn worked(&mut self, now_ns: u64) {
        self.last_work_ns = now_ns;
    }

    /// The rings are empty. `owed`: commands that are with the disk. `stuck`: a request or a reply
    /// is held back by something that will not signal when it gives way.
    pub fn next(&self, now_ns: u64, owed: usize, stuck: bool) -> Wait {
        let owed_poll_ns = if owed > 0 || stuck { OWED_POLL_NS } else { 0 };
        let poll_ns = self.idle_poll_ns.max(owed_poll_ns);
        // A clock that went back (it does not) would read as "just now".
        if now_ns.saturating_sub(self.last_work_ns) < poll_ns {
            Wait::Poll
        } else if stuck {
            Wait::SleepUntil(now_ns.saturating_add(RETRY_NS))
        } else {
            Wait::Sleep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_worker_sleeps_at_once() {
        let policy = WaitPolicy::new(0, 1000);
        assert_eq!(policy.next(1000, 0, false), Wait::Sleep);
        assert_eq!(policy.next(u64::MAX, 0, false), Wait::Sleep);
    }

    #[test]
    fn owed_completions_are_polled_for_50_us_after_the_last_work() {
        let mut policy = WaitPolicy::new(0, 0);
        assert_eq!(policy.next(49_999, 3, false), Wait::Poll);
        assert_eq!(policy.next(50_000, 3, false), Wait::Sleep);
        policy.worked(50_000);
        assert_eq!(policy.next(99_999, 1, false), Wait::Poll);
        assert_eq!(policy.next(99_999, 0, false), Wait::Sleep);
    }

    #[test]
    fn poll_us_waits_for_requests_too_and_never_shortens_the_other_wait() {
        let policy = WaitPolicy::new(1_000_000, 0);
        assert_eq!(policy.next(999_999, 0, false), Wait::Poll);
        assert_eq!(policy.next(1_000_000, 0, false), Wait::Sleep);
        let short = WaitPolicy::new(10_000, 0);
        assert_eq!(short.next(20_000, 1, false), Wait::Poll);
        assert_eq!(short.next(20_000, 0, false), Wait::Sleep);
    }

    #[test]
    fn what_nobody_will_signal_is_asked_after_by_the_clock() {
        let policy = WaitPolicy::new(0, 0);
        assert_eq!(policy.next(10_000, 0, true), Wait::Poll);
        assert_eq!(policy.next(60_000, 0, true), Wait::SleepUntil(60_000 + RETRY_NS));
        assert_eq!(policy.next(60_000, 5, true), Wait::SleepUntil(60_000 + RETRY_NS));
    }
}
