//! The network cards, and what goes over their cables.

#![forbid(unsafe_code)]

#[path = "links/cards.rs"]
mod cards;
#[path = "links/jumbo.rs"]
mod jumbo;
#[path = "links/liar.rs"]
mod liar;
#[path = "links/sectors.rs"]
mod sectors;
#[path = "links/trains.rs"]
mod trains;
