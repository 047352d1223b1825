//! What a service counts.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use netblk_proto::{Fault, Op, Status};

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Relaxed);
    }

    pub fn one(&self) {
        self.add(1);
    }

    fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Where the parts of a service count, each alone or rarely together.
#[derive(Default)]
pub(crate) struct Counters {
    requests: [Counter; Op::ALL.len()],
    replies: [Counter; Status::ALL.len()],
    pub dropped_short: Counter,
    pub dropped_magic: Counter,
    pub dropped_replies: Counter,
    pub read_bytes: Counter,
    pub written_bytes: Counter,
    pub kicks: Counter,
    pub batches: Counter,
    pub replies_lost: Counter,
    pub held_queue_full: Counter,
    pub held_no_frame: Counter,
    pub held_overlap: Counter,
    pub sleeps: Counter,
    pub strays: Counter,
}

impl Counters {
    /// A valid request.
    pub fn request(&self, op: Op) {
        self.requests[usize::from(op.code()) - 1].one();
    }

    /// A reply on its way.
    pub fn reply(&self, status: Status) {
        self.replies[usize::from(status.code())].one();
    }

    /// A datagram that gets no answer.
    pub fn dropped(&self, fault: Fault) {
        match fault {
            Fault::Magic => self.dropped_magic.one(),
            Fault::ReplyBit => self.dropped_replies.one(),
            // Only what is too short to be recognised is dropped besides.
            _ => self.dropped_short.one(),
        }
    }

    pub fn read_all(&self) -> Counts {
        Counts {
            requests: array::from_fn(|index| self.requests[index].get()),
            replies: array::from_fn(|index| self.replies[index].get()),
            dropped_short: self.dropped_short.get(),
            dropped_magic: self.dropped_magic.get(),
            dropped_replies: self.dropped_replies.get(),
            read_bytes: self.read_bytes.get(),
            written_bytes: self.written_bytes.get(),
            kicks: self.kicks.get(),
            batches: self.batches.get(),
            replies_lost: self.replies_lost.get(),
            held_queue_full: self.held_queue_full.get(),
            held_no_frame: self.held_no_frame.get(),
            held_overlap: self.held_overlap.get(),
            sleeps: self.sleeps.get(),
            strays: self.strays.get(),
        }
    }
}

/// A service's counters, read one after the other.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Valid requests, in the order of [`Op::ALL`].
    pub requests: [u64; Op::ALL.len()],
    /// Replies, in the order of [`Status::ALL`]; a READ has one for each of its datagrams.
    pub replies: [u64; Status::ALL.len()],
    /// Datagrams too short to be recognised.
    pub dropped_short: u64,
    /// Datagrams that are not netblk.
    pub dropped_magic: u64,
    /// Datagrams that are replies themselves.
    pub dropped_replies: u64,
    /// Bytes read from the disk and sent.
    pub read_bytes: u64,
    /// Bytes received and written to the disk.
    pub written_bytes: u64,
    /// Times the disk was told of new commands.
    pub kicks: u64,
    /// Times replies were handed to the card.
    pub batches: u64,
    /// Replies that the card did not take.
    pub replies_lost: u64,
    /// Times a request waited for room in the disk's queue.
    pub held_queue_full: u64,
    /// Times a READ waited for a frame.
    pub held_no_frame: u64,
    /// Times a WRITE waited for an older one to the same sectors.
    pub held_overlap: u64,
    /// Times the worker slept.
    pub sleeps: u64,
    /// Completions for a slot that had nothing with the disk: a driver's fault.
    pub strays: u64,
}

impl Counts {
    /// Datagrams that got no answer.
    pub fn dropped(&self) -> u64 {
        self.dropped_short + self.dropped_magic + self.dropped_replies
    }
}
