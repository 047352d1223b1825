//! The layer-2 switch on which guests, the node's own stack and its uplink meet.
//!
//! It only decides: [`Switch::decide`] looks at a frame's two addresses and says to which ports it
//! goes, or why to none. Moving frames, with their ownership and queues, is its caller's affair;
//! so one decision costs a hash and a few compares, allocates nothing, and can be tested against
//! a model on the host.
//!
//! It is a learning bridge in the sense of IEEE 802.1Q-2018 (filtering database 8.8, ageing
//! 8.8.3), without spanning tree: the topology is one switch. What differs from a switch in a
//! rack is whom it trusts. A port's tenant is a guest, and a guest is hostile until shown
//! otherwise:
//!
//! - An address can be *bound* to a port. Nobody else may send from it, it is never learned
//!   elsewhere and never ages; a port attached with [`SourceRule::BoundOnly`] may send from its
//!   bound addresses only. So a guest can neither take the node's traffic nor another guest's.
//! - Learned addresses are bounded, in all and per port, so that a tenant that invents addresses
//!   past its share pushes out its own.
//! - Flooding, the one operation that costs every tenant something, has a rate per ingress port.
//!
//! Not taken: a table in a general hash map. It would allocate while it grows under a lock that
//! every frame takes, and its worst case is the attacker's to choose.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod bridge;
mod counters;
mod port;
mod stations;
mod storm;

pub use bridge::{AttachError, BindError, Decision, Settings, SourceRule, Station, Switch};
pub use counters::{DropReason, PortCounters};
pub use port::{MOST_PORTS, PortId, PortSet, Ports};
pub use storm::StormLimit;
