//! The block device: what each request does, what is refused, and a guest that asks for anything.

use proptest::prelude::*;
use virtio_device::block::{BlockConfig, BlockFunction, Operation};
use virtio_device::fake::VecRam;
use virtio_device::fake::disk::VecDisk;
use virtio_device::fake::driver::{Buffer, DriverQueue, bring_up};
use virtio_device::{Event, Features, GuestRam, Region, Status};

const SIZE: u16 = 16;
const RAM_BYTES: u64 = 0x4_0000;
const HEADERS: u64 = 0x4000;
const DATA: u64 = 0x1_0000;
const ALL: Features = Features::from_bits(u64::MAX);

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// A guest with one queue, its disk, and the device between them.
struct Guest {
    ram: VecRam,
    queue: DriverQueue,
    function: BlockFunction,
    disk: VecDisk,
}

impl Guest {
    fn new(config: BlockConfig, wanted: Features) -> Self {
        let ram = VecRam::new(RAM_BYTES as usize);
        let queue = DriverQueue::at(0.into(), SIZE, wanted.has(Features::EVENT_IDX));
        let mut function = BlockFunction::block(config, 0);
        bring_up(&mut function, &ram, wanted, &[&queue]);
        assert!(function.is_live(), "{:?}", function.fault());
        Self { ram, queue, function, disk: VecDisk::new(config) }
    }

    fn plain() -> Self {
        Self::new(VecDisk::describe(64, 512), ALL)
    }

    /// Offers a request with its header and status at the places of `slot`.
    fn offer(&mut self, slot: u64, kind: u32, sector: u64, data: &[Buffer]) -> u16 {
        let header = HEADERS + 32 * slot;
        self.ram.write_u32(header.into(), kind).unwrap();
        self.ram.write_u32((header + 4).into(), 0).unwrap();
        self.ram.write_u64((header + 8).into(), sector).unwrap();
        self.ram.write_u8((header + 16).into(), 0xff).unwrap();
        let mut chain = vec![Buffer { address: header.into(), bytes: 16, writable: false }];
        chain.extend_from_slice(data);
        chain.push(Buffer { address: (header + 16).into(), bytes: 1, writable: true });
        self.queue.offer(&self.ram, &chain).expect("room in the queue")
    }

    fn status(&self, slot: u64) -> u8 {
        self.ram.read_u8((HEADERS + 32 * slot + 16).into()).unwrap()
    }

    fn work(&mut self, ended: Option<(u32, bool)>) {
        let mut served = self.function.work(&self.ram, ended, &mut self.disk);
        while served.more {
            served = self.function.work(&self.ram, None, &mut self.disk);
        }
    }

    /// Until nothing is out: every transfer done, first to last.
    fn settle(&mut self) {
        self.work(None);
        while !self.disk.pending.is_empty() {
            let ended = self.disk.finish(&self.ram, 0);
            self.work(Some(ended));
        }
    }

    /// One request from beginning to end: its status, and what the used ring says.
    fn run(&mut self, kind: u32, sector: u64, data: &[Buffer]) -> (u8, u32) {
        let head = self.offer(0, kind, sector, data);
        self.settle();
        let (used, written_bytes) = self.queue.take_used(&self.ram).expect("an answer");
        assert_eq!(used, head);
        (self.status(0), written_bytes)
    }

    fn bytes(&self, address: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.ram.read(address.into(), &mut bytes).unwrap();
        bytes
    }
}

fn readable(address: u64, bytes: u32) -> Buffer {
    Buffer { address: address.into(), bytes, writable: false }
}

fn writable(address: u64, bytes: u32) -> Buffer {
    Buffer { address: address.into(), bytes, writable: true }
}

fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|index| (index as u8).wrapping_mul(31) ^ (index >> 8) as u8 ^ seed).collect()
}

