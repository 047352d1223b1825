//! The addresses of one interface.

use core::fmt;
use core::net::Ipv4Addr;

use netwire::MacAddr;

/// A host's IPv4 address and the length of its network's prefix. Holding one proves that the
/// prefix has at most 32 bits and that the address may be a host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Subnet {
    address: Ipv4Addr,
    prefix_bits: u8,
}

impl Subnet {
    /// `None` for more than 32 bits, and for an address that no host can have there: zero,
    /// multicast, loopback, reserved, the network's own or its broadcast address.
    pub fn new(address: Ipv4Addr, prefix_bits: u8) -> Option<Subnet> {
        let subnet = Subnet { address, prefix_bits };
        let sound = prefix_bits <= 32 && !is_never_a_host(address) && !subnet.is_edge(address);
        sound.then_some(subnet)
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    pub fn prefix_bits(&self) -> u8 {
        self.prefix_bits
    }

    fn mask(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0)
    }

    /// Whether `other` is reached without a gateway.
    pub fn contains(&self, other: Ipv4Addr) -> bool {
        (u32::from(self.address) ^ u32::from(other)) & self.mask() == 0
    }

    /// The address that all hosts of the network listen to; point-to-point networks (RFC 3021)
    /// have none.
    pub fn broadcast(&self) -> Option<Ipv4Addr> {
        (self.prefix_bits < 31).then(|| Ipv4Addr::from(u32::from(self.address) | !self.mask()))
    }

    /// Whether `other` is the network's first or last address, which no host has.
    fn is_edge(&self, other: Ipv4Addr) -> bool {
        let host_bits = u32::from(other) & !self.mask();
        self.prefix_bits < 31 && self.contains(other) && (host_bits == 0 || host_bits == !self.mask())
    }

    /// Whether a packet may come from `source`, seen from this host.
    pub fn may_be_source(&self, source: Ipv4Addr) -> bool {
        !is_never_a_host(source) && !self.is_edge(source) && source != self.address
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// Addresses that stand for no single host anywhere (RFC 1122 section 3.2.1.3, RFC 1112): "this
/// network" 0/8, loopback 127/8, groups 224/4, reserved 240/4 with the limited broadcast.
pub(crate) fn is_never_a_host(address: Ipv4Addr) -> bool {
    matches!(address.octets()[0], 0 | 127 | 224..)
}

/// What the stack answers to on one link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    pub mac: MacAddr,
    /// `None` until DHCP has found one.
    pub subnet: Option<Subnet>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn only_host_addresses_make_a_subnet() {
        assert!(Subnet::new(ip("10.0.2.15"), 24).is_some());
        assert!(Subnet::new(ip("10.0.2.15"), 33).is_none());
        for (address, bits) in [
            ("0.0.0.0", 0),
            ("10.0.2.0", 24),
            ("10.0.2.255", 24),
            ("224.0.0.1", 8),
            ("255.255.255.255", 32),
            ("127.0.0.1", 8),
        ] {
            assert!(Subnet::new(ip(address), bits).is_none(), "{address}/{bits}");
        }
        assert!(Subnet::new(ip("10.0.2.0"), 31).is_some());
        assert!(Subnet::new(ip("10.0.2.255"), 32).is_some());
    }

    #[test]
    fn the_prefix_decides_who_is_near() {
        let subnet = Subnet::new(ip("192.168.7.9"), 20).unwrap();
        assert!(subnet.contains(ip("192.168.15.255")) && !subnet.contains(ip("192.168.16.0")));
        assert_eq!(subnet.broadcast(), Some(ip("192.168.15.255")));
        assert!(!subnet.may_be_source(ip("192.168.15.255")));
        assert!(!subnet.may_be_source(ip("192.168.7.9")));
        assert!(subnet.may_be_source(ip("192.168.7.10")) && subnet.may_be_source(ip("9.9.9.255")));
        assert_eq!(Subnet::new(ip("10.1.1.1"), 31).unwrap().broadcast(), None);
    }

    proptest! {
        #[test]
        fn no_prefix_panics(address: u32, bits: u8, other: u32) {
            if let Some(subnet) = Subnet::new(Ipv4Addr::from(address), bits) {
                prop_assert!(subnet.contains(subnet.address()));
                let _ = (subnet.contains(Ipv4Addr::from(other)), subnet.broadcast());
                prop_assert!(!subnet.may_be_source(subnet.address()));
            }
        }
    }
}
