//! A driver for tests: the other side of the queues, and a driver of the network device.
//!
//! It does what VIRTIO 1.2 tells drivers to do, so what it cannot do with a device is the
//! device's fault. A test that wants a driver that lies writes into the [`VecRam`] itself.
//! Its memory is the test's own; an access outside it is a fault of the test and panics.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use super::VecRam;
use crate::features::Features;
use crate::function::{DeviceModel, Event, Function};
use crate::net::{FrameSink, FrameSource, HEADER_BYTES, NetFunction, RECEIVE_QUEUE};
use crate::net::{PLAIN_RECEIVE, TRANSMIT_QUEUE};
use crate::queue::QueueSetup;
use crate::ram::{GuestPhysAddr, GuestRam, OutOfRange};
use crate::registers::{NOTIFY_MULTIPLIER_BYTES, Region};
use crate::status::Status;

/// A buffer to offer the device.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub address: GuestPhysAddr,
    pub bytes: u32,
    pub writable: bool,
}

fn mine<T>(result: Result<T, OutOfRange>) -> T {
    result.expect("the test's driver stays in its memory")
}

/// The driver's side of a split queue.
#[derive(Debug)]
pub struct DriverQueue {
    setup: QueueSetup,
    event_index: bool,
    free: Vec<u16>,
    /// Descriptors of the chain that begins with each.
    chains: Vec<Vec<u16>>,
    next_available: u16,
    next_used: u16,
}

impl DriverQueue {
    /// Bytes that a queue of `size` entries takes, with alignment.
    pub const fn bytes(size: u16) -> u64 {
        (16 * size as u64) + (6 + 2 * size as u64).next_multiple_of(4) + 6 + 8 * size as u64
    }

    /// A queue laid out from `base` (16-byte aligned) on, in zeroed memory.
    pub fn at(base: GuestPhysAddr, size: u16, event_index: bool) -> Self {
        let available_ring = base.as_u64() + 16 * u64::from(size);
        let used_ring = (available_ring + 6 + 2 * u64::from(size)).next_multiple_of(4);
        Self {
            setup: QueueSetup {
                size,
                descriptor_table: base,
                available_ring: available_ring.into(),
                used_ring: used_ring.into(),
            },
            event_index,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); usize::from(size)],
            next_available: 0,
            next_used: 0,
        }
    }

    pub fn setup(&self) -> &QueueSetup {
        &self.setup
    }

    /// Descriptors that are not offered.
    pub fn free_descriptors(&self) -> usize {
        self.free.len()
    }

    fn write_descriptor(ram: &VecRam, at: u64, buffer: Buffer, flags: u16, next: u16) {
        mine(ram.write_u64(at.into(), buffer.address.as_u64()));
        mine(ram.write_u32((at + 8).into(), buffer.bytes));
        mine(ram.write_u16((at + 12).into(), flags | if buffer.writable { 2 } else { 0 }));
        mine(ram.write_u16((at + 14).into(), next));
    }

    /// Offers a chain; its head, or `None` if there are not enough descriptors.
    pub fn offer(&mut self, ram: &VecRam, buffers: &[Buffer]) -> Option<u16> {
        let first_free = self.free.len().checked_sub(buffers.len())?;
        let mut taken = self.free.split_off(first_free);
        taken.reverse();
        for (position, (&index, &buffer)) in taken.iter().zip(buffers).enumerate() {
            let next = taken.get(position + 1).copied();
            let at = self.setup.descriptor_table.as_u64() + 16 * u64::from(index);
            let flags = if next.is_some() { 1 } else { 0 };
            Self::write_descriptor(ram, at, buffer, flags, next.unwrap_or(0));
        }
        Some(self.make_available(ram, taken))
    }

    /// Offers a chain through an indirect table to be written at `table`.
    pub fn offer_indirect(&mut self, ram: &VecRam, table: GuestPhysAddr, buffers: &[Buffer]) -> Option<u16> {
        for (at, next, &buffer) in (0..).zip(1..).zip(buffers).map(|((a, n), b)| (a, n, b)) {
            let last = usize::from(next) == buffers.len();
            let flags = if last { 0 } else { 1 };
            Self::write_descriptor(ram, table.as_u64() + 16 * at, buffer, flags, next);
        }
        let index = self.free.pop()?;
        let bytes = u32::try_from(16 * buffers.len()).expect("a table of a test");
        let reference = Buffer { address: table, bytes, writable: false };
        let at = self.setup.descriptor_table.as_u64() + 16 * u64::from(index);
        Self::write_descriptor(ram, at, reference, 4, 0);
        Some(self.make_available(ram, vec![index]))
    }

    fn make_available(&mut self, ram: &VecRam, descriptors: Vec<u16>) -> u16 {
        let head = descriptors[0];
        self.chains[usize::from(head)] = descriptors;
        let ring = self.setup.available_ring.as_u64();
        let slot = u64::from(self.next_available % self.setup.size);
        mine(ram.write_u16((ring + 4 + 2 * slot).into(), head));
        self.next_available = self.next_available.wrapping_add(1);
        mine(ram.store_release_u16((ring + 2).into(), self.next_available));
        head
    }

    /// Whether the device wants to hear of the last `offered` chains (2.7.10.1).
    pub fn must_notify(&self, ram: &VecRam, offered: u16) -> bool {
        ram.fence();
        let ring = self.setup.used_ring.as_u64();
        if self.event_index {
            let event = ring + 4 + 8 * u64::from(self.setup.size);
            let event = mine(ram.load_acquire_u16(event.into()));
            self.next_available.wrapping_sub(event).wrapping_sub(1) < offered
        } else {
            mine(ram.load_acquire_u16(ring.into())) & 1 == 0
        }
    }

    /// Takes a used chain: its head and the bytes the device wrote.
    pub fn take_used(&mut self, ram: &VecRam) -> Option<(u16, u32)> {
        let ring = self.setup.used_ring.as_u64();
        if mine(ram.load_acquire_u16((ring + 2).into())) == self.next_used {
            return None;
        }
        let entry = ring + 4 + 8 * u64::from(self.next_used % self.setup.size);
        let head = mine(ram.read_u32(entry.into()));
        let written_bytes = mine(ram.read_u32((entry + 4).into()));
        self.next_used = self.next_used.wrapping_add(1);
        let head = u16::try_from(head).expect("the device returns a head");
        let descriptors = core::mem::take(&mut self.chains[usize::from(head)]);
        assert!(!descriptors.is_empty(), "the device returned what it was not given");
        self.free.extend(descriptors);
        Some((head, written_bytes))
    }

    /// Tells the device not to interrupt (2.7.7.1). With event indices that is an index as far
    /// away as can be.
    pub fn refuse_interrupts(&self, ram: &VecRam) {
        let ring = self.setup.available_ring.as_u64();
        if self.event_index {
            self.write_used_event(ram, self.next_used.wrapping_add(0x8000));
        } else {
            mine(ram.store_release_u16(ring.into(), 1));
        }
    }

    /// Asks for an interrupt at the next used chain. True if there is one already, which the
    /// driver must then take without.
    pub fn ask_for_interrupt(&self, ram: &VecRam) -> bool {
        let ring = self.setup.available_ring.as_u64();
        if self.event_index {
            self.write_used_event(ram, self.next_used);
        } else {
            mine(ram.store_release_u16(ring.into(), 0));
        }
        ram.fence();
        let used_index = self.setup.used_ring.as_u64() + 2;
        mine(ram.load_acquire_u16(used_index.into())) != self.next_used
    }

    fn write_used_event(&self, ram: &VecRam, index: u16) {
        let at = self.setup.available_ring.as_u64() + 4 + 2 * u64::from(self.setup.size);
        mine(ram.store_release_u16(at.into(), index));
    }
}