#[test]
fn what_is_written_is_read_back_however_it_lies_in_memory() {
    let mut guest = Guest::plain();
    let content = pattern(10 * 512, 7);
    // Odd borders: the data is cut where the disk can, and goes through the buffer where it cannot.
    let (first, second, third) = (DATA + 1, DATA + 0x1000, DATA + 0x2000);
    guest.ram.write(first.into(), &content[..3]).unwrap();
    guest.ram.write(second.into(), &content[3..512]).unwrap();
    guest.ram.write(third.into(), &content[512..]).unwrap();
    let pieces = [readable(first, 3), readable(second, 509), readable(third, 9 * 512)];
    assert_eq!(guest.run(OUT, 5, &pieces), (OK, 1));
    assert_eq!(guest.disk.bytes[5 * 512..15 * 512], content);
    let back = DATA + 0x8000;
    let pieces = [writable(back, 2048), writable(back + 2048, 1000), writable(back + 3048, 5120 - 3048)];
    assert_eq!(guest.run(IN, 5, &pieces), (OK, 5121));
    assert_eq!(guest.bytes(back, 5120), content);
    let counters = guest.function.counters();
    assert!(counters.bounced > 0 && counters.transfers > counters.bounced, "{counters:?}");
    assert_eq!((counters.read_bytes, counters.written_bytes), (5120, 5120));
}

#[test]
fn what_does_not_lie_on_the_disk_is_refused_and_nothing_is_done() {
    let mut guest = Guest::plain();
    for (sector, bytes) in
        [(64, 512), (63, 1024), (u64::MAX, 512), (1 << 63, 512), (u64::MAX - 1, 1024), (0, 511), (0, 513)]
    {
        assert_eq!(guest.run(OUT, sector, &[readable(DATA, bytes)]), (IOERR, 1), "{sector} {bytes}");
        assert_eq!(guest.run(IN, sector, &[writable(DATA, bytes)]).0, IOERR, "{sector} {bytes}");
    }
    assert!(guest.disk.bytes.iter().all(|&byte| byte == 0));
    assert_eq!(guest.function.counters().transfers, 0);
    assert_eq!(guest.run(IN, 64, &[]), (OK, 1), "no bytes at the very end");
    assert!(guest.function.is_live());
}

#[test]
fn a_disk_of_large_sectors_takes_no_part_of_one() {
    let mut guest = Guest::new(VecDisk::describe(8, 4096), ALL);
    assert_eq!(guest.run(OUT, 8, &[readable(DATA, 4096)]), (OK, 1));
    for (sector, bytes) in [(1, 4096), (8, 512), (8, 6144), (64, 4096)] {
        assert_eq!(guest.run(OUT, sector, &[readable(DATA, bytes)]), (IOERR, 1), "{sector} {bytes}");
    }
    let mut read = |offset, size| guest.function.read(Region::Device, offset, size);
    assert_eq!((read(0, 8), read(20, 4), read(44, 4)), (64, 4096, 8), "capacity, blk_size, alignment");
}

#[test]
fn a_read_only_disk_refuses_whatever_would_change_it() {
    let config = BlockConfig { read_only: true, ..VecDisk::describe(64, 512) };
    let mut guest = Guest::new(config, ALL);
    assert!(guest.function.negotiated().has(Features::BLK_RO));
    guest.ram.write(DATA.into(), &[1; 512]).unwrap();
    for kind in [OUT, DISCARD, WRITE_ZEROES] {
        assert_eq!(guest.run(kind, 0, &[readable(DATA, 512)]), (IOERR, 1));
    }
    assert!(guest.disk.bytes.iter().all(|&byte| byte == 0));
    assert_eq!(guest.run(IN, 0, &[writable(DATA, 512)]), (OK, 513));
    assert_eq!(guest.run(FLUSH, 0, &[]), (OK, 1));
}

fn ranges(ram: &VecRam, list: &[(u64, u32, u32)]) -> Buffer {
    for (index, (sector, sectors, flags)) in list.iter().enumerate() {
        let at = DATA + 16 * index as u64;
        ram.write_u64(at.into(), *sector).unwrap();
        ram.write_u32((at + 8).into(), *sectors).unwrap();
        ram.write_u32((at + 12).into(), *flags).unwrap();
    }
    readable(DATA, 16 * list.len() as u32)
}

