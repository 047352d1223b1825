//! The NAT by its rules.

mod common;

use common::*;
use nat::{DropReason, Forward, ForwardError, MOST_FORWARDS, Nat, Phase, Settings, Transport, Verdict};
use netwire::{EchoKind, TcpFlags};

const KINDS: [Transport; 3] = [Transport::Udp, Transport::Tcp, Transport::IcmpEcho];

fn send(nat: &mut Nat, packet: &mut [u8], now_ns: u64) -> Verdict {
    nat.outbound(packet, now_ns, nobody)
}

fn forward(port: u16, inside: std::net::SocketAddrV4) -> Forward {
    Forward { transport: Transport::Tcp, port, inside }
}

#[test]
fn a_question_goes_out_and_its_answer_comes_back() {
    for transport in KINDS {
        let mut nat = nat_with(&settings());
        let (inside, remote) =
            (at(ALPHA, 5000), at(FAR, if transport == Transport::IcmpEcho { 0 } else { 53 }));
        let mut question = asking(transport, inside, remote, b"question");
        assert_eq!(send(&mut nat, &mut question, 0), Verdict::Uplink(FAR));
        let (outside, to) = endpoints(&question);
        assert_eq!((*outside.ip(), to), (UPLINK, remote));
        assert!((16_384..=49_151).contains(&outside.port()));
        assert_eq!(ttl(&question), 63);

        let mut answer = answering(transport, remote, outside, b"answer");
        assert_eq!(nat.inbound(&mut answer, 1), Verdict::Inside(ALPHA));
        assert_eq!(endpoints(&answer), (remote, inside));
        assert_eq!(ttl(&answer), 63);
        assert_eq!((nat.counters().outbound, nat.counters().inbound), (1, 1));
    }
}

#[test]
fn a_datagram_without_a_checksum_stays_without() {
    let mut nat = nat_with(&settings());
    let mut packet = udp(at(ALPHA, 1), at(FAR, 2), b"data");
    packet[26..28].fill(0);
    assert_eq!(send(&mut nat, &mut packet, 0), Verdict::Uplink(FAR));
    assert_eq!(packet[26..28], [0, 0]);
}

#[test]
fn a_guests_port_keeps_its_outside_port_and_shares_it_with_nobody() {
    let mut nat = nat_with(&settings());
    let mut outside = |guest, port, remote| {
        let mut packet = udp(at(guest, port), remote, b"");
        assert_eq!(send(&mut nat, &mut packet, 0), Verdict::Uplink(*remote.ip()));
        endpoints(&packet).0
    };
    let first = outside(ALPHA, 5000, at(FAR, 53));
    assert_eq!(outside(ALPHA, 5000, at(FAR, 54)), first);
    assert_eq!(outside(ALPHA, 5000, at([192, 0, 2, 9].into(), 53)), first);
    assert_ne!(outside(ALPHA, 5001, at(FAR, 53)), first);
    assert_ne!(outside(BETA, 5000, at(FAR, 53)), first);
}

#[test]
fn only_whom_the_guest_asked_may_answer() {
    let mut nat = nat_with(&settings());
    let mut packet = udp(at(ALPHA, 5000), at(FAR, 53), b"");
    let _ = send(&mut nat, &mut packet, 0);
    let outside = endpoints(&packet).0;
    for stranger in [at(FAR, 54), at([192, 0, 2, 1].into(), 53)] {
        let mut stray = udp(stranger, outside, b"");
        assert_eq!(nat.inbound(&mut stray, 0), Verdict::Drop(DropReason::NoConnection));
    }
    // What is nobody's port is the node's affair, untouched.
    let mut for_node = udp(at(FAR, 53), at(UPLINK, 10_809), b"netblk");
    let before = for_node.clone();
    assert_eq!(nat.inbound(&mut for_node, 0), Verdict::Node);
    assert_eq!(for_node, before);
}

