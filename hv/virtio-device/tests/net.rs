//! The network device against a driver that keeps the rules.

use std::collections::VecDeque;

use proptest::prelude::*;
use virtio_device::fake::VecRam;
use virtio_device::fake::driver::{Buffer, NetDriver, VecSink, VecSource};
use virtio_device::net::{HEADER_BYTES, NetConfig, NetFunction, RECEIVE_QUEUE, TRANSMIT_QUEUE};
use virtio_device::{Event, Features, GuestRam, Region, Status};

const SIZE: u16 = 16;
const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];
const BASE: Features = Features::VERSION_1;

fn modes() -> [Features; 4] {
    [
        BASE,
        BASE | Features::EVENT_IDX,
        BASE | Features::INDIRECT_DESC,
        BASE | Features::EVENT_IDX | Features::INDIRECT_DESC,
    ]
}

fn node(features: Features) -> (NetFunction, VecRam, NetDriver) {
    let ram = VecRam::new(NetDriver::ram_bytes(SIZE));
    let mut function = NetFunction::net(NetConfig::new(MAC), 0);
    let driver = NetDriver::new(&mut function, &ram, SIZE, features);
    (function, ram, driver)
}

fn frame(bytes: usize, fill: u8) -> Vec<u8> {
    let mut frame = vec![fill; bytes];
    if let Some(kind) = frame.get_mut(12..14) {
        kind.copy_from_slice(&[0x08, 0x00]);
    }
    frame
}

fn source(frames: impl IntoIterator<Item = Vec<u8>>) -> VecSource {
    VecSource(frames.into_iter().collect())
}

/// Reads the ISR and tells what it said.
fn isr(function: &mut NetFunction) -> u64 {
    let value = function.read(Region::Isr, 0, 1);
    assert!(!function.interrupt_line(), "reading the ISR lowers the line");
    value
}

#[test]
fn configuration_says_what_the_card_is() {
    let (mut function, _, _) = node(BASE);
    let mac: Vec<u8> = (0..6).map(|at| function.read(Region::Device, at, 1) as u8).collect();
    assert_eq!(mac, MAC);
    assert_eq!(function.read(Region::Device, 6, 2), 1, "link up");
    assert_eq!(function.read(Region::Device, 8, 2), 1, "one pair of queues");
    assert_eq!(function.read(Region::Device, 10, 2), 1500, "MTU");
    assert_eq!(function.read(Region::Device, 12, 4), 0);
    let odd = function.register_counters().odd_reads;
    assert_eq!(function.read(Region::Device, 0, 3), 0);
    assert_eq!(function.register_counters().odd_reads, odd + 1);
}

#[test]
fn the_link_goes_down_with_an_interrupt_and_a_new_generation() {
    let (mut function, _, _) = node(BASE);
    let generation = function.read(Region::Common, 0x15, 1);
    function.set_link(false);
    assert!(function.interrupt_line());
    assert_eq!(isr(&mut function), 2);
    assert_eq!(function.read(Region::Device, 6, 2), 0);
    assert_ne!(function.read(Region::Common, 0x15, 1), generation);
    function.set_link(false);
    assert!(!function.interrupt_line(), "no change, no interrupt");
}

#[test]
fn a_frame_is_sent_with_one_notification_and_completed_with_one_interrupt() {
    for features in modes() {
        let (mut function, ram, mut driver) = node(features);
        let mut sink = VecSink::default();
        assert!(driver.send(&ram, &frame(60, 7)));
        assert!(driver.transmit.must_notify(&ram, 1));
        let event = NetDriver::notify(&mut function, &ram, TRANSMIT_QUEUE);
        assert_eq!(event, Event::Notified { queue: TRANSMIT_QUEUE });
        let sent = function.transmit(&ram, &mut sink);
        assert_eq!((sent.chains, sent.more), (1, false));
        assert_eq!(sink.frames, [frame(60, 7)]);
        assert!(function.interrupt_line());
        assert_eq!(isr(&mut function), 1);
        assert!(driver.transmit.take_used(&ram).is_some());
        assert_eq!(function.counters().transmitted_bytes, 60);
    }
}

#[test]
fn a_driver_that_refuses_interrupts_gets_none() {
    for features in modes() {
        let (mut function, ram, mut driver) = node(features);
        driver.transmit.refuse_interrupts(&ram);
        assert!(driver.send(&ram, &frame(60, 7)));
        assert_eq!(function.transmit(&ram, &mut VecSink::default()).chains, 1);
        assert!(!function.interrupt_line());
        assert!(driver.transmit.ask_for_interrupt(&ram), "it sees the used chain by itself");
    }
}

