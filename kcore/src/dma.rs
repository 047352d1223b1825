//! Memory that a device reads and writes.
//!
//! Two kinds. A [`DmaBuffer`] is shared with its device for as long as it lives (rings, queues,
//! tables): values in it are read and written one at a time, volatile, at checked and aligned
//! offsets, and never as a reference, for the device may write at any moment. A [`DmaMemory`] is
//! handed over for one transfer and consumed by it: while the device has it, nobody else can
//! reach it; the completion gives it back. A guest's pages are the exception: they are lent
//! ([`DmaMemory::lent`]), the guest goes on using them, and only their end waits.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use arch::addr::PhysAddr;
use arrayvec::ArrayVec;

use crate::frame::{FRAME_BYTES, MAX_PIECES, NetFrame, Page, Segment};
use crate::memory::{OutOfMemory, PAGE_BYTES, PageRun};

/// Zeroed, physically contiguous, page-aligned memory, shared with a device.
#[derive(Debug)]
pub struct DmaBuffer {
    memory: PageRun,
    bytes: usize,
}

// SAFETY: all access is by single volatile or atomic values; the memory is owned.
unsafe impl Send for DmaBuffer {}
// SAFETY: as above; racing accesses read one value or the other, as with a device.
unsafe impl Sync for DmaBuffer {}

macro_rules! values {
    ($read:ident, $write:ident, $type:ty) => {
        /// Reads the value at `offset` (bytes, a multiple of its size).
        #[inline]
        pub fn $read(&self, offset: usize) -> $type {
            let address = self.address(offset, size_of::<$type>(), size_of::<$type>());
            // SAFETY: checked by `address`.
            unsafe { address.cast::<$type>().read_volatile() }
        }

        /// Writes the value at `offset` (bytes, a multiple of its size).
        #[inline]
        pub fn $write(&self, offset: usize, value: $type) {
            let address = self.address(offset, size_of::<$type>(), size_of::<$type>());
            // SAFETY: checked by `address`.
            unsafe { address.cast::<$type>().write_volatile(value) }
        }
    };
}

impl DmaBuffer {
    /// Takes a buffer of `bytes` bytes; `what` names its use in the error.
    pub fn new(bytes: usize, what: &'static str) -> Result<DmaBuffer, OutOfMemory> {
        let memory = PageRun::new(bytes.div_ceil(PAGE_BYTES).max(1), 1, what)?;
        Ok(DmaBuffer { memory, bytes })
    }

    /// Where the buffer begins, for the device.
    pub fn phys(&self) -> PhysAddr {
        self.memory.phys()
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn address(&self, offset: usize, bytes: usize, align: usize) -> *mut u8 {
        if offset > self.bytes || bytes > self.bytes - offset || !offset.is_multiple_of(align) {
            self.refuse(offset, bytes);
        }
        // SAFETY: the offset lies within the run.
        unsafe { self.memory.as_ptr().add(offset) }
    }

    /// Apart from the accesses, which are short enough to be part of their callers.
    #[cold]
    #[inline(never)]
    fn refuse(&self, offset: usize, bytes: usize) -> ! {
        panic!("access of {bytes} bytes at {offset:#x} in a DMA buffer of {:#x}", self.bytes);
    }

    values!(read_u8, write_u8, u8);
    values!(read_u16, write_u16, u16);
    values!(read_u32, write_u32, u32);
    values!(read_u64, write_u64, u64);

    /// Reads an index that the device publishes; what it wrote before is seen after.
    #[inline]
    pub fn load_acquire_u16(&self, offset: usize) -> u16 {
        self.atomic_u16(offset).load(Ordering::Acquire)
    }

    /// Publishes an index to the device; what was written before is seen with it.
    #[inline]
    pub fn store_release_u16(&self, offset: usize, value: u16) {
        self.atomic_u16(offset).store(value, Ordering::Release);
    }

    /// As [`DmaBuffer::load_acquire_u16`], for 32 bits.
    #[inline]
    pub fn load_acquire_u32(&self, offset: usize) -> u32 {
        self.atomic_u32(offset).load(Ordering::Acquire)
    }

    /// As [`DmaBuffer::store_release_u16`], for 32 bits.
    #[inline]
    pub fn store_release_u32(&self, offset: usize, value: u32) {
        self.atomic_u32(offset).store(value, Ordering::Release);
    }

    #[inline]
    fn atomic_u16(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: checked by `address`; an atomic may be shared with whoever else writes.
        unsafe { AtomicU16::from_ptr(self.address(offset, 2, 2).cast()) }
    }

    #[inline]
    fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: as for `atomic_u16`.
        unsafe { AtomicU32::from_ptr(self.address(offset, 4, 4).cast()) }
    }

