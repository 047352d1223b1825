//! The scheduler's decisions, apart from the machine that carries them out.
//!
//! A scheduler goes wrong in the places where a decision meets an interrupt: the flag that was
//! looked at a moment too early, the request that came while nobody could act on it. So every
//! such decision is a function here, without a clock, a lock or a CPU, and two callers share it:
//! the kernel (`kcore::task`) and the model in `tests/model.rs`, which walks every interleaving
//! of wakers, interrupts and one CPU. What the model proves is therefore said about this code and
//! not about a drawing of it.
//!
//! Tasks are pinned to the CPU they were started on. Roads not taken: stealing and migration buy
//! balance for many short tasks, which this node does not have, and cost the certainty that a
//! task's CPU-local state stays its own.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::collections::VecDeque;

/// Length of a time slice: the 100 Hz tick.
pub const TICK_NS: u64 = 10_000_000;

/// How urgent a task is. The order of the variants is the order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Runs when nothing else can: one task a CPU, never queued.
    Idle,
    /// Everything that is not in somebody's way.
    Normal,
    /// Deferred interrupt work and what others wait for.
    High,
}

/// What a task is doing, as its CPU's run queue sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TaskState {
    /// On its CPU or in its run queue.
    Runnable = 0,
    /// Registered with something that will wake it; leaves the CPU at its next switch.
    Blocked = 1,
    /// Finished; never runs again.
    Dead = 2,
}

impl TaskState {
    /// The state whose discriminant is `raw`; anything unknown counts as dead.
    pub const fn from_raw(raw: u8) -> TaskState {
        match raw {
            0 => TaskState::Runnable,
            1 => TaskState::Blocked,
            _ => TaskState::Dead,
        }
    }
}

/// Whether a CPU that was asked to reschedule may switch at this very moment.
///
/// A request that may not be followed now stays: the flag is looked at again when the last
/// preemption guard goes, when interrupts come back on, and at the end of every interrupt. A
/// request is never dropped because it came at a bad time (netblk.md, scheduler fault 2).
pub const fn may_switch(reschedule_wanted: bool, preempt_depth: u32, in_interrupt: bool) -> bool {
    reschedule_wanted && preempt_depth == 0 && !in_interrupt
}

/// What a waker owes the CPU on whose queue it has just put a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeEffect {
    /// Ask that CPU to switch: the woken task is more urgent than the running one.
    Reschedule,
    /// The running task goes on, but from now on it shares: its CPU must have a tick armed.
    ArmTick,
    /// The running task goes on and a more urgent queue already has its tick.
    Nothing,
}

/// The effect of queueing a task of `woken` priority where a task of `running` priority runs.
pub fn wake_effect(running: Priority, woken: Priority, tick_armed: bool) -> WakeEffect {
    if woken > running {
        WakeEffect::Reschedule
    } else if tick_armed {
        WakeEffect::Nothing
    } else {
        WakeEffect::ArmTick
    }
}

/// What the idle task does next. It asks with interrupts off and must keep them off until it
/// either switches or halts by the instruction pair that enables interrupts and halts at once,
/// so that a wake-up between the question and the halt ends the halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleStep {
    /// Somebody can run.
    Switch,
    /// Nobody can: halt until an interrupt.
    Halt,
}

/// See [`IdleStep`].
pub const fn idle_step(reschedule_wanted: bool, queued: usize) -> IdleStep {
    if reschedule_wanted || queued > 0 { IdleStep::Switch } else { IdleStep::Halt }
}

/// Whether a task that offers its CPU (`yield_now`) should switch at all. It never yields to
/// idle: idle would halt the CPU although the yielding task can run, and what it polls for may
/// arrive without an interrupt here (netblk.md, scheduler fault 3).
pub const fn yield_switches(queued: usize) -> bool {
    queued > 0
}

/// The moment for which a CPU's one-shot timer is to be armed, in ns since boot: the nearest of
/// the tick (only while somebody waits for the running task to make room), the earliest sleeper
/// and a deadline that the CPU's user has set. `None`: disarmed, an idle CPU takes no tick.
pub fn next_deadline(tick: Option<u64>, sleeper: Option<u64>, extra: Option<u64>) -> Option<u64> {
    [tick, sleeper, extra].into_iter().flatten().min()
}

