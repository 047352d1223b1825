//! The local APIC: inter-processor interrupts, the one-shot timer, message-signalled interrupts.
//!
//! x2APIC mode (registers as MSRs) is used where the processor has it, else xAPIC (registers in
//! memory). All addressing is physical: an interrupt goes to one CPU, by its APIC identifier.
//! Registers and bits: SDM vol. 3A chapter 11 (APIC); AMD APM vol. 2 chapter 16.

use super::addr::{PhysAddr, VirtAddr};
use super::sync::Once;
use super::traps::{VECTOR_SPURIOUS, VECTOR_TIMER};
use super::{clock, cpu, paging};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use x86_64::registers::model_specific::Msr;

/// The registers, by their offset in the xAPIC page. An x2APIC's MSR is 0x800 plus a sixteenth.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Register {
    Id = 0x20,
    TaskPriority = 0x80,
    EndOfInterrupt = 0xb0,
    SpuriousVector = 0xf0,
    ErrorStatus = 0x280,
    InterruptCommand = 0x300,
    InterruptCommandHigh = 0x310,
    LocalTimer = 0x320,
    LocalInt0 = 0x350,
    LocalInt1 = 0x360,
    LocalError = 0x370,
    TimerInitialCount = 0x380,
    TimerCurrentCount = 0x390,
    TimerDivide = 0x3e0,
}

const MSR_APIC_BASE: u32 = 0x1b;
const BASE_ENABLE: u64 = 1 << 11;
const BASE_X2APIC: u64 = 1 << 10;
const BASE_ADDRESS: u64 = 0x000f_ffff_ffff_f000;
const MSR_X2APIC: u32 = 0x800;

const SOFTWARE_ENABLE: u32 = 1 << 8;
const MASKED: u32 = 1 << 16;
const DELIVERY_NMI: u32 = 0b100 << 8;
const DELIVERY_INIT: u32 = 0b101 << 8;
const DELIVERY_STARTUP: u32 = 0b110 << 8;
const COMMAND_ASSERT: u32 = 1 << 14;
const COMMAND_PENDING: u32 = 1 << 12;

/// Where the registers are.
#[derive(Clone, Copy)]
enum Access {
    Memory(VirtAddr),
    Msr,
}

static ACCESS: Once<Access> = Once::new();

fn access() -> Option<Access> {
    ACCESS.get().copied()
}

fn msr_of(register: Register) -> Msr {
    Msr::new(MSR_X2APIC + (register as u32 >> 4))
}

/// A register's value; zero before [`init`].
fn read(register: Register) -> u32 {
    match access() {
        // SAFETY: the page is the mapped, uncached register page; the offset lies in it, aligned.
        Some(Access::Memory(base)) => unsafe { (base + register as usize).as_ptr::<u32>().read_volatile() },
        // SAFETY: the CPU is in x2APIC mode, where this MSR exists; the upper half reads as zero
        // for every register read here.
        #[allow(clippy::cast_possible_truncation, reason = "32-bit registers")]
        Some(Access::Msr) => unsafe { msr_of(register).read() as u32 },
        None => 0,
    }
}

/// Writes a register; nothing before [`init`].
fn write(register: Register, value: u32) {
    match access() {
        // SAFETY: as in `read`. What a write makes the APIC do is this module's business.
        Some(Access::Memory(base)) => unsafe {
            (base + register as usize).as_mut_ptr::<u32>().write_volatile(value);
        },
        // SAFETY: as in `read`; the reserved upper half is written as zero.
        Some(Access::Msr) => unsafe { msr_of(register).write(value.into()) },
        None => (),
    }
}

