//! What a netblk server decides, without the machine it decides on.
//!
//! The server itself (netblk/server) moves frames, slots and commands between a network card, a
//! worker and a disk; each question it has on the way is answered here, where a test can ask it
//! too:
//!
//! - [`StartOptions`]: what does `netblk start ...` mean, and what is wrong with it?
//! - [`write_headers`]: which 72 bytes stand before a reply's data?
//! - [`WriteFence`]: may this write start, or would it overtake an older one to the same sectors?
//! - [`WaitPolicy`]: there is nothing to do; poll, sleep, or sleep until when?
//! - [`RateLimit`]: is this line worth a place in the log?

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod fence;
mod options;
mod packet;
mod rate;
mod wait;

pub use fence::WriteFence;
pub use options::{DEFAULT_MTU, DEFAULT_NIC, MAX_POLL_US, OptionError, StartOptions, USAGE, default_cpu};
pub use packet::{DATA_START, HeaderRoom, write_headers};
pub use rate::RateLimit;
pub use wait::{OWED_POLL_NS, RETRY_NS, Wait, WaitPolicy};
