//! The x86-64 half of `arch`.
//!
//! # Order at boot
//! The boot code ([`boot`]) has prepared the first CPU as far as its text says when it calls
//! `kernel_main`. From there:
//!
//! 1. [`acpi::init`], while the boot page tables still show all tables;
//! 2. the kernel's frame allocator, from [`boot::BootInfo::memory`];
//! 3. [`paging::init`];
//! 4. [`traps::set_hooks`];
//! 5. [`apic::init`], [`ioapic::init`], [`power::init`], in any order;
//! 6. [`clock::init`], then [`apic::timer_calibrate`];
//! 7. [`smp::start_others`].
//!
//! Interrupts may be turned on after step 5.

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
pub mod random;
pub mod rtc;
pub mod serial;
mod shootdown;
pub mod smp;
mod sync;
pub mod traps;
