//! The rate at which one port may have frames flooded.

const NS_PER_SECOND: u64 = 1_000_000_000;

/// A token bucket's size and rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StormLimit {
    pub frames_per_second: u32,
    pub burst_frames: u32,
}

/// The bucket of one port.
///
/// Kept as a time rather than as a number of tokens (the form ATM calls the virtual scheduling
/// algorithm): the bucket is full when `full_at_ns` is past, and each frame puts that off by one
/// frame's interval. So nothing has to be refilled, and there are no fractions to lose.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    full_at_ns: u64,
}

impl Bucket {
    /// Takes one frame's worth; false if there is none left.
    pub fn take(&mut self, limit: StormLimit, now_ns: u64) -> bool {
        if limit.frames_per_second == 0 || limit.burst_frames == 0 {
            return false;
        }
        let interval_ns = NS_PER_SECOND / u64::from(limit.frames_per_second);
        let most_ahead_ns = interval_ns * u64::from(limit.burst_frames - 1);
        let full_at_ns = self.full_at_ns.max(now_ns);
        if full_at_ns - now_ns > most_ahead_ns {
            return false;
        }
        self.full_at_ns = full_at_ns.saturating_add(interval_ns);
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let limit = StormLimit { frames_per_second: 1000, burst_frames: 10 };
        let mut bucket = Bucket::default();
        let taken = (0..100).filter(|_| bucket.take(limit, 5)).count();
        assert_eq!(taken, 10);
        assert!(!bucket.take(limit, 999_999));
        assert!(bucket.take(limit, 1_000_005));
        assert!(!bucket.take(limit, 1_000_005));
    }

    #[test]
    fn a_limit_of_nothing_lets_nothing_pass() {
        for limit in [
            StormLimit { frames_per_second: 0, burst_frames: 10 },
            StormLimit { frames_per_second: 10, burst_frames: 0 },
        ] {
            assert!(!Bucket::default().take(limit, 7));
        }
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate(
            frames_per_second in 1u32..1_000_000,
            burst_frames in 1u32..1000,
            gaps in proptest::collection::vec(0u64..3_000_000, 1..300),
        ) {
            let limit = StormLimit { frames_per_second, burst_frames };
            let mut bucket = Bucket::default();
            let (mut now_ns, mut taken) = (0, 0u64);
            for gap in gaps {
                now_ns += gap;
                taken += u64::from(bucket.take(limit, now_ns));
            }
            let interval_ns = NS_PER_SECOND / u64::from(frames_per_second);
            prop_assert!(taken <= u64::from(burst_frames) + now_ns / interval_ns + 1);
        }
    }
}
