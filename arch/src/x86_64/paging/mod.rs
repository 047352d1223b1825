//! The kernel's address space.
//!
//! One set of page tables for all CPUs, built once by [`init`] and added to afterwards:
//!
//! | what | where | how |
//! |---|---|---|
//! | `.text` | image | read, execute |
//! | `.rodata` | image | read |
//! | `.data`, `.bss`, first stacks | image | read, write; guard pages below the stacks left out |
//! | RAM | direct map | read, write; the image's code and constants, and the boot archive, read only |
//! | device windows | vmap area | read, write, uncached |
//! | kernel stacks | vmap area | read, write, guard pages |
//! | modules | module area | as the image's parts; code and constants read only in the direct map, too |
//!
//! Nothing is both writable and executable, through no alias either; the lower half of the
//! address space is empty. There is no mapping of device memory but what [`map_mmio`] makes,
//! and none of RAM that is uncached, so no physical page has two memory types.
//!
//! Translations are not marked global: the kernel has one address space, and CR3 changes
//! only around a guest's run, where the processor keeps its own copy apart by ASID.

mod image;
mod stack;
mod table;

pub use image::{MODULE_AREA, Protection, is_module_code, map_module, unmap_module};
pub use stack::{MAX_STACK_BYTES, Stack, alloc_stack, free_stack};
pub(super) use table::PageTable;
pub use table::tables_made;

use super::addr::{
    DIRECT_MAP_BASE, DIRECT_MAP_BYTES, KERNEL_BASE, PAGE_BYTES, PhysAddr, PhysRange, VMAP_BASE, VirtAddr,
    virt_to_phys,
};
use super::boot::{self, BootInfo, MemoryKind, MemoryRegion};
use super::sync::{IrqLock, Once};
use super::{cpu, shootdown};
use core::sync::atomic::{AtomicBool, Ordering};
use table::{AddressSpace, PageSize, Run};
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::{PageTableFlags as Flags, PhysFrame};

/// Gives one free page frame; its contents do not matter. Called with `arch`'s page-table
/// lock held and interrupts off, so it must not map anything itself.
pub type FrameSource = fn() -> Option<PhysAddr>;
/// Takes a page frame back.
pub type FrameSink = fn(PhysAddr);

/// Why something cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The frame source is empty.
    OutOfFrames,
    /// The area for such mappings is full.
    OutOfAddressSpace,
    /// No bytes, too many, or an end outside the physical address space.
    BadRange,
    /// Device memory was asked for, but there is RAM.
    IsRam,
    /// Something is mapped there already: a fault of `arch`'s own bookkeeping.
    AlreadyMapped,
    /// A frame for a table lies where the direct map does not reach yet.
    UnreachableFrame,
    /// Nothing is mapped there.
    NotMapped,
    /// [`init`] has not run.
    NotReady,
}

/// Kernel stacks lie here.
const STACK_AREA: VirtAddr = VirtAddr(VMAP_BASE);
/// Device windows lie here, up to the end of the vmap area's one root entry.
const MMIO_AREA: u64 = VMAP_BASE + (1 << 30);
const MMIO_AREA_END: u64 = VMAP_BASE + (1 << 39);
const _: () = assert!(VMAP_BASE + stack::AREA_BYTES <= MMIO_AREA);

/// No physical address has more bits (AMD APM vol. 2 section 5.3).
const PHYSICAL_LIMIT: u64 = 1 << 52;

static ROOT: PageTable = PageTable::new();
static KERNEL_SPACE: Once<AddressSpace> = Once::new();
static ACTIVE: AtomicBool = AtomicBool::new(false);
static STATE: IrqLock<State> =
    IrqLock::new(State { source: None, next_window: MMIO_AREA, slots: stack::Slots::new() });
static BOOT: Once<&'static BootInfo> = Once::new();

/// What the lock protects, besides the tables themselves.
struct State {
    source: Option<FrameSource>,
    next_window: u64,
    slots: stack::Slots,
}

