//! Queue memory in a DMA buffer.

use kcore::dma::DmaBuffer;
use kcore::frame::DeviceFrame;
use virtio_driver::{PacketMemory, PacketQueue, RingMemory, Segment};

/// A queue whose packets are pool frames.
pub(crate) type FrameQueue = PacketQueue<QueueMemory, CardPacket>;

/// A packet that the card has.
pub(crate) struct CardPacket(pub DeviceFrame);

impl PacketMemory for CardPacket {
    fn behind(&self, place: usize) -> Option<Segment> {
        let segment = self.0.piece_behind(place)?;
        // A piece lies in a page.
        Some(Segment { device_address: segment.phys.as_u64(), bytes: segment.bytes as u32 })
    }

    fn behind_count(&self) -> usize {
        self.0.piece_count() - 1
    }
}

/// The memory of one queue, shared with the card for good.
pub(crate) struct QueueMemory(pub DmaBuffer);

impl RingMemory for QueueMemory {
    fn read_u32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }

    fn write_u16(&self, offset: usize, value: u16) {
        self.0.write_u16(offset, value);
    }

    fn write_u32(&self, offset: usize, value: u32) {
        self.0.write_u32(offset, value);
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.0.write_u64(offset, value);
    }

    fn load_acquire_u16(&self, offset: usize) -> u16 {
        self.0.load_acquire_u16(offset)
    }

    fn store_release_u16(&self, offset: usize, value: u16) {
        self.0.store_release_u16(offset, value);
    }

    fn device_address(&self, offset: usize) -> u64 {
        self.0.phys().as_u64() + offset as u64
    }
}
