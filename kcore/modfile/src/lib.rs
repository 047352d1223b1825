//! A module as a file, and the names that a kernel offers to modules: read, checked, and put where it
//! is to run.
//!
//! A module is an ELF64 relocatable object for x86-64 (System V gABI, chapters 4 and 5; the processor's
//! supplement, section 4.4), as `cargo xtask` makes it of the crates that the kernel has not. Whoever
//! loads one gives it the whole machine, so nothing here can make a *malicious* module harmless; what
//! is promised is this:
//!
//! - a file that is damaged, cut off or not of this kernel never runs: a SHA-256 of the file is part of
//!   it, and so is the identity of the kernel that it was built against, which must be this one's;
//! - a file that lies, digest and all, makes this crate say [`Fault`], and neither panic nor read nor
//!   write beside the memory that it was given: every number in it is checked where it is used;
//! - it reaches the kernel by the names in the [`Exports`] alone.
//!
//! Nothing is allocated and nothing is kept but the file's own bytes, so that a panic can still ask
//! [`ModuleFile::function_at`] for names.
//!
//! ```text
//!   file --check--> ModuleFile --plan(exports)--> Plan --place(bases, memory)--> address of the entry
//! ```

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod bytes;
mod elf;
mod exports;
mod fault;
mod file;
mod plan;

pub use exports::{EXPORT_BYTES, EXPORTS_HEADER_BYTES, EXPORTS_MAGIC, Exports, ExportsFault};
pub use fault::Fault;
pub use file::{ENTRY_NAME, ModuleFile, NOTE_NAME, Note};
pub use plan::{Bases, Kind, Memory, Plan};

/// SHA-256 over everything that a module shares with its kernel.
pub type Identity = [u8; 32];

/// The first digits of an identity, for people.
pub fn short(identity: &Identity) -> impl core::fmt::Display + '_ {
    struct Short<'a>(&'a [u8]);
    impl core::fmt::Display for Short<'_> {
        fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
            self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        }
    }
    Short(&identity[..6])
}
