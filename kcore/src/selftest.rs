//! What the kernel asks itself at every boot, and on demand.

mod packets;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Release},
};

use crate::event::Event;
use crate::sync::IrqSpinLock;
use crate::task::{self, Placement, Priority, SpawnError};
use crate::{cpu, time};

pub use packets::packets;

/// Sleeps of the timer test, on every CPU.
const SLEEPS: usize = 21;
const SLEEP_NS: u64 = 1_000_000;
/// The median must not exceed this. A tick-driven timer takes 10 ms.
const LIMIT_NS: u64 = 5_000_000;

/// How long 1 ms sleeps take on one CPU.
#[derive(Clone, Copy, Debug)]
pub struct TimerResult {
    /// The CPU.
    pub cpu: usize,
    /// The median of the sleeps, in ns.
    pub median_ns: u64,
    /// The longest, in ns.
    pub longest_ns: u64,
}

impl TimerResult {
    /// Whether the timer serves sleepers, not only ticks.
    pub fn passed(&self) -> bool {
        self.median_ns <= LIMIT_NS
    }
}

/// Sleeps 1 ms 21 times on every CPU at once.
pub fn timer() -> Result<Vec<TimerResult>, SpawnError> {
    let results = Arc::new(IrqSpinLock::new(Vec::with_capacity(cpu::count())));
    let tasks: Vec<_> = (0..cpu::count())
        .map(|cpu| {
            let results = results.clone();
            task::spawn(&format!("timer-test/{cpu}"), Placement::Cpu(cpu), Priority::High, move || {
                let mut took: [u64; SLEEPS] = core::array::from_fn(|_| {
                    let start_ns = time::now_ns();
                    task::sleep_ns(SLEEP_NS);
                    time::now_ns() - start_ns
                });
                took.sort_unstable();
                results.lock().push(TimerResult {
                    cpu,
                    median_ns: took[SLEEPS / 2],
                    longest_ns: took[SLEEPS - 1],
                });
            })
        })
        .collect::<Result<_, _>>()?;
    tasks.iter().for_each(task::TaskHandle::join);
    let mut results = results.lock().clone();
    results.sort_by_key(|result| result.cpu);
    Ok(results)
}

/// Wake-up latency from one CPU to another.
#[derive(Clone, Copy, Debug)]
pub struct WakeResult {
    /// The waker's CPU.
    pub from: usize,
    /// The sleeper's CPU.
    pub to: usize,
    /// The median, in ns.
    pub median_ns: u64,
    /// 99 of 100 are faster, in ns.
    pub p99_ns: u64,
    /// The longest, in ns.
    pub longest_ns: u64,
    /// Wake-ups that were lost and then rescued: they took longer than half a tick, and only after
    /// the sleeper's CPU had taken a timer interrupt, or the wait had run out. Slowness alone does
    /// not count: under an emulator a whole CPU can stand still while its host does other things.
    pub late: u64,
}

/// A wait that ends without its signal has lost it.
const LOST_NS: u64 = 1_000_000_000;

struct Ball {
    thrown_ns: AtomicU64,
    /// Timer interrupts of the sleeper's CPU at that moment.
    timer_interrupts: AtomicU64,
    late: AtomicU64,
    there: Event,
    back: Event,
    stop: AtomicBool,
}

/// Measures `rounds` wake-ups from every CPU to every other, one pair after the other, each with
/// a busy rival of normal priority on the sleeper's CPU if `loaded`.
pub fn wake_latency(rounds: usize, loaded: bool) -> Result<Vec<WakeResult>, SpawnError> {
    let mut results = Vec::new();
    for from in 0..cpu::count() {
        for to in (0..cpu::count()).filter(|&to| to != from || cpu::count() == 1) {
            results.push(wake_pair(from, to, rounds, loaded)?);
        }
    }
    Ok(results)
}

fn wake_pair(from: usize, to: usize, rounds: usize, loaded: bool) -> Result<WakeResult, SpawnError> {
    let ball = Arc::new(Ball {
        thrown_ns: AtomicU64::new(0),
        timer_interrupts: AtomicU64::new(0),
        late: AtomicU64::new(0),
        there: Event::new(),
        back: Event::new(),
        stop: AtomicBool::new(false),
    });
    let took = Arc::new(IrqSpinLock::new(Vec::with_capacity(rounds)));
    let (catcher_ball, catcher_took) = (ball.clone(), took.clone());
    let catcher = task::spawn("wake-catcher", Placement::Cpu(to), Priority::High, move || {
        for _ in 0..rounds {
            let mut in_time = true;
            while !catcher_ball.there.wait_until(time::now_ns() + LOST_NS) {
                // Not thrown yet, or thrown and lost.
                in_time = catcher_ball.thrown_ns.load(Acquire) == 0;
                if !in_time {
                    break;
                }
            }
            let latency_ns = time::now_ns().saturating_sub(catcher_ball.thrown_ns.swap(0, AcqRel));
            let interrupts = cpu::stats(to).timer_interrupts;
            let rescued = interrupts != catcher_ball.timer_interrupts.load(Acquire);
            if !in_time || (rescued && latency_ns > sched::TICK_NS / 2) {
                catcher_ball.late.fetch_add(1, Release);
            }
            catcher_took.lock().push(latency_ns);
            catcher_ball.back.signal();
        }
    })?;
    let rival_ball = ball.clone();
    let rival = loaded
        .then(|| {
            task::spawn("wake-rival", Placement::Cpu(to), Priority::Normal, move || {
                while !rival_ball.stop.load(Acquire) {
                    core::hint::spin_loop();
                }
            })
        })
        .transpose()?;
    let thrower_ball = ball.clone();
    let thrower = task::spawn("wake-thrower", Placement::Cpu(from), Priority::High, move || {
        for _ in 0..rounds {
            thrower_ball.timer_interrupts.store(cpu::stats(to).timer_interrupts, Release);
            thrower_ball.thrown_ns.store(time::now_ns(), Release);
            thrower_ball.there.signal();
            thrower_ball.back.wait();
        }
    })?;
    thrower.join();
    catcher.join();
    ball.stop.store(true, Release);
    if let Some(rival) = rival {
        rival.join();
    }
    let mut took = took.lock().clone();
    took.sort_unstable();
    let at = |part: usize| {
        took.get((took.len() * part / 100).min(took.len().saturating_sub(1))).copied().unwrap_or(0)
    };
    Ok(WakeResult {
        from,
        to,
        median_ns: at(50),
        p99_ns: at(99),
        longest_ns: took.last().copied().unwrap_or(0),
        late: ball.late.load(Acquire),
    })
}
