//! A packet of a flow, to be rewritten in place: what NAT does to a packet.
//!
//! Every setter updates the checksums it disturbs by RFC 1624, so that a rewrite
//! costs the same for 60 bytes and for 1500 and a sum that was wrong on arrival
//! is still wrong on departure (the receiver, not the NAT, finds it).

use core::fmt;
use core::net::{Ipv4Addr, SocketAddrV4};

use crate::checksum::{update_address, update_u16};
use crate::error::Malformed;
use crate::icmp::{IcmpEcho, IcmpMessage};
use crate::ipv4::{IpProtocol, Ipv4Header, Ipv4Packet};
use crate::tcp::{TcpFlags, TcpSegment};
use crate::udp::UdpDatagram;

/// What tells one flow between two addresses from another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transport {
    Udp,
    Tcp,
    /// Echo request or reply. Its identifier plays the part of the port, on the side
    /// of the one who asks; the other side's port is 0.
    IcmpEcho,
}

/// Why a packet cannot be followed as part of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowError {
    Malformed(Malformed),
    /// A fragment: the ports are in another packet, or the checksum is.
    Fragment,
    /// A protocol without ports.
    Protocol(IpProtocol),
}

impl From<Malformed> for FlowError {
    fn from(error: Malformed) -> FlowError {
        match error {
            Malformed::NotEcho { .. } => FlowError::Protocol(IpProtocol::ICMP),
            other => FlowError::Malformed(other),
        }
    }
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlowError::Malformed(error) => error.fmt(f),
            FlowError::Fragment => f.write_str("a fragment belongs to no flow by itself"),
            FlowError::Protocol(protocol) => write!(f, "{protocol} has no ports"),
        }
    }
}

impl core::error::Error for FlowError {}

/// An unfragmented IPv4 packet with a whole UDP, TCP or echo header.
#[derive(Debug)]
pub struct FlowMut<'a> {
    ip: &'a mut [u8; Ipv4Header::LEN],
    /// At least 8 bytes, at least 20 for TCP: `check` proved it.
    transport: &'a mut [u8],
    kind: Transport,
    /// The identifier stands for the source (a request) or the destination (a reply).
    echo_is_request: bool,
}

const IP_SOURCE: usize = 12;
const IP_DESTINATION: usize = 16;
const IP_CHECKSUM: usize = 10;
const IP_TTL: usize = 8;
const SOURCE_PORT: usize = 0;
const DESTINATION_PORT: usize = 2;
const ECHO_IDENTIFIER: usize = 4;

impl<'a> FlowMut<'a> {
    /// Checks an IPv4 packet (an Ethernet frame's payload).
    pub fn check(bytes: &'a mut [u8]) -> Result<FlowMut<'a>, FlowError> {
        let packet = Ipv4Packet::check(bytes)?;
        if packet.is_fragment() {
            return Err(FlowError::Fragment);
        }
        let mut echo_is_request = false;
        let kind = match packet.protocol() {
            IpProtocol::UDP => {
                UdpDatagram::check(packet.payload())?;
                Transport::Udp
            }
            IpProtocol::TCP => {
                TcpSegment::check(packet.payload())?;
                Transport::Tcp
            }
            IpProtocol::ICMP => {
                let echo = IcmpEcho::parse(&IcmpMessage::check(packet.payload())?)?;
                echo_is_request = echo.kind == crate::icmp::EchoKind::Request;
                Transport::IcmpEcho
            }
            other => return Err(FlowError::Protocol(other)),
        };
        let (header_bytes, total_bytes) = (packet.header_bytes(), packet.total_bytes());
        let has = bytes.len();
        let too_short =
            FlowError::Malformed(Malformed::TooShort { layer: crate::Layer::Ipv4, needs: total_bytes, has });
        let Some((ip, rest)) = bytes.split_first_chunk_mut() else {
            return Err(too_short);
        };
        let range = header_bytes - Ipv4Header::LEN..total_bytes - Ipv4Header::LEN;
        match rest.get_mut(range) {
            Some(transport) => Ok(FlowMut { ip, transport, kind, echo_is_request }),
            None => Err(too_short),
        }
    }

    pub fn transport(&self) -> Transport {
        self.kind
    }

    pub fn ttl(&self) -> u8 {
        self.ip[IP_TTL]
    }

    /// Control bits of a TCP segment.
    pub fn tcp_flags(&self) -> Option<TcpFlags> {
        match self.kind {
            Transport::Tcp => Some(TcpFlags(self.transport[13])),
            Transport::Udp | Transport::IcmpEcho => None,
        }
    }

    /// Whether it is an echo request; an echo reply, and what is no echo, is not.
    pub fn echo_is_request(&self) -> bool {
        self.echo_is_request
    }

    /// Bytes of the transport packet, header included.
    pub fn transport_bytes(&self) -> usize {
        self.transport.len()
    }

    pub fn source(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address(IP_SOURCE), self.port(SOURCE_PORT))
    }

