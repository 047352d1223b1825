//! The MC146818 real-time clock and its CMOS memory (Motorola MC146818A data sheet), ports 0x70
//! and 0x71, interrupt line 8.
//!
//! The time of day is the caller's: a wall-clock reading taken at a moment of the monotonic
//! clock, from which the registers are computed at every read. A guest that sets the clock moves
//! its own offset, nobody else's. The update-in-progress bit is shown in the 244 us before each
//! second as on the part, since drivers wait for it to fall.

use crate::time::SECOND_NS;

const REG_A: u8 = 0x0a;
const REG_B: u8 = 0x0b;
const REG_C: u8 = 0x0c;
const REG_D: u8 = 0x0d;
/// The century, where the FADT says it is (and where the IBM AT had it).
pub const CENTURY_INDEX: u8 = 0x32;

const A_UPDATE_IN_PROGRESS: u8 = 0x80;
const B_SET: u8 = 0x80;
const B_PERIODIC: u8 = 0x40;
const B_ALARM: u8 = 0x20;
const B_UPDATE_ENDED: u8 = 0x10;
const B_BINARY: u8 = 0x04;
const B_24_HOURS: u8 = 0x02;
const C_INTERRUPT: u8 = 0x80;
/// Register D: the battery is good.
const D_VALID: u8 = 0x80;

/// From the rise of the update-in-progress bit to the change of the registers.
const UPDATE_AHEAD_NS: u64 = 244_000;
/// Bits 6:4 of register A: the divider runs at the 32.768 kHz crystal.
const DIVIDER_RUNNING: u8 = 0x20;

/// A civil date and time; months and days from 1, weekday 1 is Sunday.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Calendar {
    year: u64,
    month: u64,
    day: u64,
    weekday: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

const DAY_S: u64 = 86_400;

/// Days from 1970-01-01 to the first of March of `year` (proleptic Gregorian).
fn days_to_march(year: u64) -> u64 {
    // Day 0 of this count is 0000-03-01, which lies 719,468 days before 1970-01-01.
    365 * year + year / 4 - year / 100 + year / 400
}

const EPOCH_DAYS: u64 = 719_468;
/// Days from March 1 to the first of each month, March first.
const MONTH_STARTS: [u64; 12] = [0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337];

impl Calendar {
    fn from_unix(seconds: u64) -> Self {
        let days = seconds / DAY_S + EPOCH_DAYS;
        let mut year = days * 400 / 146_097;
        while days_to_march(year + 1) <= days {
            year += 1;
        }
        while days_to_march(year) > days {
            year -= 1;
        }
        let day_of_year = days - days_to_march(year);
        let index = MONTH_STARTS.iter().rposition(|&start| start <= day_of_year).unwrap_or(0);
        let month_from_march = index as u64;
        let (month, year) = if month_from_march < 10 {
            (month_from_march + 3, year)
        } else {
            (month_from_march - 9, year + 1)
        };
        let second_of_day = seconds % DAY_S;
        Self {
            year,
            month,
            day: day_of_year - MONTH_STARTS[index] + 1,
            // 1970-01-01 was a Thursday, the fifth day from Sunday.
            weekday: (seconds / DAY_S + 4) % 7 + 1,
            hour: second_of_day / 3600,
            minute: second_of_day / 60 % 60,
            second: second_of_day % 60,
        }
    }

    /// Out-of-range fields carry over, as the guest's problem; before 1970 is 1970.
    fn to_unix(self) -> u64 {
        let month = self.month.clamp(1, 12);
        let (march_year, index) =
            if month >= 3 { (self.year, month - 3) } else { (self.year.saturating_sub(1), month + 9) };
        let days = days_to_march(march_year) + MONTH_STARTS[index as usize] + self.day.max(1) - 1;
        days.saturating_sub(EPOCH_DAYS) * DAY_S + self.hour * 3600 + self.minute * 60 + self.second
    }
}

/// The clock with its 128 bytes of memory.
#[derive(Clone, Debug)]
pub struct Rtc {
    index: u8,
    memory: [u8; 128],
    /// The guest's wall clock at `now_ns` 0 of the monotonic clock, in nanoseconds since 1970.
    epoch_ns: u64,
    /// While the guest holds SET, the time stands still here.
    held: Option<Calendar>,
    /// Up to here, periodic, alarm and update interrupts were accounted.
    accounted_ns: u64,
}

impl Rtc {
    /// A clock that shows `unix_ns` at `now_ns`.
    pub fn new(unix_ns: u64, now_ns: u64) -> Self {
        let mut memory = [0; 128];
        memory[usize::from(REG_A)] = DIVIDER_RUNNING | 0x06;
        memory[usize::from(REG_B)] = B_24_HOURS;
        memory[usize::from(REG_D)] = D_VALID;
        Self { index: 0, memory, epoch_ns: unix_ns.saturating_sub(now_ns), held: None, accounted_ns: now_ns }
    }

