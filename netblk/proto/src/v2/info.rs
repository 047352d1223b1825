//! The body of a reply to INFO and to CONNECT: version 1's, and what a session adds to it.
//!
//! ```text
//!   0  version 1's INFO        104   datagram_bytes may be less than a sector here
//! 104  capabilities              4   bit 0 DISCARD, 1 WRITE ZEROES, 2 a key is in use, 3 the disk has a
//!                                    volatile cache; the others are zero and to be ignored
//! 108  max_discard_bytes         4   the most a DISCARD may ask; 0 without the capability
//! 112  max_write_zeroes_bytes    4   the most a WRITE ZEROES may ask; 0 without the capability
//! 116  write_window              4   the server's window of sequence numbers
//! 120  epoch                     8   as in HELLO
//! ```

use crate::info::{INFO_BYTES as DEVICE_BYTES, Info as DeviceInfo, InfoError};

/// Bytes of the body.
pub const INFO_BYTES: usize = 128;

/// What the device, or the way it is served, can do beyond reading and writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// DISCARD.
    pub discard: bool,
    /// WRITE ZEROES.
    pub write_zeroes: bool,
    /// The service has a key.
    pub key_in_use: bool,
    /// The disk may answer a WRITE before it is durable; FLUSH or FUA makes it so. Without this bit
    /// nothing may be concluded: a client flushes all the same.
    pub volatile_cache: bool,
}

impl Capabilities {
    fn to_bits(self) -> u32 {
        u32::from(self.discard)
            | u32::from(self.write_zeroes) << 1
            | u32::from(self.key_in_use) << 2
            | u32::from(self.volatile_cache) << 3
    }

    fn from_bits(bits: u32) -> Self {
        Self {
            discard: bits & 1 != 0,
            write_zeroes: bits & 1 << 1 != 0,
            key_in_use: bits & 1 << 2 != 0,
            volatile_cache: bits & 1 << 3 != 0,
        }
    }
}

/// A device as its server describes it to a session. Holding a parsed one proves that its figures agree
/// with each other: `device.datagram_bytes` is a power of two from 512 on and divides, or is divided
/// by, a sector; the limits of what it can do are whole sectors and not zero; the window is not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// What version 1 tells, too.
    pub device: DeviceInfo,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The most a DISCARD may ask; 0 if it cannot.
    pub max_discard_bytes: u32,
    /// The most a WRITE ZEROES may ask; 0 if it cannot.
    pub max_write_zeroes_bytes: u32,
    /// How many sequence numbers the server remembers.
    pub write_window: u32,
    /// Another one than before: the server was restarted, and writes that were not made durable may be
    /// gone.
    pub epoch: u64,
}

impl Info {
    /// The body of the reply.
    pub fn to_bytes(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        bytes[..DEVICE_BYTES].copy_from_slice(&self.device.to_bytes());
        bytes[104..108].copy_from_slice(&self.capabilities.to_bits().to_be_bytes());
        bytes[108..112].copy_from_slice(&self.max_discard_bytes.to_be_bytes());
        bytes[112..116].copy_from_slice(&self.max_write_zeroes_bytes.to_be_bytes());
        bytes[116..120].copy_from_slice(&self.write_window.to_be_bytes());
        bytes[120..128].copy_from_slice(&self.epoch.to_be_bytes());
        bytes
    }

    /// Reads and checks the body of a reply; what a later server appends is ignored.
    ///
    /// # Errors
    /// [`InfoError`] names the first figure that makes no sense.
    pub fn parse(body: &[u8]) -> Result<Self, InfoError> {
        let body: &[u8; INFO_BYTES] = body.first_chunk().ok_or(InfoError::Short)?;
        fn field<const N: usize>(body: &[u8; INFO_BYTES], start: usize) -> [u8; N] {
            core::array::from_fn(|index| body[start + index])
        }
        let u32_at = |start| u32::from_be_bytes(field(body, start));
        let info = Self {
            device: DeviceInfo::read(body)?,
            capabilities: Capabilities::from_bits(u32_at(104)),
            max_discard_bytes: u32_at(108),
            max_write_zeroes_bytes: u32_at(112),
            write_window: u32_at(116),
            epoch: u64::from_be_bytes(field(body, 120)),
        };
        info.device.check_device()?;
        let (sector, datagram) = (info.device.sector_bytes, info.device.datagram_bytes);
        let limit_of = |able: bool, limit: u32| {
            if able { limit != 0 && limit.is_multiple_of(sector) } else { limit == 0 }
        };
        if !datagram.is_power_of_two()
            || datagram < 512
            || info.write_window == 0
            || !limit_of(info.capabilities.discard, info.max_discard_bytes)
            || !limit_of(info.capabilities.write_zeroes, info.max_write_zeroes_bytes)
        {
            return Err(InfoError::Limit);
        }
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::Label;
    use proptest::prelude::*;

    fn example() -> Info {
        Info {
            device: DeviceInfo {
                size_bytes: 1 << 30,
                sector_bytes: 4096,
                max_read_bytes: 16384,
                max_write_bytes: 4096,
                datagram_bytes: 1024,
                slots: 256,
                read_only: false,
                mtu: 1500,
                name: Label::new("nvme0n1"),
                model: Label::new("QEMU NVMe Ctrl"),
            },
            capabilities: Capabilities { discard: true, key_in_use: true, ..Capabilities::default() },
            max_discard_bytes: 8 << 20,
            max_write_zeroes_bytes: 0,
            write_window: 256,
            epoch: 0x0102_0304_0506_0708,
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = example().to_bytes();
        assert_eq!(bytes[..104], example().device.to_bytes());
        assert_eq!(bytes[104..108], [0, 0, 0, 5]);
        assert_eq!(bytes[108..112], (8u32 << 20).to_be_bytes());
        assert_eq!(bytes[112..116], [0; 4]);
        assert_eq!(bytes[116..120], 256u32.to_be_bytes());
        assert_eq!(bytes[120..128], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Info::parse(&bytes), Ok(example()));
        assert_eq!(Info::parse(&[&bytes[..], &[9; 20]].concat()), Ok(example()));
        assert_eq!(Info::parse(&bytes[..127]), Err(InfoError::Short));
    }

    #[test]
    fn nonsense_is_named() {
        let with = |change: fn(&mut Info)| {
            let mut info = example();
            change(&mut info);
            Info::parse(&info.to_bytes())
        };
        assert_eq!(with(|i| i.device.sector_bytes = 768), Err(InfoError::SectorBytes(768)));
        assert_eq!(with(|i| i.device.datagram_bytes = 1000), Err(InfoError::Limit));
        assert_eq!(with(|i| i.device.datagram_bytes = 256), Err(InfoError::Limit));
        assert_eq!(with(|i| i.max_discard_bytes = 0), Err(InfoError::Limit));
        assert_eq!(with(|i| i.max_discard_bytes = 512), Err(InfoError::Limit));
        assert_eq!(with(|i| i.max_write_zeroes_bytes = 4096), Err(InfoError::Limit));
        assert_eq!(with(|i| i.write_window = 0), Err(InfoError::Limit));
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            if let Ok(info) = Info::parse(&bytes) {
                prop_assert_eq!(Info::parse(&info.to_bytes()), Ok(info));
            }
        }
    }
}
