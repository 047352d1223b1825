//! The device's side of a split virtqueue (VIRTIO 1.2 section 2.7).
//!
//! The driver offers chains of buffers in the available ring, the device hands them back in the
//! used ring. Each side may tell the other not to notify it; the device's half of that agreement
//! is [`Virtqueue::driver_wants_interrupt`] (may I interrupt?) and
//! [`Virtqueue::suppress_notify`]/[`Virtqueue::request_notify`] (spare me the exit).
//!
//! Everything in the rings is the driver's word. An index is compared with what is possible, an
//! address with what is RAM, before use; what is impossible is a [`QueueFault`].

use core::num::Wrapping;

use crate::chain::{Chain, DESCRIPTOR_BYTES, Head, Table};
use crate::fault::{Area, QueueFault};
use crate::features::Features;
use crate::ram::{GuestPhysAddr, GuestRam};

/// The largest queue the split format can have (2.7).
pub const LARGEST_QUEUE: u16 = 32_768;

/// What a driver has written about a queue, not yet believed: see [`Virtqueue::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSetup {
    pub size: u16,
    pub descriptor_table: GuestPhysAddr,
    pub available_ring: GuestPhysAddr,
    pub used_ring: GuestPhysAddr,
}

// Offsets within the rings (2.7.6, 2.7.8).
const RING_FLAGS: u64 = 0;
const RING_INDEX: u64 = 2;
const RING_ENTRIES: u64 = 4;
const AVAILABLE_ENTRY_BYTES: u64 = 2;
const USED_ENTRY_BYTES: u64 = 8;

/// VIRTQ_AVAIL_F_NO_INTERRUPT (2.7.6).
const AVAILABLE_NO_INTERRUPT: u16 = 1;
/// VIRTQ_USED_F_NO_NOTIFY (2.7.8).
const USED_NO_NOTIFY: u16 = 1;

/// A queue in use. Holding one proves that its size is a power of two and that its three parts
/// are aligned and were guest memory when it was enabled.
#[derive(Debug)]
pub struct Virtqueue {
    size: u16,
    descriptor_table: GuestPhysAddr,
    available_ring: GuestPhysAddr,
    used_ring: GuestPhysAddr,
    indirect: bool,
    event_index: bool,
    /// The next entry of the available ring to take. Counts freely, like all ring indices.
    next_available: Wrapping<u16>,
    /// The driver's available index as last read.
    seen_available: Wrapping<u16>,
    /// The next entry of the used ring to fill.
    next_used: Wrapping<u16>,
    /// The used index as the driver can read it.
    published_used: Wrapping<u16>,
    /// Published entries for which the question "interrupt?" is not settled. Wider than an index:
    /// under receive moderation a busy driver may see more than 2^16 of them.
    unsettled_used: u32,
    /// What the used ring's flags say now; kept to spare the store.
    notify_suppressed: bool,
}

impl Virtqueue {
    /// The queue that `setup` describes, if it can exist in this RAM.
    pub fn new<R: GuestRam + ?Sized>(
        setup: &QueueSetup,
        maximum: u16,
        negotiated: Features,
        ram: &R,
    ) -> Result<Self, QueueFault> {
        let &QueueSetup { size, descriptor_table, available_ring, used_ring } = setup;
        if !size.is_power_of_two() || size > maximum.min(LARGEST_QUEUE) {
            return Err(QueueFault::Size { size, maximum });
        }
        let entries = u64::from(size);
        // Sizes and alignments of 2.7; the rings' last two bytes are the event fields.
        let areas = [
            (Area::DescriptorTable, descriptor_table, 16, u64::from(DESCRIPTOR_BYTES) * entries),
            (Area::AvailableRing, available_ring, 2, 6 + AVAILABLE_ENTRY_BYTES * entries),
            (Area::UsedRing, used_ring, 4, 6 + USED_ENTRY_BYTES * entries),
        ];
        for (area, address, alignment_bytes, bytes) in areas {
            if !address.is_aligned(alignment_bytes) {
                return Err(QueueFault::AreaMisaligned { area, address });
            }
            if !ram.contains(address, bytes) {
                return Err(QueueFault::AreaOutOfRam { area, address, bytes });
            }
        }
        Ok(Self {
            size,
            descriptor_table,
            available_ring,
            used_ring,
            indirect: negotiated.has(Features::INDIRECT_DESC),
            event_index: negotiated.has(Features::EVENT_IDX),
            next_available: Wrapping(0),
            seen_available: Wrapping(0),
            next_used: Wrapping(0),
            published_used: Wrapping(0),
            unsettled_used: 0,
            notify_suppressed: false,
        })
    }

    pub fn size(&self) -> u16 {
        self.size
    }

    /// Takes the next available chain into `chain`; false if there is none.
    pub fn pop<R: GuestRam + ?Sized>(&mut self, ram: &R, chain: &mut Chain) -> Result<bool, QueueFault> {
        if self.next_available == self.seen_available && !self.look_for_available(ram)? {
            return Ok(false);
        }
        let entry = self.slot(self.next_available) * AVAILABLE_ENTRY_BYTES;
        let head = ram.read_u16(at(self.available_ring, RING_ENTRIES + entry)?)?;
        let table = Table { address: self.descriptor_table, descriptors: self.size };
        chain.walk(ram, table, head, self.indirect)?;
        self.next_available += 1;
        Ok(true)
    }

