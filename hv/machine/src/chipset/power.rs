//! The ACPI fixed hardware and the ways to reset a PC.
//!
//! ACPI 6.4 sec. 4.8: PM1 event and control blocks, and the power management timer (4.8.2.1),
//! 3.579545 MHz, 32 bits. There is no SMI command port: the machine is in ACPI mode from the
//! start, so SCI_EN reads as one. Sleep state S5 (soft off) has SLP_TYP 5, as the DSDT says.

use crate::time::{SECOND_NS, scale};

/// First port of the blocks: PM1 events, PM1 control, timer.
pub const FIRST_PORT: u16 = 0x600;
pub const PM1_EVENT_PORT: u16 = FIRST_PORT;
pub const PM1_EVENT_BYTES: u8 = 4;
pub const PM1_CONTROL_PORT: u16 = FIRST_PORT + 4;
pub const PM1_CONTROL_BYTES: u8 = 2;
pub const TIMER_PORT: u16 = FIRST_PORT + 8;
pub const TIMER_BYTES: u8 = 4;
pub const LAST_PORT: u16 = FIRST_PORT + 0xb;
/// SLP_TYP of S5.
pub const SLEEP_TYPE_S5: u8 = 5;
/// The line of the system control interrupt, level-triggered.
pub const SCI_LINE: u8 = 9;

/// The PC's other reset ports, and what written to them resets.
pub const RESET_CONTROL_PORT: u16 = 0xcf9;
pub const RESET_CONTROL_VALUE: u8 = 0x06;
const RESET_CONTROL_CPU: u8 = 0x04;
pub const KEYBOARD_COMMAND_PORT: u16 = 0x64;
/// The keyboard controller pulses its output lines; line 0 is the CPU's reset.
const KEYBOARD_PULSE: u8 = 0xf0;
pub const SYSTEM_CONTROL_PORT: u16 = 0x92;
const SYSTEM_CONTROL_RESET: u8 = 0x01;

/// Where a test kernel writes its verdict: the machine ends, and the byte is its status. The port at which such
/// kernels find QEMU's isa-debug-exit device, which has no document but their habit; no PC decodes it.
pub const DEBUG_EXIT_PORT: u16 = 0xf4;

const STATUS_POWER_BUTTON: u16 = 1 << 8;
const STATUS_RTC: u16 = 1 << 10;
const STATUS_BITS: u16 = 1 << 0 | 1 << 5 | STATUS_POWER_BUTTON | 1 << 9 | STATUS_RTC | 1 << 15;
const ENABLE_BITS: u16 = 1 << 0 | 1 << 5 | STATUS_POWER_BUTTON | 1 << 9 | STATUS_RTC;
const CONTROL_SCI_ENABLE: u16 = 1 << 0;
const CONTROL_SLEEP_ENABLE: u16 = 1 << 13;

/// Frequency of the power management timer.
pub const TIMER_HZ: u64 = 3_579_545;

/// What a guest asked of its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRequest {
    Reset,
    PowerOff,
    /// Its work is done, with this status; see [`DEBUG_EXIT_PORT`].
    Exit(u8),
}

/// The fixed hardware's registers.
#[derive(Clone, Debug, Default)]
pub struct Power {
    status: u16,
    enable: u16,
    control: u16,
    reset_control: u8,
    /// Port 0x92: the A20 gate, always open, and the reset bit.
    system_control: u8,
}

impl Power {
    pub fn new() -> Self {
        Self { system_control: 0x02, ..Self::default() }
    }

    /// The person at the machine presses the power button: the guest is asked to shut down.
    pub fn press_button(&mut self) {
        self.status |= STATUS_POWER_BUTTON;
    }

    /// The level of the system control interrupt.
    pub fn line(&self) -> bool {
        self.status & self.enable & ENABLE_BITS != 0
    }

    /// One byte of the blocks.
    pub fn read(&self, port: u16, now_ns: u64) -> u8 {
        let timer = scale(now_ns, TIMER_HZ, SECOND_NS) as u32;
        let mut block = [0; 12];
        block[0..2].copy_from_slice(&self.status.to_le_bytes());
        block[2..4].copy_from_slice(&self.enable.to_le_bytes());
        block[4..6].copy_from_slice(&(self.control | CONTROL_SCI_ENABLE).to_le_bytes());
        block[8..12].copy_from_slice(&timer.to_le_bytes());
        block.get(usize::from(port - FIRST_PORT)).copied().unwrap_or(0xff)
    }

