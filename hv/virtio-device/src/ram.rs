//! Guest memory, as devices may touch it.
//!
//! A guest's other CPUs write its memory while a device reads it, so a Rust reference into it
//! would be a lie, and a value read twice may be two values. The trait therefore only copies:
//! read once, check the copy, use the copy. Ring indices, through which driver and device hand
//! work to each other, have accesses of their own with the ordering the hand-over needs.

use core::fmt;
use core::sync::atomic::{Ordering, fence};

/// An address as the guest's physical address bus carries it.
///
/// Holding one proves nothing: it may come from a descriptor and point anywhere. Only a
/// [`GuestRam`] turns it into bytes, and it checks each time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GuestPhysAddr(u64);

impl GuestPhysAddr {
    pub const fn new(address: u64) -> Self {
        Self(address)
    }

    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// The address `bytes` further on, or `None` past the end of the 64-bit space.
    pub const fn checked_add(self, bytes: u64) -> Option<Self> {
        match self.0.checked_add(bytes) {
            Some(address) => Some(Self(address)),
            None => None,
        }
    }

    /// Whether the address is a multiple of `alignment_bytes` (a power of two).
    pub const fn is_aligned(self, alignment_bytes: u64) -> bool {
        self.0 & (alignment_bytes - 1) == 0
    }
}

impl From<u64> for GuestPhysAddr {
    fn from(address: u64) -> Self {
        Self(address)
    }
}

impl fmt::Debug for GuestPhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpa:{:#x}", self.0)
    }
}

impl fmt::Display for GuestPhysAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An access that guest RAM does not cover from its first to its last byte, or an ordered access
/// that is not aligned to its size. Nothing was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    pub address: GuestPhysAddr,
    pub bytes: u64,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {} are not guest memory", self.bytes, self.address)
    }
}

impl core::error::Error for OutOfRange {}

/// The memory of one guest. Values are little-endian, as VIRTIO 1.2 section 1.4 has them.
///
/// Methods take `&self`: the guest itself writes concurrently, so exclusive access would claim
/// more than is true. An implementation must
/// - refuse an access unless every byte of it is RAM (no wrap-around, no partial effect);
/// - make plain accesses tear at worst, never be undefined, when the guest races with them;
/// - make the `_acquire` and `_release` accesses single and aligned, with that ordering towards
///   the guest's CPUs, and refuse them when misaligned.
///
/// The trait is object-safe, so that a device model need not be generic over it.
pub trait GuestRam {
    /// Copies guest memory into `into`. An empty slice succeeds at every address.
    fn read(&self, address: GuestPhysAddr, into: &mut [u8]) -> Result<(), OutOfRange>;

    /// Copies `from` into guest memory. An empty slice succeeds at every address.
    fn write(&self, address: GuestPhysAddr, from: &[u8]) -> Result<(), OutOfRange>;

    /// Whether `bytes` bytes from `address` on are all RAM; true for none.
    fn contains(&self, address: GuestPhysAddr, bytes: u64) -> bool;

    /// What the guest stored before it released this value is visible after this load.
    fn load_acquire_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange>;

    /// What the device wrote before is visible to a guest CPU that sees this value.
    fn store_release_u16(&self, address: GuestPhysAddr, value: u16) -> Result<(), OutOfRange>;

    /// A sequentially consistent fence: no load after it passes a store before it. It stands
    /// between publishing an index and reading the other side's wish not to be told of it.
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read_u8(&self, address: GuestPhysAddr) -> Result<u8, OutOfRange> {
        let mut bytes = [0; 1];
        self.read(address, &mut bytes)?;
        Ok(bytes[0])
    }

    fn read_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange> {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    fn read_u32(&self, address: GuestPhysAddr) -> Result<u32, OutOfRange> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn read_u64(&self, address: GuestPhysAddr) -> Result<u64, OutOfRange> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write_u8(&self, address: GuestPhysAddr, value: u8) -> Result<(), OutOfRange> {
        self.write(address, &[value])
    }

    fn write_u16(&self, address: GuestPhysAddr, value: u16) -> Result<(), OutOfRange> {
        self.write(address, &value.to_le_bytes())
    }

    fn write_u32(&self, address: GuestPhysAddr, value: u32) -> Result<(), OutOfRange> {
        self.write(address, &value.to_le_bytes())
    }

    fn write_u64(&self, address: GuestPhysAddr, value: u64) -> Result<(), OutOfRange> {
        self.write(address, &value.to_le_bytes())
    }
}
