//! The network cards, and what goes over their cables.

#![forbid(unsafe_code)]

#[path = "links/jumbo.rs"]
mod jumbo;
#[path = "links/liar.rs"]
mod liar;
#[path = "links/sectors.rs"]
mod sectors;
