//! A virtio device's registers on PCI (VIRTIO sec 4.1), for drivers of every kind of device: found,
//! mapped, and checked against the windows they claim to lie in.

#![no_std]
#![forbid(unsafe_code)]

use core::fmt;

use kcore::dma::DmaBuffer;
use kcore::mmio::Mmio;
use kcore::pci::{PciDevice, PciError, capability_id};
use virtio_driver::pci::{Capability, NO_VECTOR, Region, RegionError, Regions, common};
use virtio_driver::{Features, QueueLayout, RingMemory, status};

/// Why a device's registers cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterError {
    Pci(PciError),
    Regions(RegionError),
    /// The device cannot connect a queue with an interrupt.
    NoVector,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegisterError::Pci(error) => error.fmt(f),
            RegisterError::Regions(error) => error.fmt(f),
            RegisterError::NoVector => f.write_str("it cannot connect its queues with an interrupt"),
        }
    }
}

impl core::error::Error for RegisterError {}

/// A queue's doorbell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doorbell {
    queue: u16,
    offset: usize,
}

/// The mapped registers.
pub struct Registers {
    common: Mmio,
    device: Mmio,
    notify: Mmio,
    regions: Regions,
}

impl Registers {
    /// Finds and maps them; `device_bytes` is the least that the device's own part must have.
    pub fn map(function: &PciDevice, device_bytes: u32) -> Result<Registers, RegisterError> {
        let capabilities = function
            .capabilities()
            .filter(|capability| capability.id == capability_id::VENDOR_SPECIFIC)
            .map(|capability| Capability::read(capability.offset, |offset| function.read32(offset)));
        let regions = Regions::find(capabilities, device_bytes).map_err(RegisterError::Regions)?;
        let map = |region: Region| -> Result<Mmio, RegisterError> {
            function
                .map_bar_part(region.bar, region.offset.into(), region.bytes.into())
                .map_err(RegisterError::Pci)
        };
        Ok(Registers {
            common: map(regions.common)?,
            device: map(regions.device)?,
            notify: map(regions.notify())?,
            regions,
        })
    }

    /// The device's own registers, which are as long as its capability says.
    pub fn device(&self) -> &Mmio {
        &self.device
    }

    pub fn status(&self) -> u8 {
        self.common.read8(common::DEVICE_STATUS)
    }

    pub fn add_status(&self, bits: u8) {
        self.common.write8(common::DEVICE_STATUS, self.status() | bits);
    }

    /// Tells the device to reset. Once its status reads as zero it uses no memory any more (VIRTIO
    /// sec 2.1.2, 4.1.4.3.2); how long to wait for that is the driver's choice.
    pub fn begin_reset(&self) {
        self.common.write8(common::DEVICE_STATUS, 0);
    }

    /// Changes with the device's own registers, so that a value of several parts is known to be one
    /// (VIRTIO sec 4.1.4.3).
    pub fn config_generation(&self) -> u8 {
        self.common.read8(common::CONFIG_GENERATION)
    }

    pub fn offered_features(&self) -> Features {
        let half = |select: u32| {
            self.common.write32(common::DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read32(common::DEVICE_FEATURE))
        };
        Features(half(0) | half(1) << 32)
    }

    /// Tells the device what was accepted. `false`: it does not support that combination.
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

    /// Tells the device where a queue lies (physical address `base`), and turns it on.
    pub fn enable_queue(
        &self,
        queue: u16,
        layout: &QueueLayout,
        base: u64,
        vector: u16,
    ) -> Result<Doorbell, RegisterError> {
        self.common.write16(common::QUEUE_SELECT, queue);
        self.common.write16(common::QUEUE_SIZE, layout.size().get());
        for (register, offset) in [
            (common::QUEUE_DESC, layout.descriptors()),
            (common::QUEUE_DRIVER, layout.available()),
            (common::QUEUE_DEVICE, layout.used()),
        ] {
            // Halves, low first: a device may not take 64 bits at once (VIRTIO sec 4.1.3.1).
            let address = base + offset as u64;
            self.common.write32(register, address as u32);
            self.common.write32(register + 4, (address >> 32) as u32);
        }
        self.common.write16(common::QUEUE_MSIX_VECTOR, vector);
        if self.common.read16(common::QUEUE_MSIX_VECTOR) != vector {
            return Err(RegisterError::NoVector);
        }
        let notify_off = self.common.read16(common::QUEUE_NOTIFY_OFF);
        let offset = self.regions.doorbell_offset(notify_off).map_err(RegisterError::Regions)?;
        self.common.write16(common::QUEUE_ENABLE, 1);
        Ok(Doorbell { queue, offset })
    }

    /// Sends changes of the configuration to a vector, or nowhere if the device has too few.
    pub fn set_config_vector(&self, vector: Option<u16>) {
        self.common.write16(common::CONFIG_MSIX_VECTOR, vector.unwrap_or(NO_VECTOR));
    }

    pub fn ring(&self, doorbell: Doorbell) {
        self.notify.write16(doorbell.offset, doorbell.queue);
    }
}

/// The memory of one queue, shared with the device for good.
pub struct QueueMemory(pub DmaBuffer);

impl RingMemory for QueueMemory {
    fn read_u32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }

    fn write_u16(&self, offset: usize, value: u16) {
        self.0.write_u16(offset, value);
    }

    fn write_u32(&self, offset: usize, value: u32) {
        self.0.write_u32(offset, value);
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.0.write_u64(offset, value);
    }

    fn load_acquire_u16(&self, offset: usize) -> u16 {
        self.0.load_acquire_u16(offset)
    }

    fn store_release_u16(&self, offset: usize, value: u16) {
        self.0.store_release_u16(offset, value);
    }

    fn device_address(&self, offset: usize) -> u64 {
        self.0.phys().as_u64() + offset as u64
    }
}
