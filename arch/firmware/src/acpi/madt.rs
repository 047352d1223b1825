//! The multiple APIC description table (section 5.2.12).

use super::AcpiInfo;
use super::table::Table;
use crate::addr::PhysAddr;
use crate::bytes::{u8_at, u16_at, u32_at, u64_at};

/// Byte of the first structure.
const STRUCTURES: usize = 44;

const LOCAL_APIC: u8 = 0;
const IO_APIC: u8 = 1;
const SOURCE_OVERRIDE: u8 = 2;
const LOCAL_APIC_ADDRESS: u8 = 5;
const LOCAL_X2APIC: u8 = 9;

const FLAG_PCAT_COMPAT: u32 = 1;
const CPU_ENABLED: u32 = 1;

/// One I/O APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoApic {
    /// Its identifier.
    pub id: u8,
    /// Its registers.
    pub address: PhysAddr,
    /// The global system interrupt of its first input.
    pub gsi_base: u32,
}

/// Which level asserts an interrupt line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Polarity {
    ActiveHigh,
    ActiveLow,
}

/// What of an interrupt line counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Trigger {
    Edge,
    Level,
}

/// A legacy (ISA) interrupt that is wired elsewhere, or otherwise, than its number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptOverride {
    /// The legacy number, 0 to 15.
    pub irq: u8,
    /// The global system interrupt it arrives at.
    pub gsi: u32,
    /// Which level asserts it.
    pub polarity: Polarity,
    /// What counts.
    pub trigger: Trigger,
}

/// Takes the table's contents into `info`.
pub fn read(table: &Table<'_>, info: &mut AcpiInfo) {
    let bytes = table.bytes();
    info.local_apic = u32_at(bytes, 36).map(|address| PhysAddr(address.into()));
    info.has_legacy_pics = u32_at(bytes, 40).is_some_and(|flags| flags & FLAG_PCAT_COMPAT != 0);

    let mut rest = bytes.get(STRUCTURES..).unwrap_or(&[]);
    while let (Some(kind), Some(length)) = (u8_at(rest, 0), u8_at(rest, 1)) {
        // Less than its own header: the rest cannot be told apart.
        if length < 2 {
            break;
        }
        let Some((structure, after)) = rest.split_at_checked(length.into()) else { break };
        // `None` only says that the structure was too short for its type.
        let _ = take(kind, structure, info);
        rest = after;
    }
}

fn take(kind: u8, structure: &[u8], info: &mut AcpiInfo) -> Option<()> {
    match kind {
        LOCAL_APIC => {
            let (id, flags) = (u8_at(structure, 3)?, u32_at(structure, 4)?);
            // 255 is the broadcast address, not a CPU.
            if id != u8::MAX {
                add_cpu(info, id.into(), flags);
            }
        }
        LOCAL_X2APIC => {
            let (id, flags) = (u32_at(structure, 4)?, u32_at(structure, 8)?);
            if id != u32::MAX {
                add_cpu(info, id, flags);
            }
        }
        IO_APIC => {
            let io_apic = IoApic {
                id: u8_at(structure, 2)?,
                address: PhysAddr(u32_at(structure, 4)?.into()),
                gsi_base: u32_at(structure, 8)?,
            };
            let _ = info.io_apics.try_push(io_apic);
        }
        SOURCE_OVERRIDE => {
            let (bus, irq) = (u8_at(structure, 2)?, u8_at(structure, 3)?);
            let (gsi, flags) = (u32_at(structure, 4)?, u16_at(structure, 8)?);
            if bus == 0 && irq < 16 {
                let (polarity, trigger) = wiring(flags);
                let _ = info.overrides.try_push(InterruptOverride { irq, gsi, polarity, trigger });
            }
        }
        LOCAL_APIC_ADDRESS => info.local_apic = Some(PhysAddr(u64_at(structure, 4)?)),
        _ => (),
    }
    Some(())
}

/// A CPU that is not enabled may be one that is not plugged in; it is not started.
fn add_cpu(info: &mut AcpiInfo, id: u32, flags: u32) {
    if flags & CPU_ENABLED == 0 || info.cpus.contains(&id) {
        return;
    }
    if info.cpus.try_push(id).is_err() {
        info.cpus_ignored += 1;
    }
}

/// MPS INTI flags (table 5.26). "Conforms to the bus" means, for ISA, active high and edge.
const fn wiring(flags: u16) -> (Polarity, Trigger) {
    let polarity = if flags & 0b11 == 0b11 { Polarity::ActiveLow } else { Polarity::ActiveHigh };
    let trigger = if flags >> 2 & 0b11 == 0b11 { Trigger::Level } else { Trigger::Edge };
    (polarity, trigger)
}
