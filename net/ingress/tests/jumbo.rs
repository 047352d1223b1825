//! Packets that take several frames: datagrams for a handler, or a named drop.

use core::net::{Ipv4Addr, SocketAddrV4};

use ingress::{
    Class, DropReason, Interface, Subnet, UdpMeta, classify, classify_packet, verify_udp_checksum,
};
use netwire::*;
use proptest::collection::vec;
use proptest::prelude::*;

/// What one frame of the node's pool holds.
const FRAME_BYTES: usize = 2048;
const OUR_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const PEER_MAC: MacAddr = MacAddr([0x52, 0x55, 10, 0, 2, 2]);
const US: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

fn configured() -> Interface {
    Interface { mac: OUR_MAC, subnet: Subnet::new(US, 24) }
}

/// A datagram with a checksum.
fn datagram(payload_bytes: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload_bytes).map(|at| (at * 7 % 251) as u8).collect();
    let headers = UdpHeaders {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        source: SocketAddrV4::new(PEER, 4000),
        destination: SocketAddrV4::new(US, 10809),
    };
    let mut out = [0; UdpHeaders::LEN];
    headers.emit(&mut out, payload.len()).unwrap();
    let mut udp = [0; UdpHeader::LEN];
    UdpHeader::new(4000, 10809, payload.len()).unwrap().emit_with_checksum(&mut udp, PEER, US, &payload);
    out[34..].copy_from_slice(&udp);
    [&out[..], &payload].concat()
}

