//! What the queues carry: frames of the pool.

use kcore::frame::{DeviceChain, DeviceFrame, FrameChain, Segment as Piece};
use udp_train::HEADERS_BYTES;
use virtio_driver::{PacketMemory, PacketQueue, Segment};
use virtio_pci::QueueMemory;

/// A queue whose packets are pool frames.
pub(crate) type FrameQueue = PacketQueue<QueueMemory, CardPacket>;

/// A packet that the card has, or a train of them.
pub(crate) struct CardPacket {
    pub head: DeviceFrame,
    /// The other datagrams of a train, without their headers.
    pub followers: DeviceChain,
    pub follower_pieces: usize,
}

impl CardPacket {
    /// A single packet.
    pub fn of(packet: DeviceFrame) -> CardPacket {
        CardPacket { head: packet, followers: FrameChain::new().into_device(), follower_pieces: 0 }
    }

    /// Gives back what was sent, or will not be. The card must be done with it.
    pub fn free(self) {
        drop(self.head.reclaim(0));
        drop(self.followers.reclaim());
    }
}

impl PacketMemory for CardPacket {
    #[inline]
    fn behind_count(&self) -> usize {
        self.head.piece_count() - 1 + self.follower_pieces
    }

    fn each_behind(&self, mut each: impl FnMut(Segment)) {
        // A piece lies in a page.
        let mut each =
            |piece: Piece| each(Segment { device_address: piece.phys.as_u64(), bytes: piece.bytes as u32 });
        (0..).map_while(|place| self.head.piece_behind(place)).for_each(&mut each);
        self.followers.each_segment(HEADERS_BYTES, each);
    }
}
