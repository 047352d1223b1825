//! From a received datagram to a request that may be carried out, or the reason why not.
//!
//! A server asks in this order: is it netblk, version 2, and a request ([`HeaderView::is_request`])? Does
//! its session exist, does its tag hold (the session's affair)? Is it a request that may be carried out
//! ([`check`])? So a fault in a request is only ever told to who holds the session's key.

use super::codes::{Op, Status};
use super::header::{HeaderView, VERSION};
use super::hello::{ConnectBody, HelloBody};
use super::limits::Limits;
use crate::check::Durability;
use crate::header::{Flags, MAGIC, REPLY_BIT};
use crate::limits::{RangeError, SectorRange};

/// A request that respects the protocol and the device's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The client's; goes into every reply.
    pub cookie: u64,
    /// What to do.
    pub command: Command,
}

/// What a valid request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Tell size, limits and abilities.
    Info,
    /// Read up to [`Limits::max_read_bytes`].
    Read(SectorRange, Durability),
    /// Write up to [`Limits::max_write_bytes`]; this part of it follows the header.
    Write(SectorRange, Durability, PartOfWrite),
    /// Make completed writes durable.
    Flush,
    /// Forget the sectors' content.
    Discard(SectorRange, u64),
    /// Make the sectors read as zeros.
    WriteZeroes(SectorRange, Durability, u64),
    /// End the session.
    Close,
    /// Give a challenge.
    Hello(HelloBody),
    /// Make a session.
    Connect(ConnectBody),
}

/// Which part of which WRITE a datagram brings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartOfWrite {
    /// The WRITE's number; not 0.
    pub sequence: u64,
    /// From 0, less than `parts`.
    pub part: u16,
    /// As many as the WRITE's length takes.
    pub parts: u16,
}

impl Command {
    /// The op that asks for it.
    pub const fn op(&self) -> Op {
        match self {
            Self::Info => Op::Info,
            Self::Read(..) => Op::Read,
            Self::Write(..) => Op::Write,
            Self::Flush => Op::Flush,
            Self::Discard(..) => Op::Discard,
            Self::WriteZeroes(..) => Op::WriteZeroes,
            Self::Close => Op::Close,
            Self::Hello(_) => Op::Hello,
            Self::Connect(_) => Op::Connect,
        }
    }

    /// The number of a request that changes the disk.
    pub const fn sequence(&self) -> Option<u64> {
        match self {
            Self::Write(_, _, part) => Some(part.sequence),
            Self::Discard(_, sequence) | Self::WriteZeroes(_, _, sequence) => Some(*sequence),
            _ => None,
        }
    }
}

/// What is wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// An op this server does not know.
    Op,
    /// A flag bit that is not defined.
    Flags,
    /// No bytes are asked for.
    Empty,
    /// Offset or length is not a whole number of sectors.
    Unaligned,
    /// The length is more than the op may ask.
    TooLong,
    /// A part that cannot be: not of that many, or of a request that has no parts.
    Part,
    /// A change without a number, or a number on what changes nothing.
    Sequence,
    /// A HELLO or CONNECT inside a session.
    Session,
    /// The bytes behind the header are not what op, length and part say.
    Body,
    /// The device cannot do this.
    Unsupported,
    /// A change to a read-only device.
    ReadOnly,
    /// The range ends behind the device (or behind 2^64).
    OutOfRange,
}

impl Fault {
    /// The status that tells the client.
    pub const fn status(self) -> Status {
        match self {
            Self::Unsupported => Status::Unsupported,
            Self::ReadOnly => Status::ReadOnly,
            Self::OutOfRange => Status::OutOfRange,
            Self::Op
            | Self::Flags
            | Self::Empty
            | Self::Unaligned
            | Self::TooLong
            | Self::Part
            | Self::Sequence
            | Self::Session
            | Self::Body => Status::BadRequest,
        }
    }
}

impl From<RangeError> for Fault {
    fn from(error: RangeError) -> Self {
        match error {
            RangeError::Empty => Self::Empty,
            RangeError::Unaligned => Self::Unaligned,
            RangeError::TooLong => Self::TooLong,
            RangeError::OutOfRange => Self::OutOfRange,
        }
    }
}

