//! One request under way: what it asks, what of it is missing, what an answer means to it.

use std::sync::Arc;

use netblk_proto::v2::{Op, Status};

use super::wire::{Answer, Asking};

/// Pieces a READ may have: one bit each.
pub const MAX_PIECES: u32 = u64::BITS;

/// One request, within the limits that the server's INFO gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Ask for the device's description.
    Info,
    /// Read a range of at most [`MAX_PIECES`] datagrams.
    Read {
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Write data: one datagram's worth in version 1, several in version 2.
    Write {
        /// Bytes from the start of the device.
        offset: u64,
        /// The data; shared with the log that may have to write it again.
        data: Arc<Vec<u8>>,
        /// Write through the disk's cache.
        fua: bool,
    },
    /// The range's content is not needed any more. Version 2 only.
    Discard {
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// The range is to read as zeros. Version 2 only.
    WriteZeroes {
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes.
        length: u32,
        /// Write through the disk's cache.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
}

impl Request {
    /// A write of `data` that may stay in the disk's cache.
    pub fn write(offset: u64, data: Vec<u8>) -> Self {
        Self::Write { offset, data: Arc::new(data), fua: false }
    }

    /// The op that asks for it.
    pub const fn op(&self) -> Op {
        match self {
            Self::Info => Op::Info,
            Self::Read { .. } => Op::Read,
            Self::Write { .. } => Op::Write,
            Self::Discard { .. } => Op::Discard,
            Self::WriteZeroes { .. } => Op::WriteZeroes,
            Self::Flush => Op::Flush,
        }
    }

    /// Bytes from the start of the device (0 for INFO and FLUSH).
    pub const fn offset(&self) -> u64 {
        match self {
            Self::Read { offset, .. }
            | Self::Write { offset, .. }
            | Self::Discard { offset, .. }
            | Self::WriteZeroes { offset, .. } => *offset,
            Self::Info | Self::Flush => 0,
        }
    }

    /// Bytes concerned (0 for INFO and FLUSH).
    pub fn length(&self) -> u32 {
        match self {
            Self::Read { length, .. } | Self::Discard { length, .. } | Self::WriteZeroes { length, .. } => {
                *length
            }
            Self::Write { data, .. } => u32::try_from(data.len()).unwrap_or(u32::MAX),
            Self::Info | Self::Flush => 0,
        }
    }

    /// Where the range ends; one that would end behind 2^64 ends there.
    pub fn end(&self) -> u64 {
        self.offset().saturating_add(u64::from(self.length()))
    }

    /// Whether both concern a common byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.offset() < other.end() && other.offset() < self.end()
    }

    /// Whether it changes the disk.
    pub const fn is_change(&self) -> bool {
        self.op().is_numbered()
    }

    /// The data of a WRITE; nothing for all others.
    pub fn data(&self) -> &[u8] {
        match self {
            Self::Write { data, .. } => data,
            _ => &[],
        }
    }

    /// Whether it has the flag FUA.
    pub const fn is_forced(&self) -> bool {
        matches!(self, Self::Write { fua: true, .. } | Self::WriteZeroes { fua: true, .. })
    }

    /// Datagrams that it takes, or that answer it, at `datagram_bytes` each.
    pub fn datagrams(&self, datagram_bytes: u32) -> u32 {
        match self {
            Self::Read { .. } | Self::Write { .. } => {
                self.length().div_ceil(datagram_bytes.max(1)).clamp(1, MAX_PIECES)
            }
            _ => 1,
        }
    }
}

/// Whom a flight is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Whoever started it.
    User,
    /// A change that was answered before the server was restarted, made again.
    Replay,
    /// The FLUSH that shortens the log.
    Shorten,
}

/// The server is out of slots for a flight.
#[derive(Debug, Clone, Copy)]
pub struct Busy {
    pub since_ns: u64,
    pub pause_ns: u64,
    /// The timer that runs is the pause, not the wait for an answer.
    pub pausing: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Flight {
    pub request: Request,
    pub purpose: Purpose,
    pub started_ns: Option<u64>,
    pub tries: u32,
    /// Pieces that have not come, one bit each (one piece for all but READ).
    pub missing: u64,
    /// Datagrams this flight stands for while it is up.
    pub datagrams: u32,
    pub cookies: Vec<u64>,
    pub timer_ns: Option<u64>,
    pub busy: Option<Busy>,
    pub bad_requests: u32,
    /// The number of a change in its session; 0 for others, and before the first transmission.
    pub sequence: u64,
    /// FLUSH: what the log held when it was first sent.
    pub log_mark: Option<u64>,
}

/// What an answer is to the flight whose cookie it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// These pieces, and they were missing.
    Piece(u64),
    /// Ask again later.
    Busy,
    /// The server does not know the session.
    Stale,
    /// No, and asking again will not help.
    Refused { offset: u64, length: u32, status: Status },
    /// Not an answer to this request, or one that was here before.
    Foreign,
}

