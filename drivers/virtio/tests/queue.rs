//! The queue against an honest device in every order, and against one that lies.

use proptest::collection::vec;
use proptest::prelude::*;
use virtio_driver::fake::{FakeBuffer, FakeDevice, FakeMemory};
use virtio_driver::net::HEADER_BYTES;
use virtio_driver::*;

const FRAME: u32 = 2048;

fn pair(size: u16, access: Access, event_index: bool) -> (PacketQueue<FakeMemory, u32>, FakeDevice) {
    let layout = QueueLayout::new(QueueSize::largest(size, size).unwrap());
    let memory = FakeMemory::new(&layout);
    let device = FakeDevice::new(memory.clone(), layout, event_index);
    (PacketQueue::new(memory, layout, access, event_index), device)
}

fn packet(token: u32) -> Packet<u32> {
    Packet { device_address: 0x10_0000 + 0x800 * u64::from(token), bytes: FRAME, segmentation: None, token }
}

fn submit(queue: &mut PacketQueue<FakeMemory, u32>, tokens: &mut Vec<u32>) -> Submitted {
    queue.submit(|| tokens.pop().map(packet))
}

#[test]
fn a_packet_is_header_and_frame_and_comes_back() {
    let (mut queue, mut device) = pair(8, Access::DeviceWrites, false);
    assert_eq!(submit(&mut queue, &mut vec![7]), Submitted { packets: 1, notify: true });
    let (head, buffers) = device.take_available().unwrap();
    let header = FakeBuffer { address: buffers[0].address, bytes: HEADER_BYTES, device_writes: true };
    let frame = FakeBuffer { address: 0x10_3800, bytes: FRAME, device_writes: true };
    assert_eq!(buffers, [header, frame]);
    assert!(queue.take_used().unwrap().is_none());
    assert!(device.complete(head, HEADER_BYTES + 60));
    let used = queue.take_used().unwrap().unwrap();
    assert_eq!((used.token, used.written), (7, Some(60)));
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn no_more_than_the_slots_are_asked_for() {
    let (mut queue, _device) = pair(8, Access::DeviceReads, false);
    let mut tokens: Vec<u32> = (0..6).collect();
    assert_eq!(submit(&mut queue, &mut tokens).packets, 4);
    assert_eq!(tokens.len(), 2);
    assert_eq!(submit(&mut queue, &mut tokens), Submitted { packets: 0, notify: false });
}

#[test]
fn a_reset_gives_everything_back_and_starts_anew() {
    let (mut queue, mut device) = pair(8, Access::DeviceWrites, true);
    let _ = submit(&mut queue, &mut (0..4).collect());
    let (head, _) = device.take_available().unwrap();
    device.complete(head + 1, 0);
    assert_eq!(queue.take_used().unwrap_err(), QueueFault::UnknownDescriptor { id: u32::from(head) + 1 });
    let mut back = Vec::new();
    queue.reset(|token| back.push(token));
    back.sort_unstable();
    assert_eq!(back, [0, 1, 2, 3]);
    assert_eq!((queue.in_flight(), queue.fault()), (0, None));
    let mut device = FakeDevice::new(device.memory, *queue.layout(), true);
    let _ = submit(&mut queue, &mut back);
    let (head, _) = device.take_available().unwrap();
    device.complete(head, HEADER_BYTES);
    assert_eq!(queue.take_used().unwrap().unwrap().written, Some(0));
}

#[test]
fn each_lie_is_named_and_kills_the_queue() {
    let lie = |lie: fn(&mut FakeDevice, u16)| {
        let (mut queue, mut device) = pair(8, Access::DeviceWrites, false);
        let _ = submit(&mut queue, &mut vec![1, 2]);
        let (head, _) = device.take_available().unwrap();
        lie(&mut device, head);
        let mut last = queue.take_used();
        while let Ok(Some(_)) = last {
            last = queue.take_used();
        }
        let fault = last.unwrap_err();
        assert_eq!(queue.fault(), Some(fault));
        assert_eq!(submit(&mut queue, &mut vec![3]).packets, 0);
        assert_eq!(queue.take_used().unwrap_err(), fault);
        fault
    };
    assert_eq!(lie(|device, _| device.move_index(3)), QueueFault::IndexJumped { claims: 3, in_flight: 2 });
    assert_eq!(
        lie(|device, _| device.move_index(u16::MAX)),
        QueueFault::IndexJumped { claims: u16::MAX, in_flight: 2 }
    );
    let twice = lie(|device, head| {
        device.complete(head, 20);
        device.complete(head, 20);
    });
    assert_eq!(twice, QueueFault::NotInFlight { slot: 0 });
    let never = lie(|device, _| {
        device.complete(6, 20);
    });
    assert_eq!(never, QueueFault::NotInFlight { slot: 3 });
    for id in [1, 8, 0x1_0000, u32::MAX] {
        let (mut queue, mut device) = pair(8, Access::DeviceWrites, false);
        let _ = submit(&mut queue, &mut vec![1]);
        device.return_element(id, 20);
        device.move_index(1);
        assert_eq!(queue.take_used().unwrap_err(), QueueFault::UnknownDescriptor { id });
    }
    let overrun = lie(|device, head| {
        device.complete(head, HEADER_BYTES + FRAME + 1);
    });
    assert_eq!(overrun, QueueFault::Overrun { written: 2061, room: 2060 });
}

#[test]
fn indices_run_past_their_16_bits() {
    for event_index in [false, true] {
        let (mut queue, mut device) = pair(4, Access::DeviceReads, event_index);
        for round in 0..70_000u32 {
            assert!(!queue.arm_interrupt(1));
            assert!(!device.arm_notification());
            let submitted = submit(&mut queue, &mut vec![round]);
            assert_eq!(submitted, Submitted { packets: 1, notify: true }, "round {round}");
            let (head, _) = device.take_available().unwrap();
            assert!(device.complete(head, 0), "round {round}");
            assert_eq!(queue.take_used().unwrap().unwrap().token, round);
        }
    }
}

#[test]
fn an_interrupt_can_wait_for_several_packets() {
    let (mut queue, mut device) = pair(8, Access::DeviceReads, true);
    let _ = submit(&mut queue, &mut vec![0, 1, 2, 3]);
    assert!(!queue.arm_interrupt(3));
    let heads: Vec<u16> = std::iter::from_fn(|| device.take_available()).map(|(head, _)| head).collect();
    let interrupts: Vec<bool> = heads.iter().map(|&head| device.complete(head, 0)).collect();
    assert_eq!(interrupts, [false, false, true, false]);
    assert!(queue.arm_interrupt(4));
}

/// What the two sides do, in an order the test chooses. Each step is atomic, as the fences in
/// `submit` and `arm_interrupt` make the pairs "publish, then look" of the two sides.
#[derive(Clone, Copy, Debug)]
enum Step {
    Submit(usize),
    /// The device takes and returns up to this many, the newest or the oldest it holds.
    Return(usize, bool),
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0usize..5).prop_map(Step::Submit),
        (0usize..5, any::<bool>()).prop_map(|(count, newest)| Step::Return(count, newest)),
        (0usize..5).prop_map(Step::Take),
    ]
}

