//! Interrupts: who has which vector, and how often it came.
//!
//! A device vector is the same on every CPU and belongs to one handler; an interrupt is sent to
//! the CPU it was allocated for. Handlers run with interrupts off, on the stack of whatever they
//! interrupted, take no lock but `IrqSpinLock`, and leave work to a softirq.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, Release},
};

use arch::traps::{
    VECTOR_DEVICE_FIRST, VECTOR_DEVICE_LAST, VECTOR_RESCHEDULE, VECTOR_SPURIOUS, VECTOR_TIMER,
};

use crate::balance::Whose;
use crate::cpu::{self, MAX_CPUS};
use crate::sync::IrqSpinLock;
use crate::{task, timer};

/// What runs when an interrupt comes.
pub type Handler = Arc<dyn Fn() + Send + Sync>;

const VECTORS: usize = 256;

struct Slot {
    name: String,
    handler: Handler,
    cpu: usize,
}

static SLOTS: [IrqSpinLock<Option<Slot>>; VECTORS] = [const { IrqSpinLock::new(None) }; VECTORS];
static COUNTS: [[AtomicU64; VECTORS]; MAX_CPUS] =
    [const { [const { AtomicU64::new(0) }; VECTORS] }; MAX_CPUS];
static UNCLAIMED: AtomicU64 = AtomicU64::new(0);

/// Why an interrupt could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqError {
    /// Every device vector is taken.
    NoVector,
    /// There is no such CPU.
    NoSuchCpu(usize),
    /// No I/O APIC serves this interrupt line.
    NoSuchLine,
}

impl core::fmt::Display for IrqError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            IrqError::NoVector => write!(f, "every interrupt vector is taken"),
            IrqError::NoSuchCpu(cpu) => write!(f, "there is no CPU {cpu}"),
            IrqError::NoSuchLine => write!(f, "no I/O APIC serves this interrupt line"),
        }
    }
}

/// A vector with a handler. Freed when dropped: mask its source before.
#[derive(Debug)]
pub struct Interrupt {
    vector: u8,
    cpu: usize,
}

impl Interrupt {
    /// Its vector.
    pub fn vector(&self) -> u8 {
        self.vector
    }

    /// The CPU it is sent to.
    pub fn cpu(&self) -> usize {
        self.cpu
    }

    /// The address and data of the message that raises it (PCI MSI and MSI-X).
    pub fn msi_message(&self) -> (u64, u32) {
        arch::apic::msi_message(self.cpu, self.vector)
    }

    /// Raises it as its device would: for a handler that leaves work for its next turn, so that
    /// others get theirs in between.
    pub fn raise(&self) {
        arch::apic::send_ipi(self.cpu, self.vector);
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // A handler that runs at this moment keeps its own share of what it needs.
        let slot = SLOTS[usize::from(self.vector)].lock().take();
        drop(slot);
    }
}

/// Takes a free vector for an interrupt to CPU `cpu`.
pub fn allocate(name: &str, cpu: usize, handler: Handler) -> Result<Interrupt, IrqError> {
    if cpu >= cpu::count() {
        return Err(IrqError::NoSuchCpu(cpu));
    }
    let mut slot = Some(Slot { name: String::from(name), handler, cpu });
    for vector in VECTOR_DEVICE_FIRST..=VECTOR_DEVICE_LAST {
        let mut place = SLOTS[usize::from(vector)].lock();
        if place.is_none() {
            *place = slot.take();
            for counts in &COUNTS {
                counts[usize::from(vector)].store(0, Relaxed);
            }
            return Ok(Interrupt { vector, cpu });
        }
    }
    Err(IrqError::NoVector)
}

/// Routes the ISA interrupt `irq` (0 to 15) to CPU `cpu`, through the I/O APIC.
pub fn route_isa(irq: u8, name: &str, cpu: usize, handler: Handler) -> Result<Interrupt, IrqError> {
    let interrupt = allocate(name, cpu, handler)?;
    arch::ioapic::route_isa(irq, interrupt.vector, cpu).map_err(|_| IrqError::NoSuchLine)?;
    Ok(interrupt)
}

/// Every interrupt from the stubs of `arch`, with interrupts off.
pub(crate) fn dispatch(vector: u8) {
    let local = cpu::local();
    local.in_interrupt.store(true, Relaxed);
    local.wakes();
    local.interrupts.fetch_add(1, Relaxed);
    COUNTS[cpu::index()][usize::from(vector)].fetch_add(1, Relaxed);
    match vector {
        VECTOR_TIMER => timer::on_interrupt(),
        VECTOR_RESCHEDULE => {
            local.reschedule_interrupts.fetch_add(1, Relaxed);
            timer::rearm();
        }
        VECTOR_SPURIOUS => {}
        vector => {
            let handler = SLOTS[usize::from(vector)].lock().as_ref().map(|slot| slot.handler.clone());
            match handler {
                Some(handler) => handler(),
                None => {
                    UNCLAIMED.fetch_add(1, Relaxed);
                }
            }
        }
    }
    if vector != VECTOR_SPURIOUS {
        arch::apic::eoi();
    }
    local.in_interrupt.store(false, Release);
    task::on_interrupt_exit();
}

/// One interrupt and how often it came to each CPU.
#[derive(Clone, Debug)]
pub struct IrqStat {
    /// Who has it.
    pub name: String,
    /// Its vector.
    pub vector: u8,
    /// The CPU it is sent to; `None` for those that every CPU has.
    pub cpu: Option<usize>,
    /// How often it came, by CPU.
    pub per_cpu: [u64; MAX_CPUS],
}

/// Every interrupt that has an owner.
pub fn stats() -> Vec<IrqStat> {
    let counts = |vector: u8| core::array::from_fn(|cpu| COUNTS[cpu][usize::from(vector)].load(Relaxed));
    let own = [(VECTOR_TIMER, "timer"), (VECTOR_RESCHEDULE, "reschedule")].map(|(vector, name)| IrqStat {
        name: String::from(name),
        vector,
        cpu: None,
        per_cpu: counts(vector),
    });
    let mut all = Vec::new();
    for vector in VECTOR_DEVICE_FIRST..=VECTOR_DEVICE_LAST {
        let owner = SLOTS[usize::from(vector)].lock().as_ref().map(|slot| (slot.name.clone(), slot.cpu));
        if let Some((name, cpu)) = owner {
            all.push(IrqStat { name, vector, cpu: Some(cpu), per_cpu: counts(vector) });
        }
    }
    all.extend(own);
    all
}

/// How many device vectors have an owner.
pub(crate) fn count(whose: &Whose) -> usize {
    let is_counted = |slot: &&IrqSpinLock<Option<Slot>>| {
        slot.lock().as_ref().is_some_and(|slot| whose.has(&*slot.handler))
    };
    SLOTS.iter().filter(is_counted).count()
}

/// Interrupts for which nobody was registered.
pub fn unclaimed() -> u64 {
    UNCLAIMED.load(Relaxed)
}
