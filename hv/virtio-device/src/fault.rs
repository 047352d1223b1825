//! What a driver can do to its queue that makes the device stop.
//!
//! Each is a thing VIRTIO 1.2 forbids the driver. None of them can be repaired by guessing, so
//! the device stops at the first, asks for a reset (section 2.1.2) and keeps the fault for the
//! node's log: a guest's fault stops that guest's device alone, and has a name.

use core::fmt;

use crate::ram::{GuestPhysAddr, OutOfRange};

/// The three parts of a split virtqueue (VIRTIO 1.2 section 2.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    DescriptorTable,
    AvailableRing,
    UsedRing,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DescriptorTable => "descriptor table",
            Self::AvailableRing => "available ring",
            Self::UsedRing => "used ring",
        })
    }
}

/// Why a queue can not go on. `head` names the chain by its first descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// Enabled with a size that is no power of two, or above the device's maximum (2.7).
    Size { size: u16, maximum: u16 },
    /// Enabled with a part that is not aligned as 2.7 demands.
    AreaMisaligned { area: Area, address: GuestPhysAddr },
    /// Enabled with a part that is not wholly guest memory.
    AreaOutOfRam { area: Area, address: GuestPhysAddr, bytes: u64 },
    /// The memory under a ring could not be accessed although it was RAM at first.
    RingLost(OutOfRange),
    /// More chains are said to be available than the queue has descriptors (2.7.13.3).
    AvailableIndexJumped { device_at: u16, driver_at: u16, size: u16 },
    /// The available ring names a descriptor outside the table.
    HeadOutOfTable { head: u16, size: u16 },
    /// A descriptor's `next` points outside its table.
    NextOutOfTable { head: u16, next: u16, table_size: u16 },
    /// The chain comes back to a descriptor of its own (2.7.5.2).
    Loop { head: u16 },
    /// The chain has more descriptors than the queue (2.7.5.3.1).
    ChainTooLong { head: u16, limit: u16 },
    /// The chain's buffers add up to more than 2^32 - 1 bytes (2.7.5.2).
    ChainTooLarge { head: u16 },
    /// A buffer of no bytes. The specification gives it no meaning, and an element that advances
    /// nothing is how unbounded work is hidden in a chain.
    ZeroLength { head: u16 },
    /// A device-readable buffer behind a device-writable one (2.7.4.2).
    ReadableAfterWritable { head: u16 },
    /// A buffer that is not wholly guest memory.
    BufferOutOfRam { head: u16, address: GuestPhysAddr, bytes: u32 },
    /// An indirect descriptor although VIRTIO_F_INDIRECT_DESC was not negotiated (2.7.5.3.1).
    IndirectNotNegotiated { head: u16 },
    /// An indirect descriptor inside an indirect table (2.7.5.3.1).
    IndirectNested { head: u16 },
    /// An indirect descriptor that also has a successor (2.7.5.3.1).
    IndirectWithNext { head: u16 },
    /// An indirect table whose length is zero, no multiple of a descriptor's, or past 2^16
    /// descriptors.
    IndirectTableSize { head: u16, bytes: u32 },
    /// An indirect table that is not wholly guest memory.
    IndirectTableOutOfRam { head: u16, address: GuestPhysAddr, bytes: u32 },
}

impl From<OutOfRange> for QueueFault {
    fn from(lost: OutOfRange) -> Self {
        Self::RingLost(lost)
    }
}

impl fmt::Display for QueueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Size { size, maximum } => {
                write!(f, "queue size {size} is not a power of two up to {maximum}")
            }
            Self::AreaMisaligned { area, address } => write!(f, "{area} at {address} is misaligned"),
            Self::AreaOutOfRam { area, address, bytes } => {
                write!(f, "{area} of {bytes} bytes at {address} is not guest memory")
            }
            Self::RingLost(lost) => write!(f, "ring access failed: {lost}"),
            Self::AvailableIndexJumped { device_at, driver_at, size } => {
                write!(f, "available index went from {device_at} to {driver_at} in a queue of {size}")
            }
            Self::HeadOutOfTable { head, size } => {
                write!(f, "available ring names descriptor {head} of {size}")
            }
            Self::NextOutOfTable { head, next, table_size } => {
                write!(f, "chain {head} goes on at descriptor {next} of {table_size}")
            }
            Self::Loop { head } => write!(f, "chain {head} is a loop"),
            Self::ChainTooLong { head, limit } => {
                write!(f, "chain {head} has more than {limit} descriptors")
            }
            Self::ChainTooLarge { head } => write!(f, "chain {head} is of 4 GiB or more"),
            Self::ZeroLength { head } => write!(f, "chain {head} has a buffer of no bytes"),
            Self::ReadableAfterWritable { head } => {
                write!(f, "chain {head} has a readable buffer behind a writable one")
            }
            Self::BufferOutOfRam { head, address, bytes } => {
                write!(f, "chain {head}: {bytes} bytes at {address} are not guest memory")
            }
            Self::IndirectNotNegotiated { head } => {
                write!(f, "chain {head} is indirect, which was not negotiated")
            }
            Self::IndirectNested { head } => write!(f, "chain {head} nests indirect tables"),
            Self::IndirectWithNext { head } => {
                write!(f, "chain {head} has an indirect descriptor with a successor")
            }
            Self::IndirectTableSize { head, bytes } => {
                write!(f, "chain {head} has an indirect table of {bytes} bytes")
            }
            Self::IndirectTableOutOfRam { head, address, bytes } => {
                write!(f, "chain {head}: its indirect table, {bytes} bytes at {address}, is not guest memory")
            }
        }
    }
}

impl core::error::Error for QueueFault {}

/// A [`QueueFault`] and the queue it was found in: what a device in NEEDS_RESET died of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFault {
    pub queue: u16,
    pub fault: QueueFault,
}

impl fmt::Display for DeviceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queue {}: {}", self.queue, self.fault)
    }
}

impl core::error::Error for DeviceFault {}
