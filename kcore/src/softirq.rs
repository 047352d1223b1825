//! Deferred interrupt work: one task of high priority on every CPU.
//!
//! A handler that has more to do than acknowledge raises its softirq; the work then runs in a
//! task, preemptible by interrupts, where the locks of tasks may be taken. Raising is an atomic
//! or and, for the first of a batch, a wake-up.
//!
//! Since a CPU has one such task, and an interrupt handler runs to its end before any task goes on,
//! a turn of that task on every CPU proves that whatever handler or softirq ran before it has
//! ended: [`quiesce`]. It is how code that can be called from there is taken away.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Relaxed},
};

use crate::balance::Whose;
use crate::cpu::{self, MAX_CPUS};
use crate::event::Event;
use crate::mutex::Mutex;
use crate::sync::SpinLock;
use crate::task::{self, Placement, Priority, SpawnError};

/// Softirqs there can be: one bit each, and one for [`quiesce`].
pub const MAX_SOFTIRQS: usize = 63;

type Work = Arc<dyn Fn() + Send + Sync>;

struct Entry {
    name: &'static str,
    work: Work,
    runs: AtomicU64,
}

/// Each lock is held for a look; the work runs without it.
static ENTRIES: [SpinLock<Option<Arc<Entry>>>; MAX_SOFTIRQS] = [const { SpinLock::new(None) }; MAX_SOFTIRQS];
static PENDING: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];
static WAKE: [Event; MAX_CPUS] = [const { Event::new() }; MAX_CPUS];

/// The highest bit, so that a turn serves it last.
const QUIESCE: u64 = 1 << MAX_SOFTIRQS;
/// The CPU's softirq task has had its turn.
static HAD_TURN: [Event; MAX_CPUS] = [const { Event::new() }; MAX_CPUS];

/// A softirq, to be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softirq(usize);

/// A softirq that ends with this value. Dropped by a task, it returns when the work runs nowhere.
#[derive(Debug)]
pub struct Owned(Softirq);

/// All [`MAX_SOFTIRQS`] are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

/// Registers `work`, for good. It runs on the CPU on which it is raised, never twice at once
/// there, and may take tasks' locks but should not sleep for long: others wait behind it.
pub fn register(name: &'static str, work: Work) -> Result<Softirq, TooMany> {
    let mut entry = Some(Arc::new(Entry { name, work, runs: AtomicU64::new(0) }));
    for (index, place) in ENTRIES.iter().enumerate() {
        let mut place = place.lock();
        if place.is_none() {
            *place = entry.take();
            return Ok(Softirq(index));
        }
    }
    Err(TooMany)
}

/// Registers `work` for as long as the answer lives.
pub fn register_owned(name: &'static str, work: Work) -> Result<Owned, TooMany> {
    register(name, work).map(Owned)
}

impl Owned {
    /// The softirq, to be raised. After the end, raising it is in vain.
    pub fn softirq(&self) -> Softirq {
        self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let entry = ENTRIES[self.0.0].lock().take();
        quiesce();
        drop(entry);
    }
}

/// Returns when every softirq and every interrupt handler that ran at the call has ended, on every
/// CPU. Tasks only, and not from a softirq.
pub fn quiesce() {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    for cpu in 0..cpu::count() {
        raise(QUIESCE, cpu);
    }
    for had_turn in &HAD_TURN[..cpu::count()] {
        had_turn.wait();
    }
}

fn raise(bit: u64, cpu: usize) {
    if PENDING[cpu].fetch_or(bit, AcqRel) == 0 {
        WAKE[cpu].signal();
    }
}

impl Softirq {
    /// Has the work run on this CPU. From any context.
    pub fn raise(self) {
        self.raise_on(cpu::index());
    }

    /// Has the work run on CPU `cpu`. From any context.
    pub fn raise_on(self, cpu: usize) {
        raise(1 << self.0, cpu);
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
                let Some(place) = ENTRIES.get(index) else {
                    HAD_TURN[cpu].signal();
                    continue;
                };
                let entry = place.lock().clone();
                if let Some(entry) = entry {
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
pub fn stats() -> Vec<(&'static str, u64)> {
    let of = |place: &SpinLock<Option<Arc<Entry>>>| {
        place.lock().as_ref().map(|entry| (entry.name, entry.runs.load(Relaxed)))
    };
    ENTRIES.iter().filter_map(of).collect()
}

/// How many there are.
pub(crate) fn count(whose: &Whose) -> usize {
    let is_counted = |place: &&SpinLock<Option<Arc<Entry>>>| {
        place.lock().as_ref().is_some_and(|entry| whose.has(&*entry.work))
    };
    ENTRIES.iter().filter(is_counted).count()
}
