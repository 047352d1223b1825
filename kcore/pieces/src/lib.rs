//! What lies behind a packet's head, and who shares which page: the bookkeeping, without memory.
//!
//! Most packets are one piece, a frame. Two kinds are not: an answer whose data is a page that the
//! disk filled (a sector of 4 KiB fits no frame), and a jumbo packet that a card received into
//! several frames. What such a packet has behind its head is noted here, in a table beside the
//! frames, five cells for each: a packet of one piece never touches it, and no allocation is
//! needed when a piece is attached.
//!
//! A page may be part of several packets at once (one read of 4 KiB leaves in three datagrams at
//! an MTU of 1500), so pages are counted ([`Shares`]); frames have one owner and are not.
//!
//! What is decided here: that a piece lies inside its page or frame, that it is not empty, which
//! holder is the last. `kcore::frame` adds the memory.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod shares;
mod table;

pub use shares::{FreeList, Shares};
pub use table::{Piece, PieceTable};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 2048;
/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// The most pieces of a packet, its head among them: a 9000-byte packet lies in five frames, and a
/// header with two whole pages behind it needs three pieces; one is to spare for a card that does
/// not fill each frame.
pub const MAX_PIECES: usize = 6;
/// The most pieces behind a head.
pub const MAX_EXTRAS: usize = MAX_PIECES - 1;
