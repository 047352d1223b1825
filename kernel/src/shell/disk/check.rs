//! Writes sectors in every way there is and reads them back.

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use kcore::block::{self, BlockOp, Disk, IoError, SectorRange, SubmitError};
use kcore::dma::{DmaBuffer, DmaMemory, FramePiece, FramePieces};
use kcore::frame::{FRAME_BYTES, MAX_PIECES, NetFrame, Page};
use kcore::memory::PAGE_BYTES;

use super::{Done, Sectors, Trouble, say};

/// Where data begins in a frame of netblk's; pieces are tested with what they are for.
const PIECE_OFFSET: usize = 108;

/// What a sector holds after pass `pass`: nothing that another sector or pass has.
fn pattern(sector: u64, pass: u64, bytes: usize) -> Vec<u8> {
    let seed = sector.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ pass.wrapping_mul(0xd1b5_4a32_d192_ed03);
    (0..bytes as u64 / 8)
        .flat_map(|word| (seed.wrapping_add(word).wrapping_mul(0xff51_afd7_ed55_8ccd)).to_le_bytes())
        .collect()
}

/// Data of all sectors of a range after pass `pass`.
fn patterns(sectors: Sectors, pass: u64, sector_bytes: usize) -> Vec<u8> {
    let range = sectors.first..sectors.first + sectors.count;
    range.flat_map(|sector| pattern(sector, pass, sector_bytes)).collect()
}

/// Reads every sector and compares it.
fn verify(disk: &dyn Disk, sectors: Sectors, expected: &[u8], what: &str) -> Done {
    let mut read = vec![0; expected.len()];
    block::read(disk, sectors.first, &mut read)?;
    let sector_bytes = disk.sector_bytes() as usize;
    let wrong = read.chunks(sector_bytes).zip(expected.chunks(sector_bytes)).position(|(a, b)| a != b);
    match wrong {
        Some(place) => {
            let sector = sectors.first + place as u64;
            Err(Trouble::from(format!("{what}: sector {sector} reads as something else")))
        }
        None => {
            say!("  {what}: well");
            Ok(())
        }
    }
}

/// Each way of writing in its turn. The sectors are zero afterwards, or discarded.
pub fn run(disk: &dyn Disk, sectors: Sectors) -> Done {
    if sectors.count > 1024 {
        return Err(Trouble::from("a check takes 1024 sectors at most"));
    }
    let sector_bytes = disk.sector_bytes() as usize;
    let expected = |pass| patterns(sectors, pass, sector_bytes);
    say!("{}: {} sectors from {}", disk.name(), sectors.count, sectors.first);

    block::write(disk, sectors.first, &expected(1))?;
    block::flush(disk)?;
    verify(disk, sectors, &expected(1), "written from buffers")?;

    each_sector(sectors, |sector| from_page(disk, sector, &pattern(sector, 2, sector_bytes)))?;
    verify(disk, sectors, &expected(2), "written from pages, each durable")?;

    let most = usize::from(disk.features().max_segments).min(MAX_PIECES);
    // So many that a sector fits into them.
    let least = sector_bytes.div_ceil(FRAME_BYTES - PIECE_OFFSET).max(2);
    for pieces in least..=most {
        let pass = 1 + pieces as u64;
        each_sector(sectors, |sector| {
            from_pieces(disk, sector, &pattern(sector, pass, sector_bytes), pieces)
        })?;
        verify(disk, sectors, &expected(pass), &format!("written from {pieces} pieces"))?;
    }
    long(disk, sectors, &expected(9))?;
    verify(disk, sectors, &expected(9), "written in transfers as long as the disk takes")?;
    refusals(disk, sector_bytes)?;
    give_up(disk, sectors, &expected(9))?;
    say!("{}: all well", disk.name());
    Ok(())
}

fn each_sector(sectors: Sectors, mut one: impl FnMut(u64) -> Done) -> Done {
    (sectors.first..sectors.first + sectors.count).try_for_each(&mut one)
}

fn one(first_sector: u64) -> SectorRange {
    SectorRange { first_sector, sectors: 1 }
}

/// Writes a sector out of a page with forced unit access, and reads it into the page again.
fn from_page(disk: &dyn Disk, sector: u64, data: &[u8]) -> Done {
    let no_page = || Trouble::from("there is no page");
    let mut page = Page::alloc().ok_or_else(no_page)?;
    page.fill(PAGE_BYTES - data.len(), data).map_err(|_| no_page())?;
    let offset = PAGE_BYTES - data.len();
    let whole = |page| DmaMemory::from_page(page, offset, data.len()).map_err(|_| no_page());
    let memory = block::run(disk, BlockOp::Write, one(sector), true, Some(whole(page)?))?;
    let mut page = memory.and_then(DmaMemory::into_page).ok_or_else(no_page)?;
    page.fill(offset, &vec![0xa5; data.len()]).map_err(|_| no_page())?;
    let memory = block::run(disk, BlockOp::Read, one(sector), false, Some(whole(page)?))?;
    let page = memory.and_then(DmaMemory::into_page).ok_or_else(no_page)?;
    if page.bytes()[offset..] != *data {
        return Err(Trouble::from(format!("sector {sector} is not read into its page")));
    }
    Ok(())
}