    fn register(&self, index: u8) -> u8 {
        self.memory[usize::from(index & 0x7f)]
    }

    fn wall_ns(&self, now_ns: u64) -> u64 {
        self.epoch_ns.saturating_add(now_ns)
    }

    fn calendar(&self, now_ns: u64) -> Calendar {
        self.held.unwrap_or_else(|| Calendar::from_unix(self.wall_ns(now_ns) / SECOND_NS))
    }

    /// Port 0x70: bit 7 is the NMI mask of the AT and not part of the index.
    pub fn select(&mut self, value: u8) {
        self.index = value & 0x7f;
    }

    pub fn selected(&self) -> u8 {
        self.index
    }

    /// Port 0x71.
    pub fn read(&mut self, now_ns: u64) -> u8 {
        let time = self.calendar(now_ns);
        match self.index {
            0x00 => self.encode(time.second),
            0x02 => self.encode(time.minute),
            0x04 => self.encode_hour(time.hour),
            0x06 => self.encode(time.weekday),
            0x07 => self.encode(time.day),
            0x08 => self.encode(time.month),
            0x09 => self.encode(time.year % 100),
            CENTURY_INDEX => self.encode(time.year / 100),
            REG_A => {
                let into_second_ns = self.wall_ns(now_ns) % SECOND_NS;
                let updating = self.held.is_none() && into_second_ns >= SECOND_NS - UPDATE_AHEAD_NS;
                self.register(REG_A) & !A_UPDATE_IN_PROGRESS | if updating { A_UPDATE_IN_PROGRESS } else { 0 }
            }
            REG_C => {
                self.service(now_ns);
                let flags = self.register(REG_C);
                self.memory[usize::from(REG_C)] = 0;
                flags
            }
            index => self.register(index),
        }
    }

    pub fn write(&mut self, value: u8, now_ns: u64) {
        match self.index {
            0x00 | 0x02 | 0x04 | 0x06..=0x09 | CENTURY_INDEX => self.write_time(value, now_ns),
            REG_A => {
                self.service(now_ns);
                self.memory[usize::from(REG_A)] = value & !A_UPDATE_IN_PROGRESS;
            }
            REG_B => {
                self.service(now_ns);
                self.write_control(value, now_ns);
            }
            REG_C | REG_D => {}
            index => self.memory[usize::from(index)] = value,
        }
    }

    fn write_control(&mut self, value: u8, now_ns: u64) {
        let was_set = self.register(REG_B) & B_SET != 0;
        let is_set = value & B_SET != 0;
        if is_set && !was_set {
            self.held = Some(self.calendar(now_ns));
        } else if was_set
            && !is_set
            && let Some(time) = self.held.take()
        {
            self.epoch_ns = time.to_unix().saturating_mul(SECOND_NS).saturating_sub(now_ns);
        }
        // SET stops the update-ended interrupt (data sheet, register B).
        self.memory[usize::from(REG_B)] = if is_set { value & !B_UPDATE_ENDED } else { value };
    }

    fn write_time(&mut self, value: u8, now_ns: u64) {
        let mut time = self.calendar(now_ns);
        let number = self.decode(value);
        match self.index {
            0x00 => time.second = number.min(59),
            0x02 => time.minute = number.min(59),
            0x04 => time.hour = self.decode_hour(value).min(23),
            0x06 => time.weekday = number.clamp(1, 7),
            0x07 => time.day = number.clamp(1, 31),
            0x08 => time.month = number.clamp(1, 12),
            0x09 => time.year = time.year / 100 * 100 + number.min(99),
            _ => time.year = number.min(99) * 100 + time.year % 100,
        }
        if self.held.is_some() {
            self.held = Some(time);
        } else {
            // Without SET the part takes the byte at once; the fraction of the second stays.
            let fraction_ns = self.wall_ns(now_ns) % SECOND_NS;
            let wall_ns = time.to_unix().saturating_mul(SECOND_NS).saturating_add(fraction_ns);
            self.epoch_ns = wall_ns.saturating_sub(now_ns);
        }
    }

    fn encode(&self, number: u64) -> u8 {
        let number = (number % 100) as u8;
        if self.register(REG_B) & B_BINARY != 0 { number } else { ((number / 10) << 4) | (number % 10) }
    }

    fn decode(&self, value: u8) -> u64 {
        let number = if self.register(REG_B) & B_BINARY != 0 {
            value
        } else {
            (value >> 4).wrapping_mul(10).wrapping_add(value & 0xf)
        };
        u64::from(number)
    }

    fn encode_hour(&self, hour: u64) -> u8 {
        if self.register(REG_B) & B_24_HOURS != 0 {
            return self.encode(hour);
        }
        let twelve = if hour.is_multiple_of(12) { 12 } else { hour % 12 };
        self.encode(twelve) | if hour >= 12 { 0x80 } else { 0 }
    }

