//! Tasks, and the switch from one to the next.
//!
//! Every task belongs to one CPU for life. A CPU's run queue, its running task and its sleepers
//! stand under one lock that is held *across* the switch: the task that arrives releases it. So
//! nobody can see a task that is neither queued nor running nor properly asleep, which is where
//! other kernels keep an `on_cpu` flag and the faults that go with it.
//!
//! What to do is decided in the crate `sched`, which its model checks; here it is done.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr;
use core::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use arch::context::{self, Context};
use arch::paging::Stack;
pub use sched::Priority;
use sched::{Leaves, RunQueue, TaskState, WakeEffect};

use crate::balance::Whose;
use crate::cpu::{self, MAX_CPUS};
use crate::event::Event;
use crate::sync::{IrqSpinLock, RawSpin, irq_off};
use crate::{time, timer};

/// Bytes of a task's stack; a guard page lies below it.
pub const STACK_BYTES: usize = 64 * 1024;

/// Tasks a CPU's run queue has room for before an enqueue may allocate.
const QUEUE_ROOM: usize = 64;

/// One task.
pub struct Task {
    id: u64,
    name: String,
    cpu: usize,
    priority: Priority,
    /// Where its body's code lies: tells whose task it is.
    code: usize,
    state: AtomicU8,
    context: UnsafeCell<Context>,
    stack: UnsafeCell<Option<Stack>>,
    body: UnsafeCell<Option<Box<dyn FnOnce() + Send>>>,
    finished: Event,
    cpu_time_ns: AtomicU64,
    on_cpu_since_ns: AtomicU64,
    switches: AtomicU64,
}

// SAFETY: `context` is touched only by the task's own CPU under its run queue's lock, `body` only
// by the task itself, once, `stack` only by the reaper after the task's last switch; the rest is
// atomic or immutable.
unsafe impl Sync for Task {}
// SAFETY: as above; nothing in a task is bound to the CPU that made it.
unsafe impl Send for Task {}

impl Task {
    fn state(&self) -> TaskState {
        TaskState::from_raw(self.state.load(Acquire))
    }

    fn set_state(&self, state: TaskState) {
        self.state.store(state as u8, Release);
    }
}

/// What a CPU schedules.
struct CpuQueue {
    queue: RunQueue<Arc<Task>>,
    /// Sleeping tasks by (deadline in ns, task id).
    sleepers: BTreeMap<(u64, u64), Arc<Task>>,
    running: Option<Arc<Task>>,
    idle: Option<Arc<Task>>,
    /// The task that just left for good, until the next one has arrived on its own stack.
    leaving: Option<Arc<Task>>,
    /// End of the running task's slice, while somebody waits.
    tick_ns: Option<u64>,
    /// Since when a normal task has waited while more urgent ones ran.
    normal_waits_since_ns: Option<u64>,
}

impl CpuQueue {
    /// The tick and the earliest sleeper (ns since boot).
    fn deadlines(&self) -> (Option<u64>, Option<u64>) {
        (self.tick_ns, self.sleepers.first_key_value().map(|(&(deadline_ns, _), _)| deadline_ns))
    }
}

struct LockedQueue {
    lock: RawSpin,
    queue: UnsafeCell<CpuQueue>,
}

// SAFETY: `queue` is reached through `with_queue` and `schedule` only, both under `lock`.
unsafe impl Sync for LockedQueue {}

static QUEUES: [LockedQueue; MAX_CPUS] = [const {
    LockedQueue {
        lock: RawSpin::new(),
        queue: UnsafeCell::new(CpuQueue {
            queue: RunQueue::new(),
            sleepers: BTreeMap::new(),
            running: None,
            idle: None,
            leaving: None,
            tick_ns: None,
            normal_waits_since_ns: None,
        }),
    }
}; MAX_CPUS];

/// The running task of each CPU, for `current` without the queue's lock.
static RUNNING: [AtomicPtr<Task>; MAX_CPUS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CPUS];

