//! Addresses, and where physical memory is found in the kernel's address space.
//!
//! ```text
//! ffff_8000_0000_0000  direct map of RAM (and nothing else), 64 TiB
//! ffff_c000_0000_0000  vmap area: device windows, kernel stacks with guard pages
//! ffff_ffff_8000_0000  the kernel image, linked at this plus its physical address
//! ```
//!
//! The lower half is never mapped once [`paging::init`](super::paging::init) has run: a
//! null pointer faults.

pub use firmware::addr::{PAGE_BYTES, PhysAddr, PhysRange};

use core::fmt;
use core::ops::Add;

/// First address of the direct map.
pub const DIRECT_MAP_BASE: u64 = 0xffff_8000_0000_0000;
/// Physical addresses that the direct map has room for.
pub const DIRECT_MAP_BYTES: u64 = 1 << 46;
/// First address of the vmap area.
pub const VMAP_BASE: u64 = 0xffff_c000_0000_0000;
/// What the linker adds to the image's physical addresses.
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;

/// An address in the kernel's own address space. It proves nothing about a mapping.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// Names the number as a virtual address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// Where `pointer` points.
    pub fn of<T>(pointer: *const T) -> Self {
        Self(pointer.expose_provenance() as u64)
    }

    /// The number itself.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The number itself, as wide as a pointer.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }

    /// The address as a pointer.
    pub const fn as_ptr<T>(self) -> *const T {
        core::ptr::with_exposed_provenance(self.0 as usize)
    }

    /// The address as a pointer.
    pub const fn as_mut_ptr<T>(self) -> *mut T {
        core::ptr::with_exposed_provenance_mut(self.0 as usize)
    }

    /// Whether the address is a multiple of `align` (a power of two).
    pub const fn is_aligned(self, align: u64) -> bool {
        self.0 & (align - 1) == 0
    }
}

impl Add<usize> for VirtAddr {
    type Output = Self;
    fn add(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virt {:#x}", self.0)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Where the direct map shows `address`.
///
/// The pointer is good for access only where the memory map has RAM
/// ([`MemoryKind::is_ram`](super::boot::MemoryKind::is_ram)); code and constants of the
/// kernel image and the boot archive are read-only there.
pub fn phys_to_virt(address: PhysAddr) -> *mut u8 {
    debug_assert!(address.0 < DIRECT_MAP_BYTES);
    core::ptr::with_exposed_provenance_mut((DIRECT_MAP_BASE + address.0) as usize)
}

/// The physical address behind a pointer into the direct map or the kernel image;
/// `None` for any other pointer.
pub fn virt_to_phys(pointer: *const u8) -> Option<PhysAddr> {
    let address = pointer.expose_provenance() as u64;
    if address >= KERNEL_BASE {
        // Behind the image lie modules, whose frames are anywhere.
        let in_image = (address as usize) < super::boot::data_range().end;
        return in_image.then_some(PhysAddr(address - KERNEL_BASE));
    }
    address.checked_sub(DIRECT_MAP_BASE).filter(|offset| *offset < DIRECT_MAP_BYTES).map(PhysAddr)
}
