//! netblk's wire protocol: one disk served over UDP, shared by the node and its clients.
//!
//! This page is version 1; [`v2`] is version 2, which has sessions. A server speaks both on one port: the
//! byte behind the magic tells them apart.
//!
//! Every datagram, request or reply, starts with the same 30 bytes (all fields big-endian;
//! docs/netblk-protocol.md has the whole protocol, byte by byte):
//!
//! ```text
//!   0  magic  4 | 4 version 1 | 5 op 1 | 6 flags 2 | 8 cookie 8 | 16 offset 8 | 24 length 4 | 28 status 2
//! ```
//!
//! Thirty is no accident: behind 14 bytes of Ethernet, 20 of IPv4 and 8 of UDP the data starts at
//! byte 72 of the frame, a multiple of four, where an NVMe disk may read and write directly.
//!
//! # Two stages
//! [`HeaderView`] is the checked view: holding one proves that thirty bytes are there, and nothing
//! else. [`check`] turns it into a [`Request`], which cannot hold an illegal value: its
//! [`SectorRange`] lies on the device, is not empty, and is no longer than its op may ask. The
//! client's mirror of this is [`Reply::parse`] and [`Info::parse`].
//!
//! # Who is answered
//! A datagram without the magic is not ours: it is dropped. One that carries the reply bit is
//! dropped too; otherwise two servers could be made to answer each other for ever by one forged
//! datagram, and a server that answered noise could be pointed at any chatty UDP service in the
//! same way. Everything else is answered, with the reason as its [`Status`].

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod check;
mod header;
mod info;
mod limits;
mod reply;
pub mod v2;

pub use check::{Command, Durability, Fault, Refused, Request, check, check_first_piece, refuse_version};
pub use header::{
    Flags, HEADER_BYTES, HeaderView, MAGIC, Op, REPLY_BIT, RequestHeader, Status, TooShort, UnknownOp,
    UnknownStatus, VERSION,
};
pub use info::{INFO_BYTES, Info, InfoError, Label, MODEL_BYTES, NAME_BYTES};
pub use limits::{
    Limits, LimitsError, MAX_DATAGRAM_BYTES, MIN_SECTOR_BYTES, Piece, Pieces, RangeError, SectorRange,
};
pub use reply::{Reply, ReplyError, ReplyHeader};

/// Bytes of IPv4 (without options), UDP and netblk headers in front of a datagram's data.
pub const DATAGRAM_OVERHEAD_BYTES: usize = 20 + 8 + HEADER_BYTES;

/// A READ may ask for as much as this many datagrams carry.
pub const MAX_READ_DATAGRAMS: u32 = 16;
