//! The device against guests that lie: each forbidden thing by its name, then anything at all.

use proptest::prelude::*;
use virtio_device::chain::Chain;
use virtio_device::fake::VecRam;
use virtio_device::fake::driver::{Buffer, DriverQueue, NetDriver, VecSink, VecSource, bring_up};
use virtio_device::net::{NetConfig, NetFunction, TRANSMIT_QUEUE};
use virtio_device::queue::{QueueSetup, Virtqueue};
use virtio_device::{Area, DeviceFault, Event, Features, GuestPhysAddr, GuestRam, OutOfRange};
use virtio_device::{QueueFault, Region, Status};

const SIZE: u16 = 8;
const RAM_BYTES: u64 = 0x1_0000;
const DATA: u64 = 0x8000;
const TABLE: u64 = 0x4000;
const ALL: Features = Features::from_bits(u64::MAX);

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A queue at 0 whose rings the test writes itself.
struct Liar {
    ram: VecRam,
    setup: QueueSetup,
    queue: Virtqueue,
    chain: Chain,
}

impl Liar {
    fn new(features: Features) -> Self {
        let ram = VecRam::new(RAM_BYTES as usize);
        let setup = *DriverQueue::at(0.into(), SIZE, false).setup();
        let queue = Virtqueue::new(&setup, 256, features, &ram).unwrap();
        Self { ram, setup, queue, chain: Chain::with_room_for(SIZE) }
    }

    fn descriptor_at(&self, at: u64, address: u64, bytes: u32, flags: u16, next: u16) -> &Self {
        self.ram.write_u64(at.into(), address).unwrap();
        self.ram.write_u32((at + 8).into(), bytes).unwrap();
        self.ram.write_u16((at + 12).into(), flags).unwrap();
        self.ram.write_u16((at + 14).into(), next).unwrap();
        self
    }

    fn descriptor(&self, index: u16, address: u64, bytes: u32, flags: u16, next: u16) -> &Self {
        self.descriptor_at(16 * u64::from(index), address, bytes, flags, next)
    }

    fn available(&self, index: u16) {
        let at = self.setup.available_ring.as_u64() + 2;
        self.ram.write_u16(at.into(), index).unwrap();
    }

    /// Offers descriptor 0 (the ring is zeroed) and takes it.
    fn pop(&mut self) -> Result<bool, QueueFault> {
        self.available(1);
        self.queue.pop(&self.ram, &mut self.chain)
    }
}

#[test]
fn a_queue_is_not_enabled_where_it_cannot_be() {
    let ram = VecRam::new(RAM_BYTES as usize);
    let good = *DriverQueue::at(0.into(), SIZE, false).setup();
    let enable = |setup: QueueSetup| Virtqueue::new(&setup, 256, ALL, &ram).map(|_| ());
    assert_eq!(enable(good), Ok(()));
    for size in [0, 3, 512, 0x8000, 0xffff] {
        assert_eq!(enable(QueueSetup { size, ..good }), Err(QueueFault::Size { size, maximum: 256 }));
    }
    for address in [RAM_BYTES - 16, RAM_BYTES, !15] {
        let address = GuestPhysAddr::new(address);
        for (setup, area, bytes) in [
            (QueueSetup { descriptor_table: address, ..good }, Area::DescriptorTable, 128),
            (QueueSetup { available_ring: address, ..good }, Area::AvailableRing, 22),
            (QueueSetup { used_ring: address, ..good }, Area::UsedRing, 70),
        ] {
            assert_eq!(enable(setup), Err(QueueFault::AreaOutOfRam { area, address, bytes }));
        }
    }
    for (setup, area, address) in [
        (QueueSetup { descriptor_table: 8.into(), ..good }, Area::DescriptorTable, 8u64),
        (QueueSetup { available_ring: 129.into(), ..good }, Area::AvailableRing, 129),
        (QueueSetup { used_ring: 258.into(), ..good }, Area::UsedRing, 258),
    ] {
        let address = address.into();
        assert_eq!(enable(setup), Err(QueueFault::AreaMisaligned { area, address }));
    }
}

