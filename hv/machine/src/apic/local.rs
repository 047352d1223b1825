//! The local APIC of one guest CPU (SDM vol. 3 ch. 11; APM vol. 2 sec. 16.3 to 16.14), as a
//! register page (xAPIC) and as MSRs (x2APIC).
//!
//! Pure state of the task that runs the CPU. Messages to other CPUs leave through the bus;
//! messages for this one come from its mailbox. Both access ways share one register file: what
//! differs is stated in [`LocalApic::write`] and tested there.
//!
//! Not modelled, because nothing in the machine makes them: thermal and performance interrupts
//! (their LVT entries exist and keep what is written), logical-cluster arbitration, remote read.

use super::bus::{Address, ApicBus, Mail};
use super::timer::{ApicTimer, Clock, TimerMode};
use super::{DeliveryMode, Destination, Message, VectorSet};

/// Where the register page is after reset.
pub const DEFAULT_BASE: u64 = 0xfee0_0000;
/// Size of the register page.
pub const WINDOW_BYTES: u64 = 0x1000;

/// IA32_APIC_BASE.
pub mod base {
    pub const BOOTSTRAP: u64 = 1 << 8;
    pub const X2APIC: u64 = 1 << 10;
    pub const ENABLE: u64 = 1 << 11;
    /// Bits 51:12.
    pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

/// Registers by their number: offset / 16 in the page, MSR - 0x800 in x2APIC mode.
pub mod register {
    pub const ID: u8 = 0x02;
    pub const VERSION: u8 = 0x03;
    pub const TASK_PRIORITY: u8 = 0x08;
    pub const ARBITRATION_PRIORITY: u8 = 0x09;
    pub const PROCESSOR_PRIORITY: u8 = 0x0a;
    pub const END_OF_INTERRUPT: u8 = 0x0b;
    pub const REMOTE_READ: u8 = 0x0c;
    pub const LOGICAL_DESTINATION: u8 = 0x0d;
    pub const DESTINATION_FORMAT: u8 = 0x0e;
    pub const SPURIOUS_VECTOR: u8 = 0x0f;
    pub const IN_SERVICE: u8 = 0x10;
    pub const TRIGGER_MODE: u8 = 0x18;
    pub const REQUEST: u8 = 0x20;
    pub const ERROR_STATUS: u8 = 0x28;
    pub const LVT_CORRECTED_MACHINE_CHECK: u8 = 0x2f;
    pub const COMMAND_LOW: u8 = 0x30;
    pub const COMMAND_HIGH: u8 = 0x31;
    pub const LVT_TIMER: u8 = 0x32;
    pub const LVT_THERMAL: u8 = 0x33;
    pub const LVT_PERFORMANCE: u8 = 0x34;
    pub const LVT_LINT0: u8 = 0x35;
    pub const LVT_LINT1: u8 = 0x36;
    pub const LVT_ERROR: u8 = 0x37;
    pub const INITIAL_COUNT: u8 = 0x38;
    pub const CURRENT_COUNT: u8 = 0x39;
    pub const DIVIDE_CONFIGURATION: u8 = 0x3e;
    pub const SELF_IPI: u8 = 0x3f;
}

/// Version 0x14 (integrated, xAPIC), LVT entries up to number 5.
const VERSION: u32 = 0x0005_0014;
const LVT_MASKED: u32 = 1 << 16;
const LVT_LEVEL: u32 = 1 << 15;
const SPURIOUS_ENABLE: u32 = 1 << 8;
const COMMAND_LOGICAL: u32 = 1 << 11;
const COMMAND_ASSERT: u32 = 1 << 14;
const COMMAND_LEVEL: u32 = 1 << 15;
const ERROR_SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
const ERROR_RECEIVE_ILLEGAL_VECTOR: u32 = 1 << 6;
const ERROR_ILLEGAL_REGISTER: u32 = 1 << 7;
const DESTINATION_FORMAT_FLAT: u32 = 0xffff_ffff;

/// The local vector table, in the order of the registers 0x32 to 0x37.
const LVT_TIMER: usize = 0;
const LVT_LINT0: usize = 3;
const LVT_LINT1: usize = 4;
const LVT_ERROR: usize = 5;
/// The bits that each entry keeps (sec. 11.5.1, figure 11-8).
const LVT_WRITABLE: [u32; 6] = [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff];

/// Accesses to registers that do not exist in this mode, or break their rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// What else a register write asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Effect {
    /// The service of this level-triggered vector ended: the I/O APIC must hear of it.
    pub level_ended: Option<u8>,
}