#[test]
fn ranges_are_discarded_and_zeroed_and_the_sectors_beside_them_are_not() {
    let mut guest = Guest::plain();
    guest.disk.bytes.fill(0x55);
    let list = ranges(&guest.ram, &[(1, 20, 0), (30, 0, 0), (40, 1, 0)]);
    assert_eq!(guest.run(DISCARD, 0, &[list]), (OK, 1));
    let list = ranges(&guest.ram, &[(50, 13, 1), (63, 1, 0)]);
    assert_eq!(guest.run(WRITE_ZEROES, 0, &[list]), (OK, 1));
    for (sector, chunk) in guest.disk.bytes.chunks(512).enumerate() {
        let expected = match sector {
            1..=20 | 40 => 0xdd,
            50..=63 => 0,
            _ => 0x55,
        };
        assert!(chunk.iter().all(|&byte| byte == expected), "sector {sector}");
    }
}

#[test]
fn a_range_with_a_mistake_refuses_the_whole_request() {
    let mut guest = Guest::plain();
    for (kind, bad, status) in [
        (DISCARD, (60, 5, 0), IOERR),
        (DISCARD, (u64::MAX, 1, 0), IOERR),
        (DISCARD, (1, 1, 1), UNSUPP),
        (WRITE_ZEROES, (1, 1, 2), UNSUPP),
        (WRITE_ZEROES, (0, u32::MAX, 0), IOERR),
    ] {
        let list = ranges(&guest.ram, &[(0, 4, 0), bad]);
        assert_eq!(guest.run(kind, 0, &[list]), (status, 1), "{bad:?}");
    }
    for bytes in [0, 8, 17, 33 * 16] {
        let data = if bytes == 0 { vec![] } else { vec![readable(DATA, bytes)] };
        assert_eq!(guest.run(DISCARD, 0, &data), (IOERR, 1), "{bytes} bytes of ranges");
    }
    assert_eq!(guest.function.counters().transfers, 0);
    let poor =
        BlockConfig { max_discard_sectors: 0, max_write_zeroes_sectors: 0, ..VecDisk::describe(64, 512) };
    let mut guest = Guest::new(poor, ALL);
    let list = ranges(&guest.ram, &[(0, 4, 0)]);
    assert_eq!(guest.run(DISCARD, 0, &[list]), (UNSUPP, 1));
}

#[test]
fn the_identifier_and_unknown_types() {
    let mut guest = Guest::plain();
    assert_eq!(guest.run(GET_ID, 0, &[writable(DATA, 20)]), (OK, 21));
    assert_eq!(guest.bytes(DATA, 20), guest.disk.config.id);
    assert_eq!(guest.run(GET_ID, 0, &[writable(DATA + 0x100, 4)]), (OK, 5));
    assert_eq!(guest.bytes(DATA + 0x100, 6), b"a di\0\0");
    for kind in [2, 3, 5, 10, 14, 0x8000_0001, u32::MAX] {
        assert_eq!(guest.run(kind, 0, &[writable(DATA, 512)]).0, UNSUPP, "type {kind}");
    }
}

#[test]
fn requests_without_header_or_status_come_back_unanswered() {
    let mut guest = Guest::plain();
    for chain in [
        vec![readable(HEADERS, 16)],
        vec![readable(HEADERS, 15), writable(DATA, 1)],
        vec![writable(DATA, 512)],
    ] {
        guest.queue.offer(&guest.ram, &chain).unwrap();
        guest.settle();
        assert_eq!(guest.queue.take_used(&guest.ram).map(|(_, bytes)| bytes), Some(0));
    }
    assert_eq!(guest.function.counters().unanswerable, 3);
    // Many more than there are places: none is lost with them.
    for _ in 0..300 {
        guest.queue.offer(&guest.ram, &[readable(HEADERS, 16)]).unwrap();
        guest.settle();
        guest.queue.take_used(&guest.ram).unwrap();
    }
    assert_eq!(guest.run(FLUSH, 0, &[]), (OK, 1));
}

#[test]
fn a_driver_that_does_not_flush_has_its_writes_durable_at_once() {
    for (wanted, durable) in [(ALL, false), (Features::VERSION_1, true)] {
        let mut guest = Guest::new(VecDisk::describe(64, 512), wanted);
        guest.offer(0, OUT, 0, &[readable(DATA, 512)]);
        guest.work(None);
        let taken = &guest.disk.pending[0];
        assert_eq!((taken.operation, taken.durable), (Operation::Write, durable));
    }
}