#[test]
fn an_available_index_that_jumps_is_a_fault() {
    let mut liar = Liar::new(Features::NONE);
    liar.available(SIZE + 1);
    let fault = QueueFault::AvailableIndexJumped { device_at: 0, driver_at: 9, size: 8 };
    assert_eq!(liar.queue.pop(&liar.ram, &mut liar.chain), Err(fault));
    liar.available(0xffff); // backwards
    assert!(liar.queue.pop(&liar.ram, &mut liar.chain).is_err());
    assert!(liar.queue.request_notify(&liar.ram).is_err());
}

#[test]
fn a_head_or_next_outside_the_table_is_a_fault() {
    let mut liar = Liar::new(Features::NONE);
    liar.descriptor(0, DATA, 1, NEXT, SIZE);
    let fault = QueueFault::NextOutOfTable { head: 0, next: 8, table_size: 8 };
    assert_eq!(liar.pop(), Err(fault));
    liar.ram.write_u16((liar.setup.available_ring.as_u64() + 4).into(), SIZE).unwrap();
    assert_eq!(liar.pop(), Err(QueueFault::HeadOutOfTable { head: 8, size: 8 }));
}

#[test]
fn a_loop_is_a_fault() {
    let mut liar = Liar::new(ALL);
    liar.descriptor(0, DATA, 1, NEXT, 1).descriptor(1, DATA, 1, NEXT, 0);
    assert_eq!(liar.pop(), Err(QueueFault::Loop { head: 0 }));

    let mut liar = Liar::new(ALL);
    liar.descriptor(0, TABLE, 32, INDIRECT, 0);
    liar.descriptor_at(TABLE, DATA, 1, NEXT, 1).descriptor_at(TABLE + 16, DATA, 1, NEXT, 0);
    assert_eq!(liar.pop(), Err(QueueFault::Loop { head: 0 }));
}

fn too_long() -> QueueFault {
    QueueFault::ChainTooLong { head: 0, limit: SIZE }
}

#[test]
fn a_chain_longer_than_the_queue_is_a_fault() {
    let mut liar = Liar::new(ALL);
    liar.descriptor(0, TABLE, 16 * 9, INDIRECT, 0);
    for index in 0..9 {
        let flags = if index < 8 { NEXT } else { 0 };
        liar.descriptor_at(TABLE + 16 * index, DATA, 1, flags, index as u16 + 1);
    }
    assert_eq!(liar.pop(), Err(too_long()));
    // Exactly as long as the queue is right, also with direct descriptors before the table.
    liar.descriptor(0, DATA, 1, NEXT, 1).descriptor(1, TABLE + 32, 16 * 7, INDIRECT, 0);
    for index in 0..7 {
        let flags = if index < 6 { NEXT } else { 0 };
        liar.descriptor_at(TABLE + 32 + 16 * index, DATA, 1, flags, index as u16 + 1);
    }
    assert_eq!(liar.pop(), Ok(true));
    assert_eq!(liar.chain.readable().len(), 8);
}

#[test]
fn buffers_must_be_memory_of_some_length() {
    for (address, bytes, fault) in [
        (DATA, 0, QueueFault::ZeroLength { head: 0 }),
        (RAM_BYTES - 1, 2, out_of_ram(RAM_BYTES - 1, 2)),
        (u64::MAX, 1, out_of_ram(u64::MAX, 1)),
        (u64::MAX - 3, u32::MAX, out_of_ram(u64::MAX - 3, u32::MAX)),
    ] {
        let mut liar = Liar::new(Features::NONE);
        liar.descriptor(0, address, bytes, 0, 0);
        assert_eq!(liar.pop(), Err(fault));
    }
}

fn out_of_ram(address: u64, bytes: u32) -> QueueFault {
    QueueFault::BufferOutOfRam { head: 0, address: address.into(), bytes }
}

#[test]
fn a_readable_buffer_behind_a_writable_one_is_a_fault() {
    let mut liar = Liar::new(Features::NONE);
    liar.descriptor(0, DATA, 1, NEXT | WRITE, 1).descriptor(1, DATA, 1, 0, 0);
    assert_eq!(liar.pop(), Err(QueueFault::ReadableAfterWritable { head: 0 }));
}

