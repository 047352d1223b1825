//! Ring memory in a DMA buffer.

use igb_protocol::{ReceiveRing, RingMemory, RingSize, TransmitRing};
use kcore::dma::DmaBuffer;
use kcore::frame::DeviceFrame;
use kcore::memory::OutOfMemory;

/// Rings whose packets are pool frames.
pub(crate) type FrameReceiveRing = ReceiveRing<RingBuffer, DeviceFrame>;
pub(crate) type FrameTransmitRing = TransmitRing<RingBuffer, DeviceFrame>;

/// The memory of one ring, shared with the card for good. It is page-aligned, of which a ring asks
/// for 128 bytes.
pub(crate) struct RingBuffer(DmaBuffer);

impl RingBuffer {
    pub fn new(size: RingSize, what: &'static str) -> Result<RingBuffer, OutOfMemory> {
        DmaBuffer::new(size.bytes(), what).map(RingBuffer)
    }

    /// Where it begins, for the card.
    pub fn device_address(&self) -> u64 {
        self.0.phys().as_u64()
    }
}

impl RingMemory for RingBuffer {
    fn read_u32(&self, offset: usize) -> u32 {
        self.0.read_u32(offset)
    }

    fn write_u64(&self, offset: usize, value: u64) {
        self.0.write_u64(offset, value);
    }

    fn load_acquire_u32(&self, offset: usize) -> u32 {
        self.0.load_acquire_u32(offset)
    }
}
