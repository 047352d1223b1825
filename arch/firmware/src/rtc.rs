//! The calendar of the battery-backed clock (MC146818 data sheet, "Time, calendar and alarm
//! locations"), as seconds since 1970.

/// The registers that hold the calendar, as they were read in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    pub seconds: u8,
    pub minutes: u8,
    pub hours: u8,
    pub day: u8,
    pub month: u8,
    pub year: u8,
    /// Register B: bit 1 says 24 hours, bit 2 binary instead of BCD.
    pub control: u8,
}

const CONTROL_24_HOURS: u8 = 1 << 1;
const CONTROL_BINARY: u8 = 1 << 2;
/// Set in the hours of a 12-hour clock: after noon.
const HOURS_PM: u8 = 1 << 7;

impl Registers {
    /// Seconds since 1970-01-01 00:00, if this is a date at all. The clock counts two digits of the
    /// year: they are taken as 2000 to 2099.
    pub fn unix_seconds(&self) -> Option<u64> {
        let second = self.number(self.seconds, 0..=59)?;
        let minute = self.number(self.minutes, 0..=59)?;
        let hour = self.hour()?;
        let month = self.number(self.month, 1..=12)?;
        let day = self.number(self.day, 1..=31)?;
        let year = 2000 + self.number(self.year, 0..=99)?;
        Some((days_since_1970(year, month, day) * 24 + hour) * 3600 + minute * 60 + second)
    }

    fn hour(&self) -> Option<u64> {
        if self.control & CONTROL_24_HOURS != 0 {
            return self.number(self.hours, 0..=23);
        }
        let hour = self.number(self.hours & !HOURS_PM, 1..=12)? % 12;
        Some(if self.hours & HOURS_PM != 0 { hour + 12 } else { hour })
    }

    fn number(&self, raw: u8, range: core::ops::RangeInclusive<u64>) -> Option<u64> {
        let number = if self.control & CONTROL_BINARY != 0 {
            u64::from(raw)
        } else {
            let (tens, ones) = (raw >> 4, raw & 0xf);
            if tens > 9 || ones > 9 {
                return None;
            }
            u64::from(tens) * 10 + u64::from(ones)
        };
        range.contains(&number).then_some(number)
    }
}

/// Days from 1970-01-01 to a date of 2000 to 2099, in which every fourth year leaps.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    const BEFORE_MONTH: [u64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    const DAYS_TO_2000: u64 = 10_957;
    let years = year - 2000;
    let leap_days = years.div_ceil(4) + u64::from(years.is_multiple_of(4) && month > 2);
    DAYS_TO_2000 + years * 365 + leap_days + BEFORE_MONTH[month as usize - 1] + day - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bcd(year: u8, month: u8, day: u8, hours: u8, minutes: u8, seconds: u8) -> Registers {
        Registers { seconds, minutes, hours, day, month, year, control: CONTROL_24_HOURS }
    }

    #[test]
    fn known_moments() {
        assert_eq!(bcd(0x00, 0x01, 0x01, 0, 0, 0).unix_seconds(), Some(946_684_800));
        assert_eq!(bcd(0x24, 0x02, 0x29, 0x12, 0, 0).unix_seconds(), Some(1_709_208_000));
        assert_eq!(bcd(0x24, 0x03, 0x01, 0, 0, 0).unix_seconds(), Some(1_709_251_200));
        assert_eq!(bcd(0x26, 0x12, 0x01, 0, 0x30, 0x15).unix_seconds(), Some(1_796_085_015));
        assert_eq!(bcd(0x99, 0x12, 0x31, 0x23, 0x59, 0x59).unix_seconds(), Some(4_102_444_799));
    }

    #[test]
    fn twelve_hours_and_binary() {
        let noon = Registers { hours: 0x12 | HOURS_PM, control: 0, ..bcd(0, 1, 1, 0, 0, 0) };
        assert_eq!(noon.unix_seconds(), Some(946_684_800 + 12 * 3600));
        let midnight = Registers { hours: 12, control: CONTROL_BINARY, ..noon };
        assert_eq!(midnight.unix_seconds(), Some(946_684_800));
    }

    #[test]
    fn no_date() {
        for registers in [
            bcd(0, 0x13, 1, 0, 0, 0),
            bcd(0, 1, 0, 0, 0, 0),
            bcd(0xfa, 1, 1, 0, 0, 0),
            bcd(0, 1, 1, 0x24, 0, 0),
        ] {
            assert_eq!(registers.unix_seconds(), None, "{registers:?}");
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(seconds: u8, minutes: u8, hours: u8, day: u8, month: u8, year: u8, control: u8) {
            let _ = Registers { seconds, minutes, hours, day, month, year, control }.unix_seconds();
        }
    }
}
