//! Every interleaving of one CPU, its interrupts and the wakers on other CPUs.
//!
//! The model is the protocol of `kcore::task`, instruction by instruction where the order matters:
//! what a run queue's lock holds together is one step, everything else (setting the request,
//! sending the interrupt, turning interrupts off, looking, halting) is a step of its own, and an
//! interrupt may come between any two. All decisions are the crate's functions. The checker walks
//! the whole graph of states and holds five promises in each of them:
//!
//! 1. A CPU never halts, and stays halted, with a task that can run (netblk.md, faults 1 and 3).
//! 2. A request to reschedule is followed as soon as it may be: no task goes on at a point where it
//!    can be preempted while a more urgent one waits (fault 2), but for the one slice that is owed to
//!    normal tasks after urgent ones have had theirs.
//! 3. The idle task is never chosen while another can run (faults 1 and 3).
//! 4. Every task is in exactly one place: running, queued once, or known to a waker.
//! 5. Nobody starves: whenever a task waits, of whatever priority, a tick is on its way, also for a
//!    running task that never blocks, such as a poller that yields only to tasks (fault 4).
//!
//! A checker that cannot fail proves nothing: each mutant below undoes one rule of the protocol,
//! as other kernels have, and must be caught.

use std::collections::{HashSet, VecDeque};

use sched::{IdleStep, Leaves, Priority, RunQueue, TaskState, WakeEffect};

const IDLE: usize = 0;
const TASKS: usize = 3;

/// The tasks' priorities: two rivals, and one that is more urgent than the other.
const CASTS: [[Priority; TASKS]; 2] = [
    [Priority::Idle, Priority::Normal, Priority::High],
    [Priority::Idle, Priority::Normal, Priority::Normal],
];

/// A rule of the protocol, undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    None,
    /// The end of an interrupt drops a request that it may not follow.
    DropsRequestUnderGuard,
    /// Idle cannot be preempted, and looks at its queue with interrupts on.
    IdleLooksWithInterruptsOn,
    /// A switch from an interrupt puts the interrupted task back only after it has chosen.
    ChoosesBeforeRequeue,
    /// A task that joins its equals brings no tick with it.
    RivalBringsNoTick,
    /// The waker of a more urgent task sends no interrupt, only the request.
    WakerSendsNoInterrupt,
    /// The end of a preemption guard does not look for a request that came under it.
    GuardEndDoesNotLook,
}

/// Where a task is in its own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    /// Idle: before it turns interrupts off. A task: at work, preemptible.
    Start,
    /// Under a preemption guard.
    Guarded,
    /// The guard is gone; about to look for a request.
    GuardGone,
    /// Interrupts off, about to decide (idle), or about to register with a waker (a task).
    InterruptsOff,
    /// Idle: decided to halt; enabling interrupts and halting are one instruction pair.
    AboutToHalt,
    /// Idle: halted.
    Halted,
    /// A task: registered and marked blocked; about to switch.
    Registered,
    /// Back from a switch that was made with interrupts off by a caller who now turns them on.
    TurningOn,
}

/// How far a task is in an interrupt that came while it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Interrupt {
    None,
    Handler { tick: bool },
    Exit,
}

/// How far a task is in `schedule()`, called with interrupts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Schedule {
    None,
    /// The switch is done; interrupts come on, then it looks for a new request.
    Back,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Task {
    place: Place,
    interrupt: Interrupt,
    schedule: Schedule,
    state: TaskState,
    /// On some waiters' list, for a waker to find.
    registered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Waker {
    Resting,
    /// Took the task off the list.
    Has,
    /// Did its part under the lock; owes the effect.
    Owes(u8),
    /// Set the request; owes the interrupt.
    OwesInterrupt,
}

const RESCHEDULE: u8 = 0;
const ARM_TICK: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    priorities: [Priority; TASKS],
    tasks: [Task; TASKS],
    wakers: [Waker; TASKS],
    queue: RunQueue<usize>,
    running: usize,
    request: bool,
    interrupts_on: bool,
    in_interrupt: bool,
    guards: u32,
    interrupt_sent: bool,
    /// A tick is wanted; a reschedule interrupt or a switch arms the timer for it.
    tick_armed: bool,
    tick_due: bool,
    /// Normal tasks have waited for a slice: the next switch gives them a turn. It can be so at any
    /// time, so the checker tries both.
    owes_turn: bool,
    /// The running task has such a turn, and more urgent ones wait for its end.
    owed_turn: bool,
}

