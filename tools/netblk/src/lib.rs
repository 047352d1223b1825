//! netblk's client: disks of a nos node, from any host, over UDP.
//!
//! ```text
//!   main.rs      what the user wants              (clap)
//!   verify, bench, transfer                       jobs: which requests, what to do with answers
//!   plot         latencies as a drawing
//!   disk         a remote disk for many threads   requests of any length, in any number, in order
//!   client       a socket, the clock, Ctrl-C      the only module that knows any of the three
//!   engine       requests under way, sessions     timers, cookies, pieces: no I/O, no clock
//!   rtt, window, pacing                           when to ask again, how many at once, how fast
//! ```

#![forbid(unsafe_code)]

pub mod bench;
pub mod client;
pub mod disk;
pub mod engine;
pub mod error;
pub mod nbd;
pub mod pacing;
pub mod pattern;
pub mod plot;
pub mod rtt;
pub mod size;
pub mod transfer;
pub mod verify;
pub mod window;

pub use client::{Client, Options};
pub use disk::Disk;
pub use error::Error;
