//! netblk's client: disks of a nos node, from any host, over UDP.
//!
//! ```text
//!   main.rs      what the user wants              (clap)
//!   verify, bench, transfer                       jobs: which requests, what to do with answers
//!   client       a socket, the clock, Ctrl-C      the only module that knows any of the three
//!   engine       requests under way               timers, cookies, pieces: no I/O, no clock
//!   rtt, window  when to ask again, how many at once
//! ```

#![forbid(unsafe_code)]

pub mod bench;
pub mod client;
pub mod engine;
pub mod error;
pub mod pacing;
pub mod pattern;
pub mod rtt;
pub mod size;
pub mod transfer;
pub mod verify;
pub mod window;

pub use client::{Client, Options};
pub use error::Error;
