//! Echo requests of the node's own, and the answers to them.
//!
//! Not by a smoltcp socket: the answer is matched in the receive softirq, so the time measured is
//! the link's and not that of a task being scheduled.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU16, Ordering::Relaxed};

use ingress::IcmpMeta;
use kcore::event::Event;
use kcore::frame::NetFrame;
use kcore::sync::SpinLock;
use kcore::time::now_ns;
use netwire::{
    EchoKind, EthernetHeader, IcmpEcho, IcmpMessage, IpProtocol, Ipv4Header, QuotedPacket, icmp_type,
};

use crate::counters::SendDrop;

/// The most payload that a ping may carry: one frame at the usual MTU.
pub const MAX_PAYLOAD_BYTES: usize = 1500 - Ipv4Header::LEN - IcmpEcho::LEN;

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PingReply {
    pub from: Ipv4Addr,
    pub payload_bytes: usize,
    pub ttl: u8,
    pub round_trip_ns: u64,
}

/// Why there was no good answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PingError {
    /// The node has no address yet.
    NoAddress,
    /// The address is the node's own.
    Ourselves,
    /// More payload than a frame takes.
    TooLong,
    /// The frame pool is empty.
    NoFrames,
    /// The question could not be sent; for [`SendDrop::NoNeighbour`], nobody answers for the next
    /// hop's address.
    NotSent(SendDrop),
    /// Nothing came in time.
    TimedOut,
    /// Somebody on the way says that it does not work (ICMP type 3).
    Unreachable { from: Ipv4Addr, code: u8 },
    /// The packet's time ran out on the way (ICMP type 11).
    TimeExceeded { from: Ipv4Addr },
    /// The answer does not carry what was sent.
    Damaged,
}

impl fmt::Display for PingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PingError::NoAddress => f.write_str("the node has no address yet"),
            PingError::Ourselves => f.write_str("that is the node's own address"),
            PingError::TooLong => write!(f, "more than {MAX_PAYLOAD_BYTES} bytes do not fit one frame"),
            PingError::NoFrames => f.write_str("the frame pool is empty"),
            PingError::NotSent(reason) => write!(f, "not sent: {}", reason.name()),
            PingError::TimedOut => f.write_str("no answer in time"),
            PingError::Unreachable { from, code } => {
                let what = match code {
                    0 => "network",
                    1 => "host",
                    2 => "protocol",
                    3 => "port",
                    _ => return write!(f, "{from} says: unreachable (code {code})"),
                };
                write!(f, "{from} says: {what} unreachable")
            }
            PingError::TimeExceeded { from } => write!(f, "{from} says: time exceeded on the way"),
            PingError::Damaged => f.write_str("the answer does not carry what was sent"),
        }
    }
}

impl core::error::Error for PingError {}

/// One question under way.
pub(crate) struct Pending {
    destination: Ipv4Addr,
    next_hop: Ipv4Addr,
    identifier: u16,
    sequence: u16,
    payload_bytes: usize,
    sent_ns: u64,
    outcome: SpinLock<Option<Result<PingReply, PingError>>>,
    answered: Event,
}

impl Pending {
    /// Waits for the answer. Tasks only.
    pub fn wait(&self, timeout_ns: u64) -> Result<PingReply, PingError> {
        let deadline_ns = self.sent_ns.saturating_add(timeout_ns);
        while self.outcome.lock().is_none() {
            if !self.answered.wait_until(deadline_ns) {
                break;
            }
        }
        self.outcome.lock().unwrap_or(Err(PingError::TimedOut))
    }
}

/// The questions under way.
pub(crate) struct Pings {
    pending: SpinLock<Vec<Arc<Pending>>>,
    next_identifier: AtomicU16,
}

fn payload_byte(index: usize) -> u8 {
    (index % 251) as u8
}

impl Pings {
    pub fn new() -> Pings {
        Pings { pending: SpinLock::new(Vec::new()), next_identifier: AtomicU16::new(0) }
    }

