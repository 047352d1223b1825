//! What differs between the versions: what a request looks like, and what an answer says.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netblk_proto::v2::{self, Answer, ConnectBody, HelloBody, PreSharedKey, SessionKeys};
use netblk_proto::{Flags, Info, Op, Reply, RequestHeader, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::datagrams::Datagrams;
use crate::plan::Operation;

/// The protocol's versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    One,
    /// With a session, without a key.
    Two,
}

/// How long a server may take to say what it serves, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(5);
const ASK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// A request, or a part of one.
pub struct Asked {
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
    /// 0 for what changes nothing.
    pub sequence: u64,
}

/// What an answer says.
pub enum Said {
    Data { offset: u64 },
    Written,
    Busy { offset: u64, length: u32 },
    Refused(String),
}

/// How to talk with a server.
pub enum Dialect {
    One,
    Two { session: u64, keys: SessionKeys },
}

impl Dialect {
    /// Asks the server what it serves.
    pub fn open(datagrams: &mut Datagrams, version: Version) -> Result<(Self, Info)> {
        match version {
            Version::One => {
                let request =
                    RequestHeader { op: Op::Info, flags: Flags::NONE, cookie: 0, offset: 0, length: 0 };
                let info = exchange(datagrams, &request.to_bytes(), |datagram| {
                    let Ok(Reply::Info { body, .. }) = Reply::parse(datagram) else { return None };
                    Info::parse(body).ok()
                })?;
                Ok((Self::One, info))
            }
            Version::Two => open_session(datagrams),
        }
    }

    /// How far the numbers of changes under way may lie apart; `None` without numbers.
    pub fn sequence_window(&self) -> Option<u64> {
        match self {
            Self::One => None,
            Self::Two { .. } => Some(v2::WINDOW.into()),
        }
    }

    /// Writes the datagram.
    pub fn write(&self, operation: Operation, asked: &Asked, out: &mut Vec<u8>) {
        let Asked { cookie, offset, length, sequence } = *asked;
        // Other bytes for other slots.
        let fill = (cookie >> 32).to_le_bytes()[0];
        let data_bytes = if operation == Operation::Write { length as usize } else { 0 };
        match self {
            Self::One => {
                let op = if operation == Operation::Write { Op::Write } else { Op::Read };
                let header = RequestHeader { op, flags: Flags::NONE, cookie, offset, length };
                out.extend_from_slice(&header.to_bytes());
                out.resize(out.len() + data_bytes, fill);
            }
            Self::Two { session, keys } => {
                let op = if operation == Operation::Write { v2::Op::Write } else { v2::Op::Read };
                let mut header = v2::RequestHeader::new(op, *session, cookie, offset, length);
                header.sequence = sequence;
                // The header stands before the data, and its tag covers the data's length.
                out.resize(v2::HEADER_BYTES, 0);
                out.resize(v2::HEADER_BYTES + data_bytes, fill);
                let (room, data) = out.split_at_mut(v2::HEADER_BYTES);
                room.copy_from_slice(&header.seal(Some(&keys.client_to_server), data));
            }
        }
    }

    /// The cookie of an answer, and what it says. `None` for what is none.
    pub fn read(&self, datagram: &[u8]) -> Option<(u64, Said)> {
        match self {
            Self::One => {
                let reply = Reply::parse(datagram).ok()?;
                let said = match reply {
                    Reply::Data { offset, .. } => Said::Data { offset },
                    Reply::Written { .. } => Said::Written,
                    Reply::Failed { offset, length, status: Status::Busy, .. } => {
                        Said::Busy { offset, length }
                    }
                    Reply::Failed { status, .. } => Said::Refused(format!("{status:?}")),
                    Reply::Info { .. } | Reply::Flushed { .. } => return None,
                };
                Some((reply.cookie(), said))
            }
            Self::Two { session, keys } => {
                let reply = v2::Reply::parse(datagram, Some(&keys.server_to_client)).ok()?;
                if reply.session != *session {
                    return None;
                }
                let said = match reply.answer {
                    Answer::Data { offset, .. } => Said::Data { offset },
                    Answer::Done { op: v2::Op::Write, .. } => Said::Written,
                    Answer::Failed { offset, length, status: v2::Status::Busy, .. } => {
                        Said::Busy { offset, length }
                    }
                    Answer::Failed { status, .. } => Said::Refused(format!("{status:?}")),
                    Answer::Hello(_) | Answer::Connected(_) | Answer::Info(_) | Answer::Done { .. } => {
                        return None;
                    }
                };
                Some((reply.cookie, said))
            }
        }
    }

