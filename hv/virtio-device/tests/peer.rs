//! The device against the node's own virtio driver.
//!
//! Two readings of one specification by two hands: where they understand a ring differently, one
//! of them is wrong, and this test says so before a Linux guest does.

use std::collections::VecDeque;

use proptest::prelude::*;
use virtio_device::fake::VecRam;
use virtio_device::fake::driver::{VecSink, VecSource};
use virtio_device::net::{NetConfig, NetFunction};
use virtio_device::{Features, GuestRam, Region};
use virtio_driver::{Access, Packet, PacketQueue, QueueLayout, QueueSize, RingMemory};

/// A queue's memory, somewhere in the guest's.
struct Window<'a> {
    ram: &'a VecRam,
    base: u64,
}

impl Window<'_> {
    fn at(&self, offset: usize) -> virtio_device::GuestPhysAddr {
        (self.base + offset as u64).into()
    }
}

impl RingMemory for Window<'_> {
    fn read_u32(&self, offset: usize) -> u32 {
        self.ram.read_u32(self.at(offset)).unwrap()
    }
    fn write_u16(&self, offset: usize, value: u16) {
        self.ram.write_u16(self.at(offset), value).unwrap();
    }
    fn write_u32(&self, offset: usize, value: u32) {
        self.ram.write_u32(self.at(offset), value).unwrap();
    }
    fn write_u64(&self, offset: usize, value: u64) {
        self.ram.write_u64(self.at(offset), value).unwrap();
    }
    fn load_acquire_u16(&self, offset: usize) -> u16 {
        self.ram.load_acquire_u16(self.at(offset)).unwrap()
    }
    fn store_release_u16(&self, offset: usize, value: u16) {
        self.ram.store_release_u16(self.at(offset), value).unwrap();
    }
    fn device_address(&self, offset: usize) -> u64 {
        self.at(offset).as_u64()
    }
}

const QUEUE_BASE: [u64; 2] = [0x1000, 0x3000];
const BUFFERS: u64 = 0x8000;
const BUFFER_BYTES: u64 = 2048;
const ENTRIES: u16 = 16;

/// The registers, as the node's driver writes them.
fn bring_up(function: &mut NetFunction, ram: &VecRam, features: u64, layout: &QueueLayout) {
    let mut write = |offset, size, value| {
        let _ = function.write(ram, Region::Common, offset, size, value);
    };
    write(0x14, 1, 0);
    write(0x14, 1, 3);
    for select in 0..2 {
        write(0x08, 4, select);
        write(0x0c, 4, features >> (32 * select) & 0xffff_ffff);
    }
    write(0x14, 1, 11);
    for (queue, base) in (0..).zip(QUEUE_BASE) {
        write(0x16, 2, queue);
        write(0x18, 2, u64::from(ENTRIES));
        for (at, part) in [(0x20, layout.descriptors()), (0x28, layout.available()), (0x30, layout.used())] {
            write(at, 4, base + part as u64);
            write(at + 4, 4, 0);
        }
        write(0x1c, 2, 1);
    }
    write(0x14, 1, 15);
    assert!(function.is_live(), "{:?}", function.fault());
}

