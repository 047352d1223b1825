//! The guest's machine, above the processor's virtualization and below the module that owns
//! guests: device models, boot loader, and the decisions of the run loop.
//!
//! The crate is pure. It takes time as an argument, guest memory as a trait, the processor as the
//! trait [`backend::Vcpu`], and the rest of the world as three small traits: [`apic::bus::Doorbell`]
//! (wake a CPU), [`chipset::uart::ConsoleSink`] (console output), [`pci::Endpoint`] (a virtio
//! device). Everything in it runs in host tests, where any exit, register and memory can be
//! tried; nothing in it can be made to panic or to loop by a guest.
//!
//! ```text
//!   cpu::Cpu (one per guest CPU, owned by its task)      chipset::Board (one, behind a lock)
//!     local APIC, timer, MSRs, CPUID, clock                8259 pair, 8254, RTC, UART, power,
//!     before_entry() -> Next, handle(exit) -> Action       I/O APIC, PCI functions
//!              \________ apic::bus::ApicBus (mailboxes, atomic) ________/
//! ```
//!
//! A guest CPU shares with the others only the board's lock, for port and I/O APIC accesses, and
//! the mailboxes, which need none.
//!
//! What is missing: MSI-X for the PCI functions; HPET (nothing needs it beside the TSC); ELF
//! kernels; a virtual 8254 that makes up for ticks which came too close together for the guest,
//! so a guest that counts time by them alone loses some on a host that is overloaded.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod acpi;
pub mod apic;
pub mod asid;
pub mod backend;
pub mod chipset;
pub mod counters;
pub mod cpu;
pub mod cpuid;
pub mod loader;
pub mod memory_map;
mod mmio;
pub mod msr;
mod msr_access;
pub mod paravirtual_clock;
pub mod pci;
pub mod prefix;
mod registers;
pub mod restart;
mod string_io;
pub mod time;
pub mod walk;

#[cfg(any(test, fuzzing))]
mod fake;
#[cfg(any(test, fuzzing))]
pub mod fuzz;

pub use cpu::{Action, Cpu, GuestConfig, Next, StopReason};
