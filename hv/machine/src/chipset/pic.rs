//! The pair of 8259A interrupt controllers (Intel 8259A data sheet, order 231468-003).
//!
//! What a guest must be able to rely on, and what hung a guest of an earlier hypervisor when it
//! was wrong: a request is *state*, not an event.
//! - A request that arrives while masked waits in IRR and is delivered at unmasking.
//! - A level-triggered input asks as long as it is high, again after each end of interrupt.
//! - An edge-triggered input asks once per rising edge, and only while it stays high: "the IR
//!   inputs must remain high until after the falling edge of the first INTA" (data sheet,
//!   "Edge and Level Triggered Modes"). A line that falls takes its request with it.
//! - When the request is gone by the time of the acknowledge, the answer is the spurious
//!   level 7, without a bit in ISR; for a spurious slave the master's cascade bit is set.
//!
//! Edge or level is chosen per line by ELCR, as in every chipset since the PIIX; the LTIM bit of
//! ICW1 is ignored as there. The 8080 call mode is not modelled: an x86 CPU never uses it.

/// ICW1: this is an initialization word, not OCW2 or OCW3.
const ICW1_INIT: u8 = 0x10;
/// ICW1: there is no second controller, so no ICW3 follows.
const ICW1_SINGLE: u8 = 0x02;
/// ICW1: ICW4 will follow.
const ICW1_ICW4: u8 = 0x01;
/// ICW4: end of interrupt happens by itself at the acknowledge.
const ICW4_AUTO_EOI: u8 = 0x02;
/// ICW4: the special fully nested mode.
const ICW4_SPECIAL_FULLY_NESTED: u8 = 0x10;
/// OCW3 rather than OCW2.
const OCW3_SELECT: u8 = 0x08;
/// OCW3: the next read is a poll.
const OCW3_POLL: u8 = 0x04;

/// The master's input that the slave's output is wired to.
const CASCADE: u8 = 2;
/// The lines whose trigger mode may be chosen: not the timer, keyboard and cascade (master), nor
/// the real-time clock and the coprocessor error (slave). 82371AB (PIIX4) data sheet, ELCR1/2.
const ELCR_WRITABLE: [u8; 2] = [0xf8, 0xde];

/// What the next write to the data port means. The initialization words come in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expecting {
    VectorBase { single: bool, then_mode: bool },
    Cascade { then_mode: bool },
    Mode,
    Mask,
}

/// One 8259A.
#[derive(Clone, Debug)]
struct Controller {
    is_master: bool,
    /// Input levels as they are now.
    lines: u8,
    /// Rising edges not acknowledged yet; meaningful for edge-triggered inputs.
    edges: u8,
    /// Inputs that are level-triggered.
    level_triggered: u8,
    mask: u8,
    in_service: u8,
    vector_base: u8,
    /// The input with the highest priority; rotates.
    highest: u8,
    expecting: Expecting,
    auto_eoi: bool,
    rotate_at_auto_eoi: bool,
    special_mask: bool,
    special_fully_nested: bool,
    read_in_service: bool,
    poll: bool,
}

impl Controller {
    fn new(is_master: bool) -> Self {
        Self {
            is_master,
            lines: 0,
            edges: 0,
            level_triggered: 0,
            // As firmware leaves it: all masked. A real part after power-on is undefined.
            mask: 0xff,
            in_service: 0,
            vector_base: if is_master { 0x08 } else { 0x70 },
            highest: 0,
            expecting: Expecting::Mask,
            auto_eoi: false,
            rotate_at_auto_eoi: false,
            special_mask: false,
            special_fully_nested: false,
            read_in_service: false,
            poll: false,
        }
    }

    /// The interrupt request register: what asks, masked or not.
    fn requests(&self) -> u8 {
        self.lines & (self.level_triggered | self.edges)
    }

    fn set_line(&mut self, input: u8, level: bool) {
        let bit = 1 << (input & 7);
        if level {
            if self.lines & bit == 0 {
                self.edges |= bit;
            }
            self.lines |= bit;
        } else {
            self.lines &= !bit;
            self.edges &= !bit;
        }
    }

    /// How far an input is from the highest priority: 0 is served first.
    fn rank(&self, input: u8) -> u8 {
        input.wrapping_sub(self.highest) & 7
    }

