//! Packets for the NAT's tests.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::net::{Ipv4Addr, SocketAddrV4};

use ingress::Subnet;
use nat::{Nat, Settings, Transport};
use netwire::{
    EchoKind, IcmpEcho, IcmpMessage, IpProtocol, Ipv4Header, Ipv4Packet, TcpFlags, TcpHeader, TcpSegment,
    UdpDatagram, UdpHeader,
};

pub const SECOND_NS: u64 = 1_000_000_000;
pub const UPLINK: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub const NODE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const ALPHA: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub const BETA: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
pub const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 80);
pub const SYN: TcpFlags = TcpFlags::SYN;
pub const ACK: TcpFlags = TcpFlags::ACK;
pub const SYN_ACK: TcpFlags = SYN.with(ACK);
pub const FIN_ACK: TcpFlags = TcpFlags::FIN.with(ACK);
pub const RST: TcpFlags = TcpFlags::RST;

pub fn at(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address, port)
}

pub fn settings() -> Settings {
    Settings::new(Subnet::new(NODE, 24).unwrap(), 11, 12)
}

pub fn nat_with(settings: &Settings) -> Nat {
    let mut nat = Nat::new(settings);
    nat.set_uplink(Some(UPLINK));
    nat
}

pub fn nobody(_: Transport, _: u16) -> bool {
    false
}

fn packet(source: Ipv4Addr, destination: Ipv4Addr, protocol: IpProtocol, payload: &[u8]) -> Vec<u8> {
    let header = Ipv4Header::new(source, destination, protocol, payload.len()).unwrap();
    let mut bytes = vec![0; Ipv4Header::LEN];
    header.emit(bytes.first_chunk_mut().unwrap());
    bytes.extend_from_slice(payload);
    bytes
}

pub fn udp(source: SocketAddrV4, destination: SocketAddrV4, data: &[u8]) -> Vec<u8> {
    let header = UdpHeader::new(source.port(), destination.port(), data.len()).unwrap();
    let mut bytes = vec![0; UdpHeader::LEN];
    header.emit_with_checksum(bytes.first_chunk_mut().unwrap(), *source.ip(), *destination.ip(), data);
    bytes.extend_from_slice(data);
    packet(*source.ip(), *destination.ip(), IpProtocol::UDP, &bytes)
}

pub fn tcp(source: SocketAddrV4, destination: SocketAddrV4, flags: TcpFlags, data: &[u8]) -> Vec<u8> {
    let header = TcpHeader {
        source_port: source.port(),
        destination_port: destination.port(),
        sequence: 0x1234_5678,
        acknowledgement: 0x9abc_def0,
        flags,
        window: 0xfff0,
        urgent_pointer: 0,
    };
    let mut bytes = vec![0; TcpHeader::LEN];
    header.emit(bytes.first_chunk_mut().unwrap(), *source.ip(), *destination.ip(), data);
    bytes.extend_from_slice(data);
    packet(*source.ip(), *destination.ip(), IpProtocol::TCP, &bytes)
}

pub fn echo(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    kind: EchoKind,
    identifier: u16,
    data: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![0; IcmpEcho::LEN];
    IcmpEcho { kind, identifier, sequence: 7 }.emit(bytes.first_chunk_mut().unwrap(), data);
    bytes.extend_from_slice(data);
    packet(source, destination, IpProtocol::ICMP, &bytes)
}

/// An ICMP error from `router` about `about`, of which it quotes `quoted_bytes`.
pub fn icmp_error(router: Ipv4Addr, to: Ipv4Addr, about: &[u8], quoted_bytes: usize) -> Vec<u8> {
    let mut message = vec![3, 4, 0, 0, 0, 0, 5, 0x78]; // fragmentation needed, MTU 1400
    message.extend_from_slice(&about[..about.len().min(quoted_bytes)]);
    let sum = netwire::checksum::of(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    packet(router, to, IpProtocol::ICMP, &message)
}

/// A packet of one of the three transports, as the side that asks sends it.
pub fn asking(transport: Transport, inside: SocketAddrV4, remote: SocketAddrV4, data: &[u8]) -> Vec<u8> {
    match transport {
        Transport::Udp => udp(inside, remote, data),
        Transport::Tcp => tcp(inside, remote, SYN, data),
        Transport::IcmpEcho => echo(*inside.ip(), *remote.ip(), EchoKind::Request, inside.port(), data),
    }
}

/// The answer to it.
pub fn answering(transport: Transport, remote: SocketAddrV4, outside: SocketAddrV4, data: &[u8]) -> Vec<u8> {
    match transport {
        Transport::Udp => udp(remote, outside, data),
        Transport::Tcp => tcp(remote, outside, SYN_ACK, data),
        Transport::IcmpEcho => echo(*remote.ip(), *outside.ip(), EchoKind::Reply, outside.port(), data),
    }
}

/// The packet's endpoints, after every checksum in it was found right.
pub fn endpoints(bytes: &[u8]) -> (SocketAddrV4, SocketAddrV4) {
    let packet = Ipv4Packet::check(bytes).unwrap();
    assert!(packet.verify_checksum(), "IPv4 checksum");
    let (source, destination) = (packet.source(), packet.destination());
    let payload = packet.payload();
    match packet.protocol() {
        IpProtocol::UDP => {
            let datagram = UdpDatagram::check(payload).unwrap();
            assert!(datagram.verify_checksum(source, destination), "UDP checksum");
            (at(source, datagram.source_port()), at(destination, datagram.destination_port()))
        }
        IpProtocol::TCP => {
            let segment = TcpSegment::check(payload).unwrap();
            assert!(segment.verify_checksum(source, destination), "TCP checksum");
            (at(source, segment.source_port()), at(destination, segment.destination_port()))
        }
        _ => {
            let message = IcmpMessage::check(payload).unwrap();
            assert!(message.verify_checksum(), "ICMP checksum");
            let echo = IcmpEcho::parse(&message).unwrap();
            match echo.kind {
                EchoKind::Request => (at(source, echo.identifier), at(destination, 0)),
                EchoKind::Reply => (at(source, 0), at(destination, echo.identifier)),
            }
        }
    }
}

pub fn ttl(bytes: &[u8]) -> u8 {
    bytes[8]
}