#[test]
fn what_is_for_the_node_is_left_alone() {
    let mut nat = nat_with(&settings());
    let mut packets = [
        udp(at(ALPHA, 5), at(NODE, 67), b""),
        udp(at(ALPHA, 5), at(UPLINK, 10_809), b""),
        echo(ALPHA, UPLINK, EchoKind::Request, 9, b""),
        icmp_error(ALPHA, UPLINK, &udp(at(UPLINK, 1), at(ALPHA, 2), b""), 28),
    ];
    for packet in &mut packets {
        let before = packet.clone();
        assert_eq!(send(&mut nat, packet, 0), Verdict::Node);
        assert_eq!(*packet, before);
    }
    let mut packets = [
        echo(FAR, UPLINK, EchoKind::Request, 9, b""),
        echo(FAR, UPLINK, EchoKind::Reply, 9, b""),
        udp(at(FAR, 67), at(std::net::Ipv4Addr::BROADCAST, 68), b""),
    ];
    for packet in &mut packets {
        assert_eq!(nat.inbound(packet, 0), Verdict::Node);
    }
    assert_eq!(nat.connection_count(), 0);
}

#[test]
fn packets_that_cannot_pass_are_dropped_by_name() {
    let mut nat = nat_with(&settings());
    let good = || udp(at(ALPHA, 5000), at(FAR, 53), b"data");
    let changed = |at: usize, value: u8| {
        let mut packet = good();
        packet[at] = value;
        packet
    };
    let outbound = [
        (vec![], DropReason::Malformed),
        (good()[..27].to_vec(), DropReason::Malformed),
        (changed(0, 0x65), DropReason::Malformed),
        (changed(6, 0x20), DropReason::Fragment),
        (changed(7, 0x01), DropReason::Fragment),
        (changed(9, 47), DropReason::Protocol),
        (changed(8, 1), DropReason::TtlExpired),
        (changed(8, 0), DropReason::TtlExpired),
        (udp(at(ALPHA, 0), at(FAR, 53), b""), DropReason::PortZero),
        (udp(at(ALPHA, 1), at(FAR, 0), b""), DropReason::PortZero),
        (udp(at(FAR, 1), at([192, 0, 2, 1].into(), 1), b""), DropReason::SpoofedSource),
        (udp(at(NODE, 1), at(FAR, 1), b""), DropReason::SpoofedSource),
        (udp(at([10, 77, 0, 255].into(), 1), at(FAR, 1), b""), DropReason::SpoofedSource),
        (udp(at(ALPHA, 1), at(BETA, 1), b""), DropReason::NotRoutable),
        (udp(at(ALPHA, 1), at([224, 0, 0, 1].into(), 1), b""), DropReason::NotRoutable),
        (udp(at(ALPHA, 1), at([127, 0, 0, 1].into(), 1), b""), DropReason::NotRoutable),
        (tcp(at(ALPHA, 1), at(FAR, 1), ACK, b""), DropReason::NoConnection),
        (echo(ALPHA, FAR, EchoKind::Reply, 3, b""), DropReason::NoConnection),
    ];
    for (mut packet, reason) in outbound {
        let before = nat.counters().dropped(reason);
        assert_eq!(send(&mut nat, &mut packet, 0), Verdict::Drop(reason));
        assert_eq!(nat.counters().dropped(reason), before + 1);
    }
    let inbound = [
        (vec![0x45; 19], DropReason::Malformed),
        (udp(at(ALPHA, 1), at(UPLINK, 1), b""), DropReason::SpoofedSource),
        (udp(at(UPLINK, 1), at(UPLINK, 1), b""), DropReason::SpoofedSource),
        (udp(at([127, 0, 0, 1].into(), 1), at(UPLINK, 1), b""), DropReason::SpoofedSource),
    ];
    for (mut packet, reason) in inbound {
        assert_eq!(nat.inbound(&mut packet, 0), Verdict::Drop(reason));
    }
    let mut fragment = udp(at(FAR, 1), at(UPLINK, 1), b"");
    fragment[6] = 0x20;
    assert_eq!(nat.inbound(&mut fragment, 0), Verdict::Drop(DropReason::Fragment));
    assert_eq!(nat.connection_count(), 0, "and nothing was opened for them");

    nat.set_uplink(None);
    assert_eq!(send(&mut nat, &mut good(), 0), Verdict::Drop(DropReason::NoUplink));
}

