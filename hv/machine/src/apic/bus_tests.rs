use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::AtomicU64;

use super::*;

/// Remembers who was rung.
#[derive(Clone, Default)]
struct Rings(Arc<AtomicU64>);

impl Doorbell for Rings {
    fn ring(&self, cpu: usize) {
        self.0.fetch_or(1 << cpu, Ordering::Relaxed);
    }
}

fn bus(cpus: usize) -> (ApicBus, Rings) {
    let rings = Rings::default();
    let bus = ApicBus::new(cpus, Box::new(rings.clone()));
    for cpu in 0..cpus {
        let id = cpu as u32;
        let address =
            Address { id, logical: 1 << (24 + cpu % 8), cluster_model: false, x2apic: false, enabled: true };
        bus.mailbox(cpu).unwrap().publish(address);
    }
    (bus, rings)
}

fn fixed(destination: Destination) -> Message {
    Message { destination, mode: DeliveryMode::Fixed, vector: 0x41, level_triggered: false }
}

/// Which CPUs got the vector.
fn receivers(bus: &ApicBus) -> Vec<usize> {
    let got =
        |&cpu: &usize| bus.mailbox(cpu).unwrap().collect().is_some_and(|mail| mail.requests[1] & 2 != 0);
    (0..bus.cpus()).filter(got).collect()
}

#[test]
fn destinations_reach_whom_they_name() {
    let (bus, _) = bus(4);
    for (destination, expected) in [
        (Destination::Physical(2), vec![2]),
        (Destination::Physical(9), vec![]),
        (Destination::All, vec![0, 1, 2, 3]),
        (Destination::AllBut(1), vec![0, 2, 3]),
        (Destination::Index(3), vec![3]),
        (Destination::Index(usize::MAX), vec![]),
        (Destination::Logical(0b0101), vec![0, 2]),
    ] {
        assert_eq!(bus.send(fixed(destination), None), !expected.is_empty());
        assert_eq!(receivers(&bus), expected, "{destination:?}");
    }
}

#[test]
fn clusters_match_in_both_modes() {
    let (bus, _) = bus(2);
    let mut address =
        Address { id: 0, logical: 0x1200_0000, cluster_model: true, x2apic: false, enabled: true };
    bus.mailbox(0).unwrap().publish(address);
    for (destination, taken) in [(0x12, true), (0x13, true), (0x22, false), (0xf2, true), (0x11, false)] {
        bus.send(fixed(Destination::Logical(destination)), None);
        assert_eq!(receivers(&bus).contains(&0), taken, "{destination:#x}");
    }
    address = Address { id: 0, logical: 0x0001_0004, cluster_model: false, x2apic: true, enabled: true };
    bus.mailbox(0).unwrap().publish(address);
    for (destination, taken) in [(0x1_0004, true), (0x1_000c, true), (0x2_0004, false), (0x1_0003, false)] {
        bus.send(fixed(Destination::Logical(destination)), None);
        assert_eq!(receivers(&bus).contains(&0), taken, "{destination:#x}");
    }
}

#[test]
fn the_lowest_priority_message_goes_to_one_after_the_other() {
    let (bus, _) = bus(3);
    let message = Message { mode: DeliveryMode::LowestPriority, ..fixed(Destination::All) };
    let mut seen = Vec::new();
    for _ in 0..6 {
        bus.send(message, None);
        let got = receivers(&bus);
        assert_eq!(got.len(), 1);
        seen.push(got[0]);
    }
    assert_eq!(seen, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_disabled_apic_takes_events_but_no_vectors() {
    let (bus, _) = bus(1);
    let mailbox = bus.mailbox(0).unwrap();
    mailbox.publish(Address { enabled: false, ..mailbox.address() });
    assert!(!bus.send(fixed(Destination::All), None));
    assert_eq!(mailbox.collect(), None);
    let init = Message { mode: DeliveryMode::Init, ..fixed(Destination::All) };
    assert!(bus.send(init, None));
    let start = Message { mode: DeliveryMode::StartUp, vector: 0x9a, ..fixed(Destination::All) };
    assert!(bus.send(start, None));
    let nmi = Message { mode: DeliveryMode::Nmi, ..fixed(Destination::All) };
    assert!(bus.send(nmi, None));
    let mail = mailbox.collect().unwrap();
    assert_eq!((mail.init, mail.start_up, mail.nmi), (true, Some(0x9a), true));
    assert_eq!(mailbox.collect(), None, "taken once");
}

#[test]
fn everybody_is_rung_but_the_sender() {
    let (bus, rings) = bus(4);
    bus.send(fixed(Destination::All), Some(2));
    assert_eq!(rings.0.swap(0, Ordering::Relaxed), 0b1011);
    bus.send(fixed(Destination::Index(2)), Some(2));
    assert_eq!(rings.0.swap(0, Ordering::Relaxed), 0);
    bus.set_external_interrupt(true, Some(1));
    assert_eq!(rings.0.swap(0, Ordering::Relaxed), 1);
    bus.set_external_interrupt(true, Some(1));
    assert_eq!(rings.0.swap(0, Ordering::Relaxed), 0, "nothing changed");
    bus.set_external_interrupt(false, None);
    assert_eq!(rings.0.load(Ordering::Relaxed), 0, "a withdrawal wakes nobody");
    assert!(!bus.mailbox(0).unwrap().external_interrupt());
}

#[test]
fn the_last_trigger_mode_of_a_vector_counts() {
    let (bus, _) = bus(1);
    bus.send(Message { level_triggered: true, ..fixed(Destination::All) }, None);
    let mail = bus.mailbox(0).unwrap().collect().unwrap();
    assert_eq!((mail.requests[1], mail.levels[1] & 2), (2, 2));
    bus.send(fixed(Destination::All), None);
    let mail = bus.mailbox(0).unwrap().collect().unwrap();
    assert_eq!((mail.requests[1], mail.levels[1] & 2), (2, 0));
}

/// Posts from several threads while the owner collects: nothing may be lost.
#[test]
fn nothing_is_lost_between_post_and_collect() {
    extern crate std;
    let (bus, _) = bus(1);
    let bus = Arc::new(bus);
    const EACH: usize = 20_000;
    let senders: Vec<_> = (0..3u8)
        .map(|sender| {
            let bus = bus.clone();
            std::thread::spawn(move || {
                for _ in 0..EACH {
                    let message = Message { vector: 0x40 + sender, ..fixed(Destination::All) };
                    bus.send(message, None);
                    // Wait until the owner has taken it, so that each post must be seen.
                    let word = || bus.mailbox(0).unwrap().requests[1].load(Ordering::Relaxed);
                    while word() & 1 << sender != 0 {
                        std::thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut seen = [0usize; 3];
    while seen.iter().sum::<usize>() < 3 * EACH {
        if let Some(mail) = bus.mailbox(0).unwrap().collect() {
            for (sender, count) in seen.iter_mut().enumerate() {
                *count += usize::from(mail.requests[1] & 1 << sender != 0);
            }
        } else {
            std::thread::yield_now();
        }
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
    assert_eq!(seen, [EACH; 3]);
}
