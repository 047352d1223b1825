//! PCI configuration space, decoded without touching the machine.
//!
//! A function's configuration space is written by its maker and, behind a hypervisor or a
//! broken slot, by nobody at all: every read may return all ones. What is decoded here (bus
//! numbers, base addresses, capability lists, the place of the MSI-X table) later becomes a
//! mapping or an interrupt, so a lie must end as an absent device or a refused one, never as an
//! endless walk or a mapping outside the device. That is why this part is a crate of its own: it
//! asks its questions through [`ConfigSpace`], and the tests answer them with [`fake`] devices
//! that lie in every field.
//!
//! kcore supplies the two real configuration mechanisms and everything that follows from the
//! answers. Enumeration only reads what the firmware set up: bus numbers and base addresses are
//! not assigned here (PVH and Multiboot2 both run after SeaBIOS or UEFI did that).
//!
//! Documents: PCI Local Bus Specification 3.0 ("PCI"), PCI-to-PCI Bridge Architecture 1.2,
//! PCI Express Base Specification 4.0 ("PCIe").
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod address;
mod bar;
mod capability;
pub mod fake;
mod header;
mod msix;
mod scan;
mod space;

pub use address::Address;
pub use bar::{BARS, Bar, BarKind, read_bars};
pub use capability::{Capabilities, Capability, id};
pub use header::{Header, HeaderKind, command, status};
pub use msix::{MsixCapability, MsixError, TableLocation, control, entry};
pub use scan::Scan;
pub use space::{ConfigSpace, register};