impl State {
    fn start(priorities: [Priority; TASKS]) -> State {
        let idle = Task {
            place: Place::Start,
            interrupt: Interrupt::None,
            schedule: Schedule::None,
            state: TaskState::Runnable,
            registered: false,
        };
        let blocked = Task { place: Place::TurningOn, state: TaskState::Blocked, registered: true, ..idle };
        State {
            priorities,
            tasks: [idle, blocked, blocked],
            wakers: [Waker::Resting; TASKS],
            queue: RunQueue::new(),
            running: IDLE,
            request: false,
            interrupts_on: true,
            in_interrupt: false,
            guards: 0,
            interrupt_sent: false,
            tick_armed: false,
            tick_due: false,
            owes_turn: false,
            owed_turn: false,
        }
    }

    fn task(&mut self) -> &mut Task {
        &mut self.tasks[self.running]
    }

    /// `switch_once`, under the lock and with interrupts off.
    fn switch(&mut self, mutant: Mutant) -> Result<(), String> {
        self.interrupts_on = false;
        self.request = false;
        let previous = self.running;
        let leaves = sched::leaves(self.priorities[previous], self.tasks[previous].state);
        let late = mutant == Mutant::ChoosesBeforeRequeue;
        if leaves == Leaves::ToQueue && !late {
            self.queue.push(self.priorities[previous], previous);
        }
        let owes_turn = std::mem::take(&mut self.owes_turn) && self.queue.normal_waits();
        let next = self.queue.pop(owes_turn).unwrap_or(IDLE);
        self.owed_turn = owes_turn;
        if leaves == Leaves::ToQueue && late {
            self.queue.push(self.priorities[previous], previous);
        }
        if next == IDLE && !self.queue.is_empty() {
            return Err("idle was chosen while a task could run".into());
        }
        self.tick_armed = !self.queue.is_empty();
        self.running = next;
        Ok(())
    }

    /// Every state that one step of somebody leads to.
    fn successors(&self, mutant: Mutant) -> Result<Vec<State>, String> {
        let mut next = Vec::new();
        for task in 1..TASKS {
            self.waker_step(task, mutant, &mut next);
        }
        if self.tick_armed {
            next.push(State { tick_armed: false, tick_due: true, ..self.clone() });
        }
        if self.interrupts_on && self.tasks[self.running].interrupt == Interrupt::None {
            for tick in [false, true] {
                if (tick && self.tick_due) || (!tick && self.interrupt_sent) {
                    let mut state = self.clone();
                    if tick {
                        state.tick_due = false;
                    } else {
                        state.interrupt_sent = false;
                    }
                    state.interrupts_on = false;
                    state.in_interrupt = true;
                    let task = state.task();
                    task.interrupt = Interrupt::Handler { tick };
                    if task.place == Place::Halted {
                        task.place = Place::TurningOn;
                    }
                    next.push(state);
                }
            }
        }
        for owes_turn in [false, true] {
            let choice = State { owes_turn, ..self.clone() };
            let before = next.len();
            choice.cpu_step(mutant, &mut next)?;
            next[before..].iter_mut().for_each(|state| state.owes_turn = false);
        }
        Ok(next)
    }

