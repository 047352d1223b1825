//! The serial console: output from anywhere, input by interrupt.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arrayvec::ArrayVec;

use crate::event::Event;
use crate::irq::{self, Interrupt, IrqError};
use crate::sync::{IrqSpinLock, Once};

/// Typed bytes kept for a slow reader; more are dropped and counted.
const INPUT_BYTES: usize = 4096;
/// The PC's first serial port.
const COM1_IRQ: u8 = 4;

/// The widest row that is drawn again: a terminal's 80 columns and the sequences that place the cursor.
const ROW_BYTES: usize = 128;

/// Holds what stands on the last row and is not ended: the shell's prompt and the line that is being typed.
static OUTPUT: IrqSpinLock<ArrayVec<u8, ROW_BYTES>> = IrqSpinLock::new(ArrayVec::new_const());
static INPUT: IrqSpinLock<VecDeque<u8>> = IrqSpinLock::new(VecDeque::new());
static INPUT_ARRIVED: Event = Event::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);
static INTERRUPT: Once<Interrupt> = Once::new();

/// Wipes the last row.
const ERASE_ROW: &[u8] = b"\r\x1b[K";

/// Writes whole lines, "\n" as carriage return and line feed. Any context. They appear above the row that somebody is
/// typing into, which is drawn again behind them.
pub fn write(bytes: &[u8]) {
    let row = OUTPUT.lock();
    if !row.is_empty() {
        arch::serial::write_bytes(ERASE_ROW);
    }
    for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
        match piece.split_last() {
            Some((b'\n', rest)) => {
                arch::serial::write_bytes(rest);
                arch::serial::write_bytes(b"\r\n");
            }
            _ => arch::serial::write_bytes(piece),
        }
    }
    arch::serial::write_bytes(&row);
}

/// Writes bytes as they are.
pub fn write_raw(bytes: &[u8]) {
    let _one_at_a_time = OUTPUT.lock();
    arch::serial::write_bytes(bytes);
}

/// Writes bytes as they are, after which the last row is what `row` draws; empty when nobody types. A row that is too
/// long is not drawn again.
pub fn write_row(bytes: &[u8], row: &[u8]) {
    let mut last = OUTPUT.lock();
    arch::serial::write_bytes(bytes);
    last.clear();
    // Fails, and leaves the row empty, if there is no room.
    let _ = last.try_extend_from_slice(row);
}

/// Has input arrive by interrupt, on CPU 0.
pub(crate) fn start_input() -> Result<(), IrqError> {
    INPUT.lock().reserve(INPUT_BYTES);
    let interrupt = irq::route_isa(COM1_IRQ, "console", 0, Arc::new(take_input))?;
    let _ = INTERRUPT.set(interrupt);
    arch::serial::enable_receive_interrupt();
    // Whatever was typed before the interrupt existed raises none.
    take_input();
    Ok(())
}

fn take_input() {
    let mut arrived = false;
    {
        let mut input = INPUT.lock();
        while let Some(byte) = arch::serial::try_read() {
            if input.len() < INPUT_BYTES {
                input.push_back(byte);
                arrived = true;
            } else {
                DROPPED.fetch_add(1, Relaxed);
            }
        }
    }
    if arrived {
        INPUT_ARRIVED.signal();
    }
}

/// The next typed byte, if there is one.
pub fn try_read_byte() -> Option<u8> {
    INPUT.lock().pop_front()
}

/// Waits for the next typed byte. One reader at a time.
pub fn read_byte() -> u8 {
    loop {
        if let Some(byte) = try_read_byte() {
            return byte;
        }
        INPUT_ARRIVED.wait();
    }
}

/// The event that is signalled when input arrives, for a reader that also waits for other things.
pub fn input_event() -> &'static Event {
    &INPUT_ARRIVED
}

/// Typed bytes that were dropped because nobody read.
pub fn dropped_bytes() -> u64 {
    DROPPED.load(Relaxed)
}

/// Makes the console usable for a panic, whoever held it.
pub(crate) fn break_open() {
    OUTPUT.break_open();
}
