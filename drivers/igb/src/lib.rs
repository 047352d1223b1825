//! The driver of Intel's gigabit cards of the 82576's family: 82576, I350, I210, I211, with copper
//! ports. Tried with QEMU's 82576; for the others it follows their datasheets (`igb_protocol::Model`).
//!
//! Built for a path on which nobody copies: every packet is received into a frame of the kernel's pool,
//! at byte 0, without the Ethernet checksum, and sent from one. What follows from that, and how the
//! card differs from a virtio one:
//!
//! - **A packet of several pieces** is one descriptor a piece. A jumbo packet arrives in as many frames
//!   as it fills; the card is told a buffer's size and needs no packet's worth of them at a time.
//! - **Receiving** never gives the last buffer away. A packet is delivered only if the pool has frames
//!   to take its places; otherwise its own go back into the ring and it is a counted drop. So the ring
//!   is full at all times and needs no one to tell it that the pool has frames again.
//! - **Buffers** are announced to the card 32 at a time: it has 255, and each announcement is a bus
//!   transaction, under a hypervisor an exit.
//! - **Interrupts**: a message clears its cause and masks its vector by itself; the softirq takes
//!   packets in bounded batches and lets the vector interrupt again when the ring is empty. A packet
//!   that came before that has left its cause, and is reported then: no second look is needed.
//!   Transmission has a vector of its own, which is masked but while packets wait for the ring.
//! - **Moderation** is off; see `device::RECEIVE_INTERVAL_US` for why.
//! - **Sending** is one lock and one doorbell for a whole chain. Up to 255 pieces are with the card; a
//!   backlog in software takes what does not fit. Sent frames are taken back when the next are sent.
//! - **A card that lies** (`igb_protocol::RingFault`), finds a fatal error in itself, or sends nothing
//!   for two seconds is reset and set up again, a bounded number of times, of which one an hour is
//!   forgiven; past that it stays down. Its frames come back in either case, because they are taken only
//!   after bus mastering was taken away. An empty pool is no fault of the card: it is tried again until
//!   there are frames to receive into.
//!
//! Not used: checksum and segmentation offload, further queues (one CPU takes a card's interrupts),
//! VLANs, multicast, virtual functions, time stamps. Fibre and backplane ports are named in the log and
//! left alone: their links are brought up by other registers, and there was none to try.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod memory;
mod phy;
mod receive;
mod registers;
mod transmit;

use alloc::format;

use igb_protocol::{INTEL, Model};
use kcore::{net, pci};

pub use device::{Igb, ORDINARY_MTU, StartError};

/// Starts every card of the family, with its interrupts on CPU `cpu` and links of `mtu` bytes behind an
/// Ethernet header, and registers it under the next free name. A card that cannot be started is named in
/// the log, and the others go on.
pub fn probe(cpu: usize, mtu: u16) -> usize {
    let mut started = 0;
    for function in pci::devices().iter().filter(|function| function.vendor == INTEL) {
        let Some(model) = Model::of(function.device) else { continue };
        let name = format!("eth{}", net::devices().len());
        match Igb::start(function, model, name, cpu, mtu) {
            Ok(device) => {
                net::register(device);
                started += 1;
            }
            Err(error) => log::error!("{} at {}: {error}", model.name, function.address),
        }
    }
    started
}
