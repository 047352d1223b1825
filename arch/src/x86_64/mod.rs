//! The x86-64 half of `arch`.
pub mod acpi;
pub mod addr;
pub mod apic;
pub mod backtrace;
pub mod boot;
pub mod clock;
pub mod context;
pub mod cpu;
pub mod ioapic;
pub mod paging;
pub mod port;
pub mod power;
pub mod serial;
mod shootdown;
pub mod smp;
mod sync;
pub mod traps;