#[test]
fn more_bytes_than_the_used_ring_can_say_are_a_fault() {
    /// RAM that claims to be everywhere: 4 GiB of buffers without having them.
    struct Everywhere(VecRam);
    impl GuestRam for Everywhere {
        fn read(&self, address: GuestPhysAddr, into: &mut [u8]) -> Result<(), OutOfRange> {
            self.0.read(address, into)
        }
        fn write(&self, address: GuestPhysAddr, from: &[u8]) -> Result<(), OutOfRange> {
            self.0.write(address, from)
        }
        fn contains(&self, _: GuestPhysAddr, _: u64) -> bool {
            true
        }
        fn load_acquire_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange> {
            self.0.load_acquire_u16(address)
        }
        fn store_release_u16(&self, address: GuestPhysAddr, value: u16) -> Result<(), OutOfRange> {
            self.0.store_release_u16(address, value)
        }
    }
    for second in [0, WRITE] {
        let mut liar = Liar::new(Features::NONE);
        liar.descriptor(0, 0, u32::MAX, NEXT, 1).descriptor(1, 0, 1, second, 0);
        liar.available(1);
        let ram = Everywhere(liar.ram);
        let result = liar.queue.pop(&ram, &mut liar.chain);
        assert_eq!(result, Err(QueueFault::ChainTooLarge { head: 0 }));
    }
}

#[test]
fn indirect_tables_keep_their_rules() {
    let cases: [(Features, u64, u32, u16, QueueFault); 7] = [
        (Features::NONE, TABLE, 16, 0, QueueFault::IndirectNotNegotiated { head: 0 }),
        (ALL, TABLE, 16, NEXT, QueueFault::IndirectWithNext { head: 0 }),
        (ALL, TABLE, 0, 0, QueueFault::IndirectTableSize { head: 0, bytes: 0 }),
        (ALL, TABLE, 17, 0, QueueFault::IndirectTableSize { head: 0, bytes: 17 }),
        (ALL, TABLE, 1 << 20, 0, QueueFault::IndirectTableSize { head: 0, bytes: 1 << 20 }),
        (ALL, RAM_BYTES - 16, 32, 0, table_out_of_ram(RAM_BYTES - 16, 32)),
        (ALL, u64::MAX - 15, 32, 0, table_out_of_ram(u64::MAX - 15, 32)),
    ];
    for (features, address, bytes, flags, fault) in cases {
        let mut liar = Liar::new(features);
        liar.descriptor(0, address, bytes, INDIRECT | flags, 1);
        assert_eq!(liar.pop(), Err(fault));
    }
    let mut liar = Liar::new(ALL);
    liar.descriptor(0, TABLE, 16, INDIRECT, 0).descriptor_at(TABLE, TABLE, 16, INDIRECT, 0);
    assert_eq!(liar.pop(), Err(QueueFault::IndirectNested { head: 0 }));
    liar.descriptor_at(TABLE, DATA, 1, NEXT, 1);
    let fault = QueueFault::NextOutOfTable { head: 0, next: 1, table_size: 1 };
    assert_eq!(liar.pop(), Err(fault));
    // The WRITE flag of the reference itself means nothing (2.7.5.3.2).
    liar.descriptor(0, TABLE, 16, INDIRECT | WRITE, 0).descriptor_at(TABLE, DATA, 3, 0, 0);
    assert_eq!(liar.pop(), Ok(true));
    assert_eq!((liar.chain.readable_bytes(), liar.chain.writable_bytes()), (3, 0));
}

fn table_out_of_ram(address: u64, bytes: u32) -> QueueFault {
    QueueFault::IndirectTableOutOfRam { head: 0, address: address.into(), bytes }
}

#[test]
fn a_fault_stops_the_device_names_itself_and_ends_with_the_reset() {
    let ram = VecRam::new(NetDriver::ram_bytes(SIZE));
    let mut function = NetFunction::net(NetConfig::new([2, 0, 0, 0, 0, 1]), 0);
    let wanted = Features::VERSION_1;
    let mut driver = NetDriver::new(&mut function, &ram, SIZE, wanted);
    let outside = Buffer { address: (1 << 40).into(), bytes: 99, writable: false };
    driver.transmit.offer(&ram, &[outside]).unwrap();
    let _ = function.transmit(&ram, &mut VecSink::default());

    assert!(!function.is_live() && function.status().has(Status::DEVICE_NEEDS_RESET));
    let fault = function.fault().unwrap();
    assert!(matches!(fault, DeviceFault { queue: TRANSMIT_QUEUE, fault: QueueFault::BufferOutOfRam { .. } }));
    let named = fault.to_string();
    assert!(named.contains("queue 1") && named.contains("99 bytes at gpa:0x10000000000"), "{named}");
    assert!(function.interrupt_line(), "the driver is told (2.1.2)");
    assert_eq!(function.read(Region::Isr, 0, 1), 2);
    assert_eq!(NetDriver::notify(&mut function, &ram, TRANSMIT_QUEUE), Event::Nothing);

    let fresh = VecRam::new(NetDriver::ram_bytes(SIZE));
    let mut driver = NetDriver::new(&mut function, &fresh, SIZE, wanted);
    assert!(function.fault().is_none() && function.faults() == 1);
    assert!(driver.send(&fresh, &[0; 60]));
    assert_eq!(function.transmit(&fresh, &mut VecSink::default()).chains, 1);
}

