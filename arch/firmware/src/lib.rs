//! What the firmware and the boot loader hand to the kernel, as checked values.
//!
//! Everything here arrives as bytes that somebody else wrote: a PVH start-info
//! structure, a memory map, ACPI tables. This crate turns them into types that
//! cannot be malformed, without touching the machine: no pointer, no port, no
//! `unsafe`. It therefore builds for the host, where property tests throw garbage
//! at every parser. `arch` supplies the bytes (through [`PhysicalMemory`]) and uses
//! the results.
//!
//! The `acpi` crate was considered and left out: it needs an unstable compiler
//! feature, and its AML interpreter can panic on a firmware's table. The kernel
//! needs four tables and one AML object, which is a few hundred lines.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod acpi;
pub mod addr;
pub mod bytes;
pub mod memory;
pub mod pvh;
pub mod rtc;

pub use addr::PhysAddr;
pub use bytes::PhysicalMemory;
