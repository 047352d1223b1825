//! ICMP for IPv4 (RFC 792): any message as a view, echo as a representation.

use core::net::Ipv4Addr;

use crate::checksum::Accumulator;
use crate::error::{Layer, Malformed};
use crate::ipv4::{self, IpProtocol, Ipv4Header};

/// ICMP types that the node knows by name.
pub mod icmp_type {
    pub const ECHO_REPLY: u8 = 0;
    pub const DESTINATION_UNREACHABLE: u8 = 3;
    pub const ECHO_REQUEST: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
}

/// A message with a whole 8-byte header.
#[derive(Clone, Copy, Debug)]
pub struct IcmpMessage<'a> {
    header: &'a [u8; IcmpEcho::LEN],
    payload: &'a [u8],
}

impl<'a> IcmpMessage<'a> {
    /// Checks an IPv4 packet's payload.
    pub fn check(bytes: &'a [u8]) -> Result<IcmpMessage<'a>, Malformed> {
        match bytes.split_first_chunk() {
            Some((header, payload)) => Ok(IcmpMessage { header, payload }),
            None => Err(Malformed::TooShort { layer: Layer::Icmp, needs: IcmpEcho::LEN, has: bytes.len() }),
        }
    }

    pub fn message_type(&self) -> u8 {
        self.header[0]
    }

    pub fn code(&self) -> u8 {
        self.header[1]
    }

    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// Bytes 4 to 7, whose meaning depends on the type.
    pub fn rest_of_header(&self) -> [u8; 4] {
        let h = self.header;
        [h[4], h[5], h[6], h[7]]
    }

    /// An error message carries the head of the packet that caused it here.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Whether the checksum holds. Reads the whole payload.
    pub fn verify_checksum(&self) -> bool {
        Accumulator::new().add_bytes(self.header).add_bytes(self.payload).sum() == 0xffff
    }
}

/// Bytes of the transport header that an ICMP error quotes: ports, or an echo's identifier.
const QUOTED_BYTES: usize = 8;

/// The head of a packet, quoted by the ICMP error about it: the IPv4 header and the first 8 bytes
/// behind it, all that RFC 792 promises. Its length fields speak of what was sent, not of what is
/// quoted, so this is no [`crate::Ipv4Packet`].
#[derive(Clone, Copy, Debug)]
pub struct QuotedPacket<'a> {
    header: &'a [u8; Ipv4Header::LEN],
    transport_start: &'a [u8; QUOTED_BYTES],
}

impl<'a> QuotedPacket<'a> {
    /// Checks the payload of an ICMP error.
    pub fn check(bytes: &'a [u8]) -> Result<QuotedPacket<'a>, Malformed> {
        let too_short = |needs| Malformed::TooShort { layer: Layer::Icmp, needs, has: bytes.len() };
        let least = Ipv4Header::LEN + QUOTED_BYTES;
        let header: &[u8; Ipv4Header::LEN] = bytes.first_chunk().ok_or(too_short(least))?;
        if header[0] >> 4 != 4 {
            return Err(Malformed::Version { found: header[0] >> 4 });
        }
        let claims = usize::from(header[0] & 0x0f) * 4;
        if claims < Ipv4Header::LEN {
            return Err(Malformed::LengthBelowHeader { layer: Layer::Ipv4, claims, header: Ipv4Header::LEN });
        }
        let rest = bytes.get(claims..).and_then(|rest| rest.first_chunk());
        let transport_start = rest.ok_or(too_short(claims + QUOTED_BYTES))?;
        Ok(QuotedPacket { header, transport_start })
    }

    pub fn source(&self) -> Ipv4Addr {
        ipv4::source_of(self.header)
    }

    pub fn destination(&self) -> Ipv4Addr {
        ipv4::destination_of(self.header)
    }

    pub fn protocol(&self) -> IpProtocol {
        ipv4::protocol_of(self.header)
    }

    /// The first bytes of the transport header.
    pub fn transport_start(&self) -> &'a [u8; QUOTED_BYTES] {
        self.transport_start
    }
}

/// Whether an echo asks or answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EchoKind {
    Request,
    Reply,
}

/// The header of an echo request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpEcho {
    pub kind: EchoKind,
    pub identifier: u16,
    pub sequence: u16,
}

impl IcmpEcho {
    /// Bytes of the header.
    pub const LEN: usize = 8;

    pub fn parse(message: &IcmpMessage<'_>) -> Result<IcmpEcho, Malformed> {
        let kind = match (message.message_type(), message.code()) {
            (icmp_type::ECHO_REQUEST, 0) => EchoKind::Request,
            (icmp_type::ECHO_REPLY, 0) => EchoKind::Reply,
            (icmp_type, code) => return Err(Malformed::NotEcho { icmp_type, code }),
        };
        let [a, b, c, d] = message.rest_of_header();
        Ok(IcmpEcho { kind, identifier: u16::from_be_bytes([a, b]), sequence: u16::from_be_bytes([c, d]) })
    }

    /// Writes the header with the checksum over `payload`.
    pub fn emit(&self, out: &mut [u8; Self::LEN], payload: &[u8]) {
        out[0] = match self.kind {
            EchoKind::Request => icmp_type::ECHO_REQUEST,
            EchoKind::Reply => icmp_type::ECHO_REPLY,
        };
        out[1..4].copy_from_slice(&[0, 0, 0]);
        out[4..6].copy_from_slice(&self.identifier.to_be_bytes());
        out[6..8].copy_from_slice(&self.sequence.to_be_bytes());
        let sum = Accumulator::new().add_bytes(out).add_bytes(payload).checksum();
        out[2..4].copy_from_slice(&sum.to_be_bytes());
    }
}
