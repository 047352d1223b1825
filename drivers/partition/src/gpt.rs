//! The GUID partition table: one of two copies of a header and of an array of entries.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::crc32::crc32;
use crate::extent::Extent;
use crate::guid::Guid;
use crate::layout::{Kind, Partition, Reason, Refused, ScanError, buffer};
use crate::source::SectorSource;

/// Where the primary header lies (UEFI sec 5.3.2).
const PRIMARY_SECTOR: u64 = 1;
const SIGNATURE: &[u8; 8] = b"EFI PART";
const REVISION: u32 = 0x0001_0000;
const HEADER_BYTES: u32 = 92;
const HEADER_CRC_OFFSET: usize = 16;
const ENTRY_BYTES: u32 = 128;
/// Entries are read into memory at once, so what a header may ask for is bounded: 128 entries of
/// 128 bytes are usual, and this is sixteen times as much.
const MAX_TABLE_BYTES: u64 = 256 * 1024;

/// Which copy of the table was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GptCopy {
    Primary,
    /// The primary is damaged.
    Backup {
        damage: HeaderError,
    },
}

/// What is wrong with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// The disk is too small, or the sectors cannot be read.
    Unreadable,
    NoSignature,
    Revision {
        revision: u32,
    },
    HeaderSize {
        bytes: u32,
    },
    HeaderChecksum,
    /// It says it lies in another sector.
    Misplaced {
        sector: u64,
    },
    /// The range for partitions is empty, leaves the disk, or covers the table.
    UsableRange,
    /// The entries leave the disk, or are of a size that cannot be.
    Entries,
    EntriesChecksum,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("it cannot be read"),
            Self::NoSignature => f.write_str("there is no header"),
            Self::Revision { revision } => write!(f, "its revision {revision:#x} is not known"),
            Self::HeaderSize { bytes } => write!(f, "its header cannot have {bytes} bytes"),
            Self::HeaderChecksum => f.write_str("its header's checksum is wrong"),
            Self::Misplaced { sector } => write!(f, "its header belongs in sector {sector}"),
            Self::UsableRange => f.write_str("its range for partitions cannot be"),
            Self::Entries => f.write_str("its entries cannot lie where it says"),
            Self::EntriesChecksum => f.write_str("its entries' checksum is wrong"),
        }
    }
}

/// A header whose checksum is right and whose ranges are possible on this disk.
struct Header {
    usable: Extent,
    entries_sector: u64,
    entries: u32,
    entry_bytes: u32,
    entries_crc: u32,
}

/// The partitions of the first sound copy. What overlaps is still among them.
pub fn read(
    source: &mut impl SectorSource,
    sector: &mut [u8],
) -> Result<(GptCopy, Vec<Partition>, Vec<Refused>), ScanError> {
    let damage = match read_copy(source, sector, PRIMARY_SECTOR)? {
        Ok((partitions, refused)) => return Ok((GptCopy::Primary, partitions, refused)),
        Err(damage) => damage,
    };
    // A damaged primary cannot be asked where the backup is: it lies in the last sector.
    match read_copy(source, sector, source.sectors() - 1)? {
        Ok((partitions, refused)) => Ok((GptCopy::Backup { damage }, partitions, refused)),
        Err(backup) => Err(ScanError::DamagedGpt { primary: damage, backup }),
    }
}

type Copy = Result<(Vec<Partition>, Vec<Refused>), HeaderError>;

fn read_copy(source: &mut impl SectorSource, sector: &mut [u8], place: u64) -> Result<Copy, ScanError> {
    if place >= source.sectors() || source.read(place, sector).is_err() {
        return Ok(Err(HeaderError::Unreadable));
    }
    let header = match Header::parse(sector, place, source.sectors()) {
        Ok(header) => header,
        Err(error) => return Ok(Err(error)),
    };
    let sectors = header.table_sectors(sector.len() as u64);
    // Bounded by MAX_TABLE_BYTES and a sector.
    let mut table = buffer((sectors as usize) * sector.len())?;
    if source.read(header.entries_sector, &mut table).is_err() {
        return Ok(Err(HeaderError::Unreadable));
    }
    table.truncate((header.entries * header.entry_bytes) as usize);
    if crc32(table.iter().copied()) != header.entries_crc {
        return Ok(Err(HeaderError::EntriesChecksum));
    }
    Ok(Ok(header.read_entries(&table)))
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    core::array::from_fn(|place| bytes.get(offset + place).copied().unwrap_or(0))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}

