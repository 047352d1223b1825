//! The IPv4 header (RFC 791 section 3.1).

use core::fmt;
use core::net::Ipv4Addr;

use crate::checksum;
use crate::error::{Layer, Malformed, PayloadTooLong};

/// The protocol field: what the payload is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    pub const ICMP: IpProtocol = IpProtocol(1);
    pub const TCP: IpProtocol = IpProtocol(6);
    pub const UDP: IpProtocol = IpProtocol(17);
}

impl fmt::Display for IpProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            IpProtocol::ICMP => f.write_str("ICMP"),
            IpProtocol::TCP => f.write_str("TCP"),
            IpProtocol::UDP => f.write_str("UDP"),
            IpProtocol(other) => write!(f, "protocol {other}"),
        }
    }
}

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Fields of the fixed part of a header, for the packet itself and for its head in an ICMP error.
pub(crate) fn source_of(header: &[u8; Ipv4Header::LEN]) -> Ipv4Addr {
    Ipv4Addr::new(header[12], header[13], header[14], header[15])
}

pub(crate) fn destination_of(header: &[u8; Ipv4Header::LEN]) -> Ipv4Addr {
    Ipv4Addr::new(header[16], header[17], header[18], header[19])
}

pub(crate) fn protocol_of(header: &[u8; Ipv4Header::LEN]) -> IpProtocol {
    IpProtocol(header[9])
}

