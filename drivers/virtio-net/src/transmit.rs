//! The transmit queue and the backlog before it.

use kcore::frame::{FrameChain, MAX_PIECES, NetFrame};
use kcore::net::{NetCounters, add};
use udp_train::{CHECKSUM_OFFSET, CHECKSUM_START, HEADERS_BYTES, Train};
use virtio_driver::net::UdpSegmentation;
use virtio_driver::{Packet, QueueFault};

use crate::memory::{CardPacket, FrameQueue};
use crate::registers::{Doorbell, Registers};

/// Packets with the card at once, as far as its queue allows.
const SLOTS: u16 = 32;

/// Pieces of what the card gets as one, where it reads them from indirect tables: thirty datagrams with a
/// piece each behind their headers, and with the packet's header no more than the queue has descriptors,
/// which is the longest table (VIRTIO sec 2.7.5.3.1).
pub(crate) const MOST_PIECES: usize = 2 * SLOTS as usize - 4;

/// Descriptors of the queue for that many: a header and a piece each, and more only where the card
/// does not read the further pieces of a packet from indirect tables.
pub(crate) const fn descriptors(indirect: bool) -> u16 {
    if indirect { 2 * SLOTS } else { (1 + MAX_PIECES as u16).next_power_of_two() * SLOTS }
}

/// Frames that may wait for a place in the ring: a whole server's worth of answers (256) on top
/// of other traffic. At a gigabit they are gone in 4 ms.
const BACKLOG_LIMIT: usize = 320;

/// An Ethernet header. A frame below that is nobody's.
const HEADER_BYTES: usize = 14;

pub(crate) struct TransmitSide {
    pub queue: FrameQueue,
    pub doorbell: Doorbell,
    backlog: FrameChain,
    /// The card cuts up datagrams that are given to it as one.
    segments_udp: bool,
}

impl TransmitSide {
    pub fn new(queue: FrameQueue, doorbell: Doorbell, segments_udp: bool) -> TransmitSide {
        TransmitSide { queue, doorbell, backlog: FrameChain::new(), segments_udp }
    }

    /// Takes frames from the chain as long as the backlog has room. A frame that the link cannot
    /// carry is taken and dropped.
    pub fn accept(&mut self, chain: &mut FrameChain, longest_bytes: usize, counters: &NetCounters) -> usize {
        let segments = usize::from(self.queue.layout().segments());
        let mut taken = 0;
        // The one before it in the chain is before it in the backlog.
        let mut behind_its_own = false;
        while self.backlog.len() < BACKLOG_LIMIT {
            let Some(mut frame) = chain.pop() else { break };
            taken += 1;
            let fits = frame.len() >= HEADER_BYTES && frame.total_len() <= longest_bytes;
            if fits && frame.piece_count() <= segments {
                if !behind_its_own {
                    frame.join_previous(false);
                }
                behind_its_own = true;
                self.backlog.push(frame);
            } else {
                behind_its_own = false;
                add(&counters.tx_dropped, 1);
            }
        }
        taken
    }

    /// Gives up the frames that wait.
    pub fn drop_backlog(&mut self, counters: &NetCounters) {
        add(&counters.tx_dropped, self.backlog.len() as u64);
        self.backlog = FrameChain::new();
    }

    /// Takes back what was sent, sends what waits, and asks for an interrupt if some must wait on.
    /// At most one doorbell unless the card finishes half a ring meanwhile.
    pub fn pump(&mut self, registers: &Registers, counters: &NetCounters) -> Result<(), QueueFault> {
        loop {
            self.reclaim()?;
            self.send(registers, counters);
            if self.backlog.is_empty() {
                self.queue.disarm_interrupt();
                return Ok(());
            }
            if !self.queue.arm_interrupt(self.queue.in_flight() / 2) {
                return Ok(());
            }
        }
    }

    /// Frees the frames that the card has sent.
    pub fn reclaim(&mut self) -> Result<(), QueueFault> {
        while let Some(used) = self.queue.take_used()? {
            used.token.free();
        }
        Ok(())
    }

    fn send(&mut self, registers: &Registers, counters: &NetCounters) {
        let backlog = &mut self.backlog;
        let most_pieces = if self.segments_udp { usize::from(self.queue.layout().segments()) } else { 0 };
        let (mut bytes, mut frames) = (0, 0);
        let submitted = self.queue.submit(|| {
            let packet = next_packet(backlog, most_pieces)?;
            bytes += packet.bytes;
            frames += packet.frames;
            Some(packet.for_card)
        });
        add(&counters.tx_frames, frames);
        add(&counters.tx_bytes, bytes);
        if submitted.notify {
            add(&counters.doorbells, 1);
            registers.ring(self.doorbell);
        }
    }
}

/// What the card gets as one packet, and what that is.
struct Outgoing {
    for_card: Packet<CardPacket>,
    frames: u64,
    bytes: u64,
}

/// The next packet of the backlog, and those that may go with it.
fn next_packet(backlog: &mut FrameChain, most_pieces: usize) -> Option<Outgoing> {
    let packet = backlog.pop()?;
    match backlog.front() {
        Some(next) if next.joins_previous() && most_pieces > 0 => {}
        _ => return Some(single(packet)),
    }
    match Train::begin(packet.bytes(), packet.total_len(), packet.piece_count(), most_pieces) {
        Some(train) => Some(several(packet, train, backlog)),
        None => Some(single(packet)),
    }
}

fn single(packet: NetFrame) -> Outgoing {
    let (total, head_bytes) = (packet.total_len() as u64, packet.len() as u32);
    let head = packet.into_device();
    let device_address = head.phys().as_u64();
    let token = CardPacket::of(head);
    let for_card = Packet { device_address, bytes: head_bytes, segmentation: None, token };
    Outgoing { for_card, frames: 1, bytes: total }
}

fn several(mut packet: NetFrame, mut train: Train, backlog: &mut FrameChain) -> Outgoing {
    let mut bytes = packet.total_len() as u64;
    let mut followers = FrameChain::new();
    let mut follower_pieces = 0;
    while let Some(next) = backlog.front() {
        let pieces = next.piece_count() - usize::from(next.len() == HEADERS_BYTES);
        if next.len() < HEADERS_BYTES || !next.joins_previous() || !train.add(next.total_len(), pieces) {
            break;
        }
        bytes += next.total_len() as u64;
        follower_pieces += pieces;
        let Some(next) = backlog.pop() else { break };
        followers.push(next);
    }
    if followers.is_empty() {
        return single(packet);
    }
    train.write_headers(packet.bytes_mut(), true);
    let head_bytes = packet.len() as u32;
    let head = packet.into_device();
    let segmentation = UdpSegmentation {
        headers_bytes: HEADERS_BYTES as u16,
        segment_bytes: train.segment_bytes(),
        checksum_start: CHECKSUM_START,
        checksum_offset: CHECKSUM_OFFSET,
    };
    let for_card = Packet {
        device_address: head.phys().as_u64(),
        bytes: head_bytes,
        segmentation: Some(segmentation),
        token: CardPacket { head, followers: followers.into_device(), follower_pieces },
    };
    Outgoing { for_card, frames: train.datagrams() as u64, bytes }
}
