//! How a virtio function looks in PCI configuration space (VIRTIO 1.2 section 4.1), as data.
//!
//! All structures lie in one I/O BAR of 256 bytes, the most that the PCI Local Bus Specification
//! 3.0 (6.2.5.1) lets a BAR take of I/O space. An access there is an OUT or IN, whose exit tells
//! port, size and value; one to memory would first need the guest's instruction decoded. Since
//! drivers notify once or more per request, that is what a notification costs.
//!
//! ```text
//!   0x00  common configuration    0x3c bytes
//!   0x40  notifications           8 queues, 4 bytes apart
//!   0x60  ISR status              1 byte
//!   0x80  device configuration    up to the end
//! ```

use crate::function::DeviceKind;
use crate::registers::{COMMON_BYTES, NOTIFY_MULTIPLIER_BYTES, Region};

/// Size of the I/O BAR.
pub const BAR_BYTES: u32 = 256;

const NOTIFY_OFFSET: u32 = 0x40;
const ISR_OFFSET: u32 = 0x60;
const DEVICE_OFFSET: u32 = 0x80;

/// Queues that the notify region has room for.
pub const MOST_QUEUES: u32 = (ISR_OFFSET - NOTIFY_OFFSET) / NOTIFY_MULTIPLIER_BYTES;

/// A structure in the BAR: cfg_type (4.1.4), where, and how long.
const STRUCTURES: [(Region, u8, u32, u32); 4] = [
    (Region::Common, 1, 0, COMMON_BYTES),
    (Region::Notify, 2, NOTIFY_OFFSET, ISR_OFFSET - NOTIFY_OFFSET),
    (Region::Isr, 3, ISR_OFFSET, 1),
    (Region::Device, 4, DEVICE_OFFSET, BAR_BYTES - DEVICE_OFFSET),
];

/// VIRTIO_PCI_CAP_PCI_CFG.
const CONFIG_ACCESS_TYPE: u8 = 5;
/// PCI's capability ID of vendor-specific structures.
const VENDOR_SPECIFIC_ID: u8 = 0x09;

/// What is at this offset of the BAR: the region and the offset within it. An access that begins
/// between the structures meets nothing: reads are 0, writes are lost.
pub fn region_at(bar_offset: u32) -> Option<(Region, u32)> {
    STRUCTURES.iter().find_map(|&(region, _, start, bytes)| {
        let offset = bar_offset.checked_sub(start)?;
        (offset < bytes).then_some((region, offset))
    })
}

/// The identifying fields of a function's configuration header (4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub vendor: u16,
    pub device: u16,
    pub subsystem_vendor: u16,
    pub subsystem: u16,
    /// 1 at least, and a subsystem of 0x40 at least, keep legacy drivers away (4.1.2.1).
    pub revision: u8,
    /// Base class, sub-class, programming interface.
    pub class: [u8; 3],
}

/// A function's identity by its kind.
pub const fn identity(kind: DeviceKind) -> Identity {
    const VENDOR: u16 = 0x1af4;
    const MODERN_DEVICES: u16 = 0x1040;
    let device = MODERN_DEVICES + kind.id();
    let class = match kind {
        DeviceKind::Net => [0x02, 0x00, 0x00], // network, Ethernet
    };
    Identity { vendor: VENDOR, device, subsystem_vendor: VENDOR, subsystem: device, revision: 1, class }
}

/// One vendor-specific capability as it stands in configuration space; whoever lays out the list
/// fills in the link at byte 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    bytes: [u8; Self::MOST_BYTES],
    len: u8,
}

impl Capability {
    /// struct virtio_pci_cap and the four bytes that two of its types add.
    pub const MOST_BYTES: usize = 20;

    fn new(cfg_type: u8, bar: u8, offset: u32, length: u32, extra: Option<u32>) -> Self {
        let mut bytes = [0; Self::MOST_BYTES];
        let len = if extra.is_some() { 20 } else { 16 };
        bytes[0] = VENDOR_SPECIFIC_ID;
        bytes[2] = len;
        bytes[3] = cfg_type;
        bytes[4] = bar;
        bytes[8..12].copy_from_slice(&offset.to_le_bytes());
        bytes[12..16].copy_from_slice(&length.to_le_bytes());
        bytes[16..].copy_from_slice(&extra.unwrap_or(0).to_le_bytes());
        Self { bytes, len }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether it is the configuration access capability, whose bytes are a [`ConfigWindow`].
    pub fn is_config_window(&self) -> bool {
        self.bytes[3] == CONFIG_ACCESS_TYPE
    }
}

/// The capabilities of a function whose structures lie in BAR `bar`.
pub fn capabilities(bar: u8) -> [Capability; 5] {
    let structure = |index: usize| {
        let (region, cfg_type, offset, length) = STRUCTURES[index];
        let extra = (region == Region::Notify).then_some(NOTIFY_MULTIPLIER_BYTES);
        Capability::new(cfg_type, bar, offset, length, extra)
    };
    [
        structure(0),
        structure(1),
        structure(2),
        structure(3),
        Capability::new(CONFIG_ACCESS_TYPE, 0, 0, 0, Some(0)),
    ]
}

/// An access to the BAR that a driver makes through configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowAccess {
    pub bar_offset: u32,
    pub size: u8,
}

