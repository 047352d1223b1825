//! Packets of several pieces, in indirect tables and in plain chains, against an honest device and
//! against one that lies.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use virtio_driver::fake::{FakeDevice, FakeMemory};
use virtio_driver::net::HEADER_BYTES;
use virtio_driver::*;

/// The most pieces of a packet here.
const SEGMENTS: u16 = 6;

/// A packet's number, and what it has behind its first piece.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Token {
    number: u32,
    behind: Vec<Segment>,
}

impl PacketMemory for Token {
    fn behind_count(&self) -> usize {
        self.behind.len()
    }

    fn each_behind(&self, each: impl FnMut(Segment)) {
        self.behind.iter().copied().for_each(each);
    }
}

fn pair(size: u16, access: Access, indirect: bool) -> (PacketQueue<FakeMemory, Token>, FakeDevice) {
    let size = QueueSize::largest(size, size).unwrap();
    let layout = QueueLayout::scattered(size, SEGMENTS, indirect);
    assert_eq!((layout.segments(), layout.is_indirect()), (SEGMENTS, indirect));
    let memory = FakeMemory::new(&layout);
    let device = FakeDevice::new(memory.clone(), layout, true);
    (PacketQueue::new(memory, layout, access, true), device)
}

/// A piece that no other packet has.
fn segment(number: u32, place: u32) -> Segment {
    Segment {
        device_address: 0x1000 * u64::from(16 * number + place),
        bytes: 100 * (place + 1) + number % 50,
    }
}

fn packet(number: u32, pieces: u16) -> Packet<Token> {
    let first = segment(number, 0);
    let behind = (1..u32::from(pieces)).map(|place| segment(number, place)).collect();
    Packet {
        device_address: first.device_address,
        bytes: first.bytes,
        segmentation: None,
        token: Token { number, behind },
    }
}

/// What the device must see of a packet's pieces.
fn expected(number: u32, pieces: u16) -> Vec<(u64, u32)> {
    (0..u32::from(pieces))
        .map(|place| segment(number, place))
        .map(|segment| (segment.device_address, segment.bytes))
        .collect()
}

fn total(number: u32, pieces: u16) -> u32 {
    expected(number, pieces).iter().map(|(_, bytes)| bytes).sum()
}

fn submit(
    queue: &mut PacketQueue<FakeMemory, Token>,
    packets: impl IntoIterator<Item = Packet<Token>>,
) -> u16 {
    let mut packets = packets.into_iter();
    queue.submit(|| packets.next()).packets
}

#[test]
fn the_device_is_told_every_piece_in_order() {
    for indirect in [false, true] {
        let (mut queue, mut device) = pair(16, Access::DeviceReads, indirect);
        for pieces in [3, 1, 6, 6, 1, 2] {
            assert_eq!(submit(&mut queue, [packet(7, pieces)]), 1);
            let (head, buffers) = device.take_available().unwrap();
            assert_eq!(buffers[0].bytes, HEADER_BYTES);
            let seen: Vec<_> = buffers[1..].iter().map(|buffer| (buffer.address, buffer.bytes)).collect();
            assert_eq!(seen, expected(7, pieces), "{pieces} pieces, indirect {indirect}");
            assert!(buffers.iter().all(|buffer| !buffer.device_writes));
            device.complete(head, 0);
            assert_eq!(queue.take_used().unwrap().unwrap().token, packet(7, pieces).token);
        }
    }
}

#[test]
fn the_room_is_that_of_all_pieces() {
    for indirect in [false, true] {
        for beyond in [0, 1] {
            let (mut queue, mut device) = pair(8, Access::DeviceWrites, indirect);
            assert_eq!(submit(&mut queue, [packet(1, 5)]), 1);
            let (head, buffers) = device.take_available().unwrap();
            assert!(buffers.iter().all(|buffer| buffer.device_writes));
            let room = HEADER_BYTES + total(1, 5);
            device.complete(head, room + beyond);
            match queue.take_used() {
                Ok(used) => assert_eq!((beyond, used.unwrap().written), (0, Some(total(1, 5)))),
                Err(fault) => {
                    assert_eq!(beyond, 1);
                    assert_eq!(fault, QueueFault::Overrun { written: room + 1, room });
                }
            }
        }
    }
}

