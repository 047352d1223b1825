//! Why a guest's CPU came out, how often, and what it asked for that is not there.

use crate::backend::Exit;

/// Reasons, as `hv stat` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    PortIn,
    PortOut,
    PortString,
    Cpuid,
    MsrRead,
    MsrWrite,
    Halt,
    Mmio,
    Xsetbv,
    TaskPriority,
    CacheFlush,
    Pause,
    Hypercall,
    Refused,
    InterruptWindow,
    HostInterrupt,
    Reflected,
    Fatal,
}

/// How many there are.
pub const REASONS: usize = Reason::Fatal as usize + 1;

/// Their names, in order.
pub const REASON_NAMES: [&str; REASONS] = [
    "port-in",
    "port-out",
    "port-string",
    "cpuid",
    "msr-read",
    "msr-write",
    "halt",
    "mmio",
    "xsetbv",
    "task-priority",
    "cache-flush",
    "pause",
    "hypercall",
    "refused",
    "interrupt-window",
    "host-interrupt",
    "reflected",
    "fatal",
];

impl Reason {
    pub fn of(exit: &Exit) -> Self {
        match exit {
            Exit::Io(io) if io.string.is_some() => Self::PortString,
            Exit::Io(io) if matches!(io.direction, crate::backend::IoDirection::In) => Self::PortIn,
            Exit::Io(_) => Self::PortOut,
            Exit::Cpuid { .. } => Self::Cpuid,
            Exit::MsrRead { .. } => Self::MsrRead,
            Exit::MsrWrite { .. } => Self::MsrWrite,
            Exit::Hlt { .. } => Self::Halt,
            Exit::Mmio { .. } => Self::Mmio,
            Exit::Xsetbv { .. } => Self::Xsetbv,
            Exit::TaskPriority { .. } => Self::TaskPriority,
            Exit::CacheFlush { .. } => Self::CacheFlush,
            Exit::Pause { .. } => Self::Pause,
            Exit::Hypercall { .. } => Self::Hypercall,
            Exit::Refused { .. } => Self::Refused,
            Exit::InterruptWindow => Self::InterruptWindow,
            Exit::HostInterrupt => Self::HostInterrupt,
            Exit::Reflected { .. } => Self::Reflected,
            Exit::Shutdown | Exit::Invalid { .. } | Exit::Other { .. } => Self::Fatal,
        }
    }
}

/// The counters of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub exits: [u64; REASONS],
    pub entries: u64,
    pub interrupts: u64,
    /// Of the interrupts, those of the 8259 pair.
    pub external_interrupts: u64,
    pub nmis: u64,
    pub exceptions: u64,
    /// Calls of the backend that announce or withdraw a pending interrupt outside of an entry.
    /// The machine has none; the counter is shown so that a change that adds one is seen.
    pub pending_toggles: u64,
    /// Accesses to registers that do not exist, and the last such index.
    pub unknown_msr_reads: u64,
    pub unknown_msr_writes: u64,
    pub last_unknown_msr: u32,
    /// Accesses to guest-physical memory where nothing is, and the last such address.
    pub unclaimed_mmio: u64,
    pub last_unclaimed_mmio: u64,
    /// Instructions on device memory that are not emulated; each earned #UD.
    pub undecoded_mmio: u64,
}

impl Counters {
    pub fn count(&mut self, exit: &Exit) {
        self.exits[Reason::of(exit) as usize] += 1;
    }

    /// Exits with their names.
    pub fn named_exits(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASON_NAMES.into_iter().zip(self.exits)
    }

    pub fn total_exits(&self) -> u64 {
        self.exits.iter().sum()
    }
}
