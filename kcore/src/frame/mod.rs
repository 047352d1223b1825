//! The pool of packet frames.
//!
//! A frame is 2 KiB, aligned to 2 KiB: it never straddles a page, so any part of it is one
//! physically contiguous piece and can be one PRP entry of an NVMe command. A packet starts at
//! byte 0. Frames travel through the whole node, from the card to the disk and back, and each is
//! owned by exactly one holder: a [`NetFrame`] belongs to the code that has it, a [`DeviceFrame`]
//! to a device, whose bytes nobody can look at meanwhile. Wherever a frame is dropped it returns
//! to the pool, not to the ring it came from.
//!
//! A packet is one frame, or a head frame and further pieces behind it ([`NetFrame::attach_page`],
//! [`NetFrame::attach_frame`]): whoever deals with single frames only asks
//! [`NetFrame::piece_count`], and everything else here treats the head.

mod chain;
mod packet;
mod page;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use arch::addr::PhysAddr;
use pieces::PieceTable;

pub use chain::{DeviceChain, FrameChain, Front};
pub use packet::Segment;
pub use page::{FillError, Page, page_stats, prepare_pages};
pub use pieces::MAX_PIECES;

use crate::memory::{OutOfMemory, PAGE_BYTES, PageRun};
use crate::sync::{IrqSpinLock, Once};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 2048;

/// No frame: the end of a list.
const NONE: u32 = u32::MAX;

struct Pool {
    memory: PageRun,
    /// By frame: the next frame of the list it is in, and the packet's shape while it is in a chain.
    links: Box<[Link]>,
    /// By head: what is behind it.
    behind: PieceTable,
    free: IrqSpinLock<FreeList>,
    failures: AtomicU64,
}

struct Link {
    next: AtomicU32,
    shape: AtomicU32,
}

struct FreeList {
    head: u32,
    count: u32,
    low_water: u32,
}

static POOL: Once<Pool> = Once::new();

/// Makes the pool, of `frames` frames.
pub(crate) fn init(frames: u32) -> Result<(), OutOfMemory> {
    let pages = frames as usize * FRAME_BYTES / PAGE_BYTES;
    let memory = PageRun::new(pages, 1, "the frame pool")?;
    let mut links = Vec::new();
    links.try_reserve_exact(frames as usize).map_err(|_| OutOfMemory {
        what: "the frame pool's links",
        bytes: frames as usize * size_of::<Link>(),
    })?;
    links.extend((0..frames).map(|index| Link {
        next: AtomicU32::new(if index + 1 < frames { index + 1 } else { NONE }),
        shape: AtomicU32::new(0),
    }));
    let behind = PieceTable::new(frames).map_err(|_| OutOfMemory {
        what: "the table of packets' pieces",
        bytes: PieceTable::size_bytes(frames),
    })?;
    let free = FreeList { head: if frames > 0 { 0 } else { NONE }, count: frames, low_water: frames };
    let pool = Pool {
        memory,
        links: links.into_boxed_slice(),
        behind,
        free: IrqSpinLock::new(free),
        failures: AtomicU64::new(0),
    };
    assert!(POOL.set(pool).is_ok(), "the frame pool was made twice");
    Ok(())
}

/// The pool; a frame proves that it exists.
fn pool() -> &'static Pool {
    POOL.get().expect("frames exist only once the pool does")
}

impl Pool {
    fn take(&self) -> Option<u32> {
        let mut free = self.free.lock();
        let index = free.head;
        let Some(link) = self.links.get(index as usize) else {
            self.failures.fetch_add(1, Relaxed);
            return None;
        };
        free.head = link.next.load(Relaxed);
        free.count -= 1;
        free.low_water = free.low_water.min(free.count);
        Some(index)
    }

    fn give(&self, index: u32) {
        let mut free = self.free.lock();
        self.links[index as usize].next.store(free.head, Relaxed);
        free.head = index;
        free.count += 1;
    }

    fn address(&self, index: u32) -> *mut u8 {
        // SAFETY: `index` is a frame of this pool, so the offset lies within its memory.
        unsafe { self.memory.as_ptr().add(index as usize * FRAME_BYTES) }
    }

    fn phys(&self, index: u32) -> PhysAddr {
        self.memory.phys() + index as usize * FRAME_BYTES
    }
}

