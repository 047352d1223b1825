//! Deferred interrupt work: one task of high priority on every CPU.
//!
//! A handler that has more to do than acknowledge raises its softirq; the work then runs in a
//! task, preemptible by interrupts, where the locks of tasks may be taken. Raising is an atomic
//! or and, for the first of a batch, a wake-up.

use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed},
};

use crate::cpu::{self, MAX_CPUS};
use crate::event::Event;
use crate::sync::Once;
use crate::task::{self, Placement, Priority, SpawnError};

/// Softirqs there can be: one bit each.
pub const MAX_SOFTIRQS: usize = 64;

type Work = Arc<dyn Fn() + Send + Sync>;

struct Entry {
    name: &'static str,
    work: Work,
    runs: AtomicU64,
}

static ENTRIES: [Once<Entry>; MAX_SOFTIRQS] = [const { Once::new() }; MAX_SOFTIRQS];
static REGISTERED: AtomicUsize = AtomicUsize::new(0);
static PENDING: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static WAKE: [Event; MAX_CPUS] = [const { Event::new() }; MAX_CPUS];

/// A registered softirq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softirq(usize);

/// All [`MAX_SOFTIRQS`] are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Registers `work`, for good. It runs on the CPU on which it is raised, never twice at once
/// there, and may take tasks' locks but should not sleep for long: others wait behind it.
pub fn register(name: &'static str, work: Work) -> Result<Softirq, TooMany> {
    let index = REGISTERED
        .fetch_update(AcqRel, Acquire, |count| (count < MAX_SOFTIRQS).then_some(count + 1))
        .map_err(|_| TooMany)?;
    let entry = Entry { name, work, runs: AtomicU64::new(0) };
    ENTRIES[index].set(entry).map_err(|_| TooMany)?;
    Ok(Softirq(index))
}

impl Softirq {
    /// Has the work run on this CPU. From any context.
    pub fn raise(self) {
        self.raise_on(cpu::index());
    }

    /// Has the work run on CPU `cpu`. From any context.
    pub fn raise_on(self, cpu: usize) {
        if PENDING[cpu].fetch_or(1 << self.0, AcqRel) == 0 {
            WAKE[cpu].signal();
        }
    }
}

/// Starts CPU `cpu`'s softirq task.
pub(crate) fn start(cpu: usize) -> Result<(), SpawnError> {
    task::spawn(&alloc::format!("softirq/{cpu}"), Placement::Cpu(cpu), Priority::High, move || {
        loop {
            let mut pending = PENDING[cpu].swap(0, AcqRel);
            if pending == 0 {
                WAKE[cpu].wait();
            }
            while pending != 0 {
                let index = pending.trailing_zeros() as usize;
                pending &= pending - 1;
                if let Some(entry) = ENTRIES[index].get() {
                    entry.runs.fetch_add(1, Relaxed);
                    (entry.work)();
                }
            }
            // Work that raises itself again makes room for its rivals between rounds.
            task::yield_now();
        }
    })
    .map(drop)
}

/// Every softirq's name and how often it ran.
pub fn stats() -> impl Iterator<Item = (&'static str, u64)> {
    ENTRIES.iter().filter_map(Once::get).map(|entry| (entry.name, entry.runs.load(Relaxed)))
}
