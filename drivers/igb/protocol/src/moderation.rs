//! How often a vector may interrupt (82576 sec 7.3 and 8.8, EITR).
//!
//! A vector's throttle counts down from its interval after each message; a cause that comes meanwhile
//! waits for its end. So the first packet after a quiet time is reported at once whatever the
//! interval, and a burst is reported once an interval.

/// The longest interval: 13 bits of microseconds.
pub const LONGEST_US: u16 = (1 << 13) - 1;

const INTERVAL_SHIFT: u32 = 2;

/// The value of a throttle register for at most one message in `interval_us`; 0: as they come. What is
/// longer than [`LONGEST_US`] becomes that. The count that runs begins anew.
#[must_use]
pub const fn throttle(interval_us: u16) -> u32 {
    let interval_us = if interval_us > LONGEST_US { LONGEST_US } else { interval_us };
    (interval_us as u32) << INTERVAL_SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_interval_lies_in_bits_2_to_14() {
        assert_eq!(throttle(0), 0);
        assert_eq!(throttle(1), 4);
        assert_eq!(throttle(LONGEST_US), 0x7ffc);
    }

    proptest! {
        #[test]
        fn no_interval_reaches_other_bits(interval_us: u16) {
            prop_assert_eq!(throttle(interval_us) & !0x7ffc, 0);
        }
    }
}
