//! The driver of virtio network cards on PCI (VIRTIO 1.2 sec 5.1, 4.1).
//!
//! Built for a path on which nobody copies: every packet is received into a frame of the kernel's
//! pool, at byte 0, and sent from one; the virtio header lies in the queue's own memory
//! (`virtio_driver::PacketQueue`). What follows from that:
//!
//! - **A packet of several pieces** is one chain of descriptors, from an indirect table where the
//!   card reads them: an answer out of a shared page, or a jumbo packet, which is received into as
//!   many frames as the longest of the link may take. A short packet fills the first of them; the
//!   others go back into the ring at once.
//! - **Receiving** never gives the last buffer away. A received frame is delivered only if the
//!   pool has another to take its place; otherwise it goes back into the ring and the packet is a
//!   counted drop. So the ring is full at all times and needs no one to tell it that the pool has
//!   frames again, and a frame freed anywhere simply returns to the pool.
//! - **Interrupts** are for the first packet of a burst. The handler raises a softirq, which takes
//!   packets in bounded batches with the card's interrupts off and turns them on again only when
//!   the ring is empty, looking once more after that.
//! - **Sending** is one lock and at most one doorbell for a whole chain. Up to 32 packets are
//!   with the card; a backlog in software takes what does not fit. Sent frames are taken back when
//!   the next are sent, so the card is asked for a transmit interrupt only while a backlog waits,
//!   and then for one per half ring.
//! - **A card that lies** (`virtio_driver::QueueFault`) or asks for it is reset and set up again,
//!   `virtio_driver::MAX_RESTARTS` times, of which one an hour is forgiven; past that it stays
//!   down. Its frames come back in either case, because they are taken only after the reset was
//!   acknowledged or bus mastering was taken away. An empty pool is no fault of the card: it is
//!   tried again until there are frames to receive into.
//!
//! Not used: checksum and segmentation offload (nothing here hands the card a partial packet yet),
//! multiqueue (one CPU takes the interrupts of a card), the legacy registers.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod memory;
mod receive;
mod registers;
mod transmit;

use alloc::format;

use kcore::{net, pci};
use virtio_driver::pci::{DEVICE_NET, DEVICE_NET_TRANSITIONAL, VENDOR};

pub use device::{StartError, VirtioNet};

/// Starts every virtio network card, with its interrupts on CPU `cpu`, and registers it under the
/// next free name. A card that cannot be started is named in the log, and the others go on.
pub fn probe(cpu: usize) -> usize {
    let mut started = 0;
    for function in pci::devices() {
        if function.vendor != VENDOR || ![DEVICE_NET, DEVICE_NET_TRANSITIONAL].contains(&function.device) {
            continue;
        }
        let name = format!("eth{}", net::devices().len());
        match VirtioNet::start(function, name, cpu) {
            Ok(device) => {
                net::register(device);
                started += 1;
            }
            Err(error) => log::error!("virtio-net at {}: {error}", function.address),
        }
    }
    started
}
