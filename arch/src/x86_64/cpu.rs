//! One CPU: its number, its per-CPU area, its interrupt flag, its features.
//!
//! The per-CPU area is reached through GS, which always holds its address: the kernel
//! runs nothing at CPL 3, so there is no SWAPGS and no window in which an NMI finds the
//! wrong base. `hvarch` restores GS after a guest has run, before anything else.

use super::sync::Once;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use x86_64::VirtAddr as X86VirtAddr;
use x86_64::instructions::interrupts;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags, Efer, EferFlags};
use x86_64::registers::model_specific::{GsBase, Msr};

/// Most CPUs the kernel runs on. More are left parked.
pub const MAX_CPUS: usize = 16;
/// Words of each CPU's area that belong to `kcore`.
pub const LOCAL_WORDS: usize = 16;

/// The page attribute table, and its contents after reset: write-back, write-through, "uncached
/// unless an MTRR says otherwise", uncached, twice (AMD APM vol. 2 section 7.8). Device windows
/// count on the fourth.
const MSR_PAGE_ATTRIBUTE_TABLE: u32 = 0x277;
const PAGE_ATTRIBUTES: u64 = 0x0007_0406_0007_0406;

/// What belongs to one CPU and must be found without knowing which one it is. The
/// assembly below reads `index` and `words` at their offsets.
#[repr(C, align(128))]
pub struct PerCpu {
    index: AtomicUsize,
    words: [AtomicUsize; LOCAL_WORDS],
    apic_id: AtomicU32,
    online: AtomicBool,
}

impl PerCpu {
    const fn new() -> Self {
        Self {
            index: AtomicUsize::new(0),
            words: [const { AtomicUsize::new(0) }; LOCAL_WORDS],
            apic_id: AtomicU32::new(0),
            online: AtomicBool::new(false),
        }
    }
}

static AREAS: [PerCpu; MAX_CPUS] = [const { PerCpu::new() }; MAX_CPUS];
static COUNT: AtomicUsize = AtomicUsize::new(1);
static FEATURES: Once<Features> = Once::new();

/// What the processor offers, as far as this kernel asks. Read on the first CPU; the
/// others of a machine are the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    /// The local APIC's MSR interface.
    pub x2apic: bool,
    /// AMD-V.
    pub svm: bool,
    /// Supervisor-mode execution prevention.
    pub smep: bool,
    /// Supervisor-mode access prevention.
    pub smap: bool,
    /// User-mode instruction prevention.
    pub umip: bool,
    /// The time-stamp counter runs at one rate in all power states.
    pub invariant_tsc: bool,
    /// 1 GiB pages.
    pub gigabyte_pages: bool,
    /// RDTSCP and IA32_TSC_AUX.
    pub rdtscp: bool,
    /// A hypervisor says that it is there.
    pub hypervisor: bool,
    /// It is QEMU's emulation (TCG).
    pub tcg: bool,
    /// The time-stamp counter's rate, where CPUID states it; else zero.
    pub tsc_hz: u64,
}

impl Features {
    fn read() -> Self {
        let cpuid = raw_cpuid::CpuId::new();
        let basic = cpuid.get_feature_info();
        let extended = cpuid.get_extended_processor_and_feature_identifiers();
        let structured = cpuid.get_extended_feature_info();
        let power = cpuid.get_advanced_power_mgmt_info();
        Self {
            x2apic: basic.as_ref().is_some_and(|f| f.has_x2apic()),
            hypervisor: basic.as_ref().is_some_and(|f| f.has_hypervisor()),
            tcg: is_tcg(),
            svm: extended.as_ref().is_some_and(|f| f.has_svm()),
            gigabyte_pages: extended.as_ref().is_some_and(|f| f.has_1gib_pages()),
            rdtscp: extended.as_ref().is_some_and(|f| f.has_rdtscp()),
            smep: structured.as_ref().is_some_and(|f| f.has_smep()),
            smap: structured.as_ref().is_some_and(|f| f.has_smap()),
            umip: structured.as_ref().is_some_and(|f| f.has_umip()),
            invariant_tsc: power.is_some_and(|f| f.has_invariant_tsc()),
            tsc_hz: tsc_hz_by_cpuid(&cpuid).unwrap_or(0),
        }
    }
}

