//! The driver's side of VIRTIO 1.2, without a machine under it: which features to accept, where a
//! PCI device keeps its registers, and the arithmetic of a split queue.
//!
//! A virtio device is software of somebody else: a hypervisor, or a network card that claims to
//! speak the protocol. It writes the used ring at will. So everything read from it is checked
//! before use, and what cannot be true ends in a [`QueueFault`], not in an index out of bounds or
//! a frame owned twice. That logic is here, where the host can test it against a [`fake`] device
//! that lies; drivers add registers, DMA memory and interrupts.
//!
//! "VIRTIO" in comments is the OASIS Virtual I/O Device specification, version 1.2.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod blk;
pub mod fake;
pub mod features;
mod layout;
pub mod net;
pub mod pci;
mod queue;
mod requests;
mod restarts;

pub use features::{Features, MissingFeature};
pub use layout::{QueueLayout, QueueSize};
pub use queue::{
    Access, Packet, PacketMemory, PacketQueue, QueueFault, RingMemory, Segment, Submitted, Used,
};
pub use requests::{Class, Ended, NoSlot, RequestLayout, RequestQueue};
pub use restarts::{FORGIVEN_EVERY_NS, MAX_RESTARTS, Restarts};

/// Bits of the device status field (VIRTIO sec 2.1).
pub mod status {
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const DEVICE_NEEDS_RESET: u8 = 64;
    pub const FAILED: u8 = 128;
}
