//! The machine underneath: boot, page tables, traps, context switches, timers, starting CPUs.
//!
//! One folder for each architecture, with the same file names and the same items; the rest of the
//! kernel sees only what is re-exported here and has no `cfg(target_arch)` of its own. `kcore` is
//! built on this and is what everything above uses; only `hv/hvarch` and the kernel's entry use
//! `arch` directly.
//!
//! Whatever can be decided without touching the machine (reading firmware's tables, making a
//! memory map) is in the `firmware` crate beside this one, where it is tested on the host. What
//! this crate does to a real machine is checked by `arch-smoke`, a kernel of its own that runs
//! under an emulator.

#![no_std]

#[cfg(target_arch = "x86_64")]
pub mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Names the function that the boot code hands the machine to: `arch::entry!(function);`, where
/// the function is a `fn(&'static arch::boot::BootInfo) -> !`. The exported name lives here so
/// that the kernel's binary can forbid `unsafe`.
#[macro_export]
macro_rules! entry {
    ($function:path) => {
        #[unsafe(no_mangle)]
        extern "Rust" fn kernel_main(boot: &'static $crate::boot::BootInfo) -> ! {
            let function: fn(&'static $crate::boot::BootInfo) -> ! = $function;
            function(boot)
        }
    };
}
