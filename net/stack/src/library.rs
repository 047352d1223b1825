//! smoltcp, in the one task that touches it.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use ingress::{Subnet, dhcp_lease_seconds};
use kcore::time::now_ns;
use netwire::MacAddr;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

use crate::counters::Counters;
use crate::link::Link;
use crate::stack::{AddressConfig, AddressSource, Addresses};

/// When to try again after the frame pool was empty.
const STARVED_RETRY_NS: u64 = 10_000_000;

/// The least time between two polls that no frame asked for, so that a deadline that does not
/// move cannot take the CPU.
const POLL_INTERVAL_NS: u64 = 1_000_000;

pub(crate) struct Library {
    link: Link,
    interface: Interface,
    sockets: SocketSet<'static>,
    dhcp: Option<SocketHandle>,
}

/// What a poll found out.
pub(crate) struct Polled {
    /// The interface's addresses, if they changed.
    pub addresses: Option<Addresses>,
    /// When to poll again though no frame comes.
    pub deadline_ns: Option<u64>,
}

fn instant(now_ns: u64) -> Instant {
    Instant::from_micros(i64::try_from(now_ns / 1000).unwrap_or(i64::MAX))
}

impl Library {
    pub fn new(mut link: Link, mac: MacAddr, config: &AddressConfig) -> Library {
        let mut interface_config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
        // For transaction numbers that nobody off the path should guess.
        interface_config.random_seed = kcore::random::seed();
        let mut interface = Interface::new(interface_config, &mut link, instant(now_ns()));
        let mut sockets = SocketSet::new(Vec::new());
        let dhcp = match config {
            AddressConfig::Dhcp => {
                let mut socket = dhcpv4::Socket::new();
                // The library hands the server's answer on in this buffer; one per stack, for good.
                socket
                    .set_receive_packet_buffer(Box::leak(vec![0; usize::from(u16::MAX)].into_boxed_slice()));
                Some(sockets.add(socket))
            }
            AddressConfig::Fixed { subnet, gateway } => {
                set_addresses(&mut interface, Some(*subnet), *gateway);
                None
            }
        };
        Library { link, interface, sockets, dhcp }
    }

    pub fn poll(&mut self, counters: &Counters) -> Polled {
        let now = now_ns();
        self.interface.poll(instant(now), &mut self.link, &mut self.sockets);
        let addresses = self.take_lease();
        if addresses.is_some() {
            // A lease that was just taken may have something to send.
            self.interface.poll(instant(now), &mut self.link, &mut self.sockets);
        }
        let starved = self.link.flush(counters);
        let deadline = self.interface.poll_at(instant(now), &self.sockets);
        let deadline_ns =
            deadline.map(|at| u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000));
        let deadline_ns = if starved { Some(now + STARVED_RETRY_NS) } else { deadline_ns };
        Polled { addresses, deadline_ns: deadline_ns.map(|at| at.max(now + POLL_INTERVAL_NS)) }
    }

    /// What DHCP has found or lost.
    fn take_lease(&mut self) -> Option<Addresses> {
        let socket = self.sockets.get_mut::<dhcpv4::Socket>(self.dhcp?);
        let addresses = match socket.poll()? {
            dhcpv4::Event::Deconfigured => Addresses::NONE,
            dhcpv4::Event::Configured(config) => {
                let lease_seconds = config.packet.and_then(|packet| dhcp_lease_seconds(packet.into_inner()));
                let subnet = Subnet::new(config.address.address(), config.address.prefix_len());
                if subnet.is_none() {
                    log::warn!(
                        "DHCP: {} offers {}, which no host can have",
                        config.server.address,
                        config.address
                    );
                }
                Addresses {
                    subnet,
                    gateway: config.router,
                    source: AddressSource::Dhcp {
                        server: config.server.address,
                        name_servers: config.dns_servers.iter().copied().collect(),
                        lease_seconds,
                        since_ns: now_ns(),
                    },
                }
            }
        };
        set_addresses(&mut self.interface, addresses.subnet, addresses.gateway);
        Some(addresses)
    }
}

fn set_addresses(interface: &mut Interface, subnet: Option<Subnet>, gateway: Option<Ipv4Addr>) {
    interface.update_ip_addrs(|addresses| {
        addresses.clear();
        if let Some(subnet) = subnet {
            // There is room for one: the table was just cleared.
            let _ = addresses.push(IpCidr::new(subnet.address().into(), subnet.prefix_bits()));
        }
    });
    let routes = interface.routes_mut();
    routes.remove_default_ipv4_route();
    if let Some(gateway) = gateway {
        // There is room for one default route: the old one was just removed.
        let _ = routes.add_default_ipv4_route(gateway);
    }
}
