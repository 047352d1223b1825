//! One request, from its chain (VIRTIO 1.2 section 5.2.6).

use alloc::vec::Vec;

use crate::block::device::BlockConfig;
use crate::block::{ID_BYTES, SECTOR_BYTES};
use crate::chain::{Chain, Reader, Segment, cut};
use crate::ram::{GuestPhysAddr, GuestRam, OutOfRange};

/// Bytes before the data: type, reserved, sector.
const HEADER_BYTES: usize = 16;
/// struct virtio_blk_discard_write_zeroes.
const RANGE_BYTES: u32 = 16;

/// Most ranges of one DISCARD or WRITE_ZEROES, as the configuration says it.
pub(super) const MOST_RANGES: u32 = 32;

/// Types of requests (5.2.6).
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// The UNMAP flag of a range; the others are reserved.
const RANGE_UNMAP: u32 = 1;

/// Values of the status byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// Sectors of the disk's own size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SectorRange {
    pub first: u64,
    pub sectors: u64,
}

/// What a request asks for. Its data or ranges are in the lists that [`parse`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    Read {
        first_sector: u64,
        bytes: u32,
    },
    Write {
        first_sector: u64,
        bytes: u32,
    },
    Flush,
    Discard,
    WriteZeroes,
    /// Nothing is left to be done.
    Done,
    Refused(Status),
}

/// A request as parsed.
pub(super) struct Parsed {
    pub wish: Wish,
    pub status_at: GuestPhysAddr,
    /// Bytes from the first writable one on that are written when all is well, the status
    /// included if there is no gap before it: what the used ring may claim (2.7.8.2).
    pub written_bytes: u32,
    /// The same when it is not.
    pub written_bytes_failed: u32,
}

/// Reads the request in `chain`; `None` if it has no room for a header or a status, so that it
/// cannot be answered. Data segments go to `data`, ranges to `ranges`, both of which are empty.
///
/// The framing is the driver's to choose (2.7.4.1): the header ends where 16 bytes end, and the
/// status is the last writable byte, in whatever descriptors they lie.
pub(super) fn parse<R: GuestRam + ?Sized>(
    ram: &R,
    chain: &Chain,
    config: &BlockConfig,
    data: &mut Vec<Segment>,
    ranges: &mut Vec<SectorRange>,
) -> Result<Option<Parsed>, OutOfRange> {
    let mut header = [0; HEADER_BYTES];
    let mut reader = chain.reader();
    let read = reader.read(ram, &mut header)?;
    let last = chain.writable().last();
    let status_at = last.and_then(|last| last.address().checked_add(u64::from(last.len_bytes()) - 1));
    let (HEADER_BYTES, Some(status_at)) = (read, status_at) else { return Ok(None) };

    let [t0, t1, t2, t3, _, _, _, _, s0, s1, s2, s3, s4, s5, s6, s7] = header;
    let kind = u32::from_le_bytes([t0, t1, t2, t3]);
    let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let out_bytes = chain.readable_bytes() - HEADER_BYTES as u32;
    let in_bytes = chain.writable_bytes() - 1;

    let status_alone = u32::from(in_bytes == 0);
    let mut written_bytes = status_alone;
    let wish = match kind {
        // A read-only disk refuses with IOERR, and nothing is written (5.2.6.2).
        OUT if config.read_only => Wish::Refused(Status::IoError),
        IN => match config.data_range(sector, in_bytes) {
            Some(first_sector) => {
                cut(chain.writable(), 0, in_bytes, data);
                written_bytes = in_bytes + 1;
                Wish::Read { first_sector, bytes: in_bytes }
            }
            None => Wish::Refused(Status::IoError),
        },
        OUT => match config.data_range(sector, out_bytes) {
            Some(first_sector) => {
                cut(chain.readable(), HEADER_BYTES as u32, out_bytes, data);
                Wish::Write { first_sector, bytes: out_bytes }
            }
            None => Wish::Refused(Status::IoError),
        },
        FLUSH => Wish::Flush,
        GET_ID => {
            let mut writer = chain.writer();
            let bytes = in_bytes.min(ID_BYTES as u32);
            writer.write(ram, &config.id[..bytes as usize])?;
            written_bytes = bytes + u32::from(bytes == in_bytes);
            Wish::Done
        }
        DISCARD | WRITE_ZEROES => read_ranges(ram, &mut reader, config, kind == DISCARD, out_bytes, ranges)?,
        _ => Wish::Refused(Status::Unsupported),
    };
    Ok(Some(Parsed { wish, status_at, written_bytes, written_bytes_failed: status_alone }))
}

/// The ranges of a DISCARD or WRITE_ZEROES of `bytes` bytes.
fn read_ranges<R: GuestRam + ?Sized>(
    ram: &R,
    reader: &mut Reader<'_>,
    config: &BlockConfig,
    discard: bool,
    bytes: u32,
    ranges: &mut Vec<SectorRange>,
) -> Result<Wish, OutOfRange> {
    if config.read_only {
        return Ok(Wish::Refused(Status::IoError));
    }
    let most = if discard { config.max_discard_sectors } else { config.max_write_zeroes_sectors };
    if most == 0 {
        return Ok(Wish::Refused(Status::Unsupported));
    }
    let count = bytes / RANGE_BYTES;
    if !bytes.is_multiple_of(RANGE_BYTES) || !(1..=MOST_RANGES).contains(&count) {
        return Ok(Wish::Refused(Status::IoError));
    }
    for _ in 0..count {
        let mut raw = [0; RANGE_BYTES as usize];
        reader.read(ram, &mut raw)?;
        match range(config, &raw, discard) {
            Ok(range) => ranges.push(range),
            // Before the first is begun, so that a refused request has done nothing.
            Err(status) => return Ok(Wish::Refused(status)),
        }
    }
    Ok(if discard { Wish::Discard } else { Wish::WriteZeroes })
}

/// One range of a DISCARD or WRITE_ZEROES. Unknown flags are unsupported, and so is UNMAP on a
/// discard (5.2.6.2). On zeroes UNMAP allows the device to unmap, which it need not do.
fn range(
    config: &BlockConfig,
    raw: &[u8; RANGE_BYTES as usize],
    discard: bool,
) -> Result<SectorRange, Status> {
    let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, f0, f1, f2, f3] = *raw;
    let flags = u32::from_le_bytes([f0, f1, f2, f3]);
    let known = if discard { 0 } else { RANGE_UNMAP };
    if flags & !known != 0 {
        return Err(Status::Unsupported);
    }
    let first = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
    config.range(first, sectors.into()).ok_or(Status::IoError)
}

impl BlockConfig {
    /// The disk's first sector of `bytes` bytes from the header's `sector` on, if they are whole
    /// sectors of the disk and lie on it.
    fn data_range(&self, sector: u64, bytes: u32) -> Option<u64> {
        let whole = bytes.is_multiple_of(SECTOR_BYTES);
        let range = self.range(sector, u64::from(bytes / SECTOR_BYTES)).filter(|_| whole)?;
        Some(range.first)
    }

    /// `count` sectors of 512 bytes from `first` on, as the disk's own.
    fn range(&self, first: u64, count: u64) -> Option<SectorRange> {
        let ratio = self.ratio();
        let aligned = first.is_multiple_of(ratio) && count.is_multiple_of(ratio);
        let range = SectorRange { first: first / ratio, sectors: count / ratio };
        let end = range.first.checked_add(range.sectors)?;
        (aligned && end <= self.sectors).then_some(range)
    }
}
