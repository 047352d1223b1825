//! The board: what a guest's CPUs share, reached by ports.
//!
//! One [`Board`] belongs to a guest and stands behind a lock of its owner; a CPU takes it for a
//! port access, an I/O APIC access or an end of a level-triggered interrupt, and for nothing
//! else, so the frequent exits (timer, CPUID, IPIs) of several CPUs do not meet.
//!
//! ISA-style devices are eight bits wide: a wider access becomes byte accesses to consecutive
//! ports, as the bridge of a PC does it. A port that nobody decodes floats: reads give ones,
//! writes vanish, both are counted.

pub mod pic;
pub mod pit;
pub mod power;
pub mod rtc;
pub mod uart;

use alloc::boxed::Box;
use alloc::sync::Arc;

use crate::apic::bus::ApicBus;
use crate::apic::ioapic::IoApic;
use crate::pci::{LineChange, PciBus};
use crate::time::nearer;
use pic::PicPair;
use pit::{Line, Pit};
use power::{Power, PowerRequest};
use rtc::Rtc;
use uart::{ConsoleSink, Uart};

/// First port of COM1.
pub const COM1_PORT: u16 = 0x3f8;
/// ISA lines.
pub const TIMER_LINE: u8 = 0;
pub const COM1_LINE: u8 = 4;
pub const RTC_LINE: u8 = 8;
/// The I/O APIC pin of the timer: input 0 is the 8259's, as on every PC with both.
pub const TIMER_PIN: u8 = 2;

/// The board's own timers are not armed closer than this, so that a guest that programs a period
/// of a microsecond still executes instructions between two edges.
const LEAST_RUN_NS: u64 = 20_000;

/// ELCR2 as firmware leaves it: the SCI and the PCI lines are level-triggered.
const LEVEL_LINES_8_TO_15: u8 = 1 << (power::SCI_LINE - 8) | 1 << (10 - 8) | 1 << (11 - 8);

/// How often ports were used that mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    pub floating_reads: u64,
    pub ignored_writes: u64,
    /// The last port that nobody decoded.
    pub last_port: u16,
}

/// The shared devices of one guest.
pub struct Board {
    pub pic: PicPair,
    pub pit: Pit,
    pub rtc: Rtc,
    pub uart: Uart,
    pub power: Power,
    pub ioapic: IoApic,
    pub pci: PciBus,
    bus: Arc<ApicBus>,
    console: Box<dyn ConsoleSink>,
    counters: PortCounters,
}

/// How a CPU reaches the board that it shares with others.
pub trait BoardLock {
    /// Runs `work` with the board locked.
    fn with<R>(&self, work: impl FnOnce(&mut Board) -> R) -> R;
}

/// A guest without other CPUs or devices of its own tasks needs no lock; tests are such guests.
impl BoardLock for core::cell::RefCell<Board> {
    fn with<R>(&self, work: impl FnOnce(&mut Board) -> R) -> R {
        work(&mut self.borrow_mut())
    }
}

impl Board {
    /// A board after power-on, whose clock shows `unix_ns` at `now_ns`.
    pub fn new(bus: Arc<ApicBus>, console: Box<dyn ConsoleSink>, unix_ns: u64, now_ns: u64) -> Self {
        let mut pic = PicPair::new();
        pic.write_trigger_modes(0x4d1, LEVEL_LINES_8_TO_15);
        Self {
            pic,
            pit: Pit::new(),
            rtc: Rtc::new(unix_ns, now_ns),
            uart: Uart::new(),
            power: Power::new(),
            ioapic: IoApic::new(),
            pci: PciBus::new(),
            bus,
            console,
            counters: PortCounters::default(),
        }
    }

    pub fn port_counters(&self) -> PortCounters {
        self.counters
    }

    /// Drives an I/O APIC pin.
    fn set_pin(&mut self, pin: u8, asserted: bool, sender: Option<usize>) {
        let bus = &self.bus;
        self.ioapic.set_line(pin, asserted, &mut |message| bus.send(message, sender));
    }

    /// Drives an ISA line: the 8259 pair and the I/O APIC both see it.
    fn set_isa_line(&mut self, line: u8, asserted: bool, sender: Option<usize>) {
        self.pic.set_line(line, asserted);
        let pin = if line == TIMER_LINE { TIMER_PIN } else { line };
        self.set_pin(pin, asserted, sender);
    }

    fn publish_external_interrupt(&self, sender: Option<usize>) {
        self.bus.set_external_interrupt(self.pic.asserted(), sender);
    }

