//! The guard: one task per disk controller that notices silence and lies, and has the driver deal
//! with them.
//!
//! It sleeps until the oldest outstanding command is due for a look, and for good while nothing is
//! outstanding: [`Guard::watch`] wakes it for the first command of a busy spell and is a single load
//! for all that follow. It does not look at once then, for the command is as young as can be, but
//! when it would be overdue: one command after the other, each answered before the next, is one busy
//! spell and not a wake-up and two walks through the queues for each.
//!
//! What an overdue command means is decided by `watchdog`, and tested there; what is to be done
//! about it is the driver's, by [`Guarded::recover`].

#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Acquire, Release},
};

use kcore::event::Event;
use kcore::sync::IrqSpinLock;
use kcore::time;
use watchdog::{Verdict, first_look_ns, judge};

/// Why a controller must be stopped. `V` is how its driver says what it contradicted itself in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble<V> {
    Violation(V),
    /// It says so itself.
    Fatal,
    /// It was reset by somebody else and has forgotten its queues.
    NotReady,
    Gone,
    /// The oldest command's deadline has passed.
    Expired,
}

impl<V: fmt::Display> fmt::Display for Trouble<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Violation(violation) => write!(f, "it sent {violation}"),
            Trouble::Fatal => f.write_str("it reports a fatal error"),
            Trouble::NotReady => f.write_str("it has forgotten its queues"),
            Trouble::Gone => f.write_str("it does not answer any more"),
            Trouble::Expired => f.write_str("a command was not answered in time"),
        }
    }
}

/// A controller under guard.
pub trait Guarded {
    type Violation: Copy + fmt::Display;

    fn guard(&self) -> &Guard<Self::Violation>;

    /// Whether it is used no more: the guard's end.
    fn is_finished(&self) -> bool;

    /// When the oldest outstanding command was submitted.
    fn oldest_ns(&self) -> Option<u64>;

    /// Commands it has answered since it was started, well or not: the sign that it is alive.
    fn answered(&self) -> u64;

    /// What its registers say is wrong with it.
    fn find_trouble(&self) -> Option<Trouble<Self::Violation>>;

    /// Stops it, ends what is outstanding, and starts it again if `again` and if that can be done.
    fn recover(&self, trouble: Trouble<Self::Violation>, again: bool);

    /// Writes noted failures to the log; whether there were any.
    fn log_failures(&self) -> bool;
}

/// What a controller's queues and its guard task share.
pub struct Guard<V> {
    wake: Event,
    /// Whether the guard is going to look at the queues by itself.
    watching: AtomicBool,
    /// Somebody wants the registers looked at.
    look_now: AtomicBool,
    violation: IrqSpinLock<Option<V>>,
}

/// Failed transfers are logged this far apart at least.
const LOG_INTERVAL_NS: u64 = 1_000_000_000;

/// Resets in a row without a single command answered in between, before a controller is given up.
const FRUITLESS_RESETS: u32 = 3;

impl<V> Default for Guard<V> {
    fn default() -> Self {
        Guard::new()
    }
}

impl<V> Guard<V> {
    #[must_use]
    pub const fn new() -> Self {
        Guard {
            wake: Event::new(),
            watching: AtomicBool::new(false),
            look_now: AtomicBool::new(false),
            violation: IrqSpinLock::new(None),
        }
    }

    /// Has the guard watch over a command that was just queued. Called after the queue's lock was
    /// held: a guard that found the queue empty had cleared `watching` before it took the lock, so
    /// either it saw the command or this sees the cleared flag.
    pub fn watch(&self) {
        if !self.watching.load(Acquire) && !self.watching.swap(true, Acquire) {
            self.wake.signal();
        }
    }

    /// The controller contradicted itself. From any context.
    pub fn report(&self, violation: V) {
        self.violation.lock().get_or_insert(violation);
        self.wake.signal();
    }

    /// The controller says that its state changed. From any context.
    pub fn look_now(&self) {
        self.look_now.store(true, Release);
        self.wake.signal();
    }

    /// There is something for the log. From any context.
    pub fn wake(&self) {
        self.wake.signal();
    }

    /// What violations came in while a controller was being reset are part of that trouble.
    pub fn forget(&self) {
        *self.violation.lock() = None;
    }
}

/// The guard task of a controller. Returns when the controller is no longer used.
pub fn run<C: Guarded>(controller: &C) {
    let guard = controller.guard();
    let mut fruitless = 0;
    let mut answered = 0;
    let mut log_after_ns = 0;
    let mut look_at_ns = None;
    while !controller.is_finished() {
        let was_idle = look_at_ns.is_none();
        match look_at_ns {
            None => guard.wake.wait(),
            Some(ns) => {
                guard.wake.wait_until(ns);
            }
        }
        let now_ns = time::now_ns();
        let violation = guard.violation.lock().take();
        let look = match violation {
            Some(violation) => Look::Trouble(Trouble::Violation(violation)),
            None if guard.look_now.swap(false, AcqRel) => {
                let again = if was_idle { first_look_ns(now_ns) } else { now_ns };
                controller.find_trouble().map_or(Look::Again(Some(again)), Look::Trouble)
            }
            None if was_idle => Look::Again(Some(first_look_ns(now_ns))),
            None => look(controller, now_ns),
        };
        look_at_ns = match look {
            Look::Again(ns) => ns,
            Look::Trouble(trouble) => {
                let progress = controller.answered();
                fruitless = if progress == answered { fruitless + 1 } else { 1 };
                answered = progress;
                controller.recover(trouble, fruitless <= FRUITLESS_RESETS);
                Some(time::now_ns())
            }
        };
        if now_ns >= log_after_ns {
            if controller.log_failures() {
                log_after_ns = now_ns + LOG_INTERVAL_NS;
            }
        } else {
            // Come back for what may have been noted meanwhile.
            look_at_ns = Some(look_at_ns.map_or(log_after_ns, |ns| ns.min(log_after_ns)));
        }
    }
}

enum Look<V> {
    /// Nothing is wrong; look again then, or when woken.
    Again(Option<u64>),
    Trouble(Trouble<V>),
}

fn look<C: Guarded>(controller: &C, now_ns: u64) -> Look<C::Violation> {
    let guard = controller.guard();
    let mut verdict = judge(now_ns, controller.oldest_ns());
    if verdict == Verdict::Idle {
        guard.watching.store(false, Release);
        // Once more under the queues' locks, for a command that came in between: see `watch`.
        verdict = judge(now_ns, controller.oldest_ns());
        if verdict == Verdict::Idle {
            return Look::Again(None);
        }
        guard.watching.store(true, Release);
    }
    match verdict {
        Verdict::Idle => Look::Again(None),
        Verdict::LookAt { ns } => Look::Again(Some(ns)),
        Verdict::Expired => Look::Trouble(Trouble::Expired),
        Verdict::Suspect { look_again_ns } => {
            controller.find_trouble().map_or(Look::Again(Some(look_again_ns)), Look::Trouble)
        }
    }
}
