//! The serial console: output from anywhere, input and output by interrupt.
//!
//! Whoever reads the console may be slow, stopped or gone, and that must cost the node nothing. So
//! output goes into a ring, and the port's interrupt takes it from there, a FIFO's worth at a time.
//! The log never waits: a line for which there is no room is lost and counted, and the count is shown
//! where the lines would have been. The shell's tasks wait for room, a second at most.
//!
//! Until the interrupt exists, and after [`take_over`], bytes go out by polling.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arch::serial::{self, Cause};
use arrayvec::{ArrayString, ArrayVec};

use crate::event::Event;
use crate::irq::{self, Interrupt, IrqError};
use crate::sync::{IrqSpinLock, Once};
use crate::time;

/// Output kept for a slow reader: more than the whole log.
const OUTPUT_BYTES: usize = 96 * 1024;
/// Typed bytes kept for a slow reader; more are dropped and counted.
const INPUT_BYTES: usize = 4096;
/// How long a task's output waits for room.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Bytes taken and causes served by one interrupt. A port that has more makes a new edge.
const INPUT_BYTES_A_TURN: usize = 64;
const CAUSES_A_TURN: usize = 16;

/// The widest row that is drawn again: a terminal's 80 columns and the sequences that place the cursor.
const ROW_BYTES: usize = 128;

struct Output {
    ring: [u8; OUTPUT_BYTES],
    /// Bytes ever put into the ring, and taken out; their places are these modulo the size.
    put: usize,
    taken: usize,
    /// What stands on the last row and is not ended: the shell's prompt and the line that is being typed.
    row: ArrayVec<u8, ROW_BYTES>,
    /// The port's interrupt takes bytes from the ring.
    by_interrupt: bool,
    /// The port's transmit interrupt is on.
    sending: bool,
    /// A task waits for room.
    waited_for: bool,
    /// Writes lost since the last that found room.
    lost: u64,
}

static OUTPUT: IrqSpinLock<Output> = IrqSpinLock::new(Output {
    ring: [0; OUTPUT_BYTES],
    put: 0,
    taken: 0,
    row: ArrayVec::new_const(),
    by_interrupt: false,
    sending: false,
    waited_for: false,
    lost: 0,
});
static ROOM: Event = Event::new();
static INPUT: IrqSpinLock<VecDeque<u8>> = IrqSpinLock::new(VecDeque::new());
static INPUT_ARRIVED: Event = Event::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);
static INTERRUPT: Once<Interrupt> = Once::new();

/// Wipes the last row.
const ERASE_ROW: &[u8] = b"\r\x1b[K";
/// What a write may add to its own bytes: the row wiped and drawn again, and word of what was lost.
const EXTRA_BYTES: usize = ERASE_ROW.len() + ROW_BYTES + 64;

impl Output {
    /// Whether a write of `bytes`, each of which may be a line feed, fits whole.
    fn has_room(&self, bytes: usize) -> bool {
        !self.by_interrupt || OUTPUT_BYTES - (self.put - self.taken) >= 2 * bytes + EXTRA_BYTES
    }

    fn put(&mut self, bytes: &[u8]) {
        if !self.by_interrupt {
            serial::write_bytes(bytes);
            return;
        }
        for &byte in bytes.iter().take(OUTPUT_BYTES - (self.put - self.taken)) {
            self.ring[self.put % OUTPUT_BYTES] = byte;
            self.put = self.put.wrapping_add(1);
        }
        if !self.sending {
            self.sending = true;
            serial::enable_interrupts(true);
        }
    }