impl Flight {
    pub fn new(request: Request, purpose: Purpose, datagram_bytes: u32) -> Self {
        let datagrams = request.datagrams(datagram_bytes);
        let pieces = if request.op() == Op::Read { datagrams } else { 1 };
        Self {
            request,
            purpose,
            started_ns: None,
            tries: 0,
            missing: u64::MAX >> (u64::BITS - pieces),
            datagrams,
            cookies: Vec::with_capacity(1),
            timer_ns: None,
            busy: None,
            bad_requests: 0,
            sequence: 0,
            log_mark: None,
        }
    }

    /// Datagrams of one transmission.
    pub fn parts(&self) -> u16 {
        match self.request {
            Request::Write { .. } => u16::try_from(self.datagrams).unwrap_or(u16::MAX),
            _ => 1,
        }
    }

    /// What to ask for: the whole request, or the part of a READ that is missing, in whole sectors.
    pub fn asking(&self, part: u16, datagram_bytes: u32, sector_bytes: u32) -> Asking<'_> {
        let (offset, length) = self.missing_range(datagram_bytes, sector_bytes);
        let start = usize::from(part) * datagram_bytes as usize;
        let data = self.request.data();
        let end = data.len().min(start + datagram_bytes as usize);
        Asking {
            op: self.request.op(),
            forced: self.request.is_forced(),
            offset,
            length,
            part,
            parts: self.parts(),
            sequence: self.sequence,
            data: data.get(start..end).unwrap_or(&[]),
        }
    }

    fn missing_range(&self, datagram_bytes: u32, sector_bytes: u32) -> (u64, u32) {
        let (offset, length) = (self.request.offset(), self.request.length());
        if self.request.op() != Op::Read || self.missing == 0 {
            return (offset, length);
        }
        let (datagram, sector) = (u64::from(datagram_bytes), u64::from(sector_bytes.max(1)));
        let first = u64::from(self.missing.trailing_zeros()) * datagram / sector * sector;
        let end = u64::from(u64::BITS - self.missing.leading_zeros()) * datagram;
        let end = end.next_multiple_of(sector).min(u64::from(length));
        (offset + first, u32::try_from(end - first).unwrap_or(length))
    }

    pub fn judge(&self, answer: &Answer<'_>, datagram_bytes: u32) -> Verdict {
        match (&self.request, *answer) {
            (_, Answer::Failed { status: Status::Busy, .. }) => Verdict::Busy,
            (_, Answer::Failed { status: Status::StaleSession, .. }) => Verdict::Stale,
            (_, Answer::Failed { offset, length, status }) => Verdict::Refused { offset, length, status },
            (Request::Read { offset: start, length }, Answer::Data { offset, data }) => {
                match piece(*start, *length, datagram_bytes, offset, data.len()) {
                    Some(mask) if self.missing & mask != 0 => Verdict::Piece(mask),
                    _ => Verdict::Foreign,
                }
            }
            (Request::Info, Answer::Info(_)) => Verdict::Piece(1),
            (Request::Flush, Answer::Done { op: Op::Flush, .. }) => Verdict::Piece(1),
            (request, Answer::Done { op, offset, length })
                if request.op() == op && request.offset() == offset && request.length() == length =>
            {
                Verdict::Piece(1)
            }
            _ => Verdict::Foreign,
        }
    }
}

/// The bit of the piece at `offset`, if it is exactly one of those that the READ was cut into.
fn piece(start: u64, length: u32, datagram_bytes: u32, offset: u64, bytes: usize) -> Option<u64> {
    let distance = u32::try_from(offset.checked_sub(start)?).ok()?;
    if distance >= length || !distance.is_multiple_of(datagram_bytes) {
        return None;
    }
    let expected = (length - distance).min(datagram_bytes);
    let index = distance / datagram_bytes;
    (bytes == expected as usize && index < MAX_PIECES).then(|| 1 << index)
}
