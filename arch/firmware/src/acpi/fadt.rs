//! The fixed ACPI description table (section 5.2.9): the power-management timer, reset,
//! power-off, and where the DSDT is.

use super::sleep::SleepType;
use super::table::Table;
use crate::addr::PhysAddr;
use crate::bytes::{u8_at, u32_at, u64_at};

// Byte offsets, table 5.9.
const DSDT: usize = 40;
const SMI_CMD: usize = 48;
const ACPI_ENABLE: usize = 52;
const PM1A_CNT_BLK: usize = 64;
const PM1B_CNT_BLK: usize = 68;
const PM_TMR_BLK: usize = 76;
const FLAGS: usize = 112;
const RESET_REG: usize = 116;
const RESET_VALUE: usize = 128;
const X_DSDT: usize = 140;
const X_PM1A_CNT_BLK: usize = 172;
const X_PM1B_CNT_BLK: usize = 184;
const X_PM_TMR_BLK: usize = 208;
const SLEEP_CONTROL_REG: usize = 244;

const FLAG_TMR_VAL_EXT: u32 = 1 << 8;
const FLAG_RESET_REG_SUP: u32 = 1 << 10;
const FLAG_HW_REDUCED_ACPI: u32 = 1 << 20;

/// A register named by a generic address structure (section 5.2.3.2), in one of the two
/// spaces a kernel reaches without an AML interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// In memory.
    Memory(PhysAddr),
    /// In I/O port space.
    Io(u16),
}

impl Register {
    /// The structure at `offset`; `None` where it is absent, null, or in another space.
    pub fn parse(bytes: &[u8], offset: usize) -> Option<Self> {
        let space = u8_at(bytes, offset)?;
        let address = u64_at(bytes, offset.checked_add(4)?)?;
        match space {
            _ if address == 0 => None,
            0 => Some(Self::Memory(PhysAddr(address))),
            1 => u16::try_from(address).ok().map(Self::Io),
            _ => None,
        }
    }
}

/// The 3.579545 MHz power-management timer (section 4.8.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timer {
    /// Its one 32-bit register.
    pub register: Register,
    /// How many of the bits count: 24 or 32.
    pub bits: u32,
}

impl Timer {
    /// Ticks a second.
    pub const HZ: u64 = 3_579_545;
}

/// A write that resets the machine (section 4.8.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Where, a byte.
    pub register: Register,
    /// What.
    pub value: u8,
}

/// How to switch the machine off and how to reset it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerControl {
    /// What to write for "soft off", from the `\_S5` object.
    pub soft_off: Option<SleepType>,
    /// PM1a control (section 4.8.3.2).
    pub pm1a_control: Option<Register>,
    /// PM1b control, on machines that have two.
    pub pm1b_control: Option<Register>,
    /// The sleep control register of hardware-reduced machines (section 4.8.3.7), which have
    /// no PM1.
    pub sleep_control: Option<Register>,
    /// The port, and the byte for it, that hands power management over from the firmware
    /// (section 4.8.2.5); `None` where it never had it.
    pub acpi_enable: Option<(u16, u8)>,
    /// The reset register.
    pub reset: Option<Reset>,
}

impl PowerControl {
    /// Of a machine that tells nothing.
    pub const NONE: Self = Self {
        soft_off: None,
        pm1a_control: None,
        pm1b_control: None,
        sleep_control: None,
        acpi_enable: None,
        reset: None,
    };
}

/// The register block at `extended` where there is one, else the port at `legacy`.
fn block(bytes: &[u8], extended: usize, legacy: usize) -> Option<Register> {
    Register::parse(bytes, extended).or_else(|| {
        let port = u32_at(bytes, legacy).filter(|port| *port != 0)?;
        u16::try_from(port).ok().map(Register::Io)
    })
}

fn flags(table: &Table<'_>) -> u32 {
    u32_at(table.bytes(), FLAGS).unwrap_or(0)
}

/// Everything but `soft_off`, which another table has.
pub fn power_control(table: &Table<'_>) -> PowerControl {
    let bytes = table.bytes();
    let reset = || {
        let register = Register::parse(bytes, RESET_REG)?;
        Some(Reset { register, value: u8_at(bytes, RESET_VALUE)? })
    };
    let acpi_enable = || {
        let port = u32_at(bytes, SMI_CMD).filter(|port| *port != 0)?;
        let value = u8_at(bytes, ACPI_ENABLE).filter(|value| *value != 0)?;
        Some((u16::try_from(port).ok()?, value))
    };
    let reduced = flags(table) & FLAG_HW_REDUCED_ACPI != 0;
    PowerControl {
        soft_off: None,
        pm1a_control: (!reduced).then(|| block(bytes, X_PM1A_CNT_BLK, PM1A_CNT_BLK)).flatten(),
        pm1b_control: (!reduced).then(|| block(bytes, X_PM1B_CNT_BLK, PM1B_CNT_BLK)).flatten(),
        sleep_control: reduced.then(|| Register::parse(bytes, SLEEP_CONTROL_REG)).flatten(),
        acpi_enable: acpi_enable(),
        reset: (flags(table) & FLAG_RESET_REG_SUP != 0).then(reset).flatten(),
    }
}

/// The power-management timer.
pub fn timer(table: &Table<'_>) -> Option<Timer> {
    let register = block(table.bytes(), X_PM_TMR_BLK, PM_TMR_BLK)?;
    let bits = if flags(table) & FLAG_TMR_VAL_EXT != 0 { 32 } else { 24 };
    Some(Timer { register, bits })
}

/// Where the DSDT is.
pub fn dsdt(table: &Table<'_>) -> Option<PhysAddr> {
    let bytes = table.bytes();
    let wide = u64_at(bytes, X_DSDT).filter(|address| *address != 0);
    let narrow = || u32_at(bytes, DSDT).filter(|address| *address != 0).map(u64::from);
    wide.or_else(narrow).map(PhysAddr)
}