    /// Copies `from` into the buffer at `offset`.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let address = self.address(offset, from.len(), 1);
        // SAFETY: checked by `address`; the buffer is no reference's, so they cannot overlap.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), address, from.len()) }
    }

    /// Copies the bytes at `offset` out of the buffer. Check the copy, use the copy.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        let address = self.address(offset, to.len(), 1);
        // SAFETY: as for `copy_in`.
        unsafe { core::ptr::copy_nonoverlapping(address, to.as_mut_ptr(), to.len()) }
    }
}

/// Part of a frame: one piece of a transfer's memory. Holding one proves that the part lies in the
/// frame and is not empty.
#[derive(Debug)]
pub struct FramePiece {
    frame: NetFrame,
    offset: u16,
    bytes: u16,
}

const _: () = assert!(FRAME_BYTES <= u16::MAX as usize);

impl FramePiece {
    /// The bytes `offset..offset + bytes` of a frame. Gives the frame back if they do not lie in it,
    /// or are none.
    pub fn new(frame: NetFrame, offset: usize, bytes: usize) -> Result<FramePiece, NetFrame> {
        match offset.checked_add(bytes) {
            Some(end) if end <= FRAME_BYTES && bytes > 0 => {
                // Both are at most FRAME_BYTES.
                Ok(FramePiece { frame, offset: offset as u16, bytes: bytes as u16 })
            }
            _ => Err(frame),
        }
    }

    /// The frame, whole.
    pub fn into_frame(self) -> NetFrame {
        self.frame
    }

    fn segment(&self) -> Segment {
        Segment { phys: self.frame.phys() + usize::from(self.offset), bytes: usize::from(self.bytes) }
    }
}

/// Pieces of several frames, in the order of their data.
pub type FramePieces = ArrayVec<FramePiece, MAX_PIECES>;

/// Segments of one transfer.
pub type Segments = ArrayVec<Segment, MAX_PIECES>;

/// Memory that belongs to somebody else, a guest for one, and is not given away while it is out.
struct Lent {
    segments: Segments,
    /// Holds the memory.
    _owner: Arc<dyn Send + Sync>,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.segments).finish()
    }
}

/// A contiguous part of something, or parts of several frames.
#[derive(Debug)]
enum Owner {
    /// Never empty; their lengths add up to the memory's. Boxed: the others are smaller.
    Lent(Box<Lent>),
    Frame(NetFrame),
    Buffer(DmaBuffer),
    Page(Page),
    /// Never empty; their lengths add up to the memory's.
    Pieces(FramePieces),
}

/// Memory handed to a device for one transfer: part of a frame, a buffer or a page, or parts of
/// several frames. Only the disk's driver learns where it lies, as [`DmaMemory::segments`], since
/// one that can only do with contiguous memory must look how many there are.
#[derive(Debug)]
pub struct DmaMemory {
    owner: Owner,
    /// Where the part begins; 0 for pieces, which say so themselves.
    offset: usize,
    bytes: usize,
}

impl DmaMemory {
    /// The bytes `offset..offset + bytes` of a frame. Gives the frame back if they do not lie in it.
    pub fn from_frame(frame: NetFrame, offset: usize, bytes: usize) -> Result<DmaMemory, NetFrame> {
        match lies_in(FRAME_BYTES, offset, bytes) {
            true => Ok(DmaMemory { owner: Owner::Frame(frame), offset, bytes }),
            false => Err(frame),
        }
    }

    /// The bytes `offset..offset + bytes` of a buffer. Gives the buffer back if they do not lie in it.
    pub fn from_buffer(buffer: DmaBuffer, offset: usize, bytes: usize) -> Result<DmaMemory, DmaBuffer> {
        match lies_in(buffer.len_bytes(), offset, bytes) {
            true => Ok(DmaMemory { owner: Owner::Buffer(buffer), offset, bytes }),
            false => Err(buffer),
        }
    }

