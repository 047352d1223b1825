//! What is particular to network devices (VIRTIO sec 5.1).

use crate::Features;

/// The device computes checksums of what it sends.
pub const CSUM: Features = Features(1 << 0);
/// The device cuts up UDP datagrams that it sends (VIRTIO 1.3; needs CSUM, sec 5.1.3.1).
pub const HOST_USO: Features = Features(1 << 56);
/// The device tells the largest packet the link takes.
pub const MTU: Features = Features(1 << 3);
/// The device has an address of its own.
pub const MAC: Features = Features(1 << 5);
/// The device tells whether the link is up.
pub const STATUS: Features = Features(1 << 16);

/// Queue numbers without multiqueue (VIRTIO sec 5.1.2).
pub const RECEIVE_QUEUE: u16 = 0;
pub const TRANSMIT_QUEUE: u16 = 1;

/// Bytes of the header before every packet: with VERSION_1 it always includes num_buffers
/// (VIRTIO sec 5.1.6). All zero on transmit means: no checksum to compute, nothing to cut.
pub const HEADER_BYTES: u32 = 12;

/// How a packet is to be cut into UDP datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpSegmentation {
    /// Everything up to the data.
    pub headers_bytes: u16,
    /// Data of each datagram.
    pub segment_bytes: u16,
    /// From where on the checksum is computed, and where behind that it is written.
    pub checksum_start: u16,
    pub checksum_offset: u16,
}

impl UdpSegmentation {
    /// VIRTIO_NET_HDR_F_NEEDS_CSUM.
    const NEEDS_CHECKSUM: u8 = 1;
    /// VIRTIO_NET_HDR_GSO_UDP_L4.
    const UDP_L4: u8 = 5;

    /// The packet's header: its first eight bytes and its last four.
    pub(crate) fn header(self) -> (u64, u32) {
        let [hdr_low, hdr_high] = self.headers_bytes.to_le_bytes();
        let [gso_low, gso_high] = self.segment_bytes.to_le_bytes();
        let [start_low, start_high] = self.checksum_start.to_le_bytes();
        let first =
            [Self::NEEDS_CHECKSUM, Self::UDP_L4, hdr_low, hdr_high, gso_low, gso_high, start_low, start_high];
        (u64::from_le_bytes(first), self.checksum_offset.into())
    }
}

/// Offsets in the device's configuration (VIRTIO sec 5.1.4).
pub mod config {
    pub const MAC: usize = 0;
    pub const STATUS: usize = 6;
    pub const MTU: usize = 10;
    /// Bytes that a device with all features used here has.
    pub const BYTES: usize = 12;

    pub const STATUS_LINK_UP: u16 = 1;
}
