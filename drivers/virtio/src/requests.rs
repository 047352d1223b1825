//! A split queue of requests: a header that the device reads, data that it reads or writes, and a
//! status byte that it writes (VIRTIO sec 5.2.6).
//!
//! As in the queue of packets ([`crate::PacketQueue`]) a request has a *slot*, with descriptors and
//! a piece of the queue's own memory, and its token comes back when the device returns the slot or
//! after a reset, never otherwise. What differs: every request has its own mixture of pieces read
//! and written, so its descriptors are written anew; requests are handed over when they are
//! announced ([`RequestQueue::announce`]) and not before, so that one doorbell does for many; and
//! some slots are kept for those who wait, so that a server which fills the queue never locks out a
//! file system on the same disk.
//!
//! Where the device reads indirect tables a request takes one descriptor of the ring, and the queue
//! holds as many requests as it has descriptors; otherwise each has as many as its pieces may need.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};

use crate::blk::{HEADER_BYTES, Kind, Planned, RANGE_BYTES, Status};
use crate::layout::{QueueLayout, QueueSize};
use crate::queue::{DEVICE_WRITES, INDIRECT, NEXT, NO_NOTIFY, QueueFault, RingMemory, Segment, passes};

/// Offsets in a slot's memory: the header, the range of a discard, the status, the indirect table.
const RANGE: usize = 16;
const STATUS: usize = 32;
const TABLE: usize = 48;

const DESCRIPTOR_BYTES: usize = 16;

/// Descriptors of a request beside those of its data: header and status.
const FRAME_DESCRIPTORS: u16 = 2;

/// What the status byte is before the device has written it.
const NO_STATUS: u32 = 0xff;

/// Where the rings and the slots' memory lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestLayout {
    rings: QueueLayout,
    segments: u16,
    indirect: bool,
    /// Descriptors of a slot in the ring, as a power of two.
    stride_shift: u32,
}

impl RequestLayout {
    /// For requests of up to `segments` pieces of data, or as many as a queue of this size can link.
    /// `None` where that is not even one.
    pub fn new(size: QueueSize, segments: u16, indirect: bool) -> Option<RequestLayout> {
        // A chain is never longer than its queue (VIRTIO sec 2.7.5.3.1). A range counts as data.
        let most = size.get().checked_sub(FRAME_DESCRIPTORS)?;
        let segments = segments.min(most).max(1);
        let descriptors = FRAME_DESCRIPTORS + segments;
        let stride = if indirect { 1 } else { descriptors.next_power_of_two() };
        (most > 0 && stride <= size.get()).then(|| RequestLayout {
            rings: QueueLayout::new(size),
            segments,
            indirect,
            stride_shift: stride.trailing_zeros(),
        })
    }

    pub const fn rings(&self) -> &QueueLayout {
        &self.rings
    }

    /// The most pieces of data of a request.
    pub const fn segments(&self) -> u16 {
        self.segments
    }

    /// Requests that can be in flight at once.
    pub const fn slots(&self) -> u16 {
        self.rings.size().get() >> self.stride_shift
    }

    const fn slot_bytes(&self) -> usize {
        let descriptors = if self.indirect { (FRAME_DESCRIPTORS + self.segments) as usize } else { 0 };
        TABLE + DESCRIPTOR_BYTES * descriptors
    }

    const fn slot(&self, slot: u16) -> usize {
        self.rings.headers() + self.slot_bytes() * slot as usize
    }

    /// Bytes of the whole.
    pub const fn bytes(&self) -> usize {
        self.slot(self.slots())
    }

    const fn head(&self, slot: u16) -> u16 {
        slot << self.stride_shift
    }

    /// The slot whose first descriptor `id` is.
    fn slot_of(&self, id: u32) -> Option<u16> {
        let slot = u16::try_from(id >> self.stride_shift).ok()?;
        (slot < self.slots() && u32::from(self.head(slot)) == id).then_some(slot)
    }
}

