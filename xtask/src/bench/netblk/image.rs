//! The disks: two images of the same content, one for each machine.
//!
//! Two partitions, because a server that goes through Linux's page cache and one that goes past it must not share
//! blocks: a direct write would throw the other's cached copy out, and what was measured would be that. They lie in
//! memory (/dev/shm) if they can: what is compared is how servers get at a fast disk, not the host's own.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cleanup::Cleanup;
use crate::workspace;

use super::RANGE_MIB;

const SECTORS_PER_MIB: u32 = 2048;
const MIB: usize = 1 << 20;
/// The first MiB holds the partition table, then come two partitions.
const PARTITIONS: u32 = 2;

/// An image, as long as the value lives.
pub struct Image {
    pub path: PathBuf,
    _removed: Cleanup,
}

impl Image {
    pub fn make(name: &str, otherwise: &Path) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory } else { otherwise };
        let path = folder.join(format!("nos-bench-{name}-{}.img", std::process::id()));
        let removed = Cleanup::new({
            let path = path.clone();
            move || workspace::remove(&path)
        });
        write(&path).with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { path, _removed: removed })
    }
}

fn write(path: &Path) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut file = BufWriter::with_capacity(MIB, File::create(path)?);
    let mut first = vec![0; MIB];
    first[..512].copy_from_slice(&partition_table());
    file.write_all(&first)?;
    let content = content();
    for _ in 0..PARTITIONS * RANGE_MIB {
        file.write_all(&content)?;
    }
    file.flush()
}

/// A master boot record: two Linux partitions (type 0x83) one behind the other.
fn partition_table() -> [u8; 512] {
    const ENTRIES: usize = 446;
    const ENTRY_BYTES: usize = 16;
    const LINUX: u8 = 0x83;
    let mut sector = [0; 512];
    for number in 0..PARTITIONS {
        let first_sector = (1 + number * RANGE_MIB) * SECTORS_PER_MIB;
        let sectors = RANGE_MIB * SECTORS_PER_MIB;
        let mut entry = [0; ENTRY_BYTES];
        entry[4] = LINUX;
        entry[8..12].copy_from_slice(&first_sector.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
        let at = ENTRIES + number as usize * ENTRY_BYTES;
        sector[at..at + ENTRY_BYTES].copy_from_slice(&entry);
    }
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    sector
}

/// A MiB that is no run of zeros: those would cost the host less to read.
fn content() -> Vec<u8> {
    // A xorshift generator (Marsaglia 2003) with a fixed seed.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut content = Vec::with_capacity(MIB);
    while content.len() < MIB {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        content.extend_from_slice(&state.to_le_bytes());
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partitions_lie_one_behind_the_other() {
        let table = partition_table();
        let number = |at: usize| u32::from_le_bytes(table[at..at + 4].try_into().unwrap());
        assert_eq!((number(446 + 8), number(446 + 12)), (2048, RANGE_MIB * 2048));
        assert_eq!(number(462 + 8), 2048 + RANGE_MIB * 2048);
        assert_eq!(table[510..], [0x55, 0xaa]);
    }
}