    /// Line feeds become carriage return and line feed.
    fn put_lines(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match piece.split_last() {
                Some((b'\n', rest)) => {
                    self.put(rest);
                    self.put(b"\r\n");
                }
                _ => self.put(piece),
            }
        }
    }

    /// Whole lines, above the row that somebody is typing into.
    fn write(&mut self, bytes: &[u8]) {
        if !self.row.is_empty() {
            self.put(ERASE_ROW);
        }
        if self.lost > 0 {
            let mut word = ArrayString::<48>::new();
            let _ = write!(word, "[{} writes to the console were lost]\r\n", self.lost);
            self.lost = 0;
            self.put(word.as_bytes());
        }
        self.put_lines(bytes);
        let row = self.row.clone();
        self.put(&row);
    }

    /// The transmit FIFO is empty: fills it.
    fn send(&mut self) {
        let count = (self.put - self.taken).min(serial::FIFO_BYTES);
        for _ in 0..count {
            serial::send(self.ring[self.taken % OUTPUT_BYTES]);
            self.taken = self.taken.wrapping_add(1);
        }
        if count == 0 {
            self.sending = false;
            serial::enable_interrupts(false);
        }
    }

    /// Everything out by polling, and so from now on. What the port does not take is lost.
    fn drain(&mut self) {
        serial::disable_interrupts();
        self.by_interrupt = false;
        while self.taken != self.put && serial::write_bytes(&[self.ring[self.taken % OUTPUT_BYTES]]) == 1 {
            self.taken = self.taken.wrapping_add(1);
        }
        self.taken = self.put;
    }
}

/// Writes whole lines of the log. Any context; never waits.
pub fn write(bytes: &[u8]) {
    let mut output = OUTPUT.lock();
    if output.has_room(bytes.len()) {
        output.write(bytes);
    } else {
        output.lost += 1;
    }
}

/// Writes whole lines for the person at the console, waiting for room. Tasks only.
pub fn print(bytes: &[u8]) {
    when_there_is_room(bytes.len(), |output| output.write(bytes));
}

/// Writes bytes as they are, waiting for room. Tasks only.
pub fn print_raw(bytes: &[u8]) {
    when_there_is_room(bytes.len(), |output| output.put(bytes));
}

/// Writes bytes as they are, after which the last row is what `row` draws; empty when nobody types. A row that is too
/// long is not drawn again. Waits for room; tasks only.
pub fn print_row(bytes: &[u8], row: &[u8]) {
    when_there_is_room(bytes.len(), |output| {
        output.put(bytes);
        output.row.clear();
        // Fails, and leaves the row empty, if there is no room.
        let _ = output.row.try_extend_from_slice(row);
    });
}

fn when_there_is_room(bytes: usize, then: impl FnOnce(&mut Output)) {
    let deadline_ns = time::now_ns() + PATIENCE_NS;
    loop {
        {
            let mut output = OUTPUT.lock();
            if output.has_room(bytes) {
                return then(&mut output);
            }
            if time::now_ns() >= deadline_ns {
                output.lost += 1;
                return;
            }
            output.waited_for = true;
        }
        ROOM.wait_until(deadline_ns);
    }
}

/// Has input arrive and output leave by interrupt, on CPU 0.
pub(crate) fn start_interrupts() -> Result<(), IrqError> {
    INPUT.lock().reserve(INPUT_BYTES);
    let interrupt = irq::route_isa(serial::ISA_IRQ, "console", 0, Arc::new(on_interrupt))?;
    let _ = INTERRUPT.set(interrupt);
    OUTPUT.lock().by_interrupt = true;
    serial::enable_interrupts(false);
    // Whatever was typed before the interrupt existed raises none.
    take_input();
    Ok(())
}

fn on_interrupt() {
    for _ in 0..CAUSES_A_TURN {
        match serial::interrupt_cause() {
            None => return,
            Some(Cause::Received) => take_input(),
            Some(Cause::TransmitterEmpty) => {
                let mut output = OUTPUT.lock();
                output.send();
                let half_empty = output.put - output.taken <= OUTPUT_BYTES / 2;
                let wake = half_empty && core::mem::take(&mut output.waited_for);
                drop(output);
                if wake {
                    ROOM.signal();
                }
            }
            Some(Cause::Other) => {}
        }
    }
    serial::enable_interrupts(OUTPUT.lock().sending);
}

fn take_input() {
    let mut arrived = false;
    {
        let mut input = INPUT.lock();
        for _ in 0..INPUT_BYTES_A_TURN {
            let Some(byte) = serial::try_read() else { break };
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

/// Typed bytes that were dropped because nobody read.
pub fn dropped_bytes() -> u64 {
    DROPPED.load(Relaxed)
}

/// Sends what is left by polling, as everything from now on: before the power goes off.
pub(crate) fn take_over() {
    OUTPUT.lock().drain();
}

/// As [`take_over`], in a panic, whoever held the console.
pub(crate) fn break_open() {
    OUTPUT.break_open();
    take_over();
}
