//! How long each queue takes for a chain, from the available ring to the used ring.
//!
//! Both work on rust-vmm's memory, so that what is compared is the queues. The driver's part, filling
//! the rings, is not timed.

use std::hint::black_box;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use virtio_device::GuestRam;
use virtio_device::chain::Chain;
use virtio_queue::{QueueOwnedT, QueueT};

use crate::ram::{AVAILABLE, DATA, DESCRIPTORS, MOST_ENTRIES, Ram, ours, theirs};

/// What the chains of a case are like.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub descriptors: u16,
    pub indirect: bool,
    /// Bytes copied out of each chain's first buffers.
    pub copied_bytes: usize,
}

pub const CASES: [Case; 5] = [
    Case { name: "one descriptor", descriptors: 1, indirect: false, copied_bytes: 0 },
    Case { name: "a block request, 3", descriptors: 3, indirect: false, copied_bytes: 16 },
    Case { name: "8 descriptors", descriptors: 8, indirect: false, copied_bytes: 16 },
    Case { name: "8, indirect", descriptors: 8, indirect: true, copied_bytes: 16 },
    Case { name: "a frame of 1514 bytes in 2", descriptors: 2, indirect: false, copied_bytes: 1526 },
];

/// A case's times, a run each.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figures {
    pub case: String,
    pub ours_ns: Vec<f64>,
    pub theirs_ns: Vec<f64>,
}

/// Rings of chains in one run.
const ROUNDS: u32 = 400;

fn offer_all(ram: &Ram, case: &Case, index: &mut u16) -> u16 {
    let each = if case.indirect { 1 } else { case.descriptors };
    let chains = MOST_ENTRIES / each;
    let mut raw = [0; 16];
    let mut put = |at: u64, address: u64, bytes: u32, flags: u16, next: u16| {
        raw[..8].copy_from_slice(&address.to_le_bytes());
        raw[8..12].copy_from_slice(&bytes.to_le_bytes());
        raw[12..14].copy_from_slice(&flags.to_le_bytes());
        raw[14..].copy_from_slice(&next.to_le_bytes());
        let _ = ram.write(at.into(), &raw);
    };
    for chain in 0..chains {
        let table = if case.indirect { DATA + 256 * u64::from(chain) } else { DESCRIPTORS };
        let first = if case.indirect { 0 } else { chain * each };
        for place in 0..case.descriptors {
            let last = place + 1 == case.descriptors;
            let flags = if last { 2 } else { 1 };
            // The first is a header's length in block requests; frames are in the second.
            let bytes = if place == 0 { 16 } else { 2048 };
            let flags = if case.copied_bytes > 16 { flags & 1 } else { flags };
            let at = table + 16 * u64::from(first + place);
            put(at, DATA + 0x1_0000, bytes, flags, first + place + 1);
        }
        if case.indirect {
            put(DESCRIPTORS + 16 * u64::from(chain), table, 16 * u32::from(case.descriptors), 4, 0);
        }
        let slot = u64::from(*index % MOST_ENTRIES);
        let _ = ram.write_u16((AVAILABLE + 4 + 2 * slot).into(), chain * each);
        *index = index.wrapping_add(1);
    }
    let _ = ram.store_release_u16((AVAILABLE + 2).into(), *index);
    chains
}

/// ns a chain.
pub fn measure_ours(case: &Case) -> anyhow::Result<f64> {
    let ram = Ram::new();
    let mut queue = ours(&ram, MOST_ENTRIES, true, true);
    let mut chain = Chain::with_room_for(MOST_ENTRIES);
    let mut buffer = vec![0; case.copied_bytes];
    let (mut index, mut chains, mut took_ns) = (0, 0, 0);
    for _ in 0..ROUNDS {
        chains += u64::from(offer_all(&ram, case, &mut index));
        let begun = Instant::now();
        while queue.pop(&ram, &mut chain)? {
            chain.reader().read(&ram, &mut buffer)?;
            black_box(chain.writable_bytes());
            queue.add_used(&ram, chain.head(), 1)?;
        }
        queue.publish_used(&ram)?;
        black_box(queue.driver_wants_interrupt(&ram)?);
        queue.settle_interrupt();
        black_box(queue.request_notify(&ram)?);
        took_ns += begun.elapsed().as_nanos();
    }
    Ok(took_ns as f64 / chains as f64)
}

/// ns a chain. The chain's descriptors are collected, since a device has to look at them all before
/// it acts on one; what [`measure_ours`] checks beyond is not checked here.
pub fn measure_theirs(case: &Case) -> anyhow::Result<f64> {
    let ram = Ram::new();
    let memory = &ram.0;
    let mut queue = theirs(&ram, MOST_ENTRIES, true);
    let mut buffer = vec![0; case.copied_bytes];
    let mut taken = Vec::with_capacity(usize::from(MOST_ENTRIES));
    let mut heads = Vec::with_capacity(usize::from(MOST_ENTRIES));
    let (mut index, mut chains, mut took_ns) = (0, 0, 0);
    for _ in 0..ROUNDS {
        chains += u64::from(offer_all(&ram, case, &mut index));
        let begun = Instant::now();
        heads.clear();
        for chain in queue.iter(memory)? {
            heads.push(chain.head_index());
            taken.clear();
            taken.extend(chain);
            let mut done = 0;
            for descriptor in taken.iter().filter(|one| !one.is_write_only()) {
                let here = (descriptor.len() as usize).min(buffer.len() - done);
                vm_memory::Bytes::read_slice(memory, &mut buffer[done..done + here], descriptor.addr())?;
                done += here;
            }
            black_box(taken.iter().filter(|one| one.is_write_only()).map(|one| one.len()).sum::<u32>());
        }
        for &head in &heads {
            queue.add_used(memory, head, 1)?;
        }
        black_box(queue.needs_notification(memory)?);
        black_box(queue.enable_notification(memory)?);
        took_ns += begun.elapsed().as_nanos();
    }
    Ok(took_ns as f64 / chains as f64)
}
