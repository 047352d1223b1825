//! The node: what was assembled at boot, for the shell to show and to change.

use alloc::string::String;
use alloc::vec::Vec;

use config::Config;

/// The CPU that takes the network cards' interrupts, and so runs their softirqs and the node's stack.
const NIC_CPU: usize = 0;

/// What the node is made of.
pub struct Node {
    config: Config,
}

impl Node {
    /// Starts the drivers of everything that the machine has.
    pub fn start_drivers() {
        virtio_net::probe(NIC_CPU);
        nvme::probe();
        partition_disk::register_all();
    }

    /// Assembles the node from its configuration. What cannot be had is said, and left out.
    pub fn assemble(config: Config) -> Node {
        Node { config }
    }

    /// The names of the guests.
    pub fn guest_names(&self) -> Vec<String> {
        self.config.guests.iter().map(|guest| guest.name.clone()).collect()
    }

    /// Stops guests and services, before the machine goes off.
    pub fn stop_everything(&self) {
        nvme::shut_down();
    }
}
