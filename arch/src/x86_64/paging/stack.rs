//! Kernel stacks with guard pages.
//!
//! The stack area is cut into slots. A stack lies at the upper end of its slot, and at least
//! one page below it is never mapped, so an overflow faults instead of running into the next
//! stack. The fault cannot be taken on that stack either; it becomes a double fault, which
//! has a stack of its own.

use super::table::{PageSize, Run};
use super::{FrameSink, FrameSource, KERNEL_SPACE, MapError, STACK_AREA, STATE};
use crate::x86_64::addr::{PAGE_BYTES, PhysAddr, VirtAddr};
use crate::x86_64::shootdown;
use arrayvec::ArrayVec;
use x86_64::structures::paging::PageTableFlags as Flags;

const SLOT_BYTES: usize = 128 * 1024;
const SLOTS: usize = 4096;
/// The slot's lowest page stays unmapped.
const MAX_PAGES: usize = SLOT_BYTES / PAGE_BYTES as usize - 1;

/// Bytes of the whole area.
pub(super) const AREA_BYTES: u64 = (SLOT_BYTES * SLOTS) as u64;
/// The largest stack that [`alloc_stack`] gives.
pub const MAX_STACK_BYTES: usize = MAX_PAGES * PAGE_BYTES as usize;

/// A mapped stack that belongs to whoever holds this.
#[derive(Debug)]
pub struct Stack {
    slot: usize,
    pages: usize,
}

impl Stack {
    fn top_address(&self) -> VirtAddr {
        STACK_AREA + (self.slot + 1) * SLOT_BYTES
    }

    /// Where an empty stack's pointer starts: one past the last byte, page-aligned.
    pub fn top(&self) -> *mut u8 {
        self.top_address().as_mut_ptr()
    }

    /// The lowest mapped byte; the page below is not mapped.
    pub fn bottom(&self) -> VirtAddr {
        VirtAddr(self.top_address().as_u64() - self.len_bytes() as u64)
    }

    /// Its size.
    pub const fn len_bytes(&self) -> usize {
        self.pages * PAGE_BYTES as usize
    }
}

/// Which slots are taken, and frames that a failed allocation could not give back.
pub(super) struct Slots {
    taken: [u64; SLOTS / 64],
    spare: ArrayVec<PhysAddr, MAX_PAGES>,
}

impl Slots {
    pub(super) const fn new() -> Self {
        Self { taken: [0; SLOTS / 64], spare: ArrayVec::new_const() }
    }

    fn take(&mut self) -> Option<usize> {
        let (index, word) = self.taken.iter_mut().enumerate().find(|(_, word)| **word != !0)?;
        let bit = word.trailing_ones() as usize;
        *word |= 1 << bit;
        Some(index * 64 + bit)
    }

    fn give_back(&mut self, slot: usize) {
        self.taken[slot / 64] &= !(1 << (slot % 64));
    }

    /// Keeps a frame for the next stack. The next allocation takes these first, so there is room
    /// for one that failed; only if several fail at once, out of memory, is a frame lost.
    fn keep(&mut self, frame: PhysAddr) {
        let _ = self.spare.try_push(frame);
    }
}

/// A stack of at least `bytes` bytes, at most [`MAX_STACK_BYTES`], with an unmapped page below.
/// Its contents are whatever was in the frames.
pub fn alloc_stack(bytes: usize, alloc: FrameSource) -> Result<Stack, MapError> {
    let pages = bytes.div_ceil(PAGE_BYTES as usize);
    if !(1..=MAX_PAGES).contains(&pages) {
        return Err(MapError::BadRange);
    }
    // The frames come first and without the lock: the source may have locks of its own.
    let mut frames = core::mem::take(&mut STATE.lock_with(shootdown::answer).slots.spare);
    while frames.len() < pages {
        match alloc() {
            Some(frame) => frames.push(frame),
            None => {
                keep_all(frames);
                return Err(MapError::OutOfFrames);
            }
        }
    }
    let spare: ArrayVec<PhysAddr, MAX_PAGES> = frames.drain(pages..).collect();
    keep_all(spare);

    let slot = STATE.lock_with(shootdown::answer).slots.take().ok_or(MapError::OutOfAddressSpace);
    let stack = match slot {
        Ok(slot) => Stack { slot, pages },
        Err(error) => {
            keep_all(frames);
            return Err(error);
        }
    };
    let (mapped, result) = map_frames(&stack, &frames);
    if let Err(error) = result {
        keep_all(frames.drain(mapped..).collect());
        // Nothing ran on it yet, but the mapped frames may be in a TLB by speculation.
        take_down(stack, |frame| STATE.lock_with(shootdown::answer).slots.keep(frame));
        return Err(error);
    }
    Ok(stack)
}

fn keep_all(frames: ArrayVec<PhysAddr, MAX_PAGES>) {
    let mut state = STATE.lock_with(shootdown::answer);
    frames.into_iter().for_each(|frame| state.slots.keep(frame));
}

/// Maps the frames as the stack's pages; tells how many are mapped.
fn map_frames(stack: &Stack, frames: &[PhysAddr]) -> (usize, Result<(), MapError>) {
    let Some(space) = KERNEL_SPACE.get() else { return (0, Err(MapError::NotReady)) };
    let state = STATE.lock_with(shootdown::answer);
    let Some(source) = state.source else { return (0, Err(MapError::NotReady)) };
    for (index, frame) in frames.iter().enumerate() {
        let run = Run {
            at: stack.bottom() + index * PAGE_BYTES as usize,
            to: *frame,
            bytes: PAGE_BYTES,
            flags: Flags::WRITABLE | Flags::NO_EXECUTE,
            largest: PageSize::FourKib,
        };
        if let Err(error) = space.map(&run, source) {
            return (index, Err(error));
        }
    }
    (frames.len(), Ok(()))
}

/// Unmaps the stack on every CPU and hands its frames to `free`.
///
/// Waits for the other CPUs, so the caller may not hold a lock that one of them could be
/// waiting for with interrupts off, and must not be running on this stack.
pub fn free_stack(stack: Stack, free: FrameSink) {
    take_down(stack, free);
}

fn take_down(stack: Stack, free: impl Fn(PhysAddr)) {
    let Some(space) = KERNEL_SPACE.get() else { return };
    let mut frames: ArrayVec<PhysAddr, MAX_PAGES> = ArrayVec::new();
    {
        let _state = STATE.lock_with(shootdown::answer);
        for page in 0..stack.pages {
            // A stack whose mapping failed half-way has fewer.
            frames.extend(space.unmap(stack.bottom() + page * PAGE_BYTES as usize));
        }
    }
    shootdown::forget(stack.bottom(), stack.pages);
    frames.into_iter().for_each(free);
    STATE.lock_with(shootdown::answer).slots.give_back(stack.slot);
}
