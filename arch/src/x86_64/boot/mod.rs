//! From the boot loader to `kernel_main`.
//!
//! One ELF boots two ways: by PVH, the direct boot of QEMU and Xen (an ELF note names the
//! 32-bit entry), and by Multiboot2, which GRUB speaks under BIOS and UEFI. entry.s takes
//! both to long mode; [`arch_entry`] then makes one [`BootInfo`] of what either handed over
//! and calls `kernel_main`, which the kernel's binary defines:
//!
//! ```ignore
//! #[unsafe(no_mangle)]
//! extern "Rust" fn kernel_main(boot: &'static arch::boot::BootInfo) -> ! { ... }
//! ```
//!
//! At that point the CPU is in long mode on a 64 KiB stack, with the serial port, the
//! per-CPU area, the descriptor tables and default trap hooks in place, interrupts off, and
//! the lowest physical memory (4 GiB, or 512 where there are 1 GiB pages) mapped at 0 and in
//! the direct map. Nothing of the loader's own structures is needed any more: the map and the command
//! line are copied, the archive stays where it is. The order of what comes next is in
//! [`crate::x86_64`].
//!
//! # The memory map that is handed up
//! See [`firmware::memory`]. [`MemoryKind::Usable`] leaves out the kernel image (with the
//! boot page tables and first stacks, which are part of it), the archive, everything below
//! 1 MiB (one page of it starts the other CPUs) and whatever firmware claims; ACPI tables
//! are not usable either until somebody decides that nobody will read them again.

mod multiboot;

use super::addr::{KERNEL_BASE, PAGE_BYTES, PhysAddr, PhysRange, VirtAddr, phys_to_virt};
use super::paging::PageTable;
use super::sync::Once;
use super::traps::{self, IstStacks};
use super::{cpu, paging, serial};
use arrayvec::ArrayString;
use core::arch::global_asm;
use core::fmt::Write;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use firmware::memory::MemoryMapBuilder;
use firmware::pvh::{PvhError, StartInfo};
use x86_64::structures::paging::PageTableFlags as Flags;

pub use firmware::PhysicalMemory;
pub use firmware::memory::{MemoryKind, MemoryMap, MemoryRegion};

/// Bytes kept of the command line.
pub const COMMAND_LINE_BYTES: usize = 1024;

const BOOT_STACK_BYTES: usize = 64 * 1024;
const IST_STACK_BYTES: usize = 16 * 1024;
/// What the tables of entry.s map.
const FIRST_MAP_BYTES: u64 = 4 << 30;
/// What they map once [`extend_early_map`] has filled their one level-3 table.
const EXTENDED_MAP_BYTES: u64 = 512 << 30;

const PROTOCOL_PVH: u64 = 1;
const PROTOCOL_MULTIBOOT2: u64 = 2;
const PROTOCOL_UNKNOWN: u64 = 0;

/// Who started the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// An ELF note's 32-bit entry: QEMU, Xen.
    Pvh,
    /// GRUB.
    Multiboot2,
}

/// What the kernel is told at its start. Checked; nothing in it points into memory that
/// the map calls usable.
#[derive(Debug)]
pub struct BootInfo {
    /// All that is known of physical memory, sorted, disjoint, in whole pages.
    pub memory: MemoryMap,
    /// The kernel image.
    pub kernel: PhysRange,
    /// The boot archive: the first module. Readable through the direct map, exact to the byte.
    pub archive: Option<PhysRange>,
    /// The ACPI root pointer, if the loader told.
    pub rsdp: Option<PhysAddr>,
    /// The command line, cut at the first byte that is not ASCII and at its capacity.
    pub command_line: ArrayString<COMMAND_LINE_BYTES>,
    /// Who started the kernel.
    pub protocol: Protocol,
    /// The time-stamp counter at the kernel's first instructions.
    pub start_tsc: u64,
}

