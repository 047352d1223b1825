//! struct virtio_net_hdr, which stands before every frame in the queues (VIRTIO 1.2 section 5.1.6).

/// With VERSION_1 the header always has `num_buffers`, also without MRG_RXBUF.
pub const HEADER_BYTES: usize = 12;

/// VIRTIO_NET_HDR_GSO_NONE.
const GSO_NONE: u8 = 0;

/// The header asks for an offload that was not negotiated, which the driver must not (5.1.6.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffloadNotNegotiated;

/// Checks a transmit header. `flags` and `gso_type` are where checksums (CSUM) and segmentation
/// (HOST_TSO4) will be asked for once they are offered; the other fields mean nothing without
/// them, and 5.1.6.2.2 has the device not look.
pub fn check_transmit(header: &[u8; HEADER_BYTES]) -> Result<(), OffloadNotNegotiated> {
    let [flags, gso_type, ..] = *header;
    if flags == 0 && gso_type == GSO_NONE { Ok(()) } else { Err(OffloadNotNegotiated) }
}

/// The header of a received frame that is whole and has its checksums: all zero but for
/// `num_buffers`, which is 1 without MRG_RXBUF (5.1.6.4.1).
pub const PLAIN_RECEIVE: [u8; HEADER_BYTES] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
