//! NBD's numbers and messages: read from bytes and checked, or written as bytes. No I/O.
//!
//! The source is the NBD project's "The NBD protocol" (doc/proto.md); all integers are big-endian.

/// "NBDMAGIC": the first thing a server says.
pub const GREETING: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT": before every option.
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// Before every answer to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Handshake flags, the server's and the client's alike.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
pub const NO_ZEROES: u16 = 1 << 1;

/// The options that are understood; others are answered as unsupported.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
}

/// Answers to options.
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const UNSUPPORTED: u32 = 0x8000_0001;
    pub const INVALID: u32 = 0x8000_0003;
    pub const UNKNOWN: u32 = 0x8000_0006;
    pub const BLOCK_SIZE_REQUIRED: u32 = 0x8000_0008;
    pub const TOO_BIG: u32 = 0x8000_0009;
}

/// Pieces of information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do.
pub mod transmission {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const DO_NOT_FRAGMENT: u16 = 1 << 7;
    pub const MULTI_CONNECTION: u16 = 1 << 8;
}

/// Flags of a request.
pub mod flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DO_NOT_FRAGMENT: u16 = 1 << 2;
}

/// Error numbers of the protocol, which are Linux's on every system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    NotPermitted = 1,
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
}

/// The longest data of an option that is read: names of 4 KiB and some requests.
pub const MAX_OPTION_BYTES: u32 = 8 << 10;
/// The longest name of an export (proto.md, "Values": strings have at most 4096 bytes).
pub const MAX_NAME_BYTES: usize = 4096;

/// Bytes of an option's header.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a request's header.
pub const REQUEST_HEADER_BYTES: usize = 28;

/// Takes fields off the front of a message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(field)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_be_bytes)
    }
}

/// The header of an option: its number and the length of its data. `None`: it is none.
pub fn option_header(bytes: &[u8; OPTION_HEADER_BYTES]) -> Option<(u32, u32)> {
    let mut fields = Fields(bytes);
    (fields.u64()? == OPTION).then_some(())?;
    Some((fields.u32()?, fields.u32()?))
}

/// The data of INFO and GO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The export's name; empty for the only one.
    pub name: &'a [u8],
    /// What is asked about it.
    pub infos: Vec<u16>,
}

impl<'a> Wanted<'a> {
    /// `None`: the lengths do not fit together.
    pub fn parse(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name_bytes = fields.u32()? as usize;
        if name_bytes > MAX_NAME_BYTES {
            return None;
        }
        let name = fields.take(name_bytes)?;
        let count = fields.u16()?;
        let infos = (0..count).map(|_| fields.u16()).collect::<Option<Vec<u16>>>()?;
        fields.0.is_empty().then_some(Self { name, infos })
    }
}

/// An answer to an option.
pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + data.len());
    bytes.extend(OPTION_REPLY.to_be_bytes());
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    WriteZeroes,
    /// One that is not understood; its header is.
    Unknown(u16),
}

/// A request, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: Command,
    /// The client's, for the reply.
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    /// `None`: it does not begin like a request; where the next one begins cannot be known then.
    pub fn parse(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        (fields.u32()? == REQUEST).then_some(())?;
        let flags = fields.u16()?;
        let command = match fields.u16()? {
            0 => Command::Read,
            1 => Command::Write,
            2 => Command::Disconnect,
            3 => Command::Flush,
            4 => Command::Trim,
            6 => Command::WriteZeroes,
            other => Command::Unknown(other),
        };
        Some(Self { flags, command, cookie: fields.u64()?, offset: fields.u64()?, length: fields.u32()? })
    }

    /// Whether it has a flag.
    pub const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// How replies are written: as the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Simple,
    Structured,
}

const CHUNK_DONE: u16 = 1 << 0;
const CHUNK_NONE: u16 = 0;
const CHUNK_DATA: u16 = 1;
const CHUNK_ERROR: u16 = 0x8001;

fn simple(error: u32, cookie: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(SIMPLE_REPLY.to_be_bytes());
    bytes.extend(error.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes
}

fn chunk(kind: u16, cookie: u64, bytes_behind: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(28);
    bytes.extend(STRUCTURED_REPLY.to_be_bytes());
    bytes.extend(CHUNK_DONE.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(bytes_behind.to_be_bytes());
    bytes
}

impl Style {
    /// The answer to a request that went well; a READ's data follow it.
    pub fn done(self, request: &Request) -> Vec<u8> {
        match (self, request.command) {
            (Self::Simple, _) => simple(0, request.cookie),
            (Self::Structured, Command::Read) => {
                let mut bytes = chunk(CHUNK_DATA, request.cookie, request.length.saturating_add(8));
                bytes.extend(request.offset.to_be_bytes());
                bytes
            }
            // Simple replies are allowed for all but READ, but one kind is easier to follow.
            (Self::Structured, _) => chunk(CHUNK_NONE, request.cookie, 0),
        }
    }

    /// The answer to one that did not.
    pub fn failed(self, request: &Request, error: Errno) -> Vec<u8> {
        match self {
            Self::Simple => simple(error as u32, request.cookie),
            Self::Structured => {
                let mut bytes = chunk(CHUNK_ERROR, request.cookie, 6);
                bytes.extend((error as u32).to_be_bytes());
                bytes.extend(0_u16.to_be_bytes());
                bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_the_documents() {
        assert_eq!(&GREETING.to_be_bytes(), b"NBDMAGIC");
        assert_eq!(&OPTION.to_be_bytes(), b"IHAVEOPT");
        let request = Request { flags: 0, command: Command::Read, cookie: 7, offset: 512, length: 1024 };
        let simple = Style::Simple.done(&request);
        assert_eq!(simple, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        let data = Style::Structured.done(&request);
        assert_eq!(data[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1]);
        assert_eq!(data[16..], [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 2, 0]);
        let error = Style::Structured.failed(&request, Errno::Invalid);
        assert_eq!(error[4..8], [0, 1, 0x80, 1]);
        assert_eq!(error[16..], [0, 0, 0, 6, 0, 0, 0, 22, 0, 0]);
    }

    #[test]
    fn a_wish_whose_lengths_lie_is_none() {
        let wish = [&3_u32.to_be_bytes()[..], b"abc", &1_u16.to_be_bytes(), &3_u16.to_be_bytes()].concat();
        assert_eq!(Wanted::parse(&wish), Some(Wanted { name: b"abc", infos: vec![3] }));
        for length in 0..wish.len() {
            assert_eq!(Wanted::parse(&wish[..length]), None);
        }
        assert_eq!(Wanted::parse(&[&wish[..], &[0]].concat()), None);
        assert_eq!(Wanted::parse(&u32::MAX.to_be_bytes()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(data: Vec<u8>, header: [u8; 28], option: [u8; 16]) {
            let _ = Wanted::parse(&data);
            let _ = Request::parse(&header);
            let _ = option_header(&option);
        }

        #[test]
        fn what_begins_like_a_request_is_one(flags: u16, kind: u16, cookie: u64, offset: u64, length: u32) {
            let mut bytes = Vec::new();
            bytes.extend(REQUEST.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
            bytes.extend(kind.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(offset.to_be_bytes());
            bytes.extend(length.to_be_bytes());
            let request = Request::parse(bytes.as_slice().try_into().unwrap()).unwrap();
            prop_assert_eq!((request.flags, request.cookie, request.offset, request.length), (flags, cookie, offset, length));
        }
    }
}
