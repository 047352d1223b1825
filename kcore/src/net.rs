//! Network devices: what a driver offers and what it delivers to.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::balance::Whose;
use crate::frame::{FrameChain, NetFrame};
use crate::sync::{IrqSpinLock, SpinLock};

/// Counters of a network device since boot.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetStats {
    /// Frames received and delivered.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames received and dropped for want of a pool frame or a receiver.
    pub rx_dropped: u64,
    /// Receive completions that made no sense.
    pub rx_errors: u64,
    /// Frames given to the device.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that did not fit the device's ring, or that it cannot carry.
    pub tx_dropped: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// Doorbells rung.
    pub doorbells: u64,
}

/// What a driver counts for its [`NetStats`]. Each counter is an atomic of its own: they are read by
/// the shell at any time and need not agree with each other.
#[derive(Default)]
pub struct NetCounters {
    /// As in [`NetStats`], and so are the others.
    pub rx_frames: AtomicU64,
    pub rx_bytes: AtomicU64,
    pub rx_dropped: AtomicU64,
    pub rx_errors: AtomicU64,
    pub tx_frames: AtomicU64,
    pub tx_bytes: AtomicU64,
    pub tx_dropped: AtomicU64,
    pub interrupts: AtomicU64,
    pub doorbells: AtomicU64,
}

impl NetCounters {
    /// The counters, read one after the other.
    pub fn snapshot(&self) -> NetStats {
        NetStats {
            rx_frames: self.rx_frames.load(Relaxed),
            rx_bytes: self.rx_bytes.load(Relaxed),
            rx_dropped: self.rx_dropped.load(Relaxed),
            rx_errors: self.rx_errors.load(Relaxed),
            tx_frames: self.tx_frames.load(Relaxed),
            tx_bytes: self.tx_bytes.load(Relaxed),
            tx_dropped: self.tx_dropped.load(Relaxed),
            interrupts: self.interrupts.load(Relaxed),
            doorbells: self.doorbells.load(Relaxed),
        }
    }
}

/// Whose turn it is to deliver what a card has received: its softirq's, or that of a task that polls it.
///
/// A task may take the softirq's turn ([`NetDevice::poll`]). While one does so time and again
/// ([`NetDevice::set_polled`]) the card is not asked for interrupts; whoever ends that asks for them again and
/// looks once more.
pub struct Turn {
    /// Held while somebody delivers.
    holder: SpinLock<()>,
    /// The softirq came in vain, since somebody else had the turn.
    missed: AtomicBool,
    /// Tasks that poll.
    pollers: AtomicU32,
}

impl Default for Turn {
    fn default() -> Self {
        Turn { holder: SpinLock::new(()), missed: AtomicBool::new(false), pollers: AtomicU32::new(0) }
    }
}

impl Turn {
    /// Does `work` unless somebody else has the turn, who then sees to it that the softirq comes again, by
    /// `raise`. It is not preempted.
    pub fn take(&self, work: impl FnOnce(), raise: impl FnOnce()) {
        let holder = self.holder.try_lock().or_else(|| {
            self.missed.store(true, SeqCst);
            // Whoever had it may have looked before that.
            self.holder.try_lock()
        });
        let Some(holder) = holder else { return };
        work();
        drop(holder);
        if self.missed.swap(false, SeqCst) {
            raise();
        }
    }

    /// Whether a task polls, so that no interrupt is wanted. Looked at with the turn.
    pub fn is_polled(&self) -> bool {
        self.pollers.load(SeqCst) > 0
    }

    /// A task begins to poll, or ends. `true`: nobody does any longer, and interrupts are wanted again.
    #[must_use]
    pub fn set_polled(&self, polled: bool) -> bool {
        if polled {
            self.pollers.fetch_add(1, SeqCst);
            false
        } else {
            self.pollers.fetch_sub(1, SeqCst) == 1
        }
    }
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}

/// A network card.
pub trait NetDevice: Send + Sync {
    /// Its name: eth0, eth1, ...
    fn name(&self) -> &str;

    /// Its hardware address.
    fn mac(&self) -> [u8; 6];

    /// Most bytes of an Ethernet payload. Beyond 1500 a packet may be received into several frames
    /// (`NetFrame::pieces`), each full before the next begins.
    fn mtu(&self) -> u16 {
        1500
    }

    /// Most pieces of a packet that it can send. It takes, drops and counts what has more.
    fn max_segments(&self) -> usize {
        1
    }

    /// Sends the chain's frames, in order, under one lock and with one doorbell. Returns how many
    /// were taken; those for which there was no room stay in the chain, and the caller drops and
    /// counts them or tries again.
    fn transmit(&self, chain: &mut FrameChain) -> usize;

    /// Begins (`true`) or ends a time in which the caller looks by itself, and soon, whether something has come
    /// ([`NetDevice::poll`]), so that no interrupt need say so. Several may at once. Nothing, for a card without.
    fn set_polled(&self, polled: bool) {
        let _ = polled;
    }

    /// Delivers what has come, here and now, as its softirq would. Whether there was something. For a task
    /// that holds no lock. The receiver is never called twice at once.
    fn poll(&self) -> bool {
        false
    }

    /// Sets who gets the frames; the one before gets none from then on.
    fn set_receiver(&self, receiver: Arc<dyn Receiver>);

    /// Its counters.
    fn stats(&self) -> NetStats;

    /// Resets the card and sets it up again, as when it misbehaved, which counts against it. Soon, not
    /// at once. Nothing, for what is no hardware.
    fn restart(&self) {}
}

/// Who gets a card's frames, in the receive softirq or a task that polls the card; not preempted there, so
/// that a turn of every CPU's softirq task proves that it has returned.
pub trait Receiver: Send + Sync {
    /// Takes one frame.
    fn receive(&self, frame: NetFrame);

    /// The batch is over: the moment for wake-ups and doorbells.
    fn receive_done(&self) {}
}

static DEVICES: IrqSpinLock<Vec<Arc<dyn NetDevice>>> = IrqSpinLock::new(Vec::new());

/// Makes a device known.
pub fn register(device: Arc<dyn NetDevice>) {
    DEVICES.lock().push(device);
}

/// Every device, in the order of their registration.
pub fn devices() -> Vec<Arc<dyn NetDevice>> {
    DEVICES.lock().clone()
}

/// How many devices there are.
pub(crate) fn count(whose: &Whose) -> usize {
    DEVICES.lock().iter().filter(|device| whose.has(&***device)).count()
}

/// The device called `name`.
pub fn find(name: &str) -> Option<Arc<dyn NetDevice>> {
    DEVICES.lock().iter().find(|device| device.name() == name).cloned()
}