#[test]
fn a_forward_lets_the_outside_in() {
    let mut nat = nat_with(&settings());
    nat.add_forward(forward(8080, at(ALPHA, 80)), nobody).unwrap();
    let remote = at(FAR, 40_000);
    let mut syn = tcp(remote, at(UPLINK, 8080), SYN, b"");
    assert_eq!(nat.inbound(&mut syn, 0), Verdict::Inside(ALPHA));
    assert_eq!(endpoints(&syn), (remote, at(ALPHA, 80)));
    let mut answer = tcp(at(ALPHA, 80), remote, SYN_ACK, b"");
    assert_eq!(send(&mut nat, &mut answer, 1), Verdict::Uplink(FAR));
    assert_eq!(endpoints(&answer), (at(UPLINK, 8080), remote));
    let connection = nat.connections().next().unwrap();
    assert!(connection.forwarded && connection.phase() == Phase::TcpEstablished);

    let mut stray = tcp(at(FAR, 40_001), at(UPLINK, 8080), ACK, b"");
    assert_eq!(nat.inbound(&mut stray, 0), Verdict::Drop(DropReason::NoConnection));
    assert!(nat.uses_port(Transport::Tcp, 8080) && !nat.uses_port(Transport::Udp, 8080));

    assert_eq!(nat.remove_forward(Transport::Tcp, 8080), Some(forward(8080, at(ALPHA, 80))));
    assert_eq!(nat.connection_count(), 0);
    assert_eq!(nat.inbound(&mut tcp(remote, at(UPLINK, 8080), SYN, b""), 2), Verdict::Node);
}

#[test]
fn forwards_that_cannot_be_are_refused_by_name() {
    let mut nat = nat_with(&settings());
    let target = at(ALPHA, 80);
    let refused = |nat: &mut Nat, f: Forward| nat.add_forward(f, |_, port| port == 22).unwrap_err();
    for wrong in [
        Forward { transport: Transport::IcmpEcho, ..forward(1, target) },
        forward(0, target),
        forward(1, at(ALPHA, 0)),
    ] {
        assert_eq!(refused(&mut nat, wrong), ForwardError::NotAPort);
    }
    for outside in [at(FAR, 80), at(NODE, 80), at([10, 77, 0, 0].into(), 80)] {
        assert_eq!(refused(&mut nat, forward(1, outside)), ForwardError::NotInside(outside));
    }
    assert_eq!(refused(&mut nat, forward(22, target)), ForwardError::UsedByNode(22));
    let mut packet = tcp(at(ALPHA, 1), at(FAR, 1), SYN, b"");
    let _ = send(&mut nat, &mut packet, 0);
    let in_use = endpoints(&packet).0.port();
    assert_eq!(refused(&mut nat, forward(in_use, target)), ForwardError::InUse(in_use));
    for port in 1000..1000 + MOST_FORWARDS as u16 {
        nat.add_forward(forward(port, target), nobody).unwrap();
    }
    assert_eq!(refused(&mut nat, forward(1000, target)), ForwardError::InUse(1000));
    assert_eq!(refused(&mut nat, forward(999, target)), ForwardError::TooMany);
}

