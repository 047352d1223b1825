//! A guest's network card: a virtio function on one side, a port of the switch on the
//! other.
//!
//! Lock order: the source, the function, the port's queue, the frames' pool; a register
//! access has the board's lock before the function's. The switch is called with none of
//! them held.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hvarch::GuestMemory;
use kcore::frame::{FRAME_BYTES, FrameChain, NetFrame};
use kcore::sync::SpinLock;
use machine::pci::Identity;
use machine::time::nearer;
use netwire::MacAddr;
use virtio_device::net::{
    FrameSink, FrameSource, NetConfig, NetCounters, NetFunction, RECEIVE_QUEUE, TRANSMIT_QUEUE, frame_wakes,
};
use virtio_device::{Event, Region};

use crate::bell::Bells;
use crate::devices::{Device, Round};
use crate::fabric::{Fabric, FrameQueue, Plug, PlugError, Port};

/// Frames that a port may hold, the one in the first CPU's hands with them. A guest that
/// gives its card no buffers keeps them for good, and the pool has 4096 for everyone: two
/// dozen such guests leave a quarter of it. TCP between guests loses a burst by it now and
/// then, and takes no longer.
const PORT_FRAMES: usize = 128;

/// The switch's end: frames on their way to the guest.
struct NicPort {
    /// Its lock comes after the others of the card.
    queue: FrameQueue,
    bells: Bells,
    /// When the card's moderation window ends; the first CPU comes by itself then.
    window_end_ns: AtomicU64,
    /// The guest has no buffer: it comes with its next one, and no sooner for being rung.
    starved: AtomicBool,
}

impl Port for NicPort {
    fn deliver(&self, frames: FrameChain) {
        let waiting = self.queue.push(frames);
        if self.starved.load(Ordering::SeqCst) {
            return;
        }
        let window_end_ns = self.window_end_ns.load(Ordering::SeqCst);
        if frame_wakes(kcore::time::now_ns(), window_end_ns, waiting, self.queue.limit()) {
            self.bells.ring_device_cpu();
        }
    }
}

/// The card. Shared by the board (registers) and the first CPU's task (queues).
pub struct Nic {
    ram: Arc<GuestMemory>,
    /// Its lock comes after the board's or the source's, never both, and before the
    /// queue's: the function takes the frames that it has buffers for.
    function: SpinLock<NetFunction>,
    port: Arc<NicPort>,
    plug: Plug,
    /// The guest notified the queue, or the device began.
    transmit_wanted: AtomicBool,
    receive_wanted: AtomicBool,
    /// The first CPU's task takes this lock alone, before the function's.
    source: SpinLock<Source>,
    bells: Bells,
}

/// Counters of a card, both sides.
#[derive(Clone, Copy, Debug, Default)]
pub struct NicStats {
    pub card: NetCounters,
    pub switch: switch::PortCounters,
    /// Frames for which the port's queue had no room.
    pub queue_dropped: u64,
}

impl Nic {
    /// A card in the guest with memory `ram`, plugged into `fabric`.
    pub fn new(
        fabric: &Arc<Fabric>,
        mac: MacAddr,
        ram: Arc<GuestMemory>,
        bells: Bells,
    ) -> Result<Nic, PlugError> {
        let port = Arc::new(NicPort {
            queue: FrameQueue::new(PORT_FRAMES - 1),
            bells: bells.clone(),
            window_end_ns: AtomicU64::new(0),
            starved: AtomicBool::new(false),
        });
        let plug = fabric.plug(mac, port.clone())?;
        let source = Source { port: port.clone(), next: None, starved: false };
        Ok(Nic {
            ram,
            function: SpinLock::new(NetFunction::net(NetConfig::new(mac.0), 0)),
            port,
            plug,
            transmit_wanted: AtomicBool::new(false),
            receive_wanted: AtomicBool::new(false),
            source: SpinLock::new(source),
            bells,
        })
    }

