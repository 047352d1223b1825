//! A split queue of packets: who owns which buffer, and what may be believed of the device.
//!
//! A packet is its virtio header, in the queue's own memory, and one piece or more, in frames from
//! their first byte on (and in pages, on their way out). So the queue is one of *slots*, each with
//! descriptors of its own ([`QueueLayout`]). All of them but the pieces' addresses and lengths is
//! written once, as long as the packets of a slot have as many pieces as the one before: a slot
//! for one piece and one for six cost what they did the last time. The device never names anything
//! but the first descriptor of a slot in flight. Nothing the device can write is read back as a
//! place in memory.
//!
//! A slot in flight holds the caller's token `T`, the memory's owner. It comes back when the
//! device returns the slot, or by [`PacketQueue::reset`] once the device has been reset; there
//! is no third way, so memory the device may still write to cannot be given to anyone.
//!
//! Not taken: indirect descriptors for packets of one piece (one more memory read for the device,
//! no gain for chains of two); a header in front of the packet in the same frame (the packet would
//! not start at byte 0, on which netblk's path rests); and for the same reason mergeable receive
//! buffers (VIRTIO sec 5.1.6.4), whose second and later buffers carry data where the first has its
//! header: either the header lies before the packet in its frame, or 12 bytes of data lie where
//! headers do. A jumbo packet is received into a chain of frames instead.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{Ordering, fence};

use crate::layout::QueueLayout;
use crate::net::{HEADER_BYTES, UdpSegmentation};

/// Descriptor flags (VIRTIO sec 2.7.5).
pub(crate) const NEXT: u16 = 1;
pub(crate) const DEVICE_WRITES: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;
/// Available-ring flag: no interrupts, please (VIRTIO sec 2.7.7).
pub(crate) const NO_INTERRUPT: u16 = 1;
/// Used-ring flag: no notifications, please (VIRTIO sec 2.7.10).
pub(crate) const NO_NOTIFY: u16 = 1;

/// Memory shared with the device: one value at a time, at a checked and aligned offset, never a
/// reference. Little-endian, as VIRTIO 1.x is. `store_release_u16` makes all earlier writes
/// visible first; `load_acquire_u16` keeps later reads behind it.
pub trait RingMemory {
    fn read_u32(&self, offset: usize) -> u32;
    fn write_u16(&self, offset: usize, value: u16);
    fn write_u32(&self, offset: usize, value: u32);
    fn write_u64(&self, offset: usize, value: u64);
    fn load_acquire_u16(&self, offset: usize) -> u16;
    fn store_release_u16(&self, offset: usize, value: u16);
    /// The address at which the device finds `offset`.
    fn device_address(&self, offset: usize) -> u64;
}

/// Which way the packets of a queue go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A transmit queue.
    DeviceReads,
    /// A receive queue.
    DeviceWrites,
}

/// A contiguous piece of memory, as the device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    pub device_address: u64,
    pub bytes: u32,
}

/// A token that knows what its packet has behind the first piece.
pub trait PacketMemory {
    /// How many pieces there are. A packet has no more than its queue is laid out for.
    fn behind_count(&self) -> usize;

    /// Names so many pieces, in their order.
    fn each_behind(&self, each: impl FnMut(Segment));
}

/// Memory to hand to the device, and the token that owns it.
#[derive(Debug)]
pub struct Packet<T> {
    /// The first piece.
    pub device_address: u64,
    pub bytes: u32,
    /// Datagrams in one, on transmit.
    pub segmentation: Option<UdpSegmentation>,
    pub token: T,
}

/// What became of [`PacketQueue::submit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Submitted {
    pub packets: u16,
    /// The device wants to hear of it: ring the doorbell.
    pub notify: bool,
}

/// A packet that the device has returned.
#[derive(Debug)]
pub struct Used<T> {
    pub token: T,
    /// Bytes of the packet that the device wrote, header not counted; `None` when it wrote not
    /// even a whole header. At most what the packet's buffer held.
    pub written: Option<u32>,
}

/// The device wrote what cannot be true. Whose fault: the device's. From here on the queue is
/// dead until the device has been reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueFault {
    /// The used index claims more packets than are in flight.
    IndexJumped { claims: u16, in_flight: u16 },
    /// A used element names a descriptor that heads no packet.
    UnknownDescriptor { id: u32 },
    /// A used element names a packet that is not in flight: returned twice or never given.
    NotInFlight { slot: u16 },
    /// The device claims to have written beyond the end of the memory it was given.
    Overrun { written: u32, room: u32 },
}

