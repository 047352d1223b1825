//! Both queues over the same rings, step by step.
//!
//! Each has a memory of its own, written to alike by the driver. After every step the used rings must be
//! equal to the byte (with flags and event fields), in the end all of the memory, and what each step
//! answered must be the same.
//! Where ours refuses what rust-vmm lets pass, the reason must be found in the chain: a buffer of no
//! bytes or outside memory, a readable one behind a writable one, more descriptors than the queue has,
//! an indirect descriptor that was not negotiated or has a successor, or a chain that rust-vmm
//! silently cuts short. What ours lets pass, rust-vmm must have yielded to the last descriptor.

use virtio_device::chain::{Chain, Head};
use virtio_device::queue::Virtqueue;
use virtio_device::{GuestRam, QueueFault};
use virtio_queue::desc::split::Descriptor;
use virtio_queue::{Error, Queue, QueueOwnedT, QueueT};

use crate::ram::{AVAILABLE, DATA, DESCRIPTORS, RAM_BYTES, Ram, USED, ours, theirs};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// What the driver or the device does. Any three numbers are a step.
pub type Step = (u8, u16, u32);

/// What the run was about, to see that tests reach what they should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub chains: u32,
    pub descriptors: u32,
    pub used: u32,
    pub interrupts: u32,
    pub faults: u32,
}

struct Both {
    entries: u16,
    event_index: bool,
    indirect: bool,
    our_ram: Ram,
    their_ram: Ram,
    our_queue: Virtqueue,
    their_queue: Queue,
    chain: Chain,
    /// Chains that were taken and not given back.
    open: Vec<Head>,
    /// The driver's place in the available ring.
    offered: u16,
    /// The available index as the device last saw it without taking what is there.
    looked_at: Option<u16>,
    /// Used entries for which nobody has asked whether to interrupt.
    unsettled: u32,
    seen: Seen,
}

/// Runs the steps until one is a fault of the driver's, after which a device would be reset.
///
/// # Panics
/// At the first difference.
pub fn run(event_index: bool, indirect: bool, entries_log2: u8, steps: &[Step]) -> Seen {
    let entries = 1 << (entries_log2 % 6);
    let (our_ram, their_ram) = (Ram::new(), Ram::new());
    let mut both = Both {
        entries,
        event_index,
        indirect,
        our_queue: ours(&our_ram, entries, event_index, indirect),
        their_queue: theirs(&their_ram, entries, event_index),
        our_ram,
        their_ram,
        chain: Chain::with_room_for(entries),
        open: Vec::new(),
        offered: 0,
        looked_at: None,
        unsettled: 0,
        seen: Seen::default(),
    };
    for step in steps {
        let goes_on = both.step(*step);
        let rings = |ram: &Ram| ram.content(USED, usize::from(entries) * 8 + 6);
        assert_eq!(rings(&both.our_ram), rings(&both.their_ram), "the used rings differ after {step:?}");
        if !goes_on {
            both.seen.faults += 1;
            break;
        }
    }
    let all = |ram: &Ram| ram.content(0, RAM_BYTES as usize);
    assert!(all(&both.our_ram) == all(&both.their_ram), "something else was written to");
    both.seen
}

impl Both {
    fn write_u16(&self, at: u64, value: u16) {
        for ram in [&self.our_ram, &self.their_ram] {
            ram.write_u16(at.into(), value).expect("the driver stays in its memory");
        }
    }

    fn write_descriptor(&self, at: u64, address: u64, bytes: u32, flags: u16, next: u16) {
        for ram in [&self.our_ram, &self.their_ram] {
            let mut raw = [0; 16];
            raw[..8].copy_from_slice(&address.to_le_bytes());
            raw[8..12].copy_from_slice(&bytes.to_le_bytes());
            raw[12..14].copy_from_slice(&flags.to_le_bytes());
            raw[14..].copy_from_slice(&next.to_le_bytes());
            ram.write(at.into(), &raw).expect("the driver stays in its memory");
        }
    }

    /// False if the device would stop.
    fn step(&mut self, (kind, small, large): Step) -> bool {
        match kind % 12 {
            0..=2 => self.offer(small, large),
            3 => self.offer_indirect(small, large),
            4 => {
                // Anything, in a descriptor or a table.
                let at = if large & 1 == 0 { DESCRIPTORS } else { DATA };
                let at = at + u64::from(large >> 1 & 0x3ff) * 2;
                self.write_u16(at, small);
            }
            5 => {
                // The available ring: flags, index, entries, the used event.
                let places = u32::from(self.entries) + 3;
                let place = large % places;
                let is_event = place + 1 == places;
                let value = if is_event { small } else { small % (2 * self.entries + 2) };
                self.write_u16(AVAILABLE + u64::from(place) * 2, value);
            }
            6 | 7 => return self.drain(),
            8 | 9 => self.give_back(small, large),
            10 => self.ask_for_interrupt(),
            _ if large & 1 == 0 => return self.request_notify(),
            _ => self.suppress_notify(),
        }
        true
    }