    pub fn destination(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.address(IP_DESTINATION), self.port(DESTINATION_PORT))
    }

    /// Changes the source address and port. For an echo reply, whose source side has
    /// no identifier, the port is ignored.
    pub fn set_source(&mut self, new: SocketAddrV4) {
        self.set_address(IP_SOURCE, *new.ip());
        self.set_port(SOURCE_PORT, new.port());
    }

    /// Changes the destination address and port. For an echo request, whose
    /// destination side has no identifier, the port is ignored.
    pub fn set_destination(&mut self, new: SocketAddrV4) {
        self.set_address(IP_DESTINATION, *new.ip());
        self.set_port(DESTINATION_PORT, new.port());
    }

    /// One hop less to live. `false`, and nothing changed, when the packet's time is
    /// up: it must then not be passed on (RFC 1812 section 5.3.1).
    #[must_use]
    pub fn decrement_ttl(&mut self) -> bool {
        let [ttl, protocol] = [self.ip[IP_TTL], self.ip[IP_TTL + 1]];
        if ttl <= 1 {
            return false;
        }
        self.ip[IP_TTL] = ttl - 1;
        let old = u16::from_be_bytes([ttl, protocol]);
        let new = u16::from_be_bytes([ttl - 1, protocol]);
        let sum = read_u16(self.ip, IP_CHECKSUM);
        write_u16(self.ip, IP_CHECKSUM, update_u16(sum, old, new));
        true
    }

    fn address(&self, at: usize) -> Ipv4Addr {
        let b = &self.ip;
        Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3])
    }

    /// Offset of the port-like field of one side, if that side has one.
    fn port_offset(&self, side: usize) -> Option<usize> {
        match self.kind {
            Transport::Udp | Transport::Tcp => Some(side),
            Transport::IcmpEcho => {
                let asker = if self.echo_is_request { SOURCE_PORT } else { DESTINATION_PORT };
                (side == asker).then_some(ECHO_IDENTIFIER)
            }
        }
    }

    fn port(&self, side: usize) -> u16 {
        self.port_offset(side).map_or(0, |at| read_u16(self.transport, at))
    }

    fn set_address(&mut self, at: usize, new: Ipv4Addr) {
        let old = self.address(at);
        self.ip[at..at + 4].copy_from_slice(&new.octets());
        let sum = read_u16(self.ip, IP_CHECKSUM);
        write_u16(self.ip, IP_CHECKSUM, update_address(sum, old, new));
        // ICMP's checksum has no pseudo-header.
        if self.kind != Transport::IcmpEcho {
            self.update_transport_checksum(|sum| update_address(sum, old, new));
        }
    }

    fn set_port(&mut self, side: usize, new: u16) {
        let Some(at) = self.port_offset(side) else {
            return;
        };
        let old = read_u16(self.transport, at);
        write_u16(self.transport, at, new);
        self.update_transport_checksum(|sum| update_u16(sum, old, new));
    }

    fn update_transport_checksum(&mut self, update: impl FnOnce(u16) -> u16) {
        let at = match self.kind {
            Transport::Udp => 6,
            Transport::Tcp => 16,
            Transport::IcmpEcho => 2,
        };
        let old = read_u16(self.transport, at);
        let new = match self.kind {
            // 0 is "not computed" and stays so; a computed 0 is sent as all ones
            // (RFC 768).
            Transport::Udp if old == 0 => return,
            Transport::Udp => match update(old) {
                0 => 0xffff,
                sum => sum,
            },
            Transport::Tcp | Transport::IcmpEcho => update(old),
        };
        write_u16(self.transport, at, new);
    }
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn write_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}
