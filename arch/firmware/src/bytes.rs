//! Reading little-endian fields out of bytes that nobody vouches for.
//!
//! Two things are needed by every parser here: to look at a stretch of physical
//! memory that may not be there ([`PhysicalMemory`]), and to take a field out of a
//! slice that may be too short ([`u8_at`] and its kin). Both answer `None`; no
//! function in this crate indexes a slice that came from firmware.

use crate::PhysAddr;

/// A read-only view of physical memory.
///
/// The kernel implements it over its early direct map, the tests over a `Vec`.
pub trait PhysicalMemory {
    /// The `bytes` bytes at `start`, or `None` where they cannot be read.
    fn slice(&self, start: PhysAddr, bytes: usize) -> Option<&[u8]>;
}

/// The `N` bytes at `offset`.
pub fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk::<N>().copied()
}

/// The byte at `offset`.
pub fn u8_at(bytes: &[u8], offset: usize) -> Option<u8> {
    bytes.get(offset).copied()
}

/// The little-endian 16-bit field at `offset`, aligned or not.
pub fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

/// The little-endian 32-bit field at `offset`, aligned or not.
pub fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

/// The little-endian 64-bit field at `offset`, aligned or not.
pub fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

/// Whether the bytes sum to zero modulo 256, the checksum of every ACPI table.
pub fn sums_to_zero(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// The bytes before the first NUL of a C string at `start`, at most `limit` of them.
///
/// A string without a NUL within the limit is cut there: a boot loader's over-long
/// command line should cost its tail, not the boot.
pub fn c_string(memory: &dyn PhysicalMemory, start: PhysAddr, limit: usize) -> Option<&[u8]> {
    // The string may end just before memory does, so the limit shrinks until it fits.
    let mut length = limit;
    let bytes = loop {
        match memory.slice(start, length) {
            Some(bytes) => break bytes,
            None if length == 0 => return None,
            None => length /= 2,
        }
    };
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.get(..end)
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    /// Physical memory made of one `Vec` that starts at `base`.
    pub struct FakeMemory {
        pub base: u64,
        pub bytes: Vec<u8>,
    }

    impl FakeMemory {
        pub fn new(base: u64, length: usize) -> Self {
            Self { base, bytes: vec![0; length] }
        }

        pub fn put(&mut self, address: u64, bytes: &[u8]) {
            let offset = (address - self.base) as usize;
            self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
    }

    impl PhysicalMemory for FakeMemory {
        fn slice(&self, start: PhysAddr, bytes: usize) -> Option<&[u8]> {
            let offset = usize::try_from(start.as_u64().checked_sub(self.base)?).ok()?;
            self.bytes.get(offset..offset.checked_add(bytes)?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fake::FakeMemory;
    use super::*;

    #[test]
    fn fields_past_the_end_are_none() {
        let bytes = [1, 2, 3, 4];
        assert_eq!(u16_at(&bytes, 2), Some(0x0403));
        assert_eq!(u16_at(&bytes, 3), None);
        assert_eq!(u32_at(&bytes, usize::MAX), None);
        assert_eq!(u64_at(&bytes, 0), None);
    }

    #[test]
    fn c_strings_end_at_the_nul_the_limit_or_the_end_of_memory() {
        let mut memory = FakeMemory::new(0x1000, 16);
        memory.put(0x1000, b"hello\0world");
        assert_eq!(c_string(&memory, PhysAddr(0x1000), 16), Some(&b"hello"[..]));
        assert_eq!(c_string(&memory, PhysAddr(0x1000), 3), Some(&b"hel"[..]));
        memory.put(0x100c, b"tail");
        assert_eq!(c_string(&memory, PhysAddr(0x100c), 1024), Some(&b"tail"[..]));
        assert_eq!(c_string(&memory, PhysAddr(0x9000), 16), None);
    }
}
