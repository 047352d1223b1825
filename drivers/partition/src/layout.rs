//! A disk's layout: which table it has, which partitions are sound, which are refused and why.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::extent::Extent;
use crate::gpt::{self, GptCopy, HeaderError};
use crate::guid::Guid;
use crate::mbr::{self, BootSector};
use crate::source::{SectorSource, Unreadable};

/// What a table says a partition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Mbr(u8),
    Gpt(Guid),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mbr(kind) => write!(f, "type {kind:#04x}"),
            Self::Gpt(guid) => match guid.type_name() {
                Some(name) => f.write_str(name),
                None => write!(f, "type {guid}"),
            },
        }
    }
}

/// A sound partition: its extent lies on the disk, outside the table, and over no other one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// From 1; logical partitions of an MBR from 5.
    pub number: u32,
    pub extent: Extent,
    pub kind: Kind,
    /// GPT's; empty for MBR. Printable.
    pub name: String,
}

/// Why an entry of a table is no partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No sectors, or the last before the first.
    Empty,
    OutsideDisk,
    /// Outside the sectors that the GPT header sets aside for partitions, or outside the extended
    /// partition that it is a logical one of.
    OutsideRange,
    /// It covers the table.
    OverTable,
    Overlaps {
        other: u32,
    },
    /// The chain of logical partitions cannot be followed to this one.
    BrokenChain,
    /// The disk has more logical partitions than are looked for.
    TooMany,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it has no sectors"),
            Self::OutsideDisk => f.write_str("it reaches past the end of the disk"),
            Self::OutsideRange => f.write_str("it leaves the range set aside for it"),
            Self::OverTable => f.write_str("it covers the partition table"),
            Self::Overlaps { other } => write!(f, "it overlaps partition {other}"),
            Self::BrokenChain => f.write_str("the chain of logical partitions is broken here"),
            Self::TooMany => f.write_str("there are too many logical partitions"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub number: u32,
    pub reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The disk is not partitioned.
    None,
    Mbr,
    Gpt(GptCopy),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub table: Table,
    /// By number.
    pub partitions: Vec<Partition>,
    pub refused: Vec<Refused>,
}

/// Why a disk's layout is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanError {
    Unreadable,
    SectorSize {
        bytes: u32,
    },
    /// The disk says it has a GPT, and neither copy is sound.
    DamagedGpt {
        primary: HeaderError,
        backup: HeaderError,
    },
    OutOfMemory,
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable => f.write_str("the first sector cannot be read"),
            Self::SectorSize { bytes } => write!(f, "sectors of {bytes} bytes are not supported"),
            Self::DamagedGpt { primary, backup } => {
                write!(f, "both copies of the GPT are damaged: the first: {primary}; the second: {backup}")
            }
            Self::OutOfMemory => f.write_str("no memory for the partition table"),
        }
    }
}

impl From<Unreadable> for ScanError {
    fn from(_: Unreadable) -> Self {
        Self::Unreadable
    }
}

/// Reads the partition table of a disk.
///
/// A GPT is looked for only where the MBR has a protective entry (UEFI sec 5.2.3), so that a disk
/// which was given a new MBR does not come back with the partitions of its old GPT.
pub fn scan(source: &mut impl SectorSource) -> Result<Layout, ScanError> {
    let bytes = source.sector_bytes();
    if !(512..=4096).contains(&bytes) || !bytes.is_power_of_two() {
        return Err(ScanError::SectorSize { bytes });
    }
    if source.sectors() == 0 {
        return Ok(Layout { table: Table::None, partitions: Vec::new(), refused: Vec::new() });
    }
    let mut sector = buffer(bytes as usize)?;
    source.read(0, &mut sector)?;
    match mbr::read_boot_sector(&sector) {
        BootSector::NoTable => Ok(Layout { table: Table::None, partitions: Vec::new(), refused: Vec::new() }),
        BootSector::Mbr(entries) => {
            let (candidates, refused) = mbr::read_partitions(source, &mut sector, &entries);
            Ok(sort_out(Table::Mbr, source.sectors(), candidates, refused))
        }
        BootSector::Protective => {
            let (copy, candidates, refused) = gpt::read(source, &mut sector)?;
            Ok(sort_out(Table::Gpt(copy), source.sectors(), candidates, refused))
        }
    }
}

