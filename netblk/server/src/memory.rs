//! A job's memory: where the disk puts a READ's data, and from where it takes a WRITE's.
//!
//! ```text
//! READ, one datagram that fits a frame   a fresh frame, behind room for the headers
//! READ, anything longer                  a page; each datagram is a frame with headers and a share of it
//! WRITE in one frame                     that frame
//! WRITE in several frames                those frames, if the disk takes so many pieces (NVMe: SGL);
//!                                        otherwise one copy into a page, which is counted
//! ```

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use kcore::dma::{DmaMemory, FramePiece, FramePieces};
use kcore::frame::{MAX_PIECES, NetFrame, Page};
use netblk_proto::v2::Status;

use crate::instance::Instance;
use crate::slot::{Cargo, Job, JobReply, Lent, MOST_FRAMES, Piece, Work};

/// What goes to the disk and what stays in the slot.
pub(crate) struct Loan {
    pub memory: Option<DmaMemory>,
    pub kept: Cargo,
}

impl Loan {
    fn of(memory: DmaMemory, kind: Lent) -> Self {
        Self { memory: Some(memory), kept: Cargo::Lent(kind) }
    }
}

/// A job's memory is about to go to the disk. `frames_left`: what READs may take of the pool.
///
/// # Errors
/// The cargo: no frame or page is free.
pub(crate) fn lend(
    instance: &Instance,
    job: &Job,
    cargo: Cargo,
    frames_left: &mut u32,
) -> Result<Loan, Cargo> {
    match (job.work, cargo) {
        (Work::Read(piece), _) => {
            let bytes = piece.range.length();
            // Its replies' frames, one for each datagram.
            let Some(left) = frames_left.checked_sub(job.datagrams.into()) else { return Err(Cargo::None) };
            *frames_left = left;
            lend_for_read(instance, job, bytes).ok_or(Cargo::None)
        }
        (Work::Write(range, _), Cargo::Frame(frame)) => {
            match DmaMemory::from_frame(frame, job.data_start(), range.length() as usize) {
                Ok(memory) => Ok(Loan::of(memory, Lent::Frame)),
                // Never of a frame that was received: its packet lies in it. The disk refuses the rest.
                Err(frame) => Ok(Loan { memory: None, kept: Cargo::Frame(frame) }),
            }
        }
        (Work::Write(..), Cargo::Data(data)) => lend_data(instance, data),
        (Work::Write(..), Cargo::Pieces(pieces)) => Ok(lend_pieces(*pieces)),
        (Work::Write(range, _), Cargo::Copied(page, frame)) => {
            Ok(lend_copy(page, range.length() as usize, frame))
        }
        (_, cargo) => Ok(Loan { memory: None, kept: cargo }),
    }
}

fn lend_for_read(instance: &Instance, job: &Job, bytes: u32) -> Option<Loan> {
    if instance.fits_frame(job.ticket.is_some(), bytes, instance.datagram_bytes(job)) {
        let memory = DmaMemory::from_frame(NetFrame::alloc()?, job.data_start(), bytes as usize).ok()?;
        Some(Loan::of(memory, Lent::Frame))
    } else {
        let memory = DmaMemory::from_page(Page::alloc()?, 0, bytes as usize).ok()?;
        Some(Loan::of(memory, Lent::Page))
    }
}

fn lend_data(instance: &Instance, data: Box<ArrayVec<Piece, MOST_FRAMES>>) -> Result<Loan, Cargo> {
    if data.len() <= instance.terms.disk_segments.min(MAX_PIECES) {
        let pieces = data
            .into_iter()
            // None is left out: each lies in its frame and is not empty (`receive::spread`).
            .filter_map(|Piece { frame, offset, bytes }| FramePiece::new(frame, offset, bytes).ok())
            .collect();
        return Ok(lend_pieces(pieces));
    }
    let Some(mut page) = Page::alloc() else { return Err(Cargo::Data(data)) };
    let mut filled = 0;
    for Piece { frame, offset, bytes } in &*data {
        let piece = frame.bytes().get(*offset..offset + bytes).unwrap_or(&[]);
        // A page that was just taken is nobody else's, and a WRITE is not longer than one.
        if page.fill(filled, piece).is_ok() {
            filled += piece.len();
        }
    }
    instance.counters.copies.one();
    instance.counters.copied_bytes.add(filled as u64);
    match data.into_iter().next() {
        Some(Piece { frame, .. }) => Ok(lend_copy(page, filled, frame)),
        None => Ok(Loan { memory: None, kept: Cargo::None }),
    }
}