    /// The bytes `offset..offset + bytes` of a page that nobody else has a share of: the device may
    /// write to it. Gives the page back if it is shared, or if they do not lie in it.
    pub fn from_page(page: Page, offset: usize, bytes: usize) -> Result<DmaMemory, Page> {
        match lies_in(PAGE_BYTES, offset, bytes) && !page.is_shared() {
            true => Ok(DmaMemory { owner: Owner::Page(page), offset, bytes }),
            false => Err(page),
        }
    }

    /// Parts of several frames, one behind the other: data that came in several packets. Gives the
    /// frames back if they are none.
    pub fn from_pieces(pieces: FramePieces) -> Result<DmaMemory, FramePieces> {
        if pieces.is_empty() {
            return Err(pieces);
        }
        let bytes = pieces.iter().map(|piece| usize::from(piece.bytes)).sum();
        Ok(DmaMemory { owner: Owner::Pieces(pieces), offset: 0, bytes })
    }

    /// Memory of `owner`'s, which the device shares with whoever else uses it. `None` if it is none.
    /// The `DmaMemory` should be dropped where the last share of `owner` may be.
    ///
    /// # Safety
    /// As long as `owner` lives, every segment must be memory that nobody is given for another use
    /// and to which no reference exists: the device reads and writes it at any time until the
    /// `DmaMemory` is dropped.
    pub unsafe fn lent(owner: Arc<dyn Send + Sync>, segments: Segments) -> Option<DmaMemory> {
        let bytes = segments.iter().map(|segment| segment.bytes).sum();
        let lent = || Box::new(Lent { segments, _owner: owner });
        (bytes > 0).then(|| DmaMemory { owner: Owner::Lent(lent()), offset: 0, bytes })
    }

    /// Where it lies, for the device: physically contiguous segments, in the order of the data.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + Clone + '_ {
        let (base, pieces, lent) = match &self.owner {
            Owner::Frame(frame) => (Some(frame.phys()), &[][..], &[][..]),
            Owner::Buffer(buffer) => (Some(buffer.phys()), &[][..], &[][..]),
            Owner::Page(page) => (Some(page.phys()), &[][..], &[][..]),
            Owner::Pieces(pieces) => (None, &pieces[..], &[][..]),
            Owner::Lent(lent) => (None, &[][..], &lent.segments[..]),
        };
        let whole = base.map(|base| Segment { phys: base + self.offset, bytes: self.bytes });
        whole.into_iter().chain(pieces.iter().map(FramePiece::segment)).chain(lent.iter().copied())
    }

    /// How many segments there are.
    pub fn segment_count(&self) -> usize {
        match &self.owner {
            Owner::Pieces(pieces) => pieces.len(),
            Owner::Lent(lent) => lent.segments.len(),
            Owner::Frame(_) | Owner::Buffer(_) | Owner::Page(_) => 1,
        }
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// The frame, if it is one.
    pub fn into_frame(self) -> Option<NetFrame> {
        match self.owner {
            Owner::Frame(frame) => Some(frame),
            Owner::Buffer(_) | Owner::Page(_) | Owner::Pieces(_) | Owner::Lent(_) => None,
        }
    }

    /// The buffer, if it is one.
    pub fn into_buffer(self) -> Option<DmaBuffer> {
        match self.owner {
            Owner::Buffer(buffer) => Some(buffer),
            Owner::Frame(_) | Owner::Page(_) | Owner::Pieces(_) | Owner::Lent(_) => None,
        }
    }

    /// The page, if it is one; its holder is again the only one.
    pub fn into_page(self) -> Option<Page> {
        match self.owner {
            Owner::Page(page) => Some(page),
            Owner::Frame(_) | Owner::Buffer(_) | Owner::Pieces(_) | Owner::Lent(_) => None,
        }
    }

    /// The pieces, if it is several: their frames whole, in the order of the data.
    pub fn into_frames(self) -> Option<FramePieces> {
        match self.owner {
            Owner::Pieces(pieces) => Some(pieces),
            Owner::Frame(_) | Owner::Buffer(_) | Owner::Page(_) | Owner::Lent(_) => None,
        }
    }
}

fn lies_in(room: usize, offset: usize, bytes: usize) -> bool {
    offset.checked_add(bytes).is_some_and(|end| end <= room)
}