#[test]
fn a_failed_transfer_fails_its_request_alone() {
    let mut guest = Guest::plain();
    guest.disk.bad_sector = Some(20);
    guest.disk.depth = 2;
    guest.offer(0, IN, 16, &[writable(DATA, 32 * 512)]);
    guest.offer(1, IN, 0, &[writable(DATA, 4 * 512)]);
    guest.settle();
    let answers: Vec<_> = std::iter::from_fn(|| guest.queue.take_used(&guest.ram)).collect();
    assert_eq!(answers.len(), 2);
    assert_eq!((guest.status(0), guest.status(1)), (IOERR, OK));
    assert_eq!(guest.function.counters().failed, 1);
    guest.disk.gone = true;
    assert_eq!(guest.run(IN, 0, &[writable(DATA, 512)]).0, IOERR);
    assert!(guest.function.is_live());
}

#[test]
fn a_reset_is_not_over_while_the_disk_has_the_guests_memory() {
    let mut guest = Guest::plain();
    guest.offer(0, IN, 0, &[writable(DATA, 512)]);
    guest.offer(1, IN, 0, &[writable(DATA + 512, 32 * 512)]);
    guest.disk.depth = 3;
    guest.work(None);
    assert_eq!(guest.function.in_flight(), 3);
    let write = |guest: &mut Guest, value| guest.function.write(&guest.ram, Region::Common, 0x14, 1, value);
    assert_eq!(write(&mut guest, 0), Event::Stopped);
    assert_eq!(write(&mut guest, 3), Event::Nothing, "not while it resets");
    while !guest.disk.pending.is_empty() {
        assert_ne!(guest.function.read(Region::Common, 0x14, 1), 0, "the disk still writes");
        let ended = guest.disk.finish(&guest.ram, 0);
        guest.work(Some(ended));
    }
    assert_eq!(guest.function.read(Region::Common, 0x14, 1), 0);
    // Nobody was answered, and the places are free for the next driver.
    assert_eq!(guest.queue.take_used(&guest.ram), None);
    assert_eq!((guest.status(0), guest.status(1)), (0xff, 0xff));
    guest.ram = VecRam::new(RAM_BYTES as usize);
    guest.queue = DriverQueue::at(0.into(), SIZE, true);
    bring_up(&mut guest.function, &guest.ram, ALL, &[&guest.queue]);
    assert_eq!(guest.run(IN, 0, &[writable(DATA, 512)]), (OK, 513));
}

#[test]
fn a_full_disk_is_offered_the_rest_later_and_nobody_is_forgotten() {
    let mut guest = Guest::plain();
    guest.disk.depth = 1;
    for slot in 0..5 {
        guest.offer(slot, OUT, 8 * slot, &[readable(DATA, 8 * 512)]);
    }
    let served = guest.function.work(&guest.ram, None, &mut guest.disk);
    assert!(served.busy);
    guest.settle();
    assert_eq!(std::iter::from_fn(|| guest.queue.take_used(&guest.ram)).count(), 5);
    assert!((0..5).all(|slot| guest.status(slot) == OK));
    assert_eq!(guest.function.counters().transfers, 10);
}

#[test]
fn several_queues_are_served_and_the_feature_says_so() {
    let config = BlockConfig { queues: 3, ..VecDisk::describe(64, 512) };
    let ram = VecRam::new(RAM_BYTES as usize);
    let queues: Vec<_> = (0..3).map(|n| DriverQueue::at((0x1000 * n).into(), 4, false)).collect();
    let mut function = BlockFunction::block(config, 0);
    let references: Vec<_> = queues.iter().collect();
    let chosen = bring_up(&mut function, &ram, ALL, &references);
    assert!(chosen.has(Features::BLK_MQ));
    assert_eq!(function.read(Region::Device, 34, 2), 3);
    let mut disk = VecDisk::new(config);
    for (number, mut queue) in queues.into_iter().enumerate() {
        let header = HEADERS + 32 * number as u64;
        ram.write_u32(header.into(), FLUSH).unwrap();
        queue.offer(&ram, &[readable(header, 16), writable(header + 16, 1)]).unwrap();
        let _ = function.work(&ram, None, &mut disk);
        let ended = disk.finish(&ram, 0);
        let _ = function.work(&ram, Some(ended), &mut disk);
        assert_eq!(queue.take_used(&ram).map(|(_, bytes)| bytes), Some(1), "queue {number}");
    }
}