static TASKS: IrqSpinLock<BTreeMap<u64, Arc<Task>>> = IrqSpinLock::new(BTreeMap::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);
static NEXT_CPU: AtomicUsize = AtomicUsize::new(0);

/// Tasks that have left and whose stacks may now be freed, and the reaper's alarm.
static LEFT: IrqSpinLock<Vec<Arc<Task>>> = IrqSpinLock::new(Vec::new());
static REAPER: Event = Event::new();
/// Tasks that have ended and whose stacks the reaper has not freed yet; and that it has freed all.
static STACKS_OWED: AtomicUsize = AtomicUsize::new(0);
static STACKS_FREED: Event = Event::new();

/// Runs `f` on CPU `cpu`'s queue, interrupts off.
fn with_queue<R>(cpu: usize, f: impl FnOnce(&mut CpuQueue) -> R) -> R {
    let _irq = irq_off();
    let locked = &QUEUES[cpu];
    locked.lock.acquire();
    // SAFETY: the lock is held, and interrupts are off, so no handler here re-enters.
    let result = f(unsafe { &mut *locked.queue.get() });
    locked.lock.release();
    result
}

/// Why a task could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpawnError {
    /// No memory for its stack.
    OutOfMemory,
    /// There is no such CPU.
    NoSuchCpu(usize),
}

impl core::fmt::Display for SpawnError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SpawnError::OutOfMemory => write!(f, "no memory for the stack of a new task"),
            SpawnError::NoSuchCpu(cpu) => write!(f, "there is no CPU {cpu}"),
        }
    }
}

/// Where a task is to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the next CPU in turn.
    Any,
    /// On this CPU.
    Cpu(usize),
}

/// A started task.
#[derive(Clone)]
pub struct TaskHandle(Arc<Task>);

impl TaskHandle {
    /// The task's number; never reused.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// The CPU the task lives on.
    pub fn cpu(&self) -> usize {
        self.0.cpu
    }

    /// Waits until the task has finished. Tasks only; any number of them may wait.
    pub fn join(&self) {
        while self.0.state() != TaskState::Dead {
            self.0.finished.wait();
        }
        self.0.finished.signal();
    }
}

/// Starts a task that runs `body` once.
pub fn spawn<B: FnOnce() + Send + 'static>(
    name: &str,
    placement: Placement,
    priority: Priority,
    body: B,
) -> Result<TaskHandle, SpawnError> {
    // An instance of this function is made where `body` is written, so its address tells whose task
    // it is: the kernel's, or which module's.
    spawn_boxed(name, placement, priority, call::<B> as *const () as usize, Box::new(body))
}

/// Never called: its instances are marks in the code of whoever spawns.
#[inline(never)]
fn call<B: FnOnce()>(body: Box<B>) {
    body();
}

fn spawn_boxed(
    name: &str,
    placement: Placement,
    priority: Priority,
    code: usize,
    body: Box<dyn FnOnce() + Send>,
) -> Result<TaskHandle, SpawnError> {
    let cpu = match placement {
        Placement::Cpu(cpu) if cpu < cpu::count() => cpu,
        Placement::Cpu(cpu) => return Err(SpawnError::NoSuchCpu(cpu)),
        Placement::Any => NEXT_CPU.fetch_add(1, Relaxed) % cpu::count(),
    };
    let stack = arch::paging::alloc_stack(STACK_BYTES, crate::memory::alloc_page)
        .map_err(|_| SpawnError::OutOfMemory)?;
    // SAFETY: the stack was made for this task; nobody else knows it.
    let context = unsafe { Context::new(stack.top(), task_entry, 0) };
    let task = Arc::new(Task {
        id: NEXT_ID.fetch_add(1, Relaxed),
        name: String::from(name),
        cpu,
        priority,
        code,
        state: AtomicU8::new(TaskState::Blocked as u8),
        context: UnsafeCell::new(context),
        stack: UnsafeCell::new(Some(stack)),
        body: UnsafeCell::new(Some(body)),
        finished: Event::new(),
        cpu_time_ns: AtomicU64::new(0),
        on_cpu_since_ns: AtomicU64::new(0),
        switches: AtomicU64::new(0),
    });
    TASKS.lock().insert(task.id, task.clone());
    wake(&task);
    Ok(TaskHandle(task))
}

