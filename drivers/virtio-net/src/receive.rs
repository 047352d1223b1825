//! The receive queue.

use kcore::frame::{FRAME_BYTES, FrameChain, NetFrame};
use kcore::net::{NetCounters, add};
use virtio_driver::{Packet, QueueFault};

use crate::memory::{CardPacket, FrameQueue};
use crate::registers::{Doorbell, Registers};

/// Packets taken in one go before others on this CPU get a turn.
pub(crate) const BATCH: usize = 64;

/// Descriptors of the queue: 128 packets, each with its header; a quarter of that for jumbo packets
/// where the card does not read indirect tables.
pub(crate) const DESCRIPTORS: u16 = 256;

pub(crate) struct ReceiveSide {
    pub queue: FrameQueue,
    pub doorbell: Doorbell,
    /// Frames that the longest packet of the link takes.
    pub frames_per_packet: usize,
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
    pub fn take(&mut self, registers: &Registers, counters: &NetCounters) -> Result<Batch, QueueFault> {
        self.queue.disarm_interrupt();
        let mut frames = FrameChain::new();
        // For the card, in place of what it returned.
        let mut spare = FrameChain::new();
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
            // The queue has checked that `written` fits the frames. Nothing in it yet: a packet of
            // a length that the card never wrote must not show the frame's last contents.
            let written = used.written.unwrap_or(0) as usize;
            let packet = used.token.head.reclaim_received(written, &mut spare);
            if packet.is_empty() {
                add(&counters.rx_errors, 1);
                put_back(packet, &mut spare);
            } else if replace(packet.piece_count(), &mut spare) {
                bytes += packet.total_len() as u64;
                frames.push(packet);
            } else {
                add(&counters.rx_dropped, 1);
                put_back(packet, &mut spare);
            }
        }
        outcome?;
        self.refill(spare, registers, counters);
        Ok(Batch { frames, bytes, full: taken == BATCH })
    }

    /// Gives the card `spare` frames, and more from the pool as long as there is room. Returns how
    /// many packets it can receive then.
    pub fn refill(&mut self, mut spare: FrameChain, registers: &Registers, counters: &NetCounters) -> u16 {
        let frames_per_packet = self.frames_per_packet;
        let submitted = self.queue.submit(|| {
            let packet = room_for_a_packet(frames_per_packet, &mut spare)?.into_device();
            let device_address = packet.phys().as_u64();
            let token = CardPacket::of(packet);
            Some(Packet { device_address, bytes: FRAME_BYTES as u32, segmentation: None, token })
        });
        if submitted.notify {
            add(&counters.doorbells, 1);
            registers.ring(self.doorbell);
        }
        self.queue.in_flight()
    }
}

/// Takes `count` frames from the pool in place of as many that are to be delivered. What there was
/// is in `spare` in any case.
fn replace(count: usize, spare: &mut FrameChain) -> bool {
    for _ in 0..count {
        match NetFrame::alloc() {
            Some(frame) => spare.push(frame),
            None => return false,
        }
    }
    true
}

/// Takes a packet apart: nobody gets it.
fn put_back(mut packet: NetFrame, spare: &mut FrameChain) {
    spare.append(&mut packet.detach());
    spare.push(packet);
}

/// A head with as many whole frames behind it as the longest packet may need.
fn room_for_a_packet(frames: usize, spare: &mut FrameChain) -> Option<NetFrame> {
    let mut next = || spare.pop().or_else(NetFrame::alloc);
    let mut head = next()?;
    for _ in 1..frames {
        let mut frame = next()?;
        frame.set_len(FRAME_BYTES);
        head.attach_frame(frame).ok()?;
    }
    Some(head)
}
