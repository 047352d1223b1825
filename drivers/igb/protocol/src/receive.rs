//! The receive ring.
//!
//! The card fills buffers in the order in which they were posted, so the only question is whether the
//! next one is done. Buffers posted are told to the card by one write of the tail register for many
//! ([`ReceiveRing::announce`]): it has 256 of them and does not miss 32. Each such write is a bus
//! transaction, and behind a hypervisor an exit.

use alloc::boxed::Box;

use crate::descriptor::{self, ReceiveWriteBack};
use crate::ring::{RingFault, RingMemory, RingSize};

/// Buffers that are announced together, unless the card is short of them.
const ANNOUNCED_TOGETHER: u16 = 32;

/// A buffer that the card has filled.
#[derive(Debug)]
pub struct Received<T> {
    /// The buffer's owner.
    pub token: T,
    /// Bytes in it: at most a buffer's, and all of them if the packet goes on in the next.
    pub bytes: u16,
    /// The packet's last piece.
    pub end_of_packet: bool,
    /// The packet was damaged on the wire.
    pub damaged: bool,
}

/// The driver's side of a receive ring whose buffers are held as `T`.
pub struct ReceiveRing<M, T> {
    memory: M,
    size: RingSize,
    buffer_bytes: u16,
    /// By descriptor: while the card has it.
    tokens: Box<[Option<T>]>,
    /// The next to be posted, and the next to be taken.
    posted: u16,
    taken: u16,
    /// What the tail register says: the card has everything before it.
    announced: u16,
    fault: Option<RingFault>,
}

impl<M: RingMemory, T> ReceiveRing<M, T> {
    /// A ring in `memory`, which is zeroed and has `size.bytes()`; every buffer has `buffer_bytes`.
    pub fn new(memory: M, size: RingSize, buffer_bytes: u16) -> Self {
        ReceiveRing {
            memory,
            size,
            buffer_bytes,
            tokens: (0..size.get()).map(|_| None).collect(),
            posted: 0,
            taken: 0,
            announced: 0,
            fault: None,
        }
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub fn size(&self) -> RingSize {
        self.size
    }

    /// Buffers in the ring.
    pub fn in_flight(&self) -> u16 {
        self.size.between(self.taken, self.posted)
    }

    /// Buffers that can still be posted: a ring is full with one descriptor to spare, since head and
    /// tail at one place mean an empty ring (82576 sec 7.1.4).
    pub fn room(&self) -> u16 {
        self.size.get() - 1 - self.in_flight()
    }

    /// Puts a buffer into the ring. Gives it back if the ring is full or dead.
    pub fn post(&mut self, device_address: u64, token: T) -> Result<(), T> {
        if self.room() == 0 || self.fault.is_some() {
            return Err(token);
        }
        let at = usize::from(self.posted) * descriptor::BYTES;
        let [first, second] = descriptor::receive(device_address);
        self.memory.write_u64(at, first);
        self.memory.write_u64(at + 8, second);
        self.tokens[usize::from(self.posted)] = Some(token);
        self.posted = self.size.after(self.posted, 1);
        Ok(())
    }

    /// The value to write to the tail register, if it is time to: when many buffers wait to be known
    /// to the card, or it has few.
    #[must_use]
    pub fn announce(&mut self) -> Option<u16> {
        let waiting = self.size.between(self.announced, self.posted);
        let known = self.in_flight() - waiting;
        let due = waiting >= ANNOUNCED_TOGETHER || known < self.size.get() / 2;
        (waiting > 0 && due).then(|| {
            self.announced = self.posted;
            self.announced
        })
    }

    /// Whether [`ReceiveRing::take`] has something to say.
    pub fn has_next(&self) -> bool {
        let at = usize::from(self.taken) * descriptor::BYTES;
        let is_done =
            || self.memory.load_acquire_u32(at + descriptor::RECEIVE_STATUS) & descriptor::DONE != 0;
        self.fault.is_some() || self.taken != self.announced && is_done()
    }

    /// Takes back one buffer that the card is done with.
    pub fn take(&mut self) -> Result<Option<Received<T>>, RingFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.taken == self.announced {
            return Ok(None);
        }
        let at = usize::from(self.taken) * descriptor::BYTES;
        // Read once; the copies are checked and used.
        let status = self.memory.load_acquire_u32(at + descriptor::RECEIVE_STATUS);
        if status & descriptor::DONE == 0 {
            return Ok(None);
        }
        let length = self.memory.read_u32(at + descriptor::RECEIVE_LENGTH);
        let Some(piece) = ReceiveWriteBack::decode(status, length) else { return Ok(None) };
        if let Err(fault) = self.check(piece) {
            self.fault = Some(fault);
            return Err(fault);
        }
        let Some(token) = self.tokens[usize::from(self.taken)].take() else { return Ok(None) };
        self.taken = self.size.after(self.taken, 1);
        let ReceiveWriteBack { bytes, end_of_packet, damaged } = piece;
        Ok(Some(Received { token, bytes, end_of_packet, damaged }))
    }

    fn check(&self, piece: ReceiveWriteBack) -> Result<(), RingFault> {
        let (bytes, room) = (piece.bytes, self.buffer_bytes);
        if bytes > room {
            return Err(RingFault::Overrun { bytes, room });
        }
        if !piece.end_of_packet && bytes != room {
            return Err(RingFault::Gap { bytes, room });
        }
        Ok(())
    }

    /// Gives every buffer to `free` and starts over. Only when the card reaches no memory any more.
    pub fn reset(&mut self, free: impl FnMut(T)) {
        self.tokens.iter_mut().filter_map(Option::take).for_each(free);
        for index in 0..self.size.get() {
            let at = usize::from(index) * descriptor::BYTES;
            self.memory.write_u64(at + 8, 0);
        }
        (self.posted, self.taken, self.announced, self.fault) = (0, 0, 0, None);
    }
}
