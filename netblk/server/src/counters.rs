//! What a service counts.

use core::array;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use netblk_proto::v2::{Op, Status};

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

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Why a datagram, or a request that was accepted, gets no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Drop {
    /// Too short to be recognised.
    Short,
    /// Not netblk.
    Magic,
    /// A reply itself.
    Reply,
    /// From an address that the service is not for.
    NotAllowed,
    /// With a wrong tag.
    BadTag,
    /// Its number is being carried out.
    UnderWay,
    /// A part of a WRITE that is there already.
    DoubledPart,
    /// A part of a WRITE whose other parts did not come.
    GivenUp,
    /// Queued in a session that has ended.
    Ended,
}

impl Drop {
    /// Every reason.
    pub const ALL: [Self; 9] = [
        Self::Short,
        Self::Magic,
        Self::Reply,
        Self::NotAllowed,
        Self::BadTag,
        Self::UnderWay,
        Self::DoubledPart,
        Self::GivenUp,
        Self::Ended,
    ];

    /// As `netblk list` says it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Magic => "not netblk",
            Self::Reply => "replies",
            Self::NotAllowed => "not allowed",
            Self::BadTag => "wrong tag",
            Self::UnderWay => "under way already",
            Self::DoubledPart => "part there already",
            Self::GivenUp => "parts missing",
            Self::Ended => "session ended",
        }
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Where the parts of a service count, each alone or rarely together.
        #[derive(Default)]
        pub(crate) struct Counters {
            requests: [Counter; Op::ALL.len()],
            replies: [Counter; Status::ALL.len()],
            dropped: [Counter; Drop::ALL.len()],
            $(pub $name: Counter,)*
        }

        /// A service's counters, read one after the other.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Counts {
            /// Valid requests of both versions, in the order of [`Op::ALL`].
            pub requests: [u64; Op::ALL.len()],
            /// Replies, in the order of [`Status::ALL`]; a READ has one for each of its datagrams.
            pub replies: [u64; Status::ALL.len()],
            /// What got no answer, in the order of [`Drop::ALL`].
            pub dropped: [u64; Drop::ALL.len()],
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub fn read_all(&self) -> Counts {
                Counts {
                    requests: array::from_fn(|index| self.requests[index].get()),
                    replies: array::from_fn(|index| self.replies[index].get()),
                    dropped: array::from_fn(|index| self.dropped[index].get()),
                    $($name: self.$name.get(),)*
                }
            }
        }
    };
}

counters! {
    /// Bytes read from the disk and sent.
    read_bytes,
    /// Bytes received and written to the disk.
    written_bytes,
    /// Times the data of a WRITE was copied, because the disk cannot take it from where it lay.
    copies,
    /// Bytes so copied.
    copied_bytes,
    /// Sessions made.
    connects,
    /// Times the disk was told of new commands.
    kicks,
    /// Times replies were handed to the card.
    batches,
    /// Replies that the card did not take, or for which there was no frame.
    replies_lost,
    /// Times a request waited for room in the disk's queue.
    held_queue_full,
    /// Times a request waited for a frame or a page.
    held_no_frame,
    /// Times a change waited for an older one to the same sectors.
    held_overlap,
    /// Times the worker slept.
    sleeps,
    /// Completions for a slot that had nothing with the disk: a driver's fault.
    strays,
}

impl Counters {
    /// A valid request.
    pub fn request(&self, op: Op) {
        // `Op::ALL` has every op.
        if let Some(place) = Op::ALL.iter().position(|&other| other == op) {
            self.requests[place].one();
        }
    }

    /// A reply on its way.
    pub fn reply(&self, status: Status) {
        self.replies[usize::from(status.code())].one();
    }

    /// Something that gets no answer.
    pub fn dropped(&self, why: Drop) {
        self.dropped[why as usize].one();
    }
}

impl Counts {
    /// Everything that got no answer.
    pub fn dropped_in_all(&self) -> u64 {
        self.dropped.iter().sum()
    }
}