/// How many tasks there are.
pub(crate) fn count(whose: &Whose) -> usize {
    TASKS.lock().values().filter(|task| whose.has_code(task.code)).count()
}

/// Waits until no task of `whose` is left and every stack of a task that has ended was given back,
/// `deadline_ns` (ns since boot) at the latest. The name of a task that is left.
pub(crate) fn join_all_of(whose: &Whose, deadline_ns: u64) -> Result<(), String> {
    loop {
        let left = TASKS.lock().values().find(|task| whose.has_code(task.code)).cloned();
        let Some(task) = left else { break };
        while task.state() != TaskState::Dead {
            if !task.finished.wait_until(deadline_ns) {
                return Err(task.name.clone());
            }
        }
        // For others who wait for the same task.
        task.finished.signal();
    }
    while STACKS_OWED.load(Acquire) > 0 {
        if !STACKS_FREED.wait_until(deadline_ns) {
            return Err(String::from("reaper"));
        }
    }
    Ok(())
}

/// First code of every task: the switch that led here left the queue locked.
extern "C" fn task_entry(_argument: usize) -> ! {
    finish_switch();
    // The switch was made with interrupts off; a task begins with them on.
    arch::cpu::enable_interrupts();
    reschedule_if_wanted();
    let me = current();
    // SAFETY: only the task itself takes its body, here, once.
    if let Some(body) = unsafe { (*me.body.get()).take() } {
        body();
    }
    drop(me);
    exit()
}

/// Ends the running task.
fn exit() -> ! {
    {
        let _irq = irq_off();
        let me = current();
        STACKS_OWED.fetch_add(1, Release);
        TASKS.lock().remove(&me.id);
        me.set_state(TaskState::Dead);
        me.finished.signal();
        drop(me);
        schedule();
    }
    unreachable!("a finished task was switched to")
}

/// Makes the code that runs now CPU `cpu`'s idle task. Called once on every CPU at its start.
pub(crate) fn adopt_idle(cpu: usize) {
    let idle = Arc::new(Task {
        id: NEXT_ID.fetch_add(1, Relaxed),
        name: alloc::format!("idle/{cpu}"),
        cpu,
        priority: Priority::Idle,
        code: 0,
        state: AtomicU8::new(TaskState::Runnable as u8),
        context: UnsafeCell::new(Context::empty()),
        stack: UnsafeCell::new(None),
        body: UnsafeCell::new(None),
        finished: Event::new(),
        cpu_time_ns: AtomicU64::new(0),
        on_cpu_since_ns: AtomicU64::new(time::now_ns()),
        switches: AtomicU64::new(0),
    });
    TASKS.lock().insert(idle.id, idle.clone());
    with_queue(cpu, |queue| {
        queue.queue.reserve(QUEUE_ROOM);
        queue.running = Some(idle.clone());
        queue.idle = Some(idle.clone());
    });
    RUNNING[cpu].store(Arc::as_ptr(&idle).cast_mut(), Release);
}

/// What an idle CPU does, for ever.
pub(crate) fn idle_loop() -> ! {
    loop {
        let irq = irq_off();
        let queued = with_queue(cpu::index(), |queue| queue.queue.len());
        match sched::idle_step(cpu::local().reschedule.load(Acquire), queued) {
            sched::IdleStep::Switch => schedule(),
            sched::IdleStep::Halt => {
                cpu::local().halts();
                arch::cpu::enable_and_halt();
                cpu::local().wakes();
            }
        }
        drop(irq);
        arch::cpu::enable_interrupts();
    }
}