/// A request that was offered and not answered yet.
struct Open {
    head: u16,
    slot: u64,
    /// What a read must find, and where.
    expected: Option<(u64, Vec<u8>)>,
    sectors: std::ops::Range<u64>,
}

fn is_busy(open: &[Open], range: &std::ops::Range<u64>) -> bool {
    open.iter().any(|other| other.sectors.start < range.end && range.start < other.sectors.end)
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        sector: u64,
        lengths: Vec<u32>,
        seed: u8,
        odd: bool,
    },
    Read {
        sector: u64,
        lengths: Vec<u32>,
        odd: bool,
    },
    Zero {
        sector: u64,
        sectors: u32,
    },
    /// The disk ends one of its transfers.
    End(usize),
    Reap,
}

fn step() -> impl Strategy<Value = Step> {
    let lengths = || {
        // Pieces that add up to whole sectors: cut up at random, the last one fills up.
        (1u32..8, proptest::collection::vec(1u32..1500, 0..4)).prop_map(|(sectors, cuts)| {
            let mut left = sectors * 512;
            let mut lengths = Vec::new();
            for cut in cuts {
                if cut < left {
                    lengths.push(cut);
                    left -= cut;
                }
            }
            lengths.push(left);
            lengths
        })
    };
    prop_oneof![
        3 => (0u64..56, lengths(), any::<u8>(), any::<bool>())
            .prop_map(|(sector, lengths, seed, odd)| Step::Write { sector, lengths, seed, odd }),
        3 => (0u64..56, lengths(), any::<bool>())
            .prop_map(|(sector, lengths, odd)| Step::Read { sector, lengths, odd }),
        1 => (0u64..60, 1u32..30).prop_map(|(sector, sectors)| Step::Zero { sector, sectors }),
        6 => any::<usize>().prop_map(Step::End),
        2 => Just(Step::Reap),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Requests of any shape, transfers that end in any order: every request is answered once, with
    /// the data that a disk of one writer would give. (Requests that overlap have no order, so at
    /// most one at a time is out on a sector.)
    #[test]
    fn every_request_is_answered_once_with_the_right_data(
        event_index in any::<bool>(),
        depth in 1usize..6,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let wanted = if event_index { ALL } else { Features::from_bits(!Features::EVENT_IDX.bits()) };
        let mut guest = Guest::new(VecDisk::describe(64, 512), wanted);
        guest.disk.depth = depth;
        let mut model = vec![0u8; 64 * 512];
        let mut open: Vec<Open> = Vec::new();
        let mut answered = 0;
        let mut slot = 0;
        let finish = (0..).map(|_| Step::End(0)).take(400).chain([Step::Reap]);
        for step in steps.into_iter().chain(finish) {
            let offered_before = open.len();
            match step {
                Step::Write { sector, lengths, seed, odd } => {
                    let bytes: u32 = lengths.iter().sum();
                    let range = sector..sector + u64::from(bytes / 512);
                    if is_busy(&open, &range) || guest.queue.free_descriptors() < lengths.len() + 2 {
                        continue;
                    }
                    slot = (slot + 1) % 16;
                    let base = DATA + slot * 0x1800 + u64::from(odd);
                    let content = pattern(bytes as usize, seed);
                    guest.ram.write(base.into(), &content).unwrap();
                    let mut at = base;
                    let data: Vec<_> = lengths.iter().map(|&length| {
                        let buffer = readable(at, length);
                        at += u64::from(length);
                        buffer
                    }).collect();
                    let start = range.start as usize * 512;
                    model[start..start + bytes as usize].copy_from_slice(&content);
                    let head = guest.offer(slot, OUT, sector, &data);
                    open.push(Open { head, slot, expected: None, sectors: range });
                }
                Step::Read { sector, lengths, odd } => {
                    let bytes: u32 = lengths.iter().sum();
                    let range = sector..sector + u64::from(bytes / 512);
                    if is_busy(&open, &range) || guest.queue.free_descriptors() < lengths.len() + 2 {
                        continue;
                    }
                    slot = (slot + 1) % 16;
                    let base = DATA + slot * 0x1800 + u64::from(odd);
                    let mut at = base;
                    let data: Vec<_> = lengths.iter().map(|&length| {
                        let buffer = writable(at, length);
                        at += u64::from(length);
                        buffer
                    }).collect();
                    let start = range.start as usize * 512;
                    let expected = model[start..start + bytes as usize].to_vec();
                    let head = guest.offer(slot, IN, sector, &data);
                    open.push(Open { head, slot, expected: Some((base, expected)), sectors: range });
                }
                Step::Zero { sector, sectors } => {
                    let range = sector..(sector + u64::from(sectors)).min(64);
                    if is_busy(&open, &range) || guest.queue.free_descriptors() < 3 {
                        continue;
                    }
                    slot = (slot + 1) % 16;
                    let at = HEADERS + 0x800 + 16 * slot;
                    guest.ram.write_u64(at.into(), range.start).unwrap();
                    guest.ram.write_u32((at + 8).into(), (range.end - range.start) as u32).unwrap();
                    guest.ram.write_u32((at + 12).into(), 0).unwrap();
                    model[range.start as usize * 512..range.end as usize * 512].fill(0);
                    let head = guest.offer(slot, WRITE_ZEROES, 0, &[readable(at, 16)]);
                    open.push(Open { head, slot, expected: None, sectors: range });
                }
                Step::End(which) => {
                    if !guest.disk.pending.is_empty() {
                        let number = which % guest.disk.pending.len();
                        let ended = guest.disk.finish(&guest.ram, number);
                        guest.work(Some(ended));
                    }
                }
                Step::Reap => {
                    while let Some((head, _)) = guest.queue.take_used(&guest.ram) {
                        let place = open.iter().position(|other| other.head == head);
                        let Open { slot, expected, .. } = open.remove(place.expect("once"));
                        prop_assert_eq!(guest.status(slot), OK);
                        if let Some((base, expected)) = expected {
                            prop_assert_eq!(guest.bytes(base, expected.len()), expected);
                        }
                        answered += 1;
                    }
                }
            }
            if open.len() > offered_before && guest.queue.must_notify(&guest.ram, 1) {
                guest.work(None);
            }
            prop_assert!(guest.function.is_live(), "{:?}", guest.function.fault());
        }
        prop_assert!(open.is_empty(), "{} answered, {} forgotten", answered, open.len());
        prop_assert_eq!(&guest.disk.bytes, &model);
        prop_assert_eq!(guest.function.in_flight(), 0);
    }

    /// Memory of any content, notifications and completions at any time: no panic, nothing but
    /// guest memory is touched (the fake would panic), and after the reset nothing is held.
    #[test]
    fn a_guest_that_writes_anything_harms_only_itself(
        writes in proptest::collection::vec((0u64..0x4000, any::<u64>(), 0u8..4), 1..400),
        depth in 0usize..5,
    ) {
        let mut guest = Guest::new(VecDisk::describe(64, 512), ALL);
        guest.disk.depth = depth;
        for (at, value, what) in writes {
            let at = at & !1;
            match what {
                0 => guest.ram.write_u64(at.into(), value % RAM_BYTES).unwrap(),
                1 => guest.ram.write_u32(at.into(), (value % 2048) as u32).unwrap(),
                2 => guest.ram.write_u16(at.into(), (value % 8) as u16).unwrap(),
                // A request that the device can begin with, so that some go on from there.
                _ => {
                    let kind = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES][(value % 6) as usize];
                    if guest.function.is_live() && guest.queue.free_descriptors() >= 3 {
                        let data = if value & 64 != 0 { writable(DATA, 1024) } else { readable(DATA, 1024) };
                        guest.offer(value % 16, kind, value >> 8 & 63, &[data]);
                    }
                }
            }
            let ended = (value & 3 == 0 && !guest.disk.pending.is_empty())
                .then(|| guest.disk.finish(&guest.ram, 0));
            let _ = guest.function.work(&guest.ram, ended, &mut guest.disk);
        }
        let _ = guest.function.write(&guest.ram, Region::Common, 0x14, 1, 0);
        while !guest.disk.pending.is_empty() {
            let ended = guest.disk.finish(&guest.ram, 0);
            let _ = guest.function.work(&guest.ram, Some(ended), &mut guest.disk);
        }
        prop_assert_eq!(guest.function.in_flight(), 0);
        prop_assert_eq!(guest.function.status(), Status::RESET);
        prop_assert_eq!(guest.function.read(Region::Common, 0x14, 1), 0);
    }
}
