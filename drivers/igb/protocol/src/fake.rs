//! A card to test against: it works through the rings as the datasheets say, and writes what it is
//! told to, true or not.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use crate::descriptor::BYTES;
use crate::ring::{RingMemory, RingSize};

/// Memory that the fake card shares with a ring.
#[derive(Clone, Debug)]
pub struct FakeMemory(Rc<RefCell<Vec<u8>>>);

impl FakeMemory {
    /// Zeroed, for a ring of this size.
    #[must_use]
    pub fn new(size: RingSize) -> FakeMemory {
        FakeMemory(Rc::new(RefCell::new(alloc::vec![0; size.bytes()])))
    }

    fn u64_at(&self, offset: usize) -> u64 {
        u64::from(self.read_u32(offset)) | u64::from(self.read_u32(offset + 4)) << 32
    }
}

impl RingMemory for FakeMemory {
    fn read_u32(&self, offset: usize) -> u32 {
        assert_eq!(offset % 4, 0);
        let memory = self.0.borrow();
        (0..4).map(|byte| u32::from(memory[offset + byte]) << (8 * byte)).sum()
    }

    fn write_u64(&self, offset: usize, value: u64) {
        assert_eq!(offset % 8, 0);
        self.0.borrow_mut()[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn load_acquire_u32(&self, offset: usize) -> u32 {
        self.read_u32(offset)
    }
}

/// A piece that the fake card has read out of a transmit ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sent {
    pub address: u64,
    pub bytes: u16,
    pub packet_bytes: u32,
    pub is_last: bool,
}

/// The card's side of one ring.
#[derive(Debug)]
pub struct FakeCard {
    memory: FakeMemory,
    size: RingSize,
    head: u16,
    tail: u16,
}

impl FakeCard {
    #[must_use]
    pub fn new(memory: FakeMemory, size: RingSize) -> FakeCard {
        FakeCard { memory, size, head: 0, tail: 0 }
    }

    /// The driver writes the tail register.
    pub fn set_tail(&mut self, tail: u16) {
        assert!(tail < self.size.get());
        self.tail = tail;
    }

    /// Descriptors that the card has.
    #[must_use]
    pub fn has(&self) -> u16 {
        self.size.between(self.head, self.tail)
    }

    fn next(&mut self) -> Option<usize> {
        let at = usize::from(self.head) * BYTES;
        (self.has() > 0).then(|| {
            self.head = self.size.after(self.head, 1);
            at
        })
    }

    /// Writes a received descriptor back with this status and length, and says whose buffer it was.
    pub fn receive(&mut self, status: u32, length: u32) -> Option<u64> {
        let at = self.next()?;
        let address = self.memory.u64_at(at);
        assert_eq!(self.memory.u64_at(at + 8), 0, "a fresh descriptor");
        self.memory.write_u64(at + 8, u64::from(length) << 32 | u64::from(status));
        Some(address)
    }

    /// Reads the next transmit descriptor, and reports it done if it asks for that.
    pub fn send(&mut self) -> Option<Sent> {
        let at = self.next()?;
        let address = self.memory.u64_at(at);
        let word = self.memory.u64_at(at + 8);
        let command = word as u32;
        // Advanced data, with the Ethernet checksum (82576 sec 7.2.2).
        assert_eq!(command & 0x22f0_0000, 0x2230_0000, "{command:#x}");
        if command & 1 << 27 != 0 {
            self.memory.write_u64(at + 8, 1 << 32);
        }
        Some(Sent {
            address,
            bytes: command as u16,
            packet_bytes: (word >> 46) as u32,
            is_last: command & 1 << 24 != 0,
        })
    }
}