#[test]
fn sends_that_cannot_be_frames_are_dropped_and_counted() {
    let (mut function, ram, mut driver) = node(BASE);
    let mut sink = VecSink::default();
    for bytes in [1, 13, 14, 1514, 1515, 1518] {
        assert!(driver.send(&ram, &frame(bytes, 0)));
    }
    let mut tagged = frame(1518, 0);
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    assert!(driver.send(&ram, &tagged));
    assert_eq!(function.transmit(&ram, &mut sink).chains, 7);
    let lengths: Vec<usize> = sink.frames.iter().map(Vec::len).collect();
    assert_eq!(lengths, [14, 1514, 1518]);
    let counters = function.counters();
    assert_eq!((counters.transmit_undersize, counters.transmit_oversize), (2, 2));

    // A header alone, and a header cut short.
    for bytes in [1, HEADER_BYTES as u32] {
        let buffer = Buffer { address: 0x4000.into(), bytes, writable: false };
        driver.transmit.offer(&ram, &[buffer]).unwrap();
    }
    assert_eq!(function.transmit(&ram, &mut sink).chains, 2);
    assert_eq!(function.counters().transmit_undersize, 4);

    sink.exhausted = true;
    assert!(driver.send(&ram, &frame(60, 0)));
    assert_eq!(function.transmit(&ram, &mut sink).chains, 1);
    assert_eq!(function.counters().transmit_no_memory, 1);
    assert!(function.is_live());
}

#[test]
fn an_offload_that_was_not_negotiated_is_dropped() {
    let (mut function, ram, mut driver) = node(BASE);
    let at = NetDriver::ram_bytes(SIZE) as u64 - 2048;
    ram.write(at.into(), &[0; 72]).unwrap();
    for (flags, gso_type) in [(1, 0), (0, 1)] {
        ram.write(at.into(), &[flags, gso_type]).unwrap();
        let buffer = Buffer { address: at.into(), bytes: 72, writable: false };
        driver.transmit.offer(&ram, &[buffer]).unwrap();
        assert_eq!(function.transmit(&ram, &mut VecSink::default()).chains, 1);
    }
    assert_eq!(function.counters().transmit_offload, 2);
}

#[test]
fn a_call_does_a_queue_of_work_and_says_that_there_is_more() {
    /// The guest's other CPU: makes one more chain available for each that the device takes.
    struct Refilling<'a> {
        ram: &'a VecRam,
        index_at: u64,
        inner: VecSink,
    }
    impl virtio_device::net::FrameSink for Refilling<'_> {
        fn reserve(&mut self, bytes: usize) -> Option<&mut [u8]> {
            self.inner.reserve(bytes)
        }
        fn commit(&mut self) {
            self.inner.commit();
            let index = self.ram.read_u16(self.index_at.into()).unwrap();
            self.ram.write_u16(self.index_at.into(), index.wrapping_add(1)).unwrap();
        }
    }
    for features in modes() {
        let (mut function, ram, mut driver) = node(features);
        let buffer = Buffer { address: 0x4000.into(), bytes: 72, writable: false };
        driver.transmit.offer(&ram, &[buffer]).unwrap(); // every ring entry means this chain
        ram.write(0x4000.into(), &[0; 72]).unwrap();
        let index_at = driver.transmit.setup().available_ring.as_u64() + 2;
        let mut sink = Refilling { ram: &ram, index_at, inner: VecSink::default() };
        for _ in 0..3 {
            let sent = function.transmit(&ram, &mut sink);
            assert_eq!((sent.chains, sent.more), (SIZE, true));
        }
    }
}

#[test]
fn receive_is_at_once_but_its_interrupts_keep_the_window() {
    for features in modes() {
        let (mut function, ram, mut driver) = node(features);
        let start = 1_000_000;
        let outcome = function.receive(&ram, &mut source([frame(60, 1)]), start);
        assert_eq!((outcome.frames, outcome.starved, outcome.more), (1, false, false));
        assert!(outcome.window_moved);
        assert_eq!(isr(&mut function), 1, "the first interrupt is not delayed");
        assert_eq!(driver.take_received(&ram), [frame(60, 1)]);
        assert!(!driver.receive.ask_for_interrupt(&ram));

        let _ = function.receive(&ram, &mut source([frame(61, 2)]), start + 10_000);
        let _ = function.receive(&ram, &mut source([frame(62, 3)]), start + 20_000);
        assert!(!function.interrupt_line(), "the window is open");
        assert_eq!(function.due_ns(), Some(start + 100_000));
        assert_eq!(function.window_end_ns(), start + 100_000);

        let outcome = function.receive(&ram, &mut source([]), start + 100_000);
        assert_eq!(outcome.frames, 0);
        assert_eq!(isr(&mut function), 1, "one interrupt takes all");
        assert_eq!(driver.take_received(&ram), [frame(61, 2), frame(62, 3)]);
        assert_eq!(function.due_ns(), None);
        let counters = function.counters();
        assert_eq!((counters.receive_interrupts, counters.receive_interrupts_moderated), (2, 1));
    }
}