/// The configuration access capability (4.1.4.9): registers in configuration space that choose a
/// place in the BAR, and a data register that reads and writes there. Firmware uses it before
/// BARs are assigned.
#[derive(Clone, Copy, Debug)]
pub struct ConfigWindow {
    our_bar: u8,
    bar: u8,
    offset: u32,
    length: u32,
}

impl ConfigWindow {
    // Places in the capability.
    const BAR: u8 = 4;
    const OFFSET: u8 = 8;
    const LENGTH: u8 = 12;
    const DATA: u8 = 16;

    /// The window of a function whose structures lie in BAR `bar`.
    pub const fn new(bar: u8) -> Self {
        Self { our_bar: bar, bar: 0, offset: 0, length: 0 }
    }

    /// The dword at `place` in the capability, its identifying first one excepted; `Err` if it is
    /// the data register, to be answered by that access.
    pub fn read(&self, place: u8) -> Result<u32, WindowAccess> {
        match place {
            Self::BAR => Ok(u32::from(self.bar)),
            Self::OFFSET => Ok(self.offset),
            Self::LENGTH => Ok(self.length),
            Self::DATA => self.target().map_or(Ok(0), Err),
            _ => Ok(0),
        }
    }

    /// Writes the dword at `place`; if it is the data register, the access to make with its low
    /// bytes. A window that points nowhere swallows the data.
    pub fn write(&mut self, place: u8, value: u32) -> Option<WindowAccess> {
        match place {
            Self::BAR => self.bar = (value & 0xff) as u8,
            Self::OFFSET => self.offset = value,
            Self::LENGTH => self.length = value,
            Self::DATA => return self.target(),
            _ => {}
        }
        None
    }

    fn target(&self) -> Option<WindowAccess> {
        let size: u8 = match self.length {
            1 => 1,
            2 => 2,
            4 => 4,
            _ => return None,
        };
        let inside = self.bar == self.our_bar && self.offset < BAR_BYTES;
        let aligned = self.offset.is_multiple_of(self.length);
        (inside && aligned).then_some(WindowAccess { bar_offset: self.offset, size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_do_not_overlap_and_are_found_where_the_capabilities_say() {
        let mut owner = [None; BAR_BYTES as usize];
        for capability in capabilities(2).iter().filter(|c| !c.is_config_window()) {
            let bytes = capability.bytes();
            assert_eq!((bytes[0], usize::from(bytes[2]), bytes[4]), (0x09, bytes.len(), 2));
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            for offset in 0..word(12) {
                let at = word(8) + offset;
                assert_eq!(owner[at as usize].replace(bytes[3]), None, "overlap at {at:#x}");
                let (_, within) = region_at(at).unwrap();
                assert_eq!(within, offset);
            }
        }
        assert_eq!(region_at(0x3c), None);
        assert_eq!(region_at(BAR_BYTES), None);
    }

    #[test]
    fn the_window_reaches_only_aligned_places_of_our_bar() {
        let mut window = ConfigWindow::new(0);
        assert_eq!(window.read(16), Ok(0));
        window.write(8, 0x14);
        window.write(12, 1);
        assert_eq!(window.read(16), Err(WindowAccess { bar_offset: 0x14, size: 1 }));
        assert_eq!(window.write(16, 7), Some(WindowAccess { bar_offset: 0x14, size: 1 }));
        for (bar, offset, length) in [(1, 0, 4), (0, 2, 4), (0, 256, 4), (0, 0, 3), (0, 0, 0)] {
            window.write(4, bar);
            window.write(8, offset);
            window.write(12, length);
            assert_eq!(window.read(16), Ok(0));
            assert_eq!(window.write(16, 7), None);
        }
    }
}
