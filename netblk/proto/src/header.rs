//! The thirty bytes that every datagram starts with, and the codes in them.

use core::fmt;

/// Bytes of the common header.
pub const HEADER_BYTES: usize = 30;

/// "NBLK".
pub const MAGIC: u32 = 0x4E42_4C4B;

/// The version this crate speaks.
pub const VERSION: u8 = 1;

/// Set in the op of every reply.
pub const REPLY_BIT: u8 = 0x80;

/// Where each field starts.
mod at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const OP: usize = 5;
    pub const FLAGS: usize = 6;
    pub const COOKIE: usize = 8;
    pub const OFFSET: usize = 16;
    pub const LENGTH: usize = 24;
    pub const STATUS: usize = 28;
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    /// The device's size and its limits.
    Info = 1,
    /// Sectors, answered datagram by datagram.
    Read = 2,
    /// One datagram of sectors.
    Write = 3,
    /// Makes all completed writes durable.
    Flush = 4,
}

impl Op {
    /// Every op, in the order of its code.
    pub const ALL: [Self; 4] = [Self::Info, Self::Read, Self::Write, Self::Flush];

    /// The code of a request.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// A code that is none of [`Op`]'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownOp(pub u8);

impl TryFrom<u8> for Op {
    type Error = UnknownOp;

    fn try_from(code: u8) -> Result<Self, UnknownOp> {
        Self::ALL.into_iter().find(|op| op.code() == code).ok_or(UnknownOp(code))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Info => "INFO",
            Self::Read => "READ",
            Self::Write => "WRITE",
            Self::Flush => "FLUSH",
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
    /// No slot is free; ask again a little later.
    Busy = 4,
    /// A WRITE to a device that is served read-only.
    ReadOnly = 5,
}

impl Status {
    /// Every status, in the order of its code.
    pub const ALL: [Self; 6] =
        [Self::Ok, Self::BadRequest, Self::OutOfRange, Self::IoError, Self::Busy, Self::ReadOnly];

    /// The code on the wire.
    pub const fn code(self) -> u16 {
        self as u16
    }
}

/// A code that is none of [`Status`]'s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownStatus(pub u16);

impl TryFrom<u16> for Status {
    type Error = UnknownStatus;

    fn try_from(code: u16) -> Result<Self, UnknownStatus> {
        Self::ALL.into_iter().find(|status| status.code() == code).ok_or(UnknownStatus(code))
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
        })
    }
}

/// The flags of a request; only defined bits can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// Force unit access: the disk answers once the data is on the medium, not in its cache.
    pub const FUA: Self = Self(1 << 0);

    /// The flags with these bits, or `None` if a bit is not defined.
    pub const fn from_bits(bits: u16) -> Option<Self> {
        if bits & !Self::FUA.0 == 0 { Some(Self(bits)) } else { None }
    }

    /// The bits on the wire.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Whether FUA is set.
    pub const fn fua(self) -> bool {
        self.0 & Self::FUA.0 != 0
    }
}

/// A datagram shorter than the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooShort {
    /// Bytes that were there.
    pub bytes: usize,
}

/// A datagram that is long enough for its header. Nothing else about it is known: the accessors
/// give what the bytes say.
#[derive(Debug, Clone, Copy)]
pub struct HeaderView<'a> {
    header: &'a [u8; HEADER_BYTES],
    body: &'a [u8],
    /// Bytes of the body, of which `body` is the beginning.
    body_bytes: usize,
}

impl<'a> HeaderView<'a> {
    /// Checks the length.
    ///
    /// # Errors
    /// [`TooShort`] if the datagram ends before its header does.
    pub fn new(datagram: &'a [u8]) -> Result<Self, TooShort> {
        Self::of_first_piece(datagram, datagram.len())
    }

    /// A datagram of `datagram_bytes` bytes whose beginning is `first_piece`: what a card hands over of
    /// a jumbo frame. The rest is data that nobody needs to see.
    ///
    /// # Errors
    /// [`TooShort`] if the piece ends before the header does, or is longer than the datagram.
    pub fn of_first_piece(first_piece: &'a [u8], datagram_bytes: usize) -> Result<Self, TooShort> {
        match first_piece.split_first_chunk() {
            Some((header, body)) if first_piece.len() <= datagram_bytes => {
                Ok(Self { header, body, body_bytes: datagram_bytes - HEADER_BYTES })
            }
            _ => Err(TooShort { bytes: first_piece.len() }),
        }
    }

    fn field<const N: usize>(&self, start: usize) -> [u8; N] {
        core::array::from_fn(|index| self.header[start + index])
    }

    /// 0x4E424C4B if it is netblk at all.
    pub fn magic(&self) -> u32 {
        u32::from_be_bytes(self.field(at::MAGIC))
    }