#[test]
fn a_queue_enabled_nowhere_needs_a_reset_before_the_driver_is_ready() {
    let ram = VecRam::new(0x1000);
    let mut function = NetFunction::net(NetConfig::new([2, 0, 0, 0, 0, 1]), 0);
    let far = DriverQueue::at(0x10_0000.into(), SIZE, false);
    bring_up(&mut function, &ram, Features::VERSION_1, &[&far]);
    assert!(function.status().has(Status::DEVICE_NEEDS_RESET) && !function.is_live());
    assert!(matches!(
        function.fault(),
        Some(DeviceFault { queue: 0, fault: QueueFault::AreaOutOfRam { .. } })
    ));
}

#[test]
fn features_that_were_not_offered_or_legacy_are_refused() {
    for chosen in [0, Features::VERSION_1.bits() | 1 << 50, Features::EVENT_IDX.bits()] {
        let ram = VecRam::new(16);
        let mut function = NetFunction::net(NetConfig::new([2, 0, 0, 0, 0, 1]), 0);
        let _ = function.write(&ram, Region::Common, 0x14, 1, 3);
        for select in [0u64, 1] {
            let _ = function.write(&ram, Region::Common, 0x08, 4, select);
            let _ = function.write(&ram, Region::Common, 0x0c, 4, (chosen >> (32 * select)) as u32 as u64);
        }
        let _ = function.write(&ram, Region::Common, 0x14, 1, 0x0b);
        assert_eq!(function.read(Region::Common, 0x14, 1), 3, "FEATURES_OK stays clear");
        let _ = function.write(&ram, Region::Common, 0x14, 1, 0x0f);
        assert!(!function.is_live());
    }
}

/// RAM that records whether the device ever wrote outside what it was given.
struct Guarded {
    ram: VecRam,
    accesses: core::cell::Cell<u64>,
}

impl Guarded {
    fn count(&self) {
        self.accesses.set(self.accesses.get() + 1);
    }
}

impl GuestRam for Guarded {
    fn read(&self, address: GuestPhysAddr, into: &mut [u8]) -> Result<(), OutOfRange> {
        self.count();
        self.ram.read(address, into)
    }
    fn write(&self, address: GuestPhysAddr, from: &[u8]) -> Result<(), OutOfRange> {
        self.count();
        assert!(self.ram.contains(address, from.len() as u64), "a write outside guest RAM");
        self.ram.write(address, from)
    }
    fn contains(&self, address: GuestPhysAddr, bytes: u64) -> bool {
        self.ram.contains(address, bytes)
    }
    fn load_acquire_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange> {
        self.count();
        self.ram.load_acquire_u16(address)
    }
    fn store_release_u16(&self, address: GuestPhysAddr, value: u16) -> Result<(), OutOfRange> {
        self.count();
        assert!(self.ram.contains(address, 2), "a write outside guest RAM");
        self.ram.store_release_u16(address, value)
    }
}

/// Most accesses that a queue's worth of chains of a queue's length each can cost, with their
/// ring entries, headers, and segments.
fn access_bound() -> u64 {
    let size = 256;
    size * (2 * size + 16)
}

