//! Where a virtio device on PCI keeps its registers (VIRTIO sec 4.1.4).
//!
//! Vendor-specific capabilities name regions inside the device's windows. Their contents are the
//! device's; [`Regions::find`] checks that each region is long enough for the registers that will
//! be used, the mapping checks that it lies in its window.

use core::fmt;

/// PCI identifiers (VIRTIO sec 4.1.2): 0x1040 + the device type for modern devices, and the
/// transitional numbers, whose devices have the modern registers too.
pub const VENDOR: u16 = 0x1af4;
pub const DEVICE_NET: u16 = 0x1041;
pub const DEVICE_NET_TRANSITIONAL: u16 = 0x1000;
pub const DEVICE_BLK: u16 = 0x1042;
pub const DEVICE_BLK_TRANSITIONAL: u16 = 0x1001;

/// "No vector" in a vector register (VIRTIO sec 4.1.5.1.2).
pub const NO_VECTOR: u16 = 0xffff;

/// Offsets in the common configuration (VIRTIO sec 4.1.4.3).
pub mod common {
    pub const DEVICE_FEATURE_SELECT: usize = 0;
    pub const DEVICE_FEATURE: usize = 4;
    pub const DRIVER_FEATURE_SELECT: usize = 8;
    pub const DRIVER_FEATURE: usize = 12;
    pub const CONFIG_MSIX_VECTOR: usize = 16;
    pub const NUM_QUEUES: usize = 18;
    pub const DEVICE_STATUS: usize = 20;
    pub const CONFIG_GENERATION: usize = 21;
    pub const QUEUE_SELECT: usize = 22;
    pub const QUEUE_SIZE: usize = 24;
    pub const QUEUE_MSIX_VECTOR: usize = 26;
    pub const QUEUE_ENABLE: usize = 28;
    pub const QUEUE_NOTIFY_OFF: usize = 30;
    pub const QUEUE_DESC: usize = 32;
    pub const QUEUE_DRIVER: usize = 40;
    pub const QUEUE_DEVICE: usize = 48;
    /// Bytes up to here; later versions of the structure are longer.
    pub const BYTES: u32 = 56;
}

/// A part of one of the device's windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    pub bar: u8,
    pub offset: u32,
    pub bytes: u32,
}

/// One vendor-specific capability, as far as this driver uses the kinds there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    Common(Region),
    Notify {
        region: Region,
        multiplier: u32,
    },
    Device(Region),
    /// Interrupt status, the window through configuration space, shared memory, and whatever
    /// comes later.
    Other(u8),
}

impl Capability {
    /// Decodes the capability at `offset` in configuration space, which `read32` reads.
    pub fn read(offset: u16, read32: impl Fn(u16) -> u32) -> Capability {
        // virtio_pci_cap: cap_vndr, cap_next, cap_len, cfg_type | bar, id, padding | offset |
        // length | (notify only) notify_off_multiplier.
        let [_, _, _, kind] = read32(offset).to_le_bytes();
        let [bar, ..] = read32(offset + 4).to_le_bytes();
        let region = Region { bar, offset: read32(offset + 8), bytes: read32(offset + 12) };
        match kind {
            1 => Capability::Common(region),
            2 => Capability::Notify { region, multiplier: read32(offset + 16) },
            4 => Capability::Device(region),
            other => Capability::Other(other),
        }
    }
}

/// The regions a driver needs, each at least as long as the registers it will use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Regions {
    pub common: Region,
    pub device: Region,
    notify: Region,
    notify_multiplier: u32,
}

impl Regions {
    /// Picks the first usable capability of each kind, as the device orders them by preference
    /// (VIRTIO sec 4.1.4.1). `device_bytes` is what the driver will read of the device's own
    /// configuration.
    pub fn find(
        capabilities: impl Iterator<Item = Capability>,
        device_bytes: u32,
    ) -> Result<Regions, RegionError> {
        let mut common = None;
        let mut device = None;
        let mut notify = None;
        let mut any = false;
        for capability in capabilities {
            any = true;
            match capability {
                Capability::Common(region) if usable(region, common::BYTES) => {
                    common = common.or(Some(region));
                }
                Capability::Device(region) if usable(region, device_bytes) => {
                    device = device.or(Some(region));
                }
                Capability::Notify { region, multiplier } if usable(region, 2) => {
                    notify = notify.or(Some((region, multiplier)));
                }
                _ => {}
            }
        }
        if !any {
            return Err(RegionError::Legacy);
        }
        let (notify, notify_multiplier) = notify.ok_or(RegionError::Missing("notification"))?;
        Ok(Regions {
            common: common.ok_or(RegionError::Missing("common configuration"))?,
            device: device.ok_or(RegionError::Missing("device configuration"))?,
            notify,
            notify_multiplier,
        })
    }

