//! The table of pieces behind heads.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{FRAME_BYTES, MAX_EXTRAS, PAGE_BYTES};

/// A piece behind a head. Holding one proves that it is not empty and lies inside its frame or
/// page; not that there is a frame or page of that number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// The first bytes of a frame, which belongs to the packet.
    Frame { index: u32, bytes: u16 },
    /// Part of a page, of which the packet has a share.
    Page { index: u32, offset: u16, bytes: u16 },
}

/// Marks a page; a frame without it.
const PAGE: u64 = 1 << 63;
const INDEX_SHIFT: u32 = 32;
const INDEX_LIMIT: u32 = 1 << 31;
const OFFSET_SHIFT: u32 = 16;

impl Piece {
    /// The first `bytes` bytes of frame `index`.
    pub fn frame(index: u32, bytes: usize) -> Option<Piece> {
        let sound = index < INDEX_LIMIT && (1..=FRAME_BYTES).contains(&bytes);
        sound.then_some(Piece::Frame { index, bytes: bytes as u16 })
    }

    /// The bytes `offset..offset + bytes` of page `index`.
    pub fn page(index: u32, offset: usize, bytes: usize) -> Option<Piece> {
        let end = offset.checked_add(bytes)?;
        let sound = index < INDEX_LIMIT && bytes > 0 && end <= PAGE_BYTES;
        sound.then_some(Piece::Page { index, offset: offset as u16, bytes: bytes as u16 })
    }

    /// Its length in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Piece::Frame { bytes, .. } | Piece::Page { bytes, .. } => bytes.into(),
        }
    }

    fn to_bits(self) -> u64 {
        match self {
            Piece::Frame { index, bytes } => u64::from(index) << INDEX_SHIFT | u64::from(bytes),
            Piece::Page { index, offset, bytes } => {
                PAGE | u64::from(index) << INDEX_SHIFT | u64::from(offset) << OFFSET_SHIFT | u64::from(bytes)
            }
        }
    }

    fn from_bits(bits: u64) -> Piece {
        let index = (bits >> INDEX_SHIFT) as u32 & (INDEX_LIMIT - 1);
        let (offset, bytes) = ((bits >> OFFSET_SHIFT) as u16, bits as u16);
        if bits & PAGE != 0 { Piece::Page { index, offset, bytes } } else { Piece::Frame { index, bytes } }
    }
}

/// Cells for the pieces behind every frame that may be a head. The cells of a frame belong to
/// whoever owns the frame, and travel with it unseen: whatever hands the frame over orders their
/// accesses too, so these are relaxed.
#[derive(Debug)]
pub struct PieceTable {
    cells: Box<[AtomicU64]>,
}

impl PieceTable {
    /// A table for `frames` frames.
    pub fn new(frames: u32) -> Result<PieceTable, TryReserveError> {
        let cells = frames as usize * MAX_EXTRAS;
        let mut table = Vec::new();
        table.try_reserve_exact(cells)?;
        table.extend((0..cells).map(|_| AtomicU64::new(0)));
        Ok(PieceTable { cells: table.into_boxed_slice() })
    }

    /// Bytes that a table for `frames` frames takes.
    pub const fn size_bytes(frames: u32) -> usize {
        frames as usize * MAX_EXTRAS * size_of::<AtomicU64>()
    }

    fn cell(&self, head: u32, place: usize) -> &AtomicU64 {
        assert!(place < MAX_EXTRAS, "piece {place} behind a head");
        &self.cells[head as usize * MAX_EXTRAS + place]
    }

    /// Notes the piece that is `place`-th behind `head`, counted from 0.
    pub fn set(&self, head: u32, place: usize, piece: Piece) {
        self.cell(head, place).store(piece.to_bits(), Relaxed);
    }

    /// The piece that was noted last for `head` and `place`.
    pub fn get(&self, head: u32, place: usize) -> Piece {
        Piece::from_bits(self.cell(head, place).load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_pieces_and_pieces_over_the_edge_are_none() {
        assert_eq!(Piece::frame(0, 0), None);
        assert_eq!(Piece::frame(0, FRAME_BYTES + 1), None);
        assert_eq!(Piece::frame(INDEX_LIMIT, 1), None);
        assert_eq!(Piece::page(0, 0, 0), None);
        assert_eq!(Piece::page(0, 1, PAGE_BYTES), None);
        assert_eq!(Piece::page(0, PAGE_BYTES, 1), None);
        assert_eq!(Piece::page(0, usize::MAX, 2), None);
        assert_eq!(Piece::page(INDEX_LIMIT, 0, 1), None);
        assert_eq!(Piece::page(7, 0, PAGE_BYTES).unwrap().bytes(), PAGE_BYTES);
    }

    proptest! {
        /// Every cell keeps what was noted last, whatever its neighbours hold.
        #[test]
        fn cells_keep_what_is_noted(
            notes in proptest::collection::vec(
                (0u32..4, 0..MAX_EXTRAS, any::<bool>(), 0..INDEX_LIMIT, 0..5000usize, 0..5000usize),
                0..60,
            )
        ) {
            let table = PieceTable::new(4).unwrap();
            let mut model = std::collections::BTreeMap::new();
            for (head, place, page, index, offset, bytes) in notes {
                let piece = if page { Piece::page(index, offset, bytes) } else { Piece::frame(index, bytes) };
                let Some(piece) = piece else { continue };
                prop_assert_eq!(piece.bytes(), bytes);
                table.set(head, place, piece);
                model.insert((head, place), piece);
            }
            for ((head, place), piece) in model {
                prop_assert_eq!(table.get(head, place), piece);
            }
        }
    }
}
