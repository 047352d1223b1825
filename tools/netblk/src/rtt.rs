//! How long to wait for an answer before asking again: the estimator of RFC 6298.
//!
//! Two things differ from TCP. Every transmission has a cookie of its own, so a reply says which
//! one it answers and a request that was repeated still gives a true sample: the ambiguity that
//! Karn's rule avoids does not arise. And the floor is 20 ms instead of a second: a needless
//! repetition costs one idempotent request here, not a collapsed window.

/// Before the first sample (RFC 6298 section 2.1 has a second, for the open Internet).
const INITIAL_NS: u64 = 250_000_000;
/// The shortest time-out.
const FLOOR_NS: u64 = 20_000_000;
/// The longest, back-off included (RFC 6298 section 2.5 allows any maximum of at least 60 s for
/// TCP's sake; nobody waits a minute for a disk).
const CEILING_NS: u64 = 3_000_000_000;

/// The most that late answers raise the shortest time-out to.
const LATE_NS: u64 = 250_000_000;
/// By this share of it each sample lowers what late answers raised: half of it is left after 2,800 samples.
const FORGET: u64 = 4096;

/// Smoothed round trip and the time-out that follows from it.
#[derive(Debug, Clone)]
pub struct RoundTrip {
    smoothed_ns: Option<u64>,
    variation_ns: u64,
    floor_ns: u64,
}

impl RoundTrip {
    /// Nothing is known yet.
    pub const fn new() -> Self {
        Self { smoothed_ns: None, variation_ns: 0, floor_ns: FLOOR_NS }
    }

    /// What `sample_ns` ago was sent was answered only after its time was up: somebody pauses now and then. The smoothed
    /// figures forget that within a millisecond of fast answers; this does not (compare RFC 4015 section 3.3).
    pub fn late(&mut self, sample_ns: u64) {
        self.floor_ns = self.floor_ns.max(sample_ns.saturating_mul(2)).min(LATE_NS);
    }

    /// A reply came `sample_ns` after the transmission that it answers (sections 2.2 and 2.3).
    pub fn sample(&mut self, sample_ns: u64) {
        self.floor_ns = (self.floor_ns - self.floor_ns / FORGET).max(FLOOR_NS);
        match self.smoothed_ns {
            None => {
                self.smoothed_ns = Some(sample_ns);
                self.variation_ns = sample_ns / 2;
            }
            Some(smoothed_ns) => {
                let error_ns = smoothed_ns.abs_diff(sample_ns);
                self.variation_ns = self.variation_ns - self.variation_ns / 4 + error_ns / 4;
                self.smoothed_ns = Some(smoothed_ns - smoothed_ns / 8 + sample_ns / 8);
            }
        }
    }

    /// The smoothed round trip, once there is one.
    pub const fn smoothed_ns(&self) -> Option<u64> {
        self.smoothed_ns
    }

    /// The time-out of the `tries`-th transmission (the first is 1), doubled for every earlier one
    /// (section 5.5).
    pub fn timeout_ns(&self, tries: u32) -> u64 {
        let base_ns = match self.smoothed_ns {
            None => INITIAL_NS,
            Some(smoothed_ns) => smoothed_ns.saturating_add(self.variation_ns.saturating_mul(4)),
        };
        let doublings = tries.saturating_sub(1).min(16);
        base_ns.max(self.floor_ns).saturating_mul(1 << doublings).min(CEILING_NS)
    }
}

impl Default for RoundTrip {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_samples_follow_the_rfc() {
        let mut round_trip = RoundTrip::new();
        assert_eq!(round_trip.timeout_ns(1), 250_000_000);
        round_trip.sample(80_000_000);
        assert_eq!(round_trip.smoothed_ns(), Some(80_000_000));
        // SRTT + 4 * RTTVAR = 80 + 4 * 40 ms.
        assert_eq!(round_trip.timeout_ns(1), 240_000_000);
        round_trip.sample(80_000_000);
        assert_eq!(round_trip.timeout_ns(1), 200_000_000);
    }

    #[test]
    fn waiting_doubles_between_floor_and_ceiling() {
        let mut round_trip = RoundTrip::new();
        for _ in 0..100 {
            round_trip.sample(200_000);
        }
        assert_eq!(round_trip.timeout_ns(1), FLOOR_NS);
        assert_eq!(round_trip.timeout_ns(2), 2 * FLOOR_NS);
        assert_eq!(round_trip.timeout_ns(4), 8 * FLOOR_NS);
        assert_eq!(round_trip.timeout_ns(99), CEILING_NS);
    }

    #[test]
    fn a_late_answer_is_remembered_for_a_while() {
        let mut round_trip = RoundTrip::new();
        round_trip.sample(200_000);
        round_trip.late(30_000_000);
        (0..100).for_each(|_| round_trip.sample(200_000));
        assert!((58_000_000..=60_000_000).contains(&round_trip.timeout_ns(1)));
        (0..6000).for_each(|_| round_trip.sample(200_000));
        assert_eq!(round_trip.timeout_ns(1), FLOOR_NS);
        round_trip.late(u64::MAX);
        assert_eq!(round_trip.timeout_ns(1), LATE_NS);
    }

    proptest! {
        #[test]
        fn any_samples_keep_the_timeout_in_bounds(samples: Vec<u64>, tries: u32) {
            let mut round_trip = RoundTrip::new();
            for sample in samples {
                round_trip.sample(sample);
            }
            let timeout_ns = round_trip.timeout_ns(tries);
            prop_assert!((FLOOR_NS..=CEILING_NS).contains(&timeout_ns));
        }
    }
}
