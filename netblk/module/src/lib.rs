//! netblk as a module of the node: the services that `nos.toml` describes, and the command `netblk`.
//!
//! The server itself is `netblk-server`. Here stands what ties it to this node: how a section of the
//! configuration becomes a service, how the person at the console starts, sees and stops one, and
//! that guests are told which CPUs the services work on.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU16;

use announce::Announcement;
use config::NetblkService;
use kcore::cpu::{self, Reservation};
use kcore::module::{Begun, Module};
use kcore::say;
use kcore::shell::{Command, Done};
use kcore::sync::SpinLock;
use netblk_server::{Network, PreSharedKey, StartOptions};

const COMMANDS: &[Command] = &[NETBLK];

const NETBLK: Command = Command {
    name: "netblk",
    usage: "start DISK PORT [ro] [nic=eth0] [mtu=1500] [cpu=N] [poll=US] [allow=CIDR,...] [key=HEX] | list | stop PORT|all",
    help: "serves disks over UDP",
};

kcore::module!(begin);

/// Begins the module: serves what the configuration asks for. What cannot be had is said, and left
/// out.
fn begin(configuration: &'static [u8]) -> Begun {
    // The kernel has said already what is wrong in it.
    let (config, _) = config::parse(configuration);
    let module = Netblk { reservations: SpinLock::new(Vec::new()) };
    for service in &config.netblk {
        start_configured(service);
    }
    module.reserve_cpus();
    Ok(Box::new(module))
}

/// The module.
struct Netblk {
    /// The CPUs that the services work on.
    reservations: SpinLock<Vec<Reservation>>,
}

impl Netblk {
    /// Tells the node which CPUs the services work on now.
    fn reserve_cpus(&self) {
        let now = netblk_server::list().iter().filter_map(|service| cpu::reserve(service.cpu)).collect();
        let before = core::mem::replace(&mut *self.reservations.lock(), now);
        drop(before);
    }
}

impl Module for Netblk {
    fn commands(&self) -> &'static [Command] {
        COMMANDS
    }

    fn run(&self, _command: &str, arguments: &[&str]) -> Done {
        let done = netblk(arguments);
        self.reserve_cpus();
        done
    }

    fn complete(&self, words: &[&str], candidates: &mut Vec<String>) {
        match words {
            ["netblk"] => candidates.extend(["start", "list", "stop"].map(String::from)),
            ["netblk", "start"] => {
                candidates.extend(kcore::block::disks().iter().map(|disk| String::from(disk.name())));
            }
            ["netblk", "stop"] => {
                candidates.extend(netblk_server::list().iter().map(|service| format!("{}", service.port)));
                candidates.push(String::from("all"));
            }
            _ => {}
        }
    }

    fn busy(&self) -> Option<String> {
        let ports: Vec<String> =
            netblk_server::list().iter().map(|service| format!("{}", service.port)).collect();
        (!ports.is_empty()).then(|| {
            format!(
                "it serves on port {}; `netblk stop all` ends that, without an answer to clients",
                ports.join(", ")
            )
        })
    }

    fn stop_everything(&self) {
        netblk_server::stop_all();
    }
}

impl Drop for Netblk {
    fn drop(&mut self) {
        netblk_server::stop_all();
    }
}

fn netblk(arguments: &[&str]) -> Done {
    match arguments {
        ["start", options @ ..] => {
            let options = StartOptions::parse(options.iter().copied())?;
            let started = netblk_server::start(&stack::all(), options)?;
            say!("{}", Announcement::Netblk { disk: &started.disk, port: started.port });
        }
        ["list"] => {
            let services = netblk_server::list();
            if services.is_empty() {
                say!("nothing is served; `netblk start DISK PORT` serves a disk");
            }
            for service in services {
                say!("{service}");
                for line in service.counter_lines() {
                    say!("  {line}");
                }
            }
        }
        ["stop", "all"] => {
            for report in netblk_server::stop_all() {
                say!("{report}");
            }
        }
        ["stop", port] => {
            let port = port
                .parse()
                .map_err(|_| format!("{port} is no UDP port; `netblk list` shows those served"))?;
            say!("{}", netblk_server::stop(port)?);
        }
        _ => return Err(NETBLK.wrong_use()),
    }
    Ok(())
}

/// Serves a disk as nos.toml asks.
fn start_configured(service: &NetblkService) {
    let what = format!("netblk {}", service.disk);
    let Some(port) = NonZeroU16::new(service.port) else {
        return refuse(&what, &"port 0 is no UDP port");
    };
    let mut options = StartOptions::new(&service.disk, port);
    options.read_only = service.read_only;
    options.cpu = service.cpu.map(|cpu| cpu as usize);
    options.nic = service.nic.clone().unwrap_or(options.nic);
    options.mtu = service.mtu.unwrap_or(options.mtu);
    options.poll_us = service.poll_us;
    options.access.allow = service.allow.as_ref().map(|networks| {
        networks.iter().filter_map(|network| Network::new(network.address(), network.prefix_bits())).collect()
    });
    options.access.key = service.key.as_ref().map(|key| PreSharedKey::new(key.0));
    match netblk_server::start(&stack::all(), options) {
        Ok(started) => {
            log::info!("{}", Announcement::Netblk { disk: &started.disk, port: started.port });
        }
        Err(error) => refuse(&what, &error),
    }
}

/// Says that something of the configuration could not be had.
fn refuse(what: &str, reason: &dyn core::fmt::Display) {
    log::error!("{}", Announcement::Refused { what, reason: &format!("{reason}") });
}