/// A packet whose version is 4, whose header (options included) is whole, and
/// whose total length lies between that header and the bytes that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Packet<'a> {
    header: &'a [u8; Ipv4Header::LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Checks an Ethernet frame's payload. Bytes behind the total length are link
    /// padding and not part of the view. Options are tolerated; a fast path asks
    /// [`Ipv4Packet::has_options`].
    pub fn check(bytes: &'a [u8]) -> Result<Ipv4Packet<'a>, Malformed> {
        Ipv4Packet::check_first_piece(bytes, 0)
    }

    /// Checks the first piece of a packet of which `behind_bytes` more lie elsewhere. The header
    /// must lie in the piece. [`Ipv4Packet::payload`] is then what the piece has of the payload;
    /// [`Ipv4Packet::total_bytes`] is the whole packet's, and at most what there is.
    pub fn check_first_piece(bytes: &'a [u8], behind_bytes: usize) -> Result<Ipv4Packet<'a>, Malformed> {
        let has = bytes.len() + behind_bytes;
        let Some((header, _)) = bytes.split_first_chunk::<{ Ipv4Header::LEN }>() else {
            return Err(Malformed::TooShort { layer: Layer::Ipv4, needs: Ipv4Header::LEN, has });
        };
        let version = header[0] >> 4;
        if version != 4 {
            return Err(Malformed::Version { found: version });
        }
        let header_bytes = usize::from(header[0] & 0x0f) * 4;
        if header_bytes < Ipv4Header::LEN {
            return Err(Malformed::LengthBelowHeader {
                layer: Layer::Ipv4,
                claims: header_bytes,
                header: Ipv4Header::LEN,
            });
        }
        let total_bytes = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if total_bytes < header_bytes {
            return Err(Malformed::LengthBelowHeader {
                layer: Layer::Ipv4,
                claims: total_bytes,
                header: header_bytes,
            });
        }
        let beyond = Malformed::LengthBeyondData { layer: Layer::Ipv4, claims: total_bytes, has };
        if total_bytes > has {
            return Err(beyond);
        }
        let end = total_bytes.min(bytes.len());
        let (Some(options), Some(payload)) =
            (bytes.get(Ipv4Header::LEN..header_bytes), bytes.get(header_bytes..end))
        else {
            return Err(beyond);
        };
        Ok(Ipv4Packet { header, options, payload })
    }

    pub fn source(&self) -> Ipv4Addr {
        source_of(self.header)
    }

    pub fn destination(&self) -> Ipv4Addr {
        destination_of(self.header)
    }

    pub fn protocol(&self) -> IpProtocol {
        protocol_of(self.header)
    }

    pub fn ttl(&self) -> u8 {
        self.header[8]
    }

    pub fn identification(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// Differentiated services and congestion bits (RFC 2474, RFC 3168).
    pub fn traffic_class(&self) -> u8 {
        self.header[1]
    }

    fn fragment_word(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    pub fn dont_fragment(&self) -> bool {
        self.fragment_word() & DONT_FRAGMENT != 0
    }

    pub fn more_fragments(&self) -> bool {
        self.fragment_word() & MORE_FRAGMENTS != 0
    }

    pub fn fragment_offset_bytes(&self) -> usize {
        usize::from(self.fragment_word() & FRAGMENT_OFFSET) * 8
    }

    /// Part of a larger packet: its payload is not a whole transport packet, and
    /// but for the first part it does not even start with a transport header.
    pub fn is_fragment(&self) -> bool {
        self.more_fragments() || self.fragment_offset_bytes() != 0
    }

    pub fn has_options(&self) -> bool {
        !self.options.is_empty()
    }

    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    /// Header and options.
    pub fn header_bytes(&self) -> usize {
        Ipv4Header::LEN + self.options.len()
    }

    /// The packet's length, as its header says.
    pub fn total_bytes(&self) -> usize {
        usize::from(u16::from_be_bytes([self.header[2], self.header[3]]))
    }

    /// The payload up to the total length, without link padding; of a packet in pieces, what the
    /// first has of it.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[10], self.header[11]])
    }

    /// Whether the header's checksum holds (it covers the options too).
    pub fn verify_checksum(&self) -> bool {
        let sum = checksum::Accumulator::new().add_bytes(self.header).add_bytes(self.options);
        sum.sum() == 0xffff
    }
}

/// An unfragmented IPv4 header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ipv4Header {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    pub protocol: IpProtocol,
    pub ttl: u8,
    pub traffic_class: u8,
    pub identification: u16,
    pub dont_fragment: bool,
    /// Private, so that header and payload always fit the total length field.
    payload_bytes: u16,
}

impl Ipv4Header {
    /// Bytes of a header without options.
    pub const LEN: usize = 20;
    /// The longest payload whose total length fits 16 bits.
    pub const PAYLOAD_LIMIT: usize = u16::MAX as usize - Self::LEN;
    /// RFC 1122 section 3.2.1.7 wants a configurable default; 64 is IANA's.
    pub const DEFAULT_TTL: u8 = 64;

    /// A header with the default time to live and "don't fragment", under which the
    /// identification has no meaning and is 0 (RFC 6864 section 4.1).
    pub fn new(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: IpProtocol,
        payload_bytes: usize,
    ) -> Result<Ipv4Header, PayloadTooLong> {
        match u16::try_from(payload_bytes) {
            Ok(fits) if payload_bytes <= Self::PAYLOAD_LIMIT => Ok(Ipv4Header {
                source,
                destination,
                protocol,
                ttl: Self::DEFAULT_TTL,
                traffic_class: 0,
                identification: 0,
                dont_fragment: true,
                payload_bytes: fits,
            }),
            _ => Err(PayloadTooLong { layer: Layer::Ipv4, payload_bytes, limit_bytes: Self::PAYLOAD_LIMIT }),
        }
    }

    /// `None` for what this representation cannot express: fragments and options.
    pub fn parse(packet: &Ipv4Packet<'_>) -> Option<Ipv4Header> {
        if packet.is_fragment() || packet.has_options() {
            return None;
        }
        let header =
            Ipv4Header::new(packet.source(), packet.destination(), packet.protocol(), packet.payload().len())
                .ok()?;
        Some(Ipv4Header {
            ttl: packet.ttl(),
            traffic_class: packet.traffic_class(),
            identification: packet.identification(),
            dont_fragment: packet.dont_fragment(),
            ..header
        })
    }

    pub fn payload_bytes(&self) -> usize {
        usize::from(self.payload_bytes)
    }

    /// Writes the header with its checksum.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        let total_bytes = self.payload_bytes + Self::LEN as u16;
        let fragment_word = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        out[0] = 0x45;
        out[1] = self.traffic_class;
        out[2..4].copy_from_slice(&total_bytes.to_be_bytes());
        out[4..6].copy_from_slice(&self.identification.to_be_bytes());
        out[6..8].copy_from_slice(&fragment_word.to_be_bytes());
        out[8] = self.ttl;
        out[9] = self.protocol.0;
        out[10..12].copy_from_slice(&[0, 0]);
        out[12..16].copy_from_slice(&self.source.octets());
        out[16..20].copy_from_slice(&self.destination.octets());
        let sum = checksum::of(out);
        out[10..12].copy_from_slice(&sum.to_be_bytes());
    }
}
