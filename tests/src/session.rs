//! A netblk client of version 2 that may lie: it says hello like an honest one, and then sends what a story wants.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use netblk_proto::v2::{
    Answer, ConnectBody, HelloBody, HelloReply, Info, Op, PreSharedKey, Reply, RequestHeader, SessionKeys,
    Status, TagKey,
};

/// Long enough for any answer that comes at all.
const PATIENCE: Duration = Duration::from_secs(20);

/// After so long a request without an answer is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// What came of an exchange: the parts of a [`Reply`] that stories look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    pub cookie: u64,
    pub sequence: u64,
    pub authentic: bool,
    pub status: Status,
    pub offset: u64,
    pub data: Vec<u8>,
}

/// A datagram that came, and how long it was.
pub struct Came {
    bytes: Vec<u8>,
}

impl Came {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn read(&self, key: Option<&TagKey>) -> Reply<'_> {
        Reply::parse(&self.bytes, key).unwrap_or_else(|error| panic!("{error:?}: {:x?}", self.bytes))
    }
}

/// Someone with a socket, who has no session.
pub struct Stranger {
    socket: UdpSocket,
    nonce: u8,
}

impl Stranger {
    pub fn new(port: u16) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(("127.0.0.1", port)).expect("the service's port");
        Self { socket, nonce: 0 }
    }

    pub fn send(&self, datagram: &[u8]) {
        match self.socket.send(datagram) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => panic!("sending a datagram: {error}"),
        }
    }

    pub fn receive(&self, patience: Duration) -> Option<Came> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).expect("a deadline");
            let mut buffer = [0; 65536];
            match self.socket.recv(&mut buffer) {
                Ok(length) => return Some(Came { bytes: buffer[..length].to_vec() }),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && !left.is_zero() => {}
                Err(_) => return None,
            }
        }
    }

    /// A HELLO's bytes.
    pub fn hello_bytes(nonce: [u8; 16]) -> Vec<u8> {
        let body = HelloBody { client_nonce: nonce }.to_bytes();
        [&RequestHeader::new(Op::Hello, 0, 7, 0, 0).seal(None, &body)[..], &body].concat()
    }

    /// Says hello with a fresh nonce.
    pub fn hello(&mut self) -> Result<([u8; 16], HelloReply), Status> {
        self.nonce += 1;
        let nonce = [self.nonce; 16];
        self.send(&Self::hello_bytes(nonce));
        let came = self.receive(PATIENCE).expect("an answer to HELLO");
        match came.read(None).answer {
            Answer::Hello(reply) => Ok((nonce, reply)),
            Answer::Failed { status, .. } => Err(status),
            other => panic!("HELLO was answered with {other:?}"),
        }
    }

    /// A CONNECT's bytes, and the keys that it is made with.
    pub fn connect_bytes(body: &ConnectBody, secret: &PreSharedKey) -> (Vec<u8>, SessionKeys) {
        let keys = SessionKeys::derive(secret, &body.client_nonce, &body.challenge, body.epoch);
        let bytes = body.to_bytes();
        let header = RequestHeader::new(Op::Connect, 0, 8, 0, 0).seal(Some(&keys.client_to_server), &bytes);
        ([&header[..], &bytes].concat(), keys)
    }

    /// Becomes a guest.
    pub fn connect(self, secret: &PreSharedKey) -> Result<Session, Status> {
        self.connect_instead_of(0, secret)
    }

    /// Becomes a guest, in place of an older session.
    pub fn connect_instead_of(mut self, replaces: u64, secret: &PreSharedKey) -> Result<Session, Status> {
        let (client_nonce, HelloReply { challenge, epoch, .. }) = self.hello()?;
        let body = ConnectBody { client_nonce, challenge, epoch, replaces };
        let (datagram, keys) = Self::connect_bytes(&body, secret);
        self.send(&datagram);
        let came = self.receive(PATIENCE).expect("an answer to CONNECT");
        let reply = came.read(Some(&keys.server_to_client));
        match reply.answer {
            Answer::Connected(info) => {
                let info = Info::parse(info).expect("a description that makes sense");
                Ok(Session { session: reply.session, keys, info, cookie: 0x100, sequence: 0, stranger: self })
            }
            Answer::Failed { status, .. } => Err(status),
            other => panic!("CONNECT was answered with {other:?}"),
        }
    }
}

/// A guest.
pub struct Session {
    pub session: u64,
    pub keys: SessionKeys,
    pub info: Info,
    cookie: u64,
    sequence: u64,
    stranger: Stranger,
}

