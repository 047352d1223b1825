//! How a request's data is cut into transfers.

use alloc::vec::Vec;

use crate::chain::Segment;

/// What one transfer may be, as the disk and the guest's memory have it.
#[derive(Clone, Copy, Debug)]
pub struct TransferLimits {
    /// Most bytes of a transfer; one sector at least.
    pub max_bytes: u32,
    /// Most pieces of guest memory in a transfer without a buffer.
    pub max_pieces: u16,
    /// Guest memory is contiguous for the disk between multiples of this (a power of two).
    pub contiguous_bytes: u64,
    /// Addresses and lengths of pieces are multiples of this (a power of two).
    pub alignment_bytes: u32,
    /// Most bytes of a transfer through a buffer; one sector at least.
    pub bounce_bytes: u32,
}

/// What is left of a request's data.
#[derive(Debug, Default)]
pub(super) struct DataCursor {
    /// All of it, in order.
    pub segments: Vec<Segment>,
    /// The next segment, and how many of its bytes are done.
    index: usize,
    done_bytes: u32,
}

/// A transfer's data: so many bytes, which are in the list that [`DataCursor::next`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub bytes: u32,
    pub direct: bool,
    /// The cursor behind it.
    index: usize,
    done_bytes: u32,
}

impl DataCursor {
    pub fn clear(&mut self) {
        self.segments.clear();
        (self.index, self.done_bytes) = (0, 0);
    }

    /// The next transfer's data, which goes into `pieces`; nothing if all is done. It stays the
    /// next until [`Self::pass`]. What is left is whole sectors of `sector_bytes`.
    pub fn next(
        &self,
        limits: &TransferLimits,
        sector_bytes: u32,
        pieces: &mut Vec<Segment>,
    ) -> Option<Piece> {
        let direct = self.gather(limits.max_bytes, Some(limits), sector_bytes, pieces);
        if direct.bytes > 0 {
            return Some(direct);
        }
        let most_bytes = limits.bounce_bytes.min(limits.max_bytes);
        let bounced = self.gather(most_bytes, None, sector_bytes, pieces);
        // Less than a sector is left: not what the caller promised.
        (bounced.bytes > 0).then_some(bounced)
    }

    /// Whether nothing is left.
    pub fn is_done(&self) -> bool {
        self.index >= self.segments.len()
    }

    pub fn pass(&mut self, piece: &Piece) {
        (self.index, self.done_bytes) = (piece.index, piece.done_bytes);
    }

    /// As many whole sectors as `most_bytes` and, for a direct transfer, its limits allow.
    fn gather(
        &self,
        most_bytes: u32,
        direct: Option<&TransferLimits>,
        sector_bytes: u32,
        pieces: &mut Vec<Segment>,
    ) -> Piece {
        pieces.clear();
        let most_bytes = most_bytes / sector_bytes * sector_bytes;
        let (mut index, mut done_bytes, mut bytes) = (self.index, self.done_bytes, 0u32);
        while bytes < most_bytes {
            let Some(&segment) = self.segments.get(index) else { break };
            let rest =
                if done_bytes == 0 { Some(segment) } else { segment.split(done_bytes).map(|(_, rest)| rest) };
            let Some(rest) = rest else { break };
            let mut here = rest.len_bytes().min(most_bytes - bytes);
            if let Some(limits) = direct {
                let border_bytes =
                    limits.contiguous_bytes - rest.address().as_u64() % limits.contiguous_bytes;
                here = u32::try_from(border_bytes).map_or(here, |border_bytes| here.min(border_bytes));
                let aligned = rest.address().is_aligned(u64::from(limits.alignment_bytes))
                    && here.is_multiple_of(limits.alignment_bytes);
                if pieces.len() >= usize::from(limits.max_pieces) || !aligned {
                    break;
                }
            }
            pieces.push(rest.split(here).map_or(rest, |(first, _)| first));
            bytes += here;
            done_bytes += here;
            if done_bytes == segment.len_bytes() {
                (index, done_bytes) = (index + 1, 0);
            }
        }
        let whole_bytes = bytes / sector_bytes * sector_bytes;
        shorten(pieces, whole_bytes);
        let (index, done_bytes) = self.behind(whole_bytes);
        Piece { bytes: whole_bytes, direct: direct.is_some(), index, done_bytes }
    }

    /// The place `bytes` bytes on.
    fn behind(&self, bytes: u32) -> (usize, u32) {
        let (mut index, mut done_bytes, mut left) = (self.index, self.done_bytes, bytes);
        while left > 0 {
            let Some(segment) = self.segments.get(index) else { break };
            let here = (segment.len_bytes() - done_bytes).min(left);
            left -= here;
            done_bytes += here;
            if done_bytes == segment.len_bytes() {
                (index, done_bytes) = (index + 1, 0);
            }
        }
        (index, done_bytes)
    }
}

/// Keeps the first `bytes` bytes.
fn shorten(pieces: &mut Vec<Segment>, bytes: u32) {
    let (mut left, mut kept) = (bytes, 0);
    for piece in pieces.iter_mut() {
        if left == 0 {
            break;
        }
        kept += 1;
        match piece.split(left) {
            Some((first, _)) => (*piece, left) = (first, 0),
            None => left -= piece.len_bytes(),
        }
    }
    pieces.truncate(kept);
}
