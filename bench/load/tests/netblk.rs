//! The netblk client, in both versions, against a server of a few lines that is busy now and then.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use load::netblk::{Netblk, Version};
use load::{Operation, Plan, run};
use netblk_proto::v2::{self, Capabilities, ConnectBody, HelloBody, HelloReply, PreSharedKey, SessionKeys};
use netblk_proto::{HeaderView, Info, Label, Op, ReplyHeader, Status};

const RANGE_BYTES: u64 = 1 << 20;
const DATAGRAM_BYTES: u32 = 1024;
const SESSION: u64 = 7;
const EPOCH: u64 = 9;
/// Every so many requests the server has no room.
const BUSY_EVERY: u64 = 50;

fn info() -> Info {
    Info {
        size_bytes: RANGE_BYTES,
        sector_bytes: 512,
        max_read_bytes: 16 * DATAGRAM_BYTES,
        max_write_bytes: DATAGRAM_BYTES,
        datagram_bytes: DATAGRAM_BYTES,
        slots: 256,
        read_only: false,
        mtu: 1500,
        name: Label::new("nvme0n1"),
        model: Label::new("none"),
    }
}

/// The pieces of a READ.
fn pieces(offset: u64, length: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..length.div_ceil(DATAGRAM_BYTES))
        .map(move |piece| (offset + u64::from(piece * DATAGRAM_BYTES), DATAGRAM_BYTES))
}

struct Server {
    socket: UdpSocket,
    requests: u64,
    keys: Option<SessionKeys>,
    sequences: HashSet<u64>,
    highest_sequence: u64,
}

impl Server {
    fn start() -> SocketAddr {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let server =
            Server { socket, requests: 0, keys: None, sequences: HashSet::new(), highest_sequence: 0 };
        std::thread::spawn(move || server.serve());
        address
    }

    fn serve(mut self) {
        let mut room = [0; 2048];
        loop {
            let (bytes, from) = self.socket.recv_from(&mut room).unwrap();
            let datagram = &room[..bytes];
            self.requests += 1;
            let answers =
                if datagram[4] == 1 { self.version_one(datagram) } else { self.version_two(datagram) };
            for answer in answers {
                // A client that has left is no fault of the server's.
                let _ = self.socket.send_to(&answer, from);
            }
        }
    }

    fn is_busy(&self) -> bool {
        self.requests.is_multiple_of(BUSY_EVERY)
    }

    fn version_one(&self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let view = HeaderView::new(datagram).unwrap();
        let op = Op::try_from(view.op()).unwrap();
        let (cookie, offset, length) = (view.cookie(), view.offset(), view.length());
        assert!(op == Op::Info || offset + u64::from(length) <= RANGE_BYTES);
        let header = |offset, length, status| ReplyHeader::new(op, cookie, offset, length, status).to_bytes();
        let with_body = |header: &[u8], bytes: &[u8]| [header, bytes].concat();
        match op {
            Op::Info => {
                let body = info().to_bytes();
                vec![with_body(&header(0, body.len() as u32, Status::Ok), &body)]
            }
            _ if self.is_busy() => vec![header(offset, length, Status::Busy).to_vec()],
            Op::Read => pieces(offset, length)
                .map(|(offset, length)| {
                    with_body(&header(offset, length, Status::Ok), &vec![0; length as usize])
                })
                .collect(),
            Op::Write => {
                assert_eq!(view.body().len(), length as usize);
                vec![header(offset, length, Status::Ok).to_vec()]
            }
            Op::Flush => Vec::new(),
        }
    }

