//! One guest CPU above the backend: what each entry needs, and what each exit means.
//!
//! The run loop of a guest CPU's task is
//!
//! ```text
//! loop {
//!     match cpu.before_entry(vcpu, board, now) {
//!         Next::Enter(entry) => { let exit = vcpu.run(&entry); cpu.handle(...) -> Action }
//!         Next::Sleep { until_ns } => wait for the doorbell or until then
//!     }
//! }
//! ```
//!
//! Everything that decides is here and is pure; the task adds the clock, the sleep and the host's
//! timer. The entry carries all of it: the event to inject, whether more waits behind it, and
//! the nearest edge of the guest's timers. Nothing is announced to the backend in between
//! ([`Counters::pending_toggles`] stays 0).
//!
//! A CPU owns its local APIC, its registers and its counters. What it shares with others it
//! reaches through the board's lock (ports, I/O APIC) or the bus of mailboxes (IPIs).

use alloc::sync::Arc;
use virtio_device::GuestRam;

use crate::apic::bus::{ApicBus, Mail};
use crate::apic::local::LocalApic;
use crate::apic::timer::Clock;
use crate::backend::{EntryRequest, Exit, Gpr, Injection, InvalidState, IoDirection, IoExit, Vcpu};
use crate::chipset::BoardLock;
use crate::chipset::power::PowerRequest;
use crate::counters::Counters;
use crate::cpuid::CpuidContext;
use crate::loader::StartState;
use crate::msr::ModelSpecific;
use crate::paravirtual_clock::ParavirtualClock;
use crate::time::nearer;
use crate::{mmio, registers, string_io};

/// What all CPUs of a guest have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestConfig {
    /// 1 to 255.
    pub cpus: usize,
    /// Frequency of the guest's time-stamp counters.
    pub tsc_hz: u64,
    /// The wall clock, nanoseconds since 1970, at time 0 of the node's monotonic clock.
    pub unix_at_zero_ns: u64,
}

/// What a CPU's task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Enter(EntryRequest),
    /// Nothing to run: until then, or until the doorbell.
    Sleep {
        until_ns: Option<u64>,
    },
}

/// What an exit asks of the run loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Action {
    Continue,
    /// The guest spins; others may have the CPU.
    Yield,
    /// The host has something to do (an interrupt, the doorbell).
    HostWork,
    /// The guest reset itself: all its CPUs start again.
    Reset,
    PowerOff,
    /// The guest ends by itself, with a status.
    Exit(u8),
    Stop(StopReason),
}

/// Why a guest cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    TripleFault,
    State(InvalidState),
    /// The processor reports what the backend does not know.
    UnknownExit {
        code: u64,
        info1: u64,
        info2: u64,
    },
    /// It fetched instructions from where there is no memory.
    FetchOutsideRam {
        address: u64,
    },
}

