//! The node: what was assembled at boot, for the shell to show and to change.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, SocketAddrV4};
use core::num::NonZeroU16;

use announce::Announcement;
use config::{Config, Forward, GuestNetwork, Ipv4Cidr, NetblkService, NodeAddress};
use hv::{CommandError, Gateway, GuestSpec, Hypervisor};
use kcore::archive;
use kcore::task::{self, Placement, Priority};
use kcore::time;
use netblk_server::{ServiceInfo, StartOptions};
use stack::{AddressConfig, Stack, Subnet};

/// The CPU that takes the network cards' interrupts, and so runs their softirqs and the node's stack.
const NIC_CPU: usize = 0;

/// What the node is made of.
pub struct Node {
    config: Config,
    /// The node's own IP, by card; the first is the uplink, the last the guests' switch.
    stacks: Vec<Arc<Stack>>,
    hypervisor: Arc<Hypervisor>,
    /// Between the guests' network and the uplink, if there are both.
    gateway: Option<Arc<Gateway>>,
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
        let mut stacks = start_stacks(&config);
        let hypervisor = Hypervisor::new(guest_specs(&config), kcore::random::seed());
        for service in &config.netblk {
            if let Some(started) = start_service(&stacks, service) {
                hypervisor.reserve(started.cpu);
            }
        }
        let gateway = connect_guests(&config, &mut stacks, &hypervisor);
        for guest in config.guests.iter().filter(|guest| guest.autostart) {
            match hypervisor.start(&guest.name) {
                // It was refused and has said why already.
                Ok(()) | Err(CommandError::NoSuchGuest { .. }) => {}
                Err(error) => refuse(&format!("guest {}", guest.name), &error),
            }
        }
        Node { config, stacks, hypervisor, gateway }
    }

    /// The guests' way out, and the outside's way in.
    pub fn gateway(&self) -> Option<&Arc<Gateway>> {
        self.gateway.as_ref()
    }

    /// The guests.
    pub fn hypervisor(&self) -> &Arc<Hypervisor> {
        &self.hypervisor
    }

    /// The node's own IP on each card.
    pub fn stacks(&self) -> &[Arc<Stack>] {
        &self.stacks
    }

    /// The stack that reaches `destination`: that of its own network, else the uplink's.
    pub fn stack_towards(&self, destination: Ipv4Addr) -> Option<&Arc<Stack>> {
        let is_near = |stack: &&Arc<Stack>| stack.subnet().is_some_and(|subnet| subnet.contains(destination));
        self.stacks.iter().find(is_near).or(self.stacks.first())
    }

    /// The names of the guests.
    pub fn guest_names(&self) -> Vec<String> {
        self.config.guests.iter().map(|guest| guest.name.clone()).collect()
    }

    /// Stops guests and services, before the machine goes off.
    pub fn stop_everything(&self) {
        self.hypervisor.stop_all();
        netblk_server::stop_all();
        nvme::shut_down();
    }
}

/// Says that something of the configuration could not be had.
fn refuse(what: &str, reason: &dyn core::fmt::Display) {
    log::error!("{}", Announcement::Refused { what, reason: &format!("{reason}") });
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

/// Gives the node its address on the guests' switch, and makes it their gateway to the uplink.
fn connect_guests(
    config: &Config,
    stacks: &mut Vec<Arc<Stack>>,
    hypervisor: &Hypervisor,
) -> Option<Arc<Gateway>> {
    let port = hypervisor.node_port()?;
    let what = "the node's port of the switch";
    let subnet = host_subnet(what, &config.switch.address)?;
    let inside = match Stack::start(port, AddressConfig::Fixed { subnet, gateway: None }, NIC_CPU) {
        Ok(inside) => inside,
        Err(error) => {
            refuse(what, &error);
            return None;
        }
    };
    let uplink = stacks.first().cloned();
    stacks.push(inside.clone());
    let keys = [kcore::random::seed(), kcore::random::seed()];
    let gateway = uplink.and_then(|uplink| hypervisor.connect(&uplink, &inside, subnet, keys));
    for forward in &config.forwards {
        match &gateway {
            Some(gateway) => forward_port(config, gateway, forward),
            None => refuse(&format!("forward of port {}", forward.port), &"the node has no uplink"),
        }
    }
    gateway
}

/// Leads a TCP port of the uplink to a guest.
fn forward_port(config: &Config, gateway: &Gateway, forward: &Forward) {
    let Forward { port, guest, guest_port } = forward;
    let what = format!("forward of port {port}");
    let Some(address) = config.guest(guest).and_then(|guest| guest.network.address()) else {
        return refuse(&what, &format!("there is no guest {guest} with an address"));
    };
    match gateway.forward_tcp(*port, SocketAddrV4::new(address, *guest_port)) {
        Ok(()) => {
            log::info!("{}", Announcement::Forward { port: *port, guest, guest_port: *guest_port });
        }
        Err(error) => refuse(&what, &error),
    }
}

/// The guests that the switch has ports for and whose files are in the boot archive. The others are refused, each alone.
fn guest_specs(config: &Config) -> Vec<GuestSpec> {
    let mut specs = Vec::new();
    for (index, guest) in config.guests.iter().enumerate() {
        let number = u8::try_from(index + 1).ok().filter(|&number| number <= hv::MOST_GUESTS);
        let Some(number) = number else {
            let why = format!("the switch has ports for {} guests", hv::MOST_GUESTS);
            refuse(&format!("guest {}", guest.name), &why);
            continue;
        };
        let file = |name: &str| {
            archive::file(name)
                .ok_or_else(|| format!("the boot archive has no {name}; `up` packs what nos.toml names"))
        };
        let files = file(&guest.kernel)
            .and_then(|kernel| guest.initrd.as_deref().map(file).transpose().map(|initrd| (kernel, initrd)));
        match files {
            Ok((kernel, initrd)) => specs.push(GuestSpec {
                name: guest.name.clone(),
                cpus: guest.cpus as usize,
                memory_bytes: guest.memory_bytes,
                kernel,
                initrd,
                command_line: config.guest_command_line(guest),
                network: match guest.network {
                    GuestNetwork::Switch { .. } => Some(hv::guest_mac(number)),
                    GuestNetwork::None => None,
                },
            }),
            Err(why) => refuse(&format!("guest {}", guest.name), &why),
        }
    }
    specs
}

/// Serves a disk as nos.toml asks.
fn start_service(stacks: &[Arc<Stack>], service: &NetblkService) -> Option<ServiceInfo> {
    let Some(port) = NonZeroU16::new(service.port) else {
        refuse(&format!("netblk {}", service.disk), &"port 0 is no UDP port");
        return None;
    };
    let mut options = StartOptions::new(&service.disk, port);
    options.read_only = service.read_only;
    options.cpu = service.cpu.map(|cpu| cpu as usize);
    options.nic = service.nic.clone().unwrap_or(options.nic);
    options.mtu = service.mtu.unwrap_or(options.mtu);
    options.poll_us = service.poll_us.unwrap_or(options.poll_us);
    match netblk_server::start(stacks, options) {
        Ok(started) => {
            log::info!("{}", Announcement::Netblk { disk: &started.disk, port: started.port });
            Some(started)
        }
        Err(error) => {
            refuse(&format!("netblk {}", service.disk), &error);
            None
        }
    }
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
