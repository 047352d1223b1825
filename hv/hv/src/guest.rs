//! A guest as people know it: a description, a console, a state, and its runs.
//!
//! ```text
//!            start                first CPU enters
//!   Stopped ------> Starting ------------------------> Running
//!   Failed            |                                   | stop, power-off, reset, fault
//!      ^              | does not fit, cannot be loaded    v
//!      |              v                                Stopping
//!      +--------------+<----------------------------------+  the last CPU's task ends
//! ```
//!
//! A reset leads back to Starting, unless the guest is being stopped. A stop while it
//! starts is a wish that the starting task finds. Everything that a run needs (memory, tables, CPUs,
//! card, port of the switch) belongs to the run and goes with it; the description and
//! the console stay.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use announce::{Announcement, GuestWatch};
use kcore::sync::SpinLock;
use machine::chipset::uart::ConsoleSink;
use machine::restart::ResetPace;
use netwire::MacAddr;

use crate::console::Console;
use crate::disk::DiskSpec;
use crate::run::Run;

/// What a guest is made of.
#[derive(Clone, Debug)]
pub struct GuestSpec {
    pub name: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    pub kernel: &'static [u8],
    pub initrd: Option<&'static [u8]>,
    pub command_line: String,
    /// Its card's address, if it has a card.
    pub network: Option<MacAddr>,
    /// Its disks, in the order in which it finds them: vda, vdb, ...
    pub disks: Vec<DiskSpec>,
}

/// Why a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By `hv stop`.
    Stopped,
    /// The guest switched itself off.
    PowerOff,
    /// The guest reset itself; it is started again.
    Reset,
    /// A test kernel is done and gave this status at the debug exit port.
    Exited(u8),
    /// The guest's fault, or that of its surroundings.
    Failed(String),
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Stopped => f.write_str("stopped"),
            Ending::PowerOff => f.write_str("powered off"),
            Ending::Exited(status) => write!(f, "exited with status {status}"),
            Ending::Reset => f.write_str("reset"),
            Ending::Failed(why) => f.write_str(why),
        }
    }
}

/// See the module's picture.
#[derive(Clone)]
pub enum State {
    Stopped,
    Starting {
        /// It shall not run after all.
        stop_wanted: bool,
    },
    Running(Arc<Run>),
    Stopping(Arc<Run>),
    /// The last run ended by itself.
    Ended(Ending),
}

impl State {
    /// Whether a stop has been asked for and is not done.
    pub fn is_stop_wanted(&self) -> bool {
        matches!(self, State::Stopping(_) | State::Starting { stop_wanted: true })
    }

    /// Whether there is, or soon will be, a run.
    pub fn is_under_way(&self) -> bool {
        matches!(self, State::Starting { .. } | State::Running(_) | State::Stopping(_))
    }
}

/// What the console saw of a run, in ns since the node's boot; 0 for not yet.
#[derive(Debug, Default)]
pub struct Milestones {
    pub started_ns: AtomicU64,
    pub first_output_ns: AtomicU64,
    pub ready_ns: AtomicU64,
}

/// One guest.
pub struct Guest {
    pub spec: GuestSpec,
    pub console: Console,
    pub milestones: Milestones,
    pub(crate) state: SpinLock<State>,
    /// How often it resets itself.
    pub(crate) pace: SpinLock<ResetPace>,
    /// A run is over, or will not be.
    pub(crate) ended: kcore::event::Event,
}

impl Guest {
    pub fn new(spec: GuestSpec) -> Guest {
        Guest {
            spec,
            console: Console::new(),
            milestones: Milestones::default(),
            state: SpinLock::new(State::Stopped),
            pace: SpinLock::new(ResetPace::default()),
            ended: kcore::event::Event::new(),
        }
    }

    /// The run that is under way.
    pub fn run(&self) -> Option<Arc<Run>> {
        match &*self.state.lock() {
            State::Running(run) | State::Stopping(run) => Some(run.clone()),
            State::Stopped | State::Starting { .. } | State::Ended(_) => None,
        }
    }

    /// The state in a word or a sentence, for `hv list`.
    pub fn state_text(&self) -> String {
        let run = match &*self.state.lock() {
            State::Stopped => return String::from("stopped"),
            State::Starting { stop_wanted: false } => return String::from("starting"),
            State::Starting { stop_wanted: true } | State::Stopping(_) => return String::from("stopping"),
            State::Ended(Ending::Failed(why)) => return alloc::format!("failed: {why}"),
            State::Ended(ending) => return ending.to_string(),
            State::Running(run) => run.clone(),
        };
        String::from(if run.is_halted() { "idle" } else { "running" })
    }

    /// A new run begins.
    pub(crate) fn reset_milestones(&self) {
        self.milestones.started_ns.store(kcore::time::now_ns(), Relaxed);
        self.milestones.first_output_ns.store(0, Relaxed);
        self.milestones.ready_ns.store(0, Relaxed);
    }
}

/// The guest's end of its console line: its UART writes here, and its virtio console.
pub(crate) struct ConsoleLine {
    guest: Arc<Guest>,
    /// Until the guest has said that it is ready: once in a run is announced, or a guest
    /// could fill the node's console with it.
    watch: Option<GuestWatch>,
    /// The run's: it was announced, by this line or the other.
    announced: Arc<AtomicBool>,
}

impl ConsoleLine {
    pub fn new(guest: Arc<Guest>) -> ConsoleLine {
        let announced = Arc::new(AtomicBool::new(false));
        ConsoleLine { guest, watch: Some(GuestWatch::default()), announced }
    }

    /// Another device's line to the same console.
    pub fn another(&self) -> ConsoleLine {
        let (guest, announced) = (self.guest.clone(), self.announced.clone());
        ConsoleLine { guest, watch: Some(GuestWatch::default()), announced }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        let guest = &self.guest;
        guest.console.write(bytes);
        let now_ns = kcore::time::now_ns();
        let _ = guest.milestones.first_output_ns.compare_exchange(0, now_ns, Relaxed, Relaxed);
        let Some(watch) = &mut self.watch else { return };
        if !bytes.iter().any(|&byte| watch.feed(&guest.spec.name, byte)) {
            return;
        }
        self.watch = None;
        if !self.announced.swap(true, Relaxed) {
            guest.milestones.ready_ns.store(now_ns, Relaxed);
            let at_ms = now_ns / 1_000_000;
            log::info!("{}", Announcement::GuestReady { guest: &guest.spec.name, at_ms });
        }
    }
}

impl ConsoleSink for ConsoleLine {
    fn put(&mut self, byte: u8) {
        self.write(&[byte]);
    }
}