proptest! {
    /// Each token comes back exactly once, with the length the device gave it.
    #[test]
    fn every_packet_comes_back_once(
        steps in vec(step(), 0..200), event_index: bool, size in 2u16..40, receive: bool
    ) {
        let access = if receive { Access::DeviceWrites } else { Access::DeviceReads };
        let (mut queue, mut device) = pair(size, access, event_index);
        let mut next_token = 0;
        let mut held = Vec::new();
        let mut out = std::collections::BTreeSet::new();
        for step in steps {
            match step {
                Step::Submit(count) => {
                    let mut tokens: Vec<u32> = (next_token..next_token + count as u32).collect();
                    let room = usize::from(queue.slot_count() - queue.in_flight());
                    let submitted = submit(&mut queue, &mut tokens);
                    prop_assert_eq!(usize::from(submitted.packets), room.min(count));
                    out.extend((next_token..next_token + count as u32).filter(|t| !tokens.contains(t)));
                    next_token += count as u32;
                }
                Step::Return(count, newest) => {
                    held.extend(std::iter::from_fn(|| device.take_available()));
                    for _ in 0..count.min(held.len()) {
                        let at = if newest { held.len() - 1 } else { 0 };
                        let (head, buffers) = held.remove(at);
                        let token = (buffers[1].address - 0x10_0000) / 0x800;
                        device.complete(head, HEADER_BYTES + token as u32 % FRAME);
                    }
                }
                Step::Take(count) => {
                    for _ in 0..count {
                        let Some(used) = queue.take_used().unwrap() else { break };
                        prop_assert!(out.remove(&used.token));
                        prop_assert_eq!(used.written, Some(used.token % FRAME));
                    }
                }
            }
            prop_assert!(usize::from(queue.in_flight()) == out.len());
        }
    }

    /// A device that rests until it is notified and a driver that rests until it is interrupted
    /// are never both at rest with work left.
    #[test]
    fn nobody_sleeps_through_work(
        turns in vec((any::<bool>(), 1usize..4), 1..300), event_index: bool, size in 4u16..20
    ) {
        let (mut queue, mut device) = pair(size, Access::DeviceReads, event_index);
        let (mut device_awake, mut driver_awake) = (false, true);
        let mut to_send = turns.len();
        let mut sent = 0;
        let mut turns = turns.into_iter().chain(std::iter::repeat([(true, 2), (false, 2)]).flatten());
        for _ in 0..100_000 {
            if to_send == 0 && sent == 0 && queue.in_flight() == 0 {
                return Ok(());
            }
            prop_assert!(device_awake || driver_awake, "both rest, {} in flight", queue.in_flight());
            let (driver_turn, count) = turns.next().unwrap();
            if driver_turn && driver_awake {
                queue.disarm_interrupt();
                while let Some(_used) = queue.take_used().unwrap() {
                    sent -= 1;
                }
                let mut batch = count.min(to_send);
                let submitted = queue.submit(|| {
                    batch = batch.checked_sub(1)?;
                    Some(packet(0))
                });
                to_send -= usize::from(submitted.packets);
                sent += usize::from(submitted.packets);
                device_awake |= submitted.notify;
                // With more to send than fits, rest until half of it is back.
                let full = queue.in_flight() == queue.slot_count();
                let wish = if full { queue.in_flight() / 2 } else { 1 };
                driver_awake = queue.arm_interrupt(wish) || (to_send > 0 && !full);
            } else if !driver_turn && device_awake {
                device.disarm_notification();
                for _ in 0..count {
                    let Some((head, _)) = device.take_available() else { break };
                    driver_awake |= device.complete(head, 0);
                }
                device_awake = device.arm_notification();
            }
        }
        prop_assert!(false, "no end after 100000 turns");
    }

    /// Whatever the device writes into the memory: no panic, no token twice, and a queue that
    /// faulted stays dead.
    #[test]
    fn a_lying_device_gains_nothing(
        lies in vec((any::<usize>(), any::<u8>(), any::<bool>(), 0u16..3), 0..300), event_index: bool
    ) {
        let (mut queue, mut device) = pair(16, Access::DeviceWrites, event_index);
        let mut next_token = 0u32;
        let mut out = std::collections::BTreeSet::new();
        let mut fault = None;
        for (offset, value, anywhere, index) in lies {
            let _ = queue.submit(|| {
                out.insert(next_token);
                next_token += 1;
                Some(packet(next_token - 1))
            });
            // Half of the lies aim at the used ring, where they are believable.
            let used = queue.layout().used();
            device.memory.poke(if anywhere { offset } else { used + 4 + offset % 132 }, value % 16);
            device.move_index(index);
            for _ in 0..4 {
                match queue.take_used() {
                    Ok(None) => break,
                    Ok(Some(taken)) => {
                        prop_assert!(fault.is_none());
                        prop_assert!(out.remove(&taken.token));
                        prop_assert!(taken.written.unwrap_or(0) <= FRAME);
                    }
                    Err(found) => {
                        prop_assert!(fault.is_none_or(|earlier| earlier == found));
                        fault = Some(found);
                    }
                }
            }
            let _ = queue.arm_interrupt(1);
        }
        queue.reset(|token| assert!(out.remove(&token)));
        prop_assert!(out.is_empty());
    }
}
