//! The switch by its rules, and against a model that has no table to run out of.

use std::collections::HashMap;

use netwire::{EtherType, EthernetHeader, MacAddr};
use proptest::prelude::*;
use switch::{
    AttachError, BindError, Decision, DropReason, MOST_PORTS, PortId, PortSet, Settings, SourceRule,
    StormLimit, Switch,
};

const SECOND_NS: u64 = 1_000_000_000;

fn mac(n: u8) -> MacAddr {
    MacAddr([0x02, 0, 0, 0, 0, n])
}

fn port(n: u8) -> PortId {
    PortId::new(n).unwrap()
}

fn set(ports: &[u8]) -> PortSet {
    ports.iter().fold(PortSet::EMPTY, |set, &n| set.with(port(n)))
}

fn frame(source: MacAddr, destination: MacAddr) -> Vec<u8> {
    let mut frame = vec![0; 60];
    let header = EthernetHeader { destination, source, ethertype: EtherType::IPV4 };
    header.emit(frame.first_chunk_mut().unwrap());
    frame
}

/// A switch without a storm limit and `open` ports that may send from anywhere.
fn open_switch(open: u8) -> Switch {
    let mut switch = Switch::new(Settings { storm: None, ..Settings::new(1) });
    for n in 0..open {
        switch.attach_at(port(n), SourceRule::Any).unwrap();
    }
    switch
}

#[test]
fn an_unknown_station_is_flooded_to_and_a_known_one_is_not() {
    let mut switch = open_switch(3);
    assert_eq!(switch.decide(port(0), &frame(mac(1), mac(2)), 0), Decision::Forward(set(&[1, 2])));
    assert_eq!(switch.decide(port(1), &frame(mac(2), mac(1)), 1), Decision::Forward(set(&[0])));
    assert_eq!(switch.decide(port(0), &frame(mac(1), mac(2)), 2), Decision::Forward(set(&[1])));
    let counters = switch.counters(port(0));
    assert_eq!((counters.flooded_unknown, counters.forwarded, counters.learned), (1, 1, 1));
    assert_eq!((counters.frames_in, counters.bytes_in, counters.frames_out), (2, 120, 1));
}

#[test]
fn groups_are_flooded_but_not_the_bridges_own() {
    let mut switch = open_switch(3);
    for group in [MacAddr::BROADCAST, MacAddr([0x01, 0, 0x5e, 0, 0, 1]), MacAddr([0x33, 0x33, 0, 0, 0, 1])] {
        assert_eq!(switch.decide(port(2), &frame(mac(1), group), 0), Decision::Forward(set(&[0, 1])));
    }
    for last in [0, 0x0f] {
        let bridges = MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
        assert_eq!(switch.decide(port(2), &frame(mac(1), bridges), 0), Decision::Drop(DropReason::LinkLocal));
    }
    let beyond = MacAddr([0x01, 0x80, 0xc2, 0, 0, 0x10]);
    assert_eq!(switch.decide(port(2), &frame(mac(1), beyond), 0), Decision::Forward(set(&[0, 1])));
    assert_eq!(switch.counters(port(2)).flooded_group, 4);
}

#[test]
fn nothing_goes_back_where_it_came_from() {
    let mut switch = open_switch(2);
    let _ = switch.decide(port(0), &frame(mac(1), MacAddr::BROADCAST), 0);
    assert_eq!(switch.decide(port(0), &frame(mac(2), mac(1)), 0), Decision::Drop(DropReason::NobodyElse));
    switch.detach(port(1));
    assert_eq!(switch.decide(port(0), &frame(mac(2), mac(9)), 0), Decision::Drop(DropReason::NobodyElse));
}

#[test]
fn frames_that_cannot_be_are_dropped_by_reason() {
    let mut switch = open_switch(2);
    let cases = [
        (vec![0; 13], DropReason::Undersize),
        (vec![2; 1519], DropReason::Oversize),
        (frame(MacAddr::ZERO, mac(1)), DropReason::BadSource),
        (frame(MacAddr::BROADCAST, mac(1)), DropReason::BadSource),
    ];
    for (bytes, reason) in cases {
        assert_eq!(switch.decide(port(0), &bytes, 0), Decision::Drop(reason));
        assert!(switch.counters(port(0)).dropped(reason) > 0);
    }
    assert_eq!(switch.counters(port(0)).dropped_in_all(), 4);
    assert_eq!(switch.decide(port(9), &frame(mac(1), mac(2)), 0), Decision::Drop(DropReason::NotAttached));
    assert_eq!(switch.stations(0).count(), 0, "and nobody is learned from them");
}