    fn waker_step(&self, task: usize, mutant: Mutant, next: &mut Vec<State>) {
        let mut state = self.clone();
        state.wakers[task] = match self.wakers[task] {
            Waker::Resting if self.tasks[task].registered => {
                state.tasks[task].registered = false;
                Waker::Has
            }
            Waker::Resting => return,
            // `wake`, the part under the run queue's lock.
            Waker::Has if state.tasks[task].state != TaskState::Blocked => Waker::Resting,
            Waker::Has => {
                state.tasks[task].state = TaskState::Runnable;
                if state.running == task {
                    Waker::Resting
                } else {
                    let running = self.priorities[state.running];
                    let effect = sched::wake_effect(running, self.priorities[task], state.tick_armed);
                    state.queue.push(self.priorities[task], task);
                    match effect {
                        WakeEffect::Reschedule => Waker::Owes(RESCHEDULE),
                        WakeEffect::ArmTick if mutant == Mutant::RivalBringsNoTick => Waker::Resting,
                        WakeEffect::ArmTick => {
                            state.tick_armed = true;
                            Waker::Owes(ARM_TICK)
                        }
                        WakeEffect::Nothing => Waker::Resting,
                    }
                }
            }
            Waker::Owes(RESCHEDULE) => {
                state.request = true;
                if mutant == Mutant::WakerSendsNoInterrupt { Waker::Resting } else { Waker::OwesInterrupt }
            }
            Waker::Owes(_) => Waker::OwesInterrupt,
            Waker::OwesInterrupt => {
                state.interrupt_sent = true;
                Waker::Resting
            }
        };
        next.push(state);
    }

    fn may_switch(&self) -> bool {
        sched::may_switch(self.request, self.guards, self.in_interrupt)
    }

    fn cpu_step(&self, mutant: Mutant, next: &mut Vec<State>) -> Result<(), String> {
        let mut state = self.clone();
        let me = self.running;
        match self.tasks[me].interrupt {
            Interrupt::Handler { tick } => {
                state.request |= tick;
                state.in_interrupt = false;
                state.tasks[me].interrupt = Interrupt::Exit;
                next.push(state);
                return Ok(());
            }
            Interrupt::Exit => {
                let stays = mutant == Mutant::IdleLooksWithInterruptsOn && me == IDLE;
                if self.may_switch() && !stays {
                    state.switch(mutant)?;
                } else {
                    if mutant == Mutant::DropsRequestUnderGuard {
                        state.request = false;
                    }
                    state.tasks[me].interrupt = Interrupt::None;
                    state.interrupts_on = true;
                }
                next.push(state);
                return Ok(());
            }
            Interrupt::None => {}
        }
        if self.tasks[me].schedule == Schedule::Back {
            if !self.interrupts_on {
                state.interrupts_on = true;
            } else if self.request {
                state.switch(mutant)?;
            } else {
                state.tasks[me].schedule = Schedule::None;
            }
            next.push(state);
            return Ok(());
        }
        if me == IDLE { self.idle_step(mutant, next) } else { self.task_step(mutant, next) }
    }

    fn idle_step(&self, mutant: Mutant, next: &mut Vec<State>) -> Result<(), String> {
        let mut state = self.clone();
        match self.tasks[IDLE].place {
            Place::Start => {
                state.interrupts_on = mutant == Mutant::IdleLooksWithInterruptsOn;
                state.task().place = Place::InterruptsOff;
            }
            Place::InterruptsOff => match sched::idle_step(self.request, self.queue.len()) {
                IdleStep::Switch => {
                    state.task().place = Place::TurningOn;
                    state.switch(mutant)?;
                }
                IdleStep::Halt => state.task().place = Place::AboutToHalt,
            },
            Place::AboutToHalt => {
                state.interrupts_on = true;
                state.task().place = Place::Halted;
            }
            Place::Halted => return Ok(()),
            _ => self.turn_on(&mut state, mutant)?,
        }
        next.push(state);
        Ok(())
    }

    /// An interrupt guard goes: interrupts on, and a look for a request.
    fn turn_on(&self, state: &mut State, mutant: Mutant) -> Result<(), String> {
        if !self.interrupts_on {
            state.interrupts_on = true;
        } else {
            state.task().place = Place::Start;
            if self.may_switch() {
                state.task().schedule = Schedule::Back;
                state.switch(mutant)?;
            }
        }
        Ok(())
    }