/// Whether CPUID leaf 4000_0000h says "TCGTCGTCGTCG".
fn is_tcg() -> bool {
    const FIRST_HYPERVISOR_LEAF: u32 = 0x4000_0000;
    let leaf = core::arch::x86_64::__cpuid(FIRST_HYPERVISOR_LEAF);
    [leaf.ebx, leaf.ecx, leaf.edx] == [*b"TCGT", *b"CGTC", *b"GTCG"].map(u32::from_le_bytes)
}

/// The TSC's rate from CPUID leaf 15h (SDM vol. 2A, CPUID) or from the leaf that
/// hypervisors agreed on, 4000_0010h, EAX in kHz.
fn tsc_hz_by_cpuid(cpuid: &raw_cpuid::CpuId<raw_cpuid::CpuIdReaderNative>) -> Option<u64> {
    let by_leaf_15 = || {
        let tsc = cpuid.get_tsc_info()?;
        // Without a stated crystal frequency the ratio alone says nothing.
        (tsc.nominal_frequency() != 0).then(|| tsc.tsc_frequency()).flatten()
    };
    let by_hypervisor = || {
        let khz = cpuid.get_hypervisor_info()?.tsc_frequency()?;
        (khz != 0).then_some(u64::from(khz) * 1000)
    };
    by_leaf_15().or_else(by_hypervisor)
}

/// Gives this CPU its number and switches its protections on. Called once on each CPU,
/// before anything that asks which CPU this is; the GDT must be loaded already, since
/// loading GS from it would clear the base.
pub(super) fn init(cpu: usize) {
    let area = &AREAS[cpu];
    area.index.store(cpu, Ordering::Relaxed);
    GsBase::write(X86VirtAddr::from_ptr(area));

    let features = match FEATURES.get() {
        Some(features) => *features,
        None => {
            let features = Features::read();
            // A second caller cannot exist yet: only the first CPU runs.
            let _ = FEATURES.set(features);
            features
        }
    };
    enable_protections(&features);
    // SAFETY: every x86-64 processor has the register; these are its values after reset, so the
    // meaning of no existing mapping changes but where firmware had changed it.
    unsafe { Msr::new(MSR_PAGE_ATTRIBUTE_TABLE).write(PAGE_ATTRIBUTES) };
}

/// Write protection for the kernel itself, no-execute, machine checks as exceptions, and
/// SMEP, SMAP and UMIP where present. There is no user mode to protect against, but a
/// stray pointer into the lower half then faults in one more way.
fn enable_protections(features: &Features) {
    let mut cr4 = Cr4Flags::PHYSICAL_ADDRESS_EXTENSION | Cr4Flags::MACHINE_CHECK_EXCEPTION;
    cr4.set(Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION, features.smep);
    cr4.set(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION, features.smap);
    cr4.set(Cr4Flags::USER_MODE_INSTRUCTION_PREVENTION, features.umip);
    let cr0 = Cr0Flags::PROTECTED_MODE_ENABLE
        | Cr0Flags::MONITOR_COPROCESSOR
        | Cr0Flags::EXTENSION_TYPE
        | Cr0Flags::NUMERIC_ERROR
        | Cr0Flags::WRITE_PROTECT
        | Cr0Flags::PAGING;
    // SAFETY: the flags keep long mode and the current paging mode; NX is used by the
    // page tables already, and no kernel mapping has the user bit that SMEP and SMAP look at.
    unsafe {
        Efer::update(|flags| flags.insert(EferFlags::NO_EXECUTE_ENABLE));
        Cr0::write(cr0);
        Cr4::write(cr4);
    }
}

/// Marks this CPU as one that answers inter-processor interrupts.
pub(super) fn set_online(cpu: usize) {
    AREAS[cpu].online.store(true, Ordering::Release);
}

