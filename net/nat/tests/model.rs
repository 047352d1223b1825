//! The NAT against a model that remembers what it did, and against any bytes.

mod common;

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddrV4};

use common::*;
use nat::{DropReason, Forward, Nat, Settings, Transport, Verdict};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// A guest asks.
    Ask {
        guest: u8,
        port: u8,
        remote: u8,
        transport: u8,
    },
    /// The outside answers the n-th of the flows that were ever seen.
    Answer(usize),
    /// The outside opens a connection to a forward.
    Open {
        forward: u8,
        remote: u8,
    },
    /// Somebody sends to an outside port that a flow has, without having been asked.
    Stray {
        flow: usize,
        remote: u8,
    },
    Pass(u64),
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u8..4, 0u8..6, 0u8..4, 0u8..3)
            .prop_map(|(guest, port, remote, transport)| Step::Ask { guest, port, remote, transport }),
        8 => any::<usize>().prop_map(Step::Answer),
        2 => (0u8..3, 0u8..4).prop_map(|(forward, remote)| Step::Open { forward, remote }),
        2 => (any::<usize>(), 10u8..20).prop_map(|(flow, remote)| Step::Stray { flow, remote }),
        3 => (0u64..200).prop_map(|seconds| Step::Pass(seconds * SECOND_NS)),
        1 => (0u8..4).prop_map(Step::Forget),
    ]
}

const KINDS: [Transport; 3] = [Transport::Udp, Transport::Tcp, Transport::IcmpEcho];

fn guest(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, 2 + n)
}

fn remote(n: u8, transport: Transport) -> SocketAddrV4 {
    let port = if transport == Transport::IcmpEcho { 0 } else { 1000 + u16::from(n % 2) };
    at(Ipv4Addr::new(203, 0, 113, n / 2), port)
}

/// Who is behind an outside port, towards one remote endpoint.
type Outside = (Transport, u16, SocketAddrV4);

#[derive(Clone, Copy)]
struct Flow {
    inside: SocketAddrV4,
    last_used_ns: u64,
    idle_ns: u64,
}

#[derive(Default)]
struct Model {
    flows: HashMap<Outside, Flow>,
    seen: Vec<Outside>,
}

impl Model {
    fn live(&self, outside: &Outside, now_ns: u64) -> Option<Flow> {
        self.flows.get(outside).copied().filter(|flow| now_ns - flow.last_used_ns <= flow.idle_ns)
    }

    /// Notes what the NAT did, unless it gave one flow's outside to another.
    fn note(&mut self, outside: Outside, inside: SocketAddrV4, now_ns: u64) {
        let idle_ns = match outside.0 {
            Transport::Udp => 300 * SECOND_NS,
            Transport::Tcp => 240 * SECOND_NS,
            Transport::IcmpEcho => 60 * SECOND_NS,
        };
        if let Some(flow) = self.live(&outside, now_ns) {
            assert_eq!(flow.inside, inside, "two flows share {outside:?}");
        }
        for (other, flow) in &self.flows {
            let alive = now_ns - flow.last_used_ns <= flow.idle_ns;
            if alive && other.0 == outside.0 && other.1 == outside.1 {
                assert_eq!(flow.inside, inside, "two guests' ports share an outside port");
            }
        }
        // TCP here never leaves the opening state for long: answers are SYN+ACK, so established.
        let established =
            outside.0 == Transport::Tcp && self.flows.get(&outside).is_some_and(|f| f.idle_ns > idle_ns);
        let idle_ns = if established { 7440 * SECOND_NS } else { idle_ns };
        self.flows.insert(outside, Flow { inside, last_used_ns: now_ns, idle_ns });
        self.seen.push(outside);
    }

    fn answered(&mut self, outside: &Outside, now_ns: u64) {
        if let Some(flow) = self.flows.get_mut(outside) {
            flow.last_used_ns = now_ns;
            if outside.0 == Transport::Tcp {
                flow.idle_ns = 7440 * SECOND_NS;
            }
        }
    }
}

