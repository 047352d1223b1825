//! The node: what was assembled at boot, for the shell to show and to change.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use announce::Announcement;
use config::{Config, NodeAddress};
use kcore::task::{self, Placement, Priority};
use kcore::time;
use stack::{AddressConfig, Stack, Subnet};

/// The CPU that takes the network cards' interrupts, and so runs their softirqs and the node's stack.
const NIC_CPU: usize = 0;

/// What the node is made of.
pub struct Node {
    config: Config,
    /// The node's own IP, by card; the first is the uplink.
    stacks: Vec<Arc<Stack>>,
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
        let stacks = start_stacks(&config);
        Node { config, stacks }
    }

    /// The node's own IP on each card.
    pub fn stacks(&self) -> &[Arc<Stack>] {
        &self.stacks
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

/// Says that something of the configuration could not be had.
fn refuse(what: &str, reason: &dyn core::fmt::Display) {
    log::error!("{}", Announcement::Refused { what, reason: &alloc::format!("{reason}") });
}

/// A stack on every card. The configured address is the first card's, the uplink; others ask DHCP.
fn start_stacks(config: &Config) -> Vec<Arc<Stack>> {
    let mut stacks = Vec::new();
    for (index, card) in kcore::net::devices().into_iter().enumerate() {
        let name = String::from(card.name());
        let address = if index == 0 { uplink_address(&config.node.address) } else { AddressConfig::Dhcp };
        match Stack::start(card, address, NIC_CPU) {
            Ok(stack) => {
                announce_address(&stack);
                stacks.push(stack);
            }
            Err(error) => refuse(&name, &error),
        }
    }
    stacks
}

fn uplink_address(address: &NodeAddress) -> AddressConfig {
    let NodeAddress::Fixed { address, gateway } = address else { return AddressConfig::Dhcp };
    match Subnet::new(address.address(), address.prefix_bits()) {
        Some(subnet) => AddressConfig::Fixed { subnet, gateway: *gateway },
        None => {
            refuse("the node's address", &alloc::format!("{address} is no host's; DHCP is asked instead"));
            AddressConfig::Dhcp
        }
    }
}

/// Says the card's address once it has one.
fn announce_address(stack: &Arc<Stack>) {
    let waiting = stack.clone();
    let announced = task::spawn("address", Placement::Cpu(NIC_CPU), Priority::Normal, move || {
        if let Some(subnet) = waiting.wait_for_address(u64::MAX) {
            let nic = waiting.card().name();
            log::info!("{}", Announcement::Address { nic, address: &alloc::format!("{subnet}") });
        }
    });
    if let Err(error) = announced {
        log::warn!("{}: the address will not be announced: {error}", stack.card().name());
    }
}

/// Milliseconds since power-on, for announcements.
pub fn now_ms() -> u64 {
    time::now_ns() / 1_000_000
}
