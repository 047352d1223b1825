//! The pool of packet frames.
//!
//! A frame is 2 KiB, aligned to 2 KiB: it never straddles a page, so any part of it is one
//! physically contiguous piece and can be one PRP entry of an NVMe command. A packet starts at
//! byte 0. Frames travel through the whole node, from the card to the disk and back, and each is
//! owned by exactly one holder: a [`NetFrame`] belongs to the code that has it, a [`DeviceFrame`]
//! to a device, whose bytes nobody can look at meanwhile. Wherever a frame is dropped it returns
//! to the pool, not to the ring it came from.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use arch::addr::PhysAddr;

use crate::memory::{OutOfMemory, PAGE_BYTES, PageRun};
use crate::sync::{IrqSpinLock, Once};

/// Bytes of a frame.
pub const FRAME_BYTES: usize = 2048;

/// No frame: the end of a list.
const NONE: u32 = u32::MAX;

struct Pool {
    memory: PageRun,
    /// By frame: the next frame of the list it is in, and the packet's length while it is in a chain.
    links: Box<[Link]>,
    free: IrqSpinLock<FreeList>,
    failures: AtomicU64,
}

struct Link {
    next: AtomicU32,
    len: AtomicU32,
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
        len: AtomicU32::new(0),
    }));
    let free = FreeList { head: if frames > 0 { 0 } else { NONE }, count: frames, low_water: frames };
    let pool = Pool {
        memory,
        links: links.into_boxed_slice(),
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

/// A frame that belongs to whoever holds this.
#[derive(Debug)]
pub struct NetFrame {
    index: u32,
    len: u32,
}

impl NetFrame {
    /// Takes a frame from the pool, with length 0. What it holds is left over from its last use.
    pub fn alloc() -> Option<NetFrame> {
        POOL.get()?.take().map(|index| NetFrame { index, len: 0 })
    }

    /// Length of the packet in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the frame holds no packet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the packet's length. Panics beyond [`FRAME_BYTES`].
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= FRAME_BYTES, "a packet of {len} bytes in a frame of {FRAME_BYTES}");
        self.len = len as u32;
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
    pub fn into_device(self) -> DeviceFrame {
        let frame = ManuallyDrop::new(self);
        DeviceFrame { index: frame.index }
    }
}

impl Drop for NetFrame {
    fn drop(&mut self) {
        pool().give(self.index);
    }
}

/// A frame that belongs to a device. Dropping it leaks the frame: only a device that may still
/// write to memory at any time (it could not be reset) is a reason to.
#[derive(Debug)]
#[must_use = "a frame that a device has must be reclaimed"]
pub struct DeviceFrame {
    index: u32,
}

impl DeviceFrame {
    /// Where the frame lies, for the device.
    pub fn phys(&self) -> PhysAddr {
        pool().phys(self.index)
    }

    /// Takes the frame back with a packet of `len` bytes (at most a frame's). The device must be
    /// done with it: its completion was seen, or it has been reset.
    pub fn reclaim(self, len: usize) -> NetFrame {
        NetFrame { index: self.index, len: len.min(FRAME_BYTES) as u32 }
    }
}

/// Frames in a row, linked through the pool's own table: no allocation.
#[derive(Debug)]
pub struct FrameChain {
    head: u32,
    tail: u32,
    count: usize,
}

impl Default for FrameChain {
    fn default() -> Self {
        Self::new()
    }
}

impl FrameChain {
    /// An empty chain.
    pub const fn new() -> Self {
        FrameChain { head: NONE, tail: NONE, count: 0 }
    }

    /// How many frames it holds.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends a frame.
    pub fn push(&mut self, frame: NetFrame) {
        let frame = ManuallyDrop::new(frame);
        let links = &pool().links;
        links[frame.index as usize].next.store(NONE, Relaxed);
        links[frame.index as usize].len.store(frame.len, Relaxed);
        match links.get(self.tail as usize) {
            Some(tail) => tail.next.store(frame.index, Relaxed),
            None => self.head = frame.index,
        }
        self.tail = frame.index;
        self.count += 1;
    }

    /// Takes the first frame.
    pub fn pop(&mut self) -> Option<NetFrame> {
        if self.count == 0 {
            return None;
        }
        let index = self.head;
        let link = &pool().links[index as usize];
        self.head = link.next.load(Relaxed);
        self.count -= 1;
        if self.count == 0 {
            self.tail = NONE;
        }
        Some(NetFrame { index, len: link.len.load(Relaxed) })
    }

    /// Moves every frame of `other` behind this chain's.
    pub fn append(&mut self, other: &mut FrameChain) {
        if other.count == 0 {
            return;
        }
        match pool().links.get(self.tail as usize) {
            Some(tail) => tail.next.store(other.head, Relaxed),
            None => self.head = other.head,
        }
        self.tail = other.tail;
        self.count += other.count;
        (other.head, other.tail, other.count) = (NONE, NONE, 0);
    }
}

impl Drop for FrameChain {
    fn drop(&mut self) {
        while let Some(frame) = self.pop() {
            drop(frame);
        }
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
