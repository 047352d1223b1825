//! PCI: which functions there are, and how a driver gets at one.
//!
//! Functions are enumerated and their windows sized once, before any driver runs ([`init`]). What
//! the answers mean is decided in the pure crate `pci-config`; this module has the two real
//! configuration mechanisms and hands out what follows: register windows, bus mastering, MSI-X.
//!
//! A driver reads any configuration register but writes only behind the common header. The header
//! decides where the function answers, and that is set by the firmware and by the methods here.

mod access;
mod msix;

use alloc::vec::Vec;
use core::fmt;

use arch::addr::PhysAddr;
pub use pci_config::{Address, Capability, HeaderKind, MsixError, id as capability_id};
use pci_config::{
    BARS, BarKind, Capabilities, ConfigSpace, Header, MsixCapability, Scan, command, read_bars, register,
};

use crate::mmio::{MapError, Mmio};
use crate::sync::Once;
use access::{Access, Ports};
pub use msix::Msix;

/// One window of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    /// Where it begins: a physical address, or a port number if `is_io`.
    pub phys: PhysAddr,
    /// Its length.
    pub bytes: u64,
    /// Whether it lies in the port space.
    pub is_io: bool,
}

/// One function, as enumeration found it.
#[derive(Debug)]
pub struct PciDevice {
    /// Where it sits.
    pub address: Address,
    /// Who made it.
    pub vendor: u16,
    /// What the maker calls it.
    pub device: u16,
    /// What kind of thing it is: base class, subclass and register interface.
    pub class: u8,
    /// See `class`.
    pub subclass: u8,
    /// See `class`.
    pub prog_if: u8,
    /// The maker's revision.
    pub revision: u8,
    /// Who built it in; 0 for bridges.
    pub subsystem_vendor: u16,
    /// What that vendor calls it; 0 for bridges.
    pub subsystem: u16,
    /// The layout of its header.
    pub kind: HeaderKind,
    header: Header,
    bars: [Option<pci_config::Bar>; BARS],
}

/// Why a function cannot be driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PciError {
    /// It has no such window, or one that contradicts itself.
    NoSuchBar(u8),
    /// The window lies in the port space.
    NotMemory(u8),
    /// The firmware gave the window no address.
    Unassigned(u8),
    /// The window could not be mapped.
    Map(MapError),
    /// It has no usable MSI-X table.
    Msix(MsixError),
}

impl fmt::Display for PciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PciError::NoSuchBar(bar) => write!(f, "the device has no window {bar}"),
            PciError::NotMemory(bar) => write!(f, "the device's window {bar} is not in memory"),
            PciError::Unassigned(bar) => write!(f, "the firmware gave the device's window {bar} no address"),
            PciError::Map(error) => error.fmt(f),
            PciError::Msix(error) => error.fmt(f),
        }
    }
}

static ACCESS: Once<Access> = Once::new();
static DEVICES: Once<Vec<PciDevice>> = Once::new();

/// Finds every function. Once, at boot, when registers can be mapped and nobody drives a device.
pub fn init() {
    let access = Access::new(&arch::acpi::info().ecam);
    let (mechanism, buses) = (access.name(), access.buses());
    if ACCESS.set(access).is_err() {
        return;
    }
    let space = space();
    let mut devices = Vec::new();
    let mut scan = Scan::new(buses);
    let mut keep = |address, header| devices.push(PciDevice::read(space, address, header));
    scan.walk(space, 0, &mut keep);
    // Further root buses of a server. The ports tell whether anything answers there without
    // mapping a bus that is empty.
    let others: Vec<u8> = scan.unvisited().collect();
    for bus in others {
        if Scan::answers(&Ports, bus) {
            scan.walk(space, bus, &mut keep);
        }
    }
    devices.sort_by_key(|device: &PciDevice| device.address);
    log::info!("pci: {} functions, configured by {mechanism}", devices.len());
    let _ = DEVICES.set(devices);
}

/// Every function, by address; none before [`init`].
pub fn devices() -> &'static [PciDevice] {
    DEVICES.get().map_or(&[], Vec::as_slice)
}

fn space() -> &'static Access {
    // A `PciDevice` exists only once `init` has set the mechanism.
    ACCESS.get().expect("pci::init() was called")
}

