//! The ACPI tables a kernel without an AML interpreter can use: which CPUs and interrupt
//! controllers there are (MADT), how to read time (FADT's timer, HPET), where PCI
//! configuration space is (MCFG), and how to switch the machine off (FADT and the `\_S5`
//! object).
//!
//! Offsets and names are those of the ACPI specification 6.5. Every table is checked for
//! signature, length and checksum before a field of it is read; a table that fails is left
//! out and named in [`AcpiInfo::rejected`]. Sub-structures that are too short for their
//! type, and those of unknown types, are skipped by their stated length.

mod fadt;
mod madt;
mod sleep;
mod table;

use crate::addr::PhysAddr;
use crate::bytes::{PhysicalMemory, u8_at, u16_at, u32_at, u64_at};
use arrayvec::ArrayVec;
use table::{Table, TableError};

pub use fadt::{PowerControl, Register, Reset, Timer};
pub use madt::{InterruptOverride, IoApic, Polarity, Trigger};
pub use sleep::SleepType;

/// Most CPUs taken from the MADT; the kernel itself may use fewer.
pub const MAX_CPUS: usize = 64;
/// Most I/O APICs, interrupt overrides, ECAM regions.
pub const MAX_IO_APICS: usize = 16;
/// See [`MAX_IO_APICS`].
pub const MAX_OVERRIDES: usize = 16;
/// See [`MAX_IO_APICS`].
pub const MAX_ECAM_REGIONS: usize = 8;

/// Root tables list a few dozen others; more than this is nonsense.
const MAX_TABLES: usize = 256;

/// What the tables say. Whatever a machine lacks is empty or `None`.
#[derive(Clone, Debug)]
pub struct AcpiInfo {
    /// APIC identifiers of the CPUs that can be started, in the table's order, each once.
    pub cpus: ArrayVec<u32, MAX_CPUS>,
    /// CPUs that did not fit [`cpus`](Self::cpus).
    pub cpus_ignored: usize,
    /// Where the local APIC's registers are, if the MADT was there.
    pub local_apic: Option<PhysAddr>,
    /// Whether there is a pair of 8259 controllers to silence.
    pub has_legacy_pics: bool,
    /// The I/O APICs.
    pub io_apics: ArrayVec<IoApic, MAX_IO_APICS>,
    /// Legacy interrupts that do not arrive where their number says.
    pub overrides: ArrayVec<InterruptOverride, MAX_OVERRIDES>,
    /// The ACPI power-management timer.
    pub timer: Option<Timer>,
    /// The HPET's registers.
    pub hpet: Option<PhysAddr>,
    /// PCI Express configuration space.
    pub ecam: ArrayVec<EcamRegion, MAX_ECAM_REGIONS>,
    /// Power-off and reset.
    pub power: PowerControl,
    /// Signatures of tables that were there but cannot be used.
    pub rejected: ArrayVec<[u8; 4], 8>,
}

impl AcpiInfo {
    /// What a machine without ACPI tells.
    pub const NONE: Self = Self {
        cpus: ArrayVec::new_const(),
        cpus_ignored: 0,
        local_apic: None,
        has_legacy_pics: true,
        io_apics: ArrayVec::new_const(),
        overrides: ArrayVec::new_const(),
        timer: None,
        hpet: None,
        ecam: ArrayVec::new_const(),
        power: PowerControl::NONE,
        rejected: ArrayVec::new_const(),
    };
}

/// Memory-mapped PCI configuration space of some buses of one segment (PCI Firmware
/// Specification 3.3 section 4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EcamRegion {
    /// Where bus 0 of the segment would be; `first_bus` is 1 MiB a bus further.
    pub base: PhysAddr,
    /// The PCI segment group.
    pub segment: u16,
    /// First bus that decodes here.
    pub first_bus: u8,
    /// Last bus that decodes here, not below the first.
    pub last_bus: u8,
}

/// Why there is no ACPI at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcpiError {
    /// No root pointer was handed over, and none lies where a PC's firmware puts it.
    NoRootPointer,
    /// The root pointer's signature or checksum is wrong.
    BadRootPointer,
    /// The root table it points to is wrong.
    BadRootTable,
}

const RSDP_SIGNATURE: &[u8; 8] = b"RSD PTR ";
/// ACPI 1.0's part of the root pointer, which its first checksum covers.
const RSDP_BYTES: usize = 20;
/// The whole of it from revision 2 on.
const RSDP_EXTENDED_BYTES: usize = 36;

/// Reads everything, starting at the root pointer at `rsdp`, or where a PC's BIOS puts it.
pub fn read(memory: &dyn PhysicalMemory, rsdp: Option<PhysAddr>) -> Result<AcpiInfo, AcpiError> {
    let rsdp = rsdp.or_else(|| find_root_pointer(memory)).ok_or(AcpiError::NoRootPointer)?;
    let root = RootTable::locate(memory, rsdp)?;

    let mut info = AcpiInfo::NONE;
    let mut sleep_type = None;
    for address in root.addresses() {
        match Table::read(memory, address) {
            Ok(table) => match &table.signature() {
                b"APIC" => madt::read(&table, &mut info),
                b"FACP" => {
                    info.power = fadt::power_control(&table);
                    info.timer = fadt::timer(&table);
                    // The DSDT is the one table that the root table does not list.
                    if let Some(dsdt) = fadt::dsdt(&table) {
                        match Table::read_as(memory, dsdt, *b"DSDT") {
                            Ok(dsdt) => sleep_type = sleep::find(dsdt.body()).or(sleep_type),
                            Err(_) => reject(&mut info, *b"DSDT"),
                        }
                    }
                }
                b"SSDT" => sleep_type = sleep_type.or_else(|| sleep::find(table.body())),
                b"HPET" => info.hpet = hpet(&table),
                b"MCFG" => mcfg(&table, &mut info),
                _ => (),
            },
            Err(TableError::Unreadable) => reject(&mut info, *b"????"),
            Err(TableError::Damaged(signature)) => reject(&mut info, signature),
        }
    }
    info.power.soft_off = sleep_type;
    Ok(info)
}