    fn make_available(&mut self, head: u16) {
        let slot = u64::from(self.offered % self.entries);
        self.write_u16(AVAILABLE + 4 + 2 * slot, head);
        self.offered = self.offered.wrapping_add(1);
        self.write_u16(AVAILABLE + 2, self.offered);
    }

    /// A chain of up to four descriptors, right but for what `large` makes wrong now and then.
    fn offer(&mut self, small: u16, large: u32) {
        let head = small % self.entries;
        let count = (1 + (small >> 8 & 3)).min(self.entries);
        let readable = small >> 10 & 3;
        for place in 0..count {
            let index = (head + place) % self.entries;
            let address = DATA + u64::from(large >> 8 & 0xffff);
            let last = place + 1 == count;
            let flags = if place >= readable { WRITE } else { 0 } | if last { 0 } else { NEXT };
            let address = if large & 0xff == 1 { RAM_BYTES - 1 } else { address };
            let bytes = if large & 0xff == 2 { 0 } else { 1 + (large & 0xfff) };
            let at = DESCRIPTORS + 16 * u64::from(index);
            self.write_descriptor(at, address, bytes, flags, (index + 1) % self.entries);
        }
        self.make_available(head);
    }

    fn offer_indirect(&mut self, small: u16, large: u32) {
        let head = small % self.entries;
        let count = 1 + (small >> 8 & 7);
        let table = DATA + u64::from(large >> 16 & 0xff) * 16;
        for place in 0..count {
            let flags = if place + 1 == count { WRITE } else { NEXT };
            let at = table + 16 * u64::from(place);
            self.write_descriptor(at, DATA + 0x1000, 1 + (large & 0xff), flags, place + 1);
        }
        let flags = INDIRECT | if large & 0x3f00 == 0 { NEXT } else { 0 };
        let odd = u32::from(large & 0xf0f0 == 0);
        let at = DESCRIPTORS + 16 * u64::from(head);
        self.write_descriptor(at, table, 16 * u32::from(count) + odd, flags, 0);
        self.make_available(head);
    }

    /// Takes all that is available.
    fn drain(&mut self) -> bool {
        if self.index_went_wrong() {
            return false;
        }
        let their_ram = &self.their_ram.0;
        let their_chains = self.their_queue.iter(their_ram).map(|chains| {
            chains.map(|chain| (chain.head_index(), chain.collect::<Vec<Descriptor>>())).collect::<Vec<_>>()
        });
        let mut taken = 0;
        loop {
            match self.our_queue.pop(&self.our_ram, &mut self.chain) {
                Ok(true) => {
                    let chains = their_chains.as_ref().expect("rust-vmm refuses the index, ours does not");
                    let (head, descriptors) = chains.get(taken).expect("ours finds one chain more");
                    assert_eq!(self.chain.head().index(), *head);
                    let readable = self.chain.readable().iter().map(|segment| (segment, false));
                    let writable = self.chain.writable().iter().map(|segment| (segment, true));
                    let mine: Vec<_> = readable
                        .chain(writable)
                        .map(|(segment, writable)| {
                            (segment.address().as_u64(), segment.len_bytes(), writable)
                        })
                        .collect();
                    let other: Vec<_> = descriptors
                        .iter()
                        .map(|one| (one.addr().0, one.len(), one.is_write_only()))
                        .collect();
                    assert_eq!(mine, other, "the chain at {head}");
                    assert!(descriptors.last().is_some_and(|last| !last.has_next()), "rust-vmm cut it short");
                    self.open.push(self.chain.head());
                    self.seen.chains += 1;
                    self.seen.descriptors += mine.len() as u32;
                    taken += 1;
                }
                Ok(false) => {
                    let chains = their_chains.expect("rust-vmm refuses the index, ours does not");
                    assert_eq!(chains.len(), taken, "rust-vmm finds more chains");
                    return true;
                }
                Err(QueueFault::AvailableIndexJumped { .. }) => {
                    assert!(
                        matches!(their_chains, Err(Error::InvalidAvailRingIndex)),
                        "ours refuses the index"
                    );
                    return false;
                }
                Err(fault) => {
                    let chains = their_chains.expect("rust-vmm refuses the index, ours does not");
                    let (head, descriptors) = chains.get(taken).expect("ours finds one chain more");
                    assert!(self.excuses(fault, *head, descriptors), "{fault}: {descriptors:?}");
                    return false;
                }
            }
        }
    }