/// The running task.
pub(crate) fn current() -> Arc<Task> {
    let task = RUNNING[cpu::index()].load(Acquire);
    assert!(!task.is_null(), "no task runs on this CPU yet");
    // SAFETY: the pointer came from an Arc that the queue's `running` keeps alive while the task
    // runs, and it is the caller that runs; a task never changes its CPU.
    unsafe {
        Arc::increment_strong_count(task);
        Arc::from_raw(task)
    }
}

/// Whether tasks run on this CPU, so that waiting is possible.
pub(crate) fn started() -> bool {
    !RUNNING[cpu::index()].load(Acquire).is_null()
}

/// Records that the running task has put itself where a waker will find it. With interrupts off;
/// `schedule` must follow.
pub(crate) fn mark_blocked(me: &Arc<Task>) {
    me.set_state(TaskState::Blocked);
}

/// Lets a blocked task run again. From any context.
pub(crate) fn wake(task: &Arc<Task>) {
    let cpu = task.cpu;
    let effect = with_queue(cpu, |queue| {
        if task.state() != TaskState::Blocked {
            return WakeEffect::Nothing;
        }
        task.set_state(TaskState::Runnable);
        let Some(running) = &queue.running else {
            // The CPU is being brought up and looks at its queue before it first halts.
            queue.queue.push(task.priority, task.clone());
            return WakeEffect::Nothing;
        };
        if Arc::ptr_eq(running, task) {
            // It is on its way to the switch and will find itself runnable there.
            return WakeEffect::Nothing;
        }
        let effect = sched::wake_effect(running.priority, task.priority, queue.tick_ns.is_some());
        queue.queue.push(task.priority, task.clone());
        if effect == WakeEffect::ArmTick {
            queue.tick_ns = Some(time::now_ns() + sched::TICK_NS);
        }
        effect
    });
    match effect {
        WakeEffect::Nothing => {}
        WakeEffect::Reschedule => {
            cpu::local_of(cpu).reschedule.store(true, Release);
            notify(cpu);
        }
        WakeEffect::ArmTick => notify(cpu),
    }
}

/// Makes CPU `cpu` look at its request to reschedule and at its timer.
fn notify(cpu: usize) {
    if cpu == cpu::index() {
        let _irq = irq_off();
        timer::rearm();
        // The guard's end follows the request, unless something else holds it off.
    } else {
        arch::apic::send_ipi(cpu, arch::traps::VECTOR_RESCHEDULE);
    }
}

/// Switches now if that was asked for and may be done.
pub(crate) fn reschedule_if_wanted() {
    let local = cpu::local();
    if !local.reschedule.load(Relaxed) || !arch::cpu::interrupts_enabled() {
        return;
    }
    if sched::may_switch(true, local.preempt_depth.load(Relaxed), local.in_interrupt.load(Relaxed)) {
        schedule();
    }
}

/// The end of every interrupt: the interrupted task goes on unless somebody more urgent waits.
/// Interrupts are off and `in_interrupt` has been cleared.
pub(crate) fn on_interrupt_exit() {
    let local = cpu::local();
    while started()
        && sched::may_switch(local.reschedule.load(Acquire), local.preempt_depth.load(Relaxed), false)
    {
        schedule();
    }
}

/// The tick: asks for a switch if the running task's slice is over and it has rivals.
pub(crate) fn on_tick(now_ns: u64) {
    let over = with_queue(cpu::index(), |queue| {
        let over = queue.tick_ns.is_some_and(|tick| tick <= now_ns);
        if over {
            queue.tick_ns = None;
        }
        over
    });
    if over {
        cpu::local().ticks.fetch_add(1, Relaxed);
        cpu::local().reschedule.store(true, Release);
    }
}

/// Wakes this CPU's sleepers whose time has come.
pub(crate) fn wake_sleepers(now_ns: u64) {
    let cpu = cpu::index();
    loop {
        let due = with_queue(cpu, |queue| {
            let (&(deadline_ns, _), _) = queue.sleepers.first_key_value()?;
            (deadline_ns <= now_ns).then(|| queue.sleepers.pop_first()).flatten()
        });
        match due {
            Some((_, task)) => wake(&task),
            None => return,
        }
    }
}

