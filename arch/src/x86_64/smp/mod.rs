//! Starting the other CPUs.
//!
//! One after the other, by INIT and start-up IPIs (SDM vol. 3A section 9.4.4). Each runs
//! trampoline.s from a page below 1 MiB, on page tables that map that one page where it lies and
//! the kernel as usual, then the steps of [`application_processor`], and then whatever the kernel
//! wants of it. CPUs are numbered in the order in which they came up, without gaps.
//!
//! A CPU that does not come up in time is reset again, so that it cannot wake later and find the
//! trampoline rewritten, and left out.

use super::addr::{PAGE_BYTES, PhysAddr, VirtAddr, phys_to_virt, virt_to_phys};
use super::boot::{self, MemoryKind};
use super::paging::{self, FrameSource, MapError, PageTable, Stack};
use super::sync::Once;
use super::traps::{self, IstStacks, VECTOR_WAKE};
use super::{acpi, apic, clock, cpu};
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};
use x86_64::structures::paging::PageTableFlags as Flags;

const STACK_BYTES: usize = 64 * 1024;
const IST_STACK_BYTES: usize = 16 * 1024;
/// How long a CPU may take to answer. Milliseconds on hardware; an emulator on a busy host may not
/// give it a turn for long.
const PATIENCE_NS: u64 = 1_000_000_000;
/// From INIT to the start-up IPI, which a CPU that has not finished its reset does not notice.
/// Processors of this century need no more; the 10 ms of the manual are for older ones.
const RESET_NS: u64 = 200_000;
/// From one start-up IPI to the next. One that runs already ignores it.
const STARTUP_AGAIN_NS: u64 = 2_000_000;
/// The trampoline must lie where real mode reaches.
const REAL_MODE_END: u64 = 0xa_0000;
/// I/O APICs and message-signalled interrupts have eight bits for a CPU; the last is broadcast.
const APIC_ID_LIMIT: u32 = 255;

global_asm!(include_str!("trampoline.s"), options(att_syntax));

unsafe extern "C" {
    static ap_trampoline_start: u8;
    static ap_trampoline_end: u8;
    static ap_long_mode: u8;
    static ap_start_data: u8;
}

/// The data at the end of trampoline.s.
#[repr(C)]
struct StartData {
    far_offset: u32,
    far_selector: u16,
    gdt_limit: u16,
    gdt_base: u32,
    reserved: u32,
    page_table: u64,
    stack: u64,
    cpu: u64,
    entry: u64,
    gdt: [u64; 3],
}

/// What a starting CPU needs besides its stack.
struct Start {
    ist: IstStacks,
    entry: fn(cpu: usize) -> !,
}

static STARTS: [Once<Start>; cpu::MAX_CPUS] = [const { Once::new() }; cpu::MAX_CPUS];

/// The number of the CPU being started that has arrived and may go on, or zero.
static ARRIVED: AtomicU32 = AtomicU32::new(0);

/// The page tables of a start: the kernel's upper half, and the trampoline's page.
struct StartTables {
    root: PageTable,
    level3: PageTable,
    level2: PageTable,
    level1: PageTable,
}

static START_TABLES: StartTables = StartTables {
    root: PageTable::new(),
    level3: PageTable::new(),
    level2: PageTable::new(),
    level1: PageTable::new(),
};

/// Starts every other CPU that the MADT lists, up to [`cpu::MAX_CPUS`], and tells how many came up.
///
/// Each calls `entry` with its number: interrupts off, on a guarded stack of 64 KiB that is its own
/// for good, with its descriptor tables, interrupt stacks, APIC and clock in place. Stacks are made
/// of frames from `alloc`. Once, on the first CPU, after [`apic::timer_calibrate`]; this CPU's timer
/// must not be in use, and interrupts may be turned on for moments even if they are off.
pub fn start_others(entry: fn(cpu: usize) -> !, alloc: FrameSource) -> usize {
    let info = acpi::info();
    let own = cpu::apic_id(0);
    let others = info.cpus.iter().copied().filter(|id| *id != own);
    if others.clone().next().is_none() {
        return 0;
    }
    let Some(page) = trampoline_page() else {
        log::warn!("no memory below 1 MiB to start CPUs from; only one runs");
        return 0;
    };
    let Some(page_table) = map_trampoline(page) else { return 0 };

    let mut ignored = info.cpus_ignored;
    let mut stack: Option<Stack> = None;
    for apic_id in others {
        let number = cpu::count();
        if number == cpu::MAX_CPUS || apic_id >= APIC_ID_LIMIT {
            ignored += 1;
            continue;
        }
        // A CPU that failed leaves its number and its stacks to the next.
        let ready = match stack.take() {
            Some(stack) => Ok(stack),
            None => prepare(number, entry, alloc),
        };
        let own_stack = match ready {
            Ok(stack) => stack,
            Err(error) => {
                log::warn!("no stacks for CPU {number} ({error:?}); {number} run");
                break;
            }
        };
        write_trampoline(page, page_table, number, &own_stack);
        if start(apic_id, page, number) {
            cpu::set_count(number + 1);
            // The stack is that CPU's for good. It has no destructor.
        } else {
            log::warn!("the CPU with APIC id {apic_id} does not start");
            stack = Some(own_stack);
        }
    }
    if ignored > 0 {
        log::warn!("{ignored} CPUs are left out: {} are the most that run", cpu::MAX_CPUS);
    }
    cpu::count() - 1
}

/// A page of RAM that real mode reaches. Not part of what the kernel hands out (boot's text).
fn trampoline_page() -> Option<PhysAddr> {
    let memory = &boot::information()?.memory;
    firmware::memory::page_below(memory, MemoryKind::LowMemory, REAL_MODE_END)
}