    /// Brings every line up to the present: timers, UART, power button, PCI functions. Called
    /// by the CPU that does the devices' work before it enters the guest, and after accesses.
    pub fn service(&mut self, now_ns: u64, sender: Option<usize>) {
        match self.pit.take_line(now_ns) {
            Line::Unchanged => {}
            Line::Low => self.set_isa_line(TIMER_LINE, false, sender),
            Line::Pulse => {
                self.set_isa_line(TIMER_LINE, false, sender);
                self.set_isa_line(TIMER_LINE, true, sender);
            }
        }
        self.rtc.service(now_ns);
        self.set_isa_line(RTC_LINE, self.rtc.line(), sender);
        self.set_isa_line(COM1_LINE, self.uart.line(), sender);
        self.set_isa_line(power::SCI_LINE, self.power.line(), sender);
        let (bus, ioapic, pic) = (&self.bus, &mut self.ioapic, &mut self.pic);
        self.pci.poll_lines(|change| match change {
            LineChange::Pin { pin, asserted } => {
                ioapic.set_line(pin, asserted, &mut |message| bus.send(message, sender));
            }
            LineChange::Isa { line, asserted } => pic.set_line(line, asserted),
        });
        self.ioapic.retry(&mut |message| self.bus.send(message, sender));
        self.publish_external_interrupt(sender);
    }

    /// When a timer of the board next wants [`Board::service`]. A timer whose interrupt nobody
    /// would hear is not worth an exit.
    pub fn next_edge_ns(&self, now_ns: u64) -> Option<u64> {
        let heard = self.ioapic.is_open(TIMER_PIN) || self.pic.is_open(TIMER_LINE);
        let pit = self.pit.next_edge_ns().filter(|_| heard);
        nearer(pit, self.rtc.next_edge_ns()).map(|edge_ns| edge_ns.max(now_ns.saturating_add(LEAST_RUN_NS)))
    }

    /// The 8259 pair's vector, at the CPU's acknowledge. `None` when the request has gone.
    pub fn acknowledge_external_interrupt(&mut self, sender: Option<usize>) -> Option<u8> {
        let vector = self.pic.asserted().then(|| self.pic.acknowledge());
        self.publish_external_interrupt(sender);
        vector
    }

    /// A local APIC ended the service of a level-triggered vector.
    pub fn end_of_interrupt(&mut self, vector: u8, sender: Option<usize>) {
        let bus = &self.bus;
        self.ioapic.end_of_interrupt(vector, &mut |message| bus.send(message, sender));
    }

    /// A read of the I/O APIC's window.
    pub fn read_ioapic(&self, offset: u64) -> u32 {
        self.ioapic.read(offset)
    }

    pub fn write_ioapic(&mut self, offset: u64, value: u32, sender: Option<usize>) {
        let bus = &self.bus;
        self.ioapic.write(offset, value, &mut |message| bus.send(message, sender));
    }

    /// Input for the guest's console; returns how many bytes were taken.
    pub fn push_console_input(&mut self, bytes: &[u8]) -> usize {
        let taken = self.uart.push_input(bytes);
        if taken != 0 {
            self.set_isa_line(COM1_LINE, self.uart.line(), None);
            self.publish_external_interrupt(None);
        }
        taken
    }

    /// The power button.
    pub fn press_power_button(&mut self) {
        self.power.press_button();
        self.set_isa_line(power::SCI_LINE, self.power.line(), None);
        self.publish_external_interrupt(None);
    }

    /// A read of 1, 2 or 4 bytes by CPU `cpu`.
    pub fn read_port(&mut self, port: u16, bytes: usize, now_ns: u64, cpu: usize) -> u32 {
        match port {
            0xcf8 if bytes == 4 => return self.pci.read_address(),
            0xcfc..=0xcff if usize::from(port & 3) + bytes <= 4 => {
                return self.pci.read_data(port & 3, bytes);
            }
            power::TIMER_PORT if bytes == 4 => return self.power.read_timer(now_ns),
            _ => {}
        }
        if let Some(value) = self.pci.read_io(port, bytes) {
            // Reading the ISR takes the interrupt back.
            self.service(now_ns, Some(cpu));
            return value;
        }
        (0..bytes.min(4)).fold(0, |value, index| {
            let byte = self.read_byte(port.wrapping_add(index as u16), now_ns, cpu);
            value | u32::from(byte) << (8 * index)
        })
    }

