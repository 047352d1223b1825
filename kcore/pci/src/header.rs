//! The common header: who a function is and how the rest of its header is laid out.

use crate::{Address, ConfigSpace, register};

/// Bits of the command register (PCI sec 6.2.2).
pub mod command {
    pub const IO_SPACE: u16 = 1 << 0;
    pub const MEMORY_SPACE: u16 = 1 << 1;
    pub const BUS_MASTER: u16 = 1 << 2;
    pub const INTX_DISABLE: u16 = 1 << 10;
}

/// Bits of the status register (PCI sec 6.2.3).
pub mod status {
    pub const CAPABILITIES: u16 = 1 << 4;
}

/// Layout of the header behind the first 16 bytes (PCI sec 6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    Endpoint,
    /// A PCI-to-PCI bridge or a PCI Express port.
    Bridge,
    /// CardBus, or a value no document defines: neither base addresses nor capabilities are
    /// looked for, because their place is not known.
    Other(u8),
}

/// A function's identity, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub vendor: u16,
    pub device: u16,
    pub class: u8,
    pub subclass: u8,
    pub prog_if: u8,
    pub revision: u8,
    pub kind: HeaderKind,
    pub multi_function: bool,
    /// Zero for bridges, which keep theirs in a capability.
    pub subsystem_vendor: u16,
    pub subsystem: u16,
    /// INTA# is 1; zero where the function uses no interrupt pin.
    pub interrupt_pin: u8,
    /// What the firmware routed the pin to on the interrupt controllers of a PC.
    pub interrupt_line: u8,
}

/// Class and subclass of a host bridge (PCI appendix D). See [`crate::read_bars`].
pub(crate) const HOST_BRIDGE: (u8, u8) = (0x06, 0x00);

impl Header {
    /// `None` where no function answers.
    pub fn read(space: &impl ConfigSpace, address: Address) -> Option<Self> {
        let vendor = space.read16(address, register::VENDOR);
        // FFFFh is what an empty slot reads as (PCI sec 6.2.1). Zero is no vendor either, and is
        // what some bridges return for a device that is still in reset.
        if vendor == 0xffff || vendor == 0 {
            return None;
        }
        let [revision, prog_if, subclass, class] =
            space.read32(address, register::REVISION_AND_CLASS).to_le_bytes();
        let header_type = space.read8(address, register::HEADER_TYPE);
        let kind = match header_type & 0x7f {
            0 => HeaderKind::Endpoint,
            1 => HeaderKind::Bridge,
            other => HeaderKind::Other(other),
        };
        let (subsystem_vendor, subsystem) = match kind {
            HeaderKind::Endpoint => (
                space.read16(address, register::SUBSYSTEM_VENDOR),
                space.read16(address, register::SUBSYSTEM),
            ),
            HeaderKind::Bridge | HeaderKind::Other(_) => (0, 0),
        };
        Some(Self {
            vendor,
            device: space.read16(address, register::DEVICE),
            class,
            subclass,
            prog_if,
            revision,
            kind,
            multi_function: header_type & 0x80 != 0,
            subsystem_vendor,
            subsystem,
            interrupt_pin: space.read8(address, register::INTERRUPT_PIN),
            interrupt_line: space.read8(address, register::INTERRUPT_LINE),
        })
    }

    /// Base address registers that this kind of header has.
    #[must_use]
    pub const fn bar_count(&self) -> usize {
        match self.kind {
            HeaderKind::Endpoint => 6,
            HeaderKind::Bridge => 2,
            HeaderKind::Other(_) => 0,
        }
    }

    #[must_use]
    pub(crate) fn is_host_bridge(&self) -> bool {
        (self.class, self.subclass) == HOST_BRIDGE
    }
}
