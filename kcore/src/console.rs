//! The serial console: output from anywhere, input by interrupt.

use alloc::sync::Arc;
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::event::Event;
use crate::irq::{self, Interrupt, IrqError};
use crate::sync::{IrqSpinLock, Once};

/// Typed bytes kept for a slow reader; more are dropped and counted.
const INPUT_BYTES: usize = 4096;
/// The PC's first serial port.
const COM1_IRQ: u8 = 4;

static OUTPUT: IrqSpinLock<()> = IrqSpinLock::new(());
static INPUT: IrqSpinLock<VecDeque<u8>> = IrqSpinLock::new(VecDeque::new());
static INPUT_ARRIVED: Event = Event::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);
static INTERRUPT: Once<Interrupt> = Once::new();

/// Writes bytes, "\n" as carriage return and line feed. Any context.
pub fn write(bytes: &[u8]) {
    let _one_line_at_a_time = OUTPUT.lock();
    for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
        match piece.split_last() {
            Some((b'\n', rest)) => {
                arch::serial::write_bytes(rest);
                arch::serial::write_bytes(b"\r\n");
            }
            _ => arch::serial::write_bytes(piece),
        }
    }
}

/// Writes bytes as they are.
pub fn write_raw(bytes: &[u8]) {
    let _one_at_a_time = OUTPUT.lock();
    arch::serial::write_bytes(bytes);
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
