//! The block device (VIRTIO 1.2 section 5.2): requests out of the queues, transfers to a disk.
//!
//! A request is copied out of its chain, checked whole, and cut into transfers that the disk can
//! do: whole sectors, no longer and in no more pieces than it takes. The disk is a [`Backend`];
//! whether it moves the data straight to and from the guest's pages or through a buffer of its
//! own it decides by [`Transfer::data`], and says later which transfers have ended.
//!
//! ```text
//!   chain --request--> Request --plan--> Transfer, Transfer, ... --> Backend
//!                         ^                                            |
//!                         +---- all ended: status byte, used ring <----+
//! ```
//!
//! The data is the guest's: nothing here reads it. What is read (header, ranges) is copied first
//! and judged as a copy. A request that asks for what cannot be gets a status; only a ring that
//! cannot be followed is a fault of the queue.
//!
//! While transfers are out, the guest's pages are in the disk's hands. A driver that resets the
//! device in the middle sees the status register hold until they are back (2.4.1), and whoever
//! ends the guest waits for [`BlockFunction::in_flight`] to be 0.

mod device;
mod plan;
mod request;

pub use device::{Block, BlockConfig, BlockCounters, BlockFunction, Served};
pub use plan::TransferLimits;

use crate::chain::Segment;

/// The unit of the header's and the configuration's sectors, whatever the disk's own is (5.2.4).
pub const SECTOR_BYTES: u32 = 512;
/// Bytes of the identifier that GET_ID copies (5.2.6).
pub const ID_BYTES: usize = 20;

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    /// Everything that was completed becomes durable; no sectors, no data.
    Flush,
    /// The sectors' contents are of no use any more; no data.
    Discard,
    /// The sectors read as zeroes afterwards; no data.
    WriteZeroes,
}

/// One transfer for the disk.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    pub operation: Operation,
    /// In sectors of the disk's own size, and within the disk.
    pub first_sector: u64,
    pub sectors: u32,
    /// What is written must be durable when the transfer ends.
    pub durable: bool,
    /// Guest memory, exactly the sectors' bytes; empty where no data is moved.
    pub data: &'a [Segment],
    /// Whether `data` keeps to the [`TransferLimits`]' pieces and alignment. Otherwise it is no
    /// longer than their `bounce_bytes`, and must go through a buffer of the backend's.
    pub direct: bool,
    /// What [`BlockFunction::work`] is told when it has ended. Several may have the same.
    pub token: u32,
}

/// Why a transfer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// No room now. The device offers it again in its next round.
    Busy,
    /// It cannot be done, and trying again would not help.
    Failed,
}

/// The disk.
pub trait Backend {
    /// Takes a transfer. Its end is reported to a later [`BlockFunction::work`], never from here.
    fn submit(&mut self, transfer: &Transfer<'_>) -> Result<(), NotTaken>;
}
