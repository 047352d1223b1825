//! A netblk server on a host's UDP socket, and a network that misbehaves by seed.
//!
//! It judges requests with the same `netblk_proto::check` as the node, serves an image in memory,
//! and lets every datagram in either direction be lost, doubled, held back or damaged.
#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::VecDeque;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use netblk::pattern::Random;
use netblk_proto::{
    Command, INFO_BYTES, Info, Label, Limits, MAGIC, Op, ReplyHeader, Request, Status, check,
};

/// Of a thousand datagrams, how many suffer what.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub doubled: u64,
    pub held_back: u64,
    /// The header is damaged, so that it shows (magic, version, op or cookie), or the datagram cut.
    pub damaged: u64,
    /// A byte of data is damaged: nothing in the protocol can show that.
    pub data_damaged: u64,
    /// Something that is no answer at all comes along.
    pub noise: u64,
}

/// How the fake behaves.
#[derive(Debug, Clone)]
pub struct Behaviour {
    pub seed: u64,
    pub faults: Faults,
    pub read_only: bool,
    /// Transfers that touch these bytes fail.
    pub bad: Range<u64>,
    /// Of a thousand READs and WRITEs, how many are answered "busy" (in part).
    pub busy: u64,
    /// INFO is answered and nothing else.
    pub mute: bool,
    pub sector_bytes: u32,
    pub mtu: u16,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            seed: 1,
            faults: Faults::default(),
            read_only: false,
            bad: 0..0,
            busy: 0,
            mute: false,
            sector_bytes: 512,
            mtu: 1500,
        }
    }
}

/// What the fake has seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    pub requests: [u64; 4],
    pub refused: u64,
    pub fua_writes: u64,
    pub unflushed_writes: u64,
    pub largest_burst: usize,
}

struct State {
    image: Vec<u8>,
    seen: Seen,
}

