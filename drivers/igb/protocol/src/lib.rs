//! Intel's gigabit cards of the 82576's family, without a machine under them: which there are, what
//! their registers say, and the arithmetic of their rings.
//!
//! A card writes its descriptors at will, and a broken one (or a hypervisor's model of one) writes
//! what cannot be true. So whatever is read back is checked before use, and ends in a [`RingFault`],
//! not in a packet longer than its memory. Unlike a virtio device, a card of this family never names a
//! buffer: it works through its rings in order and sets a bit. What it can lie about is a length, the
//! end of a packet, and being done; the first two are checked here. A card that says it has sent what
//! it has not yet read sends something else instead, which hurts nobody but it.
//!
//! The family shares one layout of registers for one queue. It is driven by the documents, of which
//! comments say:
//! - "82576": Intel 82576EB Gigabit Ethernet Controller, Datasheet, revision 2.63;
//! - "I210": Intel Ethernet Controller I210, Datasheet, revision 3.7 (the I211 is its smaller sister);
//! - "I350": Intel Ethernet Controller I350, Datasheet, revision 2.2.
//!
//! Chapters 4 (initialization), 7 (function) and 8 (registers) are theirs all three. Registers are
//! cited by the section of the 82576's chapter 8 that holds their group.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod assembly;
pub mod descriptor;
pub mod fake;
mod link;
mod mac;
mod models;
pub mod moderation;
mod receive;
pub mod register;
mod ring;
pub mod transmit;

pub use assembly::{Assembly, Step};
pub use link::{Link, Speed};
pub use mac::station_address;
pub use models::{INTEL, Model, Port};
pub use receive::{ReceiveRing, Received};
pub use ring::{RingFault, RingMemory, RingSize};
pub use transmit::{Segment, TransmitRing};
