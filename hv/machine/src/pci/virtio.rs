//! The PCI side of a virtio function (VIRTIO 1.2 sec. 4.1): identity, two I/O BARs, and the
//! capabilities that say which structure lies where in them.
//!
//! BAR 0 holds the common configuration, the ISR byte and the device configuration; BAR 1 the
//! notify addresses. Each has 256 bytes, the most that PCI lets a device ask of I/O space.

use alloc::boxed::Box;
use virtio_device::registers::{NOTIFY_MULTIPLIER_BYTES, Region};

use super::{ConfigSpace, Endpoint, FIRST_BAR_PORT, Identity, isa_line};

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BAR0: usize = 0x10;
const COMMAND_IO: u16 = 1 << 0;
const COMMAND_INTERRUPT_DISABLE: u16 = 1 << 10;
const STATUS_INTERRUPT: u32 = 1 << 3;
const BAR_IS_IO: u32 = 1;
const BAR_BYTES: u16 = 0x100;

const COMMON_OFFSET: u32 = 0x00;
const COMMON_BYTES: u32 = 0x40;
const ISR_OFFSET: u32 = 0x40;
const ISR_BYTES: u32 = 0x04;
const DEVICE_OFFSET: u32 = 0x80;
const DEVICE_BYTES: u32 = 0x80;

const FIRST_CAPABILITY: usize = 0x40;
const CAPABILITY_VENDOR: u8 = 0x09;
/// cfg_type values of struct virtio_pci_cap.
const CAPABILITY_COMMON: u8 = 1;
const CAPABILITY_NOTIFY: u8 = 2;
const CAPABILITY_ISR: u8 = 3;
const CAPABILITY_DEVICE: u8 = 4;
const CAPABILITY_PCI_CONFIG: u8 = 5;

/// One function: configuration space in front of an endpoint.
pub struct VirtioFunction {
    config: ConfigSpace,
    endpoint: Box<dyn Endpoint>,
    /// Where the VIRTIO_PCI_CAP_PCI_CFG capability is (sec. 4.1.4.9).
    access_capability: usize,
}

/// Class code (base, sub) of a virtio type, as PCI Code and ID Assignment 1.11 names them.
fn class_of(virtio_type: u16) -> [u8; 2] {
    match virtio_type {
        1 => [0x00, 0x02],
        2 => [0x80, 0x01],
        3 => [0x80, 0x07],
        _ => [0x00, 0xff],
    }
}

impl VirtioFunction {
    pub(super) fn new(slot: usize, identity: Identity, endpoint: Box<dyn Endpoint>) -> Self {
        let mut config = ConfigSpace::new();
        config.set(0x00, &0x1af4u16.to_le_bytes());
        config.set(0x02, &(0x1040 + identity.virtio_type).to_le_bytes());
        config.allow(COMMAND, &(COMMAND_IO | 1 << 2 | COMMAND_INTERRUPT_DISABLE).to_le_bytes());
        config.set(COMMAND, &COMMAND_IO.to_le_bytes());
        // There is a capability list.
        config.set(STATUS, &[0x10, 0x00]);
        // Revision 1 or above: a device without the legacy interface (sec. 4.1.2.1).
        config.set(0x08, &[0x01]);
        config.set(0x0a, &class_of(identity.virtio_type));
        config.set(0x2c, &0x1af4u16.to_le_bytes());
        config.set(0x2e, &(0x0040 + identity.virtio_type).to_le_bytes());
        for bar in 0..2u16 {
            let port = FIRST_BAR_PORT + slot as u16 * 2 * BAR_BYTES + bar * BAR_BYTES;
            config.set(BAR0 + 4 * usize::from(bar), &(u32::from(port) | BAR_IS_IO).to_le_bytes());
            config.allow(BAR0 + 4 * usize::from(bar), &(u32::from(!(BAR_BYTES - 1))).to_le_bytes());
        }
        config.set(0x34, &[FIRST_CAPABILITY as u8]);
        config.set(0x3c, &[isa_line(slot), 1]);
        config.allow(0x3c, &[0xff]);

        let notify_bytes = u32::from(identity.queues) * NOTIFY_MULTIPLIER_BYTES;
        let device_bytes = identity.config_bytes.min(DEVICE_BYTES);
        let mut at = FIRST_CAPABILITY;
        for (kind, bar, offset, bytes) in [
            (CAPABILITY_COMMON, 0, COMMON_OFFSET, virtio_device::registers::COMMON_BYTES),
            (CAPABILITY_ISR, 0, ISR_OFFSET, 1),
            (CAPABILITY_DEVICE, 0, DEVICE_OFFSET, device_bytes),
            (CAPABILITY_NOTIFY, 1, 0, notify_bytes.min(u32::from(BAR_BYTES))),
            (CAPABILITY_PCI_CONFIG, 0, 0, 0),
        ] {
            // A device without configuration has no structure for it (sec. 4.1.4.6), and Linux takes none
            // of no bytes.
            if kind == CAPABILITY_DEVICE && bytes == 0 {
                continue;
            }
            let length: u8 = if matches!(kind, CAPABILITY_NOTIFY | CAPABILITY_PCI_CONFIG) { 20 } else { 16 };
            let next = if kind == CAPABILITY_PCI_CONFIG { 0 } else { at + usize::from(length) };
            config.set(at, &[CAPABILITY_VENDOR, next as u8, length, kind, bar, 0, 0, 0]);
            config.set(at + 8, &offset.to_le_bytes());
            config.set(at + 12, &bytes.to_le_bytes());
            if kind == CAPABILITY_NOTIFY {
                config.set(at + 16, &NOTIFY_MULTIPLIER_BYTES.to_le_bytes());
            }
            at += usize::from(length);
        }
        let access_capability = at - 20;
        config.allow(access_capability + 4, &[0xff]);
        config.allow(access_capability + 8, &[0xff; 8]);
        Self { config, endpoint, access_capability }
    }

