//! A queue of requests against a device that follows the specification, and one that lies.

use std::collections::HashMap;

use proptest::prelude::*;
use virtio_driver::blk::{Kind, Planned, Range, Status};
use virtio_driver::fake::{FakeBuffer, FakeDevice, FakeMemory};
use virtio_driver::{
    Class, NoSlot, QueueFault, QueueSize, RequestLayout, RequestQueue, RingMemory as _, Segment,
};

type Queue = RequestQueue<FakeMemory, u32>;

fn layout(size: u16, segments: u16, indirect: bool) -> RequestLayout {
    RequestLayout::new(QueueSize::largest(size, size).unwrap(), segments, indirect).unwrap()
}

fn queue(layout: RequestLayout, event_index: bool, reserved: u16) -> (Queue, FakeDevice) {
    // The fake's memory is sized by a queue of packets; one of so many descriptors is large enough.
    let size = QueueSize::largest(4096, 4096).unwrap();
    let memory = FakeMemory::new(&virtio_driver::QueueLayout::new(size));
    assert!(layout.bytes() <= virtio_driver::QueueLayout::new(size).bytes());
    let queue = RequestQueue::new(memory.clone(), layout, event_index, reserved);
    (queue, FakeDevice::new(memory, *layout.rings(), event_index))
}

fn plan(kind: Kind, data_bytes: u32) -> Planned {
    let range = matches!(kind, Kind::Discard | Kind::WriteZeroes).then_some(Range {
        sector: 7,
        sectors: 8,
        unmap: true,
    });
    Planned { kind, sector: 0x1_0000_0005, range, data_bytes, flush_behind: false }
}

fn pieces(count: u64) -> impl Iterator<Item = Segment> {
    (0..count).map(|number| Segment { device_address: 0x5000 + 0x1000 * number, bytes: 512 })
}

/// What the device finds at one of its addresses inside the queue's memory.
fn dword(device: &FakeDevice, address: u64) -> u32 {
    device.memory.read_u32((address - device.memory.device_address(0)) as usize)
}

fn answer(device: &mut FakeDevice, head: u16, chain: &[FakeBuffer], status: u8, written: u32) -> bool {
    let status_at = chain.last().unwrap().address - device.memory.device_address(0);
    device.memory.poke(status_at as usize, status);
    device.complete(head, written)
}

fn shape_of(chain: &[FakeBuffer]) -> Vec<(u32, bool)> {
    chain.iter().map(|buffer| (buffer.bytes, buffer.device_writes)).collect()
}

#[test]
fn requests_are_laid_out_as_the_document_says() {
    for indirect in [false, true] {
        let (mut queue, mut device) = queue(layout(64, 6, indirect), true, 0);
        let cases = [
            (plan(Kind::In, 1024), 2, vec![(16, false), (512, true), (512, true), (1, true)]),
            (plan(Kind::Out, 3072), 6, [vec![(16, false)], vec![(512, false); 6], vec![(1, true)]].concat()),
            // More memory than is asked for.
            (plan(Kind::Out, 700), 2, vec![(16, false), (512, false), (188, false), (1, true)]),
            (Planned::FLUSH, 0, vec![(16, false), (1, true)]),
            (plan(Kind::WriteZeroes, 0), 0, vec![(16, false), (16, false), (1, true)]),
        ];
        for (planned, segments, expected) in cases {
            queue.push(Class::Asynchronous, &planned, pieces(segments), 1, 0).unwrap();
            assert!(device.take_available().is_none(), "seen before it was announced");
            let _ = queue.announce();
            let (head, chain) = device.take_available().unwrap();
            assert_eq!(shape_of(&chain), expected);
            assert_eq!(dword(&device, chain[0].address), planned.kind as u32);
            assert_eq!(dword(&device, chain[0].address + 4), 0);
            let sector = u64::from(dword(&device, chain[0].address + 8))
                | u64::from(dword(&device, chain[0].address + 12)) << 32;
            assert_eq!(sector, planned.sector);
            if planned.range.is_some() {
                let range: Vec<_> =
                    (0..4).map(|place| dword(&device, chain[1].address + 4 * place)).collect();
                assert_eq!(range, [7, 0, 8, 1]);
            }
            let written = 1 + if planned.kind == Kind::In { planned.data_bytes } else { 0 };
            answer(&mut device, head, &chain, 0, written);
            let ended = queue.take().unwrap().unwrap();
            assert_eq!((ended.token, ended.status), (1, Status::Ok));
        }
    }
}

