//! The processor's side of the hypervisor: guest RAM, nested page tables, and the switch
//! between the node's world and a guest's.
//!
//! The rest of the hypervisor is safe code over [`machine::backend::Vcpu`]; this crate
//! is the part that cannot be. What it promises upwards is one sentence: **whatever a
//! guest does, it reaches nothing but the memory of its [`GuestSpace`]**. Everything
//! else that happens to a guest is an [`Exit`](machine::backend::Exit) that a model
//! answers.
//!
//! Today there is one backend, AMD's. Which one is used is decided once, by [`init`].

#![no_std]

extern crate alloc;

mod doorbell;
mod fpu;
mod memory;
mod nested;
mod svm;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::Range;

use kcore::memory::OutOfMemory;
use machine::backend::Vcpu;

pub use doorbell::Doorbell;
pub use memory::{GuestMemory, MemoryError, PIECE_BYTES};
use nested::NestedTables;

/// Why this node cannot run guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    NoVirtualization,
    DisabledByFirmware,
    NoNestedPaging,
    NoXsave,
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsupported::NoVirtualization => {
                f.write_str("this processor offers no AMD SVM (under QEMU: -cpu max,+svm)")
            }
            Unsupported::DisabledByFirmware => {
                f.write_str("AMD SVM is switched off by the firmware: enable it in the BIOS setup")
            }
            Unsupported::NoNestedPaging => f.write_str("this processor's SVM has no nested paging"),
            Unsupported::NoXsave => f.write_str("this processor has no XSAVE"),
            Unsupported::OutOfMemory(out) => out.fmt(f),
        }
    }
}

/// Finds out what the processor offers and makes what all guests share. Call it before
/// anything else here; again is harmless. Returns the backend's name.
pub fn init() -> Result<&'static str, Unsupported> {
    svm::host::init()?;
    Ok("AMD SVM, nested paging")
}

/// Turns virtualization off on the calling task's CPU and gives back what it held there. No virtual
/// CPU exists any more.
pub fn shut_down_this_cpu() {
    svm::host::disable_on_this_cpu();
}

/// Gives back what [`init`] made, after [`shut_down_this_cpu`] on every CPU.
pub fn shut_down() {
    svm::host::shut_down();
}

/// The host CPUs that may run guests: all but the first, if there are more. The first
/// serves devices, and QEMU's TCG damages guests that run on it (see
/// [`InvalidState::EmulatorSavedHostState`](machine::backend::InvalidState)).
pub fn guest_cpus() -> Range<usize> {
    let count = kcore::cpu::count();
    if count > 1 { 1..count } else { 0..1 }
}

/// Frequency of the processor's time-stamp counter, and so of the guests'.
pub fn tsc_hz() -> u64 {
    arch::clock::tsc_hz()
}

/// The moment at which the time-stamp counters of a guest's CPUs read 0.
#[derive(Clone, Copy, Debug)]
pub struct TscOrigin(u64);

impl TscOrigin {
    pub fn now() -> TscOrigin {
        TscOrigin(arch::cpu::tsc())
    }
}

/// A guest's physical address space: its RAM and the tables that map it.
pub struct GuestSpace {
    memory: Arc<GuestMemory>,
    tables: NestedTables,
}

impl GuestSpace {
    /// Maps all of `memory`.
    pub fn new(memory: Arc<GuestMemory>) -> Result<GuestSpace, OutOfMemory> {
        let tables = NestedTables::new(&memory)?;
        Ok(GuestSpace { memory, tables })
    }

    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }
}

/// Why a virtual CPU could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VcpuError {
    /// [`init`] has not succeeded.
    NotInitialised,
    OutOfMemory(OutOfMemory),
}

impl fmt::Display for VcpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VcpuError::NotInitialised => f.write_str("virtualization has not been initialised"),
            VcpuError::OutOfMemory(out) => out.fmt(f),
        }
    }
}

impl From<OutOfMemory> for VcpuError {
    fn from(out: OutOfMemory) -> Self {
        VcpuError::OutOfMemory(out)
    }
}

/// Makes a virtual CPU in its reset state. The calling task's CPU is readied for
/// guests, and the virtual CPU must be run by a task of that CPU. All CPUs of a guest get
/// the same `origin`.
pub fn new_vcpu(
    space: Arc<GuestSpace>,
    doorbell: Arc<Doorbell>,
    origin: TscOrigin,
) -> Result<Box<dyn Vcpu + Send>, VcpuError> {
    let vcpu = svm::vcpu::SvmVcpu::new(space, doorbell, origin)?;
    svm::host::enable_on_this_cpu()?;
    Ok(Box::new(vcpu))
}