#[test]
fn two_forwards_to_one_guests_port_are_not_mistaken_for_each_other() {
    let mut nat = nat_with(&settings());
    for port in [8080, 8081] {
        nat.add_forward(forward(port, at(ALPHA, 80)), nobody).unwrap();
    }
    let remote = at(FAR, 40_000);
    let mut open = |port| nat.inbound(&mut tcp(remote, at(UPLINK, port), SYN, b""), 0);
    assert_eq!(open(8080), Verdict::Inside(ALPHA));
    assert_eq!(open(8081), Verdict::Drop(DropReason::Collision));
    let mut answer = tcp(at(ALPHA, 80), remote, SYN_ACK, b"");
    let _ = send(&mut nat, &mut answer, 0);
    assert_eq!(endpoints(&answer).0, at(UPLINK, 8080));
}

#[test]
fn a_guest_reaches_a_forward_by_the_uplinks_address() {
    let mut nat = nat_with(&settings());
    nat.add_forward(forward(8080, at(ALPHA, 80)), nobody).unwrap();
    for (port, guest) in [(6000, BETA), (6001, ALPHA)] {
        let mut syn = tcp(at(guest, port), at(UPLINK, 8080), SYN, b"");
        assert_eq!(send(&mut nat, &mut syn, 0), Verdict::Inside(ALPHA));
        let (seen, to) = endpoints(&syn);
        assert_eq!((*seen.ip(), to), (UPLINK, at(ALPHA, 80)));
        assert_eq!(ttl(&syn), 63, "one hop, not two");
        let mut answer = tcp(at(ALPHA, 80), seen, SYN_ACK, b"");
        assert_eq!(send(&mut nat, &mut answer, 0), Verdict::Inside(guest));
        assert_eq!(endpoints(&answer), (at(UPLINK, 8080), at(guest, port)));
    }
    assert_eq!(nat.counters().hairpinned, 4);
}

#[test]
fn ports_of_the_node_and_of_forwards_are_never_given_out() {
    let mut nat = nat_with(&Settings { ports: 100..=109, ..settings() });
    nat.add_forward(Forward { transport: Transport::Udp, port: 104, inside: at(ALPHA, 1) }, nobody).unwrap();
    let node_uses = |transport, port| transport == Transport::Udp && port % 2 == 1;
    let mut given = std::collections::BTreeSet::new();
    let mut verdicts = Vec::new();
    for port in 1..=6 {
        let mut packet = udp(at(BETA, port), at(FAR, 53), b"");
        verdicts.push(nat.outbound(&mut packet, 0, node_uses));
        if verdicts.last() == Some(&Verdict::Uplink(FAR)) {
            given.insert(endpoints(&packet).0.port());
        }
    }
    assert_eq!(given.into_iter().collect::<Vec<_>>(), [100, 102, 106, 108]);
    assert_eq!(verdicts[4..], [Verdict::Drop(DropReason::NoPort); 2]);
    // TCP's ports are another matter.
    let mut packet = tcp(at(BETA, 1), at(FAR, 53), SYN, b"");
    assert_eq!(nat.outbound(&mut packet, 0, node_uses), Verdict::Uplink(FAR));
}

/// How long a connection opened by these packets (from the guest, and the answers) is kept.
fn kept_for(transport: Transport, flags: &[(bool, TcpFlags)]) -> u64 {
    let alive = |seconds: u64| {
        let mut nat = nat_with(&settings());
        let (inside, remote) =
            (at(ALPHA, 5000), at(FAR, if transport == Transport::IcmpEcho { 0 } else { 80 }));
        let mut question = asking(transport, inside, remote, b"");
        let _ = send(&mut nat, &mut question, 0);
        let outside = endpoints(&question).0;
        for &(from_inside, flags) in flags {
            let verdict = if from_inside {
                send(&mut nat, &mut tcp(inside, remote, flags, b""), 0)
            } else {
                nat.inbound(&mut tcp(remote, outside, flags, b""), 0)
            };
            assert!(matches!(verdict, Verdict::Uplink(_) | Verdict::Inside(_)), "{verdict:?}");
        }
        let mut answer = answering(transport, remote, outside, b"");
        nat.inbound(&mut answer, seconds * SECOND_NS) == Verdict::Inside(ALPHA)
    };
    let seconds: Vec<u64> = (1..10_000).collect();
    seconds.partition_point(|&seconds| alive(seconds)) as u64
}

