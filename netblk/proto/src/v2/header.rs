//! The sixty-six bytes that every datagram of version 2 starts with.

use super::codes::Op;
use super::keys::{TAG_BYTES, Tag, TagKey};
use crate::header::{Flags, MAGIC, TooShort};

/// The version this module speaks.
pub const VERSION: u8 = 2;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 66;

/// Bytes of the header in front of the tag.
pub(crate) const TAGGED_BYTES: usize = HEADER_BYTES - TAG_BYTES;

/// The payload starts behind 42 bytes of Ethernet, IPv4 and UDP and this header; an NVMe disk may move
/// data from and to any whole dword (NVMe Base Specification 2.0, section 4.1.1).
const _: () = assert!((14 + 20 + 8 + HEADER_BYTES).is_multiple_of(4));

/// Where each field starts. Up to the status as in version 1.
mod at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const OP: usize = 5;
    pub const FLAGS: usize = 6;
    pub const COOKIE: usize = 8;
    pub const OFFSET: usize = 16;
    pub const LENGTH: usize = 24;
    pub const STATUS: usize = 28;
    pub const PART: usize = 30;
    pub const PARTS: usize = 32;
    pub const SESSION: usize = 34;
    pub const SEQUENCE: usize = 42;
    pub const TAG: usize = 50;
}

/// A datagram that is long enough for its header. Nothing else about it is known: the accessors give
/// what the bytes say.
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

    /// Which part this is, from 0.
    pub fn part(&self) -> u16 {
        u16::from_be_bytes(self.field(at::PART))
    }

    /// Of how many.
    pub fn parts(&self) -> u16 {
        u16::from_be_bytes(self.field(at::PARTS))
    }

    /// The session's number; 0 before there is one.
    pub fn session(&self) -> u64 {
        u64::from_be_bytes(self.field(at::SESSION))
    }

    /// The number of a request that changes the disk, otherwise 0.
    pub fn sequence(&self) -> u64 {
        u64::from_be_bytes(self.field(at::SEQUENCE))
    }

    /// The tag.
    pub fn tag(&self) -> Tag {
        Tag::new(self.field(at::TAG))
    }

    /// What follows the header, as far as it is at hand: all of it, if the view was made of a whole
    /// datagram.
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Bytes that follow the header.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Whether the tag was made with this key for exactly this header, this length of the datagram,
    /// and, where a tag covers it, this body.
    pub fn is_tagged_with(&self, key: &TagKey) -> bool {
        let Some(tagged) = self.header.first_chunk() else { return false };
        key.tag(tagged, self.body_bytes, self.body) == self.tag()
    }
}

/// Every field of a header but the magic, the version and the tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fields {
    pub op: u8,
    pub flags: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
    pub status: u16,
    pub part: u16,
    pub parts: u16,
    pub session: u64,
    pub sequence: u64,
}

impl Fields {
    fn tagged_bytes(&self) -> [u8; TAGGED_BYTES] {
        let mut bytes = [0; TAGGED_BYTES];
        let mut put = |start: usize, field: &[u8]| {
            bytes[start..start + field.len()].copy_from_slice(field);
        };
        put(at::MAGIC, &MAGIC.to_be_bytes());
        put(at::VERSION, &[VERSION]);
        put(at::OP, &[self.op]);
        put(at::FLAGS, &self.flags.to_be_bytes());
        put(at::COOKIE, &self.cookie.to_be_bytes());
        put(at::OFFSET, &self.offset.to_be_bytes());
        put(at::LENGTH, &self.length.to_be_bytes());
        put(at::STATUS, &self.status.to_be_bytes());
        put(at::PART, &self.part.to_be_bytes());
        put(at::PARTS, &self.parts.to_be_bytes());
        put(at::SESSION, &self.session.to_be_bytes());
        put(at::SEQUENCE, &self.sequence.to_be_bytes());
        bytes
    }

    /// The header of a datagram with a body of `body_bytes` bytes. `body` is looked at only where a
    /// tag covers it (see [`TagKey`]). Without a key the tag is zero.
    pub fn seal(&self, key: Option<&TagKey>, body_bytes: usize, body: &[u8]) -> [u8; HEADER_BYTES] {
        let tagged = self.tagged_bytes();
        let tag = key.map_or(Tag::NONE, |key| key.tag(&tagged, body_bytes, body));
        let mut bytes = [0; HEADER_BYTES];
        bytes[..at::TAG].copy_from_slice(&tagged);
        bytes[at::TAG..].copy_from_slice(&tag.to_bytes());
        bytes
    }
}

