//! Network address translation between the guests' network and the node's uplink.
//!
//! Guests have addresses that mean nothing outside the node. [`Nat::outbound`] gives their packets
//! the uplink's address and a port of the node's, [`Nat::inbound`] brings the answers back, and a
//! [`Forward`] lets the outside in to one guest's port. Both rewrite an IPv4 packet where it lies,
//! without reading its payload, and return a [`Verdict`]: where it goes next, or why nowhere.
//! Ethernet addresses, ARP and routes are the caller's.
//!
//! What it promises, and where that stands:
//! - A guest's port keeps one outside port whatever it talks to, and no two guests' ports share
//!   one (RFC 4787 REQ-1 and REQ-3, RFC 5382 REQ-1 and REQ-7).
//! - What comes in must belong to a connection, to its very address and port, or to a forward.
//!   Address-and-port-dependent filtering is the strict end of RFC 4787 section 5: a guest is
//!   reachable by whom it asked and by nobody else.
//! - A guest that addresses the uplink's own address reaches a forward too (hairpinning, RFC 4787
//!   REQ-9).
//! - Idle times are those of RFC 4787 REQ-5 (UDP), RFC 5382 REQ-5 (TCP) and RFC 5508 REQ-1 (echo);
//!   see [`Timeouts`].
//! - ICMP errors about a connection reach its guest, with the packet that they quote as the guest
//!   sent it (RFC 5508 REQ-4 and REQ-5); path MTU discovery needs them.
//! - The tables are bounded, in all and per guest. A full one gives up what is closing or has been
//!   idle for the least time that the RFCs allow, and never an established TCP connection.
//! - Ports that the node itself uses are never given out; it is asked each time.
//!
//! Not taken: fragments are dropped by name, as the node's own stack does; following them costs
//! state that a stranger can fill (RFC 4787 REQ-14 wants in-order ones, and is not met). Port
//! parity (REQ-4) serves RTP without RTCP attributes and halves the ports.
//!
//! Hash tables with chains in arrays and lists by age are written out here rather than taken from
//! a map type, since a packet must cost no allocation and a full table no scan.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod age;
mod connections;
mod counters;
mod forwards;
mod index;
mod mappings;
mod quoted;
mod shares;
mod tcp;
mod translate;

pub use connections::{Connection, Phase};
pub use counters::{Counters, DropReason};
pub use forwards::{Forward, ForwardError, MOST_FORWARDS};
pub use netwire::Transport;
pub use translate::{Nat, Settings, Timeouts, Verdict};
