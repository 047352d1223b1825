//! What can be wrong with received bytes, and with a header one asks to build.

use core::fmt;

/// The header in which a fault was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layer {
    Ethernet,
    Arp,
    Ipv4,
    Udp,
    Tcp,
    Icmp,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layer::Ethernet => "Ethernet",
            Layer::Arp => "ARP",
            Layer::Ipv4 => "IPv4",
            Layer::Udp => "UDP",
            Layer::Tcp => "TCP",
            Layer::Icmp => "ICMP",
        })
    }
}

/// Why bytes are not the header they were taken for. Always the sender's fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The bytes end before the fixed header does.
    TooShort { layer: Layer, needs: usize, has: usize },
    /// A length field claims more bytes than arrived.
    LengthBeyondData { layer: Layer, claims: usize, has: usize },
    /// A length field claims less than the header it stands in.
    LengthBelowHeader { layer: Layer, claims: usize, header: usize },
    /// An IP header whose version field is not 4.
    Version { found: u8 },
    /// An ARP packet for other address families than Ethernet and IPv4.
    ArpFamily { hardware: u16, protocol: u16, hardware_bytes: u8, protocol_bytes: u8 },
    /// An ARP operation that is neither request (1) nor reply (2).
    ArpOperation { found: u16 },
    /// An ICMP message that is not an echo request or reply.
    NotEcho { icmp_type: u8, code: u8 },
}

impl Malformed {
    /// The header in which the fault was found.
    pub const fn layer(&self) -> Layer {
        match *self {
            Malformed::TooShort { layer, .. }
            | Malformed::LengthBeyondData { layer, .. }
            | Malformed::LengthBelowHeader { layer, .. } => layer,
            Malformed::Version { .. } => Layer::Ipv4,
            Malformed::ArpFamily { .. } | Malformed::ArpOperation { .. } => Layer::Arp,
            Malformed::NotEcho { .. } => Layer::Icmp,
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Malformed::TooShort { layer, needs, has } => {
                write!(f, "{layer}: {has} bytes where the header needs {needs}")
            }
            Malformed::LengthBeyondData { layer, claims, has } => {
                write!(f, "{layer}: a length field claims {claims} bytes, {has} arrived")
            }
            Malformed::LengthBelowHeader { layer, claims, header } => {
                write!(f, "{layer}: a length field claims {claims} bytes, the header alone has {header}")
            }
            Malformed::Version { found } => write!(f, "IPv4: version {found} instead of 4"),
            Malformed::ArpFamily { hardware, protocol, hardware_bytes, protocol_bytes } => write!(
                f,
                "ARP: hardware type {hardware} ({hardware_bytes} bytes) and protocol {protocol:#06x} \
                 ({protocol_bytes} bytes) instead of Ethernet and IPv4"
            ),
            Malformed::ArpOperation { found } => {
                write!(f, "ARP: operation {found} is neither request nor reply")
            }
            Malformed::NotEcho { icmp_type, code } => {
                write!(f, "ICMP: type {icmp_type} code {code} is not an echo")
            }
        }
    }
}

impl core::error::Error for Malformed {}

/// A payload that no header of this layer can announce. The builder's caller's
/// fault, never a peer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadTooLong {
    pub layer: Layer,
    pub payload_bytes: usize,
    pub limit_bytes: usize,
}

impl fmt::Display for PayloadTooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: a payload of {} bytes, at most {} fit the length field",
            self.layer, self.payload_bytes, self.limit_bytes
        )
    }
}

impl core::error::Error for PayloadTooLong {}
