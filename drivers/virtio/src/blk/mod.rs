//! What is particular to block devices (VIRTIO sec 5.2): what a device says of itself, and from what
//! is asked of a disk to what the device may be given.
//!
//! Sectors on the wire have 512 bytes whatever the device's block size is; a [`Shape`] counts in
//! blocks of its own size, as the rest of the node does, and translates at the last moment.

mod config;
mod request;
#[cfg(test)]
mod tests;

pub use config::{Config, Shape, ShapeError};
pub use request::{Operation, Planned, Range, Refusal, Request};

use crate::Features;

/// The device names the longest piece of memory it takes.
pub const SIZE_MAX: Features = Features(1 << 1);
/// The device names the most pieces that a request's memory may lie in.
pub const SEG_MAX: Features = Features(1 << 2);
/// The device may only be read.
pub const READ_ONLY: Features = Features(1 << 5);
/// The device names its block size.
pub const BLK_SIZE: Features = Features(1 << 6);
/// The device has a cache to be flushed.
pub const FLUSH: Features = Features(1 << 9);
/// The device may have several queues.
pub const MULTI_QUEUE: Features = Features(1 << 12);
pub const DISCARD: Features = Features(1 << 13);
pub const WRITE_ZEROES: Features = Features(1 << 14);

/// Types of requests (VIRTIO sec 5.2.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    In = 0,
    Out = 1,
    Flush = 4,
    Discard = 11,
    WriteZeroes = 13,
}

/// Bytes of the header of a request: type, reserved, sector.
pub const HEADER_BYTES: u32 = 16;
/// Bytes of the range of a discard or a write of zeroes: sector, number of sectors, flags.
pub const RANGE_BYTES: u32 = 16;

/// The status byte behind a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Ok,
    IoError,
    Unsupported,
    /// None that there is, or less data than was asked for.
    Nonsense(u8),
}

impl Status {
    pub const fn new(raw: u8) -> Status {
        match raw {
            0 => Status::Ok,
            1 => Status::IoError,
            2 => Status::Unsupported,
            other => Status::Nonsense(other),
        }
    }

    /// The byte, for those who want a number.
    pub const fn code(self) -> u8 {
        match self {
            Status::Ok => 0,
            Status::IoError => 1,
            Status::Unsupported => 2,
            Status::Nonsense(raw) => raw,
        }
    }
}

impl core::fmt::Display for Status {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Status::Ok => f.write_str("done"),
            Status::IoError => f.write_str("I/O error (status 1)"),
            Status::Unsupported => f.write_str("not supported (status 2)"),
            Status::Nonsense(raw) => write!(f, "an impossible end (status {raw})"),
        }
    }
}
