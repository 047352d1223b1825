//! The two configuration mechanisms of a PC: memory and ports.
//!
//! The enhanced mechanism (PCIe 4.0 sec 7.2.2) is one register window per bus and needs no lock;
//! ACPI's MCFG table says where. Without it, or for buses it leaves out, there are the two ports
//! of mechanism #1 (PCI 3.0 sec 3.2.2.3.2), which reach the first 256 bytes only. Windows are
//! mapped when a bus is first asked for: all 256 would be 256 MiB of page tables' worth for the
//! handful of buses that exist.

use core::ops::RangeInclusive;

use arch::acpi::EcamRegion;
use arch::addr::PhysAddr;
use pci_config::{Address, ConfigSpace, register};

use crate::mmio::Mmio;
use crate::sync::{IrqSpinLock, Once};

const BUS_BYTES: u64 = 1 << 20;
const BUSES: usize = 256;

/// How this machine's functions are configured.
pub struct Access {
    memory: Option<EcamRegion>,
    /// One window per bus; `Err` where it could not be mapped, and the ports serve instead.
    windows: [Once<Result<Mmio, ()>>; BUSES],
}

impl Access {
    /// Other segments than 0 are left out: no machine in reach has any, and ports cannot name them.
    pub fn new(regions: &[EcamRegion]) -> Access {
        let memory = regions.iter().find(|region| {
            // The address of bus 0, whether the region includes it or not (PCI Firmware 3.2 sec 4.1.2).
            region.segment == 0
                && region.first_bus <= region.last_bus
                && region.base.as_u64() != 0
                && region.base.as_u64().checked_add(BUSES as u64 * BUS_BYTES).is_some()
        });
        Access { memory: memory.cloned(), windows: [const { Once::new() }; BUSES] }
    }

    pub fn name(&self) -> &'static str {
        if self.memory.is_some() { "memory (ECAM)" } else { "ports" }
    }

    pub fn buses(&self) -> RangeInclusive<u8> {
        0..=self.memory.as_ref().map_or(u8::MAX, |region| region.last_bus)
    }

    fn window(&self, bus: u8) -> Option<&Mmio> {
        let region =
            self.memory.as_ref().filter(|region| bus >= region.first_bus && bus <= region.last_bus)?;
        let window = &self.windows[usize::from(bus)];
        if window.get().is_none() {
            let start = PhysAddr::new(region.base.as_u64() + u64::from(bus) * BUS_BYTES);
            let mapped = Mmio::map(start, BUS_BYTES as usize).map_err(|error| {
                log::warn!("pci: bus {bus:#04x} is configured by ports: {error}");
            });
            // Another CPU may have been faster; its window is as good.
            let _ = window.set(mapped);
        }
        window.get()?.as_ref().ok()
    }
}

/// The offset of a register in its bus's window, or `None` outside the function's 4 KiB.
fn offset_in_bus(address: Address, offset: u16) -> Option<usize> {
    let device_function = usize::from(address.routing_id() & 0xff);
    (offset < register::SPACE_BYTES).then_some(device_function << 12 | usize::from(offset))
}

macro_rules! access {
    ($read:ident, $write:ident, $type:ty) => {
        fn $read(&self, address: Address, offset: u16) -> $type {
            match (self.window(address.bus()), offset_in_bus(address, offset)) {
                (Some(window), Some(offset)) => window.$read(offset),
                _ => Ports.$read(address, offset),
            }
        }

        fn $write(&self, address: Address, offset: u16, value: $type) {
            match (self.window(address.bus()), offset_in_bus(address, offset)) {
                (Some(window), Some(offset)) => window.$write(offset, value),
                _ => Ports.$write(address, offset, value),
            }
        }
    };
}

impl ConfigSpace for Access {
    access!(read8, write8, u8);
    access!(read16, write16, u16);
    access!(read32, write32, u32);
}

/// Mechanism #1: an address port and a data port.
pub struct Ports;

const ADDRESS_PORT: u16 = 0xcf8;
const DATA_PORT: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;

/// The two ports are one register pair for the whole machine.
static PORTS: IrqSpinLock<()> = IrqSpinLock::new(());

/// Selects the dword of a register and gives the port of its first byte; `None` beyond what the
/// mechanism reaches, or where the access would cross into the next dword.
fn select(address: Address, offset: u16, bytes: u16) -> Option<u16> {
    if offset >= register::EXTENDED || !offset.is_multiple_of(bytes) {
        return None;
    }
    let selector = ENABLE | u32::from(address.routing_id()) << 8 | u32::from(offset & !3);
    // SAFETY: the address port belongs to this module, and selecting a register changes nothing.
    unsafe { arch::port::write32(ADDRESS_PORT, selector) };
    Some(DATA_PORT + (offset & 3))
}

macro_rules! port_access {
    ($read:ident, $write:ident, $type:ty) => {
        fn $read(&self, address: Address, offset: u16) -> $type {
            let _pair = PORTS.lock();
            let port = select(address, offset, size_of::<$type>() as u16);
            // SAFETY: the pair is held, so the data port is the register just selected; reading a
            // configuration register breaks nobody's memory.
            port.map_or(<$type>::MAX, |port| unsafe { arch::port::$read(port) })
        }

        fn $write(&self, address: Address, offset: u16, value: $type) {
            let _pair = PORTS.lock();
            if let Some(port) = select(address, offset, size_of::<$type>() as u16) {
                // SAFETY: the pair is held, so the data port is the register just selected. The
                // header, which places windows and turns bus mastering on, is written by
                // enumeration and by `PciDevice`'s own methods only.
                unsafe { arch::port::$write(port, value) };
            }
        }
    };
}

impl ConfigSpace for Ports {
    port_access!(read8, write8, u8);
    port_access!(read16, write16, u16);
    port_access!(read32, write32, u32);
}