    fn read_byte(&mut self, port: u16, now_ns: u64, cpu: usize) -> u8 {
        let sender = Some(cpu);
        match port {
            0x20 | 0x21 | 0xa0 | 0xa1 => {
                let value = self.pic.read(port);
                self.publish_external_interrupt(sender);
                value
            }
            0x40..=0x43 => self.pit.read(port, now_ns),
            0x61 => self.pit.read_speaker(now_ns),
            // The keyboard controller is empty and never busy.
            0x60 | power::KEYBOARD_COMMAND_PORT => 0,
            0x70 => self.rtc.selected(),
            0x71 => {
                let value = self.rtc.read(now_ns);
                self.set_isa_line(RTC_LINE, self.rtc.line(), sender);
                self.publish_external_interrupt(sender);
                value
            }
            power::SYSTEM_CONTROL_PORT => self.power.read_system_control(),
            COM1_PORT..=0x3ff => {
                let value = self.uart.read(port - COM1_PORT);
                self.set_isa_line(COM1_LINE, self.uart.line(), sender);
                self.publish_external_interrupt(sender);
                value
            }
            0x4d0 | 0x4d1 => self.pic.read_trigger_modes(port),
            power::FIRST_PORT..=power::LAST_PORT => self.power.read(port, now_ns),
            power::RESET_CONTROL_PORT => self.power.read_reset_control(),
            _ => {
                self.counters.floating_reads += 1;
                self.counters.last_port = port;
                0xff
            }
        }
    }

    /// A write of 1, 2 or 4 bytes by CPU `cpu`.
    pub fn write_port(
        &mut self,
        port: u16,
        bytes: usize,
        value: u32,
        now_ns: u64,
        cpu: usize,
    ) -> Option<PowerRequest> {
        match port {
            0xcf8 if bytes == 4 => {
                self.pci.write_address(value);
                return None;
            }
            0xcfc..=0xcff if usize::from(port & 3) + bytes <= 4 => {
                self.pci.write_data(port & 3, bytes, value);
                self.service(now_ns, Some(cpu));
                return None;
            }
            _ => {}
        }
        if self.pci.write_io(port, bytes, value) {
            self.service(now_ns, Some(cpu));
            return None;
        }
        let values = value.to_le_bytes();
        (0..bytes.min(4)).fold(None, |request, index| {
            let done = self.write_byte(port.wrapping_add(index as u16), values[index], now_ns, cpu);
            request.or(done)
        })
    }

    fn write_byte(&mut self, port: u16, value: u8, now_ns: u64, cpu: usize) -> Option<PowerRequest> {
        let sender = Some(cpu);
        match port {
            0x20 | 0x21 | 0xa0 | 0xa1 => {
                self.pic.write(port, value);
                self.publish_external_interrupt(sender);
            }
            0x40..=0x43 => {
                // What channel 0 did before is settled by its old programming.
                self.service(now_ns, sender);
                self.pit.write(port, value, now_ns);
                self.bus.ring_device_cpu_unless(sender);
            }
            0x61 => self.pit.write_speaker(value, now_ns),
            0x70 => self.rtc.select(value),
            0x71 => {
                self.rtc.write(value, now_ns);
                self.set_isa_line(RTC_LINE, self.rtc.line(), sender);
                self.publish_external_interrupt(sender);
                self.bus.ring_device_cpu_unless(sender);
            }
            // The port that BIOSes show their progress on and that drivers wait by.
            0x80 | 0xed => {}
            power::KEYBOARD_COMMAND_PORT => return self.power.write_keyboard_command(value),
            power::SYSTEM_CONTROL_PORT => return self.power.write_system_control(value),
            COM1_PORT..=0x3ff => {
                self.uart.write(port - COM1_PORT, value, &mut *self.console);
                self.set_isa_line(COM1_LINE, self.uart.line(), sender);
                self.publish_external_interrupt(sender);
            }
            0x4d0 | 0x4d1 => {
                self.pic.write_trigger_modes(port, value);
                self.publish_external_interrupt(sender);
            }
            power::FIRST_PORT..=power::LAST_PORT => {
                let request = self.power.write(port, value);
                self.set_isa_line(power::SCI_LINE, self.power.line(), sender);
                self.publish_external_interrupt(sender);
                return request;
            }
            power::RESET_CONTROL_PORT => return self.power.write_reset_control(value),
            power::DEBUG_EXIT_PORT => return Some(PowerRequest::Exit(value)),
            _ => {
                self.counters.ignored_writes += 1;
                self.counters.last_port = port;
            }
        }
        None
    }
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
