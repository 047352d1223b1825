//! The transmit ring and the backlog before it.

use core::iter;

use igb_protocol::{RingFault, Segment, register};
use kcore::frame::{DeviceFrame, FrameChain, MAX_PIECES, NetFrame};
use kcore::net::{NetCounters, add};
use kcore::time::now_ns;

use crate::memory::FrameTransmitRing;
use crate::registers::{Registers, TRANSMIT_VECTOR};

/// Descriptors of the ring: as many packets of one piece, less one.
pub(crate) const DESCRIPTORS: u16 = 256;

/// Frames that may wait for a place in the ring: a whole server's worth of answers (256) on top
/// of other traffic. At a gigabit they are gone in 4 ms.
const BACKLOG_LIMIT: usize = 320;

/// An Ethernet header. A frame below that is nobody's.
const HEADER_BYTES: usize = 14;

pub(crate) struct TransmitSide {
    pub ring: FrameTransmitRing,
    backlog: FrameChain,
    /// The card tells when it has sent something.
    armed: bool,
}

impl TransmitSide {
    pub fn new(ring: FrameTransmitRing) -> TransmitSide {
        TransmitSide { ring, backlog: FrameChain::new(), armed: false }
    }

    /// Takes frames from the chain as long as the backlog has room. A frame that the link cannot
    /// carry is taken and dropped.
    pub fn accept(&mut self, chain: &mut FrameChain, longest_bytes: usize, counters: &NetCounters) -> usize {
        let mut taken = 0;
        while self.backlog.len() < BACKLOG_LIMIT {
            let Some(frame) = chain.pop() else { break };
            taken += 1;
            if frame.len() >= HEADER_BYTES && frame.total_len() <= longest_bytes {
                self.backlog.push(frame);
            } else {
                add(&counters.tx_dropped, 1);
            }
        }
        taken
    }

    /// Takes back what was sent and sends what waits, with at most one doorbell; if some must wait on,
    /// has the card tell when it has sent something.
    pub fn pump(
        &mut self,
        link_is_up: bool,
        registers: &Registers,
        counters: &NetCounters,
    ) -> Result<(), RingFault> {
        self.reclaim();
        self.send(registers, counters);
        if self.backlog.is_empty() {
            if self.armed {
                self.armed = false;
                registers.mask(TRANSMIT_VECTOR);
            }
            return Ok(());
        }
        // What was sent long ago has its cause pending still, so the first message may come at once
        // and for nothing. Clearing the cause instead could lose the last one there is.
        self.armed = true;
        registers.unmask(TRANSMIT_VECTOR);
        let now_ns = now_ns();
        if !link_is_up {
            self.ring.note_progress(now_ns);
        }
        self.ring.check_progress(now_ns)
    }

    /// Frees the packets that the card has sent.
    pub fn reclaim(&mut self) {
        let mut any = false;
        while let Some(packet) = self.ring.take() {
            drop(packet.reclaim(0));
            any = true;
        }
        if any && !self.backlog.is_empty() {
            self.ring.note_progress(now_ns());
        }
    }

    fn send(&mut self, registers: &Registers, counters: &NetCounters) {
        if self.backlog.is_empty() {
            return;
        }
        if self.ring.in_flight() == 0 {
            self.ring.note_progress(now_ns());
        }
        let (mut packets, mut bytes) = (0, 0);
        while usize::from(self.ring.room()) >= MAX_PIECES {
            let Some(packet) = self.backlog.pop() else { break };
            let (length, head_bytes) = (packet.total_len() as u64, packet.len() as u16);
            if self.submit(packet, head_bytes) {
                packets += 1;
                bytes += length;
            } else {
                add(&counters.tx_dropped, 1);
            }
        }
        if packets > 0 {
            add(&counters.tx_frames, packets);
            add(&counters.tx_bytes, bytes);
            add(&counters.doorbells, 1);
            registers.ring(register::transmit_queue::TAIL, self.ring.tail());
        }
    }

    fn submit(&mut self, packet: NetFrame, head_bytes: u16) -> bool {
        let packet = packet.into_device();
        // Most packets have one piece; the others' are noted beside the frame, which the ring keeps.
        let mut pieces = [Segment { device_address: packet.phys().as_u64(), bytes: head_bytes }; MAX_PIECES];
        let count = packet.piece_count().min(MAX_PIECES);
        let behind = (0..).map_while(|place| packet.piece_behind(place));
        for (piece, segment) in iter::zip(&mut pieces[1..count], behind) {
            // A piece lies in a page.
            *piece = Segment { device_address: segment.phys.as_u64(), bytes: segment.bytes as u16 };
        }
        let given = self.ring.submit(count as u16, pieces[..count].iter().copied(), packet);
        given.map_err(give_back).is_ok()
    }

    /// Takes every packet back from the ring, not from the backlog. Only when the card reaches no memory
    /// any more.
    pub fn reset(&mut self) {
        self.ring.reset(give_back);
        self.ring.note_progress(now_ns());
        self.armed = false;
    }

    /// Gives up the frames that wait.
    pub fn drop_backlog(&mut self, counters: &NetCounters) {
        add(&counters.tx_dropped, self.backlog.len() as u64);
        self.backlog = FrameChain::new();
    }
}

fn give_back(packet: DeviceFrame) {
    drop(packet.reclaim(0));
}