/// Switches this CPU's APIC on: accepts interrupts of every priority, timer masked, NMI line open.
///
/// Once on each CPU; on the first one after [`paging::init`].
pub fn init() {
    let mut base_register = Msr::new(MSR_APIC_BASE);
    // SAFETY: every x86-64 processor has this MSR.
    let base = unsafe { base_register.read() };
    // Firmware may have gone over to x2APIC mode already, and there is no direct way back.
    let x2apic = cpu::features().x2apic || base & BASE_X2APIC != 0;
    let mode = if x2apic { BASE_ENABLE | BASE_X2APIC } else { BASE_ENABLE };
    // SAFETY: sets the mode this module then uses; the address stays. The two-step way from
    // disabled to x2APIC mode is the only legal one (SDM section 11.12.5).
    unsafe {
        base_register.write(base | BASE_ENABLE);
        base_register.write(base | mode);
    }
    if access().is_none() {
        let registers = PhysAddr(base & BASE_ADDRESS);
        let access = if x2apic {
            Some(Access::Msr)
        } else {
            paging::map_mmio(registers, 0x400).ok().map(Access::Memory)
        };
        if let Some(access) = access {
            // Only the first CPU comes here.
            let _ = ACCESS.set(access);
        }
    }

    let id = read(Register::Id);
    cpu::set_apic_id(cpu::index(), if x2apic { id } else { id >> 24 });
    write(Register::TaskPriority, 0);
    write(Register::LocalTimer, MASKED | u32::from(VECTOR_TIMER));
    // The legacy controllers are silenced (ioapic::init), so their pin is too.
    write(Register::LocalInt0, MASKED);
    write(Register::LocalInt1, DELIVERY_NMI);
    write(Register::LocalError, MASKED);
    write(Register::ErrorStatus, 0);
    write(Register::TimerDivide, TIMER_DIVIDE.load(Ordering::Relaxed));
    write(Register::SpuriousVector, SOFTWARE_ENABLE | u32::from(VECTOR_SPURIOUS));
    cpu::set_online(cpu::index());
}

/// Acknowledges the interrupt being handled.
#[inline]
pub fn eoi() {
    write(Register::EndOfInterrupt, 0);
}

/// Interrupts `cpu` (this one too) with `vector`. Everything written before is visible to the
/// handler. A CPU that does not run is ignored.
pub fn send_ipi(cpu: usize, vector: u8) {
    if cpu::is_online(cpu) {
        send(cpu::apic_id(cpu), vector.into());
    }
}

/// Sends `cpu` a non-maskable interrupt.
pub fn send_nmi(cpu: usize) {
    if cpu::is_online(cpu) {
        send(cpu::apic_id(cpu), DELIVERY_NMI);
    }
}

/// Resets the CPU with this APIC identifier; it then waits for [`send_startup`].
pub(super) fn send_init(apic_id: u32) {
    send(apic_id, DELIVERY_INIT | COMMAND_ASSERT);
}

/// Starts a waiting CPU in real mode at `page`, which lies below 1 MiB.
pub(super) fn send_startup(apic_id: u32, page: PhysAddr) {
    #[allow(clippy::cast_possible_truncation, reason = "pages below 1 MiB have 8-bit numbers")]
    let number = (page.as_u64() >> 12) as u8;
    send(apic_id, DELIVERY_STARTUP | COMMAND_ASSERT | u32::from(number));
}

fn send(apic_id: u32, command: u32) {
    match access() {
        Some(Access::Msr) => {
            // Unlike other writes to the APIC, this MSR's does not wait for earlier stores
            // (SDM section 11.12.3).
            core::sync::atomic::fence(Ordering::SeqCst);
            // SAFETY: x2APIC mode; LFENCE orders the MSR write behind the fence.
            unsafe {
                core::arch::x86_64::_mm_lfence();
                msr_of(Register::InterruptCommand).write(u64::from(apic_id) << 32 | u64::from(command));
            }
        }
        Some(Access::Memory(_)) => {
            // Two writes make one command, so no interrupt handler may send between them.
            let state = cpu::irq_save();
            while read(Register::InterruptCommand) & COMMAND_PENDING != 0 {
                cpu::pause();
            }
            write(Register::InterruptCommandHigh, apic_id << 24);
            write(Register::InterruptCommand, command);
            cpu::irq_restore(state);
        }
        None => (),
    }
}

