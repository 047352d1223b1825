//! The transmit ring.
//!
//! A packet is one descriptor a piece, and the card reports on the last of them alone. Packets are
//! done in their order, so the only question is whether the oldest one is.

use alloc::boxed::Box;

use crate::descriptor;
use crate::ring::{RingFault, RingMemory, RingSize};

/// How long nothing may be sent while there are packets to send and a link: no packet waits so long
/// for its turn at 10 Mb/s, and flow control pauses for less.
pub const STUCK_AFTER_NS: u64 = 2_000_000_000;

/// A contiguous piece of a packet, as the card sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    pub device_address: u64,
    pub bytes: u16,
}

struct Slot<T> {
    /// At a packet's first descriptor: its owner, while the card has it.
    token: Option<T>,
    /// There too: the packet's descriptors.
    descriptors: u16,
}

/// The driver's side of a transmit ring whose packets are held as `T`.
pub struct TransmitRing<M, T> {
    memory: M,
    size: RingSize,
    slots: Box<[Slot<T>]>,
    /// The next to be written, and the first of the oldest packet.
    written: u16,
    taken: u16,
    packets: u16,
    /// When the card last showed that it sends, or had nothing to.
    progress_ns: u64,
}

impl<M: RingMemory, T> TransmitRing<M, T> {
    /// A ring in `memory`, which is zeroed and has `size.bytes()`.
    pub fn new(memory: M, size: RingSize) -> Self {
        TransmitRing {
            memory,
            size,
            slots: (0..size.get()).map(|_| Slot { token: None, descriptors: 0 }).collect(),
            written: 0,
            taken: 0,
            packets: 0,
            progress_ns: 0,
        }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub fn size(&self) -> RingSize {
        self.size
    }

    /// Packets with the card.
    pub fn in_flight(&self) -> u16 {
        self.packets
    }

    /// Pieces for which there is room (one descriptor stays free, as in the receive ring).
    pub fn room(&self) -> u16 {
        self.size.get() - 1 - self.size.between(self.taken, self.written)
    }

    /// Writes a packet of `count` pieces, at least one, which together are not longer than
    /// [`descriptor::MAX_PAYLOAD_BYTES`]. Gives it back if there is no room. The card knows of it when
    /// [`TransmitRing::tail`] has been written to its register.
    pub fn submit(
        &mut self,
        count: u16,
        pieces: impl Iterator<Item = Segment> + Clone,
        token: T,
    ) -> Result<(), T> {
        if count == 0 || count > self.room() {
            return Err(token);
        }
        let first = usize::from(self.written);
        let total = pieces.clone().map(|piece| u32::from(piece.bytes)).sum();
        for (place, piece) in (1..=count).zip(pieces) {
            let at = usize::from(self.written) * descriptor::BYTES;
            let [low, high] = descriptor::transmit(piece.device_address, piece.bytes, total, place == count);
            self.memory.write_u64(at, low);
            self.memory.write_u64(at + 8, high);
            self.written = self.size.after(self.written, 1);
        }
        self.slots[first] = Slot { token: Some(token), descriptors: count };
        self.packets += 1;
        Ok(())
    }

    /// What to write to the tail register.
    #[must_use]
    pub fn tail(&self) -> u16 {
        self.written
    }

    /// Takes back the oldest packet, if the card has sent it.
    pub fn take(&mut self) -> Option<T> {
        let first = usize::from(self.taken);
        let slot = &mut self.slots[first];
        slot.token.as_ref()?;
        let last = self.size.after(self.taken, slot.descriptors - 1);
        let at = usize::from(last) * descriptor::BYTES;
        if self.memory.load_acquire_u32(at + descriptor::TRANSMIT_STATUS) & descriptor::DONE == 0 {
            return None;
        }
        let token = slot.token.take()?;
        self.taken = self.size.after(self.taken, slot.descriptors);
        self.packets -= 1;
        Some(token)
    }

    /// Notes that the card sends, or has nothing to send, or no link to send on.
    pub fn note_progress(&mut self, now_ns: u64) {
        self.progress_ns = now_ns;
    }

    /// Whether the card has had packets for too long without sending one.
    pub fn check_progress(&self, now_ns: u64) -> Result<(), RingFault> {
        match self.packets > 0 && now_ns.saturating_sub(self.progress_ns) > STUCK_AFTER_NS {
            true => Err(RingFault::Stuck { packets: self.packets }),
            false => Ok(()),
        }
    }

    /// Gives every packet to `free` and starts over. Only when the card reaches no memory any more.
    pub fn reset(&mut self, mut free: impl FnMut(T)) {
        for slot in &mut self.slots {
            if let Some(token) = slot.token.take() {
                free(token);
            }
        }
        (self.written, self.taken, self.packets) = (0, 0, 0);
    }
}
