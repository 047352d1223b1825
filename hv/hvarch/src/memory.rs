//! Guest RAM: runs of host pages that the guest's CPUs write at any time.
//!
//! RAM is taken in pieces of 2 MiB, so that one nested page-table entry maps each, and
//! no large contiguous area is asked of a host that has run for a while. The guest's
//! map has holes (the VGA window, the device area below 4 GiB), and an access there is
//! refused here just as the nested tables refuse it to the guest.
//!
//! No Rust reference ever points into it: the guest races with every access, so bytes
//! are moved by string instructions in assembly, which the language's memory model
//! does not see, and ring indices by single atomic accesses. What was the guest's is
//! overwritten before its pages go back to the node.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU16, Ordering};

use arch::addr::{PhysAddr, phys_to_virt};
use kcore::dma::{DmaMemory, Segments};
use kcore::frame::Segment;
use kcore::memory::{OutOfMemory, PAGE_BYTES, PageRun};
use virtio_device::{GuestPhysAddr, GuestRam, OutOfRange};

/// What one [`PageRun`] of a guest spans, and one large nested page.
pub const PIECE_BYTES: u64 = 2 << 20;

const PIECE_PAGES: usize = PIECE_BYTES as usize / PAGE_BYTES;

/// The RAM of one guest.
pub struct GuestMemory {
    /// Piece `n` holds the guest's RAM from `n * PIECE_BYTES` on, were there no holes
    /// between the spans.
    pieces: Vec<PageRun>,
    spans: Vec<Span>,
}

/// RAM without a hole.
struct Span {
    guest: Range<u64>,
    /// Where the span begins in the row of pieces.
    offset: u64,
}

/// Why a guest's RAM could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    OutOfMemory(OutOfMemory),
    /// The ranges are not in order, overlap, or are not whole pages.
    BadMap,
}

impl core::fmt::Display for MemoryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MemoryError::OutOfMemory(out) => out.fmt(f),
            MemoryError::BadMap => f.write_str("the guest's memory map is not made of whole, ordered pages"),
        }
    }
}

impl From<OutOfMemory> for MemoryError {
    fn from(out: OutOfMemory) -> Self {
        MemoryError::OutOfMemory(out)
    }
}

impl GuestMemory {
    /// Takes zeroed RAM for the guest-physical ranges of `map`, which are ordered and
    /// made of whole pages. A range that begins at a multiple of 2 MiB is backed by
    /// large pages.
    pub fn new(map: &[Range<u64>]) -> Result<GuestMemory, MemoryError> {
        let mut spans = Vec::new();
        let mut end_of_last = 0;
        // The next byte of the row of pieces that is not given out.
        let mut offset = 0u64;
        for range in map {
            let page = PAGE_BYTES as u64;
            let whole = range.start % page == 0 && range.end % page == 0 && range.start < range.end;
            if !whole || range.start < end_of_last || range.end > 1 << 46 {
                return Err(MemoryError::BadMap);
            }
            end_of_last = range.end;
            // Guest and row agree in their offset within a piece, so that a large page
            // of the one is a large page of the other.
            let phase = range.start % PIECE_BYTES;
            if offset % PIECE_BYTES > phase {
                offset = offset.next_multiple_of(PIECE_BYTES);
            }
            offset = offset - offset % PIECE_BYTES + phase;
            spans.push(Span { guest: range.clone(), offset });
            offset += range.end - range.start;
        }
        let count = offset.div_ceil(PIECE_BYTES) as usize;
        let mut pieces = Vec::new();
        for _ in 0..count {
            pieces.push(PageRun::new(PIECE_PAGES, PIECE_PAGES, "guest memory")?);
        }
        Ok(GuestMemory { pieces, spans })
    }

    /// All of it, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.guest.end - span.guest.start).sum()
    }

    /// Calls `each` for every stretch of guest RAM that is contiguous in the host and
    /// lies within one piece: guest-physical start, host-physical start, bytes.
    pub(crate) fn for_each_stretch<E>(
        &self,
        mut each: impl FnMut(u64, PhysAddr, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        for span in &self.spans {
            let mut done = 0;
            let bytes = span.guest.end - span.guest.start;
            while done < bytes {
                let at = span.offset + done;
                let within = at % PIECE_BYTES;
                let count = (PIECE_BYTES - within).min(bytes - done);
                let piece = &self.pieces[(at / PIECE_BYTES) as usize];
                each(span.guest.start + done, PhysAddr::new(piece.phys().as_u64() + within), count)?;
                done += count;
            }
        }
        Ok(())
    }

    /// Lends the stretches of guest RAM (address, bytes) to a device for one transfer, as they are:
    /// the guest may race with the device, as with its own on a real machine. `None` if one of them
    /// is not RAM, or lies in more pieces of the host's memory than a transfer can have.
    pub fn lend(
        self: &Arc<Self>,
        stretches: impl IntoIterator<Item = (GuestPhysAddr, u32)>,
    ) -> Option<DmaMemory> {
        let mut segments = Segments::new();
        for (address, bytes) in stretches {
            let mut offset = self.offset(address, bytes.into()).ok()?;
            let mut left = bytes as usize;
            while left > 0 {
                let within = offset % PIECE_BYTES;
                let piece = &self.pieces[(offset / PIECE_BYTES) as usize];
                let here = left.min((PIECE_BYTES - within) as usize);
                let phys = PhysAddr::new(piece.phys().as_u64() + within);
                segments.try_push(Segment { phys, bytes: here }).ok()?;
                offset += here as u64;
                left -= here;
            }
        }
        // SAFETY: every segment was checked to be RAM of this guest, in a run that `self` owns and
        // gives back only when it is dropped, which the share keeps from happening; no reference
        // ever points into guest RAM.
        unsafe { DmaMemory::lent(self.clone(), segments) }
    }

    /// Where `bytes` bytes from `address` on begin in the row of pieces.
    fn offset(&self, address: GuestPhysAddr, bytes: u64) -> Result<u64, OutOfRange> {
        let start = address.as_u64();
        let end = start.checked_add(bytes);
        self.spans
            .iter()
            .find(|span| start >= span.guest.start && end.is_some_and(|end| end <= span.guest.end))
            .map(|span| span.offset + (start - span.guest.start))
            .ok_or(OutOfRange { address, bytes })
    }

    /// The kernel's pointer to byte `offset` of the row, and how many bytes follow it
    /// in the same piece.
    fn pointer(&self, offset: u64) -> (*mut u8, usize) {
        let within = (offset % PIECE_BYTES) as usize;
        let piece = &self.pieces[(offset / PIECE_BYTES) as usize];
        (piece.as_ptr().wrapping_add(within), PIECE_BYTES as usize - within)
    }

    fn ordered(&self, address: GuestPhysAddr) -> Result<*mut u16, OutOfRange> {
        if !address.is_aligned(2) {
            return Err(OutOfRange { address, bytes: 2 });
        }
        let (pointer, _) = self.pointer(self.offset(address, 2)?);
        Ok(pointer.cast())
    }
}