    /// The input of best rank among `inputs`.
    fn best(&self, inputs: u8) -> Option<u8> {
        (0..8).map(|rank| (self.highest + rank) & 7).find(|&input| inputs & (1 << input) != 0)
    }

    /// The input that asks for service and may have it, by priority against what is in service.
    fn pending(&self) -> Option<u8> {
        let unmasked = self.requests() & !self.mask;
        if self.special_mask {
            // Data sheet, "Special Mask Mode": every input that is neither masked nor itself
            // in service may interrupt, whatever its rank.
            return self.best(unmasked & !self.in_service);
        }
        let wanted = self.best(unmasked)?;
        let Some(serving) = self.best(self.in_service) else { return Some(wanted) };
        // Special fully nested: a better input of the slave may interrupt the slave's service.
        let nests = self.is_master && self.special_fully_nested && wanted == CASCADE && serving == CASCADE;
        (nests || self.rank(wanted) < self.rank(serving)).then_some(wanted)
    }

    fn acknowledge(&mut self, input: u8) {
        self.edges &= !(1 << input);
        if !self.auto_eoi {
            self.in_service |= 1 << input;
        } else if self.rotate_at_auto_eoi {
            self.highest = (input + 1) & 7;
        }
    }

    /// INTA: the vector, and the input unless the interrupt is spurious.
    fn interrupt_acknowledge(&mut self) -> (u8, Option<u8>) {
        let pending = self.pending();
        if let Some(input) = pending {
            self.acknowledge(input);
        }
        (self.vector_base | pending.unwrap_or(7), pending)
    }

    fn write_command(&mut self, value: u8) {
        if value & ICW1_INIT != 0 {
            // Data sheet, "Initialization Command Words 1 and 2": edge sense and mask are
            // cleared, input 7 gets the lowest priority, special mask mode is off, status reads
            // IRR; without ICW4 its functions are off.
            *self = Self {
                lines: self.lines,
                level_triggered: self.level_triggered,
                vector_base: self.vector_base,
                mask: 0,
                expecting: Expecting::VectorBase {
                    single: value & ICW1_SINGLE != 0,
                    then_mode: value & ICW1_ICW4 != 0,
                },
                ..Self::new(self.is_master)
            };
        } else if value & OCW3_SELECT != 0 {
            self.poll = value & OCW3_POLL != 0;
            match value & 0x03 {
                2 => self.read_in_service = false,
                3 => self.read_in_service = true,
                _ => {}
            }
            match value & 0x60 {
                0x40 => self.special_mask = false,
                0x60 => self.special_mask = true,
                _ => {}
            }
        } else {
            self.write_end_of_interrupt(value);
        }
    }

    /// OCW2: bits 7:5 are rotate, specific and end-of-interrupt.
    fn write_end_of_interrupt(&mut self, value: u8) {
        let named = value & 7;
        match value >> 5 {
            // Non-specific, without and with rotation. In special mask mode a masked input in
            // service is passed over (data sheet, "End of Interrupt").
            1 | 5 => {
                let ending = if self.special_mask { self.in_service & !self.mask } else { self.in_service };
                if let Some(input) = self.best(ending) {
                    self.in_service &= !(1 << input);
                    if value >> 5 == 5 {
                        self.highest = (input + 1) & 7;
                    }
                }
            }
            3 => self.in_service &= !(1 << named),
            7 => {
                self.in_service &= !(1 << named);
                self.highest = (named + 1) & 7;
            }
            6 => self.highest = (named + 1) & 7,
            0 => self.rotate_at_auto_eoi = false,
            4 => self.rotate_at_auto_eoi = true,
            // 2: no operation.
            _ => {}
        }
    }

    fn write_data(&mut self, value: u8) {
        self.expecting = match self.expecting {
            Expecting::VectorBase { single, then_mode } => {
                self.vector_base = value & 0xf8;
                match (single, then_mode) {
                    (false, then_mode) => Expecting::Cascade { then_mode },
                    (true, true) => Expecting::Mode,
                    (true, false) => Expecting::Mask,
                }
            }
            // The wiring of the pair is fixed, whatever ICW3 says.
            Expecting::Cascade { then_mode: true } => Expecting::Mode,
            Expecting::Cascade { then_mode: false } => Expecting::Mask,
            Expecting::Mode => {
                self.auto_eoi = value & ICW4_AUTO_EOI != 0;
                self.special_fully_nested = value & ICW4_SPECIAL_FULLY_NESTED != 0;
                Expecting::Mask
            }
            Expecting::Mask => {
                self.mask = value;
                Expecting::Mask
            }
        }
    }