impl core::fmt::Display for StopReason {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TripleFault => f.write_str("triple fault"),
            Self::State(reason) => reason.fmt(f),
            Self::UnknownExit { code, info1, info2 } => {
                write!(f, "unknown exit {code:#x} ({info1:#x}, {info2:#x})")
            }
            Self::FetchOutsideRam { address } => {
                write!(f, "instruction fetch from {address:#x}, where no memory is")
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Running,
    Halted,
    /// After INIT, and at power-on on all but the first: until a start-up IPI.
    WaitingForStartUp,
}

/// One CPU. See the module.
pub struct Cpu {
    pub(crate) index: usize,
    pub(crate) config: GuestConfig,
    pub(crate) bus: Arc<ApicBus>,
    pub(crate) apic: LocalApic,
    pub(crate) msrs: ModelSpecific,
    pub(crate) clock: ParavirtualClock,
    /// IA32_TSC_ADJUST: what the guest added to its counter.
    pub(crate) tsc_adjust: u64,
    pub(crate) counters: Counters,
    activity: Activity,
    /// Earned by the last exit; goes in first.
    exception: Option<Injection>,
}

impl Cpu {
    /// CPU `index` after power-on.
    pub fn new(index: usize, config: GuestConfig, bus: Arc<ApicBus>) -> Self {
        let apic = LocalApic::new(index);
        apic.publish(&bus);
        Self {
            index,
            config,
            bus,
            apic,
            msrs: ModelSpecific::new(),
            clock: ParavirtualClock::new(),
            tsc_adjust: 0,
            counters: Counters::default(),
            activity: if index == 0 { Activity::Running } else { Activity::WaitingForStartUp },
            exception: None,
        }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub fn is_halted(&self) -> bool {
        self.activity == Activity::Halted
    }

    /// Starts a loaded kernel: registers as the loader wants them, interrupt controllers as
    /// firmware leaves them. The first CPU only; the others wait for it.
    pub fn start(&mut self, vcpu: &mut dyn Vcpu, start: &StartState) {
        vcpu.set_system(&start.system);
        for (register, value) in start.gprs {
            vcpu.set_gpr(register, value);
        }
        vcpu.set_rip(start.rip);
        // Bit 1 is always one; interrupts are off.
        vcpu.set_rflags(2);
        self.apic.set_virtual_wire(&self.bus);
        self.activity = Activity::Running;
    }

    pub(crate) fn clock_now(&self, vcpu: &dyn Vcpu, now_ns: u64) -> Clock {
        Clock { now_ns, tsc: vcpu.tsc(), tsc_hz: self.config.tsc_hz }
    }

    /// What the next entry needs, or how long there is nothing to run.
    pub fn before_entry<B: BoardLock>(&mut self, vcpu: &mut dyn Vcpu, board: &B, now_ns: u64) -> Next {
        let clock = self.clock_now(vcpu, now_ns);
        self.apic.service(&clock);
        let mut deadline_ns = None;
        if self.index == 0 {
            deadline_ns = board.with(|board| {
                board.service(now_ns, Some(0));
                board.next_edge_ns(now_ns)
            });
        }
        if let Some(mail) = self.bus.mailbox(self.index).and_then(|mailbox| mailbox.collect()) {
            self.read_mail(&mail, vcpu);
        }
        deadline_ns = nearer(deadline_ns, self.apic.next_edge_ns());
        if self.activity == Activity::WaitingForStartUp {
            return Next::Sleep { until_ns: deadline_ns };
        }

        let inject = self.choose_event(vcpu, board);
        if self.activity == Activity::Halted {
            if inject.is_none() {
                return Next::Sleep { until_ns: deadline_ns };
            }
            self.activity = Activity::Running;
        }
        self.counters.entries += 1;
        Next::Enter(EntryRequest { inject, more_pending: self.has_pending(), deadline_ns })
    }

    /// Whether an interrupt or NMI waits, deliverable but for the guest's own state.
    fn has_pending(&self) -> bool {
        self.apic.nmi_pending() || self.apic.deliverable().is_some() || self.external_pending()
    }

    fn external_pending(&self) -> bool {
        self.apic.passes_external_interrupt()
            && self.bus.mailbox(self.index).is_some_and(|mailbox| mailbox.external_interrupt())
    }

    /// The event that goes in now, acknowledged where it came from.
    fn choose_event<B: BoardLock>(&mut self, vcpu: &mut dyn Vcpu, board: &B) -> Option<Injection> {
        if let Some(exception) = self.exception.take() {
            self.counters.exceptions += 1;
            return Some(exception);
        }
        if self.apic.nmi_pending() && vcpu.accepts_nmi() && self.apic.take_nmi() {
            self.counters.nmis += 1;
            return Some(Injection::nmi());
        }
        if !vcpu.accepts_interrupt() {
            return None;
        }
        if self.external_pending() {
            let sender = Some(self.index);
            if let Some(vector) = board.with(|board| board.acknowledge_external_interrupt(sender)) {
                self.counters.interrupts += 1;
                self.counters.external_interrupts += 1;
                return Some(Injection::interrupt(vector));
            }
        }
        let vector = self.apic.deliverable()?;
        self.apic.acknowledge(vector);
        self.counters.interrupts += 1;
        Some(Injection::interrupt(vector))
    }

    fn read_mail(&mut self, mail: &Mail, vcpu: &mut dyn Vcpu) {
        self.apic.accept(mail);
        if mail.init {
            self.initialize(vcpu);
        }
        if let Some(vector) = mail.start_up
            && self.activity == Activity::WaitingForStartUp
        {
            // SDM vol. 3 sec. 10.4.4: real mode at vector * 4 KiB.
            vcpu.set_system(&registers::start_up(vector));
            vcpu.set_rip(0);
            vcpu.set_rflags(2);
            self.activity = Activity::Running;
        }
    }

    /// INIT: the first CPU starts at its reset vector, where there is no firmware; it is stopped
    /// by what it finds there. The others wait.
    fn initialize(&mut self, vcpu: &mut dyn Vcpu) {
        self.apic.initialize(&self.bus);
        self.exception = None;
        vcpu.set_system(&crate::backend::SystemState::RESET);
        vcpu.set_rip(0xfff0);
        vcpu.set_rflags(2);
        self.activity =
            if self.apic.is_bootstrap() { Activity::Running } else { Activity::WaitingForStartUp };
    }

    pub(crate) fn raise(&mut self, exception: Injection) {
        self.exception = Some(exception);
    }

    /// Answers an exit.
    pub fn handle<B: BoardLock>(
        &mut self,
        vcpu: &mut dyn Vcpu,
        ram: &dyn GuestRam,
        board: &B,
        exit: Exit,
        now_ns: u64,
    ) -> Action {
        self.counters.count(&exit);
        match exit {
            Exit::Io(io) => self.port_access(vcpu, ram, board, io, now_ns),
            Exit::Cpuid { length } => {
                self.cpuid(vcpu);
                vcpu.advance_rip(length);
                Action::Continue
            }
            Exit::MsrRead { index, length } => {
                match self.read_msr(vcpu, index, now_ns) {
                    Ok(value) => {
                        vcpu.set_gpr(Gpr::RAX, value & 0xffff_ffff);
                        vcpu.set_gpr(Gpr::RDX, value >> 32);
                        vcpu.advance_rip(length);
                    }
                    Err(crate::msr::Refused) => {
                        self.counters.unknown_msr_reads += 1;
                        self.counters.last_unknown_msr = index;
                        self.raise(Injection::general_protection());
                    }
                }
                Action::Continue
            }
            Exit::MsrWrite { index, value, length } => {
                match self.write_msr(vcpu, ram, board, index, value, now_ns) {
                    Ok(()) => vcpu.advance_rip(length),
                    Err(crate::msr::Refused) => {
                        self.counters.unknown_msr_writes += 1;
                        self.counters.last_unknown_msr = index;
                        self.raise(Injection::general_protection());
                    }
                }
                Action::Continue
            }
            Exit::Hlt { length } => {
                vcpu.advance_rip(length);
                self.activity = Activity::Halted;
                Action::Continue
            }
            Exit::Mmio { gpa, access } => mmio::access(self, vcpu, ram, board, gpa, access, now_ns),
            Exit::Xsetbv { index, value, length } => {
                let offered = vcpu.supported_xcr0() & crate::cpuid::XCR0_OFFERED;
                if index == 0 && value & !offered == 0 && vcpu.set_xcr0(value) {
                    vcpu.advance_rip(length);
                } else {
                    self.raise(Injection::general_protection());
                }
                Action::Continue
            }
            Exit::TaskPriority { value, length } => {
                if value > 0xf {
                    self.raise(Injection::general_protection());
                } else {
                    self.apic.set_task_priority((value as u8) << 4);
                    vcpu.set_task_priority(value as u8);
                    vcpu.advance_rip(length);
                }
                Action::Continue
            }
            Exit::CacheFlush { length } => {
                vcpu.advance_rip(length);
                Action::Continue
            }
            Exit::Pause { length } => {
                vcpu.advance_rip(length);
                Action::Yield
            }
            Exit::Hypercall { length } => {
                // KVM_ENOSYS: of its interface there is the clock, and no call.
                vcpu.set_gpr(Gpr::RAX, (-1000i64).cast_unsigned());
                vcpu.advance_rip(length);
                Action::Continue
            }
            Exit::Refused { answer } => {
                self.raise(answer);
                Action::Continue
            }
            Exit::InterruptWindow | Exit::Reflected { .. } => Action::Continue,
            Exit::HostInterrupt => Action::HostWork,
            Exit::Shutdown => Action::Stop(StopReason::TripleFault),
            Exit::Invalid { reason } => Action::Stop(StopReason::State(reason)),
            Exit::Other { code, info1, info2 } => {
                Action::Stop(StopReason::UnknownExit { code, info1, info2 })
            }
        }
    }

    fn port_access<B: BoardLock>(
        &mut self,
        vcpu: &mut dyn Vcpu,
        ram: &dyn GuestRam,
        board: &B,
        io: IoExit,
        now_ns: u64,
    ) -> Action {
        if io.string.is_some() {
            return string_io::run(self, vcpu, ram, board, io, now_ns);
        }
        let (bytes, cpu) = (io.bytes.count(), self.index);
        let request = match io.direction {
            IoDirection::In => {
                let value = board.with(|board| board.read_port(io.port, bytes, now_ns, cpu));
                let rax = vcpu.gpr(Gpr::RAX);
                vcpu.set_gpr(Gpr::RAX, registers::merge(rax, u64::from(value), io.bytes));
                None
            }
            IoDirection::Out { value } => {
                board.with(|board| board.write_port(io.port, bytes, value, now_ns, cpu))
            }
        };
        vcpu.advance_rip(io.length);
        power_action(request)
    }

    fn cpuid(&self, vcpu: &mut dyn Vcpu) {
        let leaf = (vcpu.gpr(Gpr::RAX) & 0xffff_ffff) as u32;
        let subleaf = (vcpu.gpr(Gpr::RCX) & 0xffff_ffff) as u32;
        let context = CpuidContext {
            cpus: self.config.cpus as u32,
            apic_id: self.index as u32,
            tsc_hz: self.config.tsc_hz,
            cr4: vcpu.paging().cr4,
            xcr0: vcpu.xcr0(),
            supported_xcr0: vcpu.supported_xcr0(),
        };
        let answer = context.answer(leaf, subleaf, &|leaf, subleaf| vcpu.host_cpuid(leaf, subleaf));
        let registers = [Gpr::RAX, Gpr::RBX, Gpr::RCX, Gpr::RDX];
        for (register, value) in registers.into_iter().zip(answer) {
            vcpu.set_gpr(register, u64::from(value));
        }
    }
}

/// What a port write's request means for the run loop.
pub(crate) fn power_action(request: Option<PowerRequest>) -> Action {
    match request {
        None => Action::Continue,
        Some(PowerRequest::Reset) => Action::Reset,
        Some(PowerRequest::PowerOff) => Action::PowerOff,
        Some(PowerRequest::Exit(status)) => Action::Exit(status),
    }
}

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;
