//! The panic: what happened, on every CPU, with names.
//!
//! The first CPU to panic owns the console. It stops the others by NMI, so that even one that
//! spins with interrupts off tells where it is, prints its own story, then has each tell its own. No
//! lock is waited for and nothing is allocated.

use core::fmt::{self, Write};
use core::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::{archive, console, cpu, module, task};

/// Frames shown of each stack.
const DEPTH: usize = 24;
/// How long a CPU may take to answer the stop, in ns.
const ANSWER_NS: u64 = 100_000_000;

const NOBODY: usize = usize::MAX;
/// The CPU that panicked first.
static PANICKING: AtomicUsize = AtomicUsize::new(NOBODY);
/// The CPU that is to tell its story now.
static TURN: AtomicUsize = AtomicUsize::new(NOBODY);
static UNASKED_NMIS: AtomicU64 = AtomicU64::new(0);

struct Out;

impl Write for Out {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            match piece.strip_suffix('\n') {
                Some(line) => {
                    arch::serial::write_bytes(line.as_bytes());
                    arch::serial::write_bytes(b"\r\n");
                }
                None => {
                    arch::serial::write_bytes(piece.as_bytes());
                }
            }
        }
        Ok(())
    }
}

/// Tells the story and stops every CPU, for good.
pub fn panic(story: fmt::Arguments<'_>, frame_pointer: u64, instruction: Option<u64>) -> ! {
    let _ = arch::cpu::irq_save();
    let me = cpu::index();
    if let Err(first) = PANICKING.compare_exchange(NOBODY, me, AcqRel, Acquire) {
        if first == me {
            let _ = writeln!(Out, "\nnos: a panic within the panic");
        }
        // Another CPU's panic: its NMI has this one tell its story.
        halt_for_ever();
    }
    let others = || (0..cpu::count()).filter(|&other| other != me);
    // First everybody stops, so that nothing goes on to the disks; then each tells where it was.
    others().for_each(arch::apic::send_nmi);
    console::break_open();
    let _ = writeln!(
        Out,
        "\nnos: panic on CPU {me} in task {}: {story}",
        task::current_name().unwrap_or("(none)")
    );
    show_backtrace(frame_pointer, instruction);
    for other in others() {
        TURN.store(other, Release);
        let start_ns = crate::time::now_ns();
        while TURN.load(Acquire) == other && crate::time::now_ns() - start_ns < ANSWER_NS {
            arch::cpu::pause();
        }
        if TURN.load(Acquire) == other {
            let _ = writeln!(Out, "CPU {other} does not answer");
        }
    }
    let _ = writeln!(Out, "nos: stopped by a panic");
    halt_for_ever()
}

fn halt_for_ever() -> ! {
    loop {
        arch::cpu::halt();
    }
}

/// The NMI: a stop sent by a panicking CPU, or the machine's own complaint, which is only counted:
/// whatever it interrupted may hold any lock.
pub(crate) fn on_nmi(frame_pointer: u64, instruction: u64) {
    if PANICKING.load(Acquire) == NOBODY {
        UNASKED_NMIS.fetch_add(1, Relaxed);
        return;
    }
    let me = cpu::index();
    while TURN.load(Acquire) != me {
        arch::cpu::pause();
    }
    let _ = writeln!(Out, "CPU {me}, task {}:", task::current_name().unwrap_or("(none)"));
    show_backtrace(frame_pointer, Some(instruction));
    TURN.store(NOBODY, Release);
    halt_for_ever()
}

/// NMIs that no panic sent: the machine's own.
pub fn unasked_nmis() -> u64 {
    UNASKED_NMIS.load(Relaxed)
}

fn show_backtrace(frame_pointer: u64, instruction: Option<u64>) {
    let mut depth = 0;
    let mut show = |address: u64| {
        if depth < DEPTH {
            let in_module = module::function_at(address, |module, name, offset| {
                let _ = writeln!(Out, "  {depth:2}: {address:#018x} [{module}] {name}+{offset:#x}");
            });
            match symbol(address) {
                _ if in_module => {}
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
/// name, sorted. Searched as bytes: a panic must not depend on anything having been prepared.
fn symbol(address: u64) -> Option<(&'static str, u64)> {
    let text = archive::file("symbols")?;
    let (mut low, mut high) = (0, text.len());
    let mut found = None;
    while low < high {
        let middle = low + (high - low) / 2;
        let start = text[low..middle].iter().rposition(|&byte| byte == b'\n').map_or(low, |at| low + at + 1);
        let end = text[middle..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |at| middle + at);
        let (hex, name) = core::str::from_utf8(text.get(start..end)?).ok()?.split_once(' ')?;
        let function = u64::from_str_radix(hex, 16).ok()?;
        if function <= address {
            found = Some((name, address - function));
            low = end + 1;
        } else {
            high = start;
        }
    }
    found
}
