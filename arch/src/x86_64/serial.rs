//! The first serial port, the node's console.
//!
//! Two ways to send. [`write_bytes`] polls and takes no lock, so a fault handler may print whatever
//! its CPU held. [`send`] fills the transmit FIFO when the port says that it is empty, and the port's
//! interrupt says when it is empty again; `kcore::console` keeps the buffer and the lock above.
//! Registers and bits: National Semiconductor PC16550D data sheet, section 8.

use super::{cpu, port};
use core::fmt;

const COM1: u16 = 0x3f8;
const DATA: u16 = COM1; // receiver buffer, transmitter holding; divisor low with DLAB
const INTERRUPT_ENABLE: u16 = COM1 + 1; // divisor high with DLAB
const FIFO_CONTROL: u16 = COM1 + 2; // written
const INTERRUPT_IDENTIFICATION: u16 = COM1 + 2; // read
const LINE_CONTROL: u16 = COM1 + 3;
const MODEM_CONTROL: u16 = COM1 + 4;
const LINE_STATUS: u16 = COM1 + 5;
const MODEM_STATUS: u16 = COM1 + 6;

const LINE_8N1: u8 = 0x03;
const LINE_DLAB: u8 = 0x80;
const DIVISOR_115200: u8 = 1;
/// Enable, clear both, interrupt at 14 bytes.
const FIFO_ON: u8 = 0xc7;
/// DTR, RTS, and OUT2, which gates the interrupt line on a PC.
const MODEM_READY: u8 = 0x0b;
const STATUS_DATA_READY: u8 = 0x01;
const STATUS_HOLDING_EMPTY: u8 = 0x20;
const ENABLE_RECEIVED_DATA: u8 = 0x01;
const ENABLE_HOLDING_EMPTY: u8 = 0x02;
const NO_INTERRUPT: u8 = 0x01;
const CAUSE_MASK: u8 = 0x0e;
const CAUSE_HOLDING_EMPTY: u8 = 0x02;
const CAUSE_RECEIVED_DATA: u8 = 0x04;
const CAUSE_RECEIVE_TIMEOUT: u8 = 0x0c;

/// Bytes that the transmit FIFO takes when it is empty.
pub const FIFO_BYTES: usize = 16;

/// The legacy interrupt line of the port.
pub const ISA_IRQ: u8 = 4;

/// Polls before a byte is given up. A byte takes 87 us at 115,200 baud; a port access
/// about 1 us on hardware.
const PATIENCE: u32 = 100_000;

fn read(register: u16) -> u8 {
    // SAFETY: the port numbers are those of the console UART, which this module owns; it
    // has no DMA.
    unsafe { port::read8(register) }
}

fn write(register: u16, value: u8) {
    // SAFETY: as in `read`.
    unsafe { port::write8(register, value) }
}

/// Sets the port to 115,200 baud, 8N1, FIFOs on, no interrupts.
pub fn init() {
    write(INTERRUPT_ENABLE, 0);
    write(LINE_CONTROL, LINE_DLAB);
    write(DATA, DIVISOR_115200);
    write(INTERRUPT_ENABLE, 0);
    write(LINE_CONTROL, LINE_8N1);
    write(FIFO_CONTROL, FIFO_ON);
    write(MODEM_CONTROL, MODEM_READY);
}

/// Sends the bytes as they are, polling. How many went out: a port that does not drain is given up
/// at the first byte.
pub fn write_bytes(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|&&byte| write_byte(byte)).count()
}

fn write_byte(byte: u8) -> bool {
    for _ in 0..PATIENCE {
        if read(LINE_STATUS) & STATUS_HOLDING_EMPTY != 0 {
            write(DATA, byte);
            return true;
        }
        cpu::pause();
    }
    false
}

/// Puts one byte into the transmit FIFO. Only after [`Cause::TransmitterEmpty`], and at most
/// [`FIFO_BYTES`] times.
pub fn send(byte: u8) {
    write(DATA, byte);
}

/// Why the port interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Bytes have arrived.
    Received,
    /// The transmit FIFO is empty.
    TransmitterEmpty,
    /// A line or modem state that nobody here waits for; it has been cleared.
    Other,
}

/// The most urgent reason, if there is one. Asking acknowledges [`Cause::TransmitterEmpty`].
pub fn interrupt_cause() -> Option<Cause> {
    let identification = read(INTERRUPT_IDENTIFICATION);
    if identification & NO_INTERRUPT != 0 {
        return None;
    }
    Some(match identification & CAUSE_MASK {
        CAUSE_RECEIVED_DATA | CAUSE_RECEIVE_TIMEOUT => Cause::Received,
        CAUSE_HOLDING_EMPTY => Cause::TransmitterEmpty,
        _ => {
            read(LINE_STATUS);
            read(MODEM_STATUS);
            Cause::Other
        }
    })
}

/// The next received byte, if there is one.
pub fn try_read() -> Option<u8> {
    let status = read(LINE_STATUS);
    // All ones: no such device.
    (status != 0xff && status & STATUS_DATA_READY != 0).then(|| read(DATA))
}

/// Lets the port raise ISA interrupt [`ISA_IRQ`] when bytes have arrived and, with `transmit`, when
/// the transmit FIFO is empty (at once, if it is). The interrupt is an edge: its handler must ask
/// [`interrupt_cause`] until there is none, or call this again, which makes a new edge.
pub fn enable_interrupts(transmit: bool) {
    write(INTERRUPT_ENABLE, 0);
    write(INTERRUPT_ENABLE, ENABLE_RECEIVED_DATA | if transmit { ENABLE_HOLDING_EMPTY } else { 0 });
}

/// Turns the port's interrupts off.
pub fn disable_interrupts() {
    write(INTERRUPT_ENABLE, 0);
}

/// `core::fmt` to the port, each line feed preceded by a carriage return. For reports
/// made where nothing else can be trusted.
pub struct Writer;

impl fmt::Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for line in text.split_inclusive('\n') {
            match line.strip_suffix('\n') {
                Some(line) => {
                    write_bytes(line.as_bytes());
                    write_bytes(b"\r\n");
                }
                None => {
                    write_bytes(line.as_bytes());
                }
            }
        }
        Ok(())
    }
}
