//! A frame from a stranger, through the gate and through the NAT's rewriting.
#![no_main]

use core::net::{Ipv4Addr, SocketAddrV4};

use ingress::{Class, Interface, Subnet, classify, classify_packet, dhcp_lease_seconds, verify_udp_checksum};
use libfuzzer_sys::fuzz_target;
use netwire::{EthernetFrame, FlowMut, Ipv4Packet, MacAddr, QuotedPacket, checksum};

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);

fuzz_target!(|input: (bool, Vec<u8>, u16)| {
    let (seal, mut frame, behind_bytes) = input;
    let mac = MacAddr([2, 0, 0, 0, 0, 1]);
    // Sealed frames are to us and have a right header checksum, so that what lies behind is reached.
    if seal && frame.len() >= 34 {
        frame[..6].copy_from_slice(&mac.0);
        frame[12..14].copy_from_slice(&[8, 0]);
        frame[30..34].copy_from_slice(&US.octets());
        frame[24..26].copy_from_slice(&[0, 0]);
        let header_bytes = (usize::from(frame[14] & 0x0f) * 4).min(frame.len() - 14);
        let sum = checksum::of(&frame[14..14 + header_bytes]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    for subnet in [None, Subnet::new(US, 24)] {
        match classify(&frame, &Interface { mac, subnet }) {
            Ok(Class::Udp(meta)) => {
                assert_eq!(meta.payload_offset, 42);
                assert_eq!(meta.payload(&frame).len(), meta.payload_bytes);
                let _ = verify_udp_checksum([&frame[..]]);
            }
            Ok(Class::Icmp(meta)) => {
                let _ = QuotedPacket::check(&frame[meta.offset..meta.offset + meta.bytes]);
            }
            Ok(_) | Err(_) => {}
        }
    }
    // The same as the first frame of a packet that takes more.
    if behind_bytes > 0 {
        let interface = Interface { mac, subnet: Subnet::new(US, 24) };
        match classify_packet(&frame, behind_bytes.into(), &interface) {
            Ok(Class::Udp(meta)) => {
                assert_eq!(meta.payload_offset + meta.payload_bytes, frame.len() + usize::from(behind_bytes));
                assert_eq!(meta.payload(&frame).len(), frame.len() - meta.payload_offset);
                let behind = vec![0; behind_bytes.into()];
                let _ = verify_udp_checksum([&frame[..], &behind[..]]);
            }
            Ok(class) => panic!("{class:?} of several frames"),
            Err(_) => {}
        }
    }
    let _ = dhcp_lease_seconds(&frame);
    let Some(packet) = frame.get_mut(14..) else { return };
    let header_held = Ipv4Packet::check(packet).is_ok_and(|packet| packet.verify_checksum());
    if let Ok(mut flow) = FlowMut::check(packet) {
        let to = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 7), 4242);
        flow.set_source(to);
        flow.set_destination(to);
        let _ = flow.decrement_ttl();
        let packet = Ipv4Packet::check(packet).expect("a rewritten packet is still one");
        assert_eq!(packet.source(), *to.ip());
        assert!(!header_held || packet.verify_checksum());
    }
    let _ = EthernetFrame::check(&frame);
});