/// The tasks of one CPU that can run and do not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunQueue<T> {
    high: VecDeque<T>,
    normal: VecDeque<T>,
}

impl<T> Default for RunQueue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> RunQueue<T> {
    /// An empty queue; allocates nothing.
    pub const fn new() -> Self {
        RunQueue { high: VecDeque::new(), normal: VecDeque::new() }
    }

    /// Makes room for `tasks` tasks at each priority, so that no push from an interrupt allocates.
    pub fn reserve(&mut self, tasks: usize) {
        self.high.reserve(tasks.saturating_sub(self.high.len()));
        self.normal.reserve(tasks.saturating_sub(self.normal.len()));
    }

    /// Puts a task behind the others of its priority. An idle task is never queued.
    pub fn push(&mut self, priority: Priority, task: T) {
        match priority {
            Priority::High => self.high.push_back(task),
            Priority::Normal => self.normal.push_back(task),
            Priority::Idle => {}
        }
    }

    /// Takes the next task: the most urgent, and among those the one that waits longest. With
    /// `owed_turn` (see [`owes_turn`]) a normal task comes first, if one waits.
    pub fn pop(&mut self, owed_turn: bool) -> Option<T> {
        let owed = if owed_turn { self.normal.pop_front() } else { None };
        owed.or_else(|| self.high.pop_front()).or_else(|| self.normal.pop_front())
    }

    /// Whether a normal task waits.
    pub fn normal_waits(&self) -> bool {
        !self.normal.is_empty()
    }

    /// The waiting tasks in the order in which they will run.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.high.iter().chain(&self.normal)
    }

    /// How many tasks wait.
    pub fn len(&self) -> usize {
        self.high.len() + self.normal.len()
    }

    /// Whether nobody waits. If somebody does, the running task's slice ends by a tick.
    pub fn is_empty(&self) -> bool {
        self.high.is_empty() && self.normal.is_empty()
    }
}

/// Whether normal tasks that have waited since `waiting_since_ns` get a turn before more urgent
/// ones. Urgent work that never ends (a flood of packets) would else keep them off for ever: the
/// shell, ARP replies, the renewal of a lease. After a whole slice of it they get one slice.
pub fn owes_turn(waiting_since_ns: Option<u64>, now_ns: u64) -> bool {
    waiting_since_ns.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) >= TICK_NS)
}

/// What becomes of the task that leaves the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// It can go on: back into the queue.
    ToQueue,
    /// It waits for somebody who knows it, or is the idle task: nowhere.
    Nowhere,
    /// It has finished: to be taken apart.
    ToReaper,
}

/// See [`Leaves`]. An interrupted task that can still run goes to the queue, so idle is chosen
/// only when that queue is empty (netblk.md, scheduler fault 1).
pub const fn leaves(priority: Priority, state: TaskState) -> Leaves {
    match (priority, state) {
        (Priority::Idle, _) => Leaves::Nowhere,
        (_, TaskState::Runnable) => Leaves::ToQueue,
        (_, TaskState::Blocked) => Leaves::Nowhere,
        (_, TaskState::Dead) => Leaves::ToReaper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_runs_before_normal_and_each_in_turn() {
        let mut queue = RunQueue::new();
        for (priority, name) in
            [(Priority::Normal, 'a'), (Priority::High, 'b'), (Priority::Normal, 'c'), (Priority::High, 'd')]
        {
            queue.push(priority, name);
        }
        let order: Vec<char> = std::iter::from_fn(|| queue.pop(false)).collect();
        assert_eq!(order, ['b', 'd', 'a', 'c']);
    }

    #[test]
    fn an_idle_cpu_has_no_deadline() {
        assert_eq!(next_deadline(None, None, None), None);
        assert_eq!(next_deadline(Some(30), Some(20), Some(25)), Some(20));
    }

    #[test]
    fn an_owed_turn_comes_first() {
        let mut queue = RunQueue::new();
        queue.push(Priority::High, 'h');
        queue.push(Priority::Normal, 'n');
        assert_eq!(queue.pop(owes_turn(Some(5), 5 + TICK_NS)), Some('n'));
        assert_eq!(queue.pop(true), Some('h'), "nobody normal waits");
        assert!(!owes_turn(Some(5), 4 + TICK_NS) && !owes_turn(None, u64::MAX));
    }
}
