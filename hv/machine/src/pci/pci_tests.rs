use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use super::*;

extern crate std;

type Access = (Region, u32, u8, u64);

/// An endpoint that remembers its writes and answers reads with the offset.
#[derive(Clone, Default)]
struct Recorder {
    writes: Arc<Mutex<Vec<Access>>>,
    interrupts: Arc<AtomicBool>,
}

impl Endpoint for Recorder {
    fn read(&mut self, region: Region, offset: u32, bytes: u8) -> u64 {
        (region as u64) << 24 | u64::from(bytes) << 16 | u64::from(offset)
    }

    fn write(&mut self, region: Region, offset: u32, bytes: u8, value: u64) {
        self.writes.lock().unwrap().push((region, offset, bytes, value));
    }

    fn interrupt_line(&self) -> bool {
        self.interrupts.load(Ordering::Relaxed)
    }
}

const NET: Identity = Identity { virtio_type: 1, config_bytes: 12, queues: 2 };

fn bus_with(count: usize) -> (PciBus, Vec<Recorder>) {
    let mut bus = PciBus::new();
    let recorders =
        vec![Recorder::default(); count].into_iter().map(|_| Recorder::default()).collect::<Vec<_>>();
    for recorder in &recorders {
        assert!(bus.add(NET, Box::new(recorder.clone())).is_ok());
    }
    (bus, recorders)
}

fn read(bus: &mut PciBus, slot: u32, register: u32, bytes: usize) -> u32 {
    bus.write_address(1 << 31 | slot << 11 | register & 0xfc);
    bus.read_data((register & 3) as u16, bytes)
}

fn write(bus: &mut PciBus, slot: u32, register: u32, bytes: usize, value: u32) {
    bus.write_address(1 << 31 | slot << 11 | register & 0xfc);
    bus.write_data((register & 3) as u16, bytes, value);
}

#[test]
fn enumeration_finds_the_bridge_and_the_functions() {
    let (mut bus, _) = bus_with(1);
    assert_eq!(read(&mut bus, 0, 0, 4), 0x0d57_8086);
    assert_eq!(read(&mut bus, 0, 0x08, 4) >> 8, 0x06_0000);
    assert_eq!(read(&mut bus, 1, 0, 4), 0x1041_1af4);
    assert_eq!(read(&mut bus, 1, 0x08, 4), 0x0200_0001);
    assert_eq!(read(&mut bus, 2, 0, 4), u32::MAX);
    // Function 1 and bus 1 are empty, and a disabled address reads nothing.
    for address in [1 << 31 | 1 << 11 | 1 << 8, 1 << 31 | 1 << 16 | 1 << 11, 1 << 11] {
        bus.write_address(address);
        assert_eq!(bus.read_data(0, 4), u32::MAX);
    }
}

#[test]
fn bars_are_sized_moved_and_switched_off() {
    let (mut bus, recorders) = bus_with(1);
    let base = read(&mut bus, 1, 0x10, 4);
    assert_eq!(base, 0xc201);
    write(&mut bus, 1, 0x10, 4, u32::MAX);
    // A PC has 64 Ki ports; the upper half of an I/O BAR may be wired to zero (sec. 6.2.5.1).
    assert_eq!(read(&mut bus, 1, 0x10, 4), 0xff01);
    assert_eq!(read(&mut bus, 1, 0x18, 4), 0, "two BARs");
    write(&mut bus, 1, 0x10, 4, 0xd000);
    assert_eq!(bus.read_io(0xc200, 4), None);
    assert!(bus.write_io(0xd016, 2, 1));
    write(&mut bus, 1, 0x04, 2, 0);
    assert!(!bus.write_io(0xd016, 2, 2));
    assert_eq!(*recorders[0].writes.lock().unwrap(), [(Region::Common, 0x16, 2, 1)]);
}