impl Session {
    /// A session without a key.
    pub fn open(port: u16) -> Session {
        Stranger::new(port).connect(&PreSharedKey::NONE).expect("a session")
    }

    /// A request with a cookie of its own and, if it changes the disk, the next number.
    pub fn request(&mut self, op: Op, offset: u64, length: u32) -> RequestHeader {
        self.cookie += 1;
        self.sequence += u64::from(op.is_numbered());
        let sequence = if op.is_numbered() { self.sequence } else { 0 };
        RequestHeader { sequence, ..RequestHeader::new(op, self.session, self.cookie, offset, length) }
    }

    /// The datagrams of a request with this data, tagged.
    pub fn datagrams(&self, header: &RequestHeader, data: &[u8]) -> Vec<Vec<u8>> {
        let datagram_bytes = self.info.device.datagram_bytes as usize;
        let pieces: Vec<&[u8]> =
            if data.is_empty() { vec![data] } else { data.chunks(datagram_bytes).collect() };
        let parts = pieces.len() as u16;
        let tagged = |(part, piece): (usize, &&[u8])| {
            let header = RequestHeader { part: part as u16, parts, ..*header };
            [&header.seal(Some(&self.keys.client_to_server), piece)[..], piece].concat()
        };
        pieces.iter().enumerate().map(tagged).collect()
    }

    pub fn send(&self, datagram: &[u8]) {
        self.stranger.send(datagram);
    }

    /// Sends a request, whole.
    pub fn send_request(&self, header: &RequestHeader, data: &[u8]) {
        self.datagrams(header, data).iter().for_each(|datagram| self.send(datagram));
    }

    /// The next reply, if one comes in time.
    pub fn receive(&self, patience: Duration) -> Option<Said> {
        let came = self.stranger.receive(patience)?;
        let reply = came.read(Some(&self.keys.server_to_client));
        let (status, offset, data) = match reply.answer {
            Answer::Data { offset, data, .. } => (Status::Ok, offset, data.to_vec()),
            Answer::Info(data) | Answer::Connected(data) => (Status::Ok, 0, data.to_vec()),
            Answer::Done { offset, .. } => (Status::Ok, offset, Vec::new()),
            Answer::Failed { status, offset, .. } => (status, offset, Vec::new()),
            Answer::Hello(_) => (Status::Ok, 0, Vec::new()),
        };
        let Reply { cookie, sequence, authentic, .. } = reply;
        Some(Said { cookie, sequence, authentic, status, offset, data })
    }

    /// The reply that bears this cookie.
    pub fn reply_to(&self, header: &RequestHeader) -> Said {
        loop {
            let said = self.receive(PATIENCE).unwrap_or_else(|| panic!("no reply to {header:x?}"));
            if said.cookie == header.cookie {
                return said;
            }
        }
    }

    /// Sends a request and waits for its first reply; asks again while there is none, as a client does: a host that
    /// is busy loses datagrams.
    pub fn ask(&mut self, op: Op, offset: u64, length: u32, data: &[u8]) -> Said {
        let header = self.request(op, offset, length);
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            self.send_request(&header, data);
            while let Some(said) = self.receive(AGAIN) {
                if said.cookie == header.cookie {
                    return said;
                }
            }
        }
        panic!("no reply to {header:x?}");
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let said = self.ask(Op::Write, offset, data.len() as u32, data);
        assert!(said.status == Status::Ok && said.authentic, "writing at {offset}: {said:x?}");
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let header = self.request(Op::Read, offset, length);
        let mut data = vec![None; length as usize];
        let deadline = Instant::now() + PATIENCE;
        while data.iter().any(Option::is_none) {
            assert!(Instant::now() < deadline, "no whole answer to {header:x?}");
            self.send_request(&header, &[]);
            while data.iter().any(Option::is_none)
                && let Some(said) = self.receive(AGAIN)
            {
                if said.cookie != header.cookie {
                    continue;
                }
                assert!(said.status == Status::Ok && said.authentic, "reading at {offset}: {said:x?}");
                let start = (said.offset - offset) as usize;
                for (place, byte) in said.data.into_iter().enumerate() {
                    data[start + place] = Some(byte);
                }
            }
        }
        data.into_iter().flatten().collect()
    }

    /// The socket, to begin again with.
    pub fn into_stranger(self) -> Stranger {
        self.stranger
    }
}
