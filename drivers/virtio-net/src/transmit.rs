//! The transmit queue and the backlog before it.

use kcore::frame::{FrameChain, MAX_PIECES, NetFrame};
use kcore::net::{NetCounters, add};
use virtio_driver::{Packet, QueueFault};

use crate::memory::{CardPacket, FrameQueue};
use crate::registers::{Doorbell, Registers};

/// Packets with the card at once, as far as its queue allows.
const SLOTS: u16 = 32;

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
}

impl TransmitSide {
    pub fn new(queue: FrameQueue, doorbell: Doorbell) -> TransmitSide {
        TransmitSide { queue, doorbell, backlog: FrameChain::new() }
    }

    /// Takes frames from the chain as long as the backlog has room. A frame that the link cannot
    /// carry is taken and dropped.
    pub fn accept(&mut self, chain: &mut FrameChain, longest_bytes: usize, counters: &NetCounters) -> usize {
        let segments = usize::from(self.queue.layout().segments());
        let mut taken = 0;
        while self.backlog.len() < BACKLOG_LIMIT {
            let Some(frame) = chain.pop() else { break };
            taken += 1;
            let fits = frame.len() >= HEADER_BYTES && frame.total_len() <= longest_bytes;
            if fits && frame.piece_count() <= segments {
                self.backlog.push(frame);
            } else {
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
            drop(used.token.0.reclaim(0));
        }
        Ok(())
    }

    fn send(&mut self, registers: &Registers, counters: &NetCounters) {
        let backlog = &mut self.backlog;
        let mut bytes = 0;
        let submitted = self.queue.submit(|| {
            let packet: NetFrame = backlog.pop()?;
            bytes += packet.total_len() as u64;
            let head_bytes = packet.len() as u32;
            let packet = packet.into_device();
            let device_address = packet.phys().as_u64();
            Some(Packet { device_address, bytes: head_bytes, token: CardPacket(packet) })
        });
        add(&counters.tx_frames, submitted.packets.into());
        add(&counters.tx_bytes, bytes);
        if submitted.notify {
            add(&counters.doorbells, 1);
            registers.ring(self.doorbell);
        }
    }
}
