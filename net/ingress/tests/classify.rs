//! The gate against every kind of bad frame, one by one and at random.

use core::net::{Ipv4Addr, SocketAddrV4};

use ingress::{Class, DropReason, Interface, Subnet, classify, verify_udp_checksum};
use netwire::*;
use proptest::collection::vec;
use proptest::prelude::*;

const OUR_MAC: MacAddr = MacAddr([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const PEER_MAC: MacAddr = MacAddr([0x52, 0x55, 10, 0, 2, 2]);
const US: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

fn configured() -> Interface {
    Interface { mac: OUR_MAC, subnet: Subnet::new(US, 24) }
}

fn unconfigured() -> Interface {
    Interface { mac: OUR_MAC, subnet: None }
}

fn udp_frame(destination: SocketAddrV4, payload: &[u8]) -> Vec<u8> {
    let headers = UdpHeaders {
        source_mac: PEER_MAC,
        destination_mac: OUR_MAC,
        source: SocketAddrV4::new(PEER, 4000),
        destination,
    };
    let mut out = [0; UdpHeaders::LEN];
    headers.emit(&mut out, payload.len()).unwrap();
    [&out[..], payload].concat()
}

fn good() -> Vec<u8> {
    udp_frame(SocketAddrV4::new(US, 10809), b"payload")
}

/// Makes the IPv4 header's checksum right again.
fn seal(frame: &mut [u8]) {
    frame[24..26].copy_from_slice(&[0, 0]);
    let sum = checksum::of(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

fn changed(change: impl FnOnce(&mut Vec<u8>)) -> Result<Class, DropReason> {
    let mut frame = good();
    change(&mut frame);
    if frame.len() >= 34 {
        seal(&mut frame);
    }
    classify(&frame, &configured())
}

fn arp_frame(message: ArpMessage, destination: MacAddr) -> Vec<u8> {
    let mut ethernet = [0; EthernetHeader::LEN];
    EthernetHeader { destination, source: PEER_MAC, ethertype: EtherType::ARP }.emit(&mut ethernet);
    let mut arp = [0; ArpMessage::LEN];
    message.emit(&mut arp);
    [&ethernet[..], &arp, &[0; 18]].concat()
}

fn request(sender_ip: Ipv4Addr, target_ip: Ipv4Addr) -> ArpMessage {
    ArpMessage {
        operation: ArpOperation::Request,
        sender_mac: PEER_MAC,
        sender_ip,
        target_mac: MacAddr::ZERO,
        target_ip,
    }
}

#[test]
fn a_datagram_for_us_is_described() {
    let frame = good();
    let Ok(Class::Udp(meta)) = classify(&frame, &configured()) else {
        panic!("{:?}", classify(&frame, &configured()))
    };
    assert_eq!(meta.source, SocketAddrV4::new(PEER, 4000));
    assert_eq!(meta.destination, SocketAddrV4::new(US, 10809));
    assert_eq!((meta.source_mac, meta.local_mac), (PEER_MAC, OUR_MAC));
    assert_eq!((meta.payload_offset, meta.checksum), (42, 0));
    assert_eq!(meta.payload(&frame), b"payload");
    // The answer's headers lead back.
    let mut out = [0; UdpHeaders::LEN];
    meta.reply_headers().emit(&mut out, 0).unwrap();
    assert_eq!(EthernetFrame::check(&out).unwrap().destination(), PEER_MAC);
}

#[test]
fn link_padding_is_no_payload() {
    let mut frame = good();
    frame.resize(60, 0xee);
    let Ok(Class::Udp(meta)) = classify(&frame, &configured()) else { panic!() };
    assert_eq!(meta.payload(&frame), b"payload");
}

#[test]
fn each_fault_has_its_name() {
    use DropReason::*;
    assert_eq!(classify(&good()[..13], &configured()), Err(TooShort));
    assert_eq!(classify(&good()[..20], &configured()), Err(TooShort));
    assert_eq!(changed(|f| f[5] ^= 1), Err(NotOurMac));
    assert_eq!(changed(|f| f[6] |= 1), Err(BadSource));
    assert_eq!(changed(|f| f[6..12].copy_from_slice(&OUR_MAC.0)), Err(BadSource));
    assert_eq!(changed(|f| f[12..14].copy_from_slice(&[0x86, 0xdd])), Err(OtherProtocol));
    assert_eq!(changed(|f| f[14] = 0x65), Err(Unsupported));
    assert_eq!(changed(|f| f[14] = 0x44), Err(LyingLength));
    assert_eq!(changed(|f| f[17] += 1), Err(LyingLength));
    assert_eq!(changed(|f| f[17] = 19), Err(LyingLength));
    assert_eq!(changed(|f| f[17] = 27), Err(TooShort));
    assert_eq!(changed(|f| f[39] += 1), Err(LyingLength));
    assert_eq!(changed(|f| f[39] = 7), Err(LyingLength));
    assert_eq!(changed(|f| f[20] = 0x20), Err(Fragment));
    assert_eq!(changed(|f| f[21] = 1), Err(Fragment));
    assert_eq!(changed(|f| f[33] = 16), Err(NotOurAddress));
    assert_eq!(changed(|f| f[0..6].copy_from_slice(&[0xff; 6])), Err(LinkBroadcast));
    let mut frame = good();
    frame[22] ^= 1;
    assert_eq!(classify(&frame, &configured()), Err(BadChecksum));
}

#[test]
fn no_answer_can_be_led_to_an_impossible_source() {
    for source in [
        [0, 0, 0, 0],
        [127, 0, 0, 1],
        [224, 0, 0, 1],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
        [10, 0, 2, 255],
        [10, 0, 2, 0],
        [10, 0, 2, 15],
    ] {
        let result = changed(|f| f[26..30].copy_from_slice(&source));
        assert_eq!(result, Err(DropReason::BadSource), "{source:?}");
    }
}

#[test]
fn a_datagram_with_options_is_not_for_handlers() {
    let mut frame = good();
    frame.splice(34..34, [1, 1, 1, 0]);
    frame[14] = 0x46;
    frame[17] += 4;
    frame[24..26].copy_from_slice(&[0, 0]);
    let sum = checksum::of(&frame[14..38]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert_eq!(classify(&frame, &configured()), Ok(Class::Library));
}

#[test]
fn without_an_address_only_dhcp_answers_pass() {
    assert_eq!(classify(&good(), &unconfigured()), Err(DropReason::NotOurAddress));
    let offer = udp_frame(SocketAddrV4::new(US, 68), b"offer");
    assert_eq!(classify(&offer, &unconfigured()), Ok(Class::Library));
    let broadcast = udp_frame(SocketAddrV4::new(Ipv4Addr::BROADCAST, 68), b"offer");
    assert_eq!(classify(&broadcast, &unconfigured()), Ok(Class::Library));
    assert_eq!(classify(&broadcast, &configured()), Ok(Class::Library));
    let other = udp_frame(SocketAddrV4::new(Ipv4Addr::BROADCAST, 137), b"hello");
    assert_eq!(classify(&other, &configured()), Err(DropReason::NotOurAddress));
}

#[test]
fn arp_is_ours_learnable_or_foreign() {
    let case = |message, interface: &Interface| classify(&arp_frame(message, MacAddr::BROADCAST), interface);
    let for_us = request(PEER, US);
    assert_eq!(case(for_us, &configured()), Ok(Class::Arp { message: for_us, for_us: true }));
    let for_other = request(PEER, Ipv4Addr::new(10, 0, 2, 77));
    assert_eq!(case(for_other, &configured()), Ok(Class::Arp { message: for_other, for_us: false }));
    let far = request(Ipv4Addr::new(9, 9, 9, 9), PEER);
    assert_eq!(case(far, &configured()), Err(DropReason::ForeignArp));
    assert_eq!(case(for_us, &unconfigured()), Err(DropReason::ForeignArp));
    assert_eq!(case(request(US, PEER), &configured()), Err(DropReason::AddressConflict));
    let hidden = ArpMessage { sender_mac: MacAddr([2, 0, 0, 0, 0, 9]), ..for_us };
    assert_eq!(case(hidden, &configured()), Err(DropReason::BadSource));
    let mut operation = arp_frame(for_us, OUR_MAC);
    operation[21] = 3;
    assert_eq!(classify(&operation, &configured()), Err(DropReason::Unsupported));
}

#[test]
fn a_wrong_udp_checksum_is_found_when_asked_for() {
    let mut frame = good();
    assert!(verify_udp_checksum([&frame[..]]));
    frame[40..42].copy_from_slice(&[0x12, 0x34]);
    assert!(matches!(classify(&frame, &configured()), Ok(Class::Udp(_))));
    assert!(!verify_udp_checksum([&frame[..]]));
}

proptest! {
    #[test]
    fn garbage_never_panics(frame in vec(any::<u8>(), 0..200), known: bool) {
        let interface = if known { configured() } else { unconfigured() };
        let _ = (classify(&frame, &interface), verify_udp_checksum([&frame[..]]));
    }

    /// A good frame with a few bytes changed, cut or lengthened: what a handler gets is always
    /// inside the frame, from a source that can be answered.
    #[test]
    fn what_passes_keeps_the_promise(
        changes in vec((0usize..80, any::<u8>()), 0..4), length in 0usize..120, reseal: bool,
        protocol in prop::sample::select(vec![1u8, 6, 17, 17, 17]),
    ) {
        let mut frame = good();
        frame[23] = protocol;
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        if length > 60 {
            frame.resize(length, 0);
        } else if length < 20 {
            frame.truncate(frame.len() - length);
        }
        if reseal && frame.len() >= 34 {
            seal(&mut frame);
        }
        match classify(&frame, &configured()) {
            Ok(Class::Udp(meta)) => {
                prop_assert_eq!(meta.payload_offset, 42);
                prop_assert!(meta.payload_offset + meta.payload_bytes <= frame.len());
                prop_assert_eq!(*meta.destination.ip(), US);
                prop_assert!(Subnet::new(US, 24).unwrap().may_be_source(*meta.source.ip()));
                prop_assert!(meta.source_mac.is_station());
            }
            Ok(Class::Icmp(meta)) => prop_assert!(meta.offset + meta.bytes <= frame.len()),
            _ => {}
        }
    }
}
