//! Arithmetic of guest time.
//!
//! Nothing in this crate reads a clock: time is an argument, in nanoseconds of the node's
//! monotonic clock. Devices compute what they would show now from when they were programmed, and
//! say when they next have something to do; no device is ever "ticked".

/// Nanoseconds in a second.
pub const SECOND_NS: u64 = 1_000_000_000;

/// `value * multiplier / divisor` without the overflow in between; saturates.
pub fn scale(value: u64, multiplier: u64, divisor: u64) -> u64 {
    debug_assert!(divisor != 0, "a rate is never zero");
    let scaled = u128::from(value) * u128::from(multiplier) / u128::from(divisor.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The same, rounded up: a deadline is never armed early, or the guest would be taken out of its
/// loop only to find that nothing is due yet.
pub fn scale_up(value: u64, multiplier: u64, divisor: u64) -> u64 {
    debug_assert!(divisor != 0, "a rate is never zero");
    let scaled = (u128::from(value) * u128::from(multiplier)).div_ceil(u128::from(divisor.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The nearer of two edges that may not exist.
pub fn nearer(left: Option<u64>, right: Option<u64>) -> Option<u64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (edge, None) | (None, edge) => edge,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaling_does_not_overflow_in_between() {
        assert_eq!(scale(u64::MAX, 3, 3), u64::MAX);
        assert_eq!(scale(u64::MAX, 2, 1), u64::MAX);
        assert_eq!(scale(7, 10, 4), 17);
        assert_eq!(scale_up(7, 10, 4), 18);
    }

    #[test]
    fn the_nearer_edge_wins_and_none_is_never() {
        assert_eq!(nearer(Some(2), Some(1)), Some(1));
        assert_eq!(nearer(None, Some(1)), Some(1));
        assert_eq!(nearer(Some(2), None), Some(2));
        assert_eq!(nearer(None, None), None);
    }
}
