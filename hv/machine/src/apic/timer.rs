//! The local APIC's timer (SDM vol. 3 sec. 11.5.4): one-shot, periodic, TSC-deadline.
//!
//! Nothing ticks. The timer remembers what was asked for and answers when its next edge comes;
//! the run loop arms the host's one-shot timer for it. A guest's TSC deadline is converted once,
//! when it is written; whether it has come is then decided by the guest's own counter, so that
//! neither rounding nor the time between two clock readings can make it early.

use crate::time::{SECOND_NS, scale_up};

/// The timer's input clock: the guest's "bus" runs at one tick a nanosecond, so counts are times.
pub const BUS_HZ: u64 = SECOND_NS;

/// A periodic timer does not come more often than this. A guest that asks for a period of a
/// nanosecond would else never execute an instruction between two edges; it is the guest's loss,
/// but a guest CPU that never runs looks like a fault of the host.
pub const LEAST_PERIOD_NS: u64 = 50_000;

/// Bits 18:17 of the timer's LVT entry; 3 is reserved and taken as one-shot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerMode {
    OneShot,
    Periodic,
    TscDeadline,
}

impl TimerMode {
    pub fn from_lvt(lvt: u32) -> Self {
        match (lvt >> 17) & 3 {
            1 => Self::Periodic,
            2 => Self::TscDeadline,
            _ => Self::OneShot,
        }
    }
}

/// When the next edge comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    /// Counting: one-shot and periodic.
    At {
        edge_ns: u64,
    },
    /// At this reading of the guest's TSC, about then on the node's clock.
    Deadline {
        tsc: u64,
        edge_ns: u64,
    },
}

/// The guest's clocks at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// The node's monotonic clock.
    pub now_ns: u64,
    /// The guest CPU's time-stamp counter, its offset included.
    pub tsc: u64,
    /// Frequency of that counter.
    pub tsc_hz: u64,
}

impl Clock {
    /// When the counter will read `tsc`, not before.
    fn ns_at(&self, tsc: u64) -> u64 {
        let ticks = tsc.saturating_sub(self.tsc);
        self.now_ns.saturating_add(scale_up(ticks, SECOND_NS, self.tsc_hz))
    }
}

/// The timer of one local APIC.
#[derive(Clone, Debug)]
pub struct ApicTimer {
    mode: TimerMode,
    initial_count: u32,
    divide_configuration: u32,
    armed: Armed,
}

impl Default for ApicTimer {
    fn default() -> Self {
        Self { mode: TimerMode::OneShot, initial_count: 0, divide_configuration: 0, armed: Armed::No }
    }
}

impl ApicTimer {
    /// Bits 3, 1 and 0 of the divide configuration: 2 to 128, and 7 is 1.
    fn divisor(&self) -> u64 {
        let bits = self.divide_configuration & 3 | (self.divide_configuration & 8) >> 1;
        if bits == 7 { 1 } else { 2 << bits }
    }

    fn period_ns(&self) -> u64 {
        let period_ns = scale_up(u64::from(self.initial_count) * self.divisor(), SECOND_NS, BUS_HZ);
        if self.mode == TimerMode::Periodic { period_ns.max(LEAST_PERIOD_NS) } else { period_ns }
    }

    /// The LVT entry was written. Changing to or from TSC-deadline disarms (sec. 11.5.4.1).
    pub fn set_mode(&mut self, mode: TimerMode) {
        if (mode == TimerMode::TscDeadline) != (self.mode == TimerMode::TscDeadline) {
            self.armed = Armed::No;
            self.initial_count = 0;
        }
        self.mode = mode;
    }

    pub fn initial_count(&self) -> u32 {
        self.initial_count
    }

    pub fn divide_configuration(&self) -> u32 {
        self.divide_configuration
    }

    pub fn set_divide_configuration(&mut self, value: u32, clock: &Clock) {
        let remaining = u64::from(self.current_count(clock));
        self.divide_configuration = value & 0xb;
        if let Armed::At { .. } = self.armed {
            let edge_ns = clock.now_ns.saturating_add(remaining * self.divisor());
            self.armed = Armed::At { edge_ns };
        }
    }

    /// Starts counting down from `count`; 0 stops. Ignored in TSC-deadline mode.
    pub fn set_initial_count(&mut self, count: u32, clock: &Clock) {
        if self.mode == TimerMode::TscDeadline {
            return;
        }
        self.initial_count = count;
        self.armed = if count == 0 {
            Armed::No
        } else {
            Armed::At { edge_ns: clock.now_ns.saturating_add(self.period_ns()) }
        };
    }

    pub fn current_count(&self, clock: &Clock) -> u32 {
        let Armed::At { edge_ns } = self.armed else { return 0 };
        let remaining = edge_ns.saturating_sub(clock.now_ns) / self.divisor();
        u32::try_from(remaining).unwrap_or(u32::MAX)
    }

    /// IA32_TSC_DEADLINE. Writes are ignored in the other modes; 0 disarms.
    pub fn set_deadline(&mut self, tsc: u64, clock: &Clock) {
        if self.mode != TimerMode::TscDeadline {
            return;
        }
        self.armed = if tsc == 0 { Armed::No } else { Armed::Deadline { tsc, edge_ns: clock.ns_at(tsc) } };
    }

    /// 0 once it has fired, and in the other modes.
    pub fn deadline(&self) -> u64 {
        match self.armed {
            Armed::Deadline { tsc, .. } => tsc,
            _ => 0,
        }
    }

    /// The guest moved its counter: the same deadline is now elsewhere in real time.
    pub fn tsc_changed(&mut self, clock: &Clock) {
        if let Armed::Deadline { tsc, .. } = self.armed {
            self.armed = Armed::Deadline { tsc, edge_ns: clock.ns_at(tsc) };
        }
    }

    /// Whether the timer reached an edge since the last call. Missed periods merge.
    pub fn take_edge(&mut self, clock: &Clock) -> bool {
        match self.armed {
            Armed::No => false,
            Armed::At { edge_ns } if clock.now_ns < edge_ns => false,
            Armed::At { edge_ns } => {
                self.armed = if self.mode == TimerMode::Periodic {
                    let period_ns = self.period_ns();
                    let missed = (clock.now_ns - edge_ns) / period_ns;
                    Armed::At { edge_ns: edge_ns.saturating_add((missed + 1).saturating_mul(period_ns)) }
                } else {
                    Armed::No
                };
                true
            }
            Armed::Deadline { tsc, .. } if clock.tsc >= tsc => {
                self.armed = Armed::No;
                true
            }
            Armed::Deadline { tsc, edge_ns } => {
                if clock.now_ns >= edge_ns {
                    // The two clocks drifted by a tick: aim again.
                    self.armed = Armed::Deadline { tsc, edge_ns: clock.ns_at(tsc) };
                }
                false
            }
        }
    }

    /// When the next edge comes, on the node's clock.
    pub fn next_edge_ns(&self) -> Option<u64> {
        match self.armed {
            Armed::No => None,
            Armed::At { edge_ns } | Armed::Deadline { edge_ns, .. } => Some(edge_ns),
        }
    }
}
