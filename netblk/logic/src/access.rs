//! Who may use a service.
//!
//! Version 1 has nothing but the address that a request claims, so it is for networks whose hosts are
//! trusted: those that `allow=` names, or the card's own. A version 2 client has shown that it receives
//! at its address, and where the service has a key, that it knows the key; then its address does not
//! matter, and version 1, which cannot know a key, is for nobody unless `allow=` says so.

use alloc::borrow::ToOwned;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;

use netblk_proto::v2::PreSharedKey;

/// A network, as in 192.0.2.0/24; a bare address is one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: Ipv4Addr,
    prefix_bits: u8,
}

/// A text that is no network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoNetwork(pub String);

impl Network {
    /// `None` for a prefix of more than 32 bits.
    pub const fn new(address: Ipv4Addr, prefix_bits: u8) -> Option<Self> {
        if prefix_bits <= 32 { Some(Self { address, prefix_bits }) } else { None }
    }

    /// Whether a host is in it.
    pub fn contains(&self, host: Ipv4Addr) -> bool {
        let mask = u32::MAX.checked_shl(32 - u32::from(self.prefix_bits)).unwrap_or(0);
        (self.address.to_bits() ^ host.to_bits()) & mask == 0
    }
}

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        let (address, prefix_bits) = text.split_once('/').unwrap_or((text, "32"));
        let no_network = || NoNetwork(text.to_owned());
        let address = address.parse().map_err(|_| no_network())?;
        let prefix_bits = prefix_bits.parse().map_err(|_| no_network())?;
        Self::new(address, prefix_bits).ok_or_else(no_network)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

/// Who may use a service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Access {
    /// Who may use it without a key; `None`: the default, see the module.
    pub allow: Option<Vec<Network>>,
    /// The service's secret.
    pub key: Option<PreSharedKey>,
}

impl Access {
    /// Whether this host may use version 1. `is_neighbour`: whether it is on the card's own network;
    /// asked only where that decides.
    pub fn may_use_version_1(&self, host: Ipv4Addr, is_neighbour: impl FnOnce() -> bool) -> bool {
        match (&self.allow, &self.key) {
            (Some(networks), _) => networks.iter().any(|network| network.contains(host)),
            (None, Some(_)) => false,
            (None, None) => is_neighbour(),
        }
    }

    /// Whether this host may have a session, if it shows the key where there is one.
    pub fn may_have_session(&self, host: Ipv4Addr, is_neighbour: impl FnOnce() -> bool) -> bool {
        self.key.is_some() || self.may_use_version_1(host, is_neighbour)
    }

    /// What the keys of sessions are derived from.
    pub fn secret(&self) -> &PreSharedKey {
        self.key.as_ref().unwrap_or(&PreSharedKey::NONE)
    }
}

/// As in `netblk list`. The key itself is never shown.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = if self.key.is_some() { " with a key" } else { "" };
        match &self.allow {
            None if self.key.is_some() => write!(f, "version 1 for nobody")?,
            None => write!(f, "for the card's own network")?,
            Some(networks) => {
                let whom = if self.key.is_some() { "version 1 for" } else { "for" };
                f.write_str(whom)?;
                for network in networks {
                    write!(f, " {network}")?;
                }
            }
        }
        f.write_str(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 7);

    #[test]
    fn networks_are_read_and_contain_their_hosts() {
        let network = |text: &str| text.parse::<Network>();
        assert!(network("192.0.2.0/24").unwrap().contains(HOST));
        assert!(!network("192.0.3.0/24").unwrap().contains(HOST));
        assert!(network("192.0.2.7").unwrap().contains(HOST));
        assert!(!network("192.0.2.6").unwrap().contains(HOST));
        assert!(network("0.0.0.0/0").unwrap().contains(HOST));
        assert_eq!(network("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        for bad in ["", "/", "10.0.0.0/", "10.0.0.0/33", "10.0.0/8", "ten", "10.0.0.0/-1", "10.0.0.0/8/8"] {
            assert_eq!(network(bad), Err(NoNetwork(bad.to_owned())));
        }
    }

    #[test]
    fn who_may_do_what() {
        let access = |allow: Option<&str>, key: bool| Access {
            allow: allow.map(|text| vec![text.parse().unwrap()]),
            key: key.then(|| PreSharedKey::new([1; 32])),
        };
        // allow, key, a neighbour -> version 1, a session
        let cases = [
            (None, false, true, true, true),
            (None, false, false, false, false),
            (None, true, true, false, true),
            (None, true, false, false, true),
            (Some("192.0.2.0/24"), false, false, true, true),
            (Some("10.0.0.0/8"), false, true, false, false),
            (Some("192.0.2.0/24"), true, false, true, true),
            (Some("10.0.0.0/8"), true, true, false, true),
        ];
        for (allow, key, neighbour, version_1, session) in cases {
            let access = access(allow, key);
            assert_eq!(access.may_use_version_1(HOST, || neighbour), version_1, "{access}");
            assert_eq!(access.may_have_session(HOST, || neighbour), session, "{access}");
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        let access = Access { allow: None, key: Some(PreSharedKey::new([0xAB; 32])) };
        let shown = format!("{access} {access:?}").to_lowercase();
        assert!(!shown.contains("ab") && !shown.contains("171") && shown.contains("key"), "{shown}");
    }
}
