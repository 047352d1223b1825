//! What the node holds, counted: tasks, handlers, memory, and what other rooms count.
//!
//! A module that was unloaded must have left nothing. Two counts show it. What can be called (tasks,
//! handlers, whatever is behind a trait) tells whose it is by where its code lies, so that of a module
//! there must be none, whatever else goes on in the node: [`Whose`]. Memory does not tell; it is
//! counted before the module was loaded and after it has gone: [`Balance::take`].
//!
//! Memory that a room takes and keeps by design (page tables, the heap's pieces, a pool made on first
//! need) is counted as what it is, so that it is not taken for a leak: of pages only those count that
//! are somebody's.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use arrayvec::ArrayVec;

use crate::sync::SpinLock;
use crate::{block, frame, irq, memory, net, softirq, task, timer};

/// Whose things are counted.
#[derive(Clone, Debug)]
pub struct Whose(Option<Range<usize>>);

impl Whose {
    /// Everybody's.
    pub const ALL: Whose = Whose(None);

    /// Those of the module whose memory is `memory`.
    pub fn of(memory: Range<usize>) -> Whose {
        Whose(Some(memory))
    }

    /// Whether code at `address` is counted.
    pub fn has_code(&self, address: usize) -> bool {
        self.0.as_ref().is_none_or(|memory| memory.contains(&address))
    }

    /// Whether what is behind a trait is counted: whether its methods are code of whose things are
    /// asked for.
    pub fn has<T: ?Sized>(&self, thing: &T) -> bool {
        self.0.is_none() || vtable_of(thing).is_some_and(|vtable| self.has_code(vtable))
    }
}

/// Where the table of a trait object's methods lies. `None` for what is no trait object.
fn vtable_of<T: ?Sized>(thing: &T) -> Option<usize> {
    const WORDS: usize = 2;
    if size_of::<&T>() != WORDS * size_of::<usize>() {
        return None;
    }
    // SAFETY: the reference is as long as the array, by the line above, and any bits are a valid array
    // of words. That the second word is the table's address is how the compiler does it and not
    // promised; were it not so, a module's things would not be found, which the count of memory shows.
    let words: [usize; WORDS] = unsafe { core::mem::transmute_copy(&thing) };
    Some(words[1])
}

/// Something that another room counts.
#[derive(Clone, Copy)]
struct Gauge {
    name: &'static str,
    read: fn(&Whose) -> usize,
}

/// What is here is counted first.
const OWN: [Gauge; 5] = [
    Gauge { name: "tasks", read: task::count },
    Gauge { name: "softirqs", read: softirq::count },
    Gauge { name: "interrupts", read: irq::count },
    Gauge { name: "cards", read: net::count },
    Gauge { name: "disks", read: block::count },
];

static GAUGES: SpinLock<Vec<Gauge>> = SpinLock::new(Vec::new());

/// Has `read`'s number be part of every balance; again is harmless. For rooms of the kernel's image.
pub fn register(name: &'static str, read: fn(&Whose) -> usize) {
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
    /// Counts everything. Tasks only.
    pub fn take() -> Balance {
        let mut balance = Balance::of(&Whose::ALL);
        let frames = frame::pool_stats();
        balance.add("timers", timer::armed_by_users());
        balance.add("frames", (frames.total - frames.free) as usize);
        balance.add("pages", memory::pages_in_use());
        balance.add("heap bytes", memory::stats().heap_used_bytes);
        balance
    }

    /// Counts what tells whose it is. Tasks only.
    pub fn of(whose: &Whose) -> Balance {
        // Copied, so that a gauge may take whatever lock it likes.
        let gauges: Vec<Gauge> = GAUGES.lock().clone();
        let mut balance = Balance::default();
        for gauge in OWN.iter().chain(&gauges) {
            balance.add(gauge.name, (gauge.read)(whose));
        }
        balance
    }

    fn add(&mut self, name: &'static str, number: usize) {
        let _ = self.0.try_push(Count { name, number });
    }

    /// The counts that are not zero.
    pub fn not_zero(&self) -> impl Iterator<Item = &Count> {
        self.0.iter().filter(|count| count.number > 0)
    }

    fn number(&self, name: &str) -> usize {
        self.0.iter().find(|count| count.name == name).map_or(0, |count| count.number)
    }

    /// "tasks 7 7, frames 512 512, ...": before and after.
    pub fn beside(&self, before: &Balance) -> String {
        let pair =
            |count: &Count| alloc::format!("{} {} {}", count.name, before.number(count.name), count.number);
        self.0.iter().map(pair).collect::<Vec<_>>().join(", ")
    }
}