    /// A poll is an acknowledge by reading (OCW3.P): bit 7 says whether there was a request.
    fn read_poll(&mut self) -> u8 {
        self.poll = false;
        match self.interrupt_acknowledge() {
            (_, Some(input)) => 0x80 | input,
            (_, None) => 0,
        }
    }

    fn read(&mut self, is_data_port: bool) -> u8 {
        if self.poll {
            self.read_poll()
        } else if is_data_port {
            self.mask
        } else if self.read_in_service {
            self.in_service
        } else {
            self.requests()
        }
    }
}

/// Both controllers, wired as in a PC: the slave's output is the master's input 2.
#[derive(Clone, Debug)]
pub struct PicPair {
    master: Controller,
    slave: Controller,
}

impl Default for PicPair {
    fn default() -> Self {
        Self::new()
    }
}

impl PicPair {
    pub fn new() -> Self {
        Self { master: Controller::new(true), slave: Controller::new(false) }
    }

    /// Drives one of the sixteen ISA lines. Line 2 is the cascade and belongs to the pair.
    pub fn set_line(&mut self, line: u8, level: bool) {
        match line {
            CASCADE => {}
            0..8 => self.master.set_line(line, level),
            8..16 => {
                self.slave.set_line(line - 8, level);
                self.update_cascade();
            }
            _ => {}
        }
    }

    /// The slave's INT output follows its pending state at once.
    fn update_cascade(&mut self) {
        let asks = self.slave.pending().is_some();
        // In special fully nested mode a second request of the slave comes while the cascade is
        // high already; the master sees it as a new one.
        self.master.set_line(CASCADE, false);
        self.master.set_line(CASCADE, asks);
    }

    /// Whether a request on this line would reach the CPU once others are served.
    pub fn is_open(&self, line: u8) -> bool {
        match line {
            0..8 => self.master.mask & 1 << line == 0,
            8..16 => self.slave.mask & 1 << (line - 8) == 0 && self.master.mask & 1 << CASCADE == 0,
            _ => false,
        }
    }

    /// The pair's INTR output: whether the CPU is asked for an acknowledge.
    pub fn asserted(&self) -> bool {
        self.master.pending().is_some()
    }

    /// The CPU's interrupt acknowledge: the vector to take.
    pub fn acknowledge(&mut self) -> u8 {
        let (vector, input) = self.master.interrupt_acknowledge();
        if input != Some(CASCADE) {
            return vector;
        }
        let (vector, _) = self.slave.interrupt_acknowledge();
        self.update_cascade();
        vector
    }

    /// Ports 0x20, 0x21 (master) and 0xA0, 0xA1 (slave).
    pub fn read(&mut self, port: u16) -> u8 {
        let is_data_port = port & 1 != 0;
        if port & 0x80 == 0 {
            self.master.read(is_data_port)
        } else {
            let value = self.slave.read(is_data_port);
            self.update_cascade();
            value
        }
    }

    pub fn write(&mut self, port: u16, value: u8) {
        let controller = if port & 0x80 == 0 { &mut self.master } else { &mut self.slave };
        if port & 1 != 0 {
            controller.write_data(value);
        } else {
            controller.write_command(value);
        }
        if port & 0x80 != 0 {
            self.update_cascade();
        }
    }

    /// ELCR1 and ELCR2, ports 0x4D0 and 0x4D1.
    pub fn read_trigger_modes(&self, port: u16) -> u8 {
        if port & 1 == 0 { self.master.level_triggered } else { self.slave.level_triggered }
    }

    pub fn write_trigger_modes(&mut self, port: u16, value: u8) {
        if port & 1 == 0 {
            self.master.level_triggered = value & ELCR_WRITABLE[0];
        } else {
            self.slave.level_triggered = value & ELCR_WRITABLE[1];
            self.update_cascade();
        }
    }
}

#[cfg(test)]
#[path = "pic_tests.rs"]
mod tests;
