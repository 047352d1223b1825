//! The panic: what happened, on every CPU, with names.
//!
//! The first CPU to panic owns the console. It prints its own story, then stops the others one
//! after the other by NMI, so that even one that spins with interrupts off tells where it is. No
//! lock is waited for and nothing is allocated.

use core::fmt::{self, Write};
use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{AcqRel, Acquire, Release},
};

use crate::{archive, console, cpu, task};

/// Frames shown of each stack.
const DEPTH: usize = 24;
/// How long a CPU may take to answer the stop, in ns.
const ANSWER_NS: u64 = 100_000_000;

static PANICKING: AtomicBool = AtomicBool::new(false);
/// The CPU that is to tell its story now.
static TURN: AtomicUsize = AtomicUsize::new(usize::MAX);

struct Out;

impl Write for Out {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            match piece.strip_suffix('\n') {
                Some(line) => {
                    arch::serial::write_bytes(line.as_bytes());
                    arch::serial::write_bytes(b"\r\n");
                }
                None => arch::serial::write_bytes(piece.as_bytes()),
            }
        }
        Ok(())
    }
}

/// Tells the story and stops every CPU, for good.
pub fn panic(story: fmt::Arguments<'_>, frame_pointer: u64, instruction: Option<u64>) -> ! {
    let _ = arch::cpu::irq_save();
    if PANICKING.swap(true, AcqRel) {
        // A second CPU, or a panic within the panic.
        loop {
            arch::cpu::halt();
        }
    }
    console::break_open();
    let me = cpu::index();
    let _ = writeln!(
        Out,
        "\nnos: panic on CPU {me} in task {}: {story}",
        task::current_name().unwrap_or("(none)")
    );
    show_backtrace(frame_pointer, instruction);
    for other in (0..cpu::count()).filter(|&other| other != me) {
        TURN.store(other, Release);
        arch::apic::send_nmi(other);
        let start_ns = crate::time::now_ns();
        while TURN.load(Acquire) == other && crate::time::now_ns() - start_ns < ANSWER_NS {
            arch::cpu::pause();
        }
        if TURN.load(Acquire) == other {
            let _ = writeln!(Out, "CPU {other} does not answer");
        }
    }
    let _ = writeln!(Out, "nos: stopped by a panic");
    loop {
        arch::cpu::halt();
    }
}

/// The NMI: a stop sent by a panicking CPU, or the machine's own complaint.
pub(crate) fn on_nmi(frame_pointer: u64, instruction: u64) {
    if !PANICKING.load(Acquire) {
        log::warn!("an NMI that nobody asked for, on CPU {}", cpu::index());
        return;
    }
    let me = cpu::index();
    if TURN.load(Acquire) == me {
        let _ = writeln!(Out, "CPU {me}, task {}:", task::current_name().unwrap_or("(none)"));
        show_backtrace(frame_pointer, Some(instruction));
        TURN.store(usize::MAX, Release);
    }
    loop {
        arch::cpu::halt();
    }
}

fn show_backtrace(frame_pointer: u64, instruction: Option<u64>) {
    let mut depth = 0;
    let mut show = |address: u64| {
        if depth < DEPTH {
            match symbol(address) {
                Some((name, offset)) => {
                    let _ = writeln!(Out, "  {depth:2}: {address:#018x} {name}+{offset:#x}");
                }
                None => {
                    let _ = writeln!(Out, "  {depth:2}: {address:#018x}");
                }
            }
        }
        depth += 1;
    };
    if let Some(instruction) = instruction {
        show(instruction);
    }
    // A return address names the instruction after the call, which may be the next function's.
    arch::backtrace::walk(frame_pointer as usize, |address| show(address as u64 - 1));
}

/// The function at `address` by the archive's symbol file: lines of a hexadecimal address and a
/// name, sorted. Searched as text: a panic must not depend on anything having been prepared.
fn symbol(address: u64) -> Option<(&'static str, u64)> {
    let text = core::str::from_utf8(archive::file("symbols")?).ok()?;
    let (mut low, mut high) = (0, text.len());
    let mut found = None;
    while low < high {
        let middle = text[..low + (high - low) / 2].rfind('\n').map_or(0, |at| at + 1).max(low);
        let end = text[middle..].find('\n').map_or(text.len(), |at| middle + at);
        let (hex, name) = text[middle..end].split_once(' ')?;
        let start = u64::from_str_radix(hex, 16).ok()?;
        if start <= address {
            found = Some((name, address - start));
            low = end + 1;
        } else {
            high = middle;
        }
    }
    found
}