#[test]
fn some_slots_are_kept_for_those_who_wait() {
    let (mut queue, _) = queue(layout(8, 6, true), true, 3);
    let push = |queue: &mut Queue, class| queue.push(class, &Planned::FLUSH, pieces(0), 9, 0);
    for _ in 0..5 {
        push(&mut queue, Class::Asynchronous).unwrap();
    }
    assert_eq!(push(&mut queue, Class::Asynchronous), Err(NoSlot(9)));
    for _ in 0..3 {
        push(&mut queue, Class::Synchronous).unwrap();
    }
    assert_eq!(push(&mut queue, Class::Synchronous), Err(NoSlot(9)));
    assert_eq!(queue.outstanding(), 8);
}

#[test]
fn an_end_is_what_the_device_wrote_and_no_better() {
    let (mut queue, mut device) = queue(layout(8, 1, false), true, 0);
    // A status that there is none of; one that was not written; well, but only half the data.
    for (status, written, expected) in [
        (1, 1, Status::IoError),
        (2, 1, Status::Unsupported),
        (3, 1, Status::Nonsense(3)),
        (0xff, 0, Status::Nonsense(0xff)),
        (0, 512, Status::Nonsense(0)),
        (0, 513, Status::Ok),
    ] {
        queue.push(Class::Asynchronous, &plan(Kind::In, 512), pieces(1), 4, 0).unwrap();
        let _ = queue.announce();
        let (head, chain) = device.take_available().unwrap();
        answer(&mut device, head, &chain, status, written);
        assert_eq!(queue.take().unwrap().unwrap().status, expected);
    }
}

#[test]
fn lies_end_the_queue_and_keep_the_memory() {
    let lie = |lie: &dyn Fn(&mut FakeDevice)| {
        let (mut queue, mut device) = queue(layout(16, 1, false), true, 0);
        queue.push(Class::Asynchronous, &plan(Kind::In, 512), pieces(1), 4, 10).unwrap();
        let _ = queue.announce();
        // Queued, and not the device's yet.
        queue.push(Class::Asynchronous, &plan(Kind::In, 512), pieces(1), 5, 11).unwrap();
        device.take_available().unwrap();
        lie(&mut device);
        let fault = queue.take().unwrap_err();
        assert_eq!(queue.take().unwrap_err(), fault);
        assert!(queue.push(Class::Synchronous, &Planned::FLUSH, pieces(0), 6, 0).is_err());
        assert_eq!((queue.outstanding(), queue.oldest_ns()), (2, Some(10)));
        assert_eq!([queue.take_any(), queue.take_any(), queue.take_any()], [Some(4), Some(5), None]);
        queue.restart();
        assert!(queue.fault().is_none() && queue.outstanding() == 0);
        fault
    };
    let element = |id, written| {
        move |device: &mut FakeDevice| {
            device.return_element(id, written);
            device.move_index(1);
        }
    };
    assert_eq!(lie(&|device| device.move_index(2)), QueueFault::IndexJumped { claims: 2, in_flight: 1 });
    assert_eq!(lie(&element(1, 0)), QueueFault::UnknownDescriptor { id: 1 });
    assert_eq!(lie(&element(64, 0)), QueueFault::UnknownDescriptor { id: 64 });
    assert_eq!(lie(&element(4, 0)), QueueFault::NotInFlight { slot: 1 });
    assert_eq!(lie(&element(8, 0)), QueueFault::NotInFlight { slot: 2 });
    assert_eq!(lie(&element(0, 514)), QueueFault::Overrun { written: 514, room: 513 });
}

#[derive(Clone, Debug)]
enum Step {
    Push { kind: u8, segments: u64, wait: bool },
    Announce,
    Return { which: usize, status: u8 },
    Take,
    Poke { offset: usize, value: u8 },
}

