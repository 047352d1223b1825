//! The log: a ring of the last 64 KiB, and the console.
//!
//! Everything logs through the `log` crate. A line goes into the ring whatever its level (as far
//! as debug), and to the console from info on. Any context may log.

use core::fmt::{self, Write};

use arrayvec::ArrayString;
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::sync::IrqSpinLock;
use crate::{console, time};

const RING_BYTES: usize = 64 * 1024;
/// Longer lines are cut.
const LINE_BYTES: usize = 512;

struct Ring {
    bytes: [u8; RING_BYTES],
    /// Bytes ever written; the next goes to this modulo the size.
    written: usize,
}

static RING: IrqSpinLock<Ring> = IrqSpinLock::new(Ring { bytes: [0; RING_BYTES], written: 0 });

struct Logger;

static LOGGER: Logger = Logger;

/// Starts logging.
pub(crate) fn init() {
    if log::set_logger(&LOGGER).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

/// A line that loses what does not fit instead of failing.
struct Line(ArrayString<LINE_BYTES>);

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LINE_BYTES - 1 - self.0.len();
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.push_str(&text[..end]);
        Ok(())
    }
}

impl Log for Logger {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let now_us = time::now_ns() / 1000;
        let mut line = Line(ArrayString::new());
        let mark = match record.level() {
            Level::Error => "ERROR ",
            Level::Warn => "warning: ",
            Level::Info | Level::Debug | Level::Trace => "",
        };
        let _ = write!(line, "[{:5}.{:06}] {mark}{}", now_us / 1_000_000, now_us % 1_000_000, record.args());
        line.0.push('\n');
        RING.lock().push(line.0.as_bytes());
        if record.level() <= Level::Info {
            console::write(line.0.as_bytes());
        }
    }

    fn flush(&self) {}
}

impl Ring {
    fn push(&mut self, line: &[u8]) {
        for &byte in line {
            self.bytes[self.written % RING_BYTES] = byte;
            self.written += 1;
        }
    }
}

/// Hands the log's whole lines, oldest first, to `each`.
pub fn read_all(mut each: impl FnMut(&str)) {
    let (bytes, wrapped) = {
        let ring = RING.lock();
        let length = ring.written.min(RING_BYTES);
        let start = ring.written - length;
        let mut copy = alloc::vec::Vec::new();
        if copy.try_reserve_exact(length).is_err() {
            return;
        }
        copy.extend((start..ring.written).map(|at| ring.bytes[at % RING_BYTES]));
        (copy, start > 0)
    };
    // The oldest line has lost its beginning once the ring has wrapped.
    for line in bytes.split(|&byte| byte == b'\n').skip(usize::from(wrapped)) {
        if let Ok(line) = core::str::from_utf8(line)
            && !line.is_empty()
        {
            each(line);
        }
    }
}
