//! Replies: as the server writes them and as the client reads them.

use super::codes::{Op, Status};
use super::header::{Fields, HEADER_BYTES, HeaderView, VERSION};
use super::hello::HelloReply;
use super::keys::{Tag, TagKey};
use crate::header::{MAGIC, REPLY_BIT};

/// The header of a reply.
///
/// Offset and length say which part of the request this reply speaks for: one datagram of a READ, the
/// whole of a WRITE, or everything that a refusal covers. In replies with a body that is no sectors,
/// length is the body's and offset zero.
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
    /// Which datagram of a READ's answer this is, from 0.
    pub part: u16,
    /// Of how many; 1 for everything else.
    pub parts: u16,
    /// The session, as in the request; in the reply to CONNECT the new one.
    pub session: u64,
    /// The number, as in the request.
    pub sequence: u64,
}

impl ReplyHeader {
    /// The reply to a known op, in one part and without a number.
    pub const fn new(op: Op, session: u64, cookie: u64, offset: u64, length: u32, status: Status) -> Self {
        Self { op_code: op.code(), cookie, offset, length, status, part: 0, parts: 1, session, sequence: 0 }
    }

    /// The same with the number of the request it answers.
    pub const fn numbered(self, sequence: u64) -> Self {
        Self { sequence, ..self }
    }

    /// The same as datagram `part` of `parts`.
    pub const fn in_parts(self, part: u16, parts: u16) -> Self {
        Self { part, parts, ..self }
    }

    /// The reply to a request that may be malformed: its own fields, back again.
    pub fn echo(request: &HeaderView<'_>, status: Status) -> Self {
        Self {
            op_code: request.op() & !REPLY_BIT,
            cookie: request.cookie(),
            offset: request.offset(),
            length: request.length(),
            status,
            part: request.part(),
            parts: request.parts(),
            session: request.session(),
            sequence: request.sequence(),
        }
    }

    /// The sixty-six bytes, for a datagram that goes on with `body_bytes` bytes, of which `body` needs
    /// to be given only where a tag covers it (INFO and CONNECT). Flags of a reply are zero; without a
    /// key the tag is.
    pub fn seal(&self, key: Option<&TagKey>, body_bytes: usize, body: &[u8]) -> [u8; HEADER_BYTES] {
        let fields = Fields {
            op: self.op_code | REPLY_BIT,
            flags: 0,
            cookie: self.cookie,
            offset: self.offset,
            length: self.length,
            status: self.status.code(),
            part: self.part,
            parts: self.parts,
            session: self.session,
            sequence: self.sequence,
        };
        fields.seal(key, body_bytes, body)
    }
}

/// A reply whose parts agree with each other. Whether it answers anything that was asked, the client
/// must still find out by its session, cookie, offset and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The client's.
    pub cookie: u64,
    /// The session.
    pub session: u64,
    /// The number of the request, or 0.
    pub sequence: u64,
    /// Whether its tag was made with the key that [`Reply::parse`] was given. Without, only these are
    /// replies at all: the answer to HELLO, "stale session" and "refused", each a hint and no proof.
    pub authentic: bool,
    /// What it says.
    pub answer: Answer<'a>,
}

