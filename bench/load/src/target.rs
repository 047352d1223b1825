//! What is measured, as an address: `netblk://HOST:PORT` (version 1), `netblk2://HOST:PORT`, `echo://HOST:PORT`, `nbd://HOST:PORT/EXPORT`,
//! `nvme-tcp://HOST:PORT/SUBSYSTEM`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow};

use crate::echo::Echo;
use crate::nbd::Nbd;
use crate::netblk::{Netblk, Version};
use crate::nvme_tcp::NvmeTcp;
use crate::plan::Plan;
use crate::run::Protocol;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    service: Service,
    address: SocketAddr,
    /// An export, a subsystem.
    name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Netblk(Version),
    Echo,
    Nbd,
    NvmeTcp,
}

impl Target {
    /// Connects, ready for the loop.
    pub fn connect(&self, plan: &Plan) -> Result<Box<dyn Protocol>> {
        Ok(match self.service {
            Service::Netblk(version) => Box::new(Netblk::connect(self.address, version, plan)?),
            Service::Echo => Box::new(Echo::connect(self.address, plan)?),
            Service::Nbd => Box::new(Nbd::connect(self.address, &self.name, plan)?),
            Service::NvmeTcp => Box::new(NvmeTcp::connect(self.address, &self.name, plan)?),
        })
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").context("expected SERVICE://HOST:PORT")?;
        let service = match scheme {
            "netblk" => Service::Netblk(Version::One),
            "netblk2" => Service::Netblk(Version::Two),
            "echo" => Service::Echo,
            "nbd" => Service::Nbd,
            "nvme-tcp" => Service::NvmeTcp,
            other => {
                return Err(anyhow!("no service {other}; there are netblk, netblk2, echo, nbd, nvme-tcp"));
            }
        };
        let (address, name) = rest.split_once('/').unwrap_or((rest, ""));
        let addresses = address.to_socket_addrs().with_context(|| format!("finding {address}"))?;
        let address = addresses.into_iter().find(SocketAddr::is_ipv4);
        Ok(Target { service, address: address.context("no IPv4 address")?, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_understood() {
        let target: Target = "nbd://127.0.0.1:10809/data".parse().unwrap();
        assert_eq!((target.service, target.name.as_str()), (Service::Nbd, "data"));
        let target: Target = "echo://127.0.0.1:9000".parse().unwrap();
        assert_eq!((target.service, target.name.as_str()), (Service::Echo, ""));
        for wrong in ["127.0.0.1:1", "ftp://127.0.0.1:1", "nbd://127.0.0.1", "nbd:///x"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