/// Whether `cpu` answers inter-processor interrupts.
pub fn is_online(cpu: usize) -> bool {
    AREAS.get(cpu).is_some_and(|area| area.online.load(Ordering::Acquire))
}

pub(super) fn set_apic_id(cpu: usize, id: u32) {
    AREAS[cpu].apic_id.store(id, Ordering::Relaxed);
}

pub(super) fn set_count(count: usize) {
    COUNT.store(count, Ordering::Release);
}

/// This CPU's number: 0 for the one that booted, the others without gaps.
#[inline]
pub fn index() -> usize {
    let index;
    // SAFETY: GS holds the address of this CPU's area from `init` on, and `index` is its
    // first field.
    unsafe {
        asm!("mov {}, gs:[0]", out(reg) index, options(nostack, preserves_flags, readonly));
    }
    index
}

/// CPUs that run.
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// Word `n` of the area of the CPU that this code runs on.
///
/// The caller must not be moved to another CPU while it means "mine" (`kcore` pins tasks
/// to CPUs, so none is).
#[inline]
pub fn local_word(n: usize) -> &'static AtomicUsize {
    word_of(index(), n)
}

/// Word `n` of `cpu`'s area.
#[inline]
pub fn word_of(cpu: usize, n: usize) -> &'static AtomicUsize {
    &AREAS[cpu].words[n]
}

/// The APIC identifier of `cpu`.
pub fn apic_id(cpu: usize) -> u32 {
    AREAS[cpu].apic_id.load(Ordering::Relaxed)
}

/// What the processor offers.
pub fn features() -> &'static Features {
    const NONE: Features = Features {
        x2apic: false,
        svm: false,
        smep: false,
        smap: false,
        umip: false,
        invariant_tsc: false,
        gigabyte_pages: false,
        rdtscp: false,
        hypervisor: false,
        tcg: false,
        tsc_hz: 0,
    };
    FEATURES.get().unwrap_or(&NONE)
}

/// One turn of a spin loop.
///
/// Under TCG, PAUSE also gives up the emulator's global lock, which the CPU being waited for may
/// need: leaving it out made spin loops slower there, not faster (measured; with four CPUs on a
/// loaded two-core host `arch-smoke` finished in none of 8 runs without it, and in all of 5 with).
#[inline]
pub fn pause() {
    core::hint::spin_loop();
}

/// Stops until the next interrupt, or for good if interrupts are off (an NMI still comes
/// through, and this then returns).
#[inline]
pub fn halt() {
    x86_64::instructions::hlt();
}

/// Turns interrupts on and stops until one arrives. No interrupt can come between the
/// two: STI takes effect after the instruction that follows it (AMD APM vol. 3, STI).
/// Returns with interrupts on.
#[inline]
pub fn enable_and_halt() {
    interrupts::enable_and_hlt();
}

/// Stops this CPU for good. Nobody waits for its answers any more.
pub fn halt_forever() -> ! {
    interrupts::disable();
    AREAS[index()].online.store(false, Ordering::Release);
    loop {
        interrupts::disable();
        halt();
    }
}

/// Whether this CPU takes interrupts.
#[inline]
pub fn interrupts_enabled() -> bool {
    interrupts::are_enabled()
}

/// Turns interrupts on.
#[inline]
pub fn enable_interrupts() {
    interrupts::enable();
}

/// Turns interrupts off.
#[inline]
pub fn disable_interrupts() {
    interrupts::disable();
}

/// Whether interrupts were on; to be handed to [`irq_restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct IrqState {
    enabled: bool,
}

/// Turns interrupts off and tells whether they were on.
#[inline]
pub fn irq_save() -> IrqState {
    let enabled = interrupts::are_enabled();
    interrupts::disable();
    IrqState { enabled }
}

/// Turns interrupts on if they were on when `state` was saved.
#[inline]
pub fn irq_restore(state: IrqState) {
    if state.enabled {
        interrupts::enable();
    }
}

/// The time-stamp counter. Not ordered with the instructions around it.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: RDTSC exists on every 64-bit processor, and CR4.TSD only concerns user mode.
    unsafe { core::arch::x86_64::_rdtsc() }
}
