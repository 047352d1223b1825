//! The card's registers (VIRTIO sec 4.1.4).

use kcore::mmio::Mmio;
use kcore::pci::{PciDevice, PciError, capability_id};
use kcore::time::now_ns;
use virtio_driver::pci::{Capability, NO_VECTOR, Region, Regions, common};
use virtio_driver::{Features, QueueLayout, QueueSize, net, status};

use crate::device::StartError;

/// How long a reset may take. The specification sets no limit; hypervisors need microseconds.
const RESET_LIMIT_NS: u64 = 10_000_000;

/// A queue's doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Doorbell {
    queue: u16,
    offset: usize,
}

pub(crate) struct Registers {
    common: Mmio,
    device: Mmio,
    notify: Mmio,
    regions: Regions,
}

impl Registers {
    /// Finds and maps them.
    pub fn map(function: &PciDevice) -> Result<Registers, StartError> {
        let capabilities = function
            .capabilities()
            .filter(|capability| capability.id == capability_id::VENDOR_SPECIFIC)
            .map(|capability| Capability::read(capability.offset, |offset| function.read32(offset)));
        let regions = Regions::find(capabilities, net::config::BYTES as u32)?;
        let map = |region: Region| -> Result<Mmio, PciError> {
            function.map_bar_part(region.bar, region.offset.into(), region.bytes.into())
        };
        Ok(Registers {
            common: map(regions.common)?,
            device: map(regions.device)?,
            notify: map(regions.notify())?,
            regions,
        })
    }

    pub fn status(&self) -> u8 {
        self.common.read8(common::DEVICE_STATUS)
    }

    pub fn add_status(&self, bits: u8) {
        self.common.write8(common::DEVICE_STATUS, self.status() | bits);
    }

    /// Resets the card. `true`: it said so, and uses no memory any more (VIRTIO sec 2.1.2).
    #[must_use]
    pub fn reset(&self) -> bool {
        self.common.write8(common::DEVICE_STATUS, 0);
        let limit_ns = now_ns() + RESET_LIMIT_NS;
        while self.status() != 0 {
            if now_ns() > limit_ns {
                return false;
            }
            core::hint::spin_loop();
        }
        true
    }

    pub fn offered_features(&self) -> Features {
        let half = |select: u32| {
            self.common.write32(common::DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read32(common::DEVICE_FEATURE))
        };
        Features(half(0) | half(1) << 32)
    }

    /// Tells the card what was accepted. `false`: it does not support that combination.
    #[must_use]
    pub fn accept(&self, features: Features) -> bool {
        for select in [0, 1] {
            self.common.write32(common::DRIVER_FEATURE_SELECT, select);
            self.common.write32(common::DRIVER_FEATURE, (features.0 >> (32 * select)) as u32);
        }
        self.add_status(status::FEATURES_OK);
        self.status() & status::FEATURES_OK != 0
    }

    /// The most descriptors that a queue may have; 0 where there is no such queue.
    pub fn queue_limit(&self, queue: u16) -> u16 {
        self.common.write16(common::QUEUE_SELECT, queue);
        self.common.read16(common::QUEUE_SIZE)
    }

    /// Tells the card where a queue lies (physical address `base`), and turns it on.
    pub fn enable_queue(
        &self,
        queue: u16,
        layout: &QueueLayout,
        base: u64,
        vector: u16,
    ) -> Result<Doorbell, StartError> {
        let size: QueueSize = layout.size();
        self.common.write16(common::QUEUE_SELECT, queue);
        self.common.write16(common::QUEUE_SIZE, size.get());
        for (register, offset) in [
            (common::QUEUE_DESC, layout.descriptors()),
            (common::QUEUE_DRIVER, layout.available()),
            (common::QUEUE_DEVICE, layout.used()),
        ] {
            // Halves, low first: a card may not take 64 bits at once (VIRTIO sec 4.1.3.1).
            let address = base + offset as u64;
            self.common.write32(register, address as u32);
            self.common.write32(register + 4, (address >> 32) as u32);
        }
        self.common.write16(common::QUEUE_MSIX_VECTOR, vector);
        if self.common.read16(common::QUEUE_MSIX_VECTOR) != vector {
            return Err(StartError::NoVector);
        }
        let notify_off = self.common.read16(common::QUEUE_NOTIFY_OFF);
        let offset = self.regions.doorbell_offset(notify_off)?;
        self.common.write16(common::QUEUE_ENABLE, 1);
        Ok(Doorbell { queue, offset })
    }

    /// Sends changes of the configuration to a vector, or nowhere if the card has too few.
    pub fn set_config_vector(&self, vector: Option<u16>) {
        self.common.write16(common::CONFIG_MSIX_VECTOR, vector.unwrap_or(NO_VECTOR));
    }

    pub fn ring(&self, doorbell: Doorbell) {
        self.notify.write16(doorbell.offset, doorbell.queue);
    }

    pub fn mac(&self) -> [u8; 6] {
        core::array::from_fn(|index| self.device.read8(net::config::MAC + index))
    }

    pub fn mtu(&self) -> u16 {
        self.device.read16(net::config::MTU)
    }

    pub fn link_is_up(&self) -> bool {
        self.device.read16(net::config::STATUS) & net::config::STATUS_LINK_UP != 0
    }
}
