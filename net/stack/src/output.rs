//! Sending: which next hop, which MAC address, and what waits for an answer to ARP.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use ingress::{Action, Neighbour, Neighbours, Resolution, Subnet};
use kcore::frame::{FrameChain, NetFrame};
use kcore::net::NetDevice;
use kcore::sync::SpinLock;
use kcore::time::now_ns;
use netwire::{ArpMessage, ArpOperation, EtherType, EthernetHeader, Ipv4Packet, MacAddr};

use crate::counters::{Counters, SendDrop};

/// Neighbours known at once.
const NEIGHBOURS: usize = 64;
/// Frames that may wait for answers to ARP requests, all next hops together.
const PARKED_LIMIT: usize = 32;

/// A neighbour's table and the frames that wait for it.
pub(crate) struct Output {
    card: Arc<dyn NetDevice>,
    mac: MacAddr,
    state: SpinLock<State>,
}

struct State {
    neighbours: Neighbours<NEIGHBOURS>,
    parked: Vec<Parked>,
}

struct Parked {
    next_hop: Ipv4Addr,
    frame: NetFrame,
}

/// What became of frames to be sent.
#[derive(Clone, Copy)]
pub(crate) struct Sent {
    /// A neighbour was asked for: somebody must look after the question's deadline.
    pub asked: bool,
    /// Why the last of those that were dropped was dropped.
    pub last_drop: Option<SendDrop>,
}

/// Where we are, as far as sending depends on it.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub subnet: Subnet,
    pub gateway: Option<Ipv4Addr>,
}

impl Origin {
    pub fn next_hop(&self, destination: Ipv4Addr) -> Option<Ipv4Addr> {
        if self.subnet.contains(destination) { Some(destination) } else { self.gateway }
    }
}

impl Output {
    pub fn new(card: Arc<dyn NetDevice>, mac: MacAddr) -> Output {
        let state = State { neighbours: Neighbours::new(), parked: Vec::with_capacity(PARKED_LIMIT) };
        Output { card, mac, state: SpinLock::new(state) }
    }

    /// Sends whole Ethernet frames as they are.
    pub fn send_raw(&self, mut frames: FrameChain, counters: &Counters) {
        self.card.transmit(&mut frames);
        counters.not_sent(SendDrop::CardFull, frames.len());
    }

    /// Sends IPv4 packets, each behind 14 bytes of room, to their next hops: one lock and one
    /// doorbell for all whose next hop is known.
    pub fn send_ipv4(&self, mut frames: FrameChain, origin: Option<Origin>, counters: &Counters) -> Sent {
        let mut out = FrameChain::new();
        let mut sent = Sent { asked: false, last_drop: None };
        while let Some(frame) = frames.pop() {
            match self.route(frame, origin, &mut out) {
                Ok(asked) => sent.asked |= asked,
                Err(reason) => {
                    counters.not_sent(reason, 1);
                    sent.last_drop = Some(reason);
                }
            }
        }
        if !out.is_empty() {
            self.send_raw(out, counters);
        }
        sent
    }

    /// Puts a frame, addressed, into `out`, or parks it. Whether a question was asked.
    fn route(
        &self,
        mut frame: NetFrame,
        origin: Option<Origin>,
        out: &mut FrameChain,
    ) -> Result<bool, SendDrop> {
        let packet = frame.bytes().get(EthernetHeader::LEN..).ok_or(SendDrop::NotIpv4)?;
        let destination = Ipv4Packet::check(packet).map_err(|_| SendDrop::NotIpv4)?.destination();
        let origin = origin.ok_or(SendDrop::NoRoute)?;
        if destination.is_broadcast() || Some(destination) == origin.subnet.broadcast() {
            self.address(&mut frame, MacAddr::BROADCAST);
            out.push(frame);
            return Ok(false);
        }
        let next_hop = origin.next_hop(destination).ok_or(SendDrop::NoRoute)?;
        let mut state = self.state.lock();
        let ask = match state.neighbours.resolve(next_hop, now_ns()) {
            Resolution::Known { mac, ask } => {
                self.address(&mut frame, mac);
                out.push(frame);
                ask
            }
            Resolution::Unknown { ask } => {
                if state.parked.len() == PARKED_LIMIT {
                    return Err(SendDrop::TooManyWaiting);
                }
                state.parked.push(Parked { next_hop, frame });
                ask
            }
            Resolution::Absent => return Err(SendDrop::NoNeighbour),
            Resolution::Full => return Err(SendDrop::TooManyWaiting),
        };
        drop(state);
        if ask && let Some(question) = self.question(origin.subnet, next_hop) {
            out.push(question);
        }
        Ok(ask)
    }

