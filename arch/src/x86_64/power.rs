//! Switching off and starting over.
//!
//! Both try the ways there are, the proper one first, because a machine that was told to stop and
//! did not is worse than an inelegant reset. They may be called from anywhere, a panic too: no
//! lock is taken except, on the rare machine whose registers are in memory, that of the page
//! tables, which [`init`] takes beforehand.

use super::acpi::{self, Register};
use super::addr::VirtAddr;
use super::sync::Once;
use super::{clock, cpu, paging, port, serial};
use core::arch::asm;
use x86_64::structures::DescriptorTablePointer;

const SLEEP_ENABLE: u32 = 1 << 13;
const SLEEP_TYPE_SHIFT: u32 = 10;
const SCI_ENABLE: u32 = 1;
/// The sleep control register of hardware-reduced machines has its fields elsewhere.
const REDUCED_SLEEP_ENABLE: u8 = 1 << 5;
const REDUCED_SLEEP_TYPE_SHIFT: u8 = 2;

/// How long a write that should end everything is given.
const PATIENCE_NS: u64 = 100_000_000;

/// A register that can be reached without a lock.
#[derive(Clone, Copy)]
enum Reachable {
    Port(u16),
    Window(VirtAddr),
}

impl Reachable {
    fn new(register: Option<Register>) -> Option<Self> {
        match register? {
            Register::Io(number) => Some(Self::Port(number)),
            Register::Memory(address) => paging::map_mmio(address, 4).ok().map(Self::Window),
        }
    }

    fn read16(self) -> u16 {
        match self {
            // SAFETY: an ACPI power register; reading it has no effect.
            Self::Port(number) => unsafe { port::read16(number) },
            // SAFETY: as above; the window covers the register.
            Self::Window(at) => unsafe { at.as_ptr::<u16>().read_volatile() },
        }
    }

    fn write16(self, value: u16) {
        match self {
            // SAFETY: an ACPI power register, written to end everything, which is what is wanted.
            Self::Port(number) => unsafe { port::write16(number, value) },
            // SAFETY: as above; the window covers the register.
            Self::Window(at) => unsafe { at.as_mut_ptr::<u16>().write_volatile(value) },
        }
    }

    fn write8(self, value: u8) {
        match self {
            // SAFETY: as in `write16`.
            Self::Port(number) => unsafe { port::write8(number, value) },
            // SAFETY: as in `write16`.
            Self::Window(at) => unsafe { at.as_mut_ptr::<u8>().write_volatile(value) },
        }
    }
}

#[derive(Clone, Copy)]
struct Registers {
    pm1a: Option<Reachable>,
    pm1b: Option<Reachable>,
    sleep: Option<Reachable>,
    reset: Option<(Reachable, u8)>,
}

static REGISTERS: Once<Registers> = Once::new();

/// Makes the registers reachable, so that nothing has to be mapped when the end has come. Once,
/// after [`acpi::init`] and [`paging::init`]; done by [`power_off`] or [`reboot`] if it was not.
pub fn init() {
    registers();
}

fn registers() -> Registers {
    if let Some(registers) = REGISTERS.get() {
        return *registers;
    }
    let power = &acpi::info().power;
    let reset = power.reset.and_then(|reset| Some((Reachable::new(Some(reset.register))?, reset.value)));
    let registers = Registers {
        pm1a: Reachable::new(power.pm1a_control),
        pm1b: Reachable::new(power.pm1b_control),
        sleep: Reachable::new(power.sleep_control),
        reset,
    };
    // A second caller at the same time found the same.
    let _ = REGISTERS.set(registers);
    registers
}

/// Waits for what was written to take effect.
fn wait() {
    let start_ns = clock::now_ns();
    // Without a clock, some hundred milliseconds of turns.
    for _ in 0..100_000_000u32 {
        if clock::now_ns() - start_ns > PATIENCE_NS {
            break;
        }
        cpu::pause();
    }
}

/// Switches the machine off (ACPI 6.5 section 7.4.2: S5). Should that fail, stops this CPU.
pub fn power_off() -> ! {
    cpu::disable_interrupts();
    let power = &acpi::info().power;
    let registers = registers();
    if let Some(sleep_type) = power.soft_off {
        if let Some(sleep) = registers.sleep {
            sleep.write8(sleep_type.a << REDUCED_SLEEP_TYPE_SHIFT | REDUCED_SLEEP_ENABLE);
            wait();
        }
        if let Some(pm1a) = registers.pm1a {
            take_over_power_management(pm1a);
            enter_sleep(pm1a, sleep_type.a);
            if let Some(pm1b) = registers.pm1b {
                enter_sleep(pm1b, sleep_type.b);
            }
            wait();
        }
    }
    serial::write_bytes(b"nos: the machine does not switch off by ACPI; stopped instead\r\n");
    cpu::halt_forever()
}

/// Until the firmware has handed power management over, writes to PM1 do nothing (section 4.8.2.5).
fn take_over_power_management(pm1a: Reachable) {
    let enabled = || u32::from(pm1a.read16()) & SCI_ENABLE != 0;
    let Some((command, value)) = acpi::info().power.acpi_enable else { return };
    if enabled() {
        return;
    }
    // SAFETY: the port and the value are those that the FADT states for this.
    unsafe { port::write8(command, value) };
    let start_ns = clock::now_ns();
    for _ in 0..10_000_000u32 {
        if enabled() || clock::now_ns() - start_ns > PATIENCE_NS {
            break;
        }
        cpu::pause();
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the register has 16 bits")]
fn enter_sleep(control: Reachable, sleep_type: u8) {
    let kept = u32::from(control.read16()) & !(0b111 << SLEEP_TYPE_SHIFT | SLEEP_ENABLE);
    let value = kept | u32::from(sleep_type) << SLEEP_TYPE_SHIFT;
    control.write16((value | SLEEP_ENABLE) as u16);
}

/// Resets the machine: by the FADT's reset register, by the chipset's, by the keyboard
/// controller, and at last by a triple fault, which no machine survives.
pub fn reboot() -> ! {
    cpu::disable_interrupts();
    if let Some((register, value)) = registers().reset {
        register.write8(value);
        wait();
    }
    // Intel chipsets' reset control: full reset, then the edge that starts it. Then the
    // keyboard controller's "pulse the reset line".
    for (number, value) in [(0xcf9, 0x02), (0xcf9, 0x06), (0x64, 0xfe)] {
        // SAFETY: resets the machine, which is what is wanted.
        unsafe { port::write8(number, value) };
        wait();
    }
    let nothing = DescriptorTablePointer { limit: 0, base: x86_64::VirtAddr::zero() };
    // SAFETY: without an IDT the next exception cannot be delivered, nor the double fault that
    // follows, and the processor shuts down, which resets the machine.
    unsafe {
        x86_64::instructions::tables::lidt(&nothing);
        asm!("ud2", options(noreturn));
    }
}
