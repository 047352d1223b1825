//! The header that every system description table begins with (section 5.2.6).

use crate::addr::PhysAddr;
use crate::bytes::{PhysicalMemory, array_at, sums_to_zero, u32_at};

/// Signature, length, revision, checksum, and who made it.
pub const HEADER_BYTES: usize = 36;
/// Tables of server firmware reach a few hundred KiB.
const MAX_TABLE_BYTES: usize = 16 << 20;

/// Why a table is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableError {
    /// It is not in readable memory.
    Unreadable,
    /// Its length or checksum is wrong, or it is not the table that it should be.
    Damaged([u8; 4]),
}

/// A table whose length and checksum are right.
#[derive(Clone, Copy)]
pub struct Table<'m> {
    bytes: &'m [u8],
}

impl<'m> Table<'m> {
    /// The table at `address`.
    pub fn read(memory: &'m dyn PhysicalMemory, address: PhysAddr) -> Result<Self, TableError> {
        let header = memory.slice(address, HEADER_BYTES).ok_or(TableError::Unreadable)?;
        let signature = array_at(header, 0).ok_or(TableError::Unreadable)?;
        let damaged = TableError::Damaged(signature);
        let length = u32_at(header, 4).and_then(|n| usize::try_from(n).ok()).ok_or(damaged)?;
        if !(HEADER_BYTES..=MAX_TABLE_BYTES).contains(&length) {
            return Err(damaged);
        }
        let bytes = memory.slice(address, length).ok_or(damaged)?;
        if !sums_to_zero(bytes) {
            return Err(damaged);
        }
        Ok(Self { bytes })
    }

    /// The table at `address`, which must carry `signature`.
    pub fn read_as(
        memory: &'m dyn PhysicalMemory,
        address: PhysAddr,
        signature: [u8; 4],
    ) -> Result<Self, TableError> {
        let table = Self::read(memory, address)?;
        if table.signature() != signature {
            return Err(TableError::Damaged(table.signature()));
        }
        Ok(table)
    }

    /// The four letters.
    pub fn signature(&self) -> [u8; 4] {
        array_at(self.bytes, 0).unwrap_or_default()
    }

    /// All of it, for fields that the specification numbers from the table's start.
    pub const fn bytes(&self) -> &'m [u8] {
        self.bytes
    }

    /// What follows the header.
    pub fn body(&self) -> &'m [u8] {
        self.bytes.get(HEADER_BYTES..).unwrap_or(&[])
    }
}
