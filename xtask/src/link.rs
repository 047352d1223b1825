//! A cable between this host and a machine, for those who measure or test what goes over it.
//!
//! As root it is a tap: packets go from the host's IP straight into the card. Without root it is QEMU's user-mode
//! network, a NAT inside QEMU, which costs every machine the same and hides much of what differs between machines;
//! [`Link::what`] says which it is.

use std::net::Ipv4Addr;
use std::process::Command;

use anyhow::Result;

use crate::cleanup::Cleanup;
use crate::node::{LOOPBACK, any_forward};
use crate::packages;
use crate::qemu::{HostForward, Protocol, Uplink};
use crate::requirements;
use crate::run;

/// Networks for benchmarks (RFC 2544 appendix C.2.2 and RFC 6890): no real one has these addresses.
const NETWORK: [u8; 2] = [198, 18];
const HOST: u8 = 1;
const MACHINE: u8 = 2;

/// One of them.
pub struct Link {
    number: u8,
    kind: Kind,
}

enum Kind {
    Tap { interface: String, _removed: Cleanup },
    User { forwards: Vec<HostForward> },
}

impl Link {
    /// The best that this user may have, with ways in to these ports.
    pub fn new(number: u8, ports: &[(Protocol, u16)]) -> Result<Self> {
        let kind = if packages::is_root() { Self::tap(number)? } else { Self::user(ports)? };
        Ok(Self { number, kind })
    }

    fn tap(number: u8) -> Result<Kind> {
        requirements::ensure(&[requirements::IPROUTE2])?;
        let interface = format!("nosbench{number}");
        let ip = |words: &[&str]| run::output(Command::new("ip").args(words));
        // One that an earlier run could not remove.
        let _ = ip(&["link", "delete", &interface]);
        ip(&["tuntap", "add", "dev", &interface, "mode", "tap"])?;
        let removed = Cleanup::new({
            let interface = interface.clone();
            move || {
                let _ = run::output(Command::new("ip").args(["link", "delete", &interface]));
            }
        });
        let address = format!("{}/24", address(number, HOST));
        ip(&["address", "add", &address, "dev", &interface])?;
        ip(&["link", "set", &interface, "up"])?;
        Ok(Kind::Tap { interface, _removed: removed })
    }

    fn user(ports: &[(Protocol, u16)]) -> Result<Kind> {
        let mut forwards = Vec::new();
        for (protocol, port) in ports {
            forwards.push(any_forward(*protocol, *port, &forwards)?);
        }
        Ok(Kind::User { forwards })
    }

    pub fn uplink(&self) -> Uplink {
        match &self.kind {
            Kind::Tap { interface, .. } => Uplink::Tap { interface: interface.clone() },
            Kind::User { forwards } => Uplink::User { forwards: forwards.clone() },
        }
    }

    /// In words, for the report.
    pub const fn what(&self) -> &'static str {
        match self.kind {
            Kind::Tap { .. } => "a tap",
            Kind::User { .. } => "QEMU's user-mode network",
        }
    }

    /// The address that the machine is to take, with its prefix; `None`: by DHCP.
    pub fn machine_address(&self) -> Option<String> {
        match self.kind {
            Kind::Tap { .. } => Some(format!("{}/24", address(self.number, MACHINE))),
            Kind::User { .. } => None,
        }
    }

    /// Packets that the machine has sent so far, each as it was given to the tap; `None` without a tap.
    pub fn packets_sent(&self) -> Option<u64> {
        let Kind::Tap { interface, .. } = &self.kind else { return None };
        let path = format!("/sys/class/net/{interface}/statistics/rx_packets");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// Where a port of the machine is reached from here, as HOST:PORT.
    pub fn reach(&self, protocol: Protocol, port: u16) -> String {
        match &self.kind {
            Kind::Tap { .. } => format!("{}:{port}", address(self.number, MACHINE)),
            Kind::User { forwards } => {
                let forward = forwards
                    .iter()
                    .find(|forward| forward.protocol == protocol && forward.node_port == port)
                    .map_or(port, |forward| forward.host_port);
                format!("{LOOPBACK}:{forward}")
            }
        }
    }
}

fn address(number: u8, last: u8) -> Ipv4Addr {
    let [first, second] = NETWORK;
    Ipv4Addr::new(first, second, number, last)
}