fn lend_pieces(pieces: FramePieces) -> Loan {
    match DmaMemory::from_pieces(pieces) {
        Ok(memory) => Loan::of(memory, Lent::Pieces),
        Err(_) => Loan { memory: None, kept: Cargo::None },
    }
}

fn lend_copy(page: Page, bytes: usize, frame: NetFrame) -> Loan {
    Loan { memory: DmaMemory::from_page(page, 0, bytes).ok(), kept: Cargo::LentCopy(frame) }
}

/// What the disk gave back, as it was before it was lent; `kept` is what the slot holds.
pub(crate) fn reclaim(kept: Cargo, memory: Option<DmaMemory>) -> Cargo {
    let (kind, memory) = match (kept, memory) {
        (Cargo::LentCopy(frame), Some(memory)) => {
            return match memory.into_page() {
                Some(page) => Cargo::Copied(page, frame),
                None => Cargo::Frame(frame),
            };
        }
        (Cargo::LentCopy(frame), None) => return Cargo::Frame(frame),
        (Cargo::Lent(kind), Some(memory)) => (kind, memory),
        // A driver that lost the memory.
        (Cargo::Lent(_), None) => return Cargo::None,
        (kept, _) => return kept,
    };
    let reclaimed = match kind {
        Lent::Frame => memory.into_frame().map(Cargo::Frame),
        // Only a READ's page is lent without a frame beside it.
        Lent::Page => memory.into_page().map(Cargo::Page),
        Lent::Pieces => memory.into_frames().map(|pieces| Cargo::Pieces(Box::new(pieces))),
    };
    reclaimed.unwrap_or(Cargo::None)
}

/// The frame for a reply without data.
pub(crate) fn reply_frame(cargo: Cargo) -> Option<NetFrame> {
    let mut frame = match cargo {
        Cargo::Frame(frame) | Cargo::Copied(_, frame) | Cargo::LentCopy(frame) => frame,
        Cargo::Data(data) => data.into_iter().next()?.frame,
        Cargo::Pieces(pieces) => pieces.into_iter().next()?.into_frame(),
        Cargo::None | Cargo::Page(_) | Cargo::Lent(_) => NetFrame::alloc()?,
    };
    // A jumbo packet's other frames.
    drop(frame.detach());
    Some(frame)
}

/// The datagrams that answer a READ, with their headers and data. How many there are: fewer than its job is
/// worth if the pool ran dry.
pub(crate) fn datagrams(instance: &Instance, job: &Job, cargo: Cargo, mut send: impl FnMut(NetFrame)) -> u8 {
    let Work::Read(piece) = job.work else { return 0 };
    let (mut offset, length) = (piece.range.offset(), piece.range.length());
    let reply = |nth: u16, offset, length| JobReply {
        status: Status::Ok,
        offset,
        length,
        part: piece.first_part + nth,
        parts: piece.parts,
    };
    let page = match cargo {
        Cargo::Frame(mut frame) => {
            let head = reply(0, offset, length).head(job);
            instance.address(&mut frame, &job.addresses, &head, length as usize, &[]);
            frame.set_len(frame.len() + length as usize);
            send(frame);
            return 1;
        }
        Cargo::Page(page) => page,
        _ => return 0,
    };
    let datagram_bytes = instance.datagram_bytes(job);
    let (mut start, mut sent) = (0, 0);
    for nth in 0..job.datagrams {
        let bytes = (length - start).min(datagram_bytes);
        if let Some(mut frame) = NetFrame::alloc() {
            let head = reply(nth.into(), offset, bytes).head(job);
            instance.address(&mut frame, &job.addresses, &head, bytes as usize, &[]);
            // A fresh frame has room for a piece, and the piece lies in the page.
            if frame.attach_page(page.clone(), start as usize, bytes as usize).is_ok() {
                send(frame);
                sent += 1;
            }
        }
        start += bytes;
        offset += u64::from(bytes);
    }
    sent
}