#[test]
fn idle_times_are_the_rfcs() {
    assert_eq!(kept_for(Transport::Udp, &[]), 300);
    assert_eq!(kept_for(Transport::IcmpEcho, &[]), 60);
    assert_eq!(kept_for(Transport::Tcp, &[]), 240);
    let open = [(false, SYN_ACK), (true, ACK)];
    assert_eq!(kept_for(Transport::Tcp, &open), 7440);
    assert_eq!(kept_for(Transport::Tcp, &[&open[..], &[(false, FIN_ACK)]].concat()), 7440);
    assert_eq!(kept_for(Transport::Tcp, &[&open[..], &[(false, FIN_ACK), (true, FIN_ACK)]].concat()), 240);
    assert_eq!(kept_for(Transport::Tcp, &[&open[..], &[(false, RST)]].concat()), 240);
}

#[test]
fn traffic_keeps_a_connection_and_its_port() {
    let mut nat = nat_with(&settings());
    let mut outside = None;
    for minute in 0..30 {
        let mut packet = udp(at(ALPHA, 5000), at(FAR, 53), b"");
        let _ = send(&mut nat, &mut packet, minute * 240 * SECOND_NS);
        let now = endpoints(&packet).0;
        assert_eq!(*outside.get_or_insert(now), now);
    }
    assert_eq!(nat.expire(30 * 240 * SECOND_NS + 61 * SECOND_NS, 10), 1);
    assert_eq!((nat.connection_count(), nat.counters().connections_expired), (0, 1));
}

#[test]
fn a_full_table_gives_up_what_is_closing_but_never_what_is_established() {
    let full = Settings { connections: 4, ..settings() };
    let mut nat = nat_with(&full);
    let establish = |nat: &mut Nat, port| {
        let mut syn = tcp(at(ALPHA, port), at(FAR, 80), SYN, b"");
        let verdict = send(nat, &mut syn, 0);
        if verdict == Verdict::Uplink(FAR) {
            let mut answer = tcp(at(FAR, 80), endpoints(&syn).0, SYN_ACK, b"");
            assert_eq!(nat.inbound(&mut answer, 0), Verdict::Inside(ALPHA));
        }
        verdict
    };
    assert_eq!(establish(&mut nat, 1), Verdict::Uplink(FAR));
    assert_eq!(establish(&mut nat, 2), Verdict::Uplink(FAR));
    let _ = send(&mut nat, &mut echo(BETA, FAR, EchoKind::Request, 5, b""), 0);
    let _ = send(&mut nat, &mut tcp(at(BETA, 9), at(FAR, 80), SYN, b""), 1);
    // Full. The half-open one goes first, then the echo, then nothing.
    assert_eq!(establish(&mut nat, 3), Verdict::Uplink(FAR));
    assert!(nat.connections().all(|c| c.phase() != Phase::TcpOpening));
    assert_eq!(establish(&mut nat, 4), Verdict::Uplink(FAR));
    assert_eq!(establish(&mut nat, 5), Verdict::Drop(DropReason::TableFull));
    assert_eq!(nat.counters().connections_evicted, 2);

    // A datagram's connection is given up once it was silent for two minutes.
    let mut nat = nat_with(&full);
    for port in 1..=4 {
        let _ = send(&mut nat, &mut udp(at(ALPHA, port), at(FAR, 53), b""), 0);
    }
    let mut fifth = udp(at(ALPHA, 5), at(FAR, 53), b"");
    assert_eq!(send(&mut nat, &mut fifth, 119 * SECOND_NS), Verdict::Drop(DropReason::TableFull));
    let mut fifth = udp(at(ALPHA, 5), at(FAR, 53), b"");
    assert_eq!(send(&mut nat, &mut fifth, 120 * SECOND_NS), Verdict::Uplink(FAR));
}