#[derive(Clone, Debug)]
enum Step {
    Send(Vec<u8>),
    Arrive(Vec<u8>),
    Reap,
    /// The driver sleeps until it is interrupted, if it may.
    Sleep,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let frame = || proptest::collection::vec(any::<u8>(), 14..200);
    prop_oneof![
        4 => frame().prop_map(Step::Send),
        4 => frame().prop_map(Step::Arrive),
        2 => Just(Step::Reap),
        2 => Just(Step::Sleep),
        2 => (0u64..150_000).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// The device acts on notifications and due times alone, and the driver on interrupts alone:
    /// everything still arrives, in order.
    #[test]
    fn the_nodes_driver_and_the_nodes_device_agree(
        event_index in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let ram = VecRam::new(0x3_0000);
        let layout = QueueLayout::new(QueueSize::largest(ENTRIES, ENTRIES).unwrap());
        let [window_rx, window_tx] = QUEUE_BASE.map(|base| Window { ram: &ram, base });
        let mut receive: PacketQueue<_, u64> = PacketQueue::new(window_rx, layout, Access::DeviceWrites, event_index);
        let mut transmit: PacketQueue<_, u64> = PacketQueue::new(window_tx, layout, Access::DeviceReads, event_index);
        let mut function = NetFunction::net(NetConfig::new([2, 0, 0, 0, 0, 1]), 0);
        let mut features = Features::VERSION_1.bits();
        if event_index {
            features |= Features::EVENT_IDX.bits();
        }
        bring_up(&mut function, &ram, features, &layout);

        let slots = u64::from(receive.slot_count());
        let mut spare_receive: VecDeque<u64> = (0..slots).map(|n| BUFFERS + n * BUFFER_BYTES).collect();
        let mut spare_transmit: VecDeque<u64> =
            (slots..2 * slots).map(|n| BUFFERS + n * BUFFER_BYTES).collect();
        let (mut sink, mut source) = (VecSink::default(), VecSource::default());
        let (mut sent, mut arrived, mut taken) = (Vec::new(), Vec::new(), Vec::new());
        let mut now_ns = 1_000_000;
        let mut starved = true;

        // A driver posts its buffers before it first sleeps.
        let begin = [Step::Reap];
        let finish = [Step::Sleep, Step::Pass(200_000)].into_iter().cycle().take(200);
        for step in begin.into_iter().chain(steps).chain(finish) {
            let mut reap = false;
            match step {
                Step::Send(frame) => {
                    while let Some(used) = transmit.take_used().unwrap() {
                        spare_transmit.push_back(used.token);
                    }
                    if let Some(address) = spare_transmit.pop_front() {
                        ram.write(address.into(), &frame).unwrap();
                        let bytes = frame.len() as u32;
                        let mut packet =
                            Some(Packet { device_address: address, bytes, segmentation: None, token: address });
                        let submitted = transmit.submit(|| packet.take());
                        prop_assert_eq!(submitted.packets, 1);
                        sent.push(frame);
                        if submitted.notify {
                            while function.transmit(&ram, &mut sink).more {}
                        }
                    }
                }
                Step::Arrive(frame) => {
                    arrived.push(frame.clone());
                    source.0.push_back(frame);
                    if !starved {
                        starved = function.receive(&ram, &mut source, now_ns).starved;
                    }
                }
                Step::Reap => reap = true,
                Step::Sleep => {
                    reap = receive.arm_interrupt(1) || function.interrupt_line();
                    function.read(Region::Isr, 0, 1);
                }
                Step::Pass(time_ns) => {
                    now_ns += time_ns;
                    if function.due_ns().is_some_and(|due_ns| due_ns <= now_ns) {
                        starved = function.receive(&ram, &mut source, now_ns).starved;
                    }
                }
            }
            if reap {
                receive.disarm_interrupt();
                while let Some(used) = receive.take_used().unwrap() {
                    let mut frame = vec![0; used.written.expect("a whole header") as usize];
                    ram.read(used.token.into(), &mut frame).unwrap();
                    taken.push(frame);
                    spare_receive.push_back(used.token);
                }
                let refilled = receive.submit(|| {
                    let token = spare_receive.pop_front()?;
                    Some(Packet { device_address: token, bytes: BUFFER_BYTES as u32, segmentation: None, token })
                });
                if refilled.notify {
                    loop {
                        let received = function.receive(&ram, &mut source, now_ns);
                        starved = received.starved;
                        if !received.more {
                            break;
                        }
                    }
                }
            }
            prop_assert!(function.is_live(), "{:?}", function.fault());
            prop_assert!(receive.fault().is_none() && transmit.fault().is_none());
        }
        prop_assert_eq!(sent, sink.frames);
        prop_assert_eq!(arrived, taken);
    }
}