#[test]
fn capabilities_name_regions_that_decode() {
    let (mut bus, recorders) = bus_with(1);
    let mut at = read(&mut bus, 1, 0x34, 1);
    let mut found = Vec::new();
    while at != 0 {
        assert_eq!(read(&mut bus, 1, at, 1), 9);
        let kind = read(&mut bus, 1, at + 3, 1);
        let bar = read(&mut bus, 1, at + 4, 1);
        let (offset, length) = (read(&mut bus, 1, at + 8, 4), read(&mut bus, 1, at + 12, 4));
        found.push((kind, bar, offset, length));
        at = read(&mut bus, 1, at + 1, 1);
    }
    assert_eq!(found, [(1, 0, 0, 0x3c), (3, 0, 0x40, 1), (4, 0, 0x80, 12), (2, 1, 0, 8), (5, 0, 0, 0)]);
    for (kind, bar, offset, _) in &found[..4] {
        let port = 0xc200 + 0x100 * *bar as u16 + *offset as u16;
        assert!(bus.write_io(port, 1, *kind));
    }
    let writes = recorders[0].writes.lock().unwrap().clone();
    let regions: Vec<_> = writes.iter().map(|access| (access.0, access.1)).collect();
    assert_eq!(regions, [(Region::Common, 0), (Region::Isr, 0), (Region::Device, 0), (Region::Notify, 0)]);
}

#[test]
fn a_device_without_configuration_has_no_capability_for_it() {
    let mut bus = PciBus::new();
    let entropy = Identity { virtio_type: 4, config_bytes: 0, queues: 1 };
    assert!(bus.add(entropy, Box::new(Recorder::default())).is_ok());
    let mut at = read(&mut bus, 1, 0x34, 1);
    let mut kinds = Vec::new();
    while at != 0 {
        kinds.push(read(&mut bus, 1, at + 3, 1));
        at = read(&mut bus, 1, at + 1, 1);
    }
    assert_eq!(kinds, [1, 3, 2, 5]);
}

#[test]
fn a_doorbell_is_one_write() {
    let (mut bus, recorders) = bus_with(2);
    assert!(bus.write_io(0xc504, 2, 1));
    assert_eq!(*recorders[1].writes.lock().unwrap(), [(Region::Notify, 4, 2, 1)]);
}

#[test]
fn configuration_space_is_a_way_to_the_registers_too() {
    let (mut bus, recorders) = bus_with(1);
    let capability = 0x40 + 16 + 16 + 16 + 20;
    write(&mut bus, 1, capability + 4, 1, 0);
    write(&mut bus, 1, capability + 8, 4, 0x14);
    write(&mut bus, 1, capability + 12, 4, 1);
    write(&mut bus, 1, capability + 16, 1, 0x0f);
    assert_eq!(*recorders[0].writes.lock().unwrap(), [(Region::Common, 0x14, 1, 0x0f)]);
    assert_eq!(read(&mut bus, 1, capability + 16, 4), 0x01_0014);
    // Windows that are not in a BAR, or of an odd length, reach nothing.
    for (bar, offset, length) in [(2, 0, 4), (0, 0x100, 4), (0, 0, 3), (0, u32::MAX, 4)] {
        write(&mut bus, 1, capability + 4, 1, bar);
        write(&mut bus, 1, capability + 8, 4, offset);
        write(&mut bus, 1, capability + 12, 4, length);
        assert_eq!(read(&mut bus, 1, capability + 16, 4), 0);
    }
}

fn lines(bus: &mut PciBus) -> Vec<LineChange> {
    let mut changes = Vec::new();
    bus.poll_lines(|change| changes.push(change));
    changes
}

#[test]
fn interrupts_share_lines_and_follow_every_source() {
    let (mut bus, recorders) = bus_with(10);
    recorders[0].interrupts.store(true, Ordering::Relaxed);
    let on = [LineChange::Pin { pin: 17, asserted: true }, LineChange::Isa { line: 11, asserted: true }];
    assert_eq!(lines(&mut bus), on);
    assert_eq!(lines(&mut bus), []);
    // Slot 9 shares the pin of slot 1.
    recorders[8].interrupts.store(true, Ordering::Relaxed);
    recorders[0].interrupts.store(false, Ordering::Relaxed);
    assert_eq!(lines(&mut bus), []);
    assert_ne!(read(&mut bus, 9, 0x06, 2) & 8, 0, "the status bit says who it is");
    assert_eq!(read(&mut bus, 1, 0x04, 4) & 8 << 16, 0);
    // Interrupt Disable takes the line back but leaves the status bit.
    write(&mut bus, 9, 0x04, 2, 0x401);
    assert_eq!(lines(&mut bus).len(), 2);
    assert_ne!(read(&mut bus, 9, 0x04, 4) & 8 << 16, 0);
}

#[test]
fn a_full_bus_gives_the_endpoint_back() {
    let (mut bus, _) = bus_with(31);
    assert!(bus.add(NET, Box::new(Recorder::default())).is_err());
}
