//! The receive queue.

use kcore::frame::{FRAME_BYTES, FrameChain, NetFrame};
use virtio_driver::{Packet, QueueFault};

use crate::counters::{Counters, add};
use crate::memory::FrameQueue;
use crate::registers::{Doorbell, Registers};

/// Packets taken in one go before others on this CPU get a turn.
pub(crate) const BATCH: usize = 64;

/// Descriptors of the queue: 128 frames, each with its header.
pub(crate) const DESCRIPTORS: u16 = 256;

pub(crate) struct ReceiveSide {
    pub queue: FrameQueue,
    pub doorbell: Doorbell,
}

/// What one look at the queue brought.
pub(crate) struct Batch {
    pub frames: FrameChain,
    /// Their bytes together.
    pub bytes: u64,
    /// There may be more.
    pub full: bool,
}

impl ReceiveSide {
    /// Takes up to [`BATCH`] packets, gives the card other frames in their place, and leaves the
    /// card's interrupts off.
    pub fn take(&mut self, registers: &Registers, counters: &Counters) -> Result<Batch, QueueFault> {
        self.queue.disarm_interrupt();
        let mut frames = FrameChain::new();
        let mut replacements = FrameChain::new();
        let mut taken = 0;
        let mut bytes = 0;
        let mut outcome = Ok(());
        while taken < BATCH {
            let used = match self.queue.take_used() {
                Ok(Some(used)) => used,
                Ok(None) => break,
                Err(fault) => {
                    outcome = Err(fault);
                    break;
                }
            };
            taken += 1;
            // The queue has checked that `written` fits the frame. Nothing in it yet: a packet of
            // a length that the card never wrote must not show the frame's last contents.
            let frame = used.token.reclaim(used.written.unwrap_or(0) as usize);
            if frame.is_empty() {
                add(&counters.rx_errors, 1);
                replacements.push(frame);
                continue;
            }
            match NetFrame::alloc() {
                Some(replacement) => {
                    replacements.push(replacement);
                    bytes += frame.len() as u64;
                    frames.push(frame);
                }
                None => {
                    add(&counters.rx_dropped, 1);
                    replacements.push(frame);
                }
            }
        }
        outcome?;
        self.refill(replacements, registers, counters);
        Ok(Batch { frames, bytes, full: taken == BATCH })
    }

    /// Gives the card `frames`, and more from the pool as long as there is room. Returns how many
    /// it has then.
    pub fn refill(&mut self, mut frames: FrameChain, registers: &Registers, counters: &Counters) -> u16 {
        let submitted = self.queue.submit(|| {
            let frame = frames.pop().or_else(NetFrame::alloc)?.into_device();
            let device_address = frame.phys().as_u64();
            Some(Packet { device_address, bytes: FRAME_BYTES as u32, token: frame })
        });
        if submitted.notify {
            add(&counters.doorbells, 1);
            registers.ring(self.doorbell);
        }
        self.queue.in_flight()
    }
}