/// The local APIC.
#[derive(Clone, Debug)]
pub struct LocalApic {
    /// This CPU's index, which is its APIC identifier until a guest changes it (xAPIC only).
    index: usize,
    id: u8,
    base: u64,
    task_priority: u8,
    logical_destination: u8,
    destination_format: u32,
    spurious_vector: u32,
    in_service: VectorSet,
    trigger_mode: VectorSet,
    request: VectorSet,
    /// Errors since the last write of ESR, and what that write made visible.
    errors: u32,
    error_status: u32,
    command: u64,
    lvt: [u32; 6],
    timer: ApicTimer,
    nmi_pending: bool,
}

impl LocalApic {
    /// As after power-on; CPU 0 is the bootstrap processor.
    pub fn new(index: usize) -> Self {
        Self {
            index,
            id: index as u8,
            base: DEFAULT_BASE | base::ENABLE | if index == 0 { base::BOOTSTRAP } else { 0 },
            task_priority: 0,
            logical_destination: 0,
            destination_format: DESTINATION_FORMAT_FLAT,
            spurious_vector: 0xff,
            in_service: VectorSet::default(),
            trigger_mode: VectorSet::default(),
            request: VectorSet::default(),
            errors: 0,
            error_status: 0,
            command: 0,
            lvt: [LVT_MASKED; 6],
            timer: ApicTimer::default(),
            nmi_pending: false,
        }
    }

    /// What firmware leaves on the bootstrap processor: virtual wire mode (MultiProcessor
    /// Specification 1.4 sec. 3.6.2.2): the 8259 pair on LINT0, NMI on LINT1.
    pub fn set_virtual_wire(&mut self, bus: &ApicBus) {
        self.spurious_vector = 0xff | SPURIOUS_ENABLE;
        self.lvt[LVT_LINT0] = (DeliveryMode::ExternalInterrupt as u32) << 8;
        self.lvt[LVT_LINT1] = (DeliveryMode::Nmi as u32) << 8;
        self.publish(bus);
    }

    /// INIT: everything but the identifier and the base (sec. 11.4.7.3).
    pub fn initialize(&mut self, bus: &ApicBus) {
        *self = Self { id: self.id, base: self.base, ..Self::new(self.index) };
        self.publish(bus);
    }

    pub fn is_bootstrap(&self) -> bool {
        self.base & base::BOOTSTRAP != 0
    }

    /// The global enable of IA32_APIC_BASE.
    pub fn is_present(&self) -> bool {
        self.base & base::ENABLE != 0
    }

    pub fn is_x2apic(&self) -> bool {
        self.is_present() && self.base & base::X2APIC != 0
    }