impl fmt::Display for QueueFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            QueueFault::IndexJumped { claims, in_flight } => {
                write!(f, "the device returned {claims} packets where {in_flight} were in flight")
            }
            QueueFault::UnknownDescriptor { id } => {
                write!(f, "the device returned descriptor {id}, which heads no packet")
            }
            QueueFault::NotInFlight { slot } => {
                write!(f, "the device returned packet {slot}, which it did not have")
            }
            QueueFault::Overrun { written, room } => {
                write!(f, "the device claims {written} bytes written where it was given {room}")
            }
        }
    }
}

impl core::error::Error for QueueFault {}

struct Slot<T> {
    /// While the device has the slot.
    token: Option<T>,
    /// Bytes of the pieces together.
    bytes: u32,
    /// Pieces for which the slot's descriptors are linked.
    linked: u16,
    /// The slot's header is all zeros.
    plain: bool,
}

/// The driver's side of one split queue of packets.
pub struct PacketQueue<M, T> {
    memory: M,
    layout: QueueLayout,
    access: Access,
    event_index: bool,
    slots: Box<[Slot<T>]>,
    /// Slots not in flight; never more than there are, so pushing does not allocate.
    free: Vec<u16>,
    /// Free-running: packets made available since the queue was set up.
    made_available: u16,
    /// Free-running: packets taken back since then.
    taken: u16,
    fault: Option<QueueFault>,
}

impl<M: RingMemory, T: PacketMemory> PacketQueue<M, T> {
    /// A queue in `memory`, which is zeroed and holds at least `layout.bytes()`.
    pub fn new(memory: M, layout: QueueLayout, access: Access, event_index: bool) -> Self {
        let slots = layout.slots();
        let mut queue = PacketQueue {
            memory,
            layout,
            access,
            event_index,
            slots: (0..slots).map(|_| Slot { token: None, bytes: 0, linked: 1, plain: true }).collect(),
            free: Vec::with_capacity(usize::from(slots)),
            made_available: 0,
            taken: 0,
            fault: None,
        };
        queue.set_up();
        queue
    }

    /// Writes what stays the same for the queue's life, and starts the indices at zero.
    fn set_up(&mut self) {
        self.free.clear();
        // Slot 0 is used first: a queue that is never full keeps to few cache lines.
        for slot in (0..self.slot_count()).rev() {
            self.link_one(slot);
            if self.layout.is_indirect() {
                let header = self.memory.device_address(self.layout.header(slot));
                let at = self.layout.table_entry(slot, 0);
                self.write_descriptor(at, header, HEADER_BYTES, NEXT | self.writes(), 1);
            }
            self.free.push(slot);
        }
        (self.made_available, self.taken, self.fault) = (0, 0, None);
        self.memory.write_u16(self.layout.available_flags(), 0);
        self.memory.write_u16(self.layout.used_event(), 0);
        self.memory.write_u16(self.layout.used_flags(), 0);
        self.memory.write_u16(self.layout.available_event(), 0);
        self.memory.store_release_u16(self.layout.used_index(), 0);
        self.memory.store_release_u16(self.layout.available_index(), 0);
    }

    /// The flag of a descriptor that the device writes to, in a queue whose descriptors are.
    fn writes(&self) -> u16 {
        if self.access == Access::DeviceWrites { DEVICE_WRITES } else { 0 }
    }

    fn write_descriptor(&self, at: usize, address: u64, bytes: u32, flags: u16, next: u16) {
        self.memory.write_u64(at, address);
        self.memory.write_u32(at + 8, bytes);
        self.memory.write_u16(at + 12, flags);
        self.memory.write_u16(at + 14, next);
    }

    /// Links a slot's descriptors for a packet of one piece: its header, and the piece to come.
    #[cold]
    fn link_one(&mut self, slot: u16) {
        let first = self.layout.head(slot);
        let header = self.memory.device_address(self.layout.header(slot));
        let writes = self.writes();
        self.write_descriptor(self.layout.descriptor(first), header, HEADER_BYTES, NEXT | writes, first + 1);
        self.write_descriptor(self.layout.descriptor(first + 1), 0, 0, writes, 0);
        self.slots[usize::from(slot)].linked = 1;
    }

