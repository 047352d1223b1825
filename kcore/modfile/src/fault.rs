//! What can be wrong with a module.

use core::fmt;

use crate::{Identity, short};

/// Why a file is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<'a> {
    /// It does not begin as an ELF64 relocatable object for x86-64 does.
    NotAModule,
    /// Something that its headers name lies beyond its end.
    CutOff {
        /// What.
        what: &'static str,
        /// The file's length.
        bytes: usize,
    },
    /// It was built against another kernel.
    OtherKernel {
        /// That kernel's identity.
        built_for: Identity,
        /// This kernel's.
        this: Identity,
    },
    /// Its SHA-256 is not what it says.
    Damaged,
    /// A number in it is not what the format allows.
    Malformed(&'static str),
    /// More or larger sections than a module may have.
    TooLarge(&'static str),
    /// A section that would be writable and executable.
    WritableCode,
    /// A relocation whose place lies outside its section.
    RelocationPlace {
        /// Its number within its section.
        number: usize,
        /// The place.
        offset: u64,
    },
    /// A relocation of a kind that modules do not have.
    RelocationKind {
        /// Its number within its section.
        number: usize,
        /// The kind.
        kind: u32,
    },
    /// A relocation for a symbol that the file does not have.
    RelocationSymbol {
        /// Its number within its section.
        number: usize,
        /// The symbol.
        symbol: u32,
    },
    /// A relocation whose value does not fit its place.
    RelocationOverflow {
        /// Its number within its section.
        number: usize,
    },
    /// It wants something that the kernel does not export.
    NotExported(&'a str),
    /// It has no entry.
    NoEntry,
}

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NotAModule => f.write_str("it is no module: not an ELF relocatable object for x86-64"),
            Fault::CutOff { what, bytes } => {
                write!(f, "it is cut off: {what} lies beyond its {bytes} bytes")
            }
            Fault::OtherKernel { built_for, this } => write!(
                f,
                "it was built against the kernel {}, and this is {}: build both together",
                short(built_for),
                short(this)
            ),
            Fault::Damaged => f.write_str("it is damaged: its SHA-256 is not the one that it was made with"),
            Fault::Malformed(what) => write!(f, "it is malformed: {what}"),
            Fault::TooLarge(what) => write!(f, "it is too large: {what}"),
            Fault::WritableCode => f.write_str("it has a section that is writable and executable"),
            Fault::RelocationPlace { number, offset } => {
                write!(f, "relocation {number} lies at {offset:#x}, outside its section")
            }
            Fault::RelocationKind { number, kind } => {
                write!(f, "relocation {number} is of kind {kind}, which modules do not have")
            }
            Fault::RelocationSymbol { number, symbol } => {
                write!(f, "relocation {number} is for symbol {symbol}, which is not there")
            }
            Fault::RelocationOverflow { number } => {
                write!(f, "relocation {number} does not fit: its target is too far away")
            }
            Fault::NotExported(name) => write!(f, "it wants {name}, which this kernel does not export"),
            Fault::NoEntry => f.write_str("it has no entry"),
        }
    }
}

impl core::error::Error for Fault<'_> {}