/// Who asks for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Refused while only the reserved ones are left.
    Asynchronous,
    /// A task that waits for its answer: takes a reserved one where nothing else is free.
    Synchronous,
}

/// No slot of that class is free; the token comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct NoSlot<T>(pub T);

/// A request that the device has returned.
#[derive(Debug)]
pub struct Ended<T> {
    pub token: T,
    pub status: Status,
}

struct Slot<T> {
    /// While the request is queued or the device has it.
    token: Option<T>,
    /// Its number since the queue was set up.
    number: u64,
    submitted_ns: u64,
    /// What the device may write: data and status.
    room: u32,
    /// What it must have written if it says that all is well.
    least: u32,
}

/// The driver's side of one split queue of requests.
pub struct RequestQueue<M, T> {
    memory: M,
    layout: RequestLayout,
    event_index: bool,
    slots: Box<[Slot<T>]>,
    /// Slots not in flight; never more than there are, so pushing does not allocate.
    free: Vec<u16>,
    reserved: u16,
    /// Requests queued, announced and taken back since the queue was set up.
    queued: u64,
    announced: u64,
    taken: u64,
    fault: Option<QueueFault>,
}

impl<M: RingMemory, T> RequestQueue<M, T> {
    /// A queue in `memory`, which is zeroed and holds at least `layout.bytes()`; `reserved` slots
    /// are kept for [`Class::Synchronous`], at most half of them.
    pub fn new(memory: M, layout: RequestLayout, event_index: bool, reserved: u16) -> Self {
        let slots = layout.slots();
        let slot = || Slot { token: None, number: 0, submitted_ns: 0, room: 0, least: 0 };
        let mut queue = RequestQueue {
            memory,
            layout,
            event_index,
            slots: (0..slots).map(|_| slot()).collect(),
            free: Vec::with_capacity(usize::from(slots)),
            reserved: reserved.min(slots / 2),
            queued: 0,
            announced: 0,
            taken: 0,
            fault: None,
        };
        queue.set_up();
        queue
    }

    fn set_up(&mut self) {
        self.free.clear();
        self.free.extend((0..self.layout.slots()).rev());
        (self.queued, self.announced, self.taken, self.fault) = (0, 0, 0, None);
        let rings = self.layout.rings;
        self.memory.write_u16(rings.available_flags(), 0);
        self.memory.write_u16(rings.used_event(), 0);
        self.memory.write_u16(rings.used_flags(), 0);
        self.memory.write_u16(rings.available_event(), 0);
        self.memory.store_release_u16(rings.used_index(), 0);
        self.memory.store_release_u16(rings.available_index(), 0);
    }

    pub fn memory(&self) -> &M {
        &self.memory
    }

    pub fn layout(&self) -> &RequestLayout {
        &self.layout
    }

