//! Memory that both queues can work on, and a queue in it.

use std::sync::atomic::Ordering;

use virtio_device::queue::{QueueSetup, Virtqueue};
use virtio_device::{Features, GuestPhysAddr, GuestRam, OutOfRange};
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory, GuestMemoryMmap, Permissions};

/// Where the queue's parts lie; rust-vmm takes a ring at 0 for none.
pub const DESCRIPTORS: u64 = 0x1000;
pub const AVAILABLE: u64 = 0x3000;
pub const USED: u64 = 0x4000;
/// Behind the rings: indirect tables and buffers.
pub const DATA: u64 = 0x8000;
pub const RAM_BYTES: u64 = 0x4_0000;
/// The largest queue that fits.
pub const MOST_ENTRIES: u16 = 256;

/// rust-vmm's memory as a [`GuestRam`].
pub struct Ram(pub GuestMemoryMmap);

impl Default for Ram {
    fn default() -> Self {
        Self::new()
    }
}

impl Ram {
    /// Zeroed.
    ///
    /// # Panics
    /// If the host has no memory.
    pub fn new() -> Self {
        let range = (GuestAddress(0), RAM_BYTES as usize);
        Ram(GuestMemoryMmap::from_ranges(&[range]).expect("memory for a test"))
    }

    /// `bytes` bytes from `start` on.
    ///
    /// # Panics
    /// If they are not all there.
    pub fn content(&self, start: u64, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        self.0.read_slice(&mut content, GuestAddress(start)).expect("the memory is there");
        content
    }
}

fn lost(address: GuestPhysAddr, bytes: u64) -> OutOfRange {
    OutOfRange { address, bytes }
}

impl GuestRam for Ram {
    fn read(&self, address: GuestPhysAddr, into: &mut [u8]) -> Result<(), OutOfRange> {
        let read = self.0.read_slice(into, GuestAddress(address.as_u64()));
        if into.is_empty() { Ok(()) } else { read.map_err(|_| lost(address, into.len() as u64)) }
    }

    fn write(&self, address: GuestPhysAddr, from: &[u8]) -> Result<(), OutOfRange> {
        let written = self.0.write_slice(from, GuestAddress(address.as_u64()));
        if from.is_empty() { Ok(()) } else { written.map_err(|_| lost(address, from.len() as u64)) }
    }

    fn contains(&self, address: GuestPhysAddr, bytes: u64) -> bool {
        let range = (GuestAddress(address.as_u64()), bytes as usize);
        bytes == 0 || self.0.check_range(range.0, range.1, Permissions::ReadWrite)
    }

    fn load_acquire_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange> {
        let loaded = self.0.load(GuestAddress(address.as_u64()), Ordering::Acquire);
        loaded.map(u16::from_le).map_err(|_| lost(address, 2))
    }

    fn store_release_u16(&self, address: GuestPhysAddr, value: u16) -> Result<(), OutOfRange> {
        let stored = self.0.store(value.to_le(), GuestAddress(address.as_u64()), Ordering::Release);
        stored.map_err(|_| lost(address, 2))
    }

    fn read_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange> {
        // As rust-vmm reads a ring's entry.
        let loaded = self.0.load(GuestAddress(address.as_u64()), Ordering::Acquire);
        loaded.map(u16::from_le).map_err(|_| lost(address, 2))
    }
}

/// Our queue over the rings.
///
/// # Panics
/// If `entries` is not a power of two up to [`MOST_ENTRIES`].
pub fn ours(ram: &Ram, entries: u16, event_index: bool, indirect: bool) -> Virtqueue {
    let mut features = Features::VERSION_1;
    if event_index {
        features = features | Features::EVENT_IDX;
    }
    if indirect {
        features = features | Features::INDIRECT_DESC;
    }
    let setup = QueueSetup {
        size: entries,
        descriptor_table: DESCRIPTORS.into(),
        available_ring: AVAILABLE.into(),
        used_ring: USED.into(),
    };
    Virtqueue::new(&setup, MOST_ENTRIES, features, ram).expect("a queue as it should be")
}

/// rust-vmm's queue over the rings.
///
/// # Panics
/// As [`ours`].
pub fn theirs(ram: &Ram, entries: u16, event_index: bool) -> Queue {
    let mut queue = Queue::new(MOST_ENTRIES).expect("a size that a queue can have");
    queue.set_size(entries);
    queue.try_set_desc_table_address(GuestAddress(DESCRIPTORS)).expect("an aligned table");
    queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).expect("an aligned ring");
    queue.try_set_used_ring_address(GuestAddress(USED)).expect("an aligned ring");
    queue.set_event_idx(event_index);
    queue.set_ready(true);
    assert!(queue.is_valid(&ram.0), "a queue as it should be");
    queue
}