/// Address and data that make a device's message-signalled interrupt arrive at `cpu` as `vector`:
/// fixed delivery, edge, physical destination (SDM section 11.11).
pub fn msi_message(cpu: usize, vector: u8) -> (u64, u32) {
    (0xfee0_0000 | u64::from(cpu::apic_id(cpu) & 0xff) << 12, vector.into())
}

/// The divide configuration that `timer_calibrate` chose; by 128 until then.
static TIMER_DIVIDE: AtomicU32 = AtomicU32::new(0b1010);
/// Ticks a second after division; zero until calibrated.
static TIMER_HZ: AtomicU64 = AtomicU64::new(0);

/// Divide configuration codes for shifts by 0 to 7 (SDM figure 11-10).
const DIVIDE_CODES: [u32; 8] = [0b1011, 0b0000, 0b0001, 0b0010, 0b0011, 0b1000, 0b1001, 0b1010];
const CALIBRATION_NS: u64 = 2_000_000;
/// Above this rate the timer is divided: 16 ns are fine enough, and 32 bits then last a minute.
const TIMER_HZ_WANTED: u64 = 62_500_000;

/// Measures the timer's rate against [`clock`], 2 ms long. Once, on the first CPU, after
/// [`clock::init`]; the CPUs of a machine are alike.
pub fn timer_calibrate() {
    write(Register::TimerDivide, DIVIDE_CODES[0]);
    write(Register::TimerInitialCount, u32::MAX);
    let (start_ns, start) = timer_sample();
    while clock::now_ns() - start_ns < CALIBRATION_NS {
        cpu::pause();
    }
    let (end_ns, end) = timer_sample();
    write(Register::TimerInitialCount, 0);

    let elapsed_ns = end_ns.saturating_sub(start_ns).max(1);
    let mut hz = u64::from(start.saturating_sub(end)) * 1_000_000_000 / elapsed_ns;
    let mut code = 0;
    while hz > TIMER_HZ_WANTED && code + 1 < DIVIDE_CODES.len() {
        hz /= 2;
        code += 1;
    }
    TIMER_DIVIDE.store(DIVIDE_CODES[code], Ordering::Relaxed);
    TIMER_HZ.store(hz, Ordering::Relaxed);
    write(Register::TimerDivide, DIVIDE_CODES[code]);
}

/// The timer's count and the time of reading it, from the quickest of a few readings: one that was
/// held up tells the time badly.
fn timer_sample() -> (u64, u32) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..4 {
        let before_ns = clock::now_ns();
        let count = read(Register::TimerCurrentCount);
        let after_ns = clock::now_ns();
        if after_ns - before_ns < best.0 {
            best = (after_ns - before_ns, before_ns.midpoint(after_ns), count);
        }
    }
    (best.1, best.2)
}

/// The timer's rate, in ticks a second; zero until calibrated.
pub fn timer_hz() -> u64 {
    TIMER_HZ.load(Ordering::Relaxed)
}

/// Arms this CPU's timer: one interrupt, [`VECTOR_TIMER`], `ns_from_now` from now, replacing what
/// was armed. Never early by more than a tick; a time beyond what 32 bits count (a minute in
/// QEMU) fires at that limit, early, and the handler arms again.
pub fn timer_arm(ns_from_now: u64) {
    timer_arm_as(VECTOR_TIMER, ns_from_now);
}

/// Arms the timer with a vector of `arch`'s own.
pub(super) fn timer_arm_as(vector: u8, ns_from_now: u64) {
    let ticks = u128::from(ns_from_now) * u128::from(timer_hz()) / 1_000_000_000;
    // Zero would stop the timer.
    let count = u32::try_from(ticks.max(1)).unwrap_or(u32::MAX);
    write(Register::LocalTimer, u32::from(vector));
    write(Register::TimerInitialCount, count);
}

/// Stops this CPU's timer. An interrupt that it raised before may still arrive.
pub fn timer_disarm() {
    write(Register::LocalTimer, MASKED | u32::from(VECTOR_TIMER));
    write(Register::TimerInitialCount, 0);
}