    pub(super) fn interrupt_line(&self) -> bool {
        self.config.read_u16(COMMAND) & COMMAND_INTERRUPT_DISABLE == 0 && self.endpoint.interrupt_line()
    }

    pub(super) fn read_config(&mut self, register: usize, bytes: usize) -> u32 {
        if self.is_access_data(register) {
            return self.windowed().map_or(0, |(bar, offset, length)| {
                self.read_bar(bar, offset, length.min(bytes)).unwrap_or(0)
            });
        }
        let mut value = self.config.read(register, bytes);
        if self.endpoint.interrupt_line() {
            // The status bit shows the request even while the command register blocks it.
            let bit = (STATUS_INTERRUPT as u64) << (8 * STATUS) >> (8 * register.min(STATUS));
            let in_range = (register..register + bytes).contains(&STATUS);
            value |= if in_range { (bit & 0xffff_ffff) as u32 } else { 0 };
        }
        value
    }

    pub(super) fn write_config(&mut self, register: usize, bytes: usize, value: u32) {
        if self.is_access_data(register) {
            if let Some((bar, offset, length)) = self.windowed() {
                self.write_bar(bar, offset, length.min(bytes), value);
            }
            return;
        }
        self.config.write(register, bytes, value);
    }

    fn is_access_data(&self, register: usize) -> bool {
        (self.access_capability + 16..self.access_capability + 20).contains(&register)
    }

    /// What the driver asked to reach through configuration space: BAR, offset, length.
    fn windowed(&self) -> Option<(usize, u16, usize)> {
        let field = |offset: usize, bytes| self.config.read(self.access_capability + offset, bytes);
        let bar = field(4, 1) as usize;
        let offset = u16::try_from(field(8, 4)).ok()?;
        let length = field(12, 4) as usize;
        (bar < 2 && offset < BAR_BYTES && matches!(length, 1 | 2 | 4)).then_some((bar, offset, length))
    }

    /// The BAR and offset that decode `port`.
    fn decode(&self, port: u16) -> Option<(usize, u16)> {
        if self.config.read_u16(COMMAND) & COMMAND_IO == 0 {
            return None;
        }
        (0..2).find_map(|bar| {
            let base = self.config.read_u16(BAR0 + 4 * bar) & !(BAR_BYTES - 1);
            let unassigned = base == 0;
            (port & !(BAR_BYTES - 1) == base && !unassigned).then_some((bar, port & (BAR_BYTES - 1)))
        })
    }

    pub(super) fn read_io(&mut self, port: u16, bytes: usize) -> Option<u32> {
        let (bar, offset) = self.decode(port)?;
        Some(self.read_bar(bar, offset, bytes).unwrap_or(u32::MAX))
    }

    pub(super) fn write_io(&mut self, port: u16, bytes: usize, value: u32) -> bool {
        let Some((bar, offset)) = self.decode(port) else { return false };
        self.write_bar(bar, offset, bytes, value);
        true
    }

    /// The structure at an offset of a BAR, and the offset in it.
    fn region(bar: usize, offset: u16) -> Option<(Region, u32)> {
        let offset = u32::from(offset);
        match (bar, offset) {
            (1, _) => Some((Region::Notify, offset)),
            (_, COMMON_OFFSET..COMMON_BYTES) => Some((Region::Common, offset)),
            (_, DEVICE_OFFSET..) => Some((Region::Device, offset - DEVICE_OFFSET)),
            _ if (ISR_OFFSET..ISR_OFFSET + ISR_BYTES).contains(&offset) => {
                Some((Region::Isr, offset - ISR_OFFSET))
            }
            _ => None,
        }
    }

    fn read_bar(&mut self, bar: usize, offset: u16, bytes: usize) -> Option<u32> {
        let (region, offset) = Self::region(bar, offset)?;
        Some((self.endpoint.read(region, offset, bytes as u8) & 0xffff_ffff) as u32)
    }

    fn write_bar(&mut self, bar: usize, offset: u16, bytes: usize, value: u32) {
        if let Some((region, offset)) = Self::region(bar, offset) {
            self.endpoint.write(region, offset, bytes as u8, u64::from(value));
        }
    }
}
