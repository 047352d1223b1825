//! How a session comes to be: HELLO, CONNECT, and again after a server was silent or restarted.
//!
//! ```text
//!   asking --challenge--> connecting --INFO--> (a session)
//!     ^  ^                    |  |
//!     |  +----- status 6 -----+  |
//!     +--- challenge too old ----+          asking --version 1's refusal--> (version 1)
//! ```
//!
//! A pure state machine: it is told the time and what came, and says what to send and when to be
//! asked again. The nonces are given to it.

use netblk_proto::v2::{
    self, Answer, ConnectBody, HelloBody, Info, NONCE_BYTES, Op, PreSharedKey, Reply, RequestHeader,
    SessionKeys, Status,
};
use netblk_proto::{self as v1, InfoError};

/// The first pause before a HELLO or CONNECT is repeated; it doubles.
const FIRST_PAUSE_NS: u64 = 100_000_000;
/// The longest.
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;
/// "No" this often is believed. It has no tag: a CONNECT that was damaged on its way is refused too.
const REFUSALS_BELIEVED: u32 = 3;
/// A challenge that is older is not tried any more: the server accepts it for 8 to 16 s.
const CHALLENGE_NS: u64 = 8_000_000_000;

/// Which versions may be spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Version 2, or version 1 with a server that knows no other.
    #[default]
    Auto,
    /// Version 1 only.
    One,
    /// Version 2 only.
    Two,
}

/// A session as the server gave it.
#[derive(Debug, Clone)]
pub struct Established {
    pub session: u64,
    pub keys: Box<SessionKeys>,
    pub info: Info,
}

/// What a datagram did.
#[derive(Debug)]
pub enum Step {
    /// It was not for the link, or said nothing new.
    Nothing,
    /// The next datagram can be sent.
    Onward,
    /// The server speaks version 1 alone.
    VersionOne,
    /// There is a session.
    Established(Established),
    /// The server will not have this client.
    Refused,
    /// The server wants a key, and there is none.
    KeyNeeded,
    /// The server describes a device that cannot be.
    Nonsense(InfoError),
}

#[derive(Debug)]
struct Challenge {
    bytes: [u8; v2::CHALLENGE_BYTES],
    epoch: u64,
    since_ns: u64,
    keys: Box<SessionKeys>,
}

/// See the module.
#[derive(Debug)]
pub struct Link {
    key: PreSharedKey,
    nonce: [u8; NONCE_BYTES],
    /// The session that the new one takes the place of; 0 for none.
    replaces: u64,
    challenge: Option<Challenge>,
    /// The cookie of the last transmission.
    cookie: u64,
    tries: u32,
    refusals: u32,
    /// How often a challenge did not hold.
    stale: u32,
    due_ns: u64,
}

impl Link {
    /// Begins at once.
    pub fn new(key: PreSharedKey, nonce: [u8; NONCE_BYTES], replaces: u64, now_ns: u64) -> Self {
        Self {
            key,
            nonce,
            replaces,
            challenge: None,
            cookie: 0,
            tries: 0,
            refusals: 0,
            stale: 0,
            due_ns: now_ns,
        }
    }

    /// When the next datagram is to be sent.
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Transmissions since the last answer.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Writes what is due, with that cookie.
    pub fn write(&mut self, now_ns: u64, cookie: u64, datagram: &mut Vec<u8>) {
        if self.challenge.as_ref().is_some_and(|challenge| now_ns - challenge.since_ns > CHALLENGE_NS) {
            self.start_over();
        }
        self.cookie = cookie;
        let pause_ns = FIRST_PAUSE_NS.saturating_mul(1 << self.tries.min(8)).min(LONGEST_PAUSE_NS);
        self.tries += 1;
        self.due_ns = now_ns.saturating_add(pause_ns);
        datagram.clear();
        match &self.challenge {
            None => {
                let body = HelloBody { client_nonce: self.nonce }.to_bytes();
                let header = RequestHeader::new(Op::Hello, 0, cookie, 0, 0);
                datagram.extend_from_slice(&header.seal(None, &body));
                datagram.extend_from_slice(&body);
            }
            Some(challenge) => {
                let body = ConnectBody {
                    client_nonce: self.nonce,
                    challenge: challenge.bytes,
                    epoch: challenge.epoch,
                    replaces: self.replaces,
                }
                .to_bytes();
                let header = RequestHeader::new(Op::Connect, 0, cookie, 0, 0);
                datagram.extend_from_slice(&header.seal(Some(&challenge.keys.client_to_server), &body));
                datagram.extend_from_slice(&body);
            }
        }
    }

    fn start_over(&mut self) {
        self.challenge = None;
        self.tries = 0;
    }

    /// Takes a datagram.
    pub fn receive(&mut self, now_ns: u64, datagram: &[u8], protocol: Protocol) -> Step {
        let key = self.challenge.as_ref().map(|challenge| challenge.keys.server_to_client);
        let reply = match Reply::parse(datagram, key.as_ref()) {
            Ok(reply) => reply,
            Err(_) => return self.version_one(datagram, protocol),
        };
        if reply.cookie != self.cookie {
            return Step::Nothing;
        }
        match (reply.answer, &self.challenge) {
            (Answer::Hello(hello), None) => {
                if hello.key_needed && self.key == PreSharedKey::NONE {
                    return Step::KeyNeeded;
                }
                let keys = SessionKeys::derive(&self.key, &self.nonce, &hello.challenge, hello.epoch);
                self.challenge = Some(Challenge {
                    bytes: hello.challenge,
                    epoch: hello.epoch,
                    since_ns: now_ns,
                    keys: Box::new(keys),
                });
                self.tries = 0;
                self.due_ns = now_ns;
                Step::Onward
            }
            (Answer::Connected(body), Some(challenge)) if reply.authentic => match Info::parse(body) {
                Ok(info) => {
                    let keys = challenge.keys.clone();
                    Step::Established(Established { session: reply.session, keys, info })
                }
                Err(error) => Step::Nonsense(error),
            },
            (Answer::Failed { status: Status::StaleSession, .. }, Some(_)) => {
                self.start_over();
                // Once is the server's restart. Again: another session is still in use at this address and port.
                self.due_ns = if self.stale == 0 { now_ns } else { now_ns.saturating_add(LONGEST_PAUSE_NS) };
                self.stale += 1;
                Step::Onward
            }
            (Answer::Failed { status: Status::Refused, .. }, _) => {
                self.refusals += 1;
                if self.refusals < REFUSALS_BELIEVED {
                    self.start_over();
                    self.due_ns = now_ns.saturating_add(FIRST_PAUSE_NS);
                    return Step::Onward;
                }
                Step::Refused
            }
            _ => Step::Nothing,
        }
    }

    /// A server that knows version 1 alone says so in its own words.
    fn version_one(&self, datagram: &[u8], protocol: Protocol) -> Step {
        match v1::Reply::parse(datagram) {
            Ok(v1::Reply::Failed { cookie, status: v1::Status::BadRequest, .. })
                if cookie == self.cookie && protocol == Protocol::Auto && self.challenge.is_none() =>
            {
                Step::VersionOne
            }
            _ => Step::Nothing,
        }
    }
}