    /// Takes what the guest has sent to the switch. True if there is more.
    fn transmit(&self) -> bool {
        if !self.transmit_wanted.swap(false, Ordering::SeqCst) {
            return false;
        }
        let mut sink = Sink::default();
        let transmitted = self.function.lock().transmit(&*self.ram, &mut sink);
        if transmitted.more {
            self.transmit_wanted.store(true, Ordering::SeqCst);
        }
        self.plug.send(sink.frames, kcore::time::now_ns());
        transmitted.more
    }

    pub fn stats(&self) -> NicStats {
        NicStats {
            card: self.function.lock().counters(),
            switch: self.plug.counters(),
            queue_dropped: self.port.queue.dropped(),
        }
    }
}

/// Frames that the guest shall receive, in the first CPU's hands.
struct Source {
    port: Arc<NicPort>,
    next: Option<NetFrame>,
    /// The guest had no buffer; it will notify.
    starved: bool,
}

impl Source {
    fn clear(&mut self) {
        self.port.queue.take(&mut FrameChain::new());
        (self.next, self.starved) = (None, false);
    }
}

impl FrameSource for Source {
    fn peek(&mut self) -> Option<&[u8]> {
        if self.next.is_none() {
            self.next = self.port.queue.pop();
        }
        self.next.as_ref().map(NetFrame::bytes)
    }

    fn consume(&mut self) {
        self.next = None;
    }
}

/// Frames that the guest sent.
#[derive(Default)]
struct Sink {
    reserved: Option<NetFrame>,
    frames: FrameChain,
}

impl FrameSink for Sink {
    fn reserve(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > FRAME_BYTES {
            return None;
        }
        if self.reserved.is_none() {
            self.reserved = NetFrame::alloc();
        }
        let frame = self.reserved.as_mut()?;
        frame.set_len(bytes);
        Some(frame.bytes_mut())
    }

    fn commit(&mut self) {
        if let Some(frame) = self.reserved.take() {
            self.frames.push(frame);
        }
    }
}

impl Device for Nic {
    fn identity(&self) -> Identity {
        Identity { virtio_type: virtio_device::DeviceKind::Net.id(), config_bytes: 12, queues: 2 }
    }

    fn what(&self) -> &str {
        "network card"
    }

    fn read(&self, region: Region, offset: u32, bytes: u8) -> u64 {
        self.function.lock().read(region, offset, bytes)
    }

    fn write(&self, region: Region, offset: u32, bytes: u8, value: u64) {
        let event = self.function.lock().write(&*self.ram, region, offset, bytes, value);
        let (transmit, receive) = match event {
            Event::Nothing => return,
            // A fault on the way here ends the device, too, and must be looked at.
            Event::Started | Event::Stopped => (true, true),
            Event::Notified { queue: TRANSMIT_QUEUE } => (true, false),
            Event::Notified { queue: RECEIVE_QUEUE } => (false, true),
            Event::Notified { .. } => return,
        };
        if transmit {
            self.transmit_wanted.store(true, Ordering::SeqCst);
        }
        if receive {
            self.receive_wanted.store(true, Ordering::SeqCst);
        }
        self.bells.ring_device_cpu();
    }

    fn interrupt_line(&self) -> bool {
        self.function.lock().interrupt_line()
    }

    fn round(&self, now_ns: u64) -> Round {
        let mut more = self.transmit();
        let mut source = self.source.lock();
        let mut function = self.function.lock();
        let due = function.due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        let notified = self.receive_wanted.swap(false, Ordering::SeqCst);
        if due || notified || (!source.starved && source.peek().is_some()) {
            let received = function.receive(&*self.ram, &mut *source, now_ns);
            source.starved = received.starved;
            more |= received.more;
        }
        if !function.is_live() {
            // Frames for a card without a driver: an unplugged cable keeps none either.
            source.clear();
        }
        self.port.starved.store(source.starved, Ordering::SeqCst);
        // The switch wakes nobody until the window's end, so that is when to look.
        let window_end_ns = function.window_end_ns();
        self.port.window_end_ns.store(window_end_ns, Ordering::SeqCst);
        let window = (window_end_ns > now_ns).then_some(window_end_ns);
        Round { more, due_ns: nearer(function.due_ns(), window), fault: function.fault() }
    }
}
