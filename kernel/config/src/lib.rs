//! The node's configuration, `nos.toml`.
//!
//! The file comes out of the boot archive, so a person wrote it and nobody has checked it. Two things matter more
//! than strictness: the message must say where the mistake is, what stands there and what was expected; and the node
//! must still come up with everything else, because its shell is where the person will look for the message.
//!
//! So [`parse`] never fails. It returns what is usable and a list of [`Problem`]s:
//!
//! - a guest, a netblk service or a forward with any mistake in it is left out whole: half a description is not what
//!   its author meant, and a guest with a default where its author wrote something else is worse than none;
//! - a mistake in `[node]` or `[switch]` leaves that one setting at its default;
//! - a syntax error costs the section it stands in, not the file.
//!
//! The TOML grammar is the `toml` crate's (its `parse` half, without serde: the values keep their spans, and the
//! checks below want those more than a derive).
//!
//! ```
//! let (config, problems) = config::parse(b"[[guest]]\nname = \"alpha\"\nmemory = \"256 MiB\"\nkernel = \"guests/vmlinuz\"\n");
//! assert!(problems.is_empty());
//! assert_eq!(config.guests[0].memory_bytes, 256 << 20);
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod problem;
mod read;
mod section;
mod suggest;
mod value;

#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::fmt::Write as _;
use core::net::Ipv4Addr;

pub use problem::Problem;
pub use read::parse;
pub use value::Ipv4Cidr;

/// The most guest CPUs a guest may ask for: the node itself has at most this many.
pub const MAX_GUEST_CPUS: u64 = 16;
/// The most disks a guest may have: beside them its PCI bus has places for other devices.
pub const MAX_GUEST_DISKS: usize = 8;

/// Everything `nos.toml` says, checked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    pub node: Node,
    pub switch: Switch,
    /// In the order of the file; names are unique.
    pub guests: Vec<Guest>,
    /// In the order of the file; ports are unique.
    pub netblk: Vec<NetblkService>,
    /// In the order of the file; ports are unique, and each names a guest of `guests` that has an address.
    pub forwards: Vec<Forward>,
}

/// `[node]`: the node itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    pub address: NodeAddress,
    /// What the links of cards carry behind an Ethernet header that do not say so themselves (igb).
    pub mtu: u16,
}

/// How the node gets the address of its uplink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAddress {
    Dhcp,
    /// A fixed address. Without a gateway the node talks to its own network only.
    Fixed {
        address: Ipv4Cidr,
        gateway: Option<Ipv4Addr>,
    },
}

/// `[switch]`: the node's own port on the guests' switch, which is also the guests' gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    pub address: Ipv4Cidr,
}

/// `[[guest]]`: one virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// A host name: letters, digits and hyphens.
    pub name: String,
    /// 1 to [`MAX_GUEST_CPUS`].
    pub cpus: u32,
    /// A whole number of 2 MiB pieces.
    pub memory_bytes: u64,
    /// Name of the kernel's file in the boot archive. Whether it is there is for the reader of the archive to find out.
    pub kernel: String,
    /// Name of the initrd's file in the boot archive.
    pub initrd: Option<String>,
    /// What the person wrote. [`Config::guest_command_line`] is what the guest is booted with.
    pub command_line: String,
    pub network: GuestNetwork,
    /// In the order in which the guest finds them. Whether they are there is for the node to find out.
    pub disks: Vec<GuestDisk>,
    /// Start at boot.
    pub autostart: bool,
}

/// A disk or partition of the node that a guest has for its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestDisk {
    pub name: String,
    pub read_only: bool,
}

/// Where a guest's network card is plugged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestNetwork {
    /// No network card.
    None,
    /// A port of the guests' switch. The address is what the guest's init is told to use, and what forwards go to.
    Switch { address: Option<Ipv4Addr> },
}

impl GuestNetwork {
    /// The guest's address on the switch, if it has one.
    pub fn address(&self) -> Option<Ipv4Addr> {
        match self {
            GuestNetwork::None => None,
            GuestNetwork::Switch { address } => *address,
        }
    }
}

/// `[[netblk]]`: a disk to serve from boot on. The keys are the options of `netblk start`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetblkService {
    pub disk: String,
    pub port: u16,
    pub read_only: bool,
    pub nic: Option<String>,
    pub mtu: Option<u16>,
    /// The CPU the service's worker is placed on.
    pub cpu: Option<u32>,
    /// How long an idle worker polls for new requests before it sleeps, in microseconds.
    pub poll_us: Option<u32>,
    /// Who may use it without a key; `None`: the service's own default.
    pub allow: Option<Vec<Ipv4Cidr>>,
    pub key: Option<NetblkKey>,
}

/// The secret of a netblk service. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct NetblkKey(pub [u8; 32]);

impl fmt::Debug for NetblkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetblkKey(not shown)")
    }
}

/// `[[forward]]`: a TCP port of the uplink that leads to a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forward {
    pub port: u16,
    pub guest: String,
    pub guest_port: u16,
}

impl Default for Node {
    fn default() -> Self {
        Node { name: String::from("nos"), address: NodeAddress::Dhcp, mtu: 1500 }
    }
}

impl Default for Switch {
    fn default() -> Self {
        Switch { address: Ipv4Cidr::new(Ipv4Addr::new(10, 77, 0, 1), 24) }
    }
}

impl Config {
    /// The guest called `name`.
    pub fn guest(&self, name: &str) -> Option<&Guest> {
        self.guests.iter().find(|guest| guest.name == name)
    }

    /// The command line a guest is booted with: the person's words, then what its init needs to find itself on the
    /// switch without a DHCP server: `nos.name=`, `nos.ip=ADDRESS/PREFIX`, `nos.gw=` and `nos.hosts=NAME:ADDRESS,...`.
    /// A guest that does not know the words ignores them; Linux hands them on to init.
    pub fn guest_command_line(&self, guest: &Guest) -> String {
        let mut line = guest.command_line.clone();
        let mut word = |arguments: core::fmt::Arguments<'_>| {
            if !line.is_empty() {
                line.push(' ');
            }
            // Writing to a String cannot fail.
            let _ = line.write_fmt(arguments);
        };
        word(format_args!("nos.name={}", guest.name));
        if let Some(address) = guest.network.address() {
            word(format_args!("nos.ip={}/{}", address, self.switch.address.prefix_bits()));
            word(format_args!("nos.gw={}", self.switch.address.address()));
            let mut hosts = String::new();
            for other in &self.guests {
                if let Some(address) = other.network.address() {
                    let comma = if hosts.is_empty() { "" } else { "," };
                    let _ = write!(hosts, "{comma}{}:{address}", other.name);
                }
            }
            word(format_args!("nos.hosts={hosts}"));
        }
        line
    }
}