/// Zeroed memory for what a disk claims to have: its size is bounded by the caller, but the heap
/// may still be out of it.
pub(crate) fn buffer(bytes: usize) -> Result<Vec<u8>, ScanError> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| ScanError::OutOfMemory)?;
    buffer.resize(bytes, 0);
    Ok(buffer)
}

/// Refuses what leaves the disk or overlaps. Of two that overlap both go: there is no telling
/// which of them the data belongs to.
fn sort_out(
    table: Table,
    disk_sectors: u64,
    mut candidates: Vec<Partition>,
    mut refused: Vec<Refused>,
) -> Layout {
    candidates.retain(|candidate| {
        let fits = candidate.extent.end() <= disk_sectors;
        if !fits {
            refused.push(Refused { number: candidate.number, reason: Reason::OutsideDisk });
        }
        fits
    });
    candidates.sort_by_key(|candidate| (candidate.extent, candidate.number));
    let mut overlapped: Vec<Option<u32>> = candidates.iter().map(|_| None).collect();
    // The one that reaches furthest so far: whoever begins before its end overlaps it.
    let mut furthest = 0;
    for place in 1..candidates.len() {
        let (reaches, candidate) = (&candidates[furthest], &candidates[place]);
        if candidate.extent.overlaps(&reaches.extent) {
            overlapped[furthest].get_or_insert(candidate.number);
            overlapped[place] = Some(reaches.number);
        }
        if candidate.extent.end() > reaches.extent.end() {
            furthest = place;
        }
    }
    let mut partitions = Vec::new();
    for (candidate, overlapped) in candidates.into_iter().zip(overlapped) {
        match overlapped {
            None => partitions.push(candidate),
            Some(other) => {
                refused.push(Refused { number: candidate.number, reason: Reason::Overlaps { other } });
            }
        }
    }
    partitions.sort_by_key(|partition| partition.number);
    refused.sort_by_key(|refused| refused.number);
    Layout { table, partitions, refused }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn partition(number: u32, first_sector: u64, sectors: u64) -> Option<Partition> {
        let extent = Extent::new(first_sector, sectors)?;
        Some(Partition { number, extent, kind: Kind::Mbr(0x83), name: String::new() })
    }

    proptest! {
        /// Against the plain definition: exactly those that overlap nothing and fit remain.
        #[test]
        fn exactly_the_disjoint_ones_remain(
            extents in proptest::collection::vec((0_u64..60, 1_u64..12), 0..14), disk_sectors in 1_u64..64,
        ) {
            let candidates: Vec<Partition> = (1..)
                .zip(&extents)
                .filter_map(|(number, (first_sector, sectors))| partition(number, *first_sector, *sectors))
                .collect();
            let fits = |candidate: &Partition| candidate.extent.end() <= disk_sectors;
            let alone = |candidate: &Partition| {
                candidates.iter().all(|other| {
                    other.number == candidate.number || !fits(other) || !other.extent.overlaps(&candidate.extent)
                })
            };
            let expected: Vec<u32> = candidates
                .iter()
                .filter(|candidate| fits(candidate) && alone(candidate))
                .map(|candidate| candidate.number)
                .collect();
            let layout = sort_out(Table::Mbr, disk_sectors, candidates.clone(), Vec::new());
            let remained: Vec<u32> = layout.partitions.iter().map(|partition| partition.number).collect();
            prop_assert_eq!(remained, expected);
            prop_assert_eq!(layout.partitions.len() + layout.refused.len(), candidates.len());
        }
    }
}