#[test]
fn a_guest_sends_from_its_own_address_only() {
    let mut switch = open_switch(1);
    let (uplink, guest, other) = (port(0), port(1), port(2));
    for (at, own) in [(guest, mac(10)), (other, mac(11))] {
        switch.attach_at(at, SourceRule::BoundOnly).unwrap();
        switch.bind(at, own).unwrap();
    }
    assert_eq!(switch.decide(guest, &frame(mac(10), mac(11)), 0), Decision::Forward(set(&[2])));
    for stolen in [mac(11), mac(99)] {
        let spoofed = frame(stolen, MacAddr::BROADCAST);
        assert_eq!(switch.decide(guest, &spoofed, 0), Decision::Drop(DropReason::SpoofedSource));
    }
    // Not from the open port either: the guest's address stays the guest's.
    let stolen = frame(mac(10), MacAddr::BROADCAST);
    assert_eq!(switch.decide(uplink, &stolen, 0), Decision::Drop(DropReason::SpoofedSource));
    assert_eq!(switch.decide(other, &frame(mac(11), mac(10)), u64::MAX), Decision::Forward(set(&[1])));
}

#[test]
fn binding_takes_the_address_from_who_had_it_and_ends_with_the_port() {
    let mut switch = open_switch(2);
    let _ = switch.decide(port(0), &frame(mac(5), MacAddr::BROADCAST), 0);
    switch.attach_at(port(2), SourceRule::BoundOnly).unwrap();
    switch.bind(port(2), mac(5)).unwrap();
    assert_eq!(switch.decide(port(1), &frame(mac(6), mac(5)), 1), Decision::Forward(set(&[2])));
    assert_eq!(switch.bind(port(1), mac(5)), Err(BindError::BoundTo(port(2))));
    assert_eq!(switch.bind(port(2), mac(5)), Err(BindError::BoundTo(port(2))));
    assert_eq!(switch.bind(port(1), MacAddr::BROADCAST), Err(BindError::NotAStation(MacAddr::BROADCAST)));
    assert_eq!(switch.bind(port(9), mac(7)), Err(BindError::NotAttached(port(9))));
    switch.detach(port(2));
    assert_eq!(switch.bind(port(1), mac(5)), Ok(()));
}

#[test]
fn ports_are_attached_once_and_not_without_end() {
    let mut switch = Switch::new(Settings::new(0));
    for n in 0..MOST_PORTS {
        assert_eq!(switch.attach(SourceRule::Any), Ok(port(n)));
    }
    assert_eq!(switch.attach(SourceRule::Any), Err(AttachError::Full));
    assert_eq!(switch.attach_at(port(3), SourceRule::Any), Err(AttachError::InUse(port(3))));
    switch.detach(port(3));
    assert_eq!(switch.attach(SourceRule::Any), Ok(port(3)));
    assert_eq!(PortId::new(MOST_PORTS), None);
}

#[test]
fn a_silent_station_is_forgotten_and_a_moved_one_is_followed() {
    let mut switch = open_switch(3);
    let _ = switch.decide(port(0), &frame(mac(1), MacAddr::BROADCAST), 0);
    let ask = |switch: &mut Switch, at_ns| switch.decide(port(2), &frame(mac(9), mac(1)), at_ns);
    assert_eq!(ask(&mut switch, 300 * SECOND_NS), Decision::Forward(set(&[0])));
    assert_eq!(ask(&mut switch, 300 * SECOND_NS + 1), Decision::Forward(set(&[0, 1])));
    let _ = switch.decide(port(0), &frame(mac(1), MacAddr::BROADCAST), 301 * SECOND_NS);
    let _ = switch.decide(port(1), &frame(mac(1), MacAddr::BROADCAST), 302 * SECOND_NS);
    assert_eq!(ask(&mut switch, 302 * SECOND_NS), Decision::Forward(set(&[1])));
    assert_eq!((switch.counters(port(0)).learned, switch.counters(port(1)).moved_here), (2, 1));
}

