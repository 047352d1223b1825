//! The CPUs, and what each keeps about itself.
//!
//! Tasks never change their CPU, so a task may ask for its CPU's number and use the answer as
//! long as it likes; no preemption guard is needed around it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

pub use arch::cpu::MAX_CPUS;

use crate::time;

/// What a CPU keeps about itself. Written by its own CPU, but for `reschedule`.
#[repr(align(64))]
pub(crate) struct Local {
    /// Preemption guards held by the running task.
    pub preempt_depth: AtomicU32,
    /// Whether the CPU is inside an interrupt handler.
    pub in_interrupt: AtomicBool,
    /// Somebody asked this CPU to choose its task anew. Set by any CPU.
    pub reschedule: AtomicBool,
    /// The moment the one-shot timer is armed for (ns since boot); `u64::MAX` when it is not.
    pub armed_ns: AtomicU64,
    /// A deadline set by the CPU's user (`timer::set_cpu_deadline`); `u64::MAX` for none.
    pub extra_deadline_ns: AtomicU64,
    /// Interrupts taken, timer interrupts among them.
    pub interrupts: AtomicU64,
    /// Timer interrupts taken.
    pub timer_interrupts: AtomicU64,
    /// Time slices that ended by the tick.
    pub ticks: AtomicU64,
    /// Reschedule interrupts taken.
    pub reschedule_interrupts: AtomicU64,
    /// Task switches made.
    pub switches: AtomicU64,
    /// When the CPU halted (ns since boot), until an interrupt wakes it; 0 while it is awake.
    pub halted_since_ns: AtomicU64,
    /// How long it has been halted in all.
    pub halted_ns: AtomicU64,
}

impl Local {
    const fn new() -> Self {
        Local {
            preempt_depth: AtomicU32::new(0),
            in_interrupt: AtomicBool::new(false),
            reschedule: AtomicBool::new(false),
            armed_ns: AtomicU64::new(u64::MAX),
            extra_deadline_ns: AtomicU64::new(u64::MAX),
            interrupts: AtomicU64::new(0),
            timer_interrupts: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            reschedule_interrupts: AtomicU64::new(0),
            switches: AtomicU64::new(0),
            halted_since_ns: AtomicU64::new(0),
            halted_ns: AtomicU64::new(0),
        }
    }

    /// The CPU is about to halt. Interrupts are off.
    pub fn halts(&self) {
        self.halted_since_ns.store(time::now_ns(), Relaxed);
    }

    /// First thing in every interrupt, and behind the halt for what does not come through `irq`: if
    /// it woke the CPU, the halt is over. What the handler does from here on is work, and counts as
    /// such, though it runs in the idle task's name.
    pub fn wakes(&self) {
        // One instruction: an interrupt may come in the middle of the call behind the halt.
        let since_ns = self.halted_since_ns.swap(0, Relaxed);
        if since_ns != 0 {
            self.halted_ns.fetch_add(time::now_ns().saturating_sub(since_ns), Relaxed);
        }
    }
}

static LOCALS: [Local; MAX_CPUS] = [const { Local::new() }; MAX_CPUS];

/// The number of the CPU this runs on, from 0.
pub fn index() -> usize {
    arch::cpu::index()
}

/// How many CPUs run.
pub fn count() -> usize {
    arch::cpu::count()
}

/// What this CPU keeps about itself.
pub(crate) fn local() -> &'static Local {
    &LOCALS[index()]
}

/// What CPU `cpu` keeps about itself.
pub(crate) fn local_of(cpu: usize) -> &'static Local {
    &LOCALS[cpu]
}

/// Whether the running code is an interrupt handler.
pub fn in_interrupt() -> bool {
    local().in_interrupt.load(Relaxed)
}

/// Counters of one CPU since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuStats {
    /// Interrupts of every kind.
    pub interrupts: u64,
    /// Those of the one-shot timer.
    pub timer_interrupts: u64,
    /// Time slices ended by the 100 Hz tick.
    pub ticks: u64,
    /// Requests of other CPUs to choose a task anew.
    pub reschedule_interrupts: u64,
    /// Task switches.
    pub switches: u64,
    /// Time halted, a halt that lasts included. The rest of the time, instructions were executed.
    pub halted_ns: u64,
}

/// The counters of CPU `cpu`; zeros for a CPU that does not exist.
pub fn stats(cpu: usize) -> CpuStats {
    let Some(local) = LOCALS.get(cpu) else { return CpuStats::default() };
    let halted_now_ns = match local.halted_since_ns.load(Relaxed) {
        0 => 0,
        since_ns => time::now_ns().saturating_sub(since_ns),
    };
    CpuStats {
        interrupts: local.interrupts.load(Relaxed),
        timer_interrupts: local.timer_interrupts.load(Relaxed),
        ticks: local.ticks.load(Relaxed),
        reschedule_interrupts: local.reschedule_interrupts.load(Relaxed),
        switches: local.switches.load(Relaxed),
        halted_ns: local.halted_ns.load(Relaxed) + halted_now_ns,
    }
}

static RESERVATIONS: [AtomicUsize; MAX_CPUS] = [const { AtomicUsize::new(0) }; MAX_CPUS];

/// Word that a service of the node works on a CPU, for as long as this lives: guests avoid it while
/// there are others.
#[derive(Debug)]
pub struct Reservation(usize);

/// Says that a service works on CPU `cpu`.
pub fn reserve(cpu: usize) -> Option<Reservation> {
    RESERVATIONS.get(cpu)?.fetch_add(1, Relaxed);
    Some(Reservation(cpu))
}

impl Drop for Reservation {
    fn drop(&mut self) {
        RESERVATIONS[self.0].fetch_sub(1, Relaxed);
    }
}

/// How many services work on CPU `cpu`.
pub fn reservations(cpu: usize) -> usize {
    RESERVATIONS.get(cpu).map_or(0, |services| services.load(Relaxed))
}