/// What a reply says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A challenge.
    Hello(HelloReply),
    /// The session of [`Reply::session`] exists; the device's description, for [`super::Info::parse`].
    Connected(&'a [u8]),
    /// The device's description, for [`super::Info::parse`].
    Info(&'a [u8]),
    /// One datagram of a READ.
    Data {
        /// Bytes from the start of the device.
        offset: u64,
        /// The bytes there, perhaps less than a sector.
        data: &'a [u8],
        /// Which datagram of the answer.
        part: u16,
        /// Of how many.
        parts: u16,
    },
    /// A WRITE, DISCARD, WRITE ZEROES, FLUSH or CLOSE that is done.
    Done {
        /// Which.
        op: Op,
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Anything that was not done.
    Failed {
        /// The request's op code, which need not be a known one.
        op_code: u8,
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
    /// The tag does not hold, or there should be one.
    Tag,
    /// A successful reply to an op that does not exist.
    Op,
    /// A status that does not exist.
    Status,
    /// A part that is not of that many.
    Part,
    /// The bytes behind the header are not what op, length and status say.
    Body,
}

impl<'a> Reply<'a> {
    /// Reads a datagram. `key`: the session's server-to-client key, once there is one.
    ///
    /// # Errors
    /// [`ReplyError`] says what is not as the protocol has it; such a datagram is to be ignored.
    pub fn parse(datagram: &'a [u8], key: Option<&TagKey>) -> Result<Self, ReplyError> {
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
        let op_code = view.op() & !REPLY_BIT;
        let authentic = key.is_some_and(|key| view.is_tagged_with(key));
        let is_hint = op_code == Op::Hello.code() || status.may_be_untagged();
        let may_lack_tag = is_hint && view.tag() == Tag::NONE;
        if !authentic && !may_lack_tag {
            return Err(ReplyError::Tag);
        }
        let answer = answer(&view, op_code, status)?;
        Ok(Self {
            cookie: view.cookie(),
            session: view.session(),
            sequence: view.sequence(),
            authentic,
            answer,
        })
    }
}

fn answer<'a>(view: &HeaderView<'a>, op_code: u8, status: Status) -> Result<Answer<'a>, ReplyError> {
    let (offset, length, body) = (view.offset(), view.length(), view.body());
    if status != Status::Ok {
        // A refusal may echo an op that nobody knows.
        return match body {
            [] => Ok(Answer::Failed { op_code, offset, length, status }),
            _ => Err(ReplyError::Body),
        };
    }
    let op = Op::try_from(op_code).map_err(|_| ReplyError::Op)?;
    let has_body = matches!(op, Op::Info | Op::Read | Op::Hello | Op::Connect);
    if body.len() != if has_body { length as usize } else { 0 } {
        return Err(ReplyError::Body);
    }
    if view.part() >= view.parts() {
        return Err(ReplyError::Part);
    }
    Ok(match op {
        Op::Hello => Answer::Hello(HelloReply::parse(body).map_err(|_| ReplyError::Body)?),
        Op::Connect => Answer::Connected(body),
        Op::Info => Answer::Info(body),
        Op::Read => Answer::Data { offset, data: body, part: view.part(), parts: view.parts() },
        Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes | Op::Close => {
            Answer::Done { op, offset, length }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: TagKey = TagKey::new([3; 16]);

    fn datagram(header: ReplyHeader, key: Option<&TagKey>, body: &[u8]) -> Vec<u8> {
        [&header.seal(key, body.len(), body)[..], body].concat()
    }

    fn header(op: Op, length: u32, status: Status) -> ReplyHeader {
        ReplyHeader::new(op, 9, 1, 512, length, status)
    }

    #[test]
    fn every_kind_is_read_back() {
        let parsed = |op, length, status, body: &[u8]| {
            let bytes = datagram(header(op, length, status), Some(&KEY), body);
            let reply = Reply::parse(&bytes, Some(&KEY)).unwrap();
            assert!(reply.authentic && reply.cookie == 1 && reply.session == 9);
            format!("{:?}", reply.answer)
        };
        let data = [7; 4];
        assert!(parsed(Op::Read, 4, Status::Ok, &data).starts_with("Data { offset: 512, data: [7, 7"));
        assert!(parsed(Op::Info, 4, Status::Ok, &data).starts_with("Info"));
        assert!(parsed(Op::Connect, 4, Status::Ok, &data).starts_with("Connected"));
        for op in [Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes, Op::Close] {
            assert!(parsed(op, 4096, Status::Ok, &[]).starts_with("Done"), "{op}");
        }
        assert!(parsed(Op::Write, 4096, Status::TooOld, &[]).ends_with("status: TooOld }"));
    }

    #[test]
    fn without_a_tag_only_hints_are_heard() {
        for op in Op::ALL {
            for status in Status::ALL {
                let body = if (op, status) == (Op::Hello, Status::Ok) { &[0; 32][..] } else { &[] };
                let bytes = datagram(header(op, body.len() as u32, status), None, body);
                let heard = op == Op::Hello || status.may_be_untagged();
                for key in [None, Some(&KEY)] {
                    match Reply::parse(&bytes, key) {
                        Ok(reply) => assert!(heard && !reply.authentic, "{op} {status}"),
                        Err(error) => assert!(!heard && error == ReplyError::Tag, "{op} {status}: {error:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn lies_are_named() {
        let lie = |change: fn(&mut ReplyHeader), body: &[u8]| {
            let mut header = header(Op::Read, 4, Status::Ok);
            change(&mut header);
            Reply::parse(&datagram(header, Some(&KEY), body), Some(&KEY)).unwrap_err()
        };
        assert_eq!(lie(|_| (), &[0; 5]), ReplyError::Body);
        assert_eq!(lie(|header| header.part = 1, &[0; 4]), ReplyError::Part);
        assert_eq!(lie(|header| header.status = Status::Busy, &[0; 4]), ReplyError::Body);
        assert_eq!(lie(|header| header.op_code = Op::Write.code(), &[0; 4]), ReplyError::Body);
        assert_eq!(lie(|header| header.op_code = 99, &[]), ReplyError::Op);
        assert_eq!(lie(|header| header.op_code = Op::Hello.code(), &[0; 4]), ReplyError::Body);
        let good = datagram(header(Op::Read, 4, Status::Ok), Some(&KEY), &[0; 4]);
        let with = |at: usize, value: u8| {
            let mut bad = good.clone();
            bad[at] = value;
            Reply::parse(&bad, Some(&KEY)).unwrap_err()
        };
        assert_eq!(with(0, 0), ReplyError::Magic);
        assert_eq!(with(4, 1), ReplyError::Version);
        assert_eq!(with(5, 2), ReplyError::NotAReply);
        assert_eq!(with(29, 10), ReplyError::Status);
        assert_eq!(with(16, 1), ReplyError::Tag);
        assert_eq!(Reply::parse(&good[..65], Some(&KEY)), Err(ReplyError::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes: Vec<u8>, keyed: bool) {
            let _ = Reply::parse(&bytes, keyed.then_some(&KEY));
        }

        #[test]
        fn nearly_right_replies_are_judged_and_hold_what_they_say(
            op: u8, length in 0u32..64, status in 0usize..10, part in 0u16..3, parts in 0u16..3,
            body in proptest::collection::vec(any::<u8>(), 0..64), tagged: bool,
        ) {
            let header = ReplyHeader { op_code: op & 0x7F, part, parts, ..header(Op::Read, length, Status::ALL[status]) };
            let bytes = datagram(header, tagged.then_some(&KEY), &body);
            if let Ok(reply) = Reply::parse(&bytes, Some(&KEY)) {
                prop_assert_eq!(reply.authentic, tagged);
                match reply.answer {
                    Answer::Data { data, part, parts, .. } => {
                        prop_assert!(data.len() == length as usize && part < parts);
                    }
                    Answer::Failed { status, .. } => prop_assert_ne!(status, Status::Ok),
                    _ => {}
                }
            }
        }
    }
}
