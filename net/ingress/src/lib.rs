//! What a received frame is, decided before anyone acts on it.
//!
//! The node's own stack gets frames from a stranger's hands. Everything it has to decide about
//! one - is it for us, is it what its lengths say, which part of the node gets it - is a pure
//! function of the frame and of the interface's addresses: [`classify`], or [`classify_packet`]
//! where a jumbo packet takes several frames. It runs on the host under
//! garbage and is the only gate; behind it nobody measures a header again. What it refuses has a
//! name, [`DropReason`], and is counted under it.
//!
//! The second piece is [`Neighbours`], which MAC address an IPv4 address has: learned from ARP
//! packets alone, asked for with a limit on how often, and full at a fixed size.
//!
//! Both are apart from the `stack` crate because that one needs the machine under it.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod classify;
mod dhcp;
mod drop_reason;
mod interface;
mod neighbours;

pub use classify::{
    Class, IcmpMeta, ORDINARY_FRAME_BYTES, UdpMeta, classify, classify_packet, verify_udp_checksum,
};
pub use dhcp::dhcp_lease_seconds;
pub use drop_reason::DropReason;
pub use interface::{Interface, Subnet};
pub use neighbours::{Action, Neighbour, Neighbours, Resolution};