    fn decode_hour(&self, value: u8) -> u64 {
        if self.register(REG_B) & B_24_HOURS != 0 {
            return self.decode(value);
        }
        self.decode(value & 0x7f) % 12 + if value & 0x80 != 0 { 12 } else { 0 }
    }

    /// The periodic interrupt's period (data sheet, table 5): rate 1 and 2 repeat 8 and 9.
    fn period_ns(&self) -> Option<u64> {
        let rate = match self.register(REG_A) & 0x0f {
            0 => return None,
            rate @ 1..=2 => rate + 7,
            rate => rate,
        };
        let running = self.register(REG_A) & 0x70 == DIVIDER_RUNNING;
        running.then(|| (SECOND_NS << (rate - 1)) / 32_768)
    }

    /// Whether an alarm byte matches: 0xC0 and above matches everything.
    fn alarm_matches(&self, index: u8, value: u8) -> bool {
        let alarm = self.register(index);
        alarm >= 0xc0 || alarm == value
    }

    /// The first second after `after_s` whose time of day the alarm names.
    fn next_alarm_s(&self, after_s: u64) -> Option<u64> {
        let second_matches = |second: &u64| self.alarm_matches(0x01, self.encode(*second));
        let minute_matches = |minute: &u64| self.alarm_matches(0x03, self.encode(*minute));
        // An alarm that names no time never rings; and then the search below ends early.
        let first_second = (0..60).find(second_matches)?;
        let first_minute = (0..60).find(minute_matches)?;
        let midnight_s = after_s / DAY_S * DAY_S;
        for hour in (0..48).filter(|hour| self.alarm_matches(0x05, self.encode_hour(hour % 24))) {
            let hour_s = midnight_s + hour * 3600;
            if hour_s > after_s {
                return Some(hour_s + first_minute * 60 + first_second);
            }
            for minute_s in (0..60).filter(minute_matches).map(|minute| hour_s + minute * 60) {
                if minute_s > after_s {
                    return Some(minute_s + first_second);
                }
                let second = (0..60).filter(second_matches).find(|second| minute_s + second > after_s);
                if let Some(second) = second {
                    return Some(minute_s + second);
                }
            }
        }
        None
    }

    /// Accounts for everything that happened up to `now_ns`; sets the flags of register C.
    pub fn service(&mut self, now_ns: u64) {
        let before = self.accounted_ns;
        if now_ns <= before {
            return;
        }
        self.accounted_ns = now_ns;
        let mut flags = 0;
        if let Some(period_ns) = self.period_ns()
            && self.wall_ns(before) / period_ns != self.wall_ns(now_ns) / period_ns
        {
            flags |= B_PERIODIC;
        }
        let (from_s, to_s) = (self.wall_ns(before) / SECOND_NS, self.wall_ns(now_ns) / SECOND_NS);
        if from_s != to_s && self.held.is_none() {
            flags |= B_UPDATE_ENDED;
            if self.next_alarm_s(from_s).is_some_and(|alarm_s| alarm_s <= to_s) {
                flags |= B_ALARM;
            }
        }
        let register_c = &mut self.memory[usize::from(REG_C)];
        *register_c |= flags;
        if *register_c & self.memory[usize::from(REG_B)] & (B_PERIODIC | B_ALARM | B_UPDATE_ENDED) != 0 {
            self.memory[usize::from(REG_C)] |= C_INTERRUPT;
        }
    }

    /// The level of interrupt line 8.
    pub fn line(&self) -> bool {
        self.register(REG_C) & C_INTERRUPT != 0
    }

    /// When an enabled interrupt comes next.
    pub fn next_edge_ns(&self) -> Option<u64> {
        if self.line() {
            return None;
        }
        let enabled = self.register(REG_B);
        let wall_ns = self.wall_ns(self.accounted_ns);
        let mut next = None;
        if enabled & B_PERIODIC != 0
            && let Some(period_ns) = self.period_ns()
        {
            next = Some((wall_ns / period_ns + 1).saturating_mul(period_ns));
        }
        if enabled & B_UPDATE_ENDED != 0 && self.held.is_none() {
            next = crate::time::nearer(next, Some((wall_ns / SECOND_NS + 1).saturating_mul(SECOND_NS)));
        }
        if enabled & B_ALARM != 0
            && self.held.is_none()
            && let Some(alarm_s) = self.next_alarm_s(wall_ns / SECOND_NS)
        {
            next = crate::time::nearer(next, Some(alarm_s.saturating_mul(SECOND_NS)));
        }
        next.map(|wall_ns| wall_ns.saturating_sub(self.epoch_ns))
    }
}

#[cfg(test)]
#[path = "rtc_tests.rs"]
mod tests;
