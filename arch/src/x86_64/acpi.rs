pub use firmware::acpi::{AcpiError, AcpiInfo, EcamRegion};
use super::addr::PhysAddr;
/// Reads the tables. Before `paging::init`: the tables lie outside the final direct map.
pub fn init(rsdp: Option<PhysAddr>) -> Result<(), AcpiError> { todo!() }
pub fn info() -> &'static AcpiInfo { todo!() }