/// Brings a device up by its registers, as 3.1.1 and 4.1.5.1 have it, with the features of
/// `wanted` that it offers. Tells what was negotiated.
pub fn bring_up<M: DeviceModel>(
    function: &mut Function<M>,
    ram: &VecRam,
    wanted: Features,
    queues: &[&DriverQueue],
) -> Features {
    let mut write = |offset, size, value: u64| {
        let _ = function.write(ram, Region::Common, offset, size, value);
    };
    let known = u64::from(Status::ACKNOWLEDGE.bits() | Status::DRIVER.bits());
    write(0x14, 1, 0);
    write(0x14, 1, known);
    let offered = [0, 1].map(|select| {
        let _ = function.write(ram, Region::Common, 0x00, 4, select);
        function.read(Region::Common, 0x04, 4)
    });
    let chosen = Features::from_bits((offered[0] | offered[1] << 32) & wanted.bits());
    let mut write = |offset, size, value: u64| {
        let _ = function.write(ram, Region::Common, offset, size, value);
    };
    for select in [0, 1] {
        write(0x08, 4, select);
        write(0x0c, 4, (chosen.bits() >> (32 * select)) & 0xffff_ffff);
    }
    let agreed = known | u64::from(Status::FEATURES_OK.bits());
    write(0x14, 1, agreed);
    for (index, queue) in (0..).zip(queues) {
        let setup = queue.setup();
        write(0x16, 2, index);
        write(0x18, 2, u64::from(setup.size));
        let areas = [(0x20, setup.descriptor_table), (0x28, setup.available_ring), (0x30, setup.used_ring)];
        for (offset, address) in areas {
            write(offset, 4, address.as_u64() & 0xffff_ffff);
            write(offset + 4, 4, address.as_u64() >> 32);
        }
        write(0x1c, 2, 1);
    }
    write(0x14, 1, agreed | u64::from(Status::DRIVER_OK.bits()));
    chosen
}

/// Frames that the guest sent.
#[derive(Debug, Default)]
pub struct VecSink {
    pub frames: Vec<Vec<u8>>,
    pending: Vec<u8>,
    /// Refuse buffers, as a node without memory does.
    pub exhausted: bool,
}

