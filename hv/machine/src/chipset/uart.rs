//! A 16550A UART (National Semiconductor PC16550D data sheet): the guest's console, COM1.
//!
//! Output leaves at once: the transmitter is always empty and never makes the guest wait, and
//! what the guest prints goes to a sink of whoever owns the machine. Input waits in a queue
//! of ours until the guest takes it from the FIFO, so none is lost however slowly the guest
//! reads: a real line would overrun at the fourteenth byte of a paste.

use alloc::collections::VecDeque;

const IER_RECEIVED: u8 = 0x01;
const IER_TRANSMIT_EMPTY: u8 = 0x02;
const IER_LINE_STATUS: u8 = 0x04;
const IER_MODEM_STATUS: u8 = 0x08;
const IIR_NONE: u8 = 0x01;
const IIR_MODEM_STATUS: u8 = 0x00;
const IIR_TRANSMIT_EMPTY: u8 = 0x02;
const IIR_RECEIVED: u8 = 0x04;
const IIR_LINE_STATUS: u8 = 0x06;
const IIR_FIFO_ENABLED: u8 = 0xc0;
const FCR_ENABLE: u8 = 0x01;
const FCR_CLEAR_RECEIVE: u8 = 0x02;
const LCR_DIVISOR_LATCH: u8 = 0x80;
const MCR_LOOPBACK: u8 = 0x10;
const LSR_DATA_READY: u8 = 0x01;
const LSR_OVERRUN: u8 = 0x02;
const LSR_TRANSMIT_EMPTY: u8 = 0x60;
/// The far end is there: clear to send, data set ready, carrier.
const MSR_CONNECTED: u8 = 0xb0;

/// The receive FIFO of the part; also what loops back.
const FIFO_BYTES: usize = 16;
/// Input typed ahead is kept up to here; then it is the sender who must wait.
pub const INPUT_QUEUE_BYTES: usize = 64 * 1024;

/// Where the guest's output goes.
pub trait ConsoleSink: Send {
    /// Takes one byte. Must not block: it runs between two instructions of the guest.
    fn put(&mut self, byte: u8);
}

/// The UART's registers and the input that waits for the guest.
#[derive(Clone, Debug, Default)]
pub struct Uart {
    interrupt_enable: u8,
    fifo_control: u8,
    line_control: u8,
    modem_control: u8,
    scratch: u8,
    divisor: [u8; 2],
    /// Loopback was fed faster than it was read.
    overrun: bool,
    /// The transmitter became empty (it is always) and the guest has not been told yet.
    transmit_empty_pending: bool,
    /// Bits 3:0 of the modem status: what changed since it was read.
    modem_delta: u8,
    looped: VecDeque<u8>,
    input: VecDeque<u8>,
}

impl Uart {
    pub fn new() -> Self {
        Self { divisor: [12, 0], ..Self::default() }
    }

    /// Queues input for the guest; returns how much of it fits. The rest stays the caller's.
    pub fn push_input(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(INPUT_QUEUE_BYTES - self.input.len().min(INPUT_QUEUE_BYTES));
        self.input.extend(&bytes[..taken]);
        taken
    }

    /// Input that the guest has not read.
    pub fn queued_input_bytes(&self) -> usize {
        self.input.len()
    }

    fn is_looped(&self) -> bool {
        self.modem_control & MCR_LOOPBACK != 0
    }

    fn has_data(&self) -> bool {
        if self.is_looped() { !self.looped.is_empty() } else { !self.input.is_empty() }
    }

    /// In loopback the modem outputs come back as inputs: DTR to DSR, RTS to CTS, OUT1 to RI,
    /// OUT2 to DCD. Linux finds the chip by this.
    fn modem_inputs(&self) -> u8 {
        if !self.is_looped() {
            return MSR_CONNECTED;
        }
        let control = self.modem_control;
        (control & 0x01) << 5 | (control & 0x02) << 3 | (control & 0x04) << 4 | (control & 0x08) << 4
    }

