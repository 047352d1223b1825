//! The memory of modules: parts of the kernel's image that come later.
//!
//! They lie in the top 2 GiB like the image (the "kernel" code model reaches no further), in the half
//! that the image leaves free. Their frames are RAM that the direct map shows, too, and nothing may be
//! writable by one name and executable by another; so code and constants lose the right to be
//! written in the direct map for as long as they are mapped here.

use super::table::{PageSize, Run};
use super::{KERNEL_SPACE, MapError, STATE};
use crate::x86_64::addr::{DIRECT_MAP_BASE, KERNEL_BASE, PAGE_BYTES, PhysRange, VirtAddr};
use crate::x86_64::shootdown;
use core::ops::Range;
use x86_64::structures::paging::PageTableFlags as Flags;

/// Where modules may be mapped: 256 MiB, so that every distance to the image and between modules fits
/// 32 bits.
pub const MODULE_AREA: Range<u64> = KERNEL_BASE + (1 << 30)..KERNEL_BASE + (1 << 30) + (256 << 20);

/// What a part of a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Read and executed.
    Code,
    /// Read.
    Constants,
    /// Read and written.
    Data,
}

impl Protection {
    fn flags(self) -> Flags {
        match self {
            Protection::Code => Flags::empty(),
            Protection::Constants => Flags::NO_EXECUTE,
            Protection::Data => Flags::WRITABLE | Flags::NO_EXECUTE,
        }
    }
}

/// Pages of the direct map where frames of RAM lie.
fn alias(frames: &PhysRange) -> impl Iterator<Item = VirtAddr> {
    let start = DIRECT_MAP_BASE + frames.start.as_u64();
    (0..frames.bytes / PAGE_BYTES).map(move |page| VirtAddr(start + page * PAGE_BYTES))
}

fn pages(frames: &PhysRange) -> usize {
    // No module has more than a few thousand.
    usize::try_from(frames.bytes / PAGE_BYTES).unwrap_or(usize::MAX)
}

/// Maps whole pages of RAM at `at` in the module area.
///
/// Waits for the other CPUs, like [`free_stack`](super::free_stack). On an error nothing is mapped.
///
/// # Safety
/// The frames are the caller's alone. As code they hold instructions that may be executed; as code or
/// constants nobody writes them until [`unmap_module`] has taken them away.
pub unsafe fn map_module(at: VirtAddr, frames: PhysRange, protection: Protection) -> Result<(), MapError> {
    let end = at.as_u64().checked_add(frames.bytes).ok_or(MapError::BadRange)?;
    let whole = at.is_aligned(PAGE_BYTES) && frames.start.is_aligned(PAGE_BYTES);
    let inside = at.as_u64() >= MODULE_AREA.start && end <= MODULE_AREA.end;
    if !whole || !inside || frames.bytes == 0 || !frames.bytes.is_multiple_of(PAGE_BYTES) {
        return Err(MapError::BadRange);
    }
    let result = map(at, &frames, protection);
    if result.is_err() {
        take_down(at, &frames);
    } else {
        shootdown::forget(VirtAddr(DIRECT_MAP_BASE + frames.start.as_u64()), pages(&frames));
    }
    result
}

fn map(at: VirtAddr, frames: &PhysRange, protection: Protection) -> Result<(), MapError> {
    let space = KERNEL_SPACE.get().ok_or(MapError::NotReady)?;
    let state = STATE.lock_with(shootdown::answer);
    let source = state.source.ok_or(MapError::NotReady)?;
    if protection != Protection::Data {
        for page in alias(frames) {
            space.protect(page, Flags::NO_EXECUTE, source)?;
        }
    }
    let run = Run {
        at,
        to: frames.start,
        bytes: frames.bytes,
        flags: protection.flags(),
        largest: PageSize::FourKib,
    };
    space.map(&run, source)
}

/// Takes what [`map_module`] has mapped away, on every CPU, after which the frames may be written in
/// the direct map again. Waits for the other CPUs.
///
/// # Safety
/// Nobody executes, reads or writes anything there any more, and `frames` are those that are mapped
/// there.
pub unsafe fn unmap_module(at: VirtAddr, frames: PhysRange) {
    take_down(at, &frames);
}

fn take_down(at: VirtAddr, frames: &PhysRange) {
    let Some(space) = KERNEL_SPACE.get() else { return };
    {
        let state = STATE.lock_with(shootdown::answer);
        for (index, page) in alias(frames).enumerate() {
            space.unmap(at + index * PAGE_BYTES as usize);
            if let Some(source) = state.source {
                // The page was cut out when it was protected, so this needs no table and cannot fail; a
                // page that was never reached is writable still.
                let _ = space.protect(page, Flags::WRITABLE | Flags::NO_EXECUTE, source);
            }
        }
    }
    shootdown::forget(at, pages(frames));
    shootdown::forget(VirtAddr(DIRECT_MAP_BASE + frames.start.as_u64()), pages(frames));
}

/// Whether `address` lies in the code of a module. Takes no lock.
pub fn is_module_code(address: VirtAddr) -> bool {
    MODULE_AREA.contains(&address.as_u64())
        && super::current_space().lookup(address).is_some_and(|leaf| !leaf.flags.contains(Flags::NO_EXECUTE))
}
