//! Both versions of the protocol, as one: what is asked and what is answered, without the bytes.

use netblk_proto::v2::{self, Op, SessionKeys, Status};
use netblk_proto::{self as v1, Flags};

/// One datagram's worth of a request.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    pub op: Op,
    pub forced: bool,
    pub offset: u64,
    pub length: u32,
    pub part: u16,
    pub parts: u16,
    pub sequence: u64,
    pub data: &'a [u8],
}

/// What an answer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Part of a READ.
    Data { offset: u64, data: &'a [u8] },
    /// The body of an INFO.
    Info(&'a [u8]),
    /// Done, and nothing to bring.
    Done { op: Op, offset: u64, length: u32 },
    /// Not done.
    Failed { offset: u64, length: u32, status: Status },
}

/// The language that a server and this client speak with each other.
#[derive(Debug, Clone)]
pub enum Language {
    One,
    Two { session: u64, keys: Box<SessionKeys> },
}

impl Language {
    /// Writes a request into `datagram`.
    pub fn write(&self, asking: &Asking<'_>, cookie: u64, datagram: &mut Vec<u8>) {
        let flags = if asking.forced { Flags::FUA } else { Flags::NONE };
        let Asking { op, offset, length, part, parts, sequence, data, .. } = *asking;
        datagram.clear();
        match self {
            Self::One => {
                let op = match op {
                    Op::Read => v1::Op::Read,
                    Op::Write => v1::Op::Write,
                    Op::Flush => v1::Op::Flush,
                    // Version 1 has no others, and nobody starts them: see `Engine::start`.
                    _ => v1::Op::Info,
                };
                let header = v1::RequestHeader { op, flags, cookie, offset, length };
                datagram.extend_from_slice(&header.to_bytes());
            }
            Self::Two { session, keys } => {
                let header = v2::RequestHeader {
                    flags,
                    part,
                    parts,
                    sequence,
                    ..v2::RequestHeader::new(op, *session, cookie, offset, length)
                };
                datagram.extend_from_slice(&header.seal(Some(&keys.client_to_server), data));
            }
        }
        datagram.extend_from_slice(data);
    }

    /// Reads an answer and the cookie it bears. `None`: it is no answer, or not from this server.
    pub fn read<'a>(&self, datagram: &'a [u8]) -> Option<(u64, Answer<'a>)> {
        match self {
            Self::One => {
                let reply = v1::Reply::parse(datagram).ok()?;
                let answer = match reply {
                    v1::Reply::Data { offset, data, .. } => Answer::Data { offset, data },
                    v1::Reply::Info { body, .. } => Answer::Info(body),
                    v1::Reply::Written { offset, length, .. } => {
                        Answer::Done { op: Op::Write, offset, length }
                    }
                    v1::Reply::Flushed { .. } => Answer::Done { op: Op::Flush, offset: 0, length: 0 },
                    v1::Reply::Failed { offset, length, status, .. } => {
                        Answer::Failed { offset, length, status: status.into() }
                    }
                };
                Some((reply.cookie(), answer))
            }
            Self::Two { session, keys } => {
                let reply = v2::Reply::parse(datagram, Some(&keys.server_to_client)).ok()?;
                if reply.session != *session {
                    return None;
                }
                let answer = match reply.answer {
                    v2::Answer::Data { offset, data, .. } => Answer::Data { offset, data },
                    v2::Answer::Info(body) => Answer::Info(body),
                    v2::Answer::Done { op, offset, length } => Answer::Done { op, offset, length },
                    v2::Answer::Failed { offset, length, status, .. } => {
                        Answer::Failed { offset, length, status }
                    }
                    v2::Answer::Hello(_) | v2::Answer::Connected(_) => return None,
                };
                Some((reply.cookie, answer))
            }
        }
    }
}
