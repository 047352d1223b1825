//! A guest's console: what it wrote, and what people type to it.
//!
//! The guest never waits for a reader. Its output goes into a ring of the last 64 KiB;
//! a reader that comes late gets that much of the past, and one that is too slow is told
//! how much it missed. Input waits in a bounded queue until the guest's UART takes it.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use kcore::event::Event;
use kcore::sync::SpinLock;

/// How much of the past is kept.
pub const SCROLLBACK_BYTES: usize = 64 << 10;
/// Typed bytes that may wait; the rest is refused, as a terminal's would be.
const INPUT_BYTES: usize = 4096;

struct Output {
    ring: Box<[u8]>,
    /// Bytes written since the guest was described; the ring holds the last of them.
    written: u64,
}

/// See the module. One for each guest; it outlives the guest's runs.
pub struct Console {
    output: SpinLock<Output>,
    input: SpinLock<VecDeque<u8>>,
    news: Event,
}

/// What [`Console::read`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes copied.
    pub count: usize,
    /// Bytes that were overwritten before they were read.
    pub missed: u64,
}

/// A reader's place in the output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cursor(u64);

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

impl Console {
    pub fn new() -> Console {
        Console {
            output: SpinLock::new(Output { ring: vec![0; SCROLLBACK_BYTES].into_boxed_slice(), written: 0 }),
            input: SpinLock::new(VecDeque::with_capacity(INPUT_BYTES)),
            news: Event::new(),
        }
    }

    /// Takes what the guest wrote.
    pub fn write(&self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        {
            let mut output = self.output.lock();
            for &byte in bytes {
                let place = (output.written % SCROLLBACK_BYTES as u64) as usize;
                output.ring[place] = byte;
                output.written += 1;
            }
        }
        self.news.signal();
    }

    /// A cursor at the oldest byte that is kept.
    pub fn oldest(&self) -> Cursor {
        Cursor(self.output.lock().written.saturating_sub(SCROLLBACK_BYTES as u64))
    }

    /// A cursor behind the newest byte.
    pub fn newest(&self) -> Cursor {
        Cursor(self.output.lock().written)
    }

    /// Copies what follows `cursor`, and moves it.
    pub fn read(&self, cursor: &mut Cursor, into: &mut [u8]) -> Piece {
        let output = self.output.lock();
        let oldest = output.written.saturating_sub(SCROLLBACK_BYTES as u64);
        let missed = oldest.saturating_sub(cursor.0);
        cursor.0 = cursor.0.max(oldest);
        let count = (output.written.saturating_sub(cursor.0)).min(into.len() as u64) as usize;
        for byte in &mut into[..count] {
            *byte = output.ring[(cursor.0 % SCROLLBACK_BYTES as u64) as usize];
            cursor.0 += 1;
        }
        Piece { count, missed }
    }

    /// Waits for output, until `deadline_ns` at the latest. One waiter at a time: the
    /// shell. False if the time passed.
    pub fn wait(&self, deadline_ns: u64) -> bool {
        self.news.wait_until(deadline_ns)
    }

    /// Ends a [`Console::wait`] without output: the viewer is to leave.
    pub fn end_wait(&self) {
        self.news.signal();
    }

    /// Queues typed bytes. How many were taken.
    pub fn type_bytes(&self, bytes: &[u8]) -> usize {
        let mut input = self.input.lock();
        let count = bytes.len().min(INPUT_BYTES - input.len());
        input.extend(&bytes[..count]);
        count
    }

    /// Takes up to `into.len()` typed bytes.
    pub fn take_input(&self, into: &mut [u8]) -> usize {
        let mut input = self.input.lock();
        let count = into.len().min(input.len());
        for (place, byte) in into.iter_mut().zip(input.drain(..count)) {
            *place = byte;
        }
        count
    }

    /// Whether typed bytes wait.
    pub fn has_input(&self) -> bool {
        !self.input.lock().is_empty()
    }

    /// Forgets what was typed for a guest that is gone.
    pub fn clear_input(&self) {
        self.input.lock().clear();
    }
}