/// Why the kernel cannot start.
#[derive(Clone, Copy, Debug)]
enum BootError {
    UnknownProtocol,
    Pvh(#[allow(dead_code, reason = "shown by Debug")] PvhError),
    BadMultibootInformation,
    NoMemoryMap,
}

impl From<PvhError> for BootError {
    fn from(error: PvhError) -> Self {
        Self::Pvh(error)
    }
}

global_asm!(
    include_str!("entry.s"),
    protocol_pvh = const PROTOCOL_PVH,
    protocol_multiboot2 = const PROTOCOL_MULTIBOOT2,
    protocol_unknown = const PROTOCOL_UNKNOWN,
    boot_stack_bytes = const BOOT_STACK_BYTES,
    ist_stack_bytes = const IST_STACK_BYTES,
);

unsafe extern "C" {
    // Defined by kernel.ld; only their addresses mean something.
    static __image_start_phys: u8;
    static __image_end_phys: u8;
    static __text_start: u8;
    static __text_end: u8;
    static __rodata_start: u8;
    static __rodata_end: u8;
    static __exports_start: u8;
    static __exports_end: u8;
    static __data_start: u8;
    static __data_end: u8;
    static __boot_stacks_start: u8;
    static boot_stack_top: u8;
    // Defined by entry.s.
    static boot_pdpt_low: PageTable;
}

unsafe extern "Rust" {
    fn kernel_main(boot: &'static BootInfo) -> !;
}

macro_rules! address_of {
    ($symbol:ident) => {
        (&raw const $symbol).expose_provenance()
    };
}

/// The table of names that the kernel offers to modules (`modfile::Exports`); empty if it was linked
/// without one.
pub fn exports() -> &'static [u8] {
    let (start, end) = (address_of!(__exports_start), address_of!(__exports_end));
    let start: *const u8 = core::ptr::with_exposed_provenance(start);
    // SAFETY: the linker put the table between the two symbols, into the image's constants, which
    // nobody writes.
    unsafe { core::slice::from_raw_parts(start, end - start.addr()) }
}

/// The kernel's code.
pub fn text_range() -> Range<usize> {
    address_of!(__text_start)..address_of!(__text_end)
}

/// The kernel's constants.
pub fn rodata_range() -> Range<usize> {
    address_of!(__rodata_start)..address_of!(__rodata_end)
}

/// The kernel's variables, the boot stacks included.
pub(super) fn data_range() -> Range<usize> {
    address_of!(__data_start)..address_of!(__data_end)
}

/// The guard pages below the boot stacks.
pub(super) fn boot_guard_pages() -> [VirtAddr; 4] {
    let start = address_of!(__boot_stacks_start);
    let page = PAGE_BYTES as usize;
    let first_ist = start + page + BOOT_STACK_BYTES;
    let ist = |n: usize| first_ist + n * (page + IST_STACK_BYTES);
    [start, ist(0), ist(1), ist(2)].map(|address| VirtAddr(address as u64))
}

/// The first CPU's interrupt stacks.
fn boot_ist_stacks() -> IstStacks {
    let stride = PAGE_BYTES as usize + IST_STACK_BYTES;
    let top = |n: usize| VirtAddr((address_of!(boot_stack_top) + n * stride) as u64);
    IstStacks { nmi: top(1), double_fault: top(2), machine_check: top(3) }
}

/// The kernel image in physical memory.
fn image() -> PhysRange {
    let start = address_of!(__image_start_phys) as u64;
    PhysRange { start: PhysAddr(start), bytes: address_of!(__image_end_phys) as u64 - start }
}

static EARLY_MAP_BYTES: AtomicU64 = AtomicU64::new(FIRST_MAP_BYTES);

/// Physical addresses below this are mapped by the boot page tables.
pub(super) fn early_map_bytes() -> u64 {
    EARLY_MAP_BYTES.load(Ordering::Relaxed)
}

/// Widens the early map to 512 GiB, where the processor has 1 GiB pages: a loader may put its
/// things above 4 GiB, and a kernel's first page tables may come to lie there.
fn extend_early_map() {
    if !cpu::features().gigabyte_pages {
        return;
    }
    for gib in FIRST_MAP_BYTES >> 30..EXTENDED_MAP_BYTES >> 30 {
        let flags = Flags::PRESENT | Flags::WRITABLE | Flags::HUGE_PAGE | Flags::NO_EXECUTE;
        let index = usize::try_from(gib).unwrap_or(0);
        // SAFETY: entry.s's table for the lowest 512 GiB; entries of atomics are written as such,
        // and those written here were empty, so no translation has to be forgotten.
        unsafe { &boot_pdpt_low }.set(index, PhysAddr(gib << 30), flags);
    }
    EARLY_MAP_BYTES.store(EXTENDED_MAP_BYTES, Ordering::Relaxed);
}

/// Physical memory as the boot page tables show it, from address 0 up, until [`paging::init`]
/// has replaced them.
pub struct EarlyMemory;

impl PhysicalMemory for EarlyMemory {
    fn slice(&self, start: PhysAddr, bytes: usize) -> Option<&[u8]> {
        let end = start.checked_add(bytes as u64)?;
        if end.0 > early_map_bytes() || start.0 == 0 || paging::is_active() {
            return None;
        }
        // SAFETY: the range lies in the early direct map, all of which is mapped. Only the
        // boot CPU runs, and firmware's tables are written by nobody else any more.
        Some(unsafe { core::slice::from_raw_parts(phys_to_virt(start), bytes) })
    }
}

static BOOT_INFO: Once<BootInfo> = Once::new();

/// What `kernel_main` was given.
pub(super) fn information() -> Option<&'static BootInfo> {
    BOOT_INFO.get()
}

