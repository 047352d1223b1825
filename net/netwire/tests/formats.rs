//! Properties at the untrusted edge: bytes that a stranger sent never panic, what
//! is built is what is parsed, and what NAT rewrites still has the right sums.

use netwire::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn mac() -> impl Strategy<Value = MacAddr> {
    any::<[u8; 6]>().prop_map(MacAddr)
}

fn ip() -> impl Strategy<Value = Ipv4Addr> {
    any::<u32>().prop_map(Ipv4Addr::from)
}

fn endpoint() -> impl Strategy<Value = SocketAddrV4> {
    (ip(), any::<u16>()).prop_map(|(ip, port)| SocketAddrV4::new(ip, port))
}

/// Touches every accessor of every view that `bytes` passes for.
fn read_everything(bytes: &[u8]) {
    if let Ok(frame) = EthernetFrame::check(bytes) {
        let _ = (EthernetHeader::parse(&frame), frame.payload().len());
        read_everything_above_ethernet(frame.payload());
    }
    read_everything_above_ethernet(bytes);
}

fn read_everything_above_ethernet(bytes: &[u8]) {
    if let Ok(arp) = ArpPacket::check(bytes) {
        let _ = ArpMessage::parse(&arp);
    }
    if let Ok(packet) = Ipv4Packet::check(bytes) {
        assert!(packet.total_bytes() <= bytes.len());
        let _ = (Ipv4Header::parse(&packet), packet.verify_checksum(), packet.is_fragment());
        read_transport(packet.payload());
    }
    read_transport(bytes);
}

fn read_transport(bytes: &[u8]) {
    let (a, b) = (Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST);
    if let Ok(udp) = UdpDatagram::check(bytes) {
        assert!(udp.payload().len() + UdpHeader::LEN <= bytes.len());
        let _ = (UdpHeader::parse(&udp), udp.verify_checksum(a, b));
    }
    if let Ok(tcp) = TcpSegment::check(bytes) {
        let _ = (TcpHeader::parse(&tcp), tcp.verify_checksum(a, b), tcp.options());
    }
    if let Ok(quoted) = QuotedPacket::check(bytes) {
        let _ = (quoted.source(), quoted.destination(), quoted.protocol(), quoted.transport_start());
    }
    if let Ok(icmp) = IcmpMessage::check(bytes) {
        let _ = (IcmpEcho::parse(&icmp), icmp.verify_checksum());
    }
}

/// An IPv4 packet around a transport packet.
fn ipv4_packet(from: Ipv4Addr, to: Ipv4Addr, protocol: IpProtocol, transport: &[u8]) -> Vec<u8> {
    let header = Ipv4Header::new(from, to, protocol, transport.len()).unwrap();
    let mut out = [0; Ipv4Header::LEN];
    header.emit(&mut out);
    [&out[..], transport].concat()
}

fn transport_packet(
    kind: Transport,
    from: SocketAddrV4,
    to: SocketAddrV4,
    payload: &[u8],
) -> (IpProtocol, Vec<u8>) {
    match kind {
        Transport::Udp => {
            let mut out = [0; UdpHeader::LEN];
            UdpHeader::new(from.port(), to.port(), payload.len()).unwrap().emit_with_checksum(
                &mut out,
                *from.ip(),
                *to.ip(),
                payload,
            );
            (IpProtocol::UDP, [&out[..], payload].concat())
        }
        Transport::Tcp => {
            let mut out = [0; TcpHeader::LEN];
            TcpHeader {
                source_port: from.port(),
                destination_port: to.port(),
                sequence: 0x0102_0304,
                acknowledgement: 7,
                flags: TcpFlags::SYN.with(TcpFlags::ACK),
                window: 500,
                urgent_pointer: 0,
            }
            .emit(&mut out, *from.ip(), *to.ip(), payload);
            (IpProtocol::TCP, [&out[..], payload].concat())
        }
        Transport::IcmpEcho => {
            let mut out = [0; IcmpEcho::LEN];
            IcmpEcho { kind: EchoKind::Request, identifier: from.port(), sequence: 3 }
                .emit(&mut out, payload);
            (IpProtocol::ICMP, [&out[..], payload].concat())
        }
    }
}