/// The header of a request, as a client writes it. What the server makes of it is
/// [`super::check()`]'s business; a test may build a bad one.
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
    /// Bytes: of the whole request, however many parts it comes in.
    pub length: u32,
    /// Which part of a WRITE this datagram brings, from 0.
    pub part: u16,
    /// Of how many; 1 for everything else.
    pub parts: u16,
    /// The session; 0 in HELLO and CONNECT.
    pub session: u64,
    /// The number of a WRITE, DISCARD or WRITE ZEROES; otherwise 0.
    pub sequence: u64,
}

impl RequestHeader {
    /// A request of one datagram, without a number.
    pub const fn new(op: Op, session: u64, cookie: u64, offset: u64, length: u32) -> Self {
        Self { op, flags: Flags::NONE, cookie, offset, length, part: 0, parts: 1, session, sequence: 0 }
    }

    /// The sixty-six bytes, for a datagram that goes on with `body`. `None`: without a tag.
    pub fn seal(&self, key: Option<&TagKey>, body: &[u8]) -> [u8; HEADER_BYTES] {
        self.fields().seal(key, body.len(), body)
    }

    fn fields(&self) -> Fields {
        Fields {
            op: self.op.code(),
            flags: self.flags.bits(),
            cookie: self.cookie,
            offset: self.offset,
            length: self.length,
            status: 0,
            part: self.part,
            parts: self.parts,
            session: self.session,
            sequence: self.sequence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> RequestHeader {
        RequestHeader {
            op: Op::Write,
            flags: Flags::FUA,
            cookie: 0x0102_0304_0506_0708,
            offset: 0x1112_1314_1516_1718,
            length: 0x2122_2324,
            part: 0x3132,
            parts: 0x4142,
            session: 0x5152_5354_5556_5758,
            sequence: 0x6162_6364_6566_6768,
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        #[rustfmt::skip]
        let expected = [
            b'N', b'B', b'L', b'K', 2, 3, 0, 1,
            1, 2, 3, 4, 5, 6, 7, 8,
            0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
            0x21, 0x22, 0x23, 0x24, 0, 0,
            0x31, 0x32, 0x41, 0x42,
            0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
            0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
            0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(example().seal(None, &[]), expected);
    }

    #[test]
    fn a_first_piece_knows_how_long_the_datagram_is() {
        let header = example().seal(None, &[]);
        assert_eq!(HeaderView::of_first_piece(&header, 4162).unwrap().body_bytes(), 4096);
        assert!(HeaderView::of_first_piece(&header, 65).is_err());
        assert!(HeaderView::of_first_piece(&header[..65], 4162).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            op in 0..Op::ALL.len(), fua: bool, cookie: u64, offset: u64, length: u32, part: u16, parts: u16,
            session: u64, sequence: u64, body: Vec<u8>, key: [u8; 16],
        ) {
            let header = RequestHeader {
                op: Op::ALL[op],
                flags: if fua { Flags::FUA } else { Flags::NONE },
                cookie, offset, length, part, parts, session, sequence,
            };
            let key = TagKey::new(key);
            let datagram = [&header.seal(Some(&key), &body)[..], &body].concat();
            let view = HeaderView::new(&datagram).unwrap();
            prop_assert_eq!((view.magic(), view.version()), (MAGIC, VERSION));
            prop_assert_eq!(Op::try_from(view.op()), Ok(header.op));
            prop_assert_eq!(Flags::from_bits(view.flags()), Some(header.flags));
            prop_assert_eq!((view.cookie(), view.offset(), view.length()), (cookie, offset, length));
            prop_assert_eq!((view.part(), view.parts(), view.status()), (part, parts, 0));
            prop_assert_eq!((view.session(), view.sequence()), (session, sequence));
            prop_assert_eq!((view.body(), view.body_bytes()), (&body[..], body.len()));
            prop_assert!(view.is_tagged_with(&key));
        }

        #[test]
        fn no_bit_of_the_header_nor_the_length_can_change_under_a_tag(
            at in 0..HEADER_BYTES * 8, key: [u8; 16], other: [u8; 16], body: Vec<u8>,
        ) {
            prop_assume!(key != other);
            let (key, other) = (TagKey::new(key), TagKey::new(other));
            let mut datagram = [&example().seal(Some(&key), &body)[..], &body].concat();
            prop_assert!(!HeaderView::new(&datagram).unwrap().is_tagged_with(&other));
            datagram[at / 8] ^= 1 << (at % 8);
            prop_assert!(!HeaderView::new(&datagram).unwrap().is_tagged_with(&key));
            datagram[at / 8] ^= 1 << (at % 8);
            datagram.push(0);
            prop_assert!(!HeaderView::new(&datagram).unwrap().is_tagged_with(&key));
        }
    }
}
