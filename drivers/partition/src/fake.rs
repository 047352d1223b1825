//! Disks in memory, with tables on them that are right or wrong in any detail.

use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use crate::crc32::crc32;
use crate::guid::Guid;
use crate::layout::Layout;
use crate::source::{SectorSource, Unreadable};

/// An entry of an MBR.
#[derive(Clone, Copy, Debug)]
pub struct MbrEntry {
    pub kind: u8,
    pub first_sector: u32,
    pub sectors: u32,
}

/// An entry of a GPT.
#[derive(Clone, Debug)]
pub struct GptEntry {
    pub kind: Guid,
    pub first_sector: u64,
    pub last_sector: u64,
    pub name: String,
}

/// The fields of a GPT header.
#[derive(Clone, Copy, Debug)]
pub struct GptHeader {
    pub revision: u32,
    pub header_bytes: u32,
    pub own_sector: u64,
    pub other_sector: u64,
    pub first_usable: u64,
    pub last_usable: u64,
    pub entries_sector: u64,
    pub entries: u32,
    pub entry_bytes: u32,
    pub entries_crc: u32,
}

/// A disk in memory; some sectors may be unreadable.
pub struct FakeDisk {
    sector_bytes: usize,
    bytes: Vec<u8>,
    broken: BTreeSet<u64>,
}

impl FakeDisk {
    #[must_use]
    pub fn new(sector_bytes: u32, sectors: u64) -> Self {
        let sector_bytes = sector_bytes as usize;
        Self { sector_bytes, bytes: vec![0; sector_bytes * sectors as usize], broken: BTreeSet::new() }
    }

    /// A disk with these contents.
    #[must_use]
    pub fn from_bytes(sector_bytes: u32, bytes: Vec<u8>) -> Self {
        Self { sector_bytes: sector_bytes as usize, bytes, broken: BTreeSet::new() }
    }

    pub fn break_sector(&mut self, sector: u64) {
        self.broken.insert(sector);
    }

    pub fn write(&mut self, sector: u64, offset: usize, bytes: &[u8]) {
        let start = sector as usize * self.sector_bytes + offset;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
    }

    pub fn flip(&mut self, sector: u64, offset: usize, bits: u8) {
        let start = sector as usize * self.sector_bytes + offset;
        self.bytes[start] ^= bits;
    }

    /// Writes a boot record with up to four entries.
    pub fn write_mbr(&mut self, sector: u64, entries: &[MbrEntry]) {
        let mut record = [0; 512];
        for (place, entry) in entries.iter().take(4).enumerate() {
            let bytes = &mut record[446 + 16 * place..462 + 16 * place];
            bytes[4] = entry.kind;
            bytes[8..12].copy_from_slice(&entry.first_sector.to_le_bytes());
            bytes[12..16].copy_from_slice(&entry.sectors.to_le_bytes());
        }
        record[510..].copy_from_slice(&[0x55, 0xaa]);
        self.write(sector, 0, &record);
    }

    /// Writes a protective MBR and both copies of a GPT with 128 entries, of which the first are
    /// these.
    pub fn write_gpt(&mut self, entries: &[GptEntry]) {
        let sectors = self.sectors();
        self.write_mbr(0, &[MbrEntry { kind: 0xee, first_sector: 1, sectors: sectors as u32 - 1 }]);
        let mut table = vec![0; 128 * 128];
        for (entry, bytes) in entries.iter().zip(table.chunks_mut(128)) {
            bytes[..16].copy_from_slice(&entry.kind.0);
            bytes[32..40].copy_from_slice(&entry.first_sector.to_le_bytes());
            bytes[40..48].copy_from_slice(&entry.last_sector.to_le_bytes());
            for (unit, place) in entry.name.encode_utf16().zip((56..128).step_by(2)) {
                bytes[place..place + 2].copy_from_slice(&unit.to_le_bytes());
            }
        }
        let table_sectors = table.len().div_ceil(self.sector_bytes) as u64;
        let (last, backup_table) = (sectors - 1, sectors - 1 - table_sectors);
        let primary = GptHeader {
            revision: 0x0001_0000,
            header_bytes: 92,
            own_sector: 1,
            other_sector: last,
            first_usable: 2 + table_sectors,
            last_usable: backup_table - 1,
            entries_sector: 2,
            entries: 128,
            entry_bytes: 128,
            entries_crc: crc32(table.iter().copied()),
        };
        self.write(2, 0, &table);
        self.write_gpt_header(1, &primary);
        self.write(backup_table, 0, &table);
        let backup = GptHeader { own_sector: last, other_sector: 1, entries_sector: backup_table, ..primary };
        self.write_gpt_header(last, &backup);
    }