fn step(lies: bool) -> impl Strategy<Value = Step> {
    let honest = prop_oneof![
        4 => (0_u8..4, 1_u64..7, any::<bool>())
            .prop_map(|(kind, segments, wait)| Step::Push { kind, segments, wait }),
        2 => Just(Step::Announce),
        3 => (any::<usize>(), 0_u8..4).prop_map(|(which, status)| Step::Return { which, status }),
        3 => Just(Step::Take),
    ];
    let poke = (any::<usize>(), any::<u8>()).prop_map(|(offset, value)| Step::Poke { offset, value });
    prop_oneof![4 => honest, u32::from(lies) => poke]
}

proptest! {
    /// Requests in any order, returned in any order: each ends once, with its own status.
    #[test]
    fn every_request_ends_once(
        steps in proptest::collection::vec(step(false), 0..300), indirect: bool, event_index: bool,
    ) {
        let (mut queue, mut device) = queue(layout(32, 6, indirect), event_index, 2);
        let mut with_device: Vec<(u16, Vec<FakeBuffer>, u32, u32)> = Vec::new();
        let mut statuses: HashMap<u32, Option<Status>> = HashMap::new();
        let (mut next, mut queued) = (0_u32, std::collections::VecDeque::new());
        for step in steps {
            match step {
                Step::Push { kind, segments, wait } => {
                    let kind = [Kind::In, Kind::Out, Kind::Flush, Kind::Discard][usize::from(kind)];
                    let moves = matches!(kind, Kind::In | Kind::Out);
                    let segments = if moves { segments } else { 0 };
                    let class = if wait { Class::Synchronous } else { Class::Asynchronous };
                    let planned = plan(kind, 512 * segments as u32);
                    if queue.push(class, &planned, pieces(segments), next, u64::from(next)).is_ok() {
                        queued.push_back((next, 1 + if kind == Kind::In { planned.data_bytes } else { 0 }));
                        next += 1;
                    }
                }
                Step::Announce => {
                    let _ = queue.announce();
                    while let Some((head, chain)) = device.take_available() {
                        let (token, written) = queued.pop_front().unwrap();
                        statuses.insert(token, None);
                        with_device.push((head, chain, written, token));
                        prop_assert!(statuses.len() <= 32);
                    }
                    prop_assert!(queued.is_empty());
                }
                Step::Return { which, status } => if !with_device.is_empty() {
                    let (head, chain, written, token) = with_device.swap_remove(which % with_device.len());
                    statuses.insert(token, Some(Status::new(status)));
                    answer(&mut device, head, &chain, status, written);
                },
                Step::Take => while let Some(ended) = queue.take().unwrap() {
                    prop_assert_eq!(statuses.remove(&ended.token), Some(Some(ended.status)));
                },
                Step::Poke { .. } => {}
            }
            prop_assert_eq!(queue.outstanding(), statuses.len() + queued.len());
        }
    }

    /// Whatever is written over whatever: no panic, and every token comes back once.
    #[test]
    fn a_device_that_writes_anywhere_is_survived(
        steps in proptest::collection::vec(step(true), 0..200), indirect: bool, event_index: bool,
    ) {
        let (mut queue, mut device) = queue(layout(16, 6, indirect), event_index, 2);
        let bytes = queue.layout().bytes();
        let (mut next, mut back) = (0_u32, Vec::new());
        for step in steps {
            match step {
                Step::Push { segments, .. } => {
                    let planned = plan(Kind::In, 512 * segments as u32);
                    if queue.push(Class::Synchronous, &planned, pieces(segments), next, 0).is_ok() {
                        next += 1;
                    }
                }
                Step::Announce => { let _ = queue.announce(); }
                Step::Return { which, status } => {
                    device.return_element(which as u32 % 20, status.into());
                    device.move_index(1);
                }
                Step::Take => while let Ok(Some(ended)) = queue.take() { back.push(ended.token) },
                Step::Poke { offset, value } => device.memory.poke(offset % bytes, value),
            }
        }
        while let Some(token) = queue.take_any() { back.push(token) }
        back.sort_unstable();
        prop_assert_eq!(back, (0..next).collect::<Vec<_>>());
    }
}