    /// The MAC address of an address on this link, if it is known; if not, it is asked for.
    /// The second part of the answer is whether a question was asked.
    pub fn resolve(
        &self,
        next_hop: Ipv4Addr,
        origin: Origin,
        counters: &Counters,
    ) -> (Option<MacAddr>, bool) {
        let resolution = self.state.lock().neighbours.resolve(next_hop, now_ns());
        let (mac, ask) = match resolution {
            Resolution::Known { mac, ask } => (Some(mac), ask),
            Resolution::Unknown { ask } => (None, ask),
            Resolution::Absent | Resolution::Full => (None, false),
        };
        if ask {
            self.ask(origin.subnet, next_hop, counters);
        }
        (mac, ask)
    }

    /// Takes what an ARP packet says of its sender, and sends what waited for it.
    pub fn learn(&self, message: &ArpMessage, for_us: bool, counters: &Counters) {
        let mut released = FrameChain::new();
        {
            let mut state = self.state.lock();
            if !state.neighbours.learn(message.sender_ip, message.sender_mac, for_us, now_ns()) {
                return;
            }
            take_parked(&mut state.parked, message.sender_ip, |mut frame| {
                self.address(&mut frame, message.sender_mac);
                released.push(frame);
            });
        }
        if !released.is_empty() {
            self.send_raw(released, counters);
        }
    }

    /// Asks again, gives up, and says when to come back. `absent` hears of neighbours that do not
    /// answer.
    pub fn poll(
        &self,
        origin: Option<Origin>,
        counters: &Counters,
        mut absent: impl FnMut(Ipv4Addr),
    ) -> Option<u64> {
        let now = now_ns();
        loop {
            let mut state = self.state.lock();
            match state.neighbours.poll(now) {
                Some(Action::Ask(address)) => {
                    drop(state);
                    if let Some(origin) = origin {
                        self.ask(origin.subnet, address, counters);
                    }
                }
                Some(Action::GiveUp(address)) => {
                    let mut given_up = 0;
                    take_parked(&mut state.parked, address, |frame| {
                        given_up += 1;
                        drop(frame);
                    });
                    drop(state);
                    counters.not_sent(SendDrop::NoNeighbour, given_up);
                    absent(address);
                }
                None => return state.neighbours.deadline_ns(),
            }
        }
    }

    /// The interface's address changed: what was known is no longer, and what waited is dropped.
    pub fn forget(&self, counters: &Counters) {
        let mut state = self.state.lock();
        state.neighbours.clear();
        counters.not_sent(SendDrop::NoRoute, state.parked.len());
        state.parked.clear();
    }

    pub fn neighbours(&self) -> Vec<Neighbour> {
        let mut list = Vec::with_capacity(NEIGHBOURS);
        list.extend(self.state.lock().neighbours.iter());
        list
    }

    fn address(&self, frame: &mut NetFrame, destination: MacAddr) {
        let header = EthernetHeader { destination, source: self.mac, ethertype: EtherType::IPV4 };
        if let Some(room) = frame.bytes_mut().first_chunk_mut() {
            header.emit(room);
        }
    }

    fn ask(&self, subnet: Subnet, address: Ipv4Addr, counters: &Counters) {
        if let Some(frame) = self.question(subnet, address) {
            let mut chain = FrameChain::new();
            chain.push(frame);
            self.send_raw(chain, counters);
        }
    }

    /// An ARP request. `None` without a frame to write it in: the next round asks again.
    fn question(&self, subnet: Subnet, address: Ipv4Addr) -> Option<NetFrame> {
        let mut frame = NetFrame::alloc()?;
        frame.set_len(EthernetHeader::LEN + ArpMessage::LEN);
        let (head, rest) = frame.bytes_mut().split_first_chunk_mut()?;
        EthernetHeader { destination: MacAddr::BROADCAST, source: self.mac, ethertype: EtherType::ARP }
            .emit(head);
        ArpMessage {
            operation: ArpOperation::Request,
            sender_mac: self.mac,
            sender_ip: subnet.address(),
            target_mac: MacAddr::ZERO,
            target_ip: address,
        }
        .emit(rest.first_chunk_mut()?);
        Some(frame)
    }
}

/// Takes the frames that wait for `next_hop`, in their order.
fn take_parked(parked: &mut Vec<Parked>, next_hop: Ipv4Addr, mut each: impl FnMut(NetFrame)) {
    let mut place = 0;
    while let Some(entry) = parked.get(place) {
        if entry.next_hop == next_hop {
            each(parked.remove(place).frame);
        } else {
            place += 1;
        }
    }
}
