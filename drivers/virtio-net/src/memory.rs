//! What the queues carry: frames of the pool.

use kcore::frame::DeviceFrame;
use virtio_driver::{PacketMemory, PacketQueue, Segment};
use virtio_pci::QueueMemory;

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
