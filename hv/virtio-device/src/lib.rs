//! virtio devices as a guest sees them, without a machine under them.
//!
//! The crate is pure: it is told of register accesses, notifications and the time, it reads and
//! writes guest memory through [`GuestRam`], and it answers with what must happen next. It can
//! therefore be tested, fuzzed and measured on the host, where a guest that lies is a test case.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod fake;
pub mod ram;

pub use ram::{GuestPhysAddr, GuestRam, OutOfRange};