    /// Requests queued or with the device.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn fault(&self) -> Option<QueueFault> {
        self.fault
    }

    /// When the oldest outstanding request was submitted.
    pub fn oldest_ns(&self) -> Option<u64> {
        let outstanding = self.slots.iter().filter(|slot| slot.token.is_some());
        outstanding.map(|slot| slot.submitted_ns).min()
    }

    /// Queues a request whose data lies in `segments`, of which the device is told so many bytes as
    /// `planned` says; the device sees it after [`RequestQueue::announce`].
    ///
    /// # Panics
    /// If there are more segments than the layout allows: who plans requests keeps to that.
    pub fn push(
        &mut self,
        class: Class,
        planned: &Planned,
        segments: impl Iterator<Item = Segment>,
        token: T,
        now_ns: u64,
    ) -> Result<(), NoSlot<T>> {
        let kept = if class == Class::Asynchronous { usize::from(self.reserved) } else { 0 };
        if self.fault.is_some() || self.free.len() <= kept {
            return Err(NoSlot(token));
        }
        let Some(slot) = self.free.pop() else { return Err(NoSlot(token)) };
        self.describe(slot, planned, segments);
        let reads = planned.kind == Kind::In;
        let room = 1 + if reads { planned.data_bytes } else { 0 };
        self.slots[usize::from(slot)] = Slot {
            token: Some(token),
            number: self.queued,
            submitted_ns: now_ns,
            room,
            // Only what is read must be there; some devices count nothing where they write nothing
            // but the status.
            least: if reads { room } else { 0 },
        };
        let place = self.layout.rings.available_place(self.queued as u16);
        self.memory.write_u16(place, self.layout.head(slot));
        self.queued += 1;
        Ok(())
    }

    fn write_descriptor(&self, at: usize, address: u64, bytes: u32, flags: u16, next: u16) {
        self.memory.write_u64(at, address);
        self.memory.write_u32(at + 8, bytes);
        self.memory.write_u16(at + 12, flags);
        self.memory.write_u16(at + 14, next);
    }

    /// Writes header, range, status and descriptors of a request.
    fn describe(&mut self, slot: u16, planned: &Planned, segments: impl Iterator<Item = Segment>) {
        let base = self.layout.slot(slot);
        self.memory.write_u64(base, planned.kind as u64);
        self.memory.write_u64(base + 8, planned.sector);
        self.memory.write_u32(base + STATUS, NO_STATUS);
        let mut chain = Chain { queue: self, slot, next: 0 };
        chain.link(chain.inside(0), HEADER_BYTES, 0);
        if let Some(range) = planned.range {
            chain.queue.memory.write_u64(base + RANGE, range.sector);
            chain.queue.memory.write_u32(base + RANGE + 8, range.sectors);
            chain.queue.memory.write_u32(base + RANGE + 12, range.unmap.into());
            chain.link(chain.inside(RANGE), RANGE_BYTES, 0);
        }
        let writes = if planned.kind == Kind::In { DEVICE_WRITES } else { 0 };
        let mut left = planned.data_bytes;
        for segment in segments {
            // The last piece may be longer than what is asked for.
            let bytes = segment.bytes.min(left);
            if bytes > 0 {
                chain.link(segment.device_address, bytes, writes);
                left -= bytes;
            }
        }
        chain.end(chain.inside(STATUS));
    }

    /// Makes everything queued since the last time visible. Whether the device wants to hear of it.
    #[must_use]
    pub fn announce(&mut self) -> bool {
        if self.announced == self.queued || self.fault.is_some() {
            return false;
        }
        let (before, now) = (self.announced as u16, self.queued as u16);
        self.announced = self.queued;
        // Descriptors and ring entries before the index that exposes them (VIRTIO sec 2.7.13.3).
        self.memory.store_release_u16(self.layout.rings.available_index(), now);
        // The index must be visible before we look whether the device wants to hear of it, or both
        // sides may decide that the other will look (VIRTIO sec 2.7.13.4).
        fence(Ordering::SeqCst);
        if self.event_index {
            let event = self.memory.load_acquire_u16(self.layout.rings.available_event());
            passes(event, before, now)
        } else {
            self.memory.load_acquire_u16(self.layout.rings.used_flags()) & NO_NOTIFY == 0
        }
    }

    /// Takes back one request that the device is done with.
    pub fn take(&mut self) -> Result<Option<Ended<T>>, QueueFault> {
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

    fn check_and_take(&mut self, claims: u16) -> Result<Ended<T>, QueueFault> {
        // Never more than the queue has descriptors.
        let in_flight = (self.announced - self.taken) as u16;
        if claims > in_flight {
            return Err(QueueFault::IndexJumped { claims, in_flight });
        }
        // Read once; the copies are checked and used.
        let at = self.layout.rings.used_place(self.taken as u16);
        let id = self.memory.read_u32(at);
        let written = self.memory.read_u32(at + 4);
        let slot = self.layout.slot_of(id).ok_or(QueueFault::UnknownDescriptor { id })?;
        let place = &mut self.slots[usize::from(slot)];
        if place.number >= self.announced {
            return Err(QueueFault::NotInFlight { slot });
        }
        if written > place.room {
            // It keeps its token: the device may still be writing.
            return Err(QueueFault::Overrun { written, room: place.room });
        }
        let token = place.token.take().ok_or(QueueFault::NotInFlight { slot })?;
        let least = place.least;
        self.taken += 1;
        self.free.push(slot);
        let raw = self.memory.read_u32(self.layout.slot(slot) + STATUS) as u8;
        let status = match Status::new(raw) {
            // Well done, and less than asked for: the rest of the memory holds what it held before.
            Status::Ok if written < least => Status::Nonsense(raw),
            status => status,
        };
        Ok(Ended { token, status })
    }

    /// Requests the device claims to have returned and that were not taken yet.
    fn returned(&self) -> u16 {
        self.memory.load_acquire_u16(self.layout.rings.used_index()).wrapping_sub(self.taken as u16)
    }

    /// Asks for an interrupt once another request is returned. Whether one is there already, in
    /// which case the interrupt may never come: look again.
    #[must_use]
    pub fn arm_interrupt(&mut self) -> bool {
        if self.event_index {
            self.memory.write_u16(self.layout.rings.used_event(), self.taken as u16);
        }
        // As in `announce`, mirrored: the wish must be visible before the index is looked at.
        fence(Ordering::SeqCst);
        self.returned() > 0
    }

    /// Takes back any request. Only once the device cannot reach memory any more.
    pub fn take_any(&mut self) -> Option<T> {
        let (number, slot) = self.slots.iter_mut().enumerate().find(|(_, slot)| slot.token.is_some())?;
        let token = slot.token.take();
        // Below the number of slots, which has 16 bits.
        self.free.push(number as u16);
        token
    }

    /// Empty rings for a device that was reset and is about to be set up again. Every token must
    /// have been taken back.
    pub fn restart(&mut self) {
        debug_assert_eq!(self.outstanding(), 0);
        self.set_up();
    }
}

