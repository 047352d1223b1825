//! The I/O APICs, which bring line interrupts to the local ones.
//!
//! Inputs of all controllers share one numbering, the global system interrupts. A legacy (ISA)
//! interrupt arrives at the input of its own number unless the MADT says otherwise. Registers:
//! Intel 82093AA data sheet section 3.

use super::acpi::{self, Polarity, Trigger};
use super::addr::VirtAddr;
use super::sync::{IrqLock, Once};
use super::traps::{VECTOR_DEVICE_FIRST, VECTOR_DEVICE_LAST, VECTOR_LEGACY_FIRST};
use super::{cpu, paging, port};
use arrayvec::ArrayVec;

const SELECT: usize = 0x00;
const WINDOW: usize = 0x10;
const REGISTER_VERSION: u32 = 1;
const REGISTER_REDIRECTION: u32 = 0x10;

const ACTIVE_LOW: u32 = 1 << 13;
const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;

/// Why an interrupt cannot be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteError {
    /// No controller has this input.
    NoSuchInput,
    /// Not a vector for devices.
    BadVector,
    /// The CPU does not run.
    NoSuchCpu,
}

/// One controller. Its two registers are an index and a window, so it needs a lock.
struct Controller {
    registers: VirtAddr,
    gsi_base: u32,
    inputs: u32,
}

impl Controller {
    fn read(&self, register: u32) -> u32 {
        // SAFETY: the window covers the controller's two registers, and the lock around all
        // controllers keeps index and data together.
        unsafe {
            (self.registers + SELECT).as_mut_ptr::<u32>().write_volatile(register);
            (self.registers + WINDOW).as_ptr::<u32>().read_volatile()
        }
    }

    fn write(&self, register: u32, value: u32) {
        // SAFETY: as in `read`.
        unsafe {
            (self.registers + SELECT).as_mut_ptr::<u32>().write_volatile(register);
            (self.registers + WINDOW).as_mut_ptr::<u32>().write_volatile(value);
        }
    }
}

type Controllers = ArrayVec<Controller, { firmware::acpi::MAX_IO_APICS }>;
static CONTROLLERS: Once<IrqLock<Controllers>> = Once::new();

/// Silences the legacy controllers, maps the I/O APICs that the MADT lists, and masks every input.
/// Once, after [`paging::init`].
pub fn init() {
    silence_legacy_controllers();
    let mut controllers = Controllers::new();
    for io_apic in &acpi::info().io_apics {
        let registers = match paging::map_mmio(io_apic.address, 0x20) {
            Ok(registers) => registers,
            Err(error) => {
                log::warn!("I/O APIC {} at {} left out: {error:?}", io_apic.id, io_apic.address);
                continue;
            }
        };
        let mut controller = Controller { registers, gsi_base: io_apic.gsi_base, inputs: 0 };
        controller.inputs = ((controller.read(REGISTER_VERSION) >> 16) & 0xff) + 1;
        for input in 0..controller.inputs {
            controller.write(REGISTER_REDIRECTION + 2 * input, MASKED);
        }
        controllers.push(controller);
    }
    // The first set stays.
    let _ = CONTROLLERS.set(IrqLock::new(controllers));
}

/// Initializes the two 8259s so that their vectors are ours to ignore, then masks them (Intel
/// 8259A data sheet: ICW1 to ICW4, OCW1).
fn silence_legacy_controllers() {
    if !acpi::info().has_legacy_pics {
        return;
    }
    let pair = [(0x20, VECTOR_LEGACY_FIRST, 0b100), (0xa0, VECTOR_LEGACY_FIRST + 8, 2)];
    for (command, vector, cascade) in pair {
        for (offset, value) in [(0, 0x11), (1, vector), (1, cascade), (1, 0x01), (1, 0xff)] {
            // SAFETY: the ports are the legacy controllers', which nothing else drives.
            unsafe { port::write8(command + offset, value) };
        }
    }
}

/// Runs `action` on the controller of `gsi`, with the number of the input there.
fn with_input<T>(gsi: u32, action: impl FnOnce(&Controller, u32) -> T) -> Result<T, RouteError> {
    let controllers = CONTROLLERS.get().ok_or(RouteError::NoSuchInput)?.lock();
    controllers
        .iter()
        .find_map(|controller| {
            let input = gsi.checked_sub(controller.gsi_base)?;
            (input < controller.inputs).then_some((controller, input))
        })
        .map(|(controller, input)| action(controller, input))
        .ok_or(RouteError::NoSuchInput)
}

/// Routes the legacy interrupt `irq`, wired as the MADT says, to `vector` on `cpu`. It is live when
/// this returns. Gives its global system interrupt, for [`mask`] and [`unmask`].
pub fn route_isa(irq: u8, vector: u8, cpu: usize) -> Result<u32, RouteError> {
    let stated = acpi::info().overrides.iter().find(|entry| entry.irq == irq);
    let (gsi, polarity, trigger) = match stated {
        Some(entry) => (entry.gsi, entry.polarity, entry.trigger),
        None => (irq.into(), Polarity::ActiveHigh, Trigger::Edge),
    };
    let (level, active_low) = (trigger == Trigger::Level, polarity == Polarity::ActiveLow);
    route_gsi(gsi, vector, cpu, level, active_low)?;
    Ok(gsi)
}

/// Routes a global system interrupt to `vector` on `cpu`. It is live when this returns.
pub fn route_gsi(gsi: u32, vector: u8, cpu: usize, level: bool, active_low: bool) -> Result<(), RouteError> {
    if !(VECTOR_DEVICE_FIRST..=VECTOR_DEVICE_LAST).contains(&vector) {
        return Err(RouteError::BadVector);
    }
    if !cpu::is_online(cpu) {
        return Err(RouteError::NoSuchCpu);
    }
    let mut low = u32::from(vector);
    low |= if level { LEVEL } else { 0 };
    low |= if active_low { ACTIVE_LOW } else { 0 };
    with_input(gsi, |controller, input| {
        let register = REGISTER_REDIRECTION + 2 * input;
        // Masked while the two halves do not belong together.
        controller.write(register, MASKED);
        controller.write(register + 1, cpu::apic_id(cpu) << 24);
        controller.write(register, low);
    })
}

/// Holds an input back.
pub fn mask(gsi: u32) -> Result<(), RouteError> {
    change(gsi, |low| low | MASKED)
}

/// Lets a routed input through again.
pub fn unmask(gsi: u32) -> Result<(), RouteError> {
    change(gsi, |low| low & !MASKED)
}

fn change(gsi: u32, new: impl FnOnce(u32) -> u32) -> Result<(), RouteError> {
    with_input(gsi, |controller, input| {
        let register = REGISTER_REDIRECTION + 2 * input;
        controller.write(register, new(controller.read(register)));
    })
}
