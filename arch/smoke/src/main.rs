//! A kernel that checks `arch` on the machine it runs on, and nothing else.
//!
//! The command line names what to do: `check` (also when there is none) runs every check that
//! ends well, prints `smoke: N passed, N failed` and switches the machine off; the names in
//! [`fatal`] do something that must end in a fault report. `run` beside this crate boots it in
//! every way and reads the output.
#![no_std]
#![no_main]

mod checks;
mod fatal;
mod memory;

use arch::boot::BootInfo;
use arch::traps::{FaultInfo, Hooks};
use arch::{acpi, apic, backtrace, clock, cpu, ioapic, paging, power, serial, smp, traps};

/// Prints a line on the serial port.
#[macro_export]
macro_rules! say {
    ($($what:tt)*) => {{
        use core::fmt::Write as _;
        let _ = writeln!(arch::serial::Writer, $($what)*);
    }};
}

arch::entry!(main);

fn main(boot: &'static BootInfo) -> ! {
    say!("smoke: booted by {:?}, command line {:?}", boot.protocol, boot.command_line.as_str());
    for region in &boot.memory {
        say!("  {:#014x}-{:#014x} {:?}", region.start.as_u64(), region.end().as_u64(), region.kind);
    }
    let acpi = acpi::init(boot.rsdp);
    memory::init(boot);
    let paging = paging::init(boot, memory::alloc);
    traps::set_hooks(Hooks { interrupt: checks::on_interrupt, fault: on_fault, nmi: checks::on_nmi });
    apic::init();
    ioapic::init();
    power::init();
    clock::init();
    apic::timer_calibrate();
    say!("smoke: ACPI {acpi:?}, paging {paging:?}, {:?}", cpu::features());
    say!("smoke: TSC {} Hz, APIC timer {} Hz", clock::tsc_hz(), apic::timer_hz());
    cpu::enable_interrupts();
    let started_ns = clock::now_ns();
    smp::start_others(checks::other_cpu, memory::alloc);
    say!(
        "smoke: {} CPUs, the others in {} us; {} us since boot",
        cpu::count(),
        (clock::now_ns() - started_ns) / 1000,
        clock::now_ns() / 1000
    );

    let words = boot.command_line.split_ascii_whitespace();
    for word in words {
        fatal::run(word);
    }
    let (passed, failed) = checks::run(boot);
    say!("smoke: {passed} passed, {failed} failed");
    power::power_off()
}

fn on_fault(fault: &FaultInfo) -> ! {
    say!("smoke: fault: {fault}");
    backtrace::walk(fault.registers.rbp as usize, |address| say!("  from {address:#x}"));
    say!("smoke: end of fault");
    power::power_off()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    say!("smoke: {info}");
    serial::write_bytes(b"smoke: end of panic\r\n");
    power::power_off()
}
