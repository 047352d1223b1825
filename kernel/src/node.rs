//! The node: what was assembled at boot, for the shell to show and to change.

use alloc::string::String;
use alloc::vec::Vec;

use config::Config;

/// What the node is made of.
pub struct Node {
    config: Config,
}

impl Node {
    /// Assembles the node from its configuration. What cannot be had is said, and left out.
    pub fn assemble(config: Config) -> Node {
        Node { config }
    }

    /// The names of the guests.
    pub fn guest_names(&self) -> Vec<String> {
        self.config.guests.iter().map(|guest| guest.name.clone()).collect()
    }

    /// Stops guests and services, before the machine goes off.
    pub fn stop_everything(&self) {}
}