    /// Notes a question and writes its packet, behind room for an Ethernet header.
    pub fn prepare(
        &self,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        next_hop: Ipv4Addr,
        payload_bytes: usize,
    ) -> Result<(Arc<Pending>, NetFrame), PingError> {
        let icmp_bytes = IcmpEcho::LEN + payload_bytes;
        if payload_bytes > MAX_PAYLOAD_BYTES {
            return Err(PingError::TooLong);
        }
        let header = Ipv4Header::new(source, destination, IpProtocol::ICMP, icmp_bytes)
            .map_err(|_| PingError::TooLong)?;
        let mut frame = NetFrame::alloc().ok_or(PingError::NoFrames)?;
        frame.set_len(EthernetHeader::LEN + Ipv4Header::LEN + icmp_bytes);
        let identifier = self.next_identifier.fetch_add(1, Relaxed);
        let echo = IcmpEcho { kind: EchoKind::Request, identifier, sequence: 1 };
        let (_, packet) = frame.bytes_mut().split_at_mut(EthernetHeader::LEN);
        if let Some((ip, icmp)) = packet.split_first_chunk_mut() {
            header.emit(ip);
            if let Some((echo_header, payload)) = icmp.split_first_chunk_mut() {
                payload.iter_mut().enumerate().for_each(|(index, byte)| *byte = payload_byte(index));
                echo.emit(echo_header, payload);
            }
        }
        let pending = Arc::new(Pending {
            destination,
            next_hop,
            identifier,
            sequence: echo.sequence,
            payload_bytes,
            sent_ns: now_ns(),
            outcome: SpinLock::new(None),
            answered: Event::new(),
        });
        self.pending.lock().push(pending.clone());
        Ok((pending, frame))
    }

    /// Forgets a question.
    pub fn finish(&self, pending: &Arc<Pending>) {
        let mut list = self.pending.lock();
        let place = list.iter().position(|other| Arc::ptr_eq(other, pending));
        let removed = place.map(|place| list.swap_remove(place));
        drop(list);
        drop(removed);
    }

    /// A neighbour does not answer: what was to go by it has not gone.
    pub fn absent(&self, next_hop: Ipv4Addr) {
        for pending in self.pending.lock().iter().filter(|pending| pending.next_hop == next_hop) {
            pending.answer(Err(PingError::NotSent(SendDrop::NoNeighbour)));
        }
    }

    /// Looks whether an ICMP message answers one of the questions. `true`: it did.
    pub fn take(&self, frame: &[u8], meta: &IcmpMeta) -> bool {
        if self.pending.lock().is_empty() {
            return false;
        }
        let message = frame.get(meta.offset..meta.offset + meta.bytes).map(IcmpMessage::check);
        let Some(Ok(message)) = message else { return false };
        if !message.verify_checksum() {
            return false;
        }
        match message.message_type() {
            icmp_type::ECHO_REPLY => self.take_reply(&message, meta),
            icmp_type::DESTINATION_UNREACHABLE | icmp_type::TIME_EXCEEDED => {
                self.take_refusal(&message, meta)
            }
            _ => false,
        }
    }

    fn take_reply(&self, message: &IcmpMessage<'_>, meta: &IcmpMeta) -> bool {
        let Ok(echo) = IcmpEcho::parse(message) else { return false };
        let Some(pending) = self.find(meta.source, &echo) else { return false };
        let payload = message.payload();
        let intact = payload.len() == pending.payload_bytes
            && payload.iter().enumerate().all(|(index, byte)| *byte == payload_byte(index));
        let reply = PingReply {
            from: meta.source,
            payload_bytes: payload.len(),
            ttl: meta.ttl,
            round_trip_ns: now_ns().saturating_sub(pending.sent_ns),
        };
        pending.answer(if intact { Ok(reply) } else { Err(PingError::Damaged) });
        true
    }

    /// An error message quotes the head of the packet it is about (RFC 792).
    fn take_refusal(&self, message: &IcmpMessage<'_>, meta: &IcmpMeta) -> bool {
        let Ok(packet) = QuotedPacket::check(message.payload()) else { return false };
        let Ok(quoted) = IcmpMessage::check(packet.transport_start()) else { return false };
        let Ok(echo) = IcmpEcho::parse(&quoted) else { return false };
        if packet.protocol() != IpProtocol::ICMP || echo.kind != EchoKind::Request {
            return false;
        }
        let Some(pending) = self.find(packet.destination(), &echo) else { return false };
        let from = meta.source;
        pending.answer(Err(if message.message_type() == icmp_type::TIME_EXCEEDED {
            PingError::TimeExceeded { from }
        } else {
            PingError::Unreachable { from, code: message.code() }
        }));
        true
    }

    fn find(&self, destination: Ipv4Addr, echo: &IcmpEcho) -> Option<Arc<Pending>> {
        let list = self.pending.lock();
        let matches = |pending: &&Arc<Pending>| {
            (pending.destination, pending.identifier, pending.sequence)
                == (destination, echo.identifier, echo.sequence)
        };
        list.iter().find(matches).cloned()
    }
}

impl Pending {
    pub fn answer(&self, outcome: Result<PingReply, PingError>) {
        let mut place = self.outcome.lock();
        if place.is_none() {
            *place = Some(outcome);
        }
        drop(place);
        self.answered.signal();
    }
}
