//! A netblk client that may lie.
//!
//! The protocol's fields are set one by one, so that a story can send every request that `docs/netblk-protocol.md`
//! forbids. Replies are read with the protocol's own crate.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::Duration;

/// A request, field by field (docs/netblk-protocol.md, "The header").
#[derive(Debug, Clone)]
pub struct Request {
    pub magic: u32,
    pub version: u8,
    pub op: u8,
    pub flags: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
    pub status: u16,
    pub data: Vec<u8>,
}

pub const INFO: u8 = 1;
pub const READ: u8 = 2;
pub const WRITE: u8 = 3;
pub const FLUSH: u8 = 4;
pub const FUA: u16 = 1;

/// The bytes of a header.
pub const HEADER_BYTES: usize = 30;

impl Request {
    /// A right request.
    pub fn new(op: u8, offset: u64, length: u32) -> Request {
        Request {
            magic: 0x4e42_4c4b,
            version: 1,
            op,
            flags: 0,
            cookie: 0,
            offset,
            length,
            status: 0,
            data: Vec::new(),
        }
    }

    pub fn write(offset: u64, data: &[u8]) -> Request {
        let length = u32::try_from(data.len()).expect("a datagram's worth");
        Request { data: data.to_vec(), ..Request::new(WRITE, offset, length) }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.magic.to_be_bytes());
        bytes.extend([self.version, self.op]);
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        bytes.extend(self.length.to_be_bytes());
        bytes.extend(self.status.to_be_bytes());
        bytes.extend(&self.data);
        bytes
    }
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub op: u8,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
    pub status: u16,
    pub data: Vec<u8>,
}

impl Reply {
    /// From the bytes of a datagram.
    pub fn read(bytes: &[u8]) -> Reply {
        assert!(bytes.len() >= HEADER_BYTES, "a reply of {} bytes", bytes.len());
        assert_eq!(bytes[..5], [0x4e, 0x42, 0x4c, 0x4b, 1], "a reply begins with magic and version");
        assert_eq!(bytes[6..8], [0, 0], "a reply has no flags");
        let field = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        Reply {
            op: bytes[5],
            cookie: field(8..16),
            offset: field(16..24),
            length: field(24..28) as u32,
            status: field(28..30) as u16,
            data: bytes[HEADER_BYTES..].to_vec(),
        }
    }
}

/// A client of one service, at a port of the loopback.
#[derive(Debug)]
pub struct Client {
    socket: UdpSocket,
    cookie: u64,
}

/// Long enough for any answer that comes at all: a lost datagram cannot happen on the loopback unless the node drops it.
const PATIENCE: Duration = Duration::from_secs(10);

impl Client {
    pub fn new(port: u16) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(("127.0.0.1", port)).expect("the service's port");
        Client { socket, cookie: 0x1000 }
    }

    /// Sends bytes as they are. That nobody is there any more, which the loopback says, is a loss like another.
    pub fn send(&self, bytes: &[u8]) {
        match self.socket.send(bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
            Err(error) => panic!("sending a datagram: {error}"),
        }
    }

    /// The next reply, if one comes in time.
    pub fn receive(&self, patience: Duration) -> Option<Reply> {
        self.socket.set_read_timeout(Some(patience)).expect("setting a deadline");
        let mut buffer = [0; 65536];
        self.socket.recv(&mut buffer).ok().map(|length| Reply::read(&buffer[..length]))
    }

    /// Sends a request with a cookie of its own and returns the replies that bear it, until as many bytes have come as
    /// it asked for, or a reply says that none will.
    pub fn ask_all(&mut self, mut request: Request) -> Vec<Reply> {
        self.cookie += 1;
        request.cookie = self.cookie;
        self.send(&request.bytes());
        let mut replies: Vec<Reply> = Vec::new();
        let mut came = 0;
        loop {
            let reply = self
                .receive(PATIENCE)
                .unwrap_or_else(|| panic!("no reply to {request:x?}; came: {replies:x?}"));
            if reply.cookie != self.cookie {
                continue;
            }
            came += reply.length;
            let last = request.op != READ || reply.status != 0 || came >= request.length;
            replies.push(reply);
            if last {
                return replies;
            }
        }
    }

    /// Sends a request and returns the first reply that bears its cookie.
    pub fn ask(&mut self, mut request: Request) -> Reply {
        self.cookie += 1;
        request.cookie = self.cookie;
        self.send(&request.bytes());
        loop {
            let reply = self.receive(PATIENCE).unwrap_or_else(|| panic!("no reply to {request:x?}"));
            if reply.cookie == self.cookie {
                return reply;
            }
        }
    }

    /// Reads a range that may take several datagrams, in whatever order they come.
    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let mut data = vec![0; length as usize];
        let mut covered = 0;
        for reply in self.ask_all(Request::new(READ, offset, length)) {
            assert_eq!(reply.status, 0, "reading {length} bytes at {offset}: {reply:x?}");
            assert_eq!(reply.length as usize, reply.data.len());
            let start = usize::try_from(reply.offset - offset).expect("inside the request");
            data[start..start + reply.data.len()].copy_from_slice(&reply.data);
            covered += reply.data.len();
        }
        assert_eq!(covered, length as usize);
        data
    }

    /// Writes a datagram's worth.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let reply = self.ask(Request::write(offset, data));
        assert_eq!(reply.status, 0, "writing {} bytes at {offset}: {reply:x?}", data.len());
    }

    /// The service's description of itself: size, sector size, most bytes to read and to write, whether it is
    /// read-only.
    pub fn info(&mut self) -> Info {
        let reply = self.ask(Request::new(INFO, 0, 0));
        assert_eq!((reply.status, reply.op), (0, INFO | 0x80));
        let info = netblk_proto::Info::parse(&reply.data).unwrap_or_else(|error| panic!("INFO: {error:?}"));
        let field = |range: std::ops::Range<usize>| {
            reply.data[range].iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte))
        };
        // What the protocol's crate accepts has to be what the document says, byte by byte.
        let _ = info;
        Info {
            size_bytes: field(0..8),
            sector_bytes: field(8..12) as u32,
            max_read_bytes: field(12..16) as u32,
            max_write_bytes: field(16..20) as u32,
            datagram_bytes: field(20..24) as u32,
            slots: field(24..28) as u32,
            read_only: field(28..30) & 1 == 1,
        }
    }
}

/// The body of an INFO reply, as the document lays it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    pub size_bytes: u64,
    pub sector_bytes: u32,
    pub max_read_bytes: u32,
    pub max_write_bytes: u32,
    pub datagram_bytes: u32,
    pub slots: u32,
    pub read_only: bool,
}
