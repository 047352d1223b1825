//! Each CPU's one-shot timer.
//!
//! It is armed for the nearest of: the end of the running task's slice (only while the task has
//! rivals, so an idle CPU takes no tick), the earliest sleeper of this CPU, and one deadline of
//! the CPU's user (the hypervisor's next guest timer edge). A timer that is armed too early is
//! left alone: it costs one interrupt at most, re-arming costs a register write at every switch.
//!
//! `timer=tick` on the kernel's command line arms for ticks only, as a periodic timer would. It is
//! the control of the boot self-test: under it a sleep of 1 ms takes 10 ms and the test must fail.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::sync::irq_off;
use crate::{cpu, task, time};

const DISARMED: u64 = u64::MAX;

static TICKS_ONLY: AtomicBool = AtomicBool::new(false);

/// Arms for ticks alone from now on: the self-test's control.
pub fn serve_sleepers_at_ticks_only() {
    TICKS_ONLY.store(true, Relaxed);
}

/// Sets (or with `None` withdraws) this CPU's extra deadline, in ns since boot. When it passes,
/// the CPU takes a timer interrupt, which ends a guest's run; nothing else happens. A deadline is
/// spent when it has fired.
pub fn set_cpu_deadline(deadline_ns: Option<u64>) {
    let _irq = irq_off();
    cpu::local().extra_deadline_ns.store(deadline_ns.unwrap_or(DISARMED), Relaxed);
    if deadline_ns.is_some() {
        rearm();
    }
}

/// CPUs on which an extra deadline stands.
pub(crate) fn armed_by_users() -> usize {
    let is_armed = |&cpu: &usize| cpu::local_of(cpu).extra_deadline_ns.load(Relaxed) != DISARMED;
    (0..cpu::count()).filter(is_armed).count()
}

/// Arms this CPU's timer if it is not armed for early enough. Interrupts are off.
pub(crate) fn rearm() {
    let (tick, sleeper) = task::deadlines();
    arm_for(tick, sleeper);
}

/// As [`rearm`], for whoever holds the run queue and has read its tick and its earliest sleeper.
pub(crate) fn arm_for(tick: Option<u64>, sleeper: Option<u64>) {
    let local = cpu::local();
    let extra = Some(local.extra_deadline_ns.load(Relaxed)).filter(|&deadline| deadline != DISARMED);
    let wanted = if TICKS_ONLY.load(Relaxed) {
        Some(time::now_ns() / sched::TICK_NS * sched::TICK_NS + sched::TICK_NS)
    } else {
        sched::next_deadline(tick, sleeper, extra)
    };
    if let Some(deadline_ns) = wanted
        && deadline_ns < local.armed_ns.load(Relaxed)
    {
        local.armed_ns.store(deadline_ns, Relaxed);
        arch::apic::timer_arm(deadline_ns.saturating_sub(time::now_ns()));
    }
}

/// The timer's interrupt.
pub(crate) fn on_interrupt() {
    let local = cpu::local();
    local.timer_interrupts.fetch_add(1, Relaxed);
    let now_ns = time::now_ns();
    local.armed_ns.store(DISARMED, Relaxed);
    if local.extra_deadline_ns.load(Relaxed) <= now_ns {
        local.extra_deadline_ns.store(DISARMED, Relaxed);
    }
    task::on_tick(now_ns);
    task::wake_sleepers(now_ns);
    rearm();
}
