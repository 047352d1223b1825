//! PCI bus 0 by configuration mechanism #1 (PCI Local Bus Specification 3.0 sec. 3.2.2.3.2), with
//! a host bridge and virtio functions.
//!
//! Every function keeps its registers in I/O space. A guest's doorbell to a device is then one
//! OUT, which every processor reports with port, width and value: no page-table walk and no
//! instruction decoding, as a memory-mapped doorbell needs (and this machine's emulator gives
//! no help with those). VIRTIO 1.2 sec. 4.1.4 allows a capability to point into an I/O BAR, and
//! Linux's virtio_pci_modern maps either kind.
//!
//! A function's interrupt is INTA, level-triggered; slot n drives I/O APIC pin 16 + n mod 8 and,
//! for a guest without I/O APIC, ISA line 10 or 11.

pub mod virtio;

use alloc::boxed::Box;
use virtio_device::registers::Region;

use virtio::VirtioFunction;

/// Slots of bus 0.
pub const SLOTS: usize = 32;
/// Where firmware-assigned I/O BARs begin; two blocks of 256 bytes for each slot.
pub const FIRST_BAR_PORT: u16 = 0xc000;
/// First I/O APIC pin of the eight that INTx lines share.
pub const FIRST_INTERRUPT_PIN: u8 = 16;
/// ISA lines that the INTx lines drive as well.
pub const ISA_LINES: [u8; 2] = [10, 11];

const ADDRESS_ENABLE: u32 = 1 << 31;
/// The register bits that mechanism #1 keeps.
const ADDRESS_WRITABLE: u32 = 0x80ff_fffc;

/// The I/O APIC pin of a slot's INTA.
pub const fn interrupt_pin(slot: usize) -> u8 {
    FIRST_INTERRUPT_PIN + (slot % 8) as u8
}

/// The ISA line of a slot's INTA.
pub const fn isa_line(slot: usize) -> u8 {
    ISA_LINES[slot % 2]
}

/// A device behind a virtio function: its registers, by region.
pub trait Endpoint: Send {
    /// A read of 1, 2 or 4 bytes at `offset` of `region`.
    fn read(&mut self, region: Region, offset: u32, bytes: u8) -> u64;
    fn write(&mut self, region: Region, offset: u32, bytes: u8, value: u64);
    /// The level of INTx.
    fn interrupt_line(&self) -> bool;
}

/// What a function is, for its configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The virtio device type of VIRTIO 1.2 sec. 5 (1 network, 2 block, 3 console, 4 entropy).
    pub virtio_type: u16,
    /// Bytes of device configuration.
    pub config_bytes: u32,
    pub queues: u16,
}

/// 256 bytes of configuration space: values, and which bits a guest may change.
#[derive(Clone, Debug)]
pub(crate) struct ConfigSpace {
    values: [u8; 256],
    writable: [u8; 256],
}

impl ConfigSpace {
    pub(crate) fn new() -> Self {
        Self { values: [0; 256], writable: [0; 256] }
    }

    pub(crate) fn set(&mut self, offset: usize, bytes: &[u8]) {
        if let Some(field) = self.values.get_mut(offset..offset + bytes.len()) {
            field.copy_from_slice(bytes);
        }
    }

    pub(crate) fn allow(&mut self, offset: usize, mask: &[u8]) {
        if let Some(field) = self.writable.get_mut(offset..offset + mask.len()) {
            field.copy_from_slice(mask);
        }
    }

    pub(crate) fn read_u16(&self, offset: usize) -> u16 {
        (self.read(offset, 2) & 0xffff) as u16
    }

    /// Little-endian, `bytes` (1 to 4) from `offset`; 0 past the end.
    pub(crate) fn read(&self, offset: usize, bytes: usize) -> u32 {
        let byte = |index: usize| self.values.get(offset + index).copied().unwrap_or(0);
        (0..bytes.min(4)).fold(0, |value, index| value | u32::from(byte(index)) << (8 * index))
    }

    pub(crate) fn write(&mut self, offset: usize, bytes: usize, value: u32) {
        for (index, new) in value.to_le_bytes().into_iter().enumerate().take(bytes.min(4)) {
            if let (Some(old), Some(mask)) =
                (self.values.get_mut(offset + index), self.writable.get(offset + index))
            {
                *old = *old & !mask | new & mask;
            }
        }
    }
}

/// The host bridge. Its identity (Intel's virtual host bridge, 8086:0d57) is one that no driver
/// and no quirk of Linux binds to: there is nothing to program in it.
fn host_bridge() -> ConfigSpace {
    let mut config = ConfigSpace::new();
    config.set(0x00, &[0x86, 0x80, 0x57, 0x0d]);
    // Class 06 00: host bridge.
    config.set(0x0a, &[0x00, 0x06]);
    config
}