/// Makes the IPv4 header's checksum right again.
fn seal(packet: &mut [u8]) {
    packet[24..26].copy_from_slice(&[0, 0]);
    let header_bytes = usize::from(packet[14] & 0xf) * 4;
    let sum = checksum::of(&packet[14..14 + header_bytes]);
    packet[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// As a card that fills one frame after the other delivers it.
fn frames(packet: &[u8]) -> Vec<&[u8]> {
    packet.chunks(FRAME_BYTES).collect()
}

fn delivered(packet: &[u8]) -> Result<Class, DropReason> {
    let frames = frames(packet);
    classify_packet(frames[0], packet.len() - frames[0].len(), &configured())
}

fn described(packet: &[u8]) -> UdpMeta {
    match delivered(packet) {
        Ok(Class::Udp(meta)) => meta,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_datagram_over_several_frames_is_described_as_one() {
    for payload_bytes in [2006, 2007, 4066, 8972] {
        let packet = datagram(payload_bytes);
        let frames = frames(&packet);
        let meta = described(&packet);
        assert_eq!((meta.payload_offset, meta.payload_bytes), (42, payload_bytes));
        assert_eq!(meta.destination, SocketAddrV4::new(US, 10809));
        let payload = [&[meta.payload(frames[0])], &frames[1..]].concat().concat();
        assert_eq!(payload, &packet[42..]);
        assert!(verify_udp_checksum(frames.iter().copied()));
    }
}

#[test]
fn a_checksum_is_wrong_wherever_the_wrong_byte_lies() {
    for at in [42, 2047, 2048, 5000, 9013] {
        let mut packet = datagram(8972);
        packet[at] ^= 0x10;
        assert!(!verify_udp_checksum(frames(&packet)), "byte {at}");
    }
}

#[test]
fn a_piece_of_odd_length_before_others_has_no_right_checksum() {
    let packet = datagram(3000);
    let (first, rest) = packet.split_at(1001);
    assert!(!verify_udp_checksum([first, rest]));
}

#[test]
fn lengths_must_agree_to_the_byte() {
    let packet = datagram(4000);
    for change in [-2000_i16, -1, 1, 2000] {
        // IPv4's, then UDP's length field, then what arrived.
        for field in [16, 38] {
            let mut lying = packet.clone();
            let length = u16::from_be_bytes([lying[field], lying[field + 1]]).wrapping_add_signed(change);
            lying[field..field + 2].copy_from_slice(&length.to_be_bytes());
            seal(&mut lying);
            assert_eq!(delivered(&lying), Err(DropReason::LyingLength), "{change} at {field}");
        }
        let mut arrived = packet.clone();
        arrived.resize(packet.len().wrapping_add_signed(change.into()), 0);
        assert_eq!(delivered(&arrived), Err(DropReason::LyingLength), "{change} arrived");
    }
    // Padding behind a packet that one frame holds is nothing that several frames are needed for.
    let mut padded = datagram(100);
    padded.resize(3000, 0);
    assert_eq!(delivered(&padded), Err(DropReason::LyingLength));
}

#[test]
fn nobody_else_gets_a_packet_of_several_frames() {
    let with_protocol = |protocol: IpProtocol| {
        let mut packet = datagram(4000);
        packet[23] = protocol.0;
        // A TCP header of five words.
        packet[46] = 0x50;
        seal(&mut packet);
        packet
    };
    for protocol in [IpProtocol::TCP, IpProtocol::ICMP, IpProtocol(47)] {
        assert_eq!(delivered(&with_protocol(protocol)), Err(DropReason::TooLong), "{protocol}");
    }
    let mut dhcp = datagram(4000);
    dhcp[36..38].copy_from_slice(&68_u16.to_be_bytes());
    assert_eq!(delivered(&dhcp), Err(DropReason::TooLong));
    let mut arp = datagram(4000);
    arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
    assert_eq!(delivered(&arp), Err(DropReason::TooLong));
    let mut options = datagram(4000);
    options[14] = 0x46;
    // The UDP header comes later by one word of options.
    options[38..46].copy_from_slice(&[0x0f, 0xa0, 0x2a, 0x39, 0x0f, 0xa4, 0, 0]);
    seal(&mut options);
    assert_eq!(delivered(&options), Err(DropReason::TooLong));
    let mut fragment = datagram(4000);
    fragment[20] = 0x20;
    seal(&mut fragment);
    assert_eq!(delivered(&fragment), Err(DropReason::Fragment));
    let broadcast = |mut packet: Vec<u8>| {
        packet[30..34].copy_from_slice(&[255; 4]);
        packet[36..38].copy_from_slice(&68_u16.to_be_bytes());
        seal(&mut packet);
        packet
    };
    assert_eq!(delivered(&broadcast(datagram(4000))), Err(DropReason::NotOurAddress));
    assert_eq!(delivered(&broadcast(datagram(400))), Ok(Class::Library));
}

#[test]
fn headers_that_do_not_lie_in_the_first_frame_are_too_short() {
    let packet = datagram(4000);
    for first in [0, 13, 20, 33, 41] {
        let outcome = classify_packet(&packet[..first], packet.len() - first, &configured());
        assert_eq!(outcome, Err(DropReason::TooShort), "{first} bytes in the first frame");
    }
    assert!(classify_packet(&packet[..42], packet.len() - 42, &configured()).is_ok());
}

proptest! {
    /// A jumbo packet with anything in its headers: described as what it is, or dropped.
    #[test]
    fn garbage_in_the_headers_is_described_truly_or_dropped(
        payload_bytes in 2100usize..8972, changes in vec((14usize..42, any::<u8>()), 0..4)
    ) {
        let mut packet = datagram(payload_bytes);
        for (at, value) in changes {
            packet[at] = value;
        }
        if usize::from(packet[14] & 0xf) >= 5 {
            seal(&mut packet);
        }
        if let Ok(class) = delivered(&packet) {
            let Class::Udp(meta) = class else { panic!("{class:?}") };
            prop_assert_eq!(meta.payload_offset + meta.payload_bytes, packet.len());
            prop_assert_eq!(meta.payload_offset, 42);
        }
        let _ = verify_udp_checksum(frames(&packet));
    }

    /// In one piece or in several, the verdict on what is right is the same.
    #[test]
    fn pieces_do_not_change_the_verdict(payload_bytes in 2100usize..8972, first in 42usize..2048) {
        let packet = datagram(payload_bytes);
        let whole = classify(&packet, &configured());
        let pieces = classify_packet(&packet[..first], packet.len() - first, &configured());
        prop_assert!(whole.is_ok());
        prop_assert_eq!(whole, pieces);
    }
}
