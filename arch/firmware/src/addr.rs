//! Physical addresses.
//!
//! A `PhysAddr` proves nothing about what lies there; it only says which address
//! space the number belongs to, so that it cannot be mixed up with a virtual, a
//! guest-physical or a device address.

use core::fmt;
use core::ops::{Add, Sub};

/// Bytes in the smallest page.
pub const PAGE_BYTES: u64 = 4096;

/// An address on the machine's memory bus, as the CPU and (without an IOMMU) its
/// devices see it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PhysAddr(pub u64);

impl PhysAddr {
    /// Names the number as a physical address.
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    /// The number itself.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// `self + bytes`, or `None` past the end of the address space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    /// The next lower multiple of `align` (a power of two).
    pub const fn align_down(self, align: u64) -> Self {
        debug_assert!(align.is_power_of_two());
        Self(self.0 & !(align - 1))
    }

    /// The next higher multiple of `align` (a power of two), or `None` where there is none.
    pub const fn align_up(self, align: u64) -> Option<Self> {
        match self.checked_add(align - 1) {
            Some(sum) => Some(sum.align_down(align)),
            None => None,
        }
    }

    /// Whether the address is a multiple of `align` (a power of two).
    pub const fn is_aligned(self, align: u64) -> bool {
        debug_assert!(align.is_power_of_two());
        self.0 & (align - 1) == 0
    }
}

impl Add<usize> for PhysAddr {
    type Output = Self;
    fn add(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl Sub for PhysAddr {
    type Output = u64;
    fn sub(self, other: Self) -> u64 {
        self.0 - other.0
    }
}

impl fmt::Debug for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "phys {:#x}", self.0)
    }
}

impl fmt::Display for PhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A range of physical memory, end exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhysRange {
    /// First byte.
    pub start: PhysAddr,
    /// Length; may be zero.
    pub bytes: u64,
}

impl PhysRange {
    /// `[start, start + bytes)`, or `None` where that leaves the address space.
    pub const fn new(start: PhysAddr, bytes: u64) -> Option<Self> {
        match start.checked_add(bytes) {
            Some(_) => Some(Self { start, bytes }),
            None => None,
        }
    }

    /// One past the last byte.
    pub const fn end(&self) -> PhysAddr {
        PhysAddr(self.start.0.saturating_add(self.bytes))
    }

    /// The smallest range of whole pages that holds this one.
    pub fn to_pages(self) -> Self {
        let start = self.start.align_down(PAGE_BYTES);
        let end = self.end().align_up(PAGE_BYTES).unwrap_or(PhysAddr(!(PAGE_BYTES - 1)));
        Self { start, bytes: end.0.saturating_sub(start.0) }
    }

    /// Whether `address` lies inside.
    pub const fn contains(&self, address: PhysAddr) -> bool {
        address.0 >= self.start.0 && address.0 - self.start.0 < self.bytes
    }

    /// Whether the two share a byte.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.start.0 < other.end().0 && other.start.0 < self.end().0
    }
}