pub struct FakeServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeServer {
    pub fn start(image: Vec<u8>, behaviour: Behaviour) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let address = socket.local_addr().unwrap();
        let sectors = image.len() as u64 / u64::from(behaviour.sector_bytes);
        let limits =
            Limits::new(behaviour.sector_bytes, sectors, behaviour.mtu, behaviour.read_only).unwrap();
        let state = Arc::new(Mutex::new(State { image, seen: Seen::default() }));
        let stop = Arc::new(AtomicBool::new(false));
        let server = Server {
            network: Network {
                socket,
                random: Random::new(behaviour.seed),
                faults: behaviour.faults,
                held: VecDeque::new(),
            },
            behaviour,
            limits,
            state: state.clone(),
        };
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || server.run(&stopping));
        Self { address, state, stop, thread: Some(thread) }
    }

    pub fn target(&self) -> String {
        self.address.to_string()
    }

    pub fn image(&self) -> Vec<u8> {
        self.state.lock().unwrap().image.clone()
    }

    pub fn seen(&self) -> Seen {
        self.state.lock().unwrap().seen.clone()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

struct Server {
    network: Network,
    behaviour: Behaviour,
    limits: Limits,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn run(mut self, stop: &AtomicBool) {
        let mut buffer = vec![0; 1 << 16];
        while !stop.load(Ordering::Relaxed) {
            match self.network.socket.recv_from(&mut buffer) {
                Ok((bytes, client)) => {
                    let mut datagram = buffer[..bytes].to_vec();
                    if self.network.strike(self.network.faults.lost) {
                        continue;
                    }
                    if self.network.strike(self.network.faults.damaged) {
                        self.network.damage(&mut datagram);
                    }
                    self.serve(&datagram, client);
                    if self.network.strike(self.network.faults.doubled) {
                        self.serve(&datagram, client);
                    }
                }
                Err(_) => self.network.release_all(),
            }
        }
    }

    fn serve(&mut self, datagram: &[u8], client: SocketAddr) {
        match check(datagram, &self.limits) {
            Ok(request) => {
                let op = request.command.op();
                self.state.lock().unwrap().seen.requests[usize::from(op.code()) - 1] += 1;
                if op == Op::Info || !self.behaviour.mute {
                    self.carry_out(&request, datagram, client);
                }
            }
            Err(refused) => {
                self.state.lock().unwrap().seen.refused += 1;
                if let Some(answer) = refused.answer {
                    self.network.send(&answer.to_bytes(), client);
                }
            }
        }
    }

    fn carry_out(&mut self, request: &Request, datagram: &[u8], client: SocketAddr) {
        let cookie = request.cookie;
        match request.command {
            Command::Info => {
                let body = self.info().to_bytes();
                let header = ReplyHeader::new(Op::Info, cookie, 0, INFO_BYTES as u32, Status::Ok);
                self.network.send(&[&header.to_bytes()[..], &body].concat(), client);
            }
            Command::Read(range, _) => {
                let mut pieces = range.pieces(&self.limits);
                while let Some(rest) = pieces.rest() {
                    if self.network.strike(self.behaviour.busy) {
                        let busy =
                            ReplyHeader::new(Op::Read, cookie, rest.offset(), rest.length(), Status::Busy);
                        self.network.send(&busy.to_bytes(), client);
                        return;
                    }
                    let piece = pieces.next().unwrap();
                    let status = self.outcome(piece.offset(), piece.length());
                    let header = ReplyHeader::new(Op::Read, cookie, piece.offset(), piece.length(), status);
                    let mut reply = header.to_bytes().to_vec();
                    if status == Status::Ok {
                        let start = piece.offset() as usize;
                        let state = self.state.lock().unwrap();
                        reply.extend_from_slice(&state.image[start..start + piece.length() as usize]);
                    }
                    self.network.send(&reply, client);
                }
            }
            Command::Write(range, durability) => {
                let status = if self.network.strike(self.behaviour.busy) {
                    Status::Busy
                } else {
                    self.outcome(range.offset(), range.length())
                };
                if status == Status::Ok {
                    let start = range.offset() as usize;
                    let mut state = self.state.lock().unwrap();
                    state.image[start..start + range.length() as usize]
                        .copy_from_slice(&datagram[netblk_proto::HEADER_BYTES..]);
                    state.seen.unflushed_writes += 1;
                    state.seen.fua_writes +=
                        u64::from(durability == netblk_proto::Durability::ForceUnitAccess);
                }
                let header = ReplyHeader::new(Op::Write, cookie, range.offset(), range.length(), status);
                self.network.send(&header.to_bytes(), client);
            }
            Command::Flush => {
                self.state.lock().unwrap().seen.unflushed_writes = 0;
                let header = ReplyHeader::new(Op::Flush, cookie, 0, 0, Status::Ok);
                self.network.send(&header.to_bytes(), client);
            }
        }
    }

    fn outcome(&self, offset: u64, length: u32) -> Status {
        let bad = &self.behaviour.bad;
        if offset < bad.end && bad.start < offset + u64::from(length) { Status::IoError } else { Status::Ok }
    }

    fn info(&self) -> Info {
        Info {
            size_bytes: self.limits.size_bytes(),
            sector_bytes: self.limits.sector_bytes(),
            max_read_bytes: self.limits.max_read_bytes(),
            max_write_bytes: self.limits.datagram_bytes(),
            datagram_bytes: self.limits.datagram_bytes(),
            slots: 256,
            read_only: self.limits.read_only(),
            mtu: self.behaviour.mtu,
            name: Label::new("fake0"),
            model: Label::new("A disk in a test"),
        }
    }
}

struct Network {
    socket: UdpSocket,
    random: Random,
    faults: Faults,
    /// Datagrams that are overtaken by as many others as stand behind the number.
    held: VecDeque<(u64, Vec<u8>, SocketAddr)>,
}

impl Network {
    fn strike(&mut self, per_thousand: u64) -> bool {
        self.random.below(1000) < per_thousand
    }

    fn send(&mut self, datagram: &[u8], client: SocketAddr) {
        let mut datagram = datagram.to_vec();
        if self.strike(self.faults.noise) {
            let noise: Vec<u8> = (0..self.random.below(80)).map(|_| self.random.next_u64() as u8).collect();
            let _ = self.socket.send_to(&noise, client);
        }
        if self.strike(self.faults.lost) {
            return;
        }
        if self.strike(self.faults.damaged) {
            self.damage(&mut datagram);
        }
        if datagram.len() > netblk_proto::HEADER_BYTES && self.strike(self.faults.data_damaged) {
            let at = netblk_proto::HEADER_BYTES as u64
                + self.random.below((datagram.len() - netblk_proto::HEADER_BYTES) as u64);
            datagram[at as usize] ^= 0x10;
        }
        if self.strike(self.faults.held_back) {
            let overtaken_by = 1 + self.random.below(20);
            self.held.push_back((overtaken_by, datagram, client));
            return;
        }
        let _ = self.socket.send_to(&datagram, client);
        if self.strike(self.faults.doubled) {
            let _ = self.socket.send_to(&datagram, client);
        }
        let held = std::mem::take(&mut self.held);
        for (overtaken_by, datagram, client) in held {
            if overtaken_by <= 1 {
                let _ = self.socket.send_to(&datagram, client);
            } else {
                self.held.push_back((overtaken_by - 1, datagram, client));
            }
        }
    }

    fn release_all(&mut self) {
        for (_, datagram, client) in std::mem::take(&mut self.held) {
            let _ = self.socket.send_to(&datagram, client);
        }
    }

    fn damage(&mut self, datagram: &mut Vec<u8>) {
        match self.random.below(4) {
            0 => datagram[..4].copy_from_slice(&(!MAGIC).to_be_bytes()),
            1 => datagram[4] ^= 0x40,
            2 => datagram[8] ^= 0x80,
            _ => {
                let length = self.random.below(datagram.len() as u64) as usize;
                datagram.truncate(length);
            }
        }
    }
}

/// An image whose every sector is different.
pub fn image(seed: u64, bytes: usize) -> Vec<u8> {
    let mut image = vec![0; bytes];
    netblk::pattern::fill(seed, 0, &mut image);
    image
}
