//! Version 2: the same disk and the same four ops, for networks on which not everybody is a friend.
//!
//! What version 1 cannot promise, and how this one does:
//!
//! - A delayed duplicate of an old WRITE must not overwrite a newer one. So whatever changes the disk
//!   carries a number, and [`Window`] lets each number through once; a duplicate gets the recorded
//!   answer, and a number that is too old is refused.
//! - A server must not be a mirror. So a client proves that it receives at its address ([`HelloBody`],
//!   [`ConnectBody`]) before it is told anything longer than what it sent.
//! - Not everybody may read. So every datagram of a session carries a tag made with a key that both
//!   ends derive ([`SessionKeys`]), from a secret if the service has one.
//! - A sector may be longer than a datagram. So a WRITE may come in parts ([`Assemblies`]).
//!
//! The header has 66 bytes: behind 42 bytes of Ethernet, IPv4 and UDP the data starts at byte 108, a
//! whole number of dwords, as it does in version 1. docs/netblk-protocol.md has it byte by byte.
//!
//! The stages are those of version 1: [`HeaderView`] proves a length, [`check()`] makes a [`Request`]
//! that may be carried out, [`Reply::parse`] is the client's mirror. Between the first two stands the
//! session, which is the server's: it finds the key and asks [`HeaderView::is_tagged_with`].

mod assembly;
mod check;
mod codes;
mod header;
mod hello;
mod info;
mod keys;
mod limits;
mod reply;
mod window;

pub use assembly::{Added, Assemblies, HALF_ASSEMBLED, Parts, WriteShape};
pub use check::{Command, Fault, PartOfWrite, Request, check};
pub use codes::{Op, Status};
pub use header::{HEADER_BYTES, HeaderView, RequestHeader, VERSION};
pub use hello::{
    BodyError, CHALLENGE_BYTES, ConnectBody, HELLO_BODY_BYTES, HELLO_REPLY_BYTES, HelloBody, HelloReply,
    NONCE_BYTES,
};
pub use info::{Capabilities, INFO_BYTES, Info};
pub use keys::{KeyError, PreSharedKey, SessionKeys, TAG_BYTES, Tag, TagKey};
pub use limits::{Device, Limits, LimitsError, MAX_RANGE_BYTES, MAX_SECTOR_BYTES, MAX_WRITE_PARTS};
pub use reply::{Answer, Reply, ReplyError, ReplyHeader};
pub use window::{Arrival, WINDOW, Window};

/// Bytes of IPv4 (without options), UDP and netblk headers in front of a datagram's data.
pub const DATAGRAM_OVERHEAD_BYTES: usize = 20 + 8 + HEADER_BYTES;