/// The bus.
pub struct PciBus {
    address: u32,
    bridge: ConfigSpace,
    /// Boxed, so that a board can be moved on a kernel's small stack.
    functions: [Option<Box<VirtioFunction>>; SLOTS],
    /// I/O APIC pins and ISA lines as last driven.
    pins: u8,
    lines: [bool; 2],
}

/// A line that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineChange {
    Pin { pin: u8, asserted: bool },
    Isa { line: u8, asserted: bool },
}

impl Default for PciBus {
    fn default() -> Self {
        Self::new()
    }
}

impl PciBus {
    pub fn new() -> Self {
        Self {
            address: 0,
            bridge: host_bridge(),
            functions: [const { None }; SLOTS],
            pins: 0,
            lines: [false; 2],
        }
    }

    /// Puts a function into the next free slot; returns the slot, or the endpoint when full.
    pub fn add(
        &mut self,
        identity: Identity,
        endpoint: Box<dyn Endpoint>,
    ) -> Result<usize, Box<dyn Endpoint>> {
        let Some(slot) = (1..SLOTS).find(|&slot| self.functions[slot].is_none()) else {
            return Err(endpoint);
        };
        self.functions[slot] = Some(Box::new(VirtioFunction::new(slot, identity, endpoint)));
        Ok(slot)
    }

    /// Slots in use, for the ACPI tables.
    pub fn used_slots(&self) -> impl Iterator<Item = usize> {
        (1..SLOTS).filter(|&slot| self.functions[slot].is_some())
    }

    /// A doubleword read of port 0xCF8.
    pub fn read_address(&self) -> u32 {
        self.address
    }

    pub fn write_address(&mut self, value: u32) {
        self.address = value & ADDRESS_WRITABLE;
    }

    /// The slot and register that the address names; only function 0 of bus 0 exists.
    fn selected(&self, port_offset: u16) -> Option<(usize, usize)> {
        let address = self.address;
        if address & ADDRESS_ENABLE == 0 || address & 0x00ff_0700 != 0 {
            return None;
        }
        let register = (address & 0xfc) as usize + usize::from(port_offset & 3);
        Some(((address >> 11 & 0x1f) as usize, register))
    }

    /// A read of ports 0xCFC to 0xCFF. Nobody home reads as ones.
    pub fn read_data(&mut self, port_offset: u16, bytes: usize) -> u32 {
        let Some((slot, register)) = self.selected(port_offset) else { return u32::MAX };
        match (slot, &mut self.functions[slot]) {
            (0, _) => self.bridge.read(register, bytes),
            (_, Some(function)) => function.read_config(register, bytes),
            (_, None) => u32::MAX,
        }
    }

    pub fn write_data(&mut self, port_offset: u16, bytes: usize, value: u32) {
        let Some((slot, register)) = self.selected(port_offset) else { return };
        if let Some(function) = &mut self.functions[slot] {
            function.write_config(register, bytes, value);
        }
    }

    /// A read from a BAR. `None` if no function decodes the port.
    pub fn read_io(&mut self, port: u16, bytes: usize) -> Option<u32> {
        self.functions.iter_mut().flatten().find_map(|function| function.read_io(port, bytes))
    }

    /// A write to a BAR. False if no function decodes the port.
    pub fn write_io(&mut self, port: u16, bytes: usize, value: u32) -> bool {
        self.functions.iter_mut().flatten().any(|function| function.write_io(port, bytes, value))
    }

    /// Looks at every function's interrupt and reports the shared lines that changed.
    pub fn poll_lines(&mut self, mut changed: impl FnMut(LineChange)) {
        let (mut pins, mut lines) = (0u8, [false; 2]);
        for (slot, function) in self.functions.iter().enumerate() {
            if function.as_ref().is_some_and(|function| function.interrupt_line()) {
                pins |= 1 << (slot % 8);
                lines[slot % 2] = true;
            }
        }
        for index in (0..8).filter(|&index| (pins ^ self.pins) & 1 << index != 0) {
            let pin = FIRST_INTERRUPT_PIN + index;
            changed(LineChange::Pin { pin, asserted: pins & 1 << index != 0 });
        }
        for index in 0..2 {
            if lines[index] != self.lines[index] {
                changed(LineChange::Isa { line: ISA_LINES[index], asserted: lines[index] });
            }
        }
        (self.pins, self.lines) = (pins, lines);
    }
}

#[cfg(test)]
#[path = "pci_tests.rs"]
mod tests;