#[test]
fn floods_have_a_rate_and_known_stations_do_not_pay_for_it() {
    let storm = Some(StormLimit { frames_per_second: 100, burst_frames: 5 });
    let mut switch = Switch::new(Settings { storm, ..Settings::new(1) });
    for _ in 0..2 {
        switch.attach(SourceRule::Any).unwrap();
    }
    let _ = switch.decide(port(1), &frame(mac(2), MacAddr::BROADCAST), 0);
    let mut flood = |at_ns| switch.decide(port(0), &frame(mac(1), MacAddr::BROADCAST), at_ns);
    assert!((0..5).all(|_| flood(0) == Decision::Forward(set(&[1]))));
    assert_eq!(flood(0), Decision::Drop(DropReason::Storm));
    assert_eq!(flood(SECOND_NS / 100), Decision::Forward(set(&[1])));
    assert_eq!(switch.decide(port(0), &frame(mac(1), mac(2)), 0), Decision::Forward(set(&[1])));
    assert_eq!(switch.counters(port(0)).dropped(DropReason::Storm), 1);
}

#[test]
fn a_port_that_invents_addresses_pushes_out_its_own() {
    let settings = Settings { stations: 64, stations_per_port: 16, storm: None, ..Settings::new(7) };
    let mut switch = Switch::new(settings);
    for _ in 0..3 {
        switch.attach(SourceRule::Any).unwrap();
    }
    switch.bind(port(2), mac(200)).unwrap();
    for n in 0..4096u16 {
        let [high, low] = n.to_be_bytes();
        let invented = MacAddr([0x06, 0, 0, 0, high, low]);
        let _ = switch.decide(port(0), &frame(invented, MacAddr::BROADCAST), u64::from(n));
        let here = switch.stations(u64::from(n)).filter(|station| station.port == port(0)).count();
        assert!(here <= 16);
    }
    assert!(switch.counters(port(0)).not_learned > 0);
    // A neighbour is still learned as long as its set is not full of bound addresses.
    let _ = switch.decide(port(1), &frame(mac(50), MacAddr::BROADCAST), 70_000);
    assert_eq!(switch.decide(port(0), &frame(mac(51), mac(50)), 70_001), Decision::Forward(set(&[1])));
    assert_eq!(switch.decide(port(0), &frame(mac(51), mac(200)), 70_001), Decision::Forward(set(&[2])));
}

#[test]
fn bound_addresses_are_never_pushed_out_and_run_out_by_name() {
    let mut switch = Switch::new(Settings { stations: 8, ..Settings::new(3) });
    switch.attach(SourceRule::BoundOnly).unwrap();
    let mut bound = Vec::new();
    let refused = (0..=255).find(|&n| match switch.bind(port(0), mac(n)) {
        Ok(()) => {
            bound.push(mac(n));
            false
        }
        Err(error) => {
            assert_eq!(error, BindError::TableFull);
            true
        }
    });
    assert!(refused.is_some() && bound.len() <= switch.station_capacity());
    switch.attach(SourceRule::Any).unwrap();
    for own in bound {
        assert_eq!(switch.decide(port(1), &frame(mac(254), own), 0), Decision::Forward(set(&[0])));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Frame { ingress: u8, source: u8, destination: u8 },
    Bind { port: u8, station: u8 },
    Detach(u8),
    Attach { port: u8, bound_only: bool },
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0u8..6, 0u8..12, 0u8..13)
            .prop_map(|(ingress, source, destination)| Step::Frame { ingress, source, destination }),
        1 => (0u8..6, 0u8..12).prop_map(|(port, station)| Step::Bind { port, station }),
        1 => (0u8..6).prop_map(Step::Detach),
        2 => (0u8..6, any::<bool>()).prop_map(|(port, bound_only)| Step::Attach { port, bound_only }),
        1 => (0u64..200).prop_map(|seconds| Step::Pass(seconds * SECOND_NS)),
    ]
}

/// What the switch should know, in a map.
#[derive(Default)]
struct Model {
    attached: HashMap<u8, bool>,
    bound: HashMap<u8, u8>,
    learned: HashMap<u8, (u8, u64)>,
}

