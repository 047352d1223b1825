//! How often a device may misbehave.

/// Restarts in a row that a device gets.
pub const MAX_RESTARTS: u32 = 16;

/// After this long one restart is forgiven: a device that stumbles once a day is worth keeping for
/// years, one that needs a restart a minute is broken.
pub const FORGIVEN_EVERY_NS: u64 = 3_600_000_000_000;

/// Restarts that count against a device.
#[derive(Debug, Default)]
pub struct Restarts {
    counted: u32,
    /// From when on the next one is being forgiven.
    since_ns: u64,
}

impl Restarts {
    /// None yet.
    pub const fn new() -> Self {
        Self { counted: 0, since_ns: 0 }
    }

    /// Counts one more, and says how many count now; `None`: the device has used up its share.
    pub fn count(&mut self, now_ns: u64) -> Option<u32> {
        let forgiven = now_ns.saturating_sub(self.since_ns) / FORGIVEN_EVERY_NS;
        self.counted = self.counted.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        self.since_ns = match self.counted {
            0 => now_ns,
            _ => self.since_ns.saturating_add(forgiven * FORGIVEN_EVERY_NS),
        };
        if self.counted == MAX_RESTARTS {
            return None;
        }
        self.counted += 1;
        Some(self.counted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_device_that_always_misbehaves_is_given_up() {
        let mut restarts = Restarts::new();
        for number in 1..=MAX_RESTARTS {
            assert_eq!(restarts.count(u64::from(number)), Some(number));
        }
        assert_eq!(restarts.count(100), None);
    }

    #[test]
    fn time_forgives_one_by_one() {
        let mut restarts = Restarts::new();
        for _ in 0..MAX_RESTARTS {
            restarts.count(1000);
        }
        assert_eq!(restarts.count(1000 + FORGIVEN_EVERY_NS - 1), None);
        assert_eq!(restarts.count(1000 + FORGIVEN_EVERY_NS), Some(MAX_RESTARTS));
        assert_eq!(restarts.count(1000 + FORGIVEN_EVERY_NS), None);
        assert_eq!(restarts.count(1000 + 100 * FORGIVEN_EVERY_NS), Some(1));
    }

    proptest! {
        /// Whenever they come, in any time there are no more than the share and what was forgiven.
        #[test]
        fn no_more_than_the_share(gaps in proptest::collection::vec(0..2 * FORGIVEN_EVERY_NS, 0..100)) {
            let (mut restarts, mut now_ns, mut granted) = (Restarts::new(), 0, 0);
            for gap_ns in gaps {
                now_ns += gap_ns;
                granted += u64::from(restarts.count(now_ns).is_some());
                prop_assert!(granted <= u64::from(MAX_RESTARTS) + now_ns / FORGIVEN_EVERY_NS);
            }
        }
    }
}
