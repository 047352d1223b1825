//! The question that all decoding asks: read or write one register of one function.

use crate::Address;

/// A configuration mechanism. An access to a function that is not there reads as all ones and
/// writes into nothing (PCI sec 6.1), and so does one beyond what the mechanism reaches; neither
/// is an error that a caller could do more about.
///
/// Eight and sixteen bit writes are operations of their own, not read-modify-write of a dword:
/// the command register shares its dword with status bits that are cleared by writing one.
pub trait ConfigSpace {
    fn read8(&self, address: Address, offset: u16) -> u8;
    fn read16(&self, address: Address, offset: u16) -> u16;
    fn read32(&self, address: Address, offset: u16) -> u32;
    fn write8(&self, address: Address, offset: u16, value: u8);
    fn write16(&self, address: Address, offset: u16, value: u16);
    fn write32(&self, address: Address, offset: u16, value: u32);
}

/// Offsets in the header (PCI sec 6.1, figure 6-1; Bridge 1.2 sec 3.2).
pub mod register {
    pub const VENDOR: u16 = 0x00;
    pub const DEVICE: u16 = 0x02;
    pub const COMMAND: u16 = 0x04;
    pub const STATUS: u16 = 0x06;
    pub const REVISION_AND_CLASS: u16 = 0x08;
    pub const HEADER_TYPE: u16 = 0x0e;
    pub const BAR0: u16 = 0x10;
    pub const SECONDARY_BUS: u16 = 0x19;
    pub const SUBSYSTEM_VENDOR: u16 = 0x2c;
    pub const SUBSYSTEM: u16 = 0x2e;
    pub const CAPABILITIES_POINTER: u16 = 0x34;
    pub const INTERRUPT_LINE: u16 = 0x3c;
    pub const INTERRUPT_PIN: u16 = 0x3d;
    /// The first byte behind the header that all functions share; drivers own what follows.
    pub const DEVICE_SPECIFIC: u16 = 0x40;
    /// The first byte that only the enhanced mechanism reaches.
    pub const EXTENDED: u16 = 0x100;
    /// Bytes of a function's space under the enhanced mechanism (PCIe sec 7.2.2).
    pub const SPACE_BYTES: u16 = 0x1000;
}