    /// Writes a packet's pieces into its slot's descriptors. Returns their bytes together.
    #[inline(always)]
    fn describe(&mut self, slot: u16, packet: &Packet<T>) -> u32 {
        let behind = packet.token.behind_count();
        if packet.segmentation.is_some() || !self.slots[usize::from(slot)].plain {
            self.write_header(slot, packet.segmentation);
        }
        if behind > 0 {
            return self.describe_several(slot, packet, behind);
        }
        if self.slots[usize::from(slot)].linked != 1 {
            self.link_one(slot);
        }
        let at = self.layout.descriptor(self.layout.head(slot) + 1);
        self.memory.write_u64(at, packet.device_address);
        self.memory.write_u32(at + 8, packet.bytes);
        packet.bytes
    }

    #[inline(never)]
    fn write_header(&mut self, slot: u16, segmentation: Option<UdpSegmentation>) {
        let (first, last) = segmentation.map_or((0, 0), UdpSegmentation::header);
        let at = self.layout.header(slot);
        self.memory.write_u64(at, first);
        self.memory.write_u32(at + 8, last);
        self.slots[usize::from(slot)].plain = segmentation.is_none();
    }

    /// Kept apart, so that packets of one piece do not pay for its registers.
    #[inline(never)]
    fn describe_several(&mut self, slot: u16, packet: &Packet<T>, behind: usize) -> u32 {
        // Beyond this the next slot's descriptors begin.
        let most = usize::from(self.layout.segments());
        assert!(behind < most, "a packet of {} pieces in a queue for {most}", 1 + behind);
        let pieces = 1 + behind as u16;
        let indirect = self.layout.is_indirect();
        let relink = self.slots[usize::from(slot)].linked != pieces;
        let (mut total, mut place) = (0_u32, 0);
        let mut put = |piece: Segment| {
            place += 1;
            if place > pieces {
                return;
            }
            // Behind the header, which comes first in the table, and among the slot's descriptors.
            let (at, index) = if indirect {
                (self.layout.table_entry(slot, place), place)
            } else {
                let index = self.layout.head(slot) + place;
                (self.layout.descriptor(index), index)
            };
            if relink {
                let link = if place < pieces { NEXT } else { 0 };
                self.write_descriptor(at, piece.device_address, piece.bytes, link | self.writes(), index + 1);
            } else {
                self.memory.write_u64(at, piece.device_address);
                self.memory.write_u32(at + 8, piece.bytes);
            }
            total = total.saturating_add(piece.bytes);
        };
        put(Segment { device_address: packet.device_address, bytes: packet.bytes });
        packet.token.each_behind(put);
        assert!(place == pieces, "a packet of {pieces} pieces that names {place}");
        if relink {
            if indirect {
                let table = self.memory.device_address(self.layout.table_entry(slot, 0));
                let at = self.layout.descriptor(self.layout.head(slot));
                self.write_descriptor(at, table, 16 * (1 + u32::from(pieces)), INDIRECT, 0);
            }
            self.slots[usize::from(slot)].linked = pieces;
        }
        total
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub fn layout(&self) -> &QueueLayout {
        &self.layout
    }

    /// Packets that can be in flight at once.
    pub fn slot_count(&self) -> u16 {
        self.layout.slots()
    }

    /// Packets that the device has now.
    pub fn in_flight(&self) -> u16 {
        self.made_available.wrapping_sub(self.taken)
    }

    pub fn fault(&self) -> Option<QueueFault> {
        self.fault
    }

    /// Hands packets to the device as long as there are free slots and `next` has one, and makes
    /// all of them available at once. `next` is not asked without a slot for its answer.
    pub fn submit(&mut self, mut next: impl FnMut() -> Option<Packet<T>>) -> Submitted {
        let before = self.made_available;
        while self.fault.is_none() && !self.free.is_empty() {
            let Some(packet) = next() else { break };
            let Some(slot) = self.free.pop() else { break };
            let bytes = self.describe(slot, &packet);
            let place = &mut self.slots[usize::from(slot)];
            (place.token, place.bytes) = (Some(packet.token), bytes);
            let head = self.layout.head(slot);
            self.memory.write_u16(self.layout.available_place(self.made_available), head);
            self.made_available = self.made_available.wrapping_add(1);
        }
        let packets = self.made_available.wrapping_sub(before);
        if packets == 0 {
            return Submitted { packets, notify: false };
        }
        // Descriptors and ring entries before the index that exposes them (VIRTIO sec 2.7.13.3).
        self.memory.store_release_u16(self.layout.available_index(), self.made_available);
        // The index must be visible before we look whether the device wants to hear of it, or
        // both sides may decide that the other will look (VIRTIO sec 2.7.13.4).
        fence(Ordering::SeqCst);
        let notify = if self.event_index {
            let event = self.memory.load_acquire_u16(self.layout.available_event());
            passes(event, before, self.made_available)
        } else {
            self.memory.load_acquire_u16(self.layout.used_flags()) & NO_NOTIFY == 0
        };
        Submitted { packets, notify }
    }

    /// Takes back one packet that the device is done with.
    pub fn take_used(&mut self) -> Result<Option<Used<T>>, QueueFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let claims = self.returned();
        if claims == 0 {
            return Ok(None);
        }
        let taken = self.check_and_take(claims);
        self.fault = taken.as_ref().err().copied();
        taken.map(Some)
    }