#[test]
fn after_a_reset_a_slot_is_one_for_single_pieces_again() {
    for indirect in [false, true] {
        let (mut queue, _) = pair(8, Access::DeviceReads, indirect);
        assert!(submit(&mut queue, [packet(1, 4)]) == 1);
        let mut back = Vec::new();
        queue.reset(|token| back.push(token.number));
        assert_eq!(back, [1]);
        let mut device = FakeDevice::new(queue.memory().clone(), *queue.layout(), true);
        assert_eq!(submit(&mut queue, [packet(2, 1)]), 1);
        let (_, buffers) = device.take_available().unwrap();
        assert_eq!((buffers.len(), buffers[1].address), (2, segment(2, 0).device_address));
    }
}

#[test]
#[should_panic(expected = "a packet of 7 pieces in a queue for 6")]
fn a_packet_of_too_many_pieces_never_reaches_the_device() {
    let (mut queue, _) = pair(64, Access::DeviceReads, false);
    submit(&mut queue, [packet(1, SEGMENTS + 1)]);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A packet of so many pieces.
    Submit(u16),
    /// The device takes what there is and returns one, the newest or the oldest it holds.
    Return(bool),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![(1..=SEGMENTS).prop_map(Step::Submit), any::<bool>().prop_map(Step::Return), Just(Step::Take),]
}

proptest! {
    /// Packets of any shapes in any order: the device sees each as it was given, and each comes
    /// back once, with the length the device gave it.
    #[test]
    fn shapes_do_not_leak_into_each_other(
        steps in vec(step(), 0..200), indirect: bool, size in 8u16..100, receive: bool
    ) {
        let access = if receive { Access::DeviceWrites } else { Access::DeviceReads };
        let (mut queue, mut device) = pair(size, access, indirect);
        let mut shapes = BTreeMap::new();
        let mut held = Vec::new();
        let mut next_number = 0;
        for step in steps {
            match step {
                Step::Submit(pieces) => {
                    let room = queue.in_flight() < queue.slot_count();
                    prop_assert_eq!(submit(&mut queue, [packet(next_number, pieces)]), u16::from(room));
                    if room {
                        shapes.insert(next_number, pieces);
                    }
                    next_number += 1;
                }
                Step::Return(newest) => {
                    while let Some((head, buffers)) = device.take_available() {
                        let number = (buffers[1].address / 0x1_0000) as u32;
                        let seen: Vec<_> = buffers[1..].iter().map(|buffer| (buffer.address, buffer.bytes)).collect();
                        prop_assert_eq!(seen, expected(number, shapes[&number]));
                        prop_assert!(buffers.iter().all(|buffer| buffer.device_writes == receive));
                        held.push((head, number));
                    }
                    if !held.is_empty() {
                        let (head, number) = held.remove(if newest { held.len() - 1 } else { 0 });
                        device.complete(head, HEADER_BYTES + number % total(number, shapes[&number]));
                    }
                }
                Step::Take => {
                    while let Some(used) = queue.take_used().unwrap() {
                        let pieces = shapes.remove(&used.token.number);
                        prop_assert_eq!(pieces, Some(used.token.behind.len() as u16 + 1));
                        let number = used.token.number;
                        prop_assert_eq!(used.written, Some(number % total(number, pieces.unwrap())));
                    }
                }
            }
        }
        prop_assert!(usize::from(queue.in_flight()) == shapes.len());
    }

    /// Whatever the device writes: no panic, no token twice, no more bytes than the pieces hold.
    #[test]
    fn a_lying_device_gains_nothing(
        lies in vec((any::<usize>(), any::<u8>(), any::<bool>(), 0u16..3, 1..=SEGMENTS), 0..300), indirect: bool
    ) {
        let (mut queue, mut device) = pair(32, Access::DeviceWrites, indirect);
        let mut out = BTreeSet::new();
        let mut next_number = 0;
        for (offset, value, anywhere, index, pieces) in lies {
            let _ = queue.submit(|| {
                out.insert(next_number);
                next_number += 1;
                Some(packet(next_number - 1, pieces))
            });
            let used = queue.layout().used();
            device.memory.poke(if anywhere { offset } else { used + 4 + offset % 260 }, value % 33);
            device.move_index(index);
            for _ in 0..4 {
                let Ok(Some(taken)) = queue.take_used() else { break };
                prop_assert!(out.remove(&taken.token.number));
                let pieces = taken.token.behind.len() as u16 + 1;
                prop_assert!(taken.written.unwrap_or(0) <= total(taken.token.number, pieces));
            }
        }
        queue.reset(|token| assert!(out.remove(&token.number)));
        prop_assert!(out.is_empty());
    }
}