/// Builds the kernel's page tables and switches to them.
///
/// `alloc` is kept, for the tables of later mappings. Until this returns its frames must lie
/// where the boot page tables reach: below 4 GiB on a processor without 1 GiB pages, else below
/// 512 GiB. The direct map covers RAM only
/// from here on: ACPI tables that firmware put elsewhere must have been read before
/// ([`acpi::init`](super::acpi::init)).
pub fn init(boot: &'static BootInfo, alloc: FrameSource) -> Result<(), MapError> {
    let root = virt_to_phys((&raw const ROOT).cast()).ok_or(MapError::BadRange)?;
    // SAFETY: ROOT is a static table; `map` adds zeroed frames to it, which stay.
    let space = unsafe { AddressSpace::from_root(root) };

    for region in boot.memory.iter().filter(|region| region.kind.is_ram()) {
        map_region(&space, region, alloc)?;
    }
    map_image(&space, alloc)?;
    // The root entry of the vmap area must exist before the root is copied for the start of
    // the other CPUs.
    space.table_for(VirtAddr(VMAP_BASE), 3, alloc)?;

    STATE.lock().source = Some(alloc);
    let _ = BOOT.set(boot);
    let _ = KERNEL_SPACE.set(space);
    activate();
    ACTIVE.store(true, Ordering::Release);
    Ok(())
}

/// One region of RAM into the direct map.
fn map_region(space: &AddressSpace, region: &MemoryRegion, alloc: FrameSource) -> Result<(), MapError> {
    let end = region.end().as_u64().min(DIRECT_MAP_BYTES);
    // Up to here the region is read only.
    let fixed_end = match region.kind {
        MemoryKind::Archive => end,
        // The linker puts code and constants first.
        MemoryKind::Kernel => (boot::rodata_range().end as u64 - KERNEL_BASE).min(end),
        _ => region.start.as_u64(),
    };
    let parts = [
        (region.start.as_u64(), fixed_end, Flags::NO_EXECUTE),
        (fixed_end, end, Flags::NO_EXECUTE | Flags::WRITABLE),
    ];
    for (start, end, flags) in parts {
        let run = Run {
            at: VirtAddr(DIRECT_MAP_BASE + start),
            to: PhysAddr(start),
            bytes: end.saturating_sub(start),
            flags,
            largest: largest_page(),
        };
        space.map(&run, alloc)?;
    }
    Ok(())
}

fn largest_page() -> PageSize {
    if cpu::features().gigabyte_pages { PageSize::OneGib } else { PageSize::TwoMib }
}

/// The kernel image at its link address, without the guard pages of the first stacks.
fn map_image(space: &AddressSpace, alloc: FrameSource) -> Result<(), MapError> {
    let map = |start: u64, end: u64, flags: Flags| {
        let run = Run {
            at: VirtAddr(start),
            to: PhysAddr(start - KERNEL_BASE),
            bytes: end.saturating_sub(start),
            flags,
            largest: PageSize::FourKib,
        };
        space.map(&run, alloc)
    };
    let (text, rodata, data) = (boot::text_range(), boot::rodata_range(), boot::data_range());
    map(text.start as u64, text.end as u64, Flags::empty())?;
    map(rodata.start as u64, rodata.end as u64, Flags::NO_EXECUTE)?;
    let mut start = data.start as u64;
    for guard in boot::boot_guard_pages() {
        map(start, guard.as_u64(), Flags::WRITABLE | Flags::NO_EXECUTE)?;
        start = guard.as_u64() + PAGE_BYTES;
    }
    map(start, data.end as u64, Flags::WRITABLE | Flags::NO_EXECUTE)
}

/// The kernel's root table, and where it is.
pub(super) fn root() -> (&'static PageTable, PhysAddr) {
    // The image is always somewhere.
    let at = virt_to_phys((&raw const ROOT).cast()).unwrap_or_default();
    (&ROOT, at)
}

/// Switches this CPU to the kernel's page tables.
pub(super) fn activate() {
    let frame = PhysFrame::containing_address(x86_64::PhysAddr::new(root().1.as_u64()));
    // SAFETY: the tables map the running code, its stack and all statics where they are now.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
}

/// Whether the kernel's page tables have replaced those of the boot code.
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Acquire)
}