#[test]
fn one_guest_cannot_have_all_connections() {
    let mut nat = nat_with(&Settings { connections_per_guest: 3, ..settings() });
    let mut ask = |guest, port| send(&mut nat, &mut udp(at(guest, port), at(FAR, 53), b""), 0);
    assert!((1..=3).all(|port| ask(ALPHA, port) == Verdict::Uplink(FAR)));
    assert_eq!(ask(ALPHA, 4), Verdict::Drop(DropReason::ShareUsed));
    assert_eq!(ask(BETA, 4), Verdict::Uplink(FAR));
    nat.forget_guest(ALPHA);
    assert_eq!(nat.connection_count(), 1);
    assert_eq!(send(&mut nat, &mut udp(at(ALPHA, 4), at(FAR, 53), b""), 0), Verdict::Uplink(FAR));
}

#[test]
fn another_uplink_address_ends_all_connections() {
    let mut nat = nat_with(&settings());
    let mut packet = udp(at(ALPHA, 5000), at(FAR, 53), b"");
    let _ = send(&mut nat, &mut packet, 0);
    nat.set_uplink(Some(UPLINK));
    assert_eq!(nat.connection_count(), 1, "the same address is no change");
    let other = [198, 51, 100, 8].into();
    nat.set_uplink(Some(other));
    assert_eq!(nat.connection_count(), 0);
    let mut packet = udp(at(ALPHA, 5000), at(FAR, 53), b"");
    let _ = send(&mut nat, &mut packet, 0);
    assert_eq!(*endpoints(&packet).0.ip(), other);
}

#[test]
fn an_error_reaches_the_guest_about_the_packet_that_it_sent() {
    let router = [192, 0, 2, 254].into();
    for transport in KINDS {
        let mut nat = nat_with(&settings());
        let (inside, remote) =
            (at(ALPHA, 5000), at(FAR, if transport == Transport::IcmpEcho { 0 } else { 53 }));
        let mut sent = asking(transport, inside, remote, b"some data");
        let original = sent.clone();
        let _ = send(&mut nat, &mut sent, 0);
        for quoted_bytes in [28, 60] {
            let mut error = icmp_error(router, UPLINK, &sent, quoted_bytes);
            assert_eq!(nat.inbound(&mut error, 1), Verdict::Inside(ALPHA));
            let packet = netwire::Ipv4Packet::check(&error).unwrap();
            assert!(packet.verify_checksum() && packet.destination() == ALPHA && packet.ttl() == 63);
            let message = netwire::IcmpMessage::check(packet.payload()).unwrap();
            assert!(message.verify_checksum());
            // But for the hop that it had made (TTL and header checksum), it is the guest's own.
            let mut quoted = message.payload().to_vec();
            assert_eq!(quoted[8], 63);
            assert!(netwire::checksum::is_valid(&quoted[..20]));
            quoted[8] = 64;
            quoted[10..12].copy_from_slice(&original[10..12]);
            assert_eq!(quoted, original[..quoted.len()]);
        }
        assert_eq!(nat.counters().errors_in, 2);
        let mut broken = icmp_error(router, UPLINK, &sent, 60);
        broken[22] ^= 1;
        assert_eq!(nat.inbound(&mut broken, 1), Verdict::Drop(DropReason::Malformed));
        let mut late = icmp_error(router, UPLINK, &sent, 60);
        late[8] = 1;
        assert_eq!(nat.inbound(&mut late, 1), Verdict::Drop(DropReason::TtlExpired));
    }
    let mut nat = nat_with(&settings());
    let ours = udp(at(UPLINK, 500), at(FAR, 53), b"the node's own");
    let mut error = icmp_error(router, UPLINK, &ours, 28);
    assert_eq!(nat.inbound(&mut error, 0), Verdict::Node);
}