    /// Writes the end of the session, if there is one.
    pub fn close(&self, out: &mut Vec<u8>) -> bool {
        let Self::Two { session, keys } = self else { return false };
        let header = v2::RequestHeader::new(v2::Op::Close, *session, 0, 0, 0);
        out.extend_from_slice(&header.seal(Some(&keys.client_to_server), &[]));
        true
    }
}

/// HELLO and CONNECT.
fn open_session(datagrams: &mut Datagrams) -> Result<(Dialect, Info)> {
    let client_nonce = nonce();
    let body = HelloBody { client_nonce }.to_bytes();
    let header = v2::RequestHeader::new(v2::Op::Hello, 0, 1, 0, 0).seal(None, &body);
    let hello = exchange(datagrams, &[&header[..], &body].concat(), |datagram| {
        match v2::Reply::parse(datagram, None).ok()?.answer {
            Answer::Hello(hello) => Some(hello),
            _ => None,
        }
    })?;
    ensure!(!hello.key_needed, "the service has a key");
    let keys = SessionKeys::derive(&PreSharedKey::NONE, &client_nonce, &hello.challenge, hello.epoch);
    let connect = ConnectBody { client_nonce, challenge: hello.challenge, epoch: hello.epoch, replaces: 0 };
    let body = connect.to_bytes();
    let header =
        v2::RequestHeader::new(v2::Op::Connect, 0, 2, 0, 0).seal(Some(&keys.client_to_server), &body);
    let answer = exchange(datagrams, &[&header[..], &body].concat(), |datagram| {
        let reply = v2::Reply::parse(datagram, Some(&keys.server_to_client)).ok()?;
        match reply.answer {
            Answer::Connected(body) => {
                v2::Info::parse(body).ok().map(|info| Ok((reply.session, info.device)))
            }
            Answer::Failed { status, .. } => Some(Err(status)),
            _ => None,
        }
    })?;
    match answer {
        Ok((session, info)) => Ok((Dialect::Two { session, keys }, info)),
        Err(status) => bail!("the server gives no session: {status:?}"),
    }
}

/// A number that differs from run to run: the hasher's keys are the standard library's random ones.
fn nonce() -> [u8; v2::NONCE_BYTES] {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let random = || RandomState::new().build_hasher().finish().to_le_bytes();
    let mut nonce = [0; v2::NONCE_BYTES];
    nonce.iter_mut().zip(random().into_iter().chain(random())).for_each(|(byte, random)| *byte = random);
    nonce
}

/// Sends a datagram until an answer is understood.
fn exchange<T>(
    datagrams: &mut Datagrams,
    request: &[u8],
    mut understand: impl FnMut(&[u8]) -> Option<T>,
) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    let mut answer = None;
    while Instant::now() < deadline {
        datagrams.push(None).extend_from_slice(request);
        datagrams.send()?;
        let mut ready = [PollFd::from_borrowed_fd(datagrams.socket(), PollFlags::IN)];
        poll(&mut ready, Some(&ASK_AGAIN)).context("waiting for the server")?;
        datagrams.receive(|datagram| {
            if answer.is_none() {
                answer = understand(datagram);
            }
        })?;
        if let Some(answer) = answer {
            return Ok(answer);
        }
    }
    bail!("the server does not say what it serves")
}
