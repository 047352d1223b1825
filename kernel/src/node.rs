//! The node: what was assembled at boot, for the shell to show and to change.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use announce::Announcement;
use config::{Config, Ipv4Cidr, NodeAddress};
use kcore::module;
use kcore::task::{self, Placement, Priority};
use kcore::time;
use stack::{AddressConfig, Stack, Subnet};

/// The CPU that takes the network cards' interrupts, and so runs their softirqs and the node's stack.
const NIC_CPU: usize = 0;

/// What the node is made of.
pub struct Node {
    configuration: &'static [u8],
}

impl Node {
    /// Starts the drivers of everything that the machine has.
    pub fn start_drivers(config: &Config) {
        virtio_net::probe(NIC_CPU);
        igb::probe(NIC_CPU, config.node.mtu);
        nvme::probe();
        virtio_blk::probe();
        partition_disk::register_all();
    }

    /// Assembles the node from its configuration, whose text is `configuration`. What cannot be had is
    /// said, and left out.
    pub fn assemble(config: &Config, configuration: &'static [u8]) -> Node {
        start_stacks(config);
        let node = Node { configuration };
        // Services first: guests keep off the CPUs that they work on.
        let wants_hv = !config.guests.is_empty() || !config.forwards.is_empty();
        for (name, is_wanted) in [("netblk", !config.netblk.is_empty()), ("hv", wants_hv)] {
            if is_wanted && let Err(why) = module::load(name, configuration) {
                refuse(&format!("module {name}"), &why);
            }
        }
        node
    }

    /// The text of `nos.toml`, for modules.
    pub fn configuration(&self) -> &'static [u8] {
        self.configuration
    }

    /// The node's own IP on each card.
    pub fn stacks(&self) -> Vec<Arc<Stack>> {
        stack::all()
    }

    /// The stack that reaches `destination`.
    pub fn stack_towards(&self, destination: Ipv4Addr) -> Option<Arc<Stack>> {
        stack::towards(destination)
    }

    /// Stops guests and services, before the machine goes off.
    pub fn stop_everything(&self) {
        // In the order opposite to their start.
        for loaded in module::list().iter().rev() {
            loaded.module().stop_everything();
        }
        nvme::shut_down();
        virtio_blk::shut_down();
    }
}

/// Says that something of the configuration could not be had.
fn refuse(what: &str, reason: &dyn core::fmt::Display) {
    log::error!("{}", Announcement::Refused { what, reason: &format!("{reason}") });
}

/// A stack on every card. The configured address is the first card's, the uplink; others ask DHCP.
fn start_stacks(config: &Config) {
    for (index, card) in kcore::net::devices().into_iter().enumerate() {
        let name = String::from(card.name());
        let address = if index == 0 { uplink_address(&config.node.address) } else { AddressConfig::Dhcp };
        match Stack::start(card, address, NIC_CPU) {
            Ok(stack) => announce_address(&stack),
            Err(error) => refuse(&name, &error),
        }
    }
}

fn uplink_address(address: &NodeAddress) -> AddressConfig {
    match address {
        NodeAddress::Dhcp => AddressConfig::Dhcp,
        NodeAddress::Fixed { address, gateway } => {
            let subnet = host_subnet("the node's address", address);
            subnet.map_or(AddressConfig::Dhcp, |subnet| AddressConfig::Fixed { subnet, gateway: *gateway })
        }
    }
}

/// A configured network, if a host can have that address in it.
fn host_subnet(what: &str, address: &Ipv4Cidr) -> Option<Subnet> {
    let subnet = Subnet::new(address.address(), address.prefix_bits());
    if subnet.is_none() {
        refuse(what, &format!("{address} is no host's address"));
    }
    subnet
}

/// Says the card's address once it has one.
fn announce_address(stack: &Arc<Stack>) {
    let waiting = stack.clone();
    let announced = task::spawn("address", Placement::Cpu(NIC_CPU), Priority::Normal, move || {
        if let Some(subnet) = waiting.wait_for_address(u64::MAX) {
            let nic = waiting.card().name();
            log::info!("{}", Announcement::Address { nic, address: &format!("{subnet}") });
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
