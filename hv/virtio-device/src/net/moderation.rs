//! When the guest is interrupted for received frames (`rxmod`).
//!
//! A frame goes into the guest's buffers at once, but the interrupt waits until a set time has
//! passed since the one before; then one interrupt takes all. A guest that gets an interrupt per
//! frame acknowledges every frame or two, and its peer then sends more and smaller ones. The
//! first frame after a pause is not delayed at all, so a lone request pays nothing.
//!
//! ```text
//!             request: Now                     settle
//!   closed ----------------> open, none owed <--------- open, owed
//!     ^                        |          |  request: At  ^
//!     +-- the window has ended +          +---------------+
//! ```
//!
//! The window opens with each interrupt. An interrupt that is owed falls due at the window's end,
//! and [`RxModeration::due_ns`] is then a deadline for the CPU that does the device work. The debt
//! ends with the queue ([`RxModeration::forget`]): an interrupt owed to a driver that has taken
//! its queue away could never be paid, and the deadline, always in the past, would keep the run
//! loop spinning.

/// Default of `rxmod`: 0.05-0.07 s for 100 small HTTP requests, as without a window, and the best
/// bulk throughput; 200 us already costs such requests a third.
pub const DEFAULT_WINDOW_NS: u64 = 100_000;

/// When an interrupt that was asked for is to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InterruptTiming {
    Now,
    /// Not before this time; until then further requests join it.
    At(u64),
}

/// The receive moderation of one queue.
#[derive(Clone, Copy, Debug)]
pub struct RxModeration {
    window_ns: u64,
    /// When the window ends that the last interrupt opened; in the past, there is none open.
    window_end_ns: u64,
    owed: bool,
}

impl RxModeration {
    /// Moderation with a window of `window_ns`; 0 interrupts for every request at once.
    pub const fn new(window_ns: u64) -> Self {
        Self { window_ns, window_end_ns: 0, owed: false }
    }

    pub const fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// The driver wants an interrupt. `Now`: raise it and call [`Self::settle`] with true.
    pub fn request(&mut self, now_ns: u64) -> InterruptTiming {
        if now_ns >= self.window_end_ns {
            return InterruptTiming::Now;
        }
        self.owed = true;
        InterruptTiming::At(self.window_end_ns)
    }

    /// Whether an interrupt is owed and its time has come. The caller asks the driver once more,
    /// since it may have polled the frames meanwhile, and then calls [`Self::settle`].
    pub const fn is_due(&self, now_ns: u64) -> bool {
        self.owed && now_ns >= self.window_end_ns
    }

    /// Nothing is owed any more; if an interrupt was raised, it opens the next window.
    pub fn settle(&mut self, now_ns: u64, interrupted: bool) {
        self.owed = false;
        if interrupted {
            self.window_end_ns = now_ns.saturating_add(self.window_ns);
        }
    }

    pub const fn is_owed(&self) -> bool {
        self.owed
    }

    /// When the owed interrupt falls due; none if none is owed.
    pub const fn due_ns(&self) -> Option<u64> {
        if self.owed { Some(self.window_end_ns) } else { None }
    }

    /// When the open window ends; a time not in the future means that none is open.
    pub const fn window_end_ns(&self) -> u64 {
        self.window_end_ns
    }

    /// The queue is gone, and with it window and debt.
    pub fn forget(&mut self) {
        self.owed = false;
        self.window_end_ns = 0;
    }
}

/// Whether a frame that reaches a port's queue should wake the CPU that does the guest's device
/// work. While the window is open that CPU comes by itself at its end, so it is only disturbed
/// when the queue could run over before.
pub const fn frame_wakes(now_ns: u64, window_end_ns: u64, queued_frames: usize, queue_frames: usize) -> bool {
    now_ns >= window_end_ns || queued_frames >= queue_frames.div_ceil(2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_frame_is_not_delayed_and_the_second_waits_for_the_window() {
        let mut moderation = RxModeration::new(100_000);
        assert_eq!(moderation.request(5_000_000), InterruptTiming::Now);
        moderation.settle(5_000_000, true);
        assert_eq!(moderation.request(5_010_000), InterruptTiming::At(5_100_000));
        assert_eq!(moderation.request(5_020_000), InterruptTiming::At(5_100_000));
        assert!(!moderation.is_due(5_099_999));
        assert!(moderation.is_due(5_100_000));
        moderation.settle(5_100_000, true);
        assert_eq!(moderation.due_ns(), None);
        assert_eq!(moderation.request(5_150_000), InterruptTiming::At(5_200_000));
    }

    #[test]
    fn the_debt_ends_with_the_queue() {
        let mut moderation = RxModeration::new(100_000);
        moderation.settle(1_000, true);
        let _ = moderation.request(2_000);
        moderation.forget();
        assert_eq!(moderation.due_ns(), None);
        assert!(!moderation.is_due(u64::MAX));
        assert_eq!(moderation.request(3_000), InterruptTiming::Now);
    }

    #[test]
    fn a_driver_that_polled_meanwhile_owes_no_window() {
        let mut moderation = RxModeration::new(100_000);
        moderation.settle(0, true);
        let _ = moderation.request(50_000);
        moderation.settle(100_000, false);
        assert_eq!(moderation.request(100_001), InterruptTiming::Now);
    }

    #[test]
    fn a_frame_in_the_window_wakes_only_a_queue_half_full() {
        assert!(frame_wakes(100, 100, 0, 256));
        assert!(!frame_wakes(99, 100, 127, 256));
        assert!(frame_wakes(99, 100, 128, 256));
        assert!(frame_wakes(99, 100, 1, 1));
    }

    proptest! {
        /// Requests at any times: interrupts are a window apart, and none is ever lost.
        #[test]
        fn interrupts_keep_their_distance_and_none_is_lost(
            window_ns in 0u64..500_000,
            gaps in proptest::collection::vec(0u64..300_000, 1..200),
        ) {
            let mut moderation = RxModeration::new(window_ns);
            let mut now_ns = 1;
            let mut last: Option<u64> = None;
            let mut interrupt = |moderation: &mut RxModeration, now_ns: u64| {
                if let Some(last) = last {
                    assert!(now_ns - last >= window_ns);
                }
                last = Some(now_ns);
                moderation.settle(now_ns, true);
            };
            for gap in gaps {
                // The device's CPU comes at the due time, as the one-shot timer has it.
                if let Some(due) = moderation.due_ns().filter(|&due| due <= now_ns + gap) {
                    prop_assert!(moderation.is_due(due));
                    interrupt(&mut moderation, due);
                }
                now_ns += gap;
                match moderation.request(now_ns) {
                    InterruptTiming::Now => interrupt(&mut moderation, now_ns),
                    InterruptTiming::At(due) => {
                        prop_assert!(due > now_ns && due - now_ns <= window_ns);
                        prop_assert_eq!(moderation.due_ns(), Some(due));
                    }
                }
            }
        }
    }
}
