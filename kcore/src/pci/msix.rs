//! The MSI-X table of one function.

use pci_config::{MsixCapability, control, entry};

use crate::irq::Interrupt;
use crate::mmio::Mmio;
use crate::pci::{PciDevice, PciError};

/// A function's interrupt messages (PCI 3.0 sec 6.8.2). Dropped, it turns them off.
#[derive(Debug)]
pub struct Msix {
    device: &'static PciDevice,
    capability: MsixCapability,
    table: Mmio,
}

impl Msix {
    pub(super) fn new(device: &'static PciDevice, capability: MsixCapability) -> Result<Msix, PciError> {
        let bytes = u64::from(capability.entries) * entry::BYTES;
        let table = device.map_bar_part(capability.table.bar, capability.table.offset, bytes)?;
        let msix = Msix { device, capability, table };
        // All entries are masked before the capability is enabled, with the function masked
        // meanwhile: what the firmware left in the table must not be sent.
        msix.write_control(control::FUNCTION_MASK | control::ENABLE);
        for index in 0..msix.count() {
            msix.mask(index);
        }
        msix.write_control(control::ENABLE);
        Ok(msix)
    }

    /// Messages the function can send: at least one.
    pub fn count(&self) -> u16 {
        self.capability.entries
    }

    /// Sends message `index` to `interrupt` from now on. The interrupt must outlive the binding:
    /// mask it before dropping the interrupt.
    pub fn bind(&self, index: u16, interrupt: &Interrupt) {
        let (address, data) = interrupt.msi_message();
        let base = self.entry(index);
        // An entry that changes while it is unmasked may be sent half old, half new.
        self.mask(index);
        self.table.write32(base + entry::ADDRESS_LOW, address as u32);
        self.table.write32(base + entry::ADDRESS_HIGH, (address >> 32) as u32);
        self.table.write32(base + entry::DATA, data);
        self.unmask(index);
    }

    /// Holds message `index` back; the function remembers that one is due.
    pub fn mask(&self, index: u16) {
        let offset = self.entry(index) + entry::VECTOR_CONTROL;
        self.table.write32(offset, self.table.read32(offset) | entry::MASKED);
    }

    /// Lets message `index` through, at once if one is due.
    pub fn unmask(&self, index: u16) {
        let offset = self.entry(index) + entry::VECTOR_CONTROL;
        self.table.write32(offset, self.table.read32(offset) & !entry::MASKED);
    }

    fn entry(&self, index: u16) -> usize {
        assert!(index < self.count(), "MSI-X entry {index} of {}", self.count());
        usize::from(index) * entry::BYTES as usize
    }

    fn write_control(&self, bits: u16) {
        let offset = self.capability.offset + control::OFFSET;
        let before = self.device.read16(offset) & !(control::FUNCTION_MASK | control::ENABLE);
        self.device.write16(offset, before | bits);
    }
}

impl Drop for Msix {
    fn drop(&mut self) {
        self.write_control(control::FUNCTION_MASK);
    }
}