#[test]
fn a_driver_that_polled_the_frames_is_not_interrupted_for_them() {
    for features in modes() {
        let (mut function, ram, mut driver) = node(features);
        let _ = function.receive(&ram, &mut source([frame(60, 1)]), 1_000_000);
        assert_eq!(isr(&mut function), 1);
        driver.take_received(&ram);
        assert!(!driver.receive.ask_for_interrupt(&ram));
        let _ = function.receive(&ram, &mut source([frame(60, 2)]), 1_010_000);
        assert_eq!(driver.take_received(&ram).len(), 1);
        driver.receive.refuse_interrupts(&ram);
        let _ = function.receive(&ram, &mut source([]), 1_100_000);
        assert!(!function.interrupt_line());
        assert_eq!(function.due_ns(), None, "and nothing is owed");
    }
}

#[test]
fn the_interrupt_debt_ends_with_the_queue() {
    let (mut function, ram, mut driver) = node(BASE);
    let _ = function.receive(&ram, &mut source([frame(60, 1)]), 1_000_000);
    assert_eq!(isr(&mut function), 1);
    driver.take_received(&ram);
    let _ = function.receive(&ram, &mut source([frame(60, 2)]), 1_010_000);
    assert!(function.due_ns().is_some());
    let event = function.write(&ram, Region::Common, 0x14, 1, 0);
    assert_eq!(event, Event::Stopped);
    assert_eq!(function.due_ns(), None);
    let outcome = function.receive(&ram, &mut source([frame(60, 3)]), u64::MAX);
    assert_eq!(outcome.frames, 0);
    assert!(!function.interrupt_line());
}

#[test]
fn a_starved_queue_asks_for_a_notification_and_a_full_one_does_not() {
    for features in modes() {
        let (mut function, ram, mut driver) = node(features);
        let mut frames = source((0..20).map(|n| frame(60, n)));
        let outcome = function.receive(&ram, &mut frames, 1_000_000);
        assert_eq!((outcome.frames, outcome.starved), (SIZE, false));
        assert!(outcome.more);
        let outcome = function.receive(&ram, &mut frames, 1_000_000);
        assert_eq!((outcome.frames, outcome.starved, outcome.more), (0, true, false));
        assert_eq!(frames.0.len(), 4, "what has no buffer stays with the caller");
        assert_eq!(function.counters().receive_starved, 1);

        assert_eq!(driver.take_received(&ram).len(), usize::from(SIZE));
        assert!(driver.receive.must_notify(&ram, SIZE));
        let event = NetDriver::notify(&mut function, &ram, RECEIVE_QUEUE);
        assert_eq!(event, Event::Notified { queue: RECEIVE_QUEUE });
        let outcome = function.receive(&ram, &mut frames, 1_000_100);
        assert_eq!((outcome.frames, outcome.starved), (4, false));
        driver.take_received(&ram);
        assert!(!driver.receive.must_notify(&ram, 4), "buffers in time need no exit");
    }
}

#[test]
fn frames_that_cannot_be_received_are_dropped_and_counted() {
    let (mut function, ram, mut driver) = node(BASE);
    let mut frames = source([frame(13, 0), frame(1515, 0), frame(1514, 0), vec![]]);
    let outcome = function.receive(&ram, &mut frames, 0);
    assert_eq!(outcome.frames, 4);
    assert_eq!(driver.take_received(&ram), [frame(1514, 0)]);
    let counters = function.counters();
    assert_eq!((counters.receive_undersize, counters.receive_oversize), (2, 1));
}

#[test]
fn a_receive_buffer_that_is_too_small_goes_back_empty() {
    let ram = VecRam::new(NetDriver::ram_bytes(SIZE));
    let mut function = NetFunction::net(NetConfig::new(MAC), 0);
    let mut driver = NetDriver::new(&mut function, &ram, SIZE, BASE);
    let _ = function.receive(&ram, &mut source((0..16).map(|n| frame(60, n))), 0);
    while driver.receive.take_used(&ram).is_some() {}
    let small = Buffer { address: 0x4000.into(), bytes: 71, writable: true };
    driver.receive.offer(&ram, &[small]).unwrap();
    let readable = Buffer { address: 0x4000.into(), bytes: 500, writable: false };
    driver.receive.offer(&ram, &[readable]).unwrap();
    let outcome = function.receive(&ram, &mut source([frame(60, 1), frame(60, 2)]), 0);
    assert_eq!(outcome.frames, 2);
    assert_eq!(function.counters().receive_small_buffer, 2);
    assert_eq!(driver.receive.take_used(&ram).unwrap().1, 0);
    assert_eq!(driver.receive.take_used(&ram).unwrap().1, 0);
    assert!(function.is_live());
}

