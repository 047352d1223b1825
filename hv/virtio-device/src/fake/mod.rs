//! Guest memory for tests: a vector on the host. [`driver`] has a guest to go with it.
//!
//! It is made of atomics rather than of a `RefCell`, so that a test may play the guest on a
//! second thread and race with the device as a real guest's CPU does. It is compiled always,
//! not only under `cfg(test)`, because other rooms' tests stand on it too.

pub mod disk;
pub mod driver;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::ram::{GuestPhysAddr, GuestRam, OutOfRange};

/// RAM from `base` on, zeroed at first. One contiguous run: a hole is past its end.
pub struct VecRam {
    base: u64,
    /// Two bytes each, little-endian, since an ordered access is of two bytes.
    halves: Vec<AtomicU16>,
}

impl VecRam {
    /// RAM of `bytes` bytes (rounded up to a whole two) from guest-physical 0 on.
    pub fn new(bytes: usize) -> Self {
        Self::at(GuestPhysAddr::new(0), bytes)
    }

    /// RAM of `bytes` bytes (rounded up to a whole two) from `base` (even) on.
    pub fn at(base: GuestPhysAddr, bytes: usize) -> Self {
        assert!(base.is_aligned(2), "the fake's base address is even");
        let halves = (0..bytes.div_ceil(2)).map(|_| AtomicU16::new(0)).collect();
        Self { base: base.as_u64(), halves }
    }

    pub fn len_bytes(&self) -> usize {
        self.halves.len() * 2
    }

    /// The offset of a range that lies in the RAM.
    fn offset(&self, address: GuestPhysAddr, bytes: usize) -> Result<usize, OutOfRange> {
        let refused = OutOfRange { address, bytes: bytes as u64 };
        let offset = address.as_u64().checked_sub(self.base).ok_or(refused)?;
        let offset = usize::try_from(offset).map_err(|_| refused)?;
        let end = offset.checked_add(bytes).ok_or(refused)?;
        if end > self.len_bytes() { Err(refused) } else { Ok(offset) }
    }

    fn half(&self, address: GuestPhysAddr) -> Result<&AtomicU16, OutOfRange> {
        let offset = self.offset(address, 2)?;
        if offset % 2 != 0 {
            return Err(OutOfRange { address, bytes: 2 });
        }
        Ok(&self.halves[offset / 2])
    }
}

impl GuestRam for VecRam {
    fn read(&self, address: GuestPhysAddr, into: &mut [u8]) -> Result<(), OutOfRange> {
        if into.is_empty() {
            return Ok(());
        }
        let offset = self.offset(address, into.len())?;
        for (index, byte) in into.iter_mut().enumerate() {
            let at = offset + index;
            *byte = self.halves[at / 2].load(Ordering::Relaxed).to_le_bytes()[at % 2];
        }
        Ok(())
    }

    fn write(&self, address: GuestPhysAddr, from: &[u8]) -> Result<(), OutOfRange> {
        if from.is_empty() {
            return Ok(());
        }
        let offset = self.offset(address, from.len())?;
        let mut done = 0;
        while done < from.len() {
            let at = offset + done;
            let half = &self.halves[at / 2];
            if at % 2 == 0 && from.len() - done >= 2 {
                half.store(u16::from_le_bytes([from[done], from[done + 1]]), Ordering::Relaxed);
                done += 2;
            } else {
                // Half of a pair: its neighbour may be written by another thread meanwhile.
                let merge = |old: u16| {
                    let mut pair = old.to_le_bytes();
                    pair[at % 2] = from[done];
                    Some(u16::from_le_bytes(pair))
                };
                let _ = half.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merge);
                done += 1;
            }
        }
        Ok(())
    }

    fn contains(&self, address: GuestPhysAddr, bytes: u64) -> bool {
        bytes == 0 || usize::try_from(bytes).is_ok_and(|bytes| self.offset(address, bytes).is_ok())
    }

    fn load_acquire_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange> {
        Ok(self.half(address)?.load(Ordering::Acquire))
    }

    fn store_release_u16(&self, address: GuestPhysAddr, value: u16) -> Result<(), OutOfRange> {
        self.half(address)?.store(value, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_at_odd_and_even_addresses() {
        let ram = VecRam::at(GuestPhysAddr::new(0x1000), 64);
        for start in 0x1000..0x1008 {
            let address = GuestPhysAddr::new(start);
            ram.write(address, b"seventeen bytes..").unwrap();
            let mut back = [0; 17];
            ram.read(address, &mut back).unwrap();
            assert_eq!(&back, b"seventeen bytes..");
        }
    }

    #[test]
    fn a_range_that_leaves_the_ram_is_refused_whole() {
        let ram = VecRam::at(GuestPhysAddr::new(0x1000), 16);
        for (address, bytes) in [(0xfff, 2), (0x100f, 2), (0x1010, 1), (u64::MAX, 2), (0, 1)] {
            let address = GuestPhysAddr::new(address);
            assert!(!ram.contains(address, bytes));
            assert!(ram.write(address, &[0xff; 2][..bytes as usize]).is_err());
        }
        assert_eq!(ram.read_u64(GuestPhysAddr::new(0x1008)), Ok(0));
        assert!(ram.contains(GuestPhysAddr::new(0x1000), 16));
        assert!(!ram.contains(GuestPhysAddr::new(0x1000), u64::MAX));
    }

    #[test]
    fn an_ordered_access_is_aligned() {
        let ram = VecRam::new(16);
        assert!(ram.store_release_u16(GuestPhysAddr::new(3), 1).is_err());
        ram.store_release_u16(GuestPhysAddr::new(4), 0x1234).unwrap();
        assert_eq!(ram.read_u8(GuestPhysAddr::new(4)), Ok(0x34));
        assert_eq!(ram.load_acquire_u16(GuestPhysAddr::new(4)), Ok(0x1234));
    }
}