impl Header {
    /// Judges the header in sector `place` of a disk of `disk_sectors` (UEFI sec 5.3.2, table 5-5).
    fn parse(sector: &[u8], place: u64, disk_sectors: u64) -> Result<Self, HeaderError> {
        if sector.get(..8) != Some(SIGNATURE) {
            return Err(HeaderError::NoSignature);
        }
        let revision = u32_at(sector, 8);
        if revision != REVISION {
            return Err(HeaderError::Revision { revision });
        }
        let header_bytes = u32_at(sector, 12);
        let header = usize::try_from(header_bytes).ok().and_then(|bytes| sector.get(..bytes));
        let Some(header) = header.filter(|_| header_bytes >= HEADER_BYTES) else {
            return Err(HeaderError::HeaderSize { bytes: header_bytes });
        };
        let crc_range = HEADER_CRC_OFFSET..HEADER_CRC_OFFSET + 4;
        let without_crc = header.iter().enumerate().map(|(offset, byte)| match crc_range.contains(&offset) {
            true => 0,
            false => *byte,
        });
        if crc32(without_crc) != u32_at(header, HEADER_CRC_OFFSET) {
            return Err(HeaderError::HeaderChecksum);
        }
        let own_sector = u64_at(header, 24);
        if own_sector != place {
            return Err(HeaderError::Misplaced { sector: own_sector });
        }
        let usable =
            Extent::between(u64_at(header, 40), u64_at(header, 48)).ok_or(HeaderError::UsableRange)?;
        let parsed = Self {
            usable,
            entries_sector: u64_at(header, 72),
            entries: u32_at(header, 80),
            entry_bytes: u32_at(header, 84),
            entries_crc: u32_at(header, 88),
        };
        parsed.check_ranges(place, disk_sectors, sector.len() as u64)?;
        Ok(parsed)
    }

    fn check_ranges(&self, place: u64, disk_sectors: u64, sector_bytes: u64) -> Result<(), HeaderError> {
        // An entry has 128 * 2^n bytes (UEFI sec 5.3.2).
        let size_is_possible = self.entry_bytes >= ENTRY_BYTES && self.entry_bytes.is_power_of_two();
        let bytes = u64::from(self.entries) * u64::from(self.entry_bytes);
        if !size_is_possible || self.entries == 0 || bytes > MAX_TABLE_BYTES {
            return Err(HeaderError::Entries);
        }
        let table = Extent::new(self.entries_sector, self.table_sectors(sector_bytes));
        let table = table.ok_or(HeaderError::Entries)?;
        // Neither the boot sector nor the header itself can hold entries.
        if table.first_sector() == 0 || table.end() > disk_sectors || is_in(&table, place) {
            return Err(HeaderError::Entries);
        }
        let usable = &self.usable;
        let over_headers = is_in(usable, 0) || is_in(usable, PRIMARY_SECTOR) || is_in(usable, place);
        if usable.end() > disk_sectors || over_headers || usable.overlaps(&table) {
            return Err(HeaderError::UsableRange);
        }
        Ok(())
    }

    fn table_sectors(&self, sector_bytes: u64) -> u64 {
        (u64::from(self.entries) * u64::from(self.entry_bytes)).div_ceil(sector_bytes)
    }

    /// The entries in use (UEFI sec 5.3.3, table 5-6).
    fn read_entries(&self, table: &[u8]) -> (Vec<Partition>, Vec<Refused>) {
        let (mut partitions, mut refused) = (Vec::new(), Vec::new());
        for (number, entry) in (1..).zip(table.chunks_exact(self.entry_bytes as usize)) {
            let kind = Guid(bytes_at(entry, 0));
            if kind == Guid::ZERO {
                continue;
            }
            match Extent::between(u64_at(entry, 32), u64_at(entry, 40)) {
                None => refused.push(Refused { number, reason: Reason::Empty }),
                Some(extent) if !self.usable.contains(&extent) => {
                    refused.push(Refused { number, reason: Reason::OutsideRange });
                }
                Some(extent) => {
                    let name = read_name(&bytes_at(entry, 56));
                    partitions.push(Partition { number, extent, kind: Kind::Gpt(kind), name });
                }
            }
        }
        (partitions, refused)
    }
}

fn is_in(extent: &Extent, sector: u64) -> bool {
    (extent.first_sector()..extent.end()).contains(&sector)
}

/// UTF-16 up to a zero. Control characters must not reach a terminal.
fn read_name(bytes: &[u8; 72]) -> String {
    let units = bytes.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit));
    char::decode_utf16(units.take_while(|unit| *unit != 0))
        .map(|decoded| decoded.ok().filter(|letter| !letter.is_control()).unwrap_or('?'))
        .collect()
}

#[cfg(test)]
mod tests;
