//! The ops and the statuses of version 2. Those of version 1 keep their codes.

use crate::header::{UnknownOp, UnknownStatus};
use core::fmt;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The device's size, its limits and what it can do.
    Info = 1,
    /// Sectors, answered datagram by datagram.
    Read = 2,
    /// Sectors, brought in one datagram or in several parts.
    Write = 3,
    /// Makes all completed writes durable.
    Flush = 4,
    /// Sectors whose content nobody needs any more.
    Discard = 5,
    /// Sectors that shall read as zeros.
    WriteZeroes = 6,
    /// The session's end.
    Close = 7,
    /// May I speak to you? Asks for a challenge.
    Hello = 16,
    /// Here is your challenge: make me a session.
    Connect = 17,
}

impl Op {
    /// Every op, in the order of its code.
    pub const ALL: [Self; 9] = [
        Self::Info,
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Discard,
        Self::WriteZeroes,
        Self::Close,
        Self::Hello,
        Self::Connect,
    ];

    /// The code of a request.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether it changes the disk: such a request carries a sequence number.
    pub const fn is_numbered(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::WriteZeroes)
    }
}

impl TryFrom<u8> for Op {
    type Error = UnknownOp;

    fn try_from(code: u8) -> Result<Self, UnknownOp> {
        Self::ALL.into_iter().find(|op| op.code() == code).ok_or(UnknownOp(code))
    }
}

impl From<crate::Op> for Op {
    fn from(op: crate::Op) -> Self {
        match op {
            crate::Op::Info => Self::Info,
            crate::Op::Read => Self::Read,
            crate::Op::Write => Self::Write,
            crate::Op::Flush => Self::Flush,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Info => "INFO",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Flush => "FLUSH",
            Self::Discard => "DISCARD",
            Self::WriteZeroes => "WRITE ZEROES",
            Self::Close => "CLOSE",
            Self::Hello => "HELLO",
            Self::Connect => "CONNECT",
        })
    }
}

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// The request breaks the protocol or the device's limits; asking again will not help.
    BadRequest = 1,
    /// The range ends behind the device's last sector.
    OutOfRange = 2,
    /// The disk failed the command, or is gone.
    IoError = 3,
    /// No room for it now; ask again a little later, with the same number.
    Busy = 4,
    /// A change to a device that is served read-only.
    ReadOnly = 5,
    /// The server does not know this session, or this challenge: say hello again.
    StaleSession = 6,
    /// The sequence number lies below the window: not carried out now, perhaps it was long ago.
    TooOld = 7,
    /// No session for this client. Why is not said.
    Refused = 8,
    /// The device cannot do this.
    Unsupported = 9,
}

impl Status {
    /// Every status, in the order of its code.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::BadRequest,
        Self::OutOfRange,
        Self::IoError,
        Self::Busy,
        Self::ReadOnly,
        Self::StaleSession,
        Self::TooOld,
        Self::Refused,
        Self::Unsupported,
    ];

    /// The code on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Whether a reply with this status may come without a tag: from a server that has no key for it.
    pub const fn may_be_untagged(self) -> bool {
        matches!(self, Self::StaleSession | Self::Refused)
    }
}

impl TryFrom<u16> for Status {
    type Error = UnknownStatus;

    fn try_from(code: u16) -> Result<Self, UnknownStatus> {
        Self::ALL.get(usize::from(code)).copied().ok_or(UnknownStatus(code))
    }
}

impl From<crate::Status> for Status {
    fn from(status: crate::Status) -> Self {
        match status {
            crate::Status::Ok => Self::Ok,
            crate::Status::BadRequest => Self::BadRequest,
            crate::Status::OutOfRange => Self::OutOfRange,
            crate::Status::IoError => Self::IoError,
            crate::Status::Busy => Self::Busy,
            crate::Status::ReadOnly => Self::ReadOnly,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::BadRequest => "bad request",
            Self::OutOfRange => "out of range",
            Self::IoError => "I/O error",
            Self::Busy => "busy",
            Self::ReadOnly => "read-only",
            Self::StaleSession => "stale session",
            Self::TooOld => "too old",
            Self::Refused => "refused",
            Self::Unsupported => "unsupported",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_go_both_ways() {
        for code in 0..=u8::MAX {
            let known = (1..=7).contains(&code) || code == 16 || code == 17;
            assert_eq!(Op::try_from(code).map(Op::code), if known { Ok(code) } else { Err(UnknownOp(code)) });
        }
        for code in 0..=u16::MAX {
            let expected = if code <= 9 { Ok(code) } else { Err(UnknownStatus(code)) };
            assert_eq!(Status::try_from(code).map(Status::code), expected);
        }
    }

    #[test]
    fn what_version_1_has_keeps_its_code_and_its_name() {
        for op in crate::Op::ALL {
            assert_eq!((Op::from(op).code(), Op::from(op).to_string()), (op.code(), op.to_string()));
        }
        for status in crate::Status::ALL {
            let newer = Status::from(status);
            assert_eq!((newer.code(), newer.to_string()), (status.code(), status.to_string()));
        }
    }
}