fn check_tables(nat: &Nat) -> Result<(), TestCaseError> {
    prop_assert_eq!(nat.connections().count(), nat.connection_count());
    let mut outside: Vec<_> = nat.connections().map(|c| (c.transport, c.outside_port, c.remote)).collect();
    outside.sort();
    outside.dedup();
    prop_assert_eq!(outside.len(), nat.connection_count(), "two connections share an outside tuple");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn replies_reach_who_asked_and_no_two_flows_share_an_outside_tuple(
        hash_key in any::<u64>(),
        port_seed in any::<u64>(),
        steps in proptest::collection::vec(step(), 1..150),
    ) {
        // Few ports and places for many flows, so that they are used again; more places than
        // flows, so that nothing is given up that the model holds.
        let settings = Settings { ports: 1000..=1063, connections: 512, hash_key, port_seed, ..settings() };
        let mut nat = nat_with(&settings);
        for n in 0..3u16 {
            let inside = at(guest(n as u8), 80);
            nat.add_forward(Forward { transport: Transport::Tcp, port: 1010 + n, inside }, nobody).unwrap();
        }
        let node_uses = |transport, port: u16| transport == Transport::Udp && port.is_multiple_of(7);
        let mut model = Model::default();
        let mut now_ns = 0;
        for step in steps {
            match step {
                Step::Ask { guest: n, port, remote: far, transport } => {
                    let transport = KINDS[usize::from(transport)];
                    let inside = at(guest(n), 5000 + u16::from(port));
                    let remote = remote(far, transport);
                    let mut packet = asking(transport, inside, remote, b"question");
                    let verdict = nat.outbound(&mut packet, now_ns, node_uses);
                    prop_assert_eq!(verdict, Verdict::Uplink(*remote.ip()));
                    let (outside, to) = endpoints(&packet);
                    prop_assert_eq!((*outside.ip(), to), (UPLINK, remote));
                    prop_assert!(settings.ports.contains(&outside.port()));
                    prop_assert!(!node_uses(transport, outside.port()));
                    let forwarded = transport == Transport::Tcp && (1010..1013).contains(&outside.port());
                    prop_assert!(!forwarded);
                    model.note((transport, outside.port(), remote), inside, now_ns);
                }
                Step::Answer(n) if !model.seen.is_empty() => {
                    let flow = model.seen[n % model.seen.len()];
                    let (transport, port, remote) = flow;
                    let mut packet = answering(transport, remote, at(UPLINK, port), b"answer");
                    let verdict = nat.inbound(&mut packet, now_ns);
                    match model.live(&flow, now_ns) {
                        Some(Flow { inside, .. }) => {
                            prop_assert_eq!(verdict, Verdict::Inside(*inside.ip()));
                            prop_assert_eq!(endpoints(&packet), (remote, inside));
                            model.answered(&flow, now_ns);
                        }
                        None => prop_assert!(
                            matches!(verdict, Verdict::Node | Verdict::Drop(DropReason::NoConnection))
                        ),
                    }
                }
                Step::Open { forward, remote: far } => {
                    let remote = remote(far, Transport::Tcp);
                    let port = 1010 + u16::from(forward);
                    let inside = at(guest(forward), 80);
                    let mut packet = tcp(remote, at(UPLINK, port), SYN, b"");
                    prop_assert_eq!(nat.inbound(&mut packet, now_ns), Verdict::Inside(*inside.ip()));
                    prop_assert_eq!(endpoints(&packet), (remote, inside));
                    let mut back = tcp(inside, remote, SYN_ACK, b"");
                    prop_assert_eq!(nat.outbound(&mut back, now_ns, node_uses), Verdict::Uplink(*remote.ip()));
                    prop_assert_eq!(endpoints(&back), (at(UPLINK, port), remote));
                    let outside = (Transport::Tcp, port, remote);
                    model.note(outside, inside, now_ns);
                    model.answered(&outside, now_ns);
                }
                Step::Stray { flow, remote: far } if !model.seen.is_empty() => {
                    let (transport, port, _) = model.seen[flow % model.seen.len()];
                    let mut packet = answering(transport, remote(far, transport), at(UPLINK, port), b"");
                    let verdict = nat.inbound(&mut packet, now_ns);
                    prop_assert!(matches!(verdict, Verdict::Node | Verdict::Drop(DropReason::NoConnection)));
                }
                Step::Pass(time_ns) => now_ns += time_ns,
                Step::Forget(n) => {
                    nat.forget_guest(guest(n));
                    model.flows.retain(|_, flow| *flow.inside.ip() != guest(n));
                }
                Step::Answer(_) | Step::Stray { .. } => {}
            }
            check_tables(&nat)?;
        }
    }

    /// A table far too small: whatever is given up, the bounds hold and nothing is mixed up.
    #[test]
    fn a_small_table_keeps_its_bounds(
        connections in 0u32..6,
        connections_per_guest in 0u32..4,
        steps in proptest::collection::vec((0u8..3, 0u8..5, 0u8..4, 0u8..3, 0u64..100), 1..200),
    ) {
        let settings = Settings { ports: 1000..=1003, connections, connections_per_guest, ..settings() };
        let mut nat = nat_with(&settings);
        let mut now_ns = 0;
        for (n, port, far, transport, seconds) in steps {
            now_ns += seconds * SECOND_NS;
            let transport = KINDS[usize::from(transport)];
            let (inside, remote) = (at(guest(n), 5000 + u16::from(port)), remote(far, transport));
            let mut packet = asking(transport, inside, remote, b"");
            match nat.outbound(&mut packet, now_ns, nobody) {
                Verdict::Uplink(_) => {
                    let outside = endpoints(&packet).0;
                    let mut answer = answering(transport, remote, outside, b"");
                    prop_assert_eq!(nat.inbound(&mut answer, now_ns), Verdict::Inside(*inside.ip()));
                    prop_assert_eq!(endpoints(&answer), (remote, inside));
                }
                Verdict::Drop(reason) => prop_assert!(matches!(
                    reason,
                    DropReason::TableFull | DropReason::NoPort | DropReason::ShareUsed
                )),
                other => prop_assert!(false, "{:?}", other),
            }
            prop_assert!(nat.connection_count() <= connections as usize);
            for n in 0..3 {
                let held = nat.connections().filter(|c| *c.inside.ip() == guest(n)).count();
                prop_assert!(held <= connections_per_guest as usize);
            }
            check_tables(&nat)?;
        }
    }

    /// Any bytes, and right packets with bytes changed, in both directions: no panic, and the
    /// node gets its packets as they came.
    #[test]
    fn any_bytes_get_a_verdict(
        packets in proptest::collection::vec(
            (
                any::<bool>(),
                0usize..6,
                proptest::collection::vec((0usize..80, any::<u8>()), 0..6),
                proptest::collection::vec(any::<u8>(), 0..80),
                0usize..100,
            ),
            0..60,
        ),
    ) {
        let mut nat = nat_with(&Settings { ports: 1000..=1007, connections: 8, ..settings() });
        let forward = Forward { transport: Transport::Tcp, port: 8080, inside: at(ALPHA, 80) };
        nat.add_forward(forward, nobody).unwrap();
        for (number, (outward, shape, changes, noise, cut)) in packets.into_iter().enumerate() {
            let known = nat.connections().next().map_or(1003, |c| c.outside_port);
            let quoted = udp(at(UPLINK, known), at(FAR, 53), b"12345678");
            let mut packet = match shape {
                0 => noise,
                1 => udp(at(ALPHA, 5000), at(FAR, 53), &noise),
                2 => tcp(at(ALPHA, 5000), at(UPLINK, 8080), SYN, &noise),
                3 => udp(at(FAR, 53), at(UPLINK, known), &noise),
                4 => tcp(at(FAR, 53), at(UPLINK, 8080), SYN, &noise),
                _ => icmp_error(FAR, UPLINK, &quoted, 36),
            };
            for (at, value) in changes {
                if let Some(byte) = packet.get_mut(at) {
                    *byte = value;
                }
            }
            packet.truncate(cut.max(1));
            let before = packet.clone();
            let now_ns = number as u64 * SECOND_NS;
            let verdict = if outward {
                nat.outbound(&mut packet, now_ns, nobody)
            } else {
                nat.inbound(&mut packet, now_ns)
            };
            prop_assert_eq!(packet.len(), before.len());
            if verdict == Verdict::Node {
                prop_assert_eq!(packet, before);
            }
            check_tables(&nat)?;
        }
    }
}
