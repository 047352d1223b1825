//! The rings against a card that is honest, and one that lies.

use std::collections::VecDeque;

use igb_protocol::fake::{FakeCard, FakeMemory};
use igb_protocol::transmit::STUCK_AFTER_NS;
use igb_protocol::{ReceiveRing, RingFault, RingSize, Segment, TransmitRing};
use proptest::prelude::*;

const DONE: u32 = 1;
const END: u32 = 2;
const BUFFER_BYTES: u16 = 2048;

/// The address of buffer `token`.
fn address(token: u32) -> u64 {
    u64::from(token) * 0x800 + (1 << 40)
}

fn receive_ring(size: RingSize) -> (ReceiveRing<FakeMemory, u32>, FakeCard) {
    let memory = FakeMemory::new(size);
    (ReceiveRing::new(memory.clone(), size, BUFFER_BYTES), FakeCard::new(memory, size))
}

fn full_ring(size: RingSize) -> (ReceiveRing<FakeMemory, u32>, FakeCard) {
    let (mut ring, mut card) = receive_ring(size);
    for token in 0..u32::from(size.get()) - 1 {
        ring.post(address(token), token).unwrap();
    }
    assert!(ring.post(0, 9999).is_err(), "one descriptor stays free");
    card.set_tail(ring.announce().unwrap());
    (ring, card)
}

fn transmit_ring(size: RingSize) -> (TransmitRing<FakeMemory, u32>, FakeCard) {
    let memory = FakeMemory::new(size);
    (TransmitRing::new(memory.clone(), size), FakeCard::new(memory, size))
}

fn size(descriptors: u16) -> RingSize {
    RingSize::new(descriptors).unwrap()
}

#[test]
fn a_packet_is_received_into_the_buffer_it_names() {
    let (mut ring, mut card) = full_ring(size(8));
    assert!(ring.take().unwrap().is_none());
    assert_eq!(card.receive(DONE | END, 0x1234_0000 | 60), Some(address(0)));
    let received = ring.take().unwrap().unwrap();
    assert_eq!((received.token, received.bytes, received.end_of_packet), (0, 60, true));
    assert!(ring.take().unwrap().is_none());
}

#[test]
fn a_length_beyond_the_buffer_kills_the_ring() {
    let (mut ring, mut card) = full_ring(size(8));
    card.receive(DONE | END, 2049);
    let fault = RingFault::Overrun { bytes: 2049, room: 2048 };
    assert_eq!(ring.take().unwrap_err(), fault);
    assert_eq!(ring.take().unwrap_err(), fault, "until it is reset");
    assert!(ring.post(0, 77).is_err());
    let mut freed = Vec::new();
    ring.reset(|token| freed.push(token));
    assert_eq!(freed.len(), 7, "the card had them all");
    assert!(ring.take().unwrap().is_none());
    assert_eq!(ring.room(), 7);
}

#[test]
fn a_packet_that_goes_on_behind_a_gap_kills_the_ring() {
    let (mut ring, mut card) = full_ring(size(8));
    card.receive(DONE, 2047);
    assert_eq!(ring.take().unwrap_err(), RingFault::Gap { bytes: 2047, room: 2048 });
}

#[test]
fn what_the_card_was_not_given_cannot_come_back() {
    let (mut ring, _card) = receive_ring(size(64));
    let memory = ring.memory().clone();
    for token in 0..40 {
        ring.post(address(token), token).unwrap();
    }
    let _ = ring.announce().unwrap();
    for token in 40..45 {
        ring.post(address(token), token).unwrap();
    }
    assert_eq!(ring.announce(), None, "the card has enough");
    // Now it claims all of them, and the descriptors behind.
    for index in 0..64 {
        igb_protocol::RingMemory::write_u64(&memory, index * 16 + 8, (60 << 32) | 3);
    }
    let mut taken = 0;
    while let Some(received) = ring.take().unwrap() {
        assert_eq!(received.token, taken);
        taken += 1;
    }
    assert_eq!((taken, ring.in_flight()), (40, 5));
}

#[test]
fn a_packet_of_pieces_is_sent_as_one() {
    let (mut ring, mut card) = transmit_ring(size(8));
    let pieces = [(0x1000, 108), (0x9000, 1024)];
    let segments = pieces.map(|(device_address, bytes)| Segment { device_address, bytes });
    ring.submit(2, segments.into_iter(), 5).unwrap();
    card.set_tail(ring.tail());
    let first = card.send().unwrap();
    assert_eq!((first.address, first.bytes, first.packet_bytes, first.is_last), (0x1000, 108, 1132, false));
    assert_eq!(ring.take(), None, "half a packet");
    assert!(card.send().unwrap().is_last);
    assert_eq!(ring.take(), Some(5));
    assert_eq!((ring.take(), ring.in_flight(), ring.room()), (None, 0, 7));
}