/// A frame that belongs to whoever holds this, and what is behind it. Length and bytes are those
/// of this frame alone, unless a name says otherwise.
#[derive(Debug)]
pub struct NetFrame {
    index: u32,
    len: u16,
    /// Pieces behind this one.
    extras: u8,
    /// See [`NetFrame::join_previous`].
    joins: bool,
}

impl NetFrame {
    /// Takes a frame from the pool, with length 0. What it holds is left over from its last use.
    pub fn alloc() -> Option<NetFrame> {
        POOL.get()?.take().map(|index| NetFrame { index, len: 0, extras: 0, joins: false })
    }

    /// Length of the packet in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the frame holds no packet.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the packet's length. Panics beyond [`FRAME_BYTES`].
    #[inline]
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= FRAME_BYTES, "a packet of {len} bytes in a frame of {FRAME_BYTES}");
        self.len = len as u16;
    }

    /// The packet.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the frame is ours alone (this value is the only handle) and `len` is checked.
        unsafe { core::slice::from_raw_parts(pool().address(self.index), self.len as usize) }
    }

    /// The packet, to change.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the handle is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(pool().address(self.index), self.len as usize) }
    }

    /// The whole frame, whatever the packet's length.
    pub fn whole_mut(&mut self) -> &mut [u8; FRAME_BYTES] {
        // SAFETY: as for `bytes_mut`; a frame has FRAME_BYTES bytes.
        unsafe { &mut *pool().address(self.index).cast::<[u8; FRAME_BYTES]>() }
    }

    /// Where the frame lies.
    pub fn phys(&self) -> PhysAddr {
        pool().phys(self.index)
    }

    /// Hands the frame to a device.
    #[inline]
    pub fn into_device(self) -> DeviceFrame {
        let frame = ManuallyDrop::new(self);
        DeviceFrame { index: frame.index, extras: frame.extras }
    }

    /// Says whether the packet is a UDP datagram of the same flow as the one before it in its chain: all its
    /// headers are that one's but for lengths, checksums and the packet's number. Both are whole packets;
    /// a card that can cut up a longer one may be given both as one.
    #[inline]
    pub fn join_previous(&mut self, joins: bool) {
        self.joins = joins;
    }

    /// See [`NetFrame::join_previous`].
    #[inline]
    pub fn joins_previous(&self) -> bool {
        self.joins
    }

    /// What a chain notes about it, in one word.
    #[inline]
    fn shape(&self) -> u32 {
        u32::from(self.joins) << 24 | u32::from(self.extras) << 16 | u32::from(self.len)
    }

    #[inline]
    fn from_shape(index: u32, shape: u32) -> NetFrame {
        NetFrame { index, len: shape as u16, extras: (shape >> 16) as u8, joins: shape >> 24 != 0 }
    }
}

impl Drop for NetFrame {
    fn drop(&mut self) {
        if self.extras > 0 {
            packet::free_behind(self.index, self.extras);
        }
        pool().give(self.index);
    }
}

/// A packet that belongs to a device. A device that writes to it may have frames, never pages, behind
/// the head. Dropping it leaks the frame: only a device that may still
/// write to memory at any time (it could not be reset) is a reason to.
#[derive(Debug)]
#[must_use = "a frame that a device has must be reclaimed"]
pub struct DeviceFrame {
    index: u32,
    extras: u8,
}

impl DeviceFrame {
    /// Where the frame lies, for the device.
    pub fn phys(&self) -> PhysAddr {
        pool().phys(self.index)
    }

    /// Takes the frame back with a packet of `len` bytes (at most a frame's), and what is behind it.
    /// The device must be done with it: its completion was seen, or it has been reset.
    #[inline]
    pub fn reclaim(self, len: usize) -> NetFrame {
        NetFrame { index: self.index, len: len.min(FRAME_BYTES) as u16, extras: self.extras, joins: false }
    }
}

/// The pool's state, in frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct PoolStats {
    /// Frames there are.
    pub total: u32,
    /// Frames not in use.
    pub free: u32,
    /// The fewest that were ever free.
    pub low_water: u32,
    /// Times a frame was wanted and none was free.
    pub alloc_failures: u64,
}

/// The pool's state.
pub fn pool_stats() -> PoolStats {
    let Some(pool) = POOL.get() else { return PoolStats::default() };
    let free = pool.free.lock();
    PoolStats {
        total: pool.links.len() as u32,
        free: free.count,
        low_water: free.low_water,
        alloc_failures: pool.failures.load(Relaxed),
    }
}
