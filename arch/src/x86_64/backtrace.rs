//! Walking the stack by frame pointers.
//!
//! The kernel is built with `-Cforce-frame-pointers=yes`: RBP points at the caller's RBP,
//! the return address lies above it. A backtrace is wanted exactly when something is
//! broken, so no link is believed: each frame must be aligned and mapped before it is read,
//! each return address must lie in the code of the kernel or of a module, and the number of steps is bounded.

use super::addr::VirtAddr;
use super::{boot, paging};
use core::arch::asm;

/// Frames after which a chain is taken for a loop.
const MAX_FRAMES: usize = 64;

/// The frame pointer of the function this is inlined into.
#[inline(always)]
pub fn frame_pointer() -> usize {
    let rbp;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
    rbp
}

/// Calls `f` with each return address, the innermost first, starting at the frame that
/// `rbp` points to. Frames of interrupts are passed through.
pub fn walk(rbp: usize, mut f: impl FnMut(usize)) {
    let mut frame = rbp;
    for _ in 0..MAX_FRAMES {
        let Some((caller, return_address)) = read_frame(frame) else { return };
        f(return_address);
        frame = caller;
    }
}

fn read_frame(frame: usize) -> Option<(usize, usize)> {
    const WORD: usize = size_of::<usize>();
    if frame == 0 || !frame.is_multiple_of(WORD) {
        return None;
    }
    let last = frame.checked_add(2 * WORD - 1)?;
    // Stacks are in RAM: the image, the direct map or the vmap area, never device memory.
    for address in [frame, last] {
        if !paging::is_mapped_ram(VirtAddr(address as u64)) {
            return None;
        }
    }
    let pointer: *const usize = VirtAddr(frame as u64).as_ptr();
    // SAFETY: both words were just found to lie in mapped RAM, aligned. Another CPU may be
    // writing them, which volatile reads tolerate.
    let (caller, return_address) = unsafe { (pointer.read_volatile(), pointer.add(1).read_volatile()) };
    let is_code = boot::text_range().contains(&return_address)
        || paging::is_module_code(VirtAddr(return_address as u64));
    is_code.then_some((caller, return_address))
}