fn sums_hold(packet: &[u8]) -> bool {
    let ip = Ipv4Packet::check(packet).unwrap();
    let (from, to) = (ip.source(), ip.destination());
    ip.verify_checksum()
        && match ip.protocol() {
            IpProtocol::UDP => UdpDatagram::check(ip.payload()).unwrap().verify_checksum(from, to),
            IpProtocol::TCP => TcpSegment::check(ip.payload()).unwrap().verify_checksum(from, to),
            _ => IcmpMessage::check(ip.payload()).unwrap().verify_checksum(),
        }
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..200)) {
        read_everything(&bytes);
        let mut bytes = bytes;
        let _ = FlowMut::check(&mut bytes);
    }

    /// Garbage that looks like IPv4, so that the deeper checks are reached.
    #[test]
    fn likely_garbage_never_panics(
        mut bytes in vec(any::<u8>(), 20..120), ihl in 4u8..9, total in 0u16..140,
        protocol in prop::sample::select(vec![1u8, 6, 17, 47]), to in endpoint(),
        whole in any::<bool>(),
    ) {
        bytes[0] = 0x40 | ihl;
        bytes[2..4].copy_from_slice(&total.to_be_bytes());
        if whole {
            bytes[6..8].copy_from_slice(&[0, 0]);
        }
        bytes[9] = protocol;
        read_everything_above_ethernet(&bytes);
        if let Ok(mut flow) = FlowMut::check(&mut bytes) {
            flow.set_source(to);
            flow.set_destination(to);
            let _ = (flow.decrement_ttl(), flow.source(), flow.tcp_flags());
        }
    }

    #[test]
    fn ethernet_round_trip(destination in mac(), source in mac(), ethertype in any::<u16>()) {
        let header = EthernetHeader { destination, source, ethertype: EtherType(ethertype) };
        let mut out = [0; EthernetHeader::LEN];
        header.emit(&mut out);
        prop_assert_eq!(EthernetHeader::parse(&EthernetFrame::check(&out).unwrap()), header);
        prop_assert!(EthernetFrame::check(&out[..13]).is_err());
    }

    #[test]
    fn arp_round_trip(
        request in any::<bool>(), sender_mac in mac(), sender_ip in ip(), target_mac in mac(),
        target_ip in ip()
    ) {
        let operation = if request { ArpOperation::Request } else { ArpOperation::Reply };
        let message = ArpMessage { operation, sender_mac, sender_ip, target_mac, target_ip };
        let mut out = [0; ArpMessage::LEN];
        message.emit(&mut out);
        prop_assert_eq!(ArpMessage::parse(&ArpPacket::check(&out).unwrap()), message);
    }

    #[test]
    fn ipv4_round_trip(
        source in ip(), destination in ip(), protocol in any::<u8>(), ttl in any::<u8>(),
        traffic_class in any::<u8>(), identification in any::<u16>(), dont_fragment in any::<bool>(),
        payload in vec(any::<u8>(), 0..100), padding in 0usize..40
    ) {
        let mut header =
            Ipv4Header::new(source, destination, IpProtocol(protocol), payload.len()).unwrap();
        header.ttl = ttl;
        header.traffic_class = traffic_class;
        header.identification = identification;
        header.dont_fragment = dont_fragment;
        let mut out = [0; Ipv4Header::LEN];
        header.emit(&mut out);
        let bytes = [&out[..], &payload, &vec![0; padding]].concat();
        let packet = Ipv4Packet::check(&bytes).unwrap();
        prop_assert!(packet.verify_checksum());
        prop_assert_eq!(packet.payload(), &payload[..]);
        prop_assert_eq!(Ipv4Header::parse(&packet), Some(header));
        if !payload.is_empty() {
            // One byte fewer than announced is a lie.
            let cut = &bytes[..Ipv4Header::LEN + payload.len() - 1];
            let lies = matches!(Ipv4Packet::check(cut), Err(Malformed::LengthBeyondData { .. }));
            prop_assert!(lies);
        }
    }

    #[test]
    fn transports_round_trip(
        kind in prop::sample::select(vec![Transport::Udp, Transport::Tcp, Transport::IcmpEcho]),
        from in endpoint(), to in endpoint(), payload in vec(any::<u8>(), 0..100)
    ) {
        let (protocol, transport) = transport_packet(kind, from, to, &payload);
        let mut packet = ipv4_packet(*from.ip(), *to.ip(), protocol, &transport);
        prop_assert!(sums_hold(&packet));
        let flow = FlowMut::check(&mut packet).unwrap();
        let expected_port = if kind == Transport::IcmpEcho { 0 } else { to.port() };
        prop_assert_eq!(flow.transport(), kind);
        prop_assert_eq!(flow.source(), from);
        prop_assert_eq!(flow.destination(), SocketAddrV4::new(*to.ip(), expected_port));
    }

    #[test]
    fn rewriting_keeps_the_sums(
        kind in prop::sample::select(vec![Transport::Udp, Transport::Tcp, Transport::IcmpEcho]),
        from in endpoint(), to in endpoint(), new_from in endpoint(), new_to in endpoint(),
        payload in vec(any::<u8>(), 0..100)
    ) {
        let (protocol, transport) = transport_packet(kind, from, to, &payload);
        let mut packet = ipv4_packet(*from.ip(), *to.ip(), protocol, &transport);
        let mut flow = FlowMut::check(&mut packet).unwrap();
        flow.set_source(new_from);
        flow.set_destination(new_to);
        prop_assert!(flow.decrement_ttl());
        prop_assert_eq!(flow.ttl(), Ipv4Header::DEFAULT_TTL - 1);
        prop_assert_eq!(flow.source(), new_from);
        prop_assert!(sums_hold(&packet));
    }

    #[test]
    fn udp_headers_in_one_piece(
        source_mac in mac(), destination_mac in mac(), source in endpoint(),
        destination in endpoint(), payload in vec(any::<u8>(), 0..100)
    ) {
        let headers = UdpHeaders { source_mac, destination_mac, source, destination };
        let mut out = [0; UdpHeaders::LEN];
        headers.emit(&mut out, payload.len()).unwrap();
        let bytes = [&out[..], &payload].concat();
        let frame = EthernetFrame::check(&bytes).unwrap();
        prop_assert_eq!((frame.source(), frame.destination()), (source_mac, destination_mac));
        let packet = Ipv4Packet::check(frame.payload()).unwrap();
        prop_assert!(packet.verify_checksum());
        let udp = UdpDatagram::check(packet.payload()).unwrap();
        prop_assert_eq!(udp.checksum(), 0);
        prop_assert_eq!(SocketAddrV4::new(packet.source(), udp.source_port()), source);
        prop_assert_eq!(SocketAddrV4::new(packet.destination(), udp.destination_port()), destination);
        prop_assert_eq!(udp.payload(), &payload[..]);
        prop_assert_eq!(headers.reversed().reversed(), headers);
    }
}

