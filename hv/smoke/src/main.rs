//! A kernel that runs small guests of its own under the real backend, and nothing else.
//!
//! Each check is a few instructions of guest code and what must come of them: the exits
//! in their order, what the guest's registers hold, how long it took. What passes here
//! is the world switch itself; devices and Linux are other suites' affair. It prints
//! `hv-smoke: N passed, N failed` and switches the machine off.

#![no_std]
#![no_main]
#![forbid(unsafe_code)]

extern crate alloc;

mod events;
mod exits;
mod guest;
mod isolation;

use alloc::string::String;

use arch::boot::BootInfo;
use kcore::task::{self, Placement, Priority};

/// What a check returns when the guest did something else.
type Outcome = Result<(), String>;

/// Fails the check with a text unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($what:tt)*) => {
        if !$condition {
            return Err(alloc::format!($($what)*));
        }
    };
}

const CHECKS: [(&str, fn() -> Outcome); 18] = [
    ("port accesses say all that their answer needs", exits::port_accesses),
    ("string port accesses name their segment", exits::string_port_accesses),
    ("prefixes count in an instruction's length", exits::lengths_with_prefixes),
    ("model-specific registers: some pass, the rest exits", exits::model_specific_registers),
    ("memory that is not there exits with its address", exits::device_memory),
    ("instructions that are not offered are refused", exits::refused_instructions),
    ("a triple fault ends the guest", exits::triple_fault),
    ("an impossible state is refused", exits::impossible_state),
    ("an interrupt waits for the window", events::interrupt_window),
    ("an interrupt under STI's shadow waits", events::interrupt_shadow),
    ("an NMI masks NMIs until its IRET", events::nmi_masking),
    ("an exception arrives with its error code", events::exception_with_error),
    ("a single step's trap is put back", events::single_step),
    ("a deadline takes a busy guest out", events::deadline),
    ("a doorbell takes a busy guest out", events::doorbell),
    ("an event survives an entry that was refused", events::refused_entry_keeps_the_event),
    ("two guests on one CPU keep their vector state", isolation::vector_state),
    ("guests leave no memory behind and find none", isolation::memory),
];

arch::entry!(main);

fn main(boot: &'static BootInfo) -> ! {
    kcore::init(boot);
    kcore::run(first_task)
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    kcore::panic::panic(format_args!("{info}"), arch::backtrace::frame_pointer() as u64, None)
}

fn first_task() {
    match hvarch::init() {
        Ok(backend) => log::info!("hv-smoke: {backend}, guests on CPUs {:?}", hvarch::guest_cpus()),
        Err(why) => {
            log::error!("hv-smoke: {why}");
            kcore::power::off();
        }
    }
    // Where guests may run: a virtual CPU is bound to the CPU of its task.
    let place = Placement::Cpu(hvarch::guest_cpus().start);
    match task::spawn("checks", place, Priority::Normal, run_checks) {
        Ok(task) => task.join(),
        Err(error) => log::error!("hv-smoke: no task: {error}"),
    }
    kcore::power::off()
}

fn run_checks() {
    let mut failed = 0;
    for (name, check) in CHECKS {
        match check() {
            Ok(()) => log::info!("hv-smoke: ok: {name}"),
            Err(why) => {
                failed += 1;
                log::error!("hv-smoke: FAILED: {name}: {why}");
            }
        }
    }
    log::info!("hv-smoke: {} passed, {failed} failed", CHECKS.len() - failed);
}