fn reject(info: &mut AcpiInfo, signature: [u8; 4]) {
    // Eight names are enough for a report.
    let _ = info.rejected.try_push(signature);
}

/// The RSDT or XSDT: a list of the other tables' addresses (section 5.2.7, 5.2.8).
struct RootTable<'m> {
    entries: &'m [u8],
    entry_bytes: usize,
}

impl<'m> RootTable<'m> {
    fn locate(memory: &'m dyn PhysicalMemory, rsdp: PhysAddr) -> Result<Self, AcpiError> {
        let bytes = memory.slice(rsdp, RSDP_BYTES).ok_or(AcpiError::BadRootPointer)?;
        if !is_root_pointer(bytes) {
            return Err(AcpiError::BadRootPointer);
        }
        let revision = u8_at(bytes, 15).unwrap_or(0);
        let wide = (revision >= 2).then(|| xsdt_address(memory, rsdp)).flatten();
        if let Some(address) = wide
            && let Ok(table) = Table::read_as(memory, address, *b"XSDT")
        {
            return Ok(Self { entries: table.body(), entry_bytes: 8 });
        }
        let address = u32_at(bytes, 16).filter(|at| *at != 0).ok_or(AcpiError::BadRootTable)?;
        let table = Table::read_as(memory, PhysAddr(address.into()), *b"RSDT")
            .map_err(|_| AcpiError::BadRootTable)?;
        Ok(Self { entries: table.body(), entry_bytes: 4 })
    }

    fn addresses(&self) -> impl Iterator<Item = PhysAddr> + use<'m> {
        let wide = self.entry_bytes == 8;
        self.entries
            .chunks_exact(self.entry_bytes)
            .take(MAX_TABLES)
            .filter_map(move |entry| if wide { u64_at(entry, 0) } else { u32_at(entry, 0).map(u64::from) })
            .filter(|address| *address != 0)
            .map(PhysAddr)
    }
}

/// The XSDT's address, where the extended part of the root pointer is sound.
fn xsdt_address(memory: &dyn PhysicalMemory, rsdp: PhysAddr) -> Option<PhysAddr> {
    let bytes = memory.slice(rsdp, RSDP_EXTENDED_BYTES)?;
    if !crate::bytes::sums_to_zero(bytes) {
        return None;
    }
    u64_at(bytes, 24).filter(|at| *at != 0).map(PhysAddr)
}

fn is_root_pointer(bytes: &[u8]) -> bool {
    bytes.starts_with(RSDP_SIGNATURE) && bytes.get(..RSDP_BYTES).is_some_and(crate::bytes::sums_to_zero)
}

/// Looks for the root pointer where section 5.2.5.1 lets a BIOS put it: on a 16-byte
/// boundary in the first KiB of the extended BIOS data area, or in the BIOS area below 1 MiB.
fn find_root_pointer(memory: &dyn PhysicalMemory) -> Option<PhysAddr> {
    // The BIOS data area keeps the segment of the extended one at 40:0E.
    let ebda = memory
        .slice(PhysAddr(0x40e), 2)
        .and_then(|bytes| u16_at(bytes, 0))
        .map(|segment| u64::from(segment) << 4)
        .filter(|start| (0x400..0xa_0000).contains(start));
    let areas = [(ebda, 1024), (Some(0xe_0000), 0x2_0000)];
    areas.into_iter().find_map(|(start, bytes)| {
        let start = start?;
        let area = memory.slice(PhysAddr(start), bytes)?;
        let paragraphs = area.chunks_exact(16).enumerate();
        paragraphs
            .filter(|(_, paragraph)| paragraph.starts_with(RSDP_SIGNATURE))
            .map(|(index, _)| 16 * index)
            .find(|offset| area.get(*offset..).is_some_and(is_root_pointer))
            .map(|offset| PhysAddr(start + offset as u64))
    })
}

/// The event timer block's address (IA-PC HPET 1.0a section 3.2.4): a generic address at
/// byte 40, memory space only.
fn hpet(table: &Table<'_>) -> Option<PhysAddr> {
    match Register::parse(table.bytes(), 40)? {
        Register::Memory(address) => Some(address),
        Register::Io(_) => None,
    }
}

/// PCI Firmware Specification 3.3 table 4-3: eight reserved bytes, then 16 a region.
fn mcfg(table: &Table<'_>, info: &mut AcpiInfo) {
    let entries = table.body().get(8..).unwrap_or(&[]);
    for entry in entries.chunks_exact(16) {
        let region = || {
            let region = EcamRegion {
                base: PhysAddr(u64_at(entry, 0)?),
                segment: u16_at(entry, 8)?,
                first_bus: u8_at(entry, 10)?,
                last_bus: u8_at(entry, 11)?,
            };
            let end = region.base.checked_add((u64::from(region.last_bus) + 1) << 20);
            let sound = region.base.0 != 0 && region.first_bus <= region.last_bus;
            (sound && end.is_some()).then_some(region)
        };
        if let Some(region) = region() {
            let _ = info.ecam.try_push(region);
        }
    }
}

#[cfg(test)]
mod tests;