/// The descriptors of one request, one behind the other.
struct Chain<'a, M, T> {
    queue: &'a mut RequestQueue<M, T>,
    slot: u16,
    next: u16,
}

impl<M: RingMemory, T> Chain<'_, M, T> {
    /// The device's address of a place in the slot's memory.
    fn inside(&self, offset: usize) -> u64 {
        self.queue.memory.device_address(self.queue.layout.slot(self.slot) + offset)
    }

    fn write(&mut self, address: u64, bytes: u32, flags: u16) {
        let layout = self.queue.layout;
        // Beyond this the next slot's memory or descriptors begin.
        assert!(
            self.next < FRAME_DESCRIPTORS + layout.segments,
            "a request of more pieces than its queue is for"
        );
        let (at, next) = if layout.indirect {
            (layout.slot(self.slot) + TABLE + DESCRIPTOR_BYTES * usize::from(self.next), self.next + 1)
        } else {
            let index = layout.head(self.slot) + self.next;
            (layout.rings.descriptor(index), index + 1)
        };
        self.queue.write_descriptor(at, address, bytes, flags, next);
        self.next += 1;
    }

    fn link(&mut self, address: u64, bytes: u32, flags: u16) {
        self.write(address, bytes, flags | NEXT);
    }

    /// The status, and with an indirect table the one descriptor that names it.
    fn end(&mut self, address: u64) {
        self.write(address, 1, DEVICE_WRITES);
        if self.queue.layout.indirect {
            let table = self.inside(TABLE);
            let bytes = DESCRIPTOR_BYTES as u32 * u32::from(self.next);
            let at = self.queue.layout.rings.descriptor(self.slot);
            self.queue.write_descriptor(at, table, bytes, INDIRECT, 0);
        }
    }
}