    /// The interrupt of highest priority (data sheet, table IV).
    fn interrupt_identity(&self) -> u8 {
        if self.interrupt_enable & IER_LINE_STATUS != 0 && self.overrun {
            IIR_LINE_STATUS
        } else if self.interrupt_enable & IER_RECEIVED != 0 && self.has_data() {
            IIR_RECEIVED
        } else if self.interrupt_enable & IER_TRANSMIT_EMPTY != 0 && self.transmit_empty_pending {
            IIR_TRANSMIT_EMPTY
        } else if self.interrupt_enable & IER_MODEM_STATUS != 0 && self.modem_delta != 0 {
            IIR_MODEM_STATUS
        } else {
            IIR_NONE
        }
    }

    /// The level of the interrupt line. A PC gates it with OUT2; since the board of COM1 is all
    /// there is and some loaders never set OUT2, only loopback (where OUT2 is inactive) cuts it.
    pub fn line(&self) -> bool {
        !self.is_looped() && self.interrupt_identity() != IIR_NONE
    }

    /// Register `offset` (0 to 7) from the base port.
    pub fn read(&mut self, offset: u16) -> u8 {
        let divisor_latch = self.line_control & LCR_DIVISOR_LATCH != 0;
        match offset & 7 {
            0 | 1 if divisor_latch => self.divisor[usize::from(offset & 1)],
            0 => {
                let queue = if self.is_looped() { &mut self.looped } else { &mut self.input };
                queue.pop_front().unwrap_or(0)
            }
            1 => self.interrupt_enable,
            2 => {
                let identity = self.interrupt_identity();
                if identity == IIR_TRANSMIT_EMPTY {
                    // Reading it answers this one.
                    self.transmit_empty_pending = false;
                }
                identity | if self.fifo_control & FCR_ENABLE != 0 { IIR_FIFO_ENABLED } else { 0 }
            }
            3 => self.line_control,
            4 => self.modem_control,
            5 => {
                let overrun = if core::mem::take(&mut self.overrun) { LSR_OVERRUN } else { 0 };
                LSR_TRANSMIT_EMPTY | overrun | if self.has_data() { LSR_DATA_READY } else { 0 }
            }
            6 => self.modem_inputs() | core::mem::take(&mut self.modem_delta),
            _ => self.scratch,
        }
    }

    pub fn write(&mut self, offset: u16, value: u8, sink: &mut dyn ConsoleSink) {
        let divisor_latch = self.line_control & LCR_DIVISOR_LATCH != 0;
        match offset & 7 {
            0 | 1 if divisor_latch => self.divisor[usize::from(offset & 1)] = value,
            0 => self.transmit(value, sink),
            1 => {
                let enabled = value & !self.interrupt_enable;
                self.interrupt_enable = value & 0x0f;
                if enabled & IER_TRANSMIT_EMPTY != 0 {
                    // Enabling it while the transmitter is empty asks at once; Linux tests this.
                    self.transmit_empty_pending = true;
                }
            }
            2 => {
                // Input clears only what the FIFO of the part could hold: none of ours. A
                // driver that opens the port clears it, and typed-ahead input would be lost.
                if value & FCR_CLEAR_RECEIVE != 0 {
                    self.looped.clear();
                }
                self.fifo_control = value & FCR_ENABLE;
            }
            3 => self.line_control = value,
            4 => self.write_modem_control(value & 0x1f),
            // Line and modem status are the part's to write.
            5 | 6 => {}
            _ => self.scratch = value,
        }
    }

    fn write_modem_control(&mut self, value: u8) {
        let before = self.modem_inputs();
        self.modem_control = value;
        let after = self.modem_inputs();
        // Deltas: CTS, DSR, trailing edge of RI, DCD.
        let changed = before ^ after;
        self.modem_delta |= changed >> 4 & 0x0b | (before & !after) >> 4 & 0x04;
        if !self.is_looped() {
            self.looped.clear();
        }
    }

