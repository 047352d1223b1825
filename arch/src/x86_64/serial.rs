//! The first serial port, the node's console.
//!
//! Transmission polls and takes no lock, so a fault handler may print whatever its CPU
//! held. Two CPUs that print at once interleave; `kcore::console` puts a lock above.
//! Registers and bits: National Semiconductor PC16550D data sheet, section 8.

use super::{cpu, port};
use core::fmt;

const COM1: u16 = 0x3f8;
const DATA: u16 = COM1; // receiver buffer, transmitter holding; divisor low with DLAB
const INTERRUPT_ENABLE: u16 = COM1 + 1; // divisor high with DLAB
const FIFO_CONTROL: u16 = COM1 + 2;
const LINE_CONTROL: u16 = COM1 + 3;
const MODEM_CONTROL: u16 = COM1 + 4;
const LINE_STATUS: u16 = COM1 + 5;

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

/// Sends the bytes as they are. A port that does not drain loses them.
pub fn write_bytes(bytes: &[u8]) {
    for byte in bytes {
        for _ in 0..PATIENCE {
            if read(LINE_STATUS) & STATUS_HOLDING_EMPTY != 0 {
                write(DATA, *byte);
                break;
            }
            cpu::pause();
        }
    }
}

/// The next received byte, if there is one.
pub fn try_read() -> Option<u8> {
    let status = read(LINE_STATUS);
    // All ones: no such device.
    (status != 0xff && status & STATUS_DATA_READY != 0).then(|| read(DATA))
}

/// Lets the port raise ISA interrupt [`ISA_IRQ`] when bytes have arrived. The handler
/// must read until [`try_read`] gives `None`.
pub fn enable_receive_interrupt() {
    write(INTERRUPT_ENABLE, ENABLE_RECEIVED_DATA);
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
                None => write_bytes(line.as_bytes()),
            }
        }
        Ok(())
    }
}
