//! The transmit queue and the backlog before it.

use kcore::frame::{FrameChain, NetFrame};
use virtio_driver::{Packet, QueueFault};

use crate::counters::{Counters, add};
use crate::memory::FrameQueue;
use crate::registers::{Doorbell, Registers};

/// Descriptors of the queue: 32 frames, each with its header.
pub(crate) const DESCRIPTORS: u16 = 64;

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
    pub fn accept(&mut self, chain: &mut FrameChain, longest_bytes: usize, counters: &Counters) -> usize {
        let mut taken = 0;
        while self.backlog.len() < BACKLOG_LIMIT {
            let Some(frame) = chain.pop() else { break };
            taken += 1;
            if (HEADER_BYTES..=longest_bytes).contains(&frame.len()) && frame.piece_count() == 1 {
                self.backlog.push(frame);
            } else {
                add(&counters.tx_dropped, 1);
            }
        }
        taken
    }

    /// Gives up the frames that wait.
    pub fn drop_backlog(&mut self, counters: &Counters) {
        add(&counters.tx_dropped, self.backlog.len() as u64);
        self.backlog = FrameChain::new();
    }

    /// Takes back what was sent, sends what waits, and asks for an interrupt if some must wait on.
    /// At most one doorbell unless the card finishes half a ring meanwhile.
    pub fn pump(&mut self, registers: &Registers, counters: &Counters) -> Result<(), QueueFault> {
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
            drop(used.token.reclaim(0));
        }
        Ok(())
    }

    fn send(&mut self, registers: &Registers, counters: &Counters) {
        let backlog = &mut self.backlog;
        let mut bytes = 0;
        let submitted = self.queue.submit(|| {
            let frame: NetFrame = backlog.pop()?;
            bytes += frame.len() as u64;
            let length = frame.len() as u32;
            let frame = frame.into_device();
            Some(Packet { device_address: frame.phys().as_u64(), bytes: length, token: frame })
        });
        add(&counters.tx_frames, submitted.packets.into());
        add(&counters.tx_bytes, bytes);
        if submitted.notify {
            add(&counters.doorbells, 1);
            registers.ring(self.doorbell);
        }
    }
}