impl FrameSink for VecSink {
    fn reserve(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if self.exhausted {
            return None;
        }
        self.pending = vec![0; bytes];
        Some(&mut self.pending)
    }

    fn commit(&mut self) {
        self.frames.push(core::mem::take(&mut self.pending));
    }
}

/// Frames for the guest, first to last.
#[derive(Debug, Default)]
pub struct VecSource(pub VecDeque<Vec<u8>>);

impl FrameSource for VecSource {
    fn peek(&mut self) -> Option<&[u8]> {
        self.0.front().map(Vec::as_slice)
    }

    fn consume(&mut self) {
        self.0.pop_front();
    }
}

/// A network driver with `size` receive buffers of one page half each.
#[derive(Debug)]
pub struct NetDriver {
    pub receive: DriverQueue,
    pub transmit: DriverQueue,
    buffers: u64,
    indirect: bool,
}

impl NetDriver {
    const BUFFER_BYTES: u64 = 2048;
    const BUFFER_BYTES_U32: u32 = 2048;

    /// Memory the driver wants, from 0 on.
    pub const fn ram_bytes(size: u16) -> usize {
        (Self::buffers_at(size) + 2 * size as u64 * Self::BUFFER_BYTES) as usize
    }

    const fn buffers_at(size: u16) -> u64 {
        (2 * DriverQueue::bytes(size).next_multiple_of(16)).next_multiple_of(Self::BUFFER_BYTES)
    }

    /// Brings the card up and offers it all receive buffers.
    pub fn new(function: &mut NetFunction, ram: &VecRam, size: u16, wanted: Features) -> Self {
        let event_index = wanted.has(Features::EVENT_IDX);
        let second = DriverQueue::bytes(size).next_multiple_of(16);
        let mut driver = Self {
            receive: DriverQueue::at(0.into(), size, event_index),
            transmit: DriverQueue::at(second.into(), size, event_index),
            buffers: Self::buffers_at(size),
            indirect: wanted.has(Features::INDIRECT_DESC),
        };
        bring_up(function, ram, wanted, &[&driver.receive, &driver.transmit]);
        assert!(function.is_live(), "the device refused a right driver: {:?}", function.fault());
        while driver.refill_one(ram) {}
        driver
    }

    fn buffer(&self, queue: u16, head: u16) -> GuestPhysAddr {
        let number = u64::from(queue * self.receive.setup().size + head);
        (self.buffers + number * Self::BUFFER_BYTES).into()
    }

    fn refill_one(&mut self, ram: &VecRam) -> bool {
        // The next head is known: it is the last of the free descriptors.
        let Some(&head) = self.receive.free.last() else { return false };
        let address = self.buffer(RECEIVE_QUEUE, head);
        let buffer = Buffer { address, bytes: Self::BUFFER_BYTES_U32, writable: true };
        self.receive.offer(ram, &[buffer]).is_some()
    }

    /// Puts a frame into the transmit queue; false if it is full.
    pub fn send(&mut self, ram: &VecRam, frame: &[u8]) -> bool {
        while self.transmit.take_used(ram).is_some() {}
        let needed = if self.indirect { 1 } else { 2 };
        if self.transmit.free.len() < needed {
            return false;
        }
        let Some(&head) = self.transmit.free.last() else { return false };
        let header = self.buffer(TRANSMIT_QUEUE, head).as_u64();
        let data = header + 64;
        mine(ram.write(header.into(), &[0; HEADER_BYTES]));
        mine(ram.write(data.into(), frame));
        let bytes = u32::try_from(frame.len()).expect("a frame of a test");
        let header_bytes = HEADER_BYTES as u32;
        let chain = [
            Buffer { address: header.into(), bytes: header_bytes, writable: false },
            Buffer { address: data.into(), bytes, writable: false },
        ];
        if self.indirect {
            self.transmit.offer_indirect(ram, (header + 16).into(), &chain).is_some()
        } else {
            self.transmit.offer(ram, &chain).is_some()
        }
    }

    /// Takes the received frames and offers their buffers again.
    pub fn take_received(&mut self, ram: &VecRam) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while let Some((head, written_bytes)) = self.receive.take_used(ram) {
            if written_bytes > 0 {
                let mut bytes = vec![0; written_bytes as usize];
                mine(ram.read(self.buffer(RECEIVE_QUEUE, head), &mut bytes));
                let frame = bytes.split_off(HEADER_BYTES);
                assert_eq!(bytes, PLAIN_RECEIVE, "header of a received frame");
                frames.push(frame);
            }
            self.refill_one(ram);
        }
        frames
    }

    /// Rings the doorbell of a queue.
    pub fn notify(function: &mut NetFunction, ram: &VecRam, queue: u16) -> Event {
        let offset = u32::from(queue) * NOTIFY_MULTIPLIER_BYTES;
        function.write(ram, Region::Notify, offset, 2, u64::from(queue))
    }
}