/// Writes a sector out of `count` frames, of which each but the last has an odd number of dwords.
fn from_pieces(disk: &dyn Disk, sector: u64, data: &[u8], count: usize) -> Done {
    let mut pieces = FramePieces::new();
    let usual = (data.len() / count / 8 * 8).saturating_sub(4).max(data.len().div_ceil(4096) * 4);
    let mut rest = data;
    for number in 1..=count {
        let bytes = if number == count { rest.len() } else { usual };
        let Some((here, behind)) = rest.split_at_checked(bytes) else {
            return Err(Trouble::from("a sector has too few bytes for so many pieces"));
        };
        rest = behind;
        let mut frame = NetFrame::alloc().ok_or("there is no frame")?;
        let room = frame.whole_mut().get_mut(PIECE_OFFSET..PIECE_OFFSET + bytes);
        room.ok_or("a piece does not fit its frame")?.copy_from_slice(here);
        pieces
            .push(FramePiece::new(frame, PIECE_OFFSET, bytes).map_err(|_| "a piece does not fit its frame")?);
    }
    let memory = DmaMemory::from_pieces(pieces).map_err(|_| "there are no pieces")?;
    let memory = block::run(disk, BlockOp::Write, one(sector), false, Some(memory))?;
    match memory.and_then(DmaMemory::into_frames) {
        Some(frames) if frames.len() == count => Ok(()),
        _ => Err(Trouble::from("the frames did not come back")),
    }
}

/// Writes in transfers of the disk's full length, which need lists of pages.
fn long(disk: &dyn Disk, sectors: Sectors, data: &[u8]) -> Done {
    let sector_bytes = disk.sector_bytes() as usize;
    let most = disk.max_transfer_bytes() as usize / sector_bytes * sector_bytes;
    for (number, chunk) in data.chunks(most).enumerate() {
        // Not at the beginning of a page: one page more.
        let buffer = DmaBuffer::new(chunk.len() + 512, "a disk check")?;
        buffer.copy_in(512, chunk);
        let memory = DmaMemory::from_buffer(buffer, 512, chunk.len()).map_err(|_| "a buffer is too short")?;
        let first_sector = sectors.first + (number * most / sector_bytes) as u64;
        let range = SectorRange { first_sector, sectors: (chunk.len() / sector_bytes) as u32 };
        block::run(disk, BlockOp::Write, range, false, Some(memory))?;
    }
    Ok(())
}

/// What must be refused before the disk hears of it.
fn refusals(disk: &dyn Disk, sector_bytes: usize) -> Done {
    let attempt = |first_sector, bytes| -> Result<(), Trouble> {
        let buffer = DmaBuffer::new(bytes, "a disk check")?;
        let memory = DmaMemory::from_buffer(buffer, 0, bytes).map_err(|_| "a buffer is too short")?;
        match block::run(disk, BlockOp::Read, one(first_sector), false, Some(memory)) {
            Err(IoError::Rejected(SubmitError::OutOfRange | SubmitError::BadMemory)) => Ok(()),
            Err(error) => Err(Trouble::from(error)),
            Ok(_) => Err(Trouble::from("the disk took what it must refuse")),
        }
    };
    attempt(disk.sectors(), sector_bytes)?;
    attempt(u64::MAX, sector_bytes)?;
    attempt(0, sector_bytes - 4)?;
    say!("  what lies beyond the disk or the memory: refused");
    Ok(())
}

fn give_up(disk: &dyn Disk, sectors: Sectors, before: &[u8]) -> Done {
    let features = disk.features();
    if features.write_zeroes {
        block::write_zeroes(disk, sectors.first, sectors.count)?;
        verify(disk, sectors, &vec![0; before.len()], "zeroed")?;
        block::run(disk, BlockOp::WriteZeroes, one(sectors.first), true, None)?;
    } else {
        say!("  zeroed: the disk cannot");
    }
    if features.discard {
        block::discard(disk, sectors.first, sectors.count)?;
        let mut after = vec![0; before.len()];
        block::read(disk, sectors.first, &mut after)?;
        let zero = after.iter().all(|byte| *byte == 0);
        say!("  discarded: reads as {}", if zero { "zeroes" } else { "something else than zeroes" });
    } else {
        say!("  discarded: the disk cannot");
    }
    Ok(block::flush(disk)?)
}
