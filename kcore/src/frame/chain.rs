//! Frames in a row.
//!
//! What is behind a frame goes with it: a chain is one of packets, whatever their pieces.

use core::mem::ManuallyDrop;
use core::sync::atomic::Ordering::Relaxed;

use super::{NONE, NetFrame, pool};

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