#[derive(Clone, Debug)]
enum Act {
    Register(u8, u32, u8, u64),
    Read(u8, u32, u8),
    /// Random bytes somewhere in RAM: descriptors, rings and buffers all lie there.
    Scribble(u64, Vec<u8>),
    /// A step of the right initialization, so that the live device is reached too.
    BringUp(bool),
    Offer(u16, Vec<(u64, u32, bool)>),
    Transmit,
    Receive(Vec<usize>),
    Msix(bool),
    Pass(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let address = prop_oneof![0u64..0x3000, Just(u64::MAX), any::<u64>()];
    prop_oneof![
        4 => (0u8..4, 0u32..0x48, prop_oneof![Just(1u8), Just(2), Just(4), Just(8), any::<u8>()],
              prop_oneof![0u64..16, any::<u64>()]).prop_map(|(r, o, s, v)| Act::Register(r, o, s, v)),
        1 => (0u8..4, any::<u32>(), any::<u8>()).prop_map(|(r, o, s)| Act::Read(r, o, s)),
        4 => (0u64..0x1000, proptest::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Act::Scribble(at, bytes)),
        2 => any::<bool>().prop_map(Act::BringUp),
        4 => (0u16..2, proptest::collection::vec((address, 0u32..0x900, any::<bool>()), 1..6))
            .prop_map(|(queue, buffers)| Act::Offer(queue, buffers)),
        4 => Just(Act::Transmit),
        4 => proptest::collection::vec(0usize..1600, 0..20).prop_map(Act::Receive),
        1 => any::<bool>().prop_map(Act::Msix),
        1 => any::<u64>().prop_map(Act::Pass),
    ]
}

fn region(number: u8) -> Region {
    [Region::Common, Region::Notify, Region::Isr, Region::Device][usize::from(number)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Any accesses, any memory: no panic, bounded work, no write outside the guest's RAM, and a
    /// device with a fault is a device that asks for a reset.
    #[test]
    fn nothing_a_guest_does_gets_out(acts in proptest::collection::vec(act(), 1..120)) {
        const QUEUE: u16 = 64;
        let guarded = Guarded { ram: VecRam::new(0x3000), accesses: core::cell::Cell::new(0) };
        let mut function = NetFunction::net(NetConfig::new([2, 0, 0, 0, 0, 1]), 3);
        let mut sink = VecSink::default();
        let mut now_ns = 0u64;
        let second = DriverQueue::bytes(QUEUE).next_multiple_of(16);
        let lay_out = |event_index| [
            DriverQueue::at(0.into(), QUEUE, event_index),
            DriverQueue::at(second.into(), QUEUE, event_index),
        ];
        let mut queues = lay_out(false);
        for act in acts {
            let before = guarded.accesses.get();
            match act {
                Act::Register(to, offset, size, value) => {
                    let _ = function.write(&guarded, region(to), offset, size, value);
                }
                Act::Read(from, offset, size) => { function.read(region(from), offset, size); }
                Act::Scribble(at, bytes) => guarded.ram.write(at.into(), &bytes).unwrap(),
                Act::BringUp(event_index) => {
                    guarded.ram.write(0.into(), &[0; 0x1000]).unwrap();
                    queues = lay_out(event_index);
                    let mut wanted = Features::VERSION_1 | Features::INDIRECT_DESC;
                    if event_index {
                        wanted = wanted | Features::EVENT_IDX;
                    }
                    bring_up(&mut function, &guarded.ram, wanted, &[&queues[0], &queues[1]]);
                    prop_assert!(function.is_live());
                }
                Act::Offer(queue, buffers) => {
                    let buffers: Vec<Buffer> = buffers.into_iter().map(|(address, bytes, writable)| {
                        Buffer { address: address.into(), bytes, writable }
                    }).collect();
                    queues[usize::from(queue)].offer(&guarded.ram, &buffers);
                }
                Act::Transmit => { let _ = function.transmit(&guarded, &mut sink); }
                Act::Receive(lengths) => {
                    let mut source = VecSource(lengths.into_iter().map(|n| vec![0x88; n]).collect());
                    let _ = function.receive(&guarded, &mut source, now_ns);
                }
                Act::Msix(enabled) => function.set_msix_enabled(enabled),
                Act::Pass(time_ns) => now_ns = now_ns.saturating_add(time_ns),
            }
            prop_assert!(guarded.accesses.get() - before <= access_bound());
            if function.fault().is_some() {
                prop_assert!(function.status().has(Status::DEVICE_NEEDS_RESET));
                prop_assert!(!function.is_live() && function.due_ns().is_none());
            }
            if !function.is_live() {
                prop_assert!(function.due_ns().is_none(), "a debt without a queue");
            }
            let messages = std::iter::from_fn(|| function.take_message()).count();
            prop_assert!(messages <= 3);
            for frame in sink.frames.drain(..) {
                prop_assert!((14..=1518).contains(&frame.len()));
            }
        }
    }
}