impl HeaderView<'_> {
    /// Whether it is a netblk request of this version at all. What is not is dropped in silence.
    pub fn is_request(&self) -> bool {
        self.magic() == MAGIC && self.version() == VERSION && self.op() & REPLY_BIT == 0
    }
}

/// Checks a request against the protocol and the device. Whose it is, is known already.
///
/// Shape is judged before ability, ability before permission, and permission before place, so that a
/// client's fault is named the same way on every device.
///
/// # Errors
/// The first [`Fault`].
pub fn check(view: &HeaderView<'_>, limits: &Limits) -> Result<Request, Fault> {
    let op = Op::try_from(view.op()).map_err(|_| Fault::Op)?;
    let flags = Flags::from_bits(view.flags()).ok_or(Fault::Flags)?;
    let durability = if flags.fua() { Durability::ForceUnitAccess } else { Durability::Cached };
    if op.is_numbered() == (view.sequence() == 0) {
        return Err(Fault::Sequence);
    }
    if matches!(op, Op::Hello | Op::Connect) && view.session() != 0 {
        return Err(Fault::Session);
    }
    if op != Op::Write && (view.part(), view.parts()) != (0, 1) {
        return Err(Fault::Part);
    }
    let command = match op {
        Op::Info => Command::Info,
        Op::Flush => Command::Flush,
        Op::Close => Command::Close,
        Op::Hello => Command::Hello(HelloBody::parse(view.body()).map_err(|_| Fault::Body)?),
        Op::Connect => Command::Connect(ConnectBody::parse(view.body()).map_err(|_| Fault::Body)?),
        Op::Read => {
            let range = limits.range(view.offset(), view.length(), limits.max_read_bytes());
            Command::Read(settle(view, range, 0, true, false)?, durability)
        }
        Op::Write => {
            let range = limits.range(view.offset(), view.length(), limits.max_write_bytes());
            let part_bytes = part_bytes(view, limits, range)?;
            let part = PartOfWrite { sequence: view.sequence(), part: view.part(), parts: view.parts() };
            Command::Write(settle(view, range, part_bytes, true, limits.read_only())?, durability, part)
        }
        Op::Discard => {
            let most = limits.max_discard_bytes();
            // What the device cannot do has no limit to be too long for.
            let range = limits.range(view.offset(), view.length(), if most == 0 { u32::MAX } else { most });
            Command::Discard(settle(view, range, 0, most != 0, limits.read_only())?, view.sequence())
        }
        Op::WriteZeroes => {
            let most = limits.max_write_zeroes_bytes();
            let range = limits.range(view.offset(), view.length(), if most == 0 { u32::MAX } else { most });
            let range = settle(view, range, 0, most != 0, limits.read_only())?;
            Command::WriteZeroes(range, durability, view.sequence())
        }
    };
    let has_no_body = matches!(op, Op::Info | Op::Flush | Op::Close);
    if has_no_body && view.body_bytes() != 0 {
        return Err(Fault::Body);
    }
    Ok(Request { cookie: view.cookie(), command })
}

/// The order of the questions about a request with a range.
fn settle(
    view: &HeaderView<'_>,
    range: Result<SectorRange, RangeError>,
    body_bytes: usize,
    supported: bool,
    read_only: bool,
) -> Result<SectorRange, Fault> {
    if let Err(error) = range
        && error != RangeError::OutOfRange
    {
        return Err(error.into());
    }
    if view.body_bytes() != body_bytes {
        return Err(Fault::Body);
    }
    if !supported {
        return Err(Fault::Unsupported);
    }
    if read_only {
        return Err(Fault::ReadOnly);
    }
    Ok(range?)
}

/// How many bytes this part of a WRITE brings: a datagram's worth, the last one what is left.
fn part_bytes(
    view: &HeaderView<'_>,
    limits: &Limits,
    range: Result<SectorRange, RangeError>,
) -> Result<usize, Fault> {
    if let Err(error) = range
        && error != RangeError::OutOfRange
    {
        return Err(error.into());
    }
    let (length, part) = (view.length(), u32::from(view.part()));
    let parts = limits.datagrams(length);
    if u32::from(view.parts()) != parts || part >= parts {
        return Err(Fault::Part);
    }
    Ok((length - part * limits.datagram_bytes()).min(limits.datagram_bytes()) as usize)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