/// This CPU's tick and its earliest sleeper (ns since boot).
pub(crate) fn deadlines() -> (Option<u64>, Option<u64>) {
    with_queue(cpu::index(), |queue| queue.deadlines())
}

/// Gives the CPU to the next task; comes back when this one runs again. A task that marked itself
/// blocked stays away until it is woken.
pub(crate) fn schedule() {
    loop {
        let irq = arch::cpu::irq_save();
        switch_once();
        arch::cpu::irq_restore(irq);
        // A request that came during the switch is followed now, or, where the caller holds
        // interrupts off, by the guard that turns them on or by the end of the interrupt.
        if !arch::cpu::interrupts_enabled() || !cpu::local().reschedule.load(Relaxed) {
            return;
        }
    }
}

/// One switch, with interrupts off.
fn switch_once() {
    let local = cpu::local();
    assert!(
        local.preempt_depth.load(Relaxed) == 0 && !local.in_interrupt.load(Relaxed),
        "a task switch was asked for under a spinlock or in an interrupt"
    );
    let locked = &QUEUES[cpu::index()];
    locked.lock.acquire();
    local.reschedule.store(false, Relaxed);
    // SAFETY: the lock is held until `finish_switch`, on this stack or on the next task's.
    let queue = unsafe { &mut *locked.queue.get() };
    let previous = queue.running.take().expect("schedule() needs a running task");
    let previous_context = previous.context.get();
    let now_ns = time::now_ns();
    let leaves = sched::leaves(previous.priority, previous.state());
    if leaves == Leaves::ToQueue {
        queue.queue.push(previous.priority, previous.clone());
    }
    let owes_turn = sched::owes_turn(queue.normal_waits_since_ns, now_ns);
    let next = match queue.queue.pop(owes_turn) {
        Some(next) => next,
        None => queue.idle.clone().expect("schedule() needs an idle task"),
    };
    queue.tick_ns = (!queue.queue.is_empty()).then_some(now_ns + sched::TICK_NS);
    let passed_over = next.priority == Priority::High && queue.queue.normal_waits();
    queue.normal_waits_since_ns = passed_over.then(|| queue.normal_waits_since_ns.unwrap_or(now_ns));
    if Arc::ptr_eq(&previous, &next) {
        queue.running = Some(previous);
        let (tick, sleeper) = queue.deadlines();
        locked.lock.release();
        timer::arm_for(tick, sleeper);
        return;
    }
    let since_ns = previous.on_cpu_since_ns.load(Relaxed);
    previous.cpu_time_ns.fetch_add(now_ns.saturating_sub(since_ns), Relaxed);
    next.on_cpu_since_ns.store(now_ns, Relaxed);
    next.switches.fetch_add(1, Relaxed);
    local.switches.fetch_add(1, Relaxed);
    let next_context = next.context.get();
    RUNNING[cpu::index()].store(Arc::as_ptr(&next).cast_mut(), Release);
    queue.running = Some(next);
    if leaves == Leaves::ToReaper {
        queue.leaving = Some(previous);
    } else {
        // A queued or waiting task is held by its queue or its waker; idle by `idle`.
        drop(previous);
    }
    // SAFETY: both contexts belong to tasks of this CPU, which stay alive: the previous one by
    // the queue, its waker, `idle` or `leaving`, the next one by `running`. The lock is held, so
    // no other CPU touches either.
    unsafe { context::switch(previous_context, next_context) };
    finish_switch();
}

/// What the arriving task owes: the queue's lock, the departed task's burial, its own timer.
fn finish_switch() {
    let locked = &QUEUES[cpu::index()];
    // SAFETY: the departing task took the lock and left it to us.
    let queue = unsafe { &mut *locked.queue.get() };
    let leaving = queue.leaving.take();
    let (tick, sleeper) = queue.deadlines();
    locked.lock.release();
    timer::arm_for(tick, sleeper);
    if let Some(task) = leaving {
        LEFT.lock().push(task);
        REAPER.signal();
    }
}