#[test]
fn lengths_that_lie_are_named() {
    let mut packet = ipv4_packet(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST, IpProtocol::UDP, &[0; 12]);
    packet[24..26].copy_from_slice(&13u16.to_be_bytes());
    let payload = Ipv4Packet::check(&packet).unwrap().payload();
    assert_eq!(
        UdpDatagram::check(payload).unwrap_err(),
        Malformed::LengthBeyondData { layer: Layer::Udp, claims: 13, has: 12 }
    );
    packet[24..26].copy_from_slice(&7u16.to_be_bytes());
    let payload = Ipv4Packet::check(&packet).unwrap().payload();
    assert_eq!(
        UdpDatagram::check(payload).unwrap_err().to_string(),
        "UDP: a length field claims 7 bytes, the header alone has 8"
    );
}

#[test]
fn a_udp_datagram_without_checksum_stays_without() {
    let from = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 2), 4000);
    let mut out = [0; UdpHeader::LEN];
    UdpHeader::new(4000, 10809, 0).unwrap().emit(&mut out);
    let mut packet = ipv4_packet(*from.ip(), Ipv4Addr::new(10, 0, 2, 15), IpProtocol::UDP, &out);
    let mut flow = FlowMut::check(&mut packet).unwrap();
    flow.set_source(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 9));
    assert_eq!(&packet[26..28], &[0, 0]);
    assert!(sums_hold(&packet));
}

#[test]
fn too_long_a_payload_is_refused() {
    let any = Ipv4Addr::UNSPECIFIED;
    assert!(Ipv4Header::new(any, any, IpProtocol::UDP, 65515).is_ok());
    assert!(Ipv4Header::new(any, any, IpProtocol::UDP, 65516).is_err());
    assert!(UdpHeader::new(1, 2, 65507).is_ok());
    assert_eq!(
        UdpHeader::new(1, 2, 65508).unwrap_err().to_string(),
        "UDP: a payload of 65508 bytes, at most 65507 fit the length field"
    );
}

#[test]
fn an_icmp_error_quotes_less_than_the_packet_claims() {
    let (from, to) = (Ipv4Addr::new(10, 0, 2, 15), Ipv4Addr::new(192, 0, 2, 1));
    let packet = ipv4_packet(from, to, IpProtocol::UDP, &[7; 400]);
    let quoted = QuotedPacket::check(&packet[..28]).unwrap();
    assert_eq!((quoted.source(), quoted.destination()), (from, to));
    assert_eq!((quoted.protocol(), quoted.transport_start()), (IpProtocol::UDP, &[7; 8]));
    assert!(QuotedPacket::check(&packet[..27]).is_err());
}
