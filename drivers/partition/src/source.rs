//! Where the sectors come from.

/// Sectors that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

/// A disk, as far as reading its partition table goes.
pub trait SectorSource {
    /// Bytes of a sector: 512 or 4096 on any disk there is.
    fn sector_bytes(&self) -> u32;

    /// Sectors of the disk.
    fn sectors(&self) -> u64;

    /// Reads whole sectors from `first_sector` on. They lie on the disk: callers here check first.
    fn read(&mut self, first_sector: u64, into: &mut [u8]) -> Result<(), Unreadable>;
}