impl Model {
    fn decide(&mut self, ingress: u8, source: u8, destination: u8, now_ns: u64) -> Decision {
        let Some(&bound_only) = self.attached.get(&ingress) else {
            return Decision::Drop(DropReason::NotAttached);
        };
        match self.bound.get(&source) {
            Some(&owner) if owner == ingress => {}
            None if !bound_only => {
                self.learned.insert(source, (ingress, now_ns));
            }
            _ => return Decision::Drop(DropReason::SpoofedSource),
        }
        let learned = self.learned.get(&destination).filter(|(_, seen)| now_ns - seen <= 300 * SECOND_NS);
        let to = self.bound.get(&destination).copied().or(learned.map(|&(port, _)| port));
        let ports = match to {
            Some(to) => vec![to],
            None => self.attached.keys().copied().collect(),
        };
        let ports: Vec<u8> = ports.into_iter().filter(|&to| to != ingress).collect();
        if ports.is_empty() {
            return Decision::Drop(DropReason::NobodyElse);
        }
        Decision::Forward(set(&ports))
    }
}

fn station(n: u8) -> MacAddr {
    if n == 12 { MacAddr::BROADCAST } else { mac(n + 1) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// With a table that does not run out, the switch is the model.
    #[test]
    fn it_is_its_model(key in any::<u64>(), steps in proptest::collection::vec(step(), 1..200)) {
        let mut switch = Switch::new(Settings { storm: None, ..Settings::new(key) });
        let mut model = Model::default();
        let mut now_ns = 0;
        for step in steps {
            match step {
                Step::Frame { ingress, source, destination } => {
                    let bytes = frame(station(source), station(destination));
                    let decision = switch.decide(port(ingress), &bytes, now_ns);
                    prop_assert_eq!(decision, model.decide(ingress, source, destination, now_ns));
                }
                Step::Bind { port: at, station: n } => {
                    let possible = model.attached.contains_key(&at) && !model.bound.contains_key(&n);
                    prop_assert_eq!(switch.bind(port(at), station(n)).is_ok(), possible);
                    if possible {
                        model.learned.remove(&n);
                        model.bound.insert(n, at);
                    }
                }
                Step::Detach(at) => {
                    switch.detach(port(at));
                    model.attached.remove(&at);
                    model.bound.retain(|_, owner| *owner != at);
                    model.learned.retain(|_, (owner, _)| *owner != at);
                }
                Step::Attach { port: at, bound_only } => {
                    let rule = if bound_only { SourceRule::BoundOnly } else { SourceRule::Any };
                    let free = !model.attached.contains_key(&at);
                    prop_assert_eq!(switch.attach_at(port(at), rule).is_ok(), free);
                    if free {
                        model.attached.insert(at, bound_only);
                    }
                }
                Step::Pass(time_ns) => now_ns += time_ns,
            }
        }
    }

    /// Whatever the bytes and the settings: no panic, never the ingress, only attached ports, and
    /// the counters add up.
    #[test]
    fn any_bytes_get_a_decision(
        stations in 0usize..40,
        stations_per_port in 0u16..8,
        key in any::<u64>(),
        frames in proptest::collection::vec(
            (0u8..64, proptest::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..40), any::<u64>()),
            0..200,
        ),
    ) {
        let settings = Settings { stations, stations_per_port, ..Settings::new(key) };
        let mut switch = Switch::new(settings);
        for n in 0..5 {
            let rule = if n % 2 == 0 { SourceRule::Any } else { SourceRule::BoundOnly };
            switch.attach_at(port(n), rule).unwrap();
        }
        for (ingress, bytes, now_ns) in frames {
            if let Decision::Forward(ports) = switch.decide(port(ingress), &bytes, now_ns) {
                prop_assert!(!ports.is_empty() && !ports.contains(port(ingress)));
                prop_assert_eq!(ports | switch.attached(), switch.attached());
            }
            prop_assert!(switch.stations(now_ns).count() <= switch.station_capacity());
        }
        for at in switch.attached() {
            let c = switch.counters(at);
            let went = c.forwarded + c.flooded_group + c.flooded_unknown;
            prop_assert_eq!(c.frames_in, went + c.dropped_in_all());
        }
    }
}
