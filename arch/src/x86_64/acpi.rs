//! The machine's ACPI tables, read once at boot. See [`firmware::acpi`] for the reading.

pub use firmware::acpi::{
    AcpiError, AcpiInfo, EcamRegion, InterruptOverride, IoApic, Polarity, PowerControl, Register, Trigger,
};

use super::addr::PhysAddr;
use super::boot::EarlyMemory;
use super::sync::Once;

static INFO: Once<AcpiInfo> = Once::new();
static NOTHING: AcpiInfo = AcpiInfo::NONE;

/// Reads the tables, starting at the root pointer that the boot loader named, or else where a
/// PC's firmware puts it.
///
/// Must come before [`paging::init`](super::paging::init): the tables mostly lie in memory that
/// the final direct map leaves out. On an error the kernel can go on, with one CPU, without I/O
/// APICs and without power-off.
pub fn init(rsdp: Option<PhysAddr>) -> Result<(), AcpiError> {
    let info = firmware::acpi::read(&EarlyMemory, rsdp)?;
    // The first reading stays.
    let _ = INFO.set(info);
    Ok(())
}

/// What the tables said; of a machine without ACPI, nothing.
pub fn info() -> &'static AcpiInfo {
    INFO.get().unwrap_or(&NOTHING)
}