macro_rules! config_accessors {
    ($read:ident, $write:ident, $type:ty) => {
        /// Reads a configuration register; all ones where there is none, or no device any more.
        pub fn $read(&self, offset: u16) -> $type {
            space().$read(self.address, offset)
        }

        /// Writes a configuration register behind the common header.
        pub fn $write(&self, offset: u16, value: $type) {
            assert!(offset >= register::DEVICE_SPECIFIC, "a driver wrote the PCI header at {offset:#x}");
            space().$write(self.address, offset, value);
        }
    };
}

impl PciDevice {
    fn read(space: &Access, address: Address, header: Header) -> PciDevice {
        PciDevice {
            address,
            vendor: header.vendor,
            device: header.device,
            class: header.class,
            subclass: header.subclass,
            prog_if: header.prog_if,
            revision: header.revision,
            subsystem_vendor: header.subsystem_vendor,
            subsystem: header.subsystem,
            kind: header.kind,
            header,
            bars: read_bars(space, address, &header),
        }
    }

    config_accessors!(read8, write8, u8);
    config_accessors!(read16, write16, u16);
    config_accessors!(read32, write32, u32);

    /// Whether the function still answers.
    pub fn is_present(&self) -> bool {
        self.read16(register::VENDOR) == self.vendor
    }

    /// Window `index` (0 to 5), if it exists and has an address. The upper half of a 64-bit
    /// window is none of its own.
    pub fn bar(&self, index: u8) -> Option<Bar> {
        let bar = self.bars.get(usize::from(index)).copied().flatten()?;
        bar.is_assigned().then_some(Bar {
            phys: PhysAddr::new(bar.address),
            bytes: bar.bytes,
            is_io: bar.kind == BarKind::Io,
        })
    }

    /// Maps the whole of memory window `index` and has the function answer there.
    pub fn map_bar(&self, index: u8) -> Result<Mmio, PciError> {
        let bar = self.memory_bar(index)?;
        self.map_part(bar, 0, bar.bytes)
    }

    /// Maps `bytes` of memory window `index` from `offset` on, as for a device whose window is
    /// much larger than its registers.
    pub fn map_bar_part(&self, index: u8, offset: u64, bytes: u64) -> Result<Mmio, PciError> {
        let bar = self.memory_bar(index)?;
        if !bar.contains(offset, bytes) {
            return Err(PciError::Map(MapError::OutOfRange));
        }
        self.map_part(bar, offset, bytes)
    }

    fn memory_bar(&self, index: u8) -> Result<pci_config::Bar, PciError> {
        let bar = self.bars.get(usize::from(index)).copied().flatten();
        let bar = bar.ok_or(PciError::NoSuchBar(index))?;
        match bar.kind {
            BarKind::Io => Err(PciError::NotMemory(index)),
            _ if !bar.is_assigned() => Err(PciError::Unassigned(index)),
            BarKind::Memory32 | BarKind::Memory64 => Ok(bar),
        }
    }

    fn map_part(&self, bar: pci_config::Bar, offset: u64, bytes: u64) -> Result<Mmio, PciError> {
        let bytes = usize::try_from(bytes).map_err(|_| PciError::Map(MapError::OutOfRange))?;
        self.change_command(command::MEMORY_SPACE, 0);
        Mmio::map(PhysAddr::new(bar.address + offset), bytes).map_err(PciError::Map)
    }

    /// Lets the function read and write memory. Its interrupt pin is turned off: drivers here
    /// take messages.
    pub fn enable_bus_master(&self) {
        self.change_command(command::BUS_MASTER | command::INTX_DISABLE, 0);
    }

    /// Stops the function from reading and writing memory. When this returns, nothing that it
    /// wrote before is still under way: the answer to the read below cannot pass writes that went
    /// ahead of it (PCIe 4.0 sec 2.4.1).
    pub fn disable_bus_master(&self) {
        self.change_command(0, command::BUS_MASTER);
        let _pushes_writes = self.read16(register::COMMAND);
    }

    fn change_command(&self, set: u16, clear: u16) {
        let before = self.read16(register::COMMAND);
        // A vanished function reads as ones; writing those back into nothing does no harm.
        space().write16(self.address, register::COMMAND, before & !clear | set);
    }

    /// The function's capabilities, in its own order.
    pub fn capabilities(&self) -> impl Iterator<Item = Capability> {
        Capabilities::new(space(), self.address, &self.header)
    }

    /// Takes over the function's MSI-X table: every entry masked, the capability enabled.
    pub fn msix_setup(&'static self) -> Result<Msix, PciError> {
        let capability = MsixCapability::read(space(), self.address, self.capabilities(), &self.bars)
            .map_err(PciError::Msix)?;
        Msix::new(self, capability)
    }
}
