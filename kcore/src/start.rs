//! From the boot loader's hand to the first task.

use alloc::boxed::Box;

use arch::addr::phys_to_virt;
use arch::boot::BootInfo;
use arch::traps::{FaultInfo, Hooks};

use crate::sync::{IrqSpinLock, Once};
use crate::task::{Placement, Priority};
use crate::{archive, console, cpu, frame, irq, klog, memory, panic, pci, softirq, task, time, timer};

/// Frames of the packet pool: 8 MiB, enough for a card's ring, a server's 256 requests and the
/// guests' queues with room to spare.
const POOL_FRAMES: u32 = 4096;

static BOOT: Once<&'static BootInfo> = Once::new();

type First = Box<dyn FnOnce() + Send>;
static FIRST: IrqSpinLock<Option<First>> = IrqSpinLock::new(None);

/// The kernel's command line.
pub fn command_line() -> &'static str {
    BOOT.get().map_or("", |boot| boot.command_line.as_str())
}

/// Brings up the boot CPU: memory, traps, interrupts, clock. Once, first thing in the kernel.
pub fn init(boot: &'static BootInfo) {
    arch::serial::init();
    let acpi = arch::acpi::init(boot.rsdp);
    memory::init(boot);
    let paging = arch::paging::init(boot, memory::alloc_page);
    arch::traps::set_hooks(Hooks { interrupt: irq::dispatch, fault: on_fault, nmi: panic::on_nmi });
    arch::apic::init();
    arch::ioapic::init();
    arch::power::init();
    arch::clock::init();
    arch::apic::timer_calibrate();
    time::init();
    klog::init();
    let _ = BOOT.set(boot);
    if command_line().split_whitespace().any(|word| word == "timer=tick") {
        timer::serve_sleepers_at_ticks_only();
    }
    if let Err(error) = paging {
        panic!("the kernel's page tables could not be made: {error:?}");
    }
    if let Err(error) = acpi {
        log::warn!("ACPI: {error:?}; one CPU, no power-off");
    }
    if let Some(range) = boot.archive {
        let start = phys_to_virt(range.start);
        // SAFETY: the boot loader put the archive there; the memory map handed to us leaves it
        // out, so nothing else uses it, and it is in the direct map.
        let bytes = unsafe { core::slice::from_raw_parts(start, range.bytes as usize) };
        if let Err(error) = archive::init(bytes) {
            log::error!("the boot archive is not a whole tar ({error:?}): no configuration, no guests");
        }
    }
}

fn on_fault(fault: &FaultInfo) -> ! {
    let guard = arch::paging::is_guard_page(arch::addr::VirtAddr::new(fault.cr2));
    panic::panic(
        format_args!(
            "{}{} at {:#x}, error {:#x}, cr2 {:#x}, rsp {:#x}, rflags {:#x}\n{:x?}",
            fault.name(),
            if guard { " (stack overflow: the guard page was hit)" } else { "" },
            fault.rip,
            fault.error_code,
            fault.cr2,
            fault.rsp,
            fault.rflags,
            fault.registers,
        ),
        fault.registers.rbp,
        Some(fault.rip),
    )
}

/// Starts the other CPUs and the kernel's own tasks, then `first` as a task. The caller becomes
/// the boot CPU's idle task.
pub fn run(first: impl FnOnce() + Send + 'static) -> ! {
    if let Err(error) = frame::init(POOL_FRAMES) {
        panic!("{error}");
    }
    task::adopt_idle(0);
    arch::cpu::enable_interrupts();
    arch::smp::start_others(other_cpu, memory::alloc_page);
    *FIRST.lock() = Some(Box::new(first));
    let started = (0..cpu::count())
        .try_for_each(softirq::start)
        .and_then(|()| task::start_reaper())
        .and_then(|()| task::spawn("init", Placement::Cpu(0), Priority::Normal, first_task));
    if let Err(error) = started {
        panic!("the first tasks could not be started: {error}");
    }
    task::idle_loop()
}

fn first_task() {
    if let Err(error) = console::start_interrupts() {
        log::error!("the console has no interrupt: {}", error);
    }
    pci::init();
    let first = FIRST.lock().take();
    if let Some(first) = first {
        first();
    }
}

/// Where every other CPU begins: interrupts off, on its own stack.
fn other_cpu(cpu: usize) -> ! {
    task::adopt_idle(cpu);
    arch::cpu::enable_interrupts();
    task::idle_loop()
}