    fn check_and_take(&mut self, claims: u16) -> Result<Used<T>, QueueFault> {
        let in_flight = self.in_flight();
        if claims > in_flight {
            return Err(QueueFault::IndexJumped { claims, in_flight });
        }
        // Read once; the copies are checked and used.
        let at = self.layout.used_place(self.taken);
        let id = self.memory.read_u32(at);
        let written = self.memory.read_u32(at + 4);
        let unknown = QueueFault::UnknownDescriptor { id };
        let slot = self.layout.slot_of(id).ok_or(unknown)?;
        let place = self.slots.get_mut(usize::from(slot)).ok_or(unknown)?;
        if place.token.is_none() {
            return Err(QueueFault::NotInFlight { slot });
        }
        let room = match self.access {
            Access::DeviceWrites => HEADER_BYTES.saturating_add(place.bytes),
            // Nothing to write: the length has no meaning (VIRTIO sec 2.7.8).
            Access::DeviceReads => u32::MAX,
        };
        if written > room {
            return Err(QueueFault::Overrun { written, room });
        }
        let token = place.token.take().ok_or(QueueFault::NotInFlight { slot })?;
        self.taken = self.taken.wrapping_add(1);
        self.free.push(slot);
        Ok(Used { token, written: written.checked_sub(HEADER_BYTES) })
    }

    /// Whether the device has returned something.
    pub fn has_used(&self) -> bool {
        self.returned() != 0
    }

    /// Packets the device claims to have returned and that were not taken yet.
    fn returned(&self) -> u16 {
        self.memory.load_acquire_u16(self.layout.used_index()).wrapping_sub(self.taken)
    }

    /// Asks for no interrupts. With event indices an interrupt disarms itself (the index lies
    /// behind once it was passed), so there is nothing to write.
    pub fn disarm_interrupt(&mut self) {
        if !self.event_index {
            self.memory.write_u16(self.layout.available_flags(), NO_INTERRUPT);
        }
    }

    /// Asks for an interrupt once `count` more packets (at least one) are returned; a device
    /// without event indices sends one for each. Returns whether that many are there already,
    /// in which case the interrupt may never come: look again.
    #[must_use]
    pub fn arm_interrupt(&mut self, count: u16) -> bool {
        let count = count.max(1);
        if self.event_index {
            let event = self.taken.wrapping_add(count - 1);
            self.memory.write_u16(self.layout.used_event(), event);
        } else {
            self.memory.write_u16(self.layout.available_flags(), 0);
        }
        // As in `submit`, mirrored: the wish must be visible before the index is looked at.
        fence(Ordering::SeqCst);
        self.returned() >= count
    }

    /// Empties the queue. Only once the device has been reset: until then it may use what is
    /// returned here.
    pub fn reset(&mut self, mut reclaim: impl FnMut(T)) {
        for slot in &mut self.slots {
            if let Some(token) = slot.token.take() {
                reclaim(token);
            }
        }
        self.set_up();
    }
}

/// Whether the move of an index from `old` to `new` passes `event` (VIRTIO sec 2.7.7.2).
pub(crate) fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
