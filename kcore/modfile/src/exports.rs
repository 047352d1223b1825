//! The kernel's table of names, as the linker laid it down in the kernel's image.
//!
//! ```text
//!    0  "nosexpt1"
//!    8  the kernel's identity, 32 bytes
//!   40  u32 count, u32 zero
//!   48  count records of 16 bytes, by ascending name: u64 address, u32 name's offset, u32 its length
//!    .  the names
//! ```
//!
//! Offsets count from the table's beginning. The addresses are relocations that the kernel's own link
//! resolved, which is also what keeps those functions in the image.

use core::cmp::Ordering;
use core::fmt;

use crate::Identity;
use crate::bytes::{piece, u32_at, u64_at};

/// How the table begins.
pub const EXPORTS_MAGIC: [u8; 8] = *b"nosexpt1";
/// Where the records begin.
pub const EXPORTS_HEADER_BYTES: usize = 48;
/// Bytes of a record.
pub const EXPORT_BYTES: usize = 16;

/// Why there are no exports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportsFault {
    /// The kernel was linked without a table.
    Missing,
    /// The table is not what it should be.
    Malformed,
}

impl fmt::Display for ExportsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ExportsFault::Missing => "this kernel exports nothing: it was not linked by `cargo xtask`",
            ExportsFault::Malformed => "this kernel's table of exports is malformed",
        })
    }
}

impl core::error::Error for ExportsFault {}

/// A checked view of the table.
#[derive(Clone, Copy, Debug)]
pub struct Exports<'a> {
    table: &'a [u8],
    identity: Identity,
    count: usize,
}

impl<'a> Exports<'a> {
    /// Checks a table's header and that its records and names are all there.
    pub fn check(table: &'a [u8]) -> Result<Exports<'a>, ExportsFault> {
        if table.is_empty() {
            return Err(ExportsFault::Missing);
        }
        let read = || {
            let magic: [u8; 8] = *table.first_chunk()?;
            let identity: Identity = *table.get(8..)?.first_chunk()?;
            let count = usize::try_from(u32_at(table, 40)?).ok()?;
            table.get(EXPORTS_HEADER_BYTES..)?.get(..count.checked_mul(EXPORT_BYTES)?)?;
            (magic == EXPORTS_MAGIC).then_some(Exports { table, identity, count })
        };
        let exports = read().ok_or(ExportsFault::Malformed)?;
        let mut before: &[u8] = &[];
        for index in 0..exports.count {
            let (name, _) = exports.record(index).ok_or(ExportsFault::Malformed)?;
            if index > 0 && before >= name {
                return Err(ExportsFault::Malformed);
            }
            before = name;
        }
        Ok(exports)
    }

    /// What modules must have been built against.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.count
    }

    fn record(&self, index: usize) -> Option<(&'a [u8], u64)> {
        let record = self.table.get(EXPORTS_HEADER_BYTES + index.checked_mul(EXPORT_BYTES)?..)?;
        let name = piece(self.table, u32_at(record, 8)?.into(), u32_at(record, 12)?.into())?;
        Some((name, u64_at(record, 0)?))
    }

    /// Where `name` is.
    pub fn find(&self, name: &str) -> Option<u64> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let (other, address) = self.record(middle)?;
            match other.cmp(name.as_bytes()) {
                Ordering::Equal => return Some(address),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        None
    }
}
