//! Frames in a row.
//!
//! What is behind a frame goes with it: a chain is one of packets, whatever their pieces.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::Ordering::Relaxed;

use super::packet::{behind, segment};
use super::{NONE, NetFrame, Segment, pool};

/// Packets in a row, linked through the pool's own table: no allocation.
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
    #[inline]
    pub const fn new() -> Self {
        FrameChain { head: NONE, tail: NONE, count: 0 }
    }

    /// How many packets it holds: frames, without those behind another.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends a frame.
    pub fn push(&mut self, frame: NetFrame) {
        let frame = ManuallyDrop::new(frame);
        let links = &pool().links;
        links[frame.index as usize].next.store(NONE, Relaxed);
        links[frame.index as usize].shape.store(frame.shape(), Relaxed);
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
        Some(NetFrame::from_shape(index, link.shape.load(Relaxed)))
    }

    /// The first frame, to look at.
    pub fn front(&self) -> Option<Front<'_>> {
        let link = pool_link(self.count, self.head)?;
        let frame = ManuallyDrop::new(NetFrame::from_shape(self.head, link.shape.load(Relaxed)));
        Some(Front { frame, chain: PhantomData })
    }

    /// Hands all its packets to a device.
    #[inline]
    pub fn into_device(self) -> DeviceChain {
        let chain = ManuallyDrop::new(self);
        DeviceChain { head: chain.head, tail: chain.tail, count: chain.count }
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

/// The link of a chain's first frame, if there is one.
fn pool_link(count: usize, head: u32) -> Option<&'static super::Link> {
    if count == 0 { None } else { pool().links.get(head as usize) }
}

/// The first frame of a chain, which keeps it.
#[derive(Debug)]
pub struct Front<'chain> {
    frame: ManuallyDrop<NetFrame>,
    chain: PhantomData<&'chain FrameChain>,
}

impl Deref for Front<'_> {
    type Target = NetFrame;

    fn deref(&self) -> &NetFrame {
        &self.frame
    }
}

/// Packets that belong to a device, which reads them. Dropping it leaks the frames, as with a
/// [`DeviceFrame`](super::DeviceFrame).
#[derive(Debug)]
#[must_use = "frames that a device has must be reclaimed"]
pub struct DeviceChain {
    head: u32,
    tail: u32,
    count: usize,
}

impl DeviceChain {
    /// How many packets it holds.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it holds none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Names every packet's pieces, for the device, each packet without its first `skipped` bytes.
    pub fn each_segment(&self, skipped: usize, mut each: impl FnMut(Segment)) {
        let mut index = self.head;
        for _ in 0..self.count {
            let Some(link) = pool().links.get(index as usize) else { return };
            let frame = ManuallyDrop::new(NetFrame::from_shape(index, link.shape.load(Relaxed)));
            let bytes = frame.len().saturating_sub(skipped);
            if bytes > 0 {
                each(Segment { phys: frame.phys() + skipped, bytes });
            }
            if frame.extras > 0 {
                behind(index, frame.extras).map(segment).for_each(&mut each);
            }
            index = link.next.load(Relaxed);
        }
    }

    /// Takes the packets back. The device must be done with them.
    #[inline]
    pub fn reclaim(self) -> FrameChain {
        FrameChain { head: self.head, tail: self.tail, count: self.count }
    }
}

impl Drop for FrameChain {
    fn drop(&mut self) {
        while let Some(frame) = self.pop() {
            drop(frame);
        }
    }
}
