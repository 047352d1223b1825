//! The device-side queue of `virtio-device` beside `virtio-queue` of rust-vmm, which Firecracker,
//! Cloud Hypervisor and others stand on.
//!
//! [`compare`] drives both with the same rings and stops at the first difference; a property test and
//! the fuzz target `queues` feed it. [`measure`] times both on the same memory.

#![forbid(unsafe_code)]

pub mod compare;
pub mod measure;
pub mod ram;