/// The time-stamp counter at the kernel's first instructions.
pub(super) fn start_tsc() -> u64 {
    BOOT_INFO.get().map_or(0, |boot| boot.start_tsc)
}

/// Where entry.s arrives.
///
/// # Safety
/// Called once, by entry.s, on the boot CPU, with the boot page tables, on the boot stack.
#[unsafe(no_mangle)]
unsafe extern "C" fn arch_entry(information: u64, protocol: u64, start_tsc: u64) -> ! {
    serial::init();
    // SAFETY: once, on CPU 0; the stacks are those set aside for this.
    unsafe { traps::load_tables(0, &boot_ist_stacks()) };
    cpu::init(0);
    extend_early_map();
    let boot = read(PhysAddr(information), protocol, start_tsc);
    match boot.map(|boot| BOOT_INFO.set(boot)) {
        // SAFETY: `kernel_main` is the binary's; its signature is part of the contract.
        Ok(Some(boot)) => unsafe { kernel_main(boot) },
        Ok(None) => cpu::halt_forever(),
        Err(error) => {
            let _ = writeln!(serial::Writer, "nos: cannot start: {error:?}");
            cpu::halt_forever()
        }
    }
}

fn read(information: PhysAddr, protocol: u64, start_tsc: u64) -> Result<BootInfo, BootError> {
    let mut builder = MemoryMapBuilder::new();
    let handed = match protocol {
        PROTOCOL_PVH => read_pvh(information, &mut builder)?,
        PROTOCOL_MULTIBOOT2 => multiboot::read(information, &mut builder)?,
        _ => return Err(BootError::UnknownProtocol),
    };
    builder.carve(image(), MemoryKind::Kernel);
    if let Some(archive) = handed.archive {
        builder.carve(archive, MemoryKind::Archive);
    }
    let memory = builder.build();
    if !memory.iter().any(|region| region.kind == MemoryKind::Usable) {
        return Err(BootError::NoMemoryMap);
    }
    Ok(BootInfo {
        memory,
        kernel: image(),
        archive: handed.archive,
        rsdp: handed.rsdp,
        command_line: handed.command_line,
        protocol: handed.protocol,
        start_tsc,
    })
}

/// What both protocols tell besides the memory map.
struct Handed {
    protocol: Protocol,
    archive: Option<PhysRange>,
    rsdp: Option<PhysAddr>,
    command_line: ArrayString<COMMAND_LINE_BYTES>,
}

fn read_pvh(information: PhysAddr, builder: &mut MemoryMapBuilder) -> Result<Handed, BootError> {
    let info = StartInfo::parse(&EarlyMemory, information, COMMAND_LINE_BYTES)?;
    for (start, bytes, kind) in info.memory_map() {
        builder.add(start, bytes, kind);
    }
    Ok(Handed {
        protocol: Protocol::Pvh,
        archive: info.archive(),
        rsdp: info.rsdp(),
        command_line: ascii_prefix(info.command_line()),
    })
}

/// The leading ASCII characters of `bytes`, as many as fit.
fn ascii_prefix(bytes: &[u8]) -> ArrayString<COMMAND_LINE_BYTES> {
    let mut text = ArrayString::new();
    for byte in bytes.iter().take_while(|byte| byte.is_ascii() && **byte != 0) {
        if text.try_push(char::from(*byte)).is_err() {
            break;
        }
    }
    text
}

const _: () = assert!(KERNEL_BASE == 0xffff_ffff_8000_0000, "kernel.ld has the same number");
