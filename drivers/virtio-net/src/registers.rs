//! The card's registers (VIRTIO sec 4.1.4, 5.1.4).

use core::ops::Deref;

use kcore::pci::PciDevice;
use kcore::time::now_ns;
use virtio_driver::net;
pub(crate) use virtio_pci::Doorbell;
use virtio_pci::RegisterError;

/// How long a reset may take. The specification sets no limit; hypervisors need microseconds.
const RESET_LIMIT_NS: u64 = 10_000_000;

/// The registers of any virtio device, and what is a network card's in them.
pub(crate) struct Registers(virtio_pci::Registers);

impl Deref for Registers {
    type Target = virtio_pci::Registers;

    fn deref(&self) -> &virtio_pci::Registers {
        &self.0
    }
}

impl Registers {
    /// Finds and maps them.
    pub fn map(function: &PciDevice) -> Result<Registers, RegisterError> {
        virtio_pci::Registers::map(function, net::config::BYTES as u32).map(Registers)
    }

    /// Resets the card. `true`: it said so, and uses no memory any more. Does not sleep: a softirq
    /// resets a card that misbehaved.
    #[must_use]
    pub fn reset(&self) -> bool {
        self.begin_reset();
        let limit_ns = now_ns() + RESET_LIMIT_NS;
        while self.status() != 0 {
            if now_ns() > limit_ns {
                return false;
            }
            core::hint::spin_loop();
        }
        true
    }

    pub fn mac(&self) -> [u8; 6] {
        core::array::from_fn(|index| self.device().read8(net::config::MAC + index))
    }

    pub fn mtu(&self) -> u16 {
        self.device().read16(net::config::MTU)
    }

    pub fn link_is_up(&self) -> bool {
        self.device().read16(net::config::STATUS) & net::config::STATUS_LINK_UP != 0
    }
}
