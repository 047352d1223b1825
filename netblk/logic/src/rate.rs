//! A log line that a client or a disk can cause is written at most so often.

/// Lets one line through per interval and counts the others.
#[derive(Debug, Clone)]
pub struct RateLimit {
    interval_ns: u64,
    next_ns: u64,
    suppressed: u64,
}

impl RateLimit {
    /// One line per `interval_ns`.
    pub const fn new(interval_ns: u64) -> Self {
        Self { interval_ns, next_ns: 0, suppressed: 0 }
    }

    /// Whether a line may be written now; if so, how many were not since the last one.
    pub fn allow(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns < self.next_ns {
            self.suppressed += 1;
            return None;
        }
        self.next_ns = now_ns.saturating_add(self.interval_ns);
        Some(core::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_an_interval_with_the_number_left_out() {
        let mut limit = RateLimit::new(1_000);
        assert_eq!(limit.allow(5), Some(0));
        assert_eq!(limit.allow(6), None);
        assert_eq!(limit.allow(1_004), None);
        assert_eq!(limit.allow(1_005), Some(2));
        assert_eq!(limit.allow(9_000), Some(0));
    }
}