    fn version_two(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let view = v2::HeaderView::new(datagram).unwrap();
        let op = v2::Op::try_from(view.op()).unwrap();
        let (cookie, offset, length) = (view.cookie(), view.offset(), view.length());
        match op {
            v2::Op::Hello => {
                let hello = HelloBody::parse(view.body()).unwrap();
                let body =
                    HelloReply { challenge: hello.client_nonce, epoch: EPOCH, key_needed: false }.to_bytes();
                let header = v2::ReplyHeader::new(op, 0, cookie, 0, body.len() as u32, v2::Status::Ok);
                return vec![[&header.seal(None, body.len(), &body)[..], &body].concat()];
            }
            v2::Op::Connect => {
                let connect = ConnectBody::parse(view.body()).unwrap();
                let keys = SessionKeys::derive(
                    &PreSharedKey::NONE,
                    &connect.client_nonce,
                    &connect.challenge,
                    EPOCH,
                );
                assert!(view.is_tagged_with(&keys.client_to_server));
                let info = v2::Info {
                    device: info(),
                    capabilities: Capabilities::default(),
                    max_discard_bytes: 0,
                    max_write_zeroes_bytes: 0,
                    write_window: v2::WINDOW,
                    epoch: EPOCH,
                };
                let body = info.to_bytes();
                let header = v2::ReplyHeader::new(op, SESSION, cookie, 0, body.len() as u32, v2::Status::Ok);
                let sealed = header.seal(Some(&keys.server_to_client), body.len(), &body);
                (self.keys, self.sequences, self.highest_sequence) = (Some(keys), HashSet::new(), 0);
                return vec![[&sealed[..], &body].concat()];
            }
            _ => {}
        }
        let Some(keys) = self.keys.clone() else { return Vec::new() };
        assert!(view.session() == SESSION && view.is_tagged_with(&keys.client_to_server));
        let reply =
            |offset, length, status| v2::ReplyHeader::new(op, SESSION, cookie, offset, length, status);
        let seal = |header: v2::ReplyHeader, data: &[u8]| {
            [&header.seal(Some(&keys.server_to_client), data.len(), &[])[..], data].concat()
        };
        match op {
            v2::Op::Read if self.is_busy() => vec![seal(reply(offset, length, v2::Status::Busy), &[])],
            v2::Op::Read => pieces(offset, length)
                .map(|(offset, length)| {
                    seal(reply(offset, length, v2::Status::Ok), &vec![0; length as usize])
                })
                .collect(),
            v2::Op::Write => {
                let sequence = view.sequence();
                self.highest_sequence = self.highest_sequence.max(sequence);
                assert!(sequence + u64::from(v2::WINDOW) > self.highest_sequence, "too old");
                let status = if self.is_busy() { v2::Status::Busy } else { v2::Status::Ok };
                if status == v2::Status::Ok {
                    assert!(self.sequences.insert(sequence), "{sequence} came twice");
                }
                vec![seal(reply(offset, length, status).numbered(sequence), &[])]
            }
            _ => Vec::new(),
        }
    }
}

#[test]
fn both_versions_read_and_write_though_the_server_is_busy_now_and_then() {
    let address = Server::start();
    for version in [Version::One, Version::Two] {
        for (operation, bytes) in [(Operation::Read, 1024), (Operation::Read, 4096), (Operation::Write, 1024)]
        {
            let plan = Plan {
                operation,
                bytes,
                window: 8,
                warm_up: Duration::from_millis(5),
                duration: Duration::from_millis(300),
                range_bytes: RANGE_BYTES,
                seed: 5,
            };
            let mut client = Netblk::connect(address, version, &plan).unwrap();
            let report = run(&mut client, &plan).unwrap();
            assert!(report.requests > BUSY_EVERY && report.turned_away > 0, "{version:?} {report:?}");
            assert_eq!(report.asked_again, 0, "{version:?} {report:?}");
        }
    }
}

#[test]
fn a_disk_that_is_too_small_is_an_error() {
    let address = Server::start();
    let plan = Plan {
        operation: Operation::Read,
        bytes: 1024,
        window: 1,
        warm_up: Duration::ZERO,
        duration: Duration::from_millis(10),
        range_bytes: 2 * RANGE_BYTES,
        seed: 5,
    };
    let error = Netblk::connect(address, Version::Two, &plan).err().unwrap();
    assert!(error.to_string().contains("only 1048576 bytes"), "{error:#}");
}
