//! What every room of the node stands on: memory, tasks, events, interrupts, devices, the log.
//!
//! Safe to use: whoever builds on this crate forbids `unsafe`. The types carry the rules: a frame
//! or a transfer's memory has one owner, a lock's type says what it turns off, a register window
//! and a DMA buffer check every offset.

#![no_std]

extern crate alloc;

pub mod archive;
pub mod balance;
pub mod block;
pub mod console;
pub mod cpu;
pub mod dma;
pub mod event;
pub mod frame;
mod heap;
pub mod irq;
pub mod klog;
pub mod memory;
pub mod mmio;
pub mod module;
pub mod mutex;
pub mod net;
pub mod panic;
pub mod pci;
pub mod power;
pub mod selftest;
pub mod shell;
pub mod softirq;
mod start;
pub mod sync;
pub mod task;
pub mod time;
pub mod timer;

pub use start::{command_line, init, run};

/// Random numbers: `seed` keys hash tables and is not for secrets where the processor has no generator;
/// `hardware` is the processor's, or nothing.
pub mod random {
    pub use arch::random::{hardware, seed};
}

/// Addresses, as types.
pub mod addr {
    pub use arch::addr::PhysAddr;
}