    pub fn notify(&self) -> Region {
        self.notify
    }

    /// Offset in the notification region of a queue's 16-bit register (VIRTIO sec 4.1.4.4).
    pub fn doorbell_offset(&self, queue_notify_off: u16) -> Result<usize, RegionError> {
        let offset = u64::from(queue_notify_off) * u64::from(self.notify_multiplier);
        if offset + 2 > u64::from(self.notify.bytes) || offset % 2 != 0 {
            return Err(RegionError::DoorbellOutside { queue_notify_off });
        }
        usize::try_from(offset).map_err(|_| RegionError::DoorbellOutside { queue_notify_off })
    }
}

/// Windows are numbered 0 to 5; the rest is reserved (VIRTIO sec 4.1.4). Registers are at most
/// four bytes wide, and the structures that hold them are aligned to that.
fn usable(region: Region, least_bytes: u32) -> bool {
    region.bar <= 5 && region.bytes >= least_bytes && region.offset.is_multiple_of(4)
}

/// The device's capabilities cannot be right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionError {
    /// There are no such capabilities: the device speaks only what was before VIRTIO 1.0.
    Legacy,
    /// No usable capability names this region.
    Missing(&'static str),
    /// A queue's doorbell lies outside the notification region.
    DoorbellOutside { queue_notify_off: u16 },
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RegionError::Legacy => {
                f.write_str("the device has only legacy registers; those of VIRTIO 1.0 are needed")
            }
            RegionError::Missing(what) => write!(f, "the device names no usable {what} region"),
            RegionError::DoorbellOutside { queue_notify_off } => {
                write!(f, "doorbell {queue_notify_off} lies outside the notification region")
            }
        }
    }
}

impl core::error::Error for RegionError {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn region(bar: u8, offset: u32, bytes: u32) -> Region {
        Region { bar, offset, bytes }
    }

    fn good() -> Vec<Capability> {
        vec![
            Capability::Common(region(4, 0, 0x1000)),
            Capability::Other(3),
            Capability::Device(region(4, 0x2000, 0x1000)),
            Capability::Notify { region: region(4, 0x3000, 0x1000), multiplier: 4 },
        ]
    }

    #[test]
    fn the_first_usable_of_each_kind_is_taken() {
        let short = Capability::Common(region(0, 0, 55));
        let elsewhere = Capability::Common(region(2, 0, 100));
        let reserved = Capability::Device(region(6, 0, 100));
        let all = [short, reserved].into_iter().chain(good()).chain([elsewhere]);
        let found = Regions::find(all, 12).unwrap();
        assert_eq!(found.common, region(4, 0, 0x1000));
        assert_eq!(found.device, region(4, 0x2000, 0x1000));
        assert_eq!(found.doorbell_offset(1), Ok(4));
        let outside = RegionError::DoorbellOutside { queue_notify_off: 0x400 };
        assert_eq!(found.doorbell_offset(0x400), Err(outside));
    }

    #[test]
    fn what_is_missing_is_named() {
        for (gone, name) in [(0, "common configuration"), (2, "device configuration"), (3, "notification")] {
            let mut capabilities = good();
            capabilities.remove(gone);
            let found = Regions::find(capabilities.into_iter(), 12);
            assert_eq!(found, Err(RegionError::Missing(name)));
        }
        assert_eq!(Regions::find(core::iter::empty(), 12), Err(RegionError::Legacy));
    }

    #[test]
    fn a_capability_is_decoded_field_by_field() {
        let words = [0x0214_5009, 0x0000_0004, 0x3000, 0x1000, 4];
        let read32 = |at: u16| words[usize::from(at - 0x40) / 4];
        let expected = Capability::Notify { region: region(4, 0x3000, 0x1000), multiplier: 4 };
        assert_eq!(Capability::read(0x40, read32), expected);
    }

    proptest! {
        #[test]
        fn a_doorbell_is_inside_or_refused(bytes in 2u32.., multiplier: u32, which: u16) {
            let mut capabilities = good();
            capabilities[3] = Capability::Notify { region: region(1, 0, bytes), multiplier };
            let regions = Regions::find(capabilities.into_iter(), 12).unwrap();
            if let Ok(offset) = regions.doorbell_offset(which) {
                prop_assert!(offset as u64 + 2 <= u64::from(bytes));
            }
        }
    }
}
