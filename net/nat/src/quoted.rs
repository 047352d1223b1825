//! ICMP errors about translated packets (RFC 5508 section 4).
//!
//! An error quotes the head of the packet that caused it, as the outside saw it. The guest must
//! see the packet that it sent, or it will not know its own connection again. Errors are rare and
//! short, so the message's checksum is verified and computed anew rather than followed through
//! each change; unlike data, a broken one is dropped here, since it would be repaired.

use core::net::SocketAddrV4;
use core::ops::Range;

use netwire::checksum::{self, update_address, update_u16};
use netwire::{
    IcmpMessage, IpProtocol, Ipv4Addr, Ipv4Header, Ipv4Packet, QuotedPacket, Transport, icmp_type,
};

use crate::counters::DropReason;

/// ICMP's own header, before the quotation.
const ICMP_BYTES: usize = 8;
const ICMP_CHECKSUM: usize = 2;

// Fields of the IPv4 header.
const IP_TTL: usize = 8;
const IP_CHECKSUM: usize = 10;
const IP_SOURCE: usize = 12;
const IP_DESTINATION: usize = 16;

/// ICMP's source quench (deprecated) and parameter problem, the errors that netwire has no name for.
const SOURCE_QUENCH: u8 = 4;
const PARAMETER_PROBLEM: u8 = 12;

/// What an error is about, in the terms of the outside.
pub(crate) struct Subject {
    pub transport: Transport,
    pub outside_port: u16,
    pub remote: SocketAddrV4,
}

/// The packet sent from `uplink` that an ICMP error is about; `None` if the message is no error,
/// or not about such a packet.
pub(crate) fn subject(packet: &[u8], uplink: Ipv4Addr) -> Option<Subject> {
    let packet = Ipv4Packet::check(packet).ok()?;
    let message = IcmpMessage::check(packet.payload()).ok()?;
    match message.message_type() {
        icmp_type::DESTINATION_UNREACHABLE | icmp_type::TIME_EXCEEDED | SOURCE_QUENCH | PARAMETER_PROBLEM => {
        }
        _ => return None,
    }
    let quoted = QuotedPacket::check(message.payload()).ok()?;
    if quoted.source() != uplink {
        return None;
    }
    let [a, b, c, d, e, f, ..] = *quoted.transport_start();
    let remote = |port| SocketAddrV4::new(quoted.destination(), port);
    let with_ports = |transport| Subject {
        transport,
        outside_port: u16::from_be_bytes([a, b]),
        remote: remote(u16::from_be_bytes([c, d])),
    };
    match quoted.protocol() {
        IpProtocol::UDP => Some(with_ports(Transport::Udp)),
        IpProtocol::TCP => Some(with_ports(Transport::Tcp)),
        IpProtocol::ICMP if a == icmp_type::ECHO_REQUEST => Some(Subject {
            transport: Transport::IcmpEcho,
            outside_port: u16::from_be_bytes([e, f]),
            remote: remote(0),
        }),
        _ => None,
    }
}

/// Sends an error, for which [`subject`] found its packet, on to the guest's port `inside`, and
/// makes the quoted packet one that came from there.
pub(crate) fn redirect(
    packet: &mut [u8],
    transport: Transport,
    inside: SocketAddrV4,
) -> Result<(), DropReason> {
    let checked = Ipv4Packet::check(packet).map_err(|_| DropReason::Malformed)?;
    let message = IcmpMessage::check(checked.payload()).map_err(|_| DropReason::Malformed)?;
    if !message.verify_checksum() {
        return Err(DropReason::Malformed);
    }
    let (header_bytes, total_bytes) = (checked.header_bytes(), checked.total_bytes());
    let (header, message) =
        packet.get_mut(..total_bytes).ok_or(DropReason::Malformed)?.split_at_mut(header_bytes);
    let quoted = message.get_mut(ICMP_BYTES..).ok_or(DropReason::Malformed)?;
    rewrite_quoted(quoted, transport, inside).ok_or(DropReason::Malformed)?;
    put(message, ICMP_CHECKSUM, 0).ok_or(DropReason::Malformed)?;
    let sum = checksum::of(message);
    put(message, ICMP_CHECKSUM, sum).ok_or(DropReason::Malformed)?;
    pass_on(header, *inside.ip()).ok_or(DropReason::Malformed)?
}

/// The outer header: one hop less, and the guest as the destination.
fn pass_on(header: &mut [u8], guest: Ipv4Addr) -> Option<Result<(), DropReason>> {
    let ttl = *header.get(IP_TTL)?;
    if ttl <= 1 {
        return Some(Err(DropReason::TtlExpired));
    }
    let before = word(header, IP_TTL)?;
    *header.get_mut(IP_TTL)? = ttl - 1;
    let after = word(header, IP_TTL)?;
    let sum = update_u16(word(header, IP_CHECKSUM)?, before, after);
    put(header, IP_CHECKSUM, sum)?;
    set_address(header, IP_DESTINATION, guest)?;
    Some(Ok(()))
}

/// The quoted packet: source address and port, and the checksums as far as they are quoted.
fn rewrite_quoted(quoted: &mut [u8], transport: Transport, inside: SocketAddrV4) -> Option<()> {
    let header_bytes = usize::from(quoted.first()? & 0x0f) * 4;
    if header_bytes < Ipv4Header::LEN {
        return None;
    }
    let (header, rest) = quoted.split_at_mut_checked(header_bytes)?;
    let outside = set_address(header, IP_SOURCE, *inside.ip())?;
    let (port_at, sum_at) = match transport {
        Transport::Udp => (0, 6),
        Transport::Tcp => (0, 16),
        Transport::IcmpEcho => (4, 2),
    };
    let port = word(rest, port_at)?;
    put(rest, port_at, inside.port())?;
    // TCP's checksum is mostly not quoted; then there is nothing to keep right.
    let Some(sum) = word(rest, sum_at) else { return Some(()) };
    if transport == Transport::Udp && sum == 0 {
        return Some(()); // not computed (RFC 768)
    }
    let mut new = update_u16(sum, port, inside.port());
    if transport != Transport::IcmpEcho {
        new = update_address(new, outside, *inside.ip());
    }
    put(rest, sum_at, if transport == Transport::Udp && new == 0 { 0xffff } else { new })
}

/// Replaces an address of an IPv4 header and updates its checksum; the old address.
fn set_address(header: &mut [u8], at: usize, new: Ipv4Addr) -> Option<Ipv4Addr> {
    let field: Range<usize> = at..at + 4;
    let old: [u8; 4] = header.get(field.clone())?.try_into().ok()?;
    let sum = update_address(word(header, IP_CHECKSUM)?, old.into(), new);
    header.get_mut(field)?.copy_from_slice(&new.octets());
    put(header, IP_CHECKSUM, sum)?;
    Some(old.into())
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?.try_into().ok()?;
    Some(u16::from_be_bytes(pair))
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    bytes.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    Some(())
}
