//! What a netblk server decides, without the machine it decides on.
//!
//! The server itself (netblk/server) moves frames, slots and commands between a network card, a
//! worker and a disk; each question it has on the way is answered here, where a test can ask it
//! too:
//!
//! - [`StartOptions`]: what does `netblk start ...` mean, and what is wrong with it?
//! - [`write_headers`]: which bytes stand before a reply's data?
//! - [`WriteFence`]: may this write start, or would it overtake an older one to the same sectors?
//! - [`WaitPolicy`]: there is nothing to do; poll, sleep, or sleep until when?
//! - [`Access`]: who may use this service, and with which secret?
//! - [`Challenger`] and [`Sessions`]: who is this, and what has it already asked?
//! - [`admits`] and [`frames_to_take`]: how much room may one client, or one service, take?
//! - [`Turns`]: whose request is next?
//! - [`RateLimit`]: is this line worth a place in the log?

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod challenge;
mod fence;
mod options;
mod packet;
mod rate;
mod sessions;
mod share;
mod turns;
mod wait;

pub use access::{Access, Network, NoNetwork};
pub use challenge::{CHALLENGE_UNIT_NS, Challenger};
pub use fence::WriteFence;
pub use options::{DEFAULT_MTU, DEFAULT_NIC, MAX_POLL_US, OptionError, StartOptions, USAGE, default_cpu};
pub use packet::{DATA_START, V2_DATA_START, write_headers};
pub use rate::RateLimit;
pub use sessions::{
    ConnectError, Connected, IDLE_NS, MOST_OF_ONE_ADDRESS, MOST_SESSIONS, Session, SessionPlace, Sessions,
    YIELDING_NS,
};
pub use share::{ROOM, ROOM_FOR_ONE, admits, frames_to_take};
pub use turns::{CLIENTS, Client, Queued, Turns};
pub use wait::{IdlePoll, MOST_LEARNED_NS, OWED_POLL_NS, RETRY_NS, Wait, WaitPolicy};
