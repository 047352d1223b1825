//! The node's memory, as files.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result};

use super::protocol::{u32_at, u64_at};

struct Region {
    /// Where the node sees it.
    guest: u64,
    /// Where QEMU sees it: the queues' places are told so.
    user: u64,
    bytes: u64,
    /// Where it begins in its file.
    offset: u64,
    file: File,
}

#[derive(Default)]
pub(super) struct Memory {
    regions: Vec<Region>,
}

/// Bytes of a region's description.
const REGION_BYTES: usize = 32;

impl Memory {
    /// As a message tells it: how many regions, four padding bytes, the regions.
    pub fn of(body: &[u8], files: Vec<File>) -> Result<Memory> {
        let count = u32_at(body, 0)? as usize;
        anyhow::ensure!(count == files.len(), "{count} regions in {} files", files.len());
        let mut regions = Vec::new();
        for (number, file) in files.into_iter().enumerate() {
            let at = 8 + number * REGION_BYTES;
            regions.push(Region {
                guest: u64_at(body, at)?,
                bytes: u64_at(body, at + 8)?,
                user: u64_at(body, at + 16)?,
                offset: u64_at(body, at + 24)?,
                file,
            });
        }
        Ok(Memory { regions })
    }

    fn find(&self, address: u64, bytes: usize, start: impl Fn(&Region) -> u64) -> Result<(&File, u64)> {
        let inside = |region: &&Region| {
            address
                .checked_sub(start(region))
                .and_then(|offset| region.bytes.checked_sub(offset))
                .is_some_and(|rest| rest >= bytes as u64)
        };
        let region = self.regions.iter().find(inside);
        let region =
            region.with_context(|| format!("{bytes} bytes at {address:#x} are not the node's memory"))?;
        Ok((&region.file, address - start(region) + region.offset))
    }

    /// Reads from an address of the node's.
    pub fn read_guest(&self, address: u64, bytes: usize) -> Result<Vec<u8>> {
        let (file, offset) = self.find(address, bytes, |region| region.guest)?;
        let mut content = vec![0; bytes];
        file.read_exact_at(&mut content, offset).context("reading the node's memory")?;
        Ok(content)
    }

    pub fn write_guest(&self, address: u64, content: &[u8]) -> Result<()> {
        let (file, offset) = self.find(address, content.len(), |region| region.guest)?;
        file.write_all_at(content, offset).context("writing the node's memory")
    }

    /// Reads from an address of QEMU's.
    pub fn read_user<const N: usize>(&self, address: u64) -> Result<[u8; N]> {
        let (file, offset) = self.find(address, N, |region| region.user)?;
        let mut content = [0; N];
        file.read_exact_at(&mut content, offset).context("reading the node's memory")?;
        Ok(content)
    }

    pub fn write_user(&self, address: u64, content: &[u8]) -> Result<()> {
        let (file, offset) = self.find(address, content.len(), |region| region.user)?;
        file.write_all_at(content, offset).context("writing the node's memory")
    }
}
