//! The battery-backed clock (MC146818), read once at boot.

use firmware::rtc::Registers;

use super::port;

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;
/// Register A, bit 7: an update is under way and the calendar not to be read.
const REGISTER_A: u8 = 0x0a;
const UPDATING: u8 = 1 << 7;
const REGISTER_B: u8 = 0x0b;
/// An update takes 2 ms at most; reading a register about one microsecond.
const PATIENCE: u32 = 10_000;

fn read(register: u8) -> u8 {
    // SAFETY: the index port selects a register of the clock (bit 7 clear: NMI stays enabled), the
    // data port reads it; none of those read here has a side effect.
    unsafe {
        port::write8(INDEX, register);
        port::read8(DATA)
    }
}

fn read_all() -> Registers {
    Registers {
        seconds: read(0),
        minutes: read(2),
        hours: read(4),
        day: read(7),
        month: read(8),
        year: read(9),
        control: read(REGISTER_B),
    }
}

/// Seconds since 1970 by the clock, if it shows a date. Not for two CPUs at once.
pub fn unix_seconds() -> Option<u64> {
    let mut before = None;
    for _ in 0..PATIENCE {
        if read(REGISTER_A) & UPDATING != 0 {
            continue;
        }
        let now = read_all();
        // Two equal readings: no update fell between the registers.
        if before == Some(now) {
            return now.unix_seconds();
        }
        before = Some(now);
    }
    None
}