    /// The protocol's version.
    pub fn version(&self) -> u8 {
        self.header[at::VERSION]
    }

    /// The op, reply bit included.
    pub fn op(&self) -> u8 {
        self.header[at::OP]
    }

    /// The flags.
    pub fn flags(&self) -> u16 {
        u16::from_be_bytes(self.field(at::FLAGS))
    }

    /// The client's cookie.
    pub fn cookie(&self) -> u64 {
        u64::from_be_bytes(self.field(at::COOKIE))
    }

    /// Bytes from the start of the device.
    pub fn offset(&self) -> u64 {
        u64::from_be_bytes(self.field(at::OFFSET))
    }

    /// Bytes.
    pub fn length(&self) -> u32 {
        u32::from_be_bytes(self.field(at::LENGTH))
    }

    /// The status (zero in a request).
    pub fn status(&self) -> u16 {
        u16::from_be_bytes(self.field(at::STATUS))
    }

    /// Bytes that follow the header.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// What follows the header, as far as it is at hand: all of it, if the view was made of a whole
    /// datagram.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }
}

/// The header of a request, as a client writes it. What the server makes of it is [`crate::check`]'s
/// business; a test may build a bad one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// What is asked for.
    pub op: Op,
    /// FUA or none.
    pub flags: Flags,
    /// Comes back in every reply.
    pub cookie: u64,
    /// Bytes from the start of the device.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

impl RequestHeader {
    /// The thirty bytes.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        encode(self.op.code(), self.flags.bits(), self.cookie, self.offset, self.length, 0)
    }
}

pub(crate) fn encode(
    op: u8,
    flags: u16,
    cookie: u64,
    offset: u64,
    length: u32,
    status: u16,
) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let mut put = |start: usize, field: &[u8]| {
        bytes[start..start + field.len()].copy_from_slice(field);
    };
    put(at::MAGIC, &MAGIC.to_be_bytes());
    put(at::VERSION, &[VERSION]);
    put(at::OP, &[op]);
    put(at::FLAGS, &flags.to_be_bytes());
    put(at::COOKIE, &cookie.to_be_bytes());
    put(at::OFFSET, &offset.to_be_bytes());
    put(at::LENGTH, &length.to_be_bytes());
    put(at::STATUS, &status.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_layout_is_the_specification() {
        let bytes = RequestHeader {
            op: Op::Write,
            flags: Flags::FUA,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1112_1314_1516_1718,
            length: 0x2122_2324,
        }
        .to_bytes();
        #[rustfmt::skip]
        let expected = [
            b'N', b'B', b'L', b'K', 1, 3, 0, 1,
            1, 2, 3, 4, 5, 6, 7, 8,
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
            0x21, 0x22, 0x23, 0x24, 0, 0,
        ];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn undefined_flag_bits_cannot_be_held() {
        assert_eq!(Flags::from_bits(0), Some(Flags::NONE));
        assert_eq!(Flags::from_bits(1), Some(Flags::FUA));
        for bit in 1..16 {
            assert_eq!(Flags::from_bits(1 << bit), None);
        }
    }

    #[test]
    fn codes_and_names_go_both_ways() {
        for code in 0..=u8::MAX {
            assert_eq!(
                Op::try_from(code).map(Op::code),
                if (1..=4).contains(&code) { Ok(code) } else { Err(UnknownOp(code)) }
            );
        }
        for code in 0..=u16::MAX {
            assert_eq!(
                Status::try_from(code).map(Status::code),
                if code <= 5 { Ok(code) } else { Err(UnknownStatus(code)) }
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(op in 0..4usize, fua: bool, cookie: u64, offset: u64, length: u32, body: Vec<u8>) {
            let header = RequestHeader {
                op: Op::ALL[op],
                flags: if fua { Flags::FUA } else { Flags::NONE },
                cookie, offset, length,
            };
            let mut datagram = header.to_bytes().to_vec();
            datagram.extend_from_slice(&body);
            let view = HeaderView::new(&datagram).unwrap();
            prop_assert_eq!(view.magic(), MAGIC);
            prop_assert_eq!(view.version(), VERSION);
            prop_assert_eq!(Op::try_from(view.op()), Ok(header.op));
            prop_assert_eq!(Flags::from_bits(view.flags()), Some(header.flags));
            prop_assert_eq!(view.cookie(), cookie);
            prop_assert_eq!(view.offset(), offset);
            prop_assert_eq!(view.length(), length);
            prop_assert_eq!(view.status(), 0);
            prop_assert_eq!(view.body(), &body[..]);
        }

        #[test]
        fn a_view_exists_exactly_from_thirty_bytes_on(datagram in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(HeaderView::new(&datagram).is_ok(), datagram.len() >= 30);
        }
    }
}