    /// All 32 bits of the timer at once; byte reads could tear.
    pub fn read_timer(&self, now_ns: u64) -> u32 {
        scale(now_ns, TIMER_HZ, SECOND_NS) as u32
    }

    /// One byte of the blocks. The sleep bit counts when the byte that holds it is written.
    pub fn write(&mut self, port: u16, value: u8) -> Option<PowerRequest> {
        let offset = port - FIRST_PORT;
        let shift = 8 * (offset & 1);
        let (kept, new) = (!(0xff << shift), u16::from(value) << shift);
        match offset {
            // Writing a one clears a status bit.
            0 | 1 => self.status &= !(new & STATUS_BITS),
            2 | 3 => self.enable = (self.enable & kept | new) & ENABLE_BITS,
            4 | 5 => {
                self.control = (self.control & kept | new) & !CONTROL_SLEEP_ENABLE & !CONTROL_SCI_ENABLE;
                let sleep_type = (self.control >> 10 & 7) as u8;
                if new & CONTROL_SLEEP_ENABLE != 0 && sleep_type == SLEEP_TYPE_S5 {
                    return Some(PowerRequest::PowerOff);
                }
            }
            _ => {}
        }
        None
    }

    /// Port 0xCF9 (PIIX3 data sheet, RC): the CPU is reset when bit 2 rises.
    pub fn read_reset_control(&self) -> u8 {
        self.reset_control
    }

    pub fn write_reset_control(&mut self, value: u8) -> Option<PowerRequest> {
        let rises = value & !self.reset_control & RESET_CONTROL_CPU != 0;
        self.reset_control = value & 0x0e;
        rises.then_some(PowerRequest::Reset)
    }

    /// Port 0x92.
    pub fn read_system_control(&self) -> u8 {
        self.system_control
    }

    pub fn write_system_control(&mut self, value: u8) -> Option<PowerRequest> {
        let rises = value & !self.system_control & SYSTEM_CONTROL_RESET != 0;
        self.system_control = value;
        rises.then_some(PowerRequest::Reset)
    }

    /// Port 0x64. There is no keyboard controller, but its reset is how many systems restart.
    pub fn write_keyboard_command(&mut self, value: u8) -> Option<PowerRequest> {
        (value & KEYBOARD_PULSE == KEYBOARD_PULSE && value & 1 == 0).then_some(PowerRequest::Reset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_off_needs_type_and_enable() {
        let mut power = Power::new();
        assert_eq!(power.write(PM1_CONTROL_PORT + 1, SLEEP_TYPE_S5 << 2), None);
        assert_eq!(power.write(PM1_CONTROL_PORT + 1, 0x20), None, "type 0 is no sleep");
        let both = SLEEP_TYPE_S5 << 2 | 0x20;
        assert_eq!(power.write(PM1_CONTROL_PORT + 1, both), Some(PowerRequest::PowerOff));
        assert_eq!(power.read(PM1_CONTROL_PORT, 0) & 1, 1, "always in ACPI mode");
    }

    #[test]
    fn the_button_asks_only_when_enabled_and_is_cleared_by_a_one() {
        let mut power = Power::new();
        power.press_button();
        assert!(!power.line());
        power.write(PM1_EVENT_PORT + 3, 0x01);
        assert!(power.line());
        power.write(PM1_EVENT_PORT + 1, 0x00);
        assert!(power.line());
        power.write(PM1_EVENT_PORT + 1, 0x01);
        assert!(!power.line());
    }

    #[test]
    fn the_timer_runs_at_its_frequency() {
        let power = Power::new();
        assert_eq!(power.read_timer(SECOND_NS), 3_579_545);
        assert_eq!(power.read(TIMER_PORT, SECOND_NS), (3_579_545u32 & 0xff) as u8);
    }

    #[test]
    fn every_reset_port_resets() {
        let mut power = Power::new();
        assert_eq!(power.write_reset_control(0x02), None);
        assert_eq!(power.write_reset_control(0x06), Some(PowerRequest::Reset));
        assert_eq!(power.write_reset_control(0x06), None, "no rise");
        assert_eq!(power.write_keyboard_command(0xfe), Some(PowerRequest::Reset));
        assert_eq!(power.write_keyboard_command(0xaa), None);
        assert_eq!(power.write_system_control(0x03), Some(PowerRequest::Reset));
    }
}
