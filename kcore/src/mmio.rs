//! Device registers.
//!
//! A window is mapped uncached and reached one value at a time; offset and alignment are checked
//! at each access, and an access that does not fit is a fault of the driver and panics. The
//! window's owner alone speaks to the device. What a device does when told to is outside what
//! Rust can check: drivers are trusted with their devices, as with the DMA addresses they program.

use core::ptr::{read_volatile, write_volatile};

use arch::addr::{PhysAddr, VirtAddr};

/// Why registers could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// No memory for page tables, or no room in the mapping area.
    OutOfMemory,
    /// The window asked for does not lie within the device's.
    OutOfRange,
}

impl core::fmt::Display for MapError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MapError::OutOfMemory => write!(f, "no memory to map device registers"),
            MapError::OutOfRange => write!(f, "device registers outside the device's window"),
        }
    }
}

/// A mapped window of device registers.
#[derive(Debug)]
pub struct Mmio {
    base: VirtAddr,
    bytes: usize,
}

// SAFETY: the mapping is the same on every CPU and lives for ever.
unsafe impl Send for Mmio {}
// SAFETY: every access is one volatile load or store; what their order means is the device's.
unsafe impl Sync for Mmio {}

macro_rules! accessors {
    ($read:ident, $write:ident, $type:ty) => {
        /// Reads the register at `offset` (bytes).
        pub fn $read(&self, offset: usize) -> $type {
            let address = self.address::<$type>(offset);
            // SAFETY: `address` checked that the register lies in the window, aligned.
            unsafe { read_volatile(address) }
        }

        /// Writes the register at `offset` (bytes).
        pub fn $write(&self, offset: usize, value: $type) {
            let address = self.address::<$type>(offset);
            // SAFETY: as for the read.
            unsafe { write_volatile(address, value) }
        }
    };
}

impl Mmio {
    /// Maps `bytes` of registers at `phys`, uncached, for ever.
    pub fn map(phys: PhysAddr, bytes: usize) -> Result<Mmio, MapError> {
        let base = arch::paging::map_mmio(phys, bytes).map_err(|_| MapError::OutOfMemory)?;
        Ok(Mmio { base, bytes })
    }

    /// A window within this one.
    pub fn window(&self, offset: usize, bytes: usize) -> Result<Mmio, MapError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(Mmio { base: self.base + offset, bytes }),
            _ => Err(MapError::OutOfRange),
        }
    }

    /// The window's length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    fn address<T>(&self, offset: usize) -> *mut T {
        let size = size_of::<T>();
        let address = self.base.as_u64() as usize + offset;
        assert!(
            offset <= self.bytes && size <= self.bytes - offset && address.is_multiple_of(size),
            "register access of {size} bytes at {offset:#x} in a window of {:#x}",
            self.bytes
        );
        address as *mut T
    }

    accessors!(read8, write8, u8);
    accessors!(read16, write16, u16);
    accessors!(read32, write32, u32);
    accessors!(read64, write64, u64);
}
