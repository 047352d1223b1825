//! What the node holds, counted: tasks, handlers, memory, and what other rooms count.
//!
//! A module that was unloaded must have left nothing. That is shown by counting before it was loaded
//! and after it has gone: [`Balance::take`] at both times, [`Balance::more_than`] between them.
//!
//! Memory that a room takes and keeps by design (page tables, the heap's pieces, a pool made on first
//! need) is counted as what it is, so that it is not taken for a leak: of pages only those count that
//! are somebody's.

use alloc::string::String;
use alloc::vec::Vec;

use arrayvec::ArrayVec;

use crate::sync::SpinLock;
use crate::{block, frame, irq, memory, net, softirq, task, timer};

/// Something that another room counts.
#[derive(Clone, Copy)]
struct Gauge {
    name: &'static str,
    read: fn() -> usize,
}

static GAUGES: SpinLock<Vec<Gauge>> = SpinLock::new(Vec::new());

/// Has `read`'s number be part of every balance; again is harmless. For rooms of the kernel's image.
pub fn register(name: &'static str, read: fn() -> usize) {
    let mut gauges = GAUGES.lock();
    if !gauges.iter().any(|gauge| gauge.name == name) {
        gauges.push(Gauge { name, read });
    }
}

/// One thing that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// What.
    pub name: &'static str,
    /// How many.
    pub number: usize,
}

/// Room for what is counted here and for the gauges of other rooms; more gauges are not shown.
const MOST_COUNTS: usize = 24;

/// The counts of one moment. It lies in no heap: it would count itself.
#[derive(Clone, Debug, Default)]
pub struct Balance(ArrayVec<Count, MOST_COUNTS>);

impl Balance {
    /// Counts. Tasks only.
    pub fn take() -> Balance {
        // Copied, so that a gauge may take whatever lock it likes.
        let gauges: Vec<Gauge> = GAUGES.lock().clone();
        let frames = frame::pool_stats();
        let mut counts = ArrayVec::new();
        let mut count = |name, number| {
            let _ = counts.try_push(Count { name, number });
        };
        count("tasks", task::count());
        count("softirqs", softirq::count());
        count("interrupts", irq::count());
        count("timers", timer::armed_by_users());
        count("cards", net::devices().len());
        count("disks", block::disks().len());
        for gauge in gauges {
            count(gauge.name, (gauge.read)());
        }
        count("frames", (frames.total - frames.free) as usize);
        count("pages", memory::pages_in_use());
        count("heap bytes", memory::stats().heap_used_bytes);
        Balance(counts)
    }

    /// The counts, in a fixed order.
    pub fn counts(&self) -> &[Count] {
        &self.0
    }

    /// The number called `name`.
    pub fn number(&self, name: &str) -> usize {
        self.0.iter().find(|count| count.name == name).map_or(0, |count| count.number)
    }

    /// What there is more of than `before`: name, and how many more.
    pub fn more_than(&self, before: &Balance) -> Vec<Count> {
        let more = |count: &Count| {
            let number = count.number.saturating_sub(before.number(count.name));
            (number > 0).then_some(Count { name: count.name, number })
        };
        self.0.iter().filter_map(more).collect()
    }

    /// "tasks 7 7, frames 512 512, ...": before and after, for the log.
    pub fn beside(&self, before: &Balance) -> String {
        let pairs: Vec<String> = self
            .0
            .iter()
            .map(|count| alloc::format!("{} {} {}", count.name, before.number(count.name), count.number))
            .collect();
        pairs.join(", ")
    }
}