    fn write_gpt_header(&mut self, sector: u64, header: &GptHeader) {
        let mut bytes = vec![0; self.sector_bytes];
        bytes[..8].copy_from_slice(b"EFI PART");
        bytes[8..12].copy_from_slice(&header.revision.to_le_bytes());
        bytes[12..16].copy_from_slice(&header.header_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&header.own_sector.to_le_bytes());
        bytes[32..40].copy_from_slice(&header.other_sector.to_le_bytes());
        bytes[40..48].copy_from_slice(&header.first_usable.to_le_bytes());
        bytes[48..56].copy_from_slice(&header.last_usable.to_le_bytes());
        bytes[72..80].copy_from_slice(&header.entries_sector.to_le_bytes());
        bytes[80..84].copy_from_slice(&header.entries.to_le_bytes());
        bytes[84..88].copy_from_slice(&header.entry_bytes.to_le_bytes());
        bytes[88..92].copy_from_slice(&header.entries_crc.to_le_bytes());
        let summed = (header.header_bytes as usize).min(self.sector_bytes);
        let crc = crc32(bytes[..summed].iter().copied());
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        self.write(sector, 0, &bytes);
    }

    fn read_gpt_header(&self, sector: u64) -> GptHeader {
        let bytes = &self.bytes[sector as usize * self.sector_bytes..];
        let four = |offset: usize| u32::from_le_bytes(core::array::from_fn(|place| bytes[offset + place]));
        let eight = |offset: usize| u64::from_le_bytes(core::array::from_fn(|place| bytes[offset + place]));
        GptHeader {
            revision: four(8),
            header_bytes: four(12),
            own_sector: eight(24),
            other_sector: eight(32),
            first_usable: eight(40),
            last_usable: eight(48),
            entries_sector: eight(72),
            entries: four(80),
            entry_bytes: four(84),
            entries_crc: four(88),
        }
    }

    /// Changes fields of the header in `sector` and makes its checksum right again.
    pub fn change_gpt_header(&mut self, sector: u64, change: impl FnOnce(&mut GptHeader)) {
        let mut header = self.read_gpt_header(sector);
        change(&mut header);
        self.write_gpt_header(sector, &header);
    }

    /// Makes the checksum of the entries right that the header in `sector` points to, if they lie
    /// on the disk.
    pub fn repair_entries_checksum(&mut self, sector: u64) {
        let header = self.read_gpt_header(sector);
        let start = usize::try_from(header.entries_sector)
            .ok()
            .and_then(|sector| sector.checked_mul(self.sector_bytes));
        let length = (header.entries as usize).checked_mul(header.entry_bytes as usize);
        let end = start.zip(length).and_then(|(start, length)| start.checked_add(length));
        if let Some(table) = start.zip(end).and_then(|(start, end)| self.bytes.get(start..end)) {
            let crc = crc32(table.iter().copied());
            self.change_gpt_header(sector, |header| header.entries_crc = crc);
        }
    }
}

impl SectorSource for FakeDisk {
    fn sector_bytes(&self) -> u32 {
        self.sector_bytes as u32
    }

    fn sectors(&self) -> u64 {
        (self.bytes.len() / self.sector_bytes) as u64
    }

    fn read(&mut self, first_sector: u64, into: &mut [u8]) -> Result<(), Unreadable> {
        let sectors = (into.len() / self.sector_bytes) as u64;
        assert!(into.len().is_multiple_of(self.sector_bytes) && first_sector + sectors <= self.sectors());
        if self.broken.range(first_sector..first_sector + sectors).next().is_some() {
            return Err(Unreadable);
        }
        let start = first_sector as usize * self.sector_bytes;
        into.copy_from_slice(&self.bytes[start..start + into.len()]);
        Ok(())
    }
}

/// The promise of a layout: its partitions lie on the disk, clear of the first sector, in order,
/// and apart.
///
/// # Panics
/// If it does not hold.
pub fn assert_sound(layout: &Layout, disk_sectors: u64) {
    for partition in &layout.partitions {
        assert!(
            partition.extent.end() <= disk_sectors && partition.extent.first_sector() > 0,
            "{partition:?}"
        );
        for other in &layout.partitions {
            assert!(
                other.number == partition.number || !other.extent.overlaps(&partition.extent),
                "{partition:?} {other:?}"
            );
        }
    }
    assert!(layout.partitions.is_sorted_by_key(|partition| partition.number));
}