    /// The software enable of the spurious vector register.
    fn is_enabled(&self) -> bool {
        self.is_present() && self.spurious_vector & SPURIOUS_ENABLE != 0
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    /// Where the register page decodes; nowhere in x2APIC mode or when switched off.
    pub fn window(&self) -> Option<u64> {
        (self.is_present() && !self.is_x2apic()).then_some(self.base & base::ADDRESS)
    }

    /// A write of IA32_APIC_BASE. The legal transitions are those of figure 11-22: x2APIC is
    /// entered from xAPIC and left only through "off". The page cannot be moved: the frames under
    /// another address belong to RAM or to other devices, and no operating system moves it.
    pub fn set_base(&mut self, value: u64, bus: &ApicBus) -> Result<(), Fault> {
        let writable = base::ENABLE | base::X2APIC;
        if value & !(writable | base::BOOTSTRAP | base::ADDRESS) != 0
            || (value ^ self.base) & (base::BOOTSTRAP | base::ADDRESS) != 0
        {
            return Err(Fault);
        }
        let state = |value: u64| (value & base::ENABLE != 0, value & base::X2APIC != 0);
        match (state(self.base), state(value)) {
            (_, (false, true)) => return Err(Fault),
            ((true, true), (true, false)) => return Err(Fault),
            ((false, _), (true, true)) => return Err(Fault),
            (_, (false, false)) => {
                self.base = value;
                self.initialize(bus);
            }
            _ => self.base = value,
        }
        if self.is_x2apic() {
            // The identifier is read-only there.
            self.id = self.index as u8;
        }
        self.publish(bus);
        Ok(())
    }

    /// LDR of x2APIC mode: the cluster in bits 31:16, one bit of 16 below (sec. 11.12.10.2).
    fn x2apic_logical(&self) -> u32 {
        let id = self.index as u32;
        (id >> 4) << 16 | 1 << (id & 0xf)
    }

    /// Tells the bus how this CPU is reached now.
    pub fn publish(&self, bus: &ApicBus) {
        let Some(mailbox) = bus.mailbox(self.index) else { return };
        let x2apic = self.is_x2apic();
        mailbox.publish(Address {
            id: u32::from(self.id),
            logical: if x2apic { self.x2apic_logical() } else { u32::from(self.logical_destination) << 24 },
            cluster_model: self.destination_format >> 28 != 0xf,
            x2apic,
            enabled: self.is_enabled(),
        });
    }

    /// Takes over what the mailbox held.
    pub fn accept(&mut self, mail: &Mail) {
        for word in 0..4 {
            self.trigger_mode.replace_word(word, mail.requests[word], mail.levels[word]);
            self.request.merge_word(word, mail.requests[word]);
        }
        if mail.requests[0] & 0xffff != 0 {
            // Vectors 0 to 15 are errors (sec. 11.5.2) and never delivered.
            self.errors |= ERROR_RECEIVE_ILLEGAL_VECTOR;
            self.request.replace_word(0, 0xffff, 0);
        }
        self.nmi_pending |= mail.nmi;
    }

    fn accept_fixed(&mut self, vector: u8, level_triggered: bool) {
        let mut mail = Mail::default();
        let (word, bit) = (usize::from(vector >> 6), 1u64 << (vector & 63));
        mail.requests[word] = bit;
        mail.levels[word] = if level_triggered { bit } else { 0 };
        self.accept(&mail);
    }

    /// The highest class in service or allowed by the guest (sec. 11.8.3.1).
    fn processor_priority(&self) -> u8 {
        let serving = self.in_service.highest().unwrap_or(0);
        if self.task_priority & 0xf0 >= serving & 0xf0 { self.task_priority } else { serving & 0xf0 }
    }

    /// The vector that would be delivered now.
    pub fn deliverable(&self) -> Option<u8> {
        if !self.is_enabled() {
            return None;
        }
        let vector = self.request.highest()?;
        (vector & 0xf0 > self.processor_priority() & 0xf0).then_some(vector)
    }

    /// The CPU takes `vector`.
    pub fn acknowledge(&mut self, vector: u8) {
        self.request.remove(vector);
        self.in_service.insert(vector);
    }

    /// Whether the 8259 pair's output reaches this CPU: through LINT0 in the ExtINT mode, or
    /// directly when the APIC is switched off.
    pub fn passes_external_interrupt(&self) -> bool {
        let lint0 = self.lvt[LVT_LINT0];
        !self.is_present()
            || (lint0 & LVT_MASKED == 0
                && DeliveryMode::from_bits(lint0) == Some(DeliveryMode::ExternalInterrupt))
    }

    pub fn nmi_pending(&self) -> bool {
        self.nmi_pending
    }

    pub fn take_nmi(&mut self) -> bool {
        core::mem::take(&mut self.nmi_pending)
    }

    pub fn task_priority(&self) -> u8 {
        self.task_priority
    }

    pub fn set_task_priority(&mut self, priority: u8) {
        self.task_priority = priority;
    }

    /// Lets the timer reach the present.
    pub fn service(&mut self, clock: &Clock) {
        if self.timer.take_edge(clock) {
            self.deliver_local(LVT_TIMER);
        }
    }

    /// When the timer's next edge comes, if it would interrupt.
    pub fn next_edge_ns(&self) -> Option<u64> {
        if self.lvt[LVT_TIMER] & LVT_MASKED != 0 || !self.is_enabled() {
            return None;
        }
        self.timer.next_edge_ns()
    }

    fn deliver_local(&mut self, entry: usize) {
        let lvt = self.lvt[entry];
        if lvt & LVT_MASKED != 0 || !self.is_enabled() {
            return;
        }
        match DeliveryMode::from_bits(lvt) {
            Some(DeliveryMode::Nmi) => self.nmi_pending = true,
            Some(DeliveryMode::Fixed) => self.accept_fixed((lvt & 0xff) as u8, lvt & LVT_LEVEL != 0),
            _ => {}
        }
    }

    fn record_error(&mut self, error: u32) {
        if self.errors & error == 0 {
            self.errors |= error;
            self.deliver_local(LVT_ERROR);
        }
    }

    pub fn tsc_deadline(&self) -> u64 {
        self.timer.deadline()
    }

    pub fn set_tsc_deadline(&mut self, tsc: u64, clock: &Clock) {
        self.service(clock);
        self.timer.set_deadline(tsc, clock);
    }

    pub fn tsc_changed(&mut self, clock: &Clock) {
        self.timer.tsc_changed(clock);
    }

    /// A register of the page. Unknown ones read 0 and set the error bit, as on the part.
    pub fn read_page(&mut self, number: u8, clock: &Clock) -> u32 {
        match self.read(number, clock) {
            Ok(value) => (value & 0xffff_ffff) as u32,
            Err(Fault) => {
                self.record_error(ERROR_ILLEGAL_REGISTER);
                0
            }
        }
    }

    /// A write to the page.
    pub fn write_page(&mut self, number: u8, value: u32, bus: &ApicBus, clock: &Clock) -> Effect {
        let result = match number {
            register::ID => {
                self.id = (value >> 24) as u8;
                self.publish(bus);
                Ok(Effect::default())
            }
            register::LOGICAL_DESTINATION => {
                self.logical_destination = (value >> 24) as u8;
                self.publish(bus);
                Ok(Effect::default())
            }
            register::DESTINATION_FORMAT => {
                self.destination_format = value | 0x0fff_ffff;
                self.publish(bus);
                Ok(Effect::default())
            }
            register::COMMAND_LOW => {
                self.command = self.command & !0xffff_ffff | u64::from(value);
                self.send_command(bus);
                Ok(Effect::default())
            }
            register::COMMAND_HIGH => {
                self.command = self.command & 0xffff_ffff | u64::from(value & 0xff00_0000) << 32;
                Ok(Effect::default())
            }
            register::SELF_IPI => Err(Fault),
            _ => self.write_common(number, value, bus, clock),
        };
        result.unwrap_or_else(|Fault| {
            self.record_error(ERROR_ILLEGAL_REGISTER);
            Effect::default()
        })
    }

    /// RDMSR of register `number` in x2APIC mode.
    pub fn read_msr(&mut self, number: u8, clock: &Clock) -> Result<u64, Fault> {
        if !self.is_x2apic() {
            return Err(Fault);
        }
        match number {
            register::ID => Ok(u64::from(self.id)),
            register::LOGICAL_DESTINATION => Ok(u64::from(self.x2apic_logical())),
            register::COMMAND_LOW => Ok(self.command),
            // Absent in this mode (table 11-6), or write-only.
            register::ARBITRATION_PRIORITY
            | register::REMOTE_READ
            | register::DESTINATION_FORMAT
            | register::COMMAND_HIGH
            | register::END_OF_INTERRUPT
            | register::SELF_IPI => Err(Fault),
            _ => self.read(number, clock),
        }
    }

    /// WRMSR in x2APIC mode: reserved bits are faults, and ICR is one register of 64 bits.
    pub fn write_msr(
        &mut self,
        number: u8,
        value: u64,
        bus: &ApicBus,
        clock: &Clock,
    ) -> Result<Effect, Fault> {
        if !self.is_x2apic() {
            return Err(Fault);
        }
        if number == register::COMMAND_LOW {
            // Bits 12, 13, 17 and 31:20 are reserved.
            if value & 0xfff3_3000 & 0xffff_ffff != 0 {
                return Err(Fault);
            }
            self.command = value;
            self.send_command(bus);
            return Ok(Effect::default());
        }
        let value = u32::try_from(value).map_err(|_| Fault)?;
        let must_be_zero = match number {
            register::END_OF_INTERRUPT | register::ERROR_STATUS => u32::MAX,
            register::TASK_PRIORITY | register::SELF_IPI => !0xff,
            register::SPURIOUS_VECTOR => !0x1ff,
            register::DIVIDE_CONFIGURATION => !0xb,
            register::INITIAL_COUNT => 0,
            register::LVT_TIMER..=register::LVT_ERROR => {
                // The delivery status bit (12) is ignored, Remote IRR (14) too.
                !(LVT_WRITABLE[usize::from(number - register::LVT_TIMER)] | 0x5000)
            }
            _ => return Err(Fault),
        };
        if value & must_be_zero != 0 {
            return Err(Fault);
        }
        if number == register::SELF_IPI {
            let message = Message {
                destination: Destination::Index(self.index),
                mode: DeliveryMode::Fixed,
                vector: (value & 0xff) as u8,
                level_triggered: false,
            };
            self.send(message, bus);
            return Ok(Effect::default());
        }
        self.write_common(number, value, bus, clock)
    }

    fn read(&mut self, number: u8, clock: &Clock) -> Result<u64, Fault> {
        let value = match number {
            register::ID => u32::from(self.id) << 24,
            register::VERSION => VERSION,
            register::TASK_PRIORITY => u32::from(self.task_priority),
            register::ARBITRATION_PRIORITY | register::PROCESSOR_PRIORITY => {
                u32::from(self.processor_priority())
            }
            register::END_OF_INTERRUPT | register::REMOTE_READ => 0,
            register::LOGICAL_DESTINATION => u32::from(self.logical_destination) << 24,
            register::DESTINATION_FORMAT => self.destination_format,
            register::SPURIOUS_VECTOR => self.spurious_vector,
            0x10..=0x17 => self.in_service.register(usize::from(number - register::IN_SERVICE)),
            0x18..=0x1f => self.trigger_mode.register(usize::from(number - register::TRIGGER_MODE)),
            0x20..=0x27 => self.request.register(usize::from(number - register::REQUEST)),
            register::ERROR_STATUS => self.error_status,
            register::COMMAND_LOW => (self.command & 0xffff_ffff) as u32,
            register::COMMAND_HIGH => (self.command >> 32) as u32,
            register::LVT_TIMER..=register::LVT_ERROR => self.lvt[usize::from(number - register::LVT_TIMER)],
            register::INITIAL_COUNT => self.timer.initial_count(),
            register::CURRENT_COUNT => {
                self.service(clock);
                self.timer.current_count(clock)
            }
            register::DIVIDE_CONFIGURATION => self.timer.divide_configuration(),
            _ => return Err(Fault),
        };
        Ok(u64::from(value))
    }

    /// Registers whose meaning is the same in both modes.
    fn write_common(
        &mut self,
        number: u8,
        value: u32,
        bus: &ApicBus,
        clock: &Clock,
    ) -> Result<Effect, Fault> {
        match number {
            register::TASK_PRIORITY => self.task_priority = (value & 0xff) as u8,
            register::END_OF_INTERRUPT => return Ok(self.end_of_interrupt()),
            register::SPURIOUS_VECTOR => {
                self.service(clock);
                self.spurious_vector = value & 0x1ff;
                if value & SPURIOUS_ENABLE == 0 {
                    // Sec. 11.4.7.2: all LVT entries are masked while disabled.
                    self.lvt.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
                }
                self.publish(bus);
            }
            register::ERROR_STATUS => self.error_status = core::mem::take(&mut self.errors),
            register::LVT_TIMER..=register::LVT_ERROR => {
                self.service(clock);
                let entry = usize::from(number - register::LVT_TIMER);
                let masked = if self.is_enabled() { 0 } else { LVT_MASKED };
                self.lvt[entry] = value & LVT_WRITABLE[entry] | masked;
                if entry == LVT_TIMER {
                    self.timer.set_mode(TimerMode::from_lvt(value));
                }
            }
            register::INITIAL_COUNT => {
                self.service(clock);
                self.timer.set_initial_count(value, clock);
            }
            register::DIVIDE_CONFIGURATION => {
                self.service(clock);
                self.timer.set_divide_configuration(value, clock);
            }
            _ => return Err(Fault),
        }
        Ok(Effect::default())
    }

    /// Ends the service of the highest vector (sec. 11.8.5).
    fn end_of_interrupt(&mut self) -> Effect {
        let Some(vector) = self.in_service.highest() else { return Effect::default() };
        self.in_service.remove(vector);
        let level_ended = self.trigger_mode.contains(vector).then_some(vector);
        Effect { level_ended }
    }

    /// Sends what the command register says (sec. 11.6.1).
    fn send_command(&mut self, bus: &ApicBus) {
        let low = (self.command & 0xffff_ffff) as u32;
        let Some(mode) = DeliveryMode::from_bits(low) else { return };
        if mode == DeliveryMode::Init && low & (COMMAND_LEVEL | COMMAND_ASSERT) == COMMAND_LEVEL {
            // INIT level de-assert only ever synchronized arbitration identifiers.
            return;
        }
        let high = (self.command >> 32) as u32;
        let destination = match (low >> 18) & 3 {
            1 => Destination::Index(self.index),
            2 => Destination::All,
            3 => Destination::AllBut(self.index),
            _ => {
                let (target, everyone) = if self.is_x2apic() { (high, u32::MAX) } else { (high >> 24, 0xff) };
                match (target == everyone, low & COMMAND_LOGICAL != 0) {
                    (true, false) => Destination::All,
                    (_, true) => Destination::Logical(target),
                    (false, false) => Destination::Physical(target),
                }
            }
        };
        self.send(Message { destination, mode, vector: (low & 0xff) as u8, level_triggered: false }, bus);
    }

    fn send(&mut self, message: Message, bus: &ApicBus) {
        let fixed = matches!(message.mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority);
        if fixed && message.vector < 16 {
            self.record_error(ERROR_SEND_ILLEGAL_VECTOR);
            return;
        }
        bus.send(message, Some(self.index));
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