#[test]
fn a_card_that_sends_nothing_is_stuck() {
    let (mut ring, mut card) = transmit_ring(size(8));
    ring.note_progress(1000);
    assert_eq!(ring.check_progress(u64::MAX), Ok(()), "nothing to send");
    ring.submit(1, [Segment { device_address: 0, bytes: 60 }].into_iter(), 1).unwrap();
    assert_eq!(ring.check_progress(1000 + STUCK_AFTER_NS), Ok(()));
    assert_eq!(ring.check_progress(1001 + STUCK_AFTER_NS), Err(RingFault::Stuck { packets: 1 }));
    card.set_tail(ring.tail());
    card.send().unwrap();
    assert_eq!(ring.take(), Some(1));
    assert_eq!(ring.check_progress(1001 + STUCK_AFTER_NS), Ok(()));
}

proptest! {
    /// Whatever the card writes, it never has a buffer twice, each comes back at most once, in order,
    /// with a length that lies in it; and the card is never short of buffers while the ring has some.
    #[test]
    fn a_lying_card_gets_nothing_out_of_the_receive_ring(
        log2 in 3_u32..9,
        writes: Vec<(u32, u32)>,
        steps in proptest::collection::vec(0..3_u8, 0..600),
    ) {
        let size = size(1 << log2);
        let (mut ring, mut card) = receive_ring(size);
        let mut writes = writes.into_iter().chain(std::iter::repeat((DONE | END, 60)));
        let mut expected = VecDeque::new();
        let mut next = 0;
        // Buffers that the card has written and the ring has not given back.
        let mut filled = 0;
        for step in steps {
            match step {
                0 => {
                    while ring.post(address(next), next).is_ok() {
                        expected.push_back(next);
                        next += 1;
                    }
                    if let Some(tail) = ring.announce() {
                        card.set_tail(tail);
                    }
                    // What the card has not been told of: little, and never while it is short.
                    let known = card.has() + filled;
                    let unknown = ring.in_flight() - known;
                    prop_assert!(unknown < 32 && (unknown == 0 || known >= size.get() / 2));
                }
                1 => {
                    let (status, length) = writes.next().unwrap();
                    filled += u16::from(card.receive(status, length).is_some());
                }
                _ => match ring.take() {
                    Ok(Some(received)) => {
                        prop_assert_eq!(Some(received.token), expected.pop_front());
                        filled -= 1;
                        prop_assert!(received.bytes <= BUFFER_BYTES);
                        prop_assert!(received.end_of_packet || received.bytes == BUFFER_BYTES);
                    }
                    Ok(None) => {}
                    Err(_) => {
                        let mut freed = Vec::new();
                        ring.reset(|token| freed.push(token));
                        freed.sort_unstable();
                        prop_assert_eq!(&freed, expected.make_contiguous());
                        expected.clear();
                        filled = 0;
                        card = FakeCard::new(ring.memory().clone(), size);
                    }
                },
            }
            prop_assert_eq!(usize::from(ring.in_flight()), expected.len());
        }
    }

    /// An honest card sends every packet whole and once, and each comes back in its order.
    #[test]
    fn what_is_submitted_is_sent(
        log2 in 3_u32..9,
        steps in proptest::collection::vec((0..3_u8, 1..7_u16), 0..600),
    ) {
        let size = size(1 << log2);
        let (mut ring, mut card) = transmit_ring(size);
        let (mut next, mut back) = (0, 0);
        let mut wire = VecDeque::new();
        for (step, count) in steps {
            match step {
                0 => {
                    let pieces = (0..count).map(|piece| Segment {
                        device_address: u64::from(next) * 8 + u64::from(piece),
                        bytes: 60 + piece,
                    });
                    let room = ring.room();
                    let submitted = ring.submit(count, pieces.clone(), next);
                    prop_assert_eq!(submitted.is_ok(), count <= room);
                    if submitted.is_ok() {
                        let total: u32 = pieces.clone().map(|piece| u32::from(piece.bytes)).sum();
                        wire.extend(pieces.enumerate().map(|(index, piece)| {
                            (piece.device_address, piece.bytes, total, index + 1 == usize::from(count))
                        }));
                        next += 1;
                        card.set_tail(ring.tail());
                    }
                }
                1 => {
                    let sent =
                        card.send().map(|piece| (piece.address, piece.bytes, piece.packet_bytes, piece.is_last));
                    prop_assert_eq!(sent, wire.pop_front());
                }
                _ => {
                    if let Some(token) = ring.take() {
                        prop_assert_eq!(token, back);
                        back += 1;
                    }
                }
            }
            prop_assert_eq!(u32::from(ring.in_flight()), next - back);
        }
        while card.send().is_some() {}
        while ring.take().is_some() {
            back += 1;
        }
        prop_assert_eq!((back, ring.room()), (next, size.get() - 1));
    }
}
