//! hv as a module of the node: the guests that `nos.toml` describes, their network, and the command
//! `hv`.
//!
//! The hypervisor itself is the crate `hv`. Here stands what ties it to this node: how the
//! configuration becomes guests, the node's own address on their switch, the way out by NAT and the
//! forwards in, and what the person at the console sees of them.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod command;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddrV4;

use announce::Announcement;
use config::{Config, Forward, GuestNetwork};
use hv::{CommandError, DiskSpec, Gateway, GuestSpec, Hypervisor};
use kcore::archive;
use kcore::module::{Begun, Module};
use kcore::shell::{Command, Done, Trouble};
use stack::{AddressConfig, Stack, Subnet};

/// Where the stack of the node's port runs: with the uplink's, so that the frames of a connection
/// between them stay on one CPU.
const STACK_CPU: usize = 0;

kcore::module!(begin);

/// Begins the module: makes the switch, connects it, starts the guests that are to start at boot.
/// What cannot be had is said, and left out.
fn begin(configuration: &'static [u8]) -> Begun {
    // The kernel has said already what is wrong in it.
    let (config, _) = config::parse(configuration);
    let hypervisor = Hypervisor::new(guest_specs(&config), kcore::random::seed());
    let inside = connect(&config, &hypervisor);
    for guest in config.guests.iter().filter(|guest| guest.autostart) {
        match hypervisor.start(&guest.name) {
            // It was refused and has said why already.
            Ok(()) | Err(CommandError::NoSuchGuest { .. }) => {}
            Err(error) => refuse(&format!("guest {}", guest.name), &error),
        }
    }
    let names = config.guests.into_iter().map(|guest| guest.name).collect();
    Ok(Box::new(Hv { hypervisor, inside, names }))
}

/// The module.
struct Hv {
    hypervisor: Arc<Hypervisor>,
    /// The node's own IP on the guests' switch.
    inside: Option<Arc<Stack>>,
    /// The guests that the configuration names.
    names: Vec<String>,
}

impl Module for Hv {
    fn commands(&self) -> &'static [Command] {
        command::COMMANDS
    }

    fn run(&self, _command: &str, arguments: &[&str]) -> Done {
        command::hv(&self.hypervisor, arguments)
    }

    fn complete(&self, words: &[&str], candidates: &mut Vec<String>) {
        match words {
            ["hv"] => candidates.extend(["list", "start", "stop", "console", "stat"].map(String::from)),
            ["hv", _] => candidates.extend(self.names.iter().cloned()),
            _ => {}
        }
    }

    fn report(&self, command: &str) -> Vec<String> {
        match (command, self.hypervisor.gateway()) {
            ("net", Some(gateway)) => command::nat_lines(&gateway),
            _ => Vec::new(),
        }
    }

    fn busy(&self) -> Option<String> {
        let running = self.hypervisor.under_way();
        let first = running.first()?;
        let names = running.join(", ");
        Some(format!("there are guests: {names}; `hv stop {first}` pulls one's plug"))
    }

    fn stop_everything(&self) {
        self.hypervisor.stop_all();
    }
}

impl Drop for Hv {
    fn drop(&mut self) {
        self.hypervisor.shut_down(self.inside.as_ref());
    }
}

/// Says that something of the configuration could not be had.
fn refuse(what: &str, reason: &dyn core::fmt::Display) {
    log::error!("{}", Announcement::Refused { what, reason: &format!("{reason}") });
}

/// Gives the node its address on the guests' switch, and makes it their gateway to the uplink. The
/// stack of that address.
fn connect(config: &Config, hypervisor: &Hypervisor) -> Option<Arc<Stack>> {
    let port = hypervisor.node_port()?;
    let what = "the node's port of the switch";
    let address = &config.switch.address;
    let Some(subnet) = Subnet::new(address.address(), address.prefix_bits()) else {
        refuse(what, &format!("{address} is no host's address"));
        return None;
    };
    let uplink = stack::all().into_iter().next();
    let inside = match Stack::start(port, AddressConfig::Fixed { subnet, gateway: None }, STACK_CPU) {
        Ok(inside) => inside,
        Err(error) => {
            refuse(what, &error);
            return None;
        }
    };
    let keys = [kcore::random::seed(), kcore::random::seed()];
    let gateway = uplink.and_then(|uplink| hypervisor.connect(&uplink, &inside, subnet, keys));
    for forward in &config.forwards {
        let what = format!("forward of port {}", forward.port);
        let done = match &gateway {
            Some(gateway) => forward_port(config, gateway, forward),
            None => Err(Trouble::from("the node has no uplink")),
        };
        if let Err(trouble) = done {
            refuse(&what, &trouble.why());
        }
    }
    Some(inside)
}

/// Leads a TCP port of the uplink to a guest.
fn forward_port(config: &Config, gateway: &Gateway, forward: &Forward) -> Done {
    let Forward { port, guest, guest_port } = forward;
    let address = config
        .guest(guest)
        .and_then(|guest| guest.network.address())
        .ok_or_else(|| format!("there is no guest {guest} with an address"))?;
    gateway.forward_tcp(*port, SocketAddrV4::new(address, *guest_port))?;
    log::info!("{}", Announcement::Forward { port: *port, guest, guest_port: *guest_port });
    Ok(())
}

/// The guests that the switch has ports for and whose files are in the boot archive. The others are
/// refused, each alone.
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
                disks: guest
                    .disks
                    .iter()
                    .map(|disk| DiskSpec { name: disk.name.clone(), read_only: disk.read_only })
                    .collect(),
            }),
            Err(why) => refuse(&format!("guest {}", guest.name), &why),
        }
    }
    specs
}
