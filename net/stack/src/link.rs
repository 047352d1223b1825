//! smoltcp's view of the card: pool frames in, pool frames out.

use alloc::sync::Arc;

use ingress::ORDINARY_FRAME_BYTES;
use kcore::frame::{FrameChain, NetFrame};
use kcore::net::NetDevice;
use kcore::sync::SpinLock;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::counters::{Counters, SendDrop};

/// Frames that may wait for the library. It is for rare things; a flood ends here.
const QUEUE_LIMIT: usize = 64;

/// Frames on their way from the receive softirq to the library's task.
pub(crate) struct LibraryQueue {
    frames: SpinLock<FrameChain>,
}

impl LibraryQueue {
    pub fn new() -> LibraryQueue {
        LibraryQueue { frames: SpinLock::new(FrameChain::new()) }
    }

    /// `false`: it is full, and the frame is gone.
    #[must_use]
    pub fn push(&self, frame: NetFrame) -> bool {
        let mut frames = self.frames.lock();
        let room = frames.len() < QUEUE_LIMIT;
        if room {
            frames.push(frame);
        }
        room
    }
}

/// The card as the library uses it. What it sends is collected and goes out by
/// [`Link::flush`]: one lock and one doorbell for all that one poll brought.
pub(crate) struct Link {
    card: Arc<dyn NetDevice>,
    queue: Arc<LibraryQueue>,
    out: FrameChain,
    /// The pool had no frame for the library to send from: poll again a little later.
    starved: bool,
}

impl Link {
    pub fn new(card: Arc<dyn NetDevice>, queue: Arc<LibraryQueue>) -> Link {
        Link { card, queue, out: FrameChain::new(), starved: false }
    }

    /// Sends what was collected. Returns whether the library should have sent more.
    pub fn flush(&mut self, counters: &Counters) -> bool {
        if !self.out.is_empty() {
            self.card.transmit(&mut self.out);
            counters.not_sent(SendDrop::CardFull, self.out.len());
            drop(core::mem::take(&mut self.out));
        }
        core::mem::take(&mut self.starved)
    }
}

impl Device for Link {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received, Sending<'_>)> {
        if self.queue.frames.lock().is_empty() {
            return None;
        }
        // The frame to answer in comes first: without one, the question stays in the queue.
        let Some(answer) = NetFrame::alloc() else {
            self.starved = true;
            return None;
        };
        let frame = self.queue.frames.lock().pop()?;
        Some((Received(frame), Sending { out: &mut self.out, frame: answer }))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sending<'_>> {
        let Some(frame) = NetFrame::alloc() else {
            self.starved = true;
            return None;
        };
        Some(Sending { out: &mut self.out, frame })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        // Ethernet header included. What a jumbo link could carry beyond that is for handlers.
        capabilities.max_transmission_unit =
            (netwire::EthernetHeader::LEN + usize::from(self.card.mtu())).min(ORDINARY_FRAME_BYTES);
        capabilities
    }
}

pub(crate) struct Received(NetFrame);

impl RxToken for Received {
    fn consume<R, F>(self, read: F) -> R
    where
        F: FnOnce(&[u8]) -> R,
    {
        read(self.0.bytes())
    }
}

pub(crate) struct Sending<'a> {
    out: &'a mut FrameChain,
    frame: NetFrame,
}

impl TxToken for Sending<'_> {
    fn consume<R, F>(mut self, len: usize, write: F) -> R
    where
        F: FnOnce(&mut [u8]) -> R,
    {
        // The library asks for at most the MTU it was told. The frame is cleared first: gaps that
        // it leaves must not carry a stranger's last packet.
        self.frame.set_len(len);
        self.frame.bytes_mut().fill(0);
        let result = write(self.frame.bytes_mut());
        self.out.push(self.frame);
        result
    }
}