/// Whether a table in `frame` could be written.
fn is_reachable(frame: PhysAddr) -> bool {
    frame.as_u64() < if is_active() { DIRECT_MAP_BYTES } else { boot::early_map_bytes() }
}

/// Maps device memory, uncached, for good. Neither end needs to be aligned. The same registers
/// may be mapped more than once.
pub fn map_mmio(start: PhysAddr, bytes: usize) -> Result<VirtAddr, MapError> {
    let wanted = PhysRange::new(start, bytes as u64).ok_or(MapError::BadRange)?;
    if bytes == 0 || wanted.end().as_u64() > PHYSICAL_LIMIT {
        return Err(MapError::BadRange);
    }
    let boot = BOOT.get().ok_or(MapError::NotReady)?;
    let pages = wanted.to_pages();
    if boot.memory.iter().any(|region| is_memory(region) && overlaps(region, &pages)) {
        return Err(MapError::IsRam);
    }

    let space = KERNEL_SPACE.get().ok_or(MapError::NotReady)?;
    let mut state = STATE.lock_with(shootdown::answer);
    let source = state.source.ok_or(MapError::NotReady)?;
    let at = window_for(&pages, state.next_window).ok_or(MapError::OutOfAddressSpace)?;
    // A page stays free between windows, so that running off one faults.
    state.next_window = at + pages.bytes + PAGE_BYTES;
    space.map(
        &Run {
            at: VirtAddr(at),
            to: pages.start,
            bytes: pages.bytes,
            // PCD and PWT: entry 3 of the page attribute table, uncached after reset (AMD APM
            // vol. 2 section 7.8.2).
            flags: Flags::WRITABLE | Flags::NO_EXECUTE | Flags::NO_CACHE | Flags::WRITE_THROUGH,
            largest: PageSize::TwoMib,
        },
        source,
    )?;
    Ok(VirtAddr(at + (start - pages.start)))
}

fn is_memory(region: &MemoryRegion) -> bool {
    region.kind.is_ram() || matches!(region.kind, MemoryKind::AcpiNvs | MemoryKind::Bad)
}

fn overlaps(region: &MemoryRegion, range: &PhysRange) -> bool {
    region.start < range.end() && range.start < region.end()
}

/// Where the next window goes: behind `next`, and for a large one at the same distance from a
/// 2 MiB boundary as its registers, so that large pages fit.
fn window_for(pages: &PhysRange, next: u64) -> Option<u64> {
    let large = PageSize::TwoMib.bytes();
    let at = if pages.bytes >= large {
        next.checked_next_multiple_of(large)? + pages.start.as_u64() % large
    } else {
        next
    };
    let end = at.checked_add(pages.bytes)?.checked_add(PAGE_BYTES)?;
    (end <= MMIO_AREA_END).then_some(at)
}

/// The space of the page tables in force, the boot code's included.
fn current_space() -> AddressSpace {
    let (frame, _) = Cr3::read();
    // SAFETY: CR3 holds the boot tables or the kernel's, or for a moment those of an application
    // processor's start; all are static or never freed, and lie in RAM that is mapped.
    unsafe { AddressSpace::from_root(PhysAddr(frame.start_address().as_u64())) }
}

/// Whether `address` is in the kernel's half, mapped, and cached: RAM that can be read without a
/// fault or a side effect. Takes no lock.
pub fn is_mapped_ram(address: VirtAddr) -> bool {
    address.as_u64() >= DIRECT_MAP_BASE
        && current_space().lookup(address).is_some_and(|leaf| !leaf.flags.contains(Flags::NO_CACHE))
}

/// Whether `address` lies in a page that was left unmapped below a stack. Takes no lock.
pub fn is_guard_page(address: VirtAddr) -> bool {
    let page = VirtAddr(address.as_u64() & !(PAGE_BYTES - 1));
    let offset = address.as_u64().wrapping_sub(STACK_AREA.as_u64());
    is_active()
        && (boot::boot_guard_pages().contains(&page)
            || (offset < stack::AREA_BYTES && !is_mapped_ram(address)))
}