#[test]
fn with_msix_each_queue_sends_its_own_message_and_the_line_stays_low() {
    let ram = VecRam::new(NetDriver::ram_bytes(SIZE));
    let mut function = NetFunction::net(NetConfig::new(MAC), 3);
    let mut driver = NetDriver::new(&mut function, &ram, SIZE, BASE);
    function.set_msix_enabled(true);
    let _ = function.write(&ram, Region::Common, 0x10, 2, 0);
    assert_eq!(function.read(Region::Common, 0x10, 2), 0);
    for (queue, vector) in [(RECEIVE_QUEUE, 1), (TRANSMIT_QUEUE, 2)] {
        let _ = function.write(&ram, Region::Common, 0x16, 2, u64::from(queue));
        let _ = function.write(&ram, Region::Common, 0x1a, 2, 3);
        assert_eq!(function.read(Region::Common, 0x1a, 2), 0xffff, "no such vector");
        let _ = function.write(&ram, Region::Common, 0x1a, 2, vector);
        assert_eq!(function.read(Region::Common, 0x1a, 2), vector);
    }
    assert!(driver.send(&ram, &frame(60, 1)));
    let _ = function.transmit(&ram, &mut VecSink::default());
    let _ = function.receive(&ram, &mut source([frame(60, 1)]), 0);
    function.set_link(false);
    assert!(!function.interrupt_line());
    assert_eq!([(); 4].map(|()| function.take_message()), [Some(0), Some(1), Some(2), None]);
    assert_eq!(function.read(Region::Isr, 0, 1), 2, "the configuration bit is set in any case");
}

#[test]
fn a_driver_that_gives_up_stops_the_device() {
    let (mut function, ram, mut driver) = node(BASE);
    let failed = u64::from(function.status().bits() | Status::FAILED.bits());
    assert_eq!(function.write(&ram, Region::Common, 0x14, 1, failed), Event::Stopped);
    assert!(driver.send(&ram, &frame(60, 1)));
    assert_eq!(NetDriver::notify(&mut function, &ram, TRANSMIT_QUEUE), Event::Nothing);
    assert_eq!(function.transmit(&ram, &mut VecSink::default()).chains, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize, u8),
    DeviceTransmits,
    Arrive(usize, u8),
    DeviceReceives,
    DriverReceives,
    Refuse,
    Ask,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (14usize..=1514, any::<u8>()).prop_map(|(bytes, fill)| Step::Send(bytes, fill)),
        2 => Just(Step::DeviceTransmits),
        4 => (14usize..=1514, any::<u8>()).prop_map(|(bytes, fill)| Step::Arrive(bytes, fill)),
        2 => Just(Step::DeviceReceives),
        2 => Just(Step::DriverReceives),
        1 => Just(Step::Refuse),
        1 => Just(Step::Ask),
        2 => (0u64..200_000).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever the interleaving, frames pass once, in order and unchanged, both ways.
    #[test]
    fn frames_pass_unchanged_in_order(
        mode in 0usize..4,
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let (mut function, ram, mut driver) = node(modes()[mode]);
        let mut now_ns = 1u64;
        let (mut sent, mut sink) = (Vec::new(), VecSink::default());
        let (mut arrived, mut waiting) = (VecDeque::new(), source([]));
        let mut taken = Vec::new();
        for step in steps.into_iter().chain([Step::DeviceTransmits]) {
            match step {
                Step::Send(bytes, fill) => {
                    if driver.send(&ram, &frame(bytes, fill)) {
                        sent.push(frame(bytes, fill));
                    }
                }
                Step::DeviceTransmits => while function.transmit(&ram, &mut sink).more {},
                Step::Arrive(bytes, fill) => {
                    arrived.push_back(frame(bytes, fill));
                    waiting.0.push_back(frame(bytes, fill));
                }
                Step::DeviceReceives => while function.receive(&ram, &mut waiting, now_ns).more {},
                Step::DriverReceives => taken.extend(driver.take_received(&ram)),
                Step::Refuse => driver.receive.refuse_interrupts(&ram),
                Step::Ask => { let _ = driver.receive.ask_for_interrupt(&ram); }
                Step::Pass(time_ns) => now_ns += time_ns,
            }
            prop_assert!(function.is_live(), "{:?}", function.fault());
        }
        prop_assert_eq!(sent, sink.frames);
        // Let everything that is under way arrive.
        loop {
            let outcome = function.receive(&ram, &mut waiting, now_ns);
            taken.extend(driver.take_received(&ram));
            if waiting.0.is_empty() && !outcome.more {
                break;
            }
        }
        prop_assert_eq!(Vec::from(arrived), taken);
        let counters = function.counters();
        prop_assert_eq!(counters.receive_small_buffer + counters.transmit_undersize, 0);
    }
}
