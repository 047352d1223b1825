//! The device's side of a queue, for tests: an honest one, and memory for lies.

use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use crate::layout::QueueLayout;
use crate::queue::{
    DEVICE_WRITES, INDIRECT, NEXT, NO_INTERRUPT, NO_NOTIFY, PacketMemory, RingMemory, Segment, passes,
};

/// Queue memory that both sides see.
#[derive(Clone, Debug)]
pub struct FakeMemory(Rc<RefCell<Vec<u8>>>);

/// Where a fake device sees the queue memory.
const DEVICE_BASE: u64 = 0x1_0000_0000;

impl FakeMemory {
    pub fn new(layout: &QueueLayout) -> FakeMemory {
        FakeMemory(Rc::new(RefCell::new(vec![0; layout.bytes()])))
    }

    fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        assert_eq!(offset % N, 0, "{N} bytes at {offset:#x} are not aligned");
        let memory = self.0.borrow();
        *memory[offset..].first_chunk().expect("inside the queue's memory")
    }

    fn write<const N: usize>(&self, offset: usize, value: [u8; N]) {
        assert_eq!(offset % N, 0, "{N} bytes at {offset:#x} are not aligned");
        self.0.borrow_mut()[offset..offset + N].copy_from_slice(&value);
    }

    pub fn read_u16(&self, offset: usize) -> u16 {
        u16::from_le_bytes(self.read(offset))
    }

    /// Overwrites any byte: what a lying device can do.
    pub fn poke(&self, offset: usize, value: u8) {
        let mut memory = self.0.borrow_mut();
        let bytes = memory.len();
        memory[offset % bytes] = value;
    }
}

impl RingMemory for FakeMemory {
    fn read_u32(&self, offset: usize) -> u32 {
        u32::from_le_bytes(self.read(offset))
    }

    fn write_u16(&self, offset: usize, value: u16) {
        self.write(offset, value.to_le_bytes());
    }

    fn write_u32(&self, offset: usize, value: u32) {
        self.write(offset, value.to_le_bytes());
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, value.to_le_bytes());
    }

    fn load_acquire_u16(&self, offset: usize) -> u16 {
        self.read_u16(offset)
    }

    fn store_release_u16(&self, offset: usize, value: u16) {
        self.write_u16(offset, value);
    }

    fn device_address(&self, offset: usize) -> u64 {
        DEVICE_BASE + offset as u64
    }
}

/// One buffer of a chain, as the device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FakeBuffer {
    pub address: u64,
    pub bytes: u32,
    pub device_writes: bool,
}

/// A plain number is the token of a packet of one piece.
impl PacketMemory for u32 {
    fn behind_count(&self) -> usize {
        0
    }

    fn each_behind(&self, _: impl FnMut(Segment)) {}
}

/// As a plain number of 32 bits.
impl PacketMemory for u64 {
    fn behind_count(&self) -> usize {
        0
    }

    fn each_behind(&self, _: impl FnMut(Segment)) {}
}

/// A device that follows the specification.
pub struct FakeDevice {
    pub memory: FakeMemory,
    layout: QueueLayout,
    event_index: bool,
    seen: u16,
    returned: u16,
}

impl FakeDevice {
    pub fn new(memory: FakeMemory, layout: QueueLayout, event_index: bool) -> FakeDevice {
        FakeDevice { memory, layout, event_index, seen: 0, returned: 0 }
    }

    /// The next chain that the driver made available: its head and its buffers.
    pub fn take_available(&mut self) -> Option<(u16, Vec<FakeBuffer>)> {
        if self.memory.read_u16(self.layout.available_index()) == self.seen {
            return None;
        }
        let head = self.memory.read_u16(self.layout.available_place(self.seen));
        self.seen = self.seen.wrapping_add(1);
        let mut buffers = Vec::new();
        let mut index = head;
        // Where descriptors are read from now, and how many there are.
        let (mut table, mut count) = (self.layout.descriptor(0), self.layout.size().get());
        loop {
            assert!(index < count, "descriptor {index} of {count}");
            let at = table + 16 * usize::from(index);
            let address = u64::from_le_bytes(self.memory.read(at));
            let bytes = self.memory.read_u32(at + 8);
            let flags = self.memory.read_u16(at + 12);
            if flags & INDIRECT != 0 {
                assert!(buffers.is_empty() && flags & NEXT == 0, "an indirect descriptor stands alone here");
                table = usize::try_from(address - DEVICE_BASE).expect("inside the queue's memory");
                count = u16::try_from(bytes / 16).expect("a table's length");
                assert!(
                    bytes.is_multiple_of(16) && count <= self.layout.size().get(),
                    "{bytes} bytes of table"
                );
                index = 0;
                continue;
            }
            buffers.push(FakeBuffer { address, bytes, device_writes: flags & DEVICE_WRITES != 0 });
            assert!(buffers.len() <= self.layout.size().get().into(), "a chain without end");
            if flags & NEXT == 0 {
                return Some((head, buffers));
            }
            index = self.memory.read_u16(at + 14);
        }
    }

    /// Wants a notification for the next packet. Returns whether there is one already.
    pub fn arm_notification(&mut self) -> bool {
        if self.event_index {
            self.memory.write_u16(self.layout.available_event(), self.seen);
        } else {
            self.memory.write_u16(self.layout.used_flags(), 0);
        }
        self.memory.read_u16(self.layout.available_index()) != self.seen
    }

    pub fn disarm_notification(&mut self) {
        if !self.event_index {
            self.memory.write_u16(self.layout.used_flags(), NO_NOTIFY);
        }
    }

    /// Returns a chain. The answer is whether the driver wants an interrupt for it.
    pub fn complete(&mut self, head: u16, written: u32) -> bool {
        self.return_element(u32::from(head), written);
        let index = self.returned.wrapping_add(1);
        self.memory.store_release_u16(self.layout.used_index(), index);
        let before = core::mem::replace(&mut self.returned, index);
        if self.event_index {
            passes(self.memory.read_u16(self.layout.used_event()), before, index)
        } else {
            self.memory.read_u16(self.layout.available_flags()) & NO_INTERRUPT == 0
        }
    }

    /// Writes a used element without moving the index.
    pub fn return_element(&mut self, id: u32, written: u32) {
        let at = self.layout.used_place(self.returned);
        self.memory.write_u32(at, id);
        self.memory.write_u32(at + 4, written);
    }

    /// Moves the used index by `count`, whatever that says.
    pub fn move_index(&mut self, count: u16) {
        self.returned = self.returned.wrapping_add(count);
        self.memory.store_release_u16(self.layout.used_index(), self.returned);
    }
}
