//! What is particular to network devices (VIRTIO sec 5.1).

use crate::Features;

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

/// Offsets in the device's configuration (VIRTIO sec 5.1.4).
pub mod config {
    pub const MAC: usize = 0;
    pub const STATUS: usize = 6;
    pub const MTU: usize = 10;
    /// Bytes that a device with all features used here has.
    pub const BYTES: usize = 12;

    pub const STATUS_LINK_UP: u16 = 1;
}