    fn task_step(&self, mutant: Mutant, next: &mut Vec<State>) -> Result<(), String> {
        let mut state = self.clone();
        match self.tasks[self.running].place {
            Place::Start => {
                // It goes on working, takes a guard, waits for something, or yields.
                let mut guarded = self.clone();
                guarded.guards = 1;
                guarded.task().place = Place::Guarded;
                next.push(guarded);
                let mut waiting = self.clone();
                waiting.interrupts_on = false;
                waiting.task().place = Place::InterruptsOff;
                next.push(waiting);
                if sched::yield_switches(self.queue.len()) {
                    state.task().schedule = Schedule::Back;
                    state.switch(mutant)?;
                }
            }
            Place::Guarded => {
                state.guards = 0;
                state.task().place = Place::GuardGone;
            }
            Place::GuardGone => {
                state.task().place = Place::Start;
                if self.may_switch() && mutant != Mutant::GuardEndDoesNotLook {
                    state.task().schedule = Schedule::Back;
                    state.switch(mutant)?;
                }
            }
            Place::InterruptsOff => {
                let task = state.task();
                task.registered = true;
                task.state = TaskState::Blocked;
                task.place = Place::Registered;
            }
            Place::Registered => {
                state.task().place = Place::TurningOn;
                state.switch(mutant)?;
            }
            _ => self.turn_on(&mut state, mutant)?,
        }
        next.push(state);
        Ok(())
    }

    /// The promises that hold in every state.
    fn check(&self) -> Result<(), String> {
        let me = self.tasks[self.running];
        let effect_owed =
            self.wakers.iter().any(|waker| matches!(waker, Waker::Owes(_) | Waker::OwesInterrupt));
        let news = effect_owed || self.interrupt_sent;
        if me.place == Place::Halted
            && me.interrupt == Interrupt::None
            && !self.queue.is_empty()
            && !news
            && !self.tick_due
        {
            return Err("halted, and a task can run".into());
        }
        let preemptible = matches!(me.place, Place::Start | Place::Halted)
            && me.interrupt == Interrupt::None
            && me.schedule == Schedule::None
            && self.interrupts_on
            && self.guards == 0;
        let waiting = self.queue.iter().map(|&task| self.priorities[task]).max();
        if preemptible && !self.owed_turn && waiting > Some(self.priorities[self.running]) && !news {
            return Err("a more urgent task waits, and nobody will say so".into());
        }
        let tick_comes = self.tick_armed || self.tick_due || self.request || news;
        let in_tick = matches!(me.interrupt, Interrupt::Handler { tick: true });
        if !self.queue.is_empty() && !tick_comes && !in_tick {
            return Err("a rival waits, and no tick will come".into());
        }
        for task in 1..TASKS {
            let queued = self.queue.iter().filter(|&&queued| queued == task).count();
            let known = self.tasks[task].registered || self.wakers[task] == Waker::Has;
            let blocked = self.tasks[task].state == TaskState::Blocked;
            let runs = self.running == task;
            if queued > usize::from(!runs && !blocked) || (!runs && queued == 0 && !(blocked && known)) {
                return Err(format!("task {task} is lost or in two places"));
            }
        }
        Ok(())
    }
}

/// Walks every state from the start; how many there are, or the first broken promise.
fn explore(mutant: Mutant) -> Result<usize, String> {
    let mut states = 0;
    for cast in CASTS {
        let mut seen = HashSet::from([State::start(cast)]);
        let mut frontier = VecDeque::from([State::start(cast)]);
        while let Some(state) = frontier.pop_front() {
            state.check().map_err(|broken| format!("{broken}: {state:?}"))?;
            for next in state.successors(mutant)? {
                if seen.insert(next.clone()) {
                    frontier.push_back(next);
                }
            }
        }
        states += seen.len();
    }
    Ok(states)
}

#[test]
fn no_interleaving_breaks_a_promise() {
    let states = explore(Mutant::None).unwrap_or_else(|broken| panic!("{broken}"));
    assert!(states > 10_000, "only {states} states: the model has lost its interleavings");
    println!("{states} states");
}

#[test]
fn every_mutant_is_caught() {
    for mutant in [
        Mutant::DropsRequestUnderGuard,
        Mutant::IdleLooksWithInterruptsOn,
        Mutant::ChoosesBeforeRequeue,
        Mutant::RivalBringsNoTick,
        Mutant::WakerSendsNoInterrupt,
        Mutant::GuardEndDoesNotLook,
    ] {
        assert!(explore(mutant).is_err(), "{mutant:?} was not caught");
    }
}