    fn transmit(&mut self, byte: u8, sink: &mut dyn ConsoleSink) {
        if self.is_looped() {
            if self.looped.len() < FIFO_BYTES {
                self.looped.push_back(byte);
            } else {
                self.overrun = true;
            }
        } else {
            sink.put(byte);
        }
        self.transmit_empty_pending = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    impl ConsoleSink for Vec<u8> {
        fn put(&mut self, byte: u8) {
            self.push(byte);
        }
    }

    #[test]
    fn output_leaves_at_once_and_the_transmitter_is_empty() {
        let (mut uart, mut out) = (Uart::new(), Vec::new());
        for byte in b"hello" {
            assert_eq!(uart.read(5) & 0x60, 0x60);
            uart.write(0, *byte, &mut out);
        }
        assert_eq!(out, b"hello");
    }

    #[test]
    fn linux_finds_the_chip_by_loopback() {
        let (mut uart, mut out) = (Uart::new(), Vec::new());
        uart.write(4, 0x10 | 0x0a, &mut out);
        assert_eq!(uart.read(6) & 0xf0, 0x90);
        uart.write(0, b'x', &mut out);
        assert_eq!((uart.read(5) & 1, uart.read(0)), (1, b'x'));
        assert!(out.is_empty() && !uart.line());
    }

    #[test]
    fn the_fifo_is_that_of_a_16550a() {
        let (mut uart, mut out) = (Uart::new(), Vec::new());
        assert_eq!(uart.read(2), 0x01);
        uart.write(2, 0x01, &mut out);
        assert_eq!(uart.read(2), 0xc1);
        uart.write(7, 0x5a, &mut out);
        assert_eq!(uart.read(7), 0x5a);
    }

    #[test]
    fn enabling_the_transmit_interrupt_asks_and_reading_iir_answers() {
        let (mut uart, mut out) = (Uart::new(), Vec::new());
        uart.write(1, IER_TRANSMIT_EMPTY, &mut out);
        assert!(uart.line());
        assert_eq!(uart.read(2), IIR_TRANSMIT_EMPTY);
        assert!(!uart.line());
        uart.write(0, b'a', &mut out);
        assert!(uart.line());
    }

    #[test]
    fn input_waits_and_survives_a_fifo_clear() {
        let (mut uart, mut out) = (Uart::new(), Vec::new());
        uart.write(1, IER_RECEIVED, &mut out);
        assert_eq!(uart.push_input(b"ls\n"), 3);
        assert!(uart.line());
        assert_eq!(uart.read(2), IIR_RECEIVED);
        uart.write(2, 0x07, &mut out);
        let read: Vec<u8> = core::iter::from_fn(|| (uart.read(5) & 1 != 0).then(|| uart.read(0))).collect();
        assert_eq!(read, b"ls\n");
        assert!(!uart.line());
    }

    #[test]
    fn a_full_queue_pushes_back_instead_of_losing() {
        let mut uart = Uart::new();
        assert_eq!(uart.push_input(&[b'a'; INPUT_QUEUE_BYTES - 2]), INPUT_QUEUE_BYTES - 2);
        assert_eq!(uart.push_input(b"xyz"), 2);
        assert_eq!(uart.push_input(b"z"), 0);
    }

    #[test]
    fn the_divisor_hides_data_and_interrupt_enable() {
        let (mut uart, mut out) = (Uart::new(), Vec::new());
        uart.write(3, 0x83, &mut out);
        uart.write(0, 0x01, &mut out);
        uart.write(1, 0x00, &mut out);
        assert_eq!((uart.read(0), uart.read(1)), (1, 0));
        uart.write(3, 0x03, &mut out);
        assert_eq!((uart.read(3), uart.read(1)), (3, 0));
        assert!(out.is_empty());
    }
}