/// Fills the start tables; gives their root.
fn map_trampoline(page: PhysAddr) -> Option<PhysAddr> {
    let at = |table: &'static PageTable| virt_to_phys((&raw const *table).cast());
    let link = Flags::PRESENT | Flags::WRITABLE;
    let tables = &START_TABLES;
    tables.root.copy_upper_half(paging::root().0);
    tables.root.set(0, at(&tables.level3)?, link);
    tables.level3.set(0, at(&tables.level2)?, link);
    tables.level2.set(0, at(&tables.level1)?, link);
    let index = usize::try_from(page.as_u64() / PAGE_BYTES).ok()?;
    // Read and execute: the CPU writes nothing there.
    tables.level1.set(index, page, Flags::PRESENT);
    at(&tables.root)
}

/// The stacks of CPU `number`, and what it will be told.
fn prepare(number: usize, entry: fn(cpu: usize) -> !, alloc: FrameSource) -> Result<Stack, MapError> {
    let stack = paging::alloc_stack(STACK_BYTES, alloc)?;
    let ist_stack = || {
        // For good, like the CPU.
        let stack = paging::alloc_stack(IST_STACK_BYTES, alloc)?;
        Ok(VirtAddr::of(stack.top()))
    };
    let ist = IstStacks { nmi: ist_stack()?, double_fault: ist_stack()?, machine_check: ist_stack()? };
    // Each number is prepared once.
    let _ = STARTS[number].set(Start { ist, entry });
    Ok(stack)
}

macro_rules! offset_in_trampoline {
    ($symbol:ident) => {
        (&raw const $symbol).addr() - (&raw const ap_trampoline_start).addr()
    };
}

#[allow(clippy::cast_possible_truncation, reason = "the page lies below 1 MiB")]
fn write_trampoline(page: PhysAddr, page_table: PhysAddr, number: usize, stack: &Stack) {
    let length = offset_in_trampoline!(ap_trampoline_end);
    let data_offset = offset_in_trampoline!(ap_start_data);
    debug_assert!(length <= PAGE_BYTES as usize);
    debug_assert!(length - data_offset == size_of::<StartData>());
    let data = StartData {
        far_offset: page.as_u64() as u32 + offset_in_trampoline!(ap_long_mode) as u32,
        far_selector: 8,
        gdt_limit: 23,
        gdt_base: page.as_u64() as u32 + (data_offset + offset_of!(StartData, gdt)) as u32,
        reserved: 0,
        page_table: page_table.as_u64(),
        stack: VirtAddr::of(stack.top()).as_u64(),
        cpu: number as u64,
        entry: application_processor as *const () as u64,
        // Code and data, marked accessed: the processor would set the mark itself, in a page that
        // is mapped read-only.
        gdt: [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff],
    };
    let target = phys_to_virt(page);
    // SAFETY: the page is RAM set aside for this, mapped writable in the direct map, and no CPU
    // runs from it now. The trampoline is shorter than a page and contiguous from its start.
    unsafe {
        target.copy_from_nonoverlapping(&raw const ap_trampoline_start, length);
        target.add(data_offset).cast::<StartData>().write_unaligned(data);
    }
}

/// Sends the interrupts and waits. The other side of [`application_processor`].
fn start(apic_id: u32, page: PhysAddr, number: usize) -> bool {
    ARRIVED.store(0, Ordering::Relaxed);
    apic::send_init(apic_id);
    let start_ns = clock::now_ns();
    let mut next_startup_ns = RESET_NS;
    loop {
        let waited_ns = clock::now_ns() - start_ns;
        if waited_ns > PATIENCE_NS {
            apic::send_init(apic_id);
            return false;
        }
        if waited_ns >= next_startup_ns {
            apic::send_startup(apic_id, page);
            next_startup_ns = waited_ns + STARTUP_AGAIN_NS;
        }
        if wait_for_arrival(number, next_startup_ns - waited_ns) {
            return true;
        }
    }
}

/// Waits a while, `limit_ns` at most; tells whether CPU `number` has arrived.
fn wait_for_arrival(number: usize, limit_ns: u64) -> bool {
    let arrived = || ARRIVED.load(Ordering::Acquire) as usize == number;
    if !cpu::features().tcg {
        clock::answer_offset_question();
        cpu::pause();
        return arrived();
    }
    // An emulator's CPUs share the host's. One that spins keeps the one it waits for from running:
    // a start took 60 to 150 ms on a loaded host of two cores, against 1 ms when this one sleeps.
    let interrupts = cpu::irq_save();
    apic::timer_arm_as(VECTOR_WAKE, limit_ns);
    // With interrupts off, a wake-up between the question and the HLT stays pending and ends it.
    if !arrived() {
        cpu::enable_and_halt();
        cpu::disable_interrupts();
    }
    apic::timer_disarm();
    cpu::irq_restore(interrupts);
    arrived()
}

/// The rest of a CPU's start, from trampoline.s, on the CPU's own stack.
extern "C" fn application_processor(number: usize) -> ! {
    // The start's tables still map the trampoline; the kernel's do not.
    paging::activate();
    let Some(start) = STARTS.get(number).and_then(Once::get) else {
        // Not prepared, so not started by this kernel.
        loop {
            cpu::halt();
        }
    };
    // SAFETY: this CPU is the only one with this number, and comes here once; the stacks were made
    // for it.
    unsafe { traps::load_tables(number, &start.ist) };
    cpu::init(number);
    // TCG's CPUs all read the host's one counter.
    if !cpu::features().tcg {
        clock::measure_offset(number);
    }
    apic::init();
    #[allow(clippy::cast_possible_truncation, reason = "at most MAX_CPUS")]
    ARRIVED.store(number as u32, Ordering::Release);
    apic::send_ipi(0, VECTOR_WAKE);
    (start.entry)(number)
}