/// Switches away until woken or until `deadline_ns`. The task has marked itself blocked and
/// interrupts are off.
pub(crate) fn schedule_until(me: &Arc<Task>, deadline_ns: u64) {
    let key = (deadline_ns, me.id);
    with_queue(me.cpu, |queue| queue.sleepers.insert(key, me.clone()));
    schedule();
    with_queue(me.cpu, |queue| queue.sleepers.remove(&key));
}

/// Sleeps until `deadline_ns` (ns since boot).
pub fn sleep_until(deadline_ns: u64) {
    let _irq = irq_off();
    let me = current();
    while time::now_ns() < deadline_ns {
        mark_blocked(&me);
        schedule_until(&me, deadline_ns);
    }
}

/// Sleeps for `duration_ns`.
pub fn sleep_ns(duration_ns: u64) {
    sleep_until(time::now_ns().saturating_add(duration_ns));
}

/// Offers the CPU to a task that can run. Returns at once if there is none; never idles.
pub fn yield_now() {
    let queued = with_queue(cpu::index(), |queue| queue.queue.len());
    if sched::yield_switches(queued) {
        schedule();
    }
}

/// Whether another task waits for the running one's CPU.
pub fn others_wait() -> bool {
    with_queue(cpu::index(), |queue| queue.queue.len()) > 0
}

/// Starts the task that frees what finished tasks leave behind.
pub(crate) fn start_reaper() -> Result<(), SpawnError> {
    spawn("reaper", Placement::Cpu(0), Priority::Normal, || {
        loop {
            REAPER.wait();
            let left = core::mem::take(&mut *LEFT.lock());
            for task in left {
                // SAFETY: the task has left its stack for good (`finish_switch`), and it was put
                // on this list once. Freed here and not when the last holder of the task goes,
                // because that may be an interrupt handler, and unmapping waits for other CPUs.
                if let Some(stack) = unsafe { (*task.stack.get()).take() } {
                    arch::paging::free_stack(stack, crate::memory::free_page);
                }
                drop(task);
                if STACKS_OWED.fetch_sub(1, AcqRel) == 1 {
                    STACKS_FREED.signal();
                }
            }
        }
    })
    .map(drop)
}

/// What `ps` shows of a task.
#[derive(Clone, Debug)]
pub struct TaskInfo {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The CPU it lives on.
    pub cpu: usize,
    /// Its priority.
    pub priority: Priority,
    /// What it is doing.
    pub state: TaskState,
    /// CPU time used, in ns.
    pub cpu_time_ns: u64,
    /// Times it was switched to.
    pub switches: u64,
}

/// Every task, by number.
pub fn list() -> Vec<TaskInfo> {
    let now_ns = time::now_ns();
    let tasks: Vec<Arc<Task>> = TASKS.lock().values().cloned().collect();
    tasks
        .iter()
        .map(|task| {
            let runs = ptr::eq(RUNNING[task.cpu].load(Relaxed), Arc::as_ptr(task));
            let since_ns = task.on_cpu_since_ns.load(Relaxed);
            let running_ns = if runs { now_ns.saturating_sub(since_ns) } else { 0 };
            TaskInfo {
                id: task.id,
                name: task.name.clone(),
                cpu: task.cpu,
                priority: task.priority,
                state: task.state(),
                cpu_time_ns: task.cpu_time_ns.load(Relaxed) + running_ns,
                switches: task.switches.load(Relaxed),
            }
        })
        .collect()
}

/// The running task's name, for a panic: takes no lock and allocates nothing.
pub(crate) fn current_name() -> Option<&'static str> {
    let task = RUNNING[cpu::index()].load(Acquire);
    if task.is_null() {
        return None;
    }
    // SAFETY: the running task is alive while it runs, and a panic does not return from it.
    Some(unsafe { (*task).name.as_str() })
}