    /// Whether the driver has moved its index back, or too far, after the device had looked at it. Ours
    /// goes by what it saw, and judges the new index when it gets there; rust-vmm looks each time.
    fn index_went_wrong(&mut self) -> bool {
        let Some(seen) = self.looked_at.take() else { return false };
        let index = self.our_ram.read_u16((AVAILABLE + 2).into()).expect("the ring is there");
        let next = self.their_queue.next_avail();
        let ahead = index.wrapping_sub(next);
        ahead > self.entries || ahead < seen.wrapping_sub(next)
    }

    /// Whether a chain that ours refuses for `fault` is as the fault says.
    fn excuses(&self, fault: QueueFault, head: u16, descriptors: &[Descriptor]) -> bool {
        let first_flags = || {
            let at = DESCRIPTORS + 16 * u64::from(head) + 12;
            self.our_ram.read_u16(at.into()).unwrap_or(0)
        };
        let cut_short = descriptors.last().is_none_or(Descriptor::has_next);
        match fault {
            QueueFault::HeadOutOfTable { .. } => head >= self.entries && descriptors.is_empty(),
            QueueFault::ZeroLength { .. } => descriptors.iter().any(|one| one.len() == 0),
            QueueFault::BufferOutOfRam { .. } => descriptors
                .iter()
                .any(|one| one.addr().0.checked_add(one.len().into()).is_none_or(|end| end > RAM_BYTES)),
            QueueFault::ReadableAfterWritable { .. } => {
                let mut writable = descriptors.iter().map(|one| one.is_write_only());
                writable.by_ref().any(|one| one) && writable.any(|one| !one)
            }
            QueueFault::ChainTooLong { .. } => descriptors.len() > usize::from(self.entries) || cut_short,
            QueueFault::Loop { .. }
            | QueueFault::NextOutOfTable { .. }
            | QueueFault::ChainTooLarge { .. } => cut_short,
            QueueFault::IndirectNotNegotiated { .. } => !self.indirect,
            // The one may stand anywhere in the chain, behind others.
            QueueFault::IndirectWithNext { .. } => first_flags() & INDIRECT != 0 || first_flags() & NEXT != 0,
            QueueFault::IndirectNested { .. }
            | QueueFault::IndirectTableSize { .. }
            | QueueFault::IndirectTableOutOfRam { .. } => true,
            QueueFault::Size { .. }
            | QueueFault::AreaMisaligned { .. }
            | QueueFault::AreaOutOfRam { .. }
            | QueueFault::RingLost(_)
            | QueueFault::AvailableIndexJumped { .. } => false,
        }
    }

    /// Gives up to four chains back, in any order, and shows them at once.
    fn give_back(&mut self, small: u16, large: u32) {
        for place in 0..=small & 3 {
            if self.open.is_empty() {
                break;
            }
            let head = self.open.swap_remove((large as usize >> place) % self.open.len());
            let written = large & 0xffff;
            self.our_queue.add_used(&self.our_ram, head, written).expect("the ring is there");
            self.their_queue.add_used(&self.their_ram.0, head.index(), written).expect("the ring is there");
            self.unsettled += 1;
            self.seen.used += 1;
        }
        self.our_queue.publish_used(&self.our_ram).expect("the ring is there");
    }

    fn ask_for_interrupt(&mut self) {
        let mine = self.our_queue.driver_wants_interrupt(&self.our_ram).expect("the ring is there");
        self.our_queue.settle_interrupt();
        let other = self.their_queue.needs_notification(&self.their_ram.0).expect("the ring is there");
        if self.event_index {
            assert_eq!(mine, other, "whether to interrupt");
        } else {
            // rust-vmm does not look at the flag, and interrupts for nothing, too.
            let flags = self.our_ram.read_u16(AVAILABLE.into()).expect("the ring is there");
            assert_eq!(mine, self.unsettled > 0 && flags & 1 == 0, "whether to interrupt");
            assert!(other);
        }
        self.unsettled = 0;
        self.seen.interrupts += u32::from(mine);
    }

    fn request_notify(&mut self) -> bool {
        if self.index_went_wrong() {
            return false;
        }
        self.looked_at = self.our_ram.read_u16((AVAILABLE + 2).into()).ok();
        let other = self.their_queue.enable_notification(&self.their_ram.0).expect("the ring is there");
        match self.our_queue.request_notify(&self.our_ram) {
            Ok(mine) => {
                assert_eq!(mine, other, "whether something came meanwhile");
                true
            }
            // rust-vmm finds out when it takes it.
            Err(QueueFault::AvailableIndexJumped { .. }) => {
                assert!(other);
                false
            }
            Err(fault) => panic!("{fault}"),
        }
    }

    fn suppress_notify(&mut self) {
        self.our_queue.suppress_notify(&self.our_ram).expect("the ring is there");
        self.their_queue.disable_notification(&self.their_ram.0).expect("the ring is there");
    }
}
