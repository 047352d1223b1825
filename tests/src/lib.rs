//! What the stories are written with.
//!
//! A story boots a node as `cargo xtask up` would, does to it what a person or a peer would, and says what must come of
//! it. [`Setup`] describes the node, [`Node`] is one that runs. Every wait has a deadline and every node ends with its
//! story: by the destructor, and by the kernel's parent-death signal if there is no time for a destructor.
//!
//! What goes wrong here is a failed story, so these helpers panic, with the console's last lines in the message, where
//! a library would return an error.

#![forbid(unsafe_code)]

pub mod bzimage;
pub mod counting;
pub mod frames;
pub mod http;
pub mod netblk;
pub mod program;
pub mod proxy;
pub mod session;
pub mod smoke;
pub mod vhost;

mod node;
mod setup;

use std::time::{Duration, Instant};

pub use node::{GuestConsole, Node};
pub use setup::{Loader, Setup};

/// Long enough for anything but a guest's boot, on a machine that has other things to do.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// A Linux guest's boot.
pub const GUEST_PATIENCE: Duration = Duration::from_secs(120);

/// The moment when a wait that begins now has lasted too long.
pub fn within(patience: Duration) -> Instant {
    Instant::now() + patience
}
