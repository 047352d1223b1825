//! The network device (VIRTIO 1.2 section 5.1): one receive and one transmit queue.
//!
//! The device moves frames between the guest's buffers and its caller's, and copies each exactly
//! once. Where the caller's buffers are, it does not know: a [`FrameSink`] takes what the guest
//! sends, a [`FrameSource`] has what it shall receive. In the node they hand out pool frames; in
//! tests, vectors.
//!
//! Work is bounded: a call handles at most as many chains as the queue has entries, and says when
//! there is more. A guest that refills its queue as fast as the device empties it thus gets its
//! rounds like everybody else, and not one endless one.

mod device;
mod header;
mod moderation;

pub use device::{Net, NetConfig, NetCounters, NetFunction, Received, Transmitted};
pub use header::{HEADER_BYTES, OffloadNotNegotiated, PLAIN_RECEIVE, check_transmit};
pub use moderation::{DEFAULT_WINDOW_NS, InterruptTiming, RxModeration, frame_wakes};

/// Queue numbers (5.1.2).
pub const RECEIVE_QUEUE: u16 = 0;
pub const TRANSMIT_QUEUE: u16 = 1;

/// Takes the frames that a guest sends.
pub trait FrameSink {
    /// A buffer of exactly `bytes` bytes for the next frame, or `None` if there is no memory for
    /// it now; the frame is then dropped, and counted. A reserved buffer that is not committed is
    /// free again with the next call.
    fn reserve(&mut self, bytes: usize) -> Option<&mut [u8]>;

    /// The buffer last reserved holds a whole frame, from its Ethernet header on.
    fn commit(&mut self);
}

/// Has the frames that a guest shall receive.
pub trait FrameSource {
    /// The next frame, which stays the next until [`Self::consume`].
    fn peek(&mut self) -> Option<&[u8]>;

    /// The next frame was delivered or dropped.
    fn consume(&mut self);
}