    /// Writes a used entry: the chain goes back with `written_bytes` in its writable part. The
    /// driver sees it once [`Self::publish_used`] has run, so a batch costs one publication.
    pub fn add_used<R: GuestRam + ?Sized>(
        &mut self,
        ram: &R,
        head: Head,
        written_bytes: u32,
    ) -> Result<(), QueueFault> {
        let mut entry = [0; USED_ENTRY_BYTES as usize];
        entry[..4].copy_from_slice(&u32::from(head.index()).to_le_bytes());
        entry[4..].copy_from_slice(&written_bytes.to_le_bytes());
        let offset = RING_ENTRIES + self.slot(self.next_used) * USED_ENTRY_BYTES;
        ram.write(at(self.used_ring, offset)?, &entry)?;
        self.next_used += 1;
        Ok(())
    }

    /// Shows the driver all used entries written so far.
    pub fn publish_used<R: GuestRam + ?Sized>(&mut self, ram: &R) -> Result<(), QueueFault> {
        if self.published_used != self.next_used {
            ram.store_release_u16(at(self.used_ring, RING_INDEX)?, self.next_used.0)?;
            let fresh = (self.next_used - self.published_used).0;
            self.unsettled_used = self.unsettled_used.saturating_add(u32::from(fresh));
            self.published_used = self.next_used;
        }
        Ok(())
    }

    /// Whether the driver asks to be told of what was published since the last
    /// [`Self::settle_interrupt`] (2.7.7.2).
    ///
    /// The fence keeps the load of the driver's wish behind the store of the used index. Without
    /// it both sides could look before the other's store arrives: the device would see "do not
    /// interrupt", the driver "nothing used yet", and it would sleep for ever.
    pub fn driver_wants_interrupt<R: GuestRam + ?Sized>(&self, ram: &R) -> Result<bool, QueueFault> {
        if self.unsettled_used == 0 {
            return Ok(false);
        }
        ram.fence();
        if self.event_index {
            let offset = RING_ENTRIES + u64::from(self.size) * AVAILABLE_ENTRY_BYTES;
            let used_event = Wrapping(ram.load_acquire_u16(at(self.available_ring, offset)?)?);
            // Was the entry with index used_event among the unsettled ones? Counted back from the
            // published index, so that the 16-bit wrap does not matter.
            let since_event = (self.published_used - used_event - Wrapping(1)).0;
            Ok(u32::from(since_event) < self.unsettled_used)
        } else {
            let flags = ram.load_acquire_u16(at(self.available_ring, RING_FLAGS)?)?;
            Ok(flags & AVAILABLE_NO_INTERRUPT == 0)
        }
    }

    /// What is published by now needs no further question: it was interrupted for, or the driver
    /// did not want it.
    pub fn settle_interrupt(&mut self) {
        self.unsettled_used = 0;
    }

    /// Tells the driver that its notifications are not needed: the device comes by itself.
    ///
    /// With event indices nothing need be written: an `avail_event` left behind stays silent
    /// until the index comes round to it, and one spurious notify in 65,536 is harmless.
    pub fn suppress_notify<R: GuestRam + ?Sized>(&mut self, ram: &R) -> Result<(), QueueFault> {
        if !self.event_index && !self.notify_suppressed {
            ram.store_release_u16(at(self.used_ring, RING_FLAGS)?, USED_NO_NOTIFY)?;
            self.notify_suppressed = true;
        }
        Ok(())
    }

    /// Asks for a notification at the next available chain. True if one is there already, made
    /// available before the driver could see the wish: the device must look again itself.
    pub fn request_notify<R: GuestRam + ?Sized>(&mut self, ram: &R) -> Result<bool, QueueFault> {
        if self.event_index {
            let offset = RING_ENTRIES + u64::from(self.size) * USED_ENTRY_BYTES;
            ram.store_release_u16(at(self.used_ring, offset)?, self.next_available.0)?;
        } else if self.notify_suppressed {
            ram.store_release_u16(at(self.used_ring, RING_FLAGS)?, 0)?;
            self.notify_suppressed = false;
        }
        // As above with the roles exchanged: the wish must be out before the index is read.
        ram.fence();
        self.look_for_available(ram)
    }

    /// Reads the driver's available index; true if it is ahead of the device.
    fn look_for_available<R: GuestRam + ?Sized>(&mut self, ram: &R) -> Result<bool, QueueFault> {
        // Acquire: the ring entries and descriptors up to this index are visible after it.
        let index = Wrapping(ram.load_acquire_u16(at(self.available_ring, RING_INDEX)?)?);
        if (index - self.next_available).0 > self.size {
            return Err(QueueFault::AvailableIndexJumped {
                device_at: self.next_available.0,
                driver_at: index.0,
                size: self.size,
            });
        }
        self.seen_available = index;
        Ok(index != self.next_available)
    }

    /// The place in a ring that a freely counting index means; the size is a power of two.
    fn slot(&self, index: Wrapping<u16>) -> u64 {
        u64::from(index.0 & (self.size - 1))
    }
}

/// `base + offset` inside a ring that was checked to be RAM, so the sum exists; if it does not,
/// the ring is gone and the error says so.
fn at(base: GuestPhysAddr, offset: u64) -> Result<GuestPhysAddr, QueueFault> {
    let lost = crate::ram::OutOfRange { address: base, bytes: offset };
    base.checked_add(offset).ok_or(QueueFault::RingLost(lost))
}