impl GuestRam for GuestMemory {
    fn read(&self, address: GuestPhysAddr, into: &mut [u8]) -> Result<(), OutOfRange> {
        if into.is_empty() {
            return Ok(());
        }
        let mut offset = self.offset(address, into.len() as u64)?;
        let mut rest = into;
        while !rest.is_empty() {
            let (from, left) = self.pointer(offset);
            let count = left.min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            // SAFETY: `offset` checked that the bytes are RAM of this guest and
            // `pointer` that `count` of them lie in one piece, which `self` owns and
            // the direct map shows; `now` has room for them and cannot overlap guest
            // memory, to which no reference exists.
            unsafe { copy_racing(from, now.as_mut_ptr(), count) };
            offset += count as u64;
            rest = later;
        }
        Ok(())
    }

    fn write(&self, address: GuestPhysAddr, from: &[u8]) -> Result<(), OutOfRange> {
        if from.is_empty() {
            return Ok(());
        }
        let mut offset = self.offset(address, from.len() as u64)?;
        let mut rest = from;
        while !rest.is_empty() {
            let (into, left) = self.pointer(offset);
            let count = left.min(rest.len());
            let (now, later) = rest.split_at(count);
            // SAFETY: as in `read`, with the directions exchanged; that the guest's
            // RAM changes through `&self` is what the type is for: nothing in it is
            // ever borrowed.
            unsafe { copy_racing(now.as_ptr(), into, count) };
            offset += count as u64;
            rest = later;
        }
        Ok(())
    }

    fn contains(&self, address: GuestPhysAddr, bytes: u64) -> bool {
        bytes == 0 || self.offset(address, bytes).is_ok()
    }

    fn load_acquire_u16(&self, address: GuestPhysAddr) -> Result<u16, OutOfRange> {
        let pointer = self.ordered(address)?;
        // SAFETY: the two bytes are RAM of this guest (checked by `offset`), aligned,
        // within one piece since a piece begins aligned, and alive as long as `self`;
        // every access to them by Rust code is atomic or in assembly.
        Ok(unsafe { AtomicU16::from_ptr(pointer) }.load(Ordering::Acquire))
    }

    fn store_release_u16(&self, address: GuestPhysAddr, value: u16) -> Result<(), OutOfRange> {
        let pointer = self.ordered(address)?;
        // SAFETY: as in `load_acquire_u16`.
        unsafe { AtomicU16::from_ptr(pointer) }.store(value, Ordering::Release);
        Ok(())
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        // What a guest left must not lie in free memory for as long as nobody takes it.
        // It is zeroed again when it is taken, since free pages may have been anyone's
        // (heap, frames, tables), and the page map does not tell them apart; that costs
        // a start some milliseconds, a map of clean pages would cost every other owner.
        // The backend's CPUs hold a share of this memory, so none of them is left.
        for piece in &self.pieces {
            // SAFETY: the run is owned here, in the direct map, and `len_bytes` long;
            // no guest CPU exists any more, so nothing races with the stores.
            unsafe { core::ptr::write_bytes(phys_to_virt(piece.phys()), 0, piece.len_bytes()) };
        }
    }
}

/// Copies bytes of which one side may be written by a guest at the same time.
///
/// # Safety
/// `from` must be readable and `into` writable for `bytes` bytes, and the two ranges
/// must not overlap.
unsafe fn copy_racing(from: *const u8, into: *mut u8, bytes: usize) {
    // SAFETY: the string moves touch `bytes` bytes from both pointers on, which the
    // caller vouches for; the direction flag is clear by the calling convention. The
    // compiler sees neither side's value, so a race yields torn bytes and no more.
    unsafe {
        asm!(
            "rep movsq",
            "mov rcx, {tail}",
            "rep movsb",
            tail = in(reg) bytes % 8,
            inout("rcx") bytes / 8 => _,
            inout("rsi") from => _,
            inout("rdi") into => _,
            options(nostack, preserves_flags),
        );
    }
}
