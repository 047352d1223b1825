//! Replies: as the server writes them and as the client reads them.

use crate::header::{HEADER_BYTES, HeaderView, MAGIC, Op, REPLY_BIT, Status, VERSION, encode};

/// The header of a reply.
///
/// Offset and length say which part of the request this reply speaks for: one datagram of a READ,
/// the whole of a WRITE, or everything that a refusal covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request's op code, known or not, without the reply bit.
    op_code: u8,
    /// The client's.
    pub cookie: u64,
    /// Bytes from the start of the device.
    pub offset: u64,
    /// Bytes this reply speaks for.
    pub length: u32,
    /// How it went.
    pub status: Status,
}

impl ReplyHeader {
    /// The reply to a known op.
    pub const fn new(op: Op, cookie: u64, offset: u64, length: u32, status: Status) -> Self {
        Self { op_code: op.code(), cookie, offset, length, status }
    }

    /// The reply to a request that may be malformed: its own fields, back again.
    pub fn echo(request: &HeaderView<'_>, status: Status) -> Self {
        Self {
            op_code: request.op() & !REPLY_BIT,
            cookie: request.cookie(),
            offset: request.offset(),
            length: request.length(),
            status,
        }
    }

    /// The thirty bytes. Flags of a reply are zero.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        encode(self.op_code | REPLY_BIT, 0, self.cookie, self.offset, self.length, self.status.code())
    }
}

/// A reply whose parts agree with each other. Whether it answers anything that was asked, the
/// client must still find out by its cookie, offset and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The device's description, for [`crate::Info::parse`].
    Info {
        /// The client's.
        cookie: u64,
        /// The description.
        body: &'a [u8],
    },
    /// One datagram of a READ.
    Data {
        /// The client's.
        cookie: u64,
        /// Bytes from the start of the device.
        offset: u64,
        /// The sectors.
        data: &'a [u8],
    },
    /// A WRITE that the disk has.
    Written {
        /// The client's.
        cookie: u64,
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// A FLUSH that is done.
    Flushed {
        /// The client's.
        cookie: u64,
    },
    /// Anything that was not done.
    Failed {
        /// The client's.
        cookie: u64,
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes that were not moved.
        length: u32,
        /// Why; never [`Status::Ok`].
        status: Status,
    },
}

/// Why a received datagram is no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyError {
    /// Shorter than a header.
    Short,
    /// Not "NBLK".
    Magic,
    /// A version this client does not speak.
    Version,
    /// The reply bit is missing.
    NotAReply,
    /// A successful reply to an op that does not exist.
    Op,
    /// A status that does not exist.
    Status,
    /// The bytes behind the header are not what op, length and status say.
    Body,
}

impl<'a> Reply<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    /// [`ReplyError`] says what is not as the protocol has it; such a datagram is to be ignored.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, ReplyError> {
        let view = HeaderView::new(datagram).map_err(|_| ReplyError::Short)?;
        if view.magic() != MAGIC {
            return Err(ReplyError::Magic);
        }
        if view.version() != VERSION {
            return Err(ReplyError::Version);
        }
        if view.op() & REPLY_BIT == 0 {
            return Err(ReplyError::NotAReply);
        }
        let status = Status::try_from(view.status()).map_err(|_| ReplyError::Status)?;
        let (cookie, offset, length) = (view.cookie(), view.offset(), view.length());
        let body = view.body();
        if status != Status::Ok {
            // A refusal may echo an op that nobody knows.
            return match body {
                [] => Ok(Self::Failed { cookie, offset, length, status }),
                _ => Err(ReplyError::Body),
            };
        }
        let op = Op::try_from(view.op() & !REPLY_BIT).map_err(|_| ReplyError::Op)?;
        let expected_bytes = match op {
            Op::Info | Op::Read => length as usize,
            Op::Write | Op::Flush => 0,
        };
        if body.len() != expected_bytes {
            return Err(ReplyError::Body);
        }
        Ok(match op {
            Op::Info => Self::Info { cookie, body },
            Op::Read => Self::Data { cookie, offset, data: body },
            Op::Write => Self::Written { cookie, offset, length },
            Op::Flush => Self::Flushed { cookie },
        })
    }

    /// The cookie, whatever the kind.
    pub const fn cookie(&self) -> u64 {
        match *self {
            Self::Info { cookie, .. }
            | Self::Data { cookie, .. }
            | Self::Written { cookie, .. }
            | Self::Flushed { cookie }
            | Self::Failed { cookie, .. } => cookie,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn datagram(header: ReplyHeader, body: &[u8]) -> Vec<u8> {
        [&header.to_bytes()[..], body].concat()
    }

    #[test]
    fn every_kind_is_read_back() {
        let data = [7; 1024];
        let good = datagram(ReplyHeader::new(Op::Read, 1, 512, 1024, Status::Ok), &data);
        assert_eq!(Reply::parse(&good), Ok(Reply::Data { cookie: 1, offset: 512, data: &data }));
        let written = datagram(ReplyHeader::new(Op::Write, 2, 512, 1024, Status::Ok), &[]);
        assert_eq!(Reply::parse(&written), Ok(Reply::Written { cookie: 2, offset: 512, length: 1024 }));
        let flushed = datagram(ReplyHeader::new(Op::Flush, 3, 0, 0, Status::Ok), &[]);
        assert_eq!(Reply::parse(&flushed), Ok(Reply::Flushed { cookie: 3 }));
        let failed = datagram(ReplyHeader::new(Op::Read, 4, 512, 4096, Status::Busy), &[]);
        assert_eq!(
            Reply::parse(&failed),
            Ok(Reply::Failed { cookie: 4, offset: 512, length: 4096, status: Status::Busy })
        );
        assert_eq!(Reply::parse(&failed).unwrap().cookie(), 4);
    }

    #[test]
    fn lies_are_named() {
        let good = datagram(ReplyHeader::new(Op::Read, 1, 0, 4, Status::Ok), &[0; 4]);
        let with = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            Reply::parse(&bad).unwrap_err()
        };
        assert_eq!(with(0, 0), ReplyError::Magic);
        assert_eq!(with(4, 9), ReplyError::Version);
        assert_eq!(with(5, 2), ReplyError::NotAReply);
        assert_eq!(with(5, 0x85), ReplyError::Op);
        assert_eq!(with(29, 6), ReplyError::Status);
        assert_eq!(with(29, 3), ReplyError::Body);
        assert_eq!(with(27, 5), ReplyError::Body);
        assert_eq!(Reply::parse(&good[..29]), Err(ReplyError::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes: Vec<u8>) {
            let _ = Reply::parse(&bytes);
        }

        #[test]
        fn data_is_exactly_as_long_as_the_header_says(mut bytes in proptest::collection::vec(any::<u8>(), 30..200), at in 0..30usize, value: u8) {
            let length = (bytes.len() - HEADER_BYTES) as u32;
            let header = ReplyHeader::new(Op::Read, 5, 0, length, Status::Ok).to_bytes();
            bytes[..HEADER_BYTES].copy_from_slice(&header);
            bytes[at] = value;
            if let Ok(Reply::Data { data, .. }) = Reply::parse(&bytes) {
                prop_assert_eq!(data.len(), length as usize);
            }
        }
    }
}
