//! One load generator for every block service that is measured.
//!
//! Figures of different services are worth comparing only if the same program asked: one loop, one clock, one
//! histogram, the same places on the disk in the same order. What differs is behind [`Protocol`]: how a request is
//! written and how an answer is recognised.
//!
//! | module | |
//! |---|---|
//! | [`plan`] | what is asked for, how often at once, for how long |
//! | [`run`] | the loop and what it found |
//! | [`datagrams`], [`stream`] | sockets: UDP in batches, TCP without waiting |
//! | [`echo`], [`netblk`], [`nbd`], [`nvme_tcp`] | the protocols |
//! | [`target`] | which of them an address means |
//!
//! A request's latency runs from the moment the loop decides on it to the moment its last byte was taken from the
//! socket. Nothing is done with the data: a copy to nowhere would be the generator's cost, not the service's.

#![forbid(unsafe_code)]

pub mod datagrams;
pub mod echo;
pub mod nbd;
pub mod netblk;
pub mod nvme_tcp;
pub mod plan;
pub mod run;
pub mod stream;
pub mod target;

pub use plan::{Operation, Plan};
pub use run::{Protocol, Report, run};
