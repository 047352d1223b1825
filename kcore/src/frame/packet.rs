//! Packets of several pieces.
//!
//! Behind the head frame there may be further pieces: parts of shared pages (an answer whose data
//! no frame holds) and further frames (a jumbo packet, as it was received). They are noted in a
//! table beside the frames (`pieces::PieceTable`), under the head's number, so they go wherever
//! the head goes, chains and devices included, and a packet of one piece does not know of them.

use arch::addr::PhysAddr;
use pieces::{MAX_EXTRAS, Piece};

use super::{DeviceFrame, FRAME_BYTES, FrameChain, NetFrame, Page, pool};
use crate::memory::PAGE_BYTES;

const _: () = assert!(FRAME_BYTES == pieces::FRAME_BYTES && PAGE_BYTES == pieces::PAGE_BYTES);

/// One piece of a packet, for a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where it begins. It is physically contiguous.
    pub phys: PhysAddr,
    /// Its length.
    pub bytes: usize,
}

/// The pieces behind head `head`, of which there are `extras`. Only for the head's owner.
pub(super) fn behind(head: u32, extras: u8) -> impl Iterator<Item = Piece> + Clone {
    (0..usize::from(extras)).map(move |place| pool().behind.get(head, place))
}

pub(super) fn segment(piece: Piece) -> Segment {
    let phys = match piece {
        Piece::Frame { index, .. } => pool().phys(index),
        Piece::Page { index, offset, .. } => super::page::phys(index) + usize::from(offset),
    };
    Segment { phys, bytes: piece.bytes() }
}

/// Gives up what is behind a head that is done with. Out of the way of packets of one piece.
#[cold]
pub(super) fn free_behind(head: u32, extras: u8) {
    behind(head, extras).for_each(free_piece);
}

fn free_piece(piece: Piece) {
    match piece {
        Piece::Frame { index, .. } => pool().give(index),
        Piece::Page { index, .. } => drop(Page::from_index(index)),
    }
}

impl NetFrame {
    /// How many pieces the packet has; 1 if it is all in this frame.
    #[inline]
    pub fn piece_count(&self) -> usize {
        1 + usize::from(self.extras)
    }

    fn has_room(&self) -> bool {
        usize::from(self.extras) < MAX_EXTRAS
    }

    fn note(&mut self, piece: Piece) {
        pool().behind.set(self.index, self.extras.into(), piece);
        self.extras += 1;
    }

    /// Puts the bytes `offset..offset + bytes` of a page behind the packet. Gives the page back if
    /// they do not lie in it, if they are none, or if the packet has all its pieces.
    pub fn attach_page(&mut self, page: Page, offset: usize, bytes: usize) -> Result<(), Page> {
        let index = page.into_index();
        match Piece::page(index, offset, bytes) {
            Some(piece) if self.has_room() => {
                self.note(piece);
                Ok(())
            }
            _ => Err(Page::from_index(index)),
        }
    }

    /// Puts another frame's packet behind this one. Gives it back if it is empty or has pieces of
    /// its own, or if this packet has all its pieces.
    pub fn attach_frame(&mut self, frame: NetFrame) -> Result<(), NetFrame> {
        match Piece::frame(frame.index, frame.len()) {
            Some(piece) if self.has_room() && frame.extras == 0 => {
                core::mem::forget(frame);
                self.note(piece);
                Ok(())
            }
            _ => Err(frame),
        }
    }

    /// Takes off what is behind the head: its frames, in their order. Pages are given up.
    #[inline]
    pub fn detach(&mut self) -> FrameChain {
        if self.extras == 0 { FrameChain::new() } else { self.take_off() }
    }

    #[inline(never)]
    fn take_off(&mut self) -> FrameChain {
        let mut frames = FrameChain::new();
        for piece in behind(self.index, core::mem::take(&mut self.extras)) {
            match piece {
                Piece::Frame { index, bytes } => {
                    frames.push(NetFrame { index, len: bytes, extras: 0, joins: false })
                }
                Piece::Page { index, .. } => drop(Page::from_index(index)),
            }
        }
        frames
    }

    /// Length of the packet with all its pieces.
    #[inline]
    pub fn total_len(&self) -> usize {
        if self.extras == 0 { self.len() } else { self.len() + self.len_behind() }
    }

    #[inline(never)]
    fn len_behind(&self) -> usize {
        behind(self.index, self.extras).map(Piece::bytes).sum()
    }

    /// The pieces, head first, for a device.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + Clone + '_ {
        let head = Segment { phys: self.phys(), bytes: self.len() };
        core::iter::once(head).chain(behind(self.index, self.extras).map(segment))
    }

    /// The pieces, head first, to read.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> + Clone + '_ {
        core::iter::once(self.bytes()).chain(behind(self.index, self.extras).map(|piece| {
            let start = match piece {
                Piece::Frame { index, .. } => pool().address(index).cast_const(),
                Piece::Page { index, offset, .. } => super::page::address(index, offset.into()),
            };
            // SAFETY: the piece lies in its frame or page (`Piece` says so). The frame is this
            // packet's alone, as the head is, and `self` is borrowed; of the page this packet has a
            // share, and a page is written to only by a holder that shares it with nobody and is
            // borrowed mutably or moved for it.
            unsafe { core::slice::from_raw_parts(start, piece.bytes()) }
        }))
    }
}

impl DeviceFrame {
    /// How many pieces the packet has.
    pub fn piece_count(&self) -> usize {
        1 + usize::from(self.extras)
    }

    /// The piece that is `place`-th behind the head, counted from 0; `None` beyond the last.
    #[inline]
    pub fn piece_behind(&self, place: usize) -> Option<Segment> {
        if place < usize::from(self.extras) { Some(self.noted(place)) } else { None }
    }

    #[inline(never)]
    fn noted(&self, place: usize) -> Segment {
        segment(pool().behind.get(self.index, place))
    }

    /// Takes back a packet that a card received: `len` bytes, from the head on through the frames
    /// behind it, each full before the next begins. Frames that it did not reach go to `spare`.
    /// `len` is cut to what the frames hold. The device must be done with all of it.
    #[inline]
    pub fn reclaim_received(self, len: usize, spare: &mut FrameChain) -> NetFrame {
        if self.extras == 0 { self.reclaim(len) } else { self.reclaim_frames(len, spare) }
    }

    #[inline(never)]
    fn reclaim_frames(self, len: usize, spare: &mut FrameChain) -> NetFrame {
        let extras = self.extras;
        let mut packet = DeviceFrame { index: self.index, extras: 0 }.reclaim(len);
        let mut rest = len - packet.len();
        for piece in behind(self.index, extras) {
            let Piece::Frame { index, bytes: room } = piece else {
                free_piece(piece);
                continue;
            };
            let bytes = rest.min(room.into());
            rest -= bytes;
            let frame = NetFrame { index, len: bytes as u16, extras: 0, joins: false };
            // An empty one is given back: the packet ended before it.
            if let Err(unused) = packet.attach_frame(frame) {
                spare.push(unused);
            }
        }
        packet
    }
}
