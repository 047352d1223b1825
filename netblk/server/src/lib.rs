//! netblk's server: a disk over UDP, with no copy of the data by the CPU.
//!
//! ```text
//!   card --DMA--> pool frame
//!                   |  receive softirq: check, take a slot
//!                   v
//!            [request ring]
//!                   |
//!                   v
//!   worker on its own CPU: every queued request to the disk, ONE doorbell
//!                   |
//!                   v
//!   disk --DMA--> into the frame (READ) / out of the frame (WRITE)
//!                   |  completion interrupt: push the slot, signal, nothing more
//!                   v
//!            [completion ring]
//!                   |
//!                   v
//!   worker: 72 bytes of headers (version 2: 108) in front of the data, all replies as one batch
//!                   |  one transmit lock, one doorbell
//!                   v
//!   card <--DMA-- frame
//! ```
//!
//! No instruction of the CPU reads or writes a byte of a sector. A WRITE's data goes to the disk
//! from the frame in which the card received it, and that frame goes back as the reply; a READ's
//! data is put by the disk into a fresh frame, behind the room for its headers, or into a page that
//! is sent in pieces. The one exception, a copy that is counted, is in `memory`.
//!
//! The network side and the disk side meet in three lock-free rings (crate `rings`) of slot
//! numbers: free, requests, completions. Each has room for every slot and one consumer, so no push
//! is ever refused and neither side waits for a lock that the other holds. Whoever popped a number
//! owns its slot; the locks inside a slot are never contended and only show that to the compiler.
//!
//! The worker sleeps on an event that the softirq and the interrupt handler signal; when it polls
//! instead is `netblk_logic::WaitPolicy`'s decision.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod counters;
mod instance;
mod list;
mod memory;
mod neighbours;
mod outbox;
mod polled;
mod receive;
mod room;
mod service;
mod sessions;
mod slot;
mod worker;

pub use counters::{Counts, Drop};
pub use list::{ClientInfo, ServiceInfo};
pub use netblk_logic::{Access, Network, OptionError, StartOptions, USAGE};
pub use netblk_proto::v2::PreSharedKey;
pub use service::{StartError, StopError, StopReport, list, start, stop, stop_all};
pub use slot::SLOTS;
