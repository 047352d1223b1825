//! The card: brought up, polled, and brought up again when it misbehaved.
//!
//! ```text
//!              start
//!                |
//!                v      RingFault, fatal cause         restarts used up,
//!      +----- Running ------------------------> reset ---------------------> Down
//!      |         ^                              |   ^   or set-up refused
//!      |         +------------------------------+   |
//!      +-- softirq: take, deliver, refill, pump   retry: the pool was empty
//! ```
//!
//! Lock order: `receive`, then `transmit`. A restart holds both.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use igb_protocol::{Link, Model, Port, ReceiveRing, RingSize, TransmitRing, register::cause};
use kcore::event::Event;
use kcore::frame::{FRAME_BYTES, FrameChain, MAX_PIECES};
use kcore::irq::{self, Interrupt, IrqError};
use kcore::memory::OutOfMemory;
use kcore::net::{NetCounters, NetDevice, NetStats, Receiver, Turn, add};
use kcore::pci::{Msix, PciDevice, PciError};
use kcore::softirq::{self, Softirq};
use kcore::sync::{Once, SpinLock};
use kcore::task::{self, Placement, Priority, SpawnError};
use kcore::time::now_ns;
use virtio_driver::{MAX_RESTARTS, Restarts};

use crate::memory::RingBuffer;
use crate::receive::{self, Batch, ReceiveSide};
use crate::registers::{OTHER_VECTOR, RECEIVE_VECTOR, Registers, TRANSMIT_VECTOR, VECTORS};
use crate::transmit::{self, TransmitSide};

/// The least time between two receive interrupts; 0: as they come. A real card masks its vector with each
/// message, so a burst is one interrupt as it is. QEMU's model does not, and sends every message twice
/// under a throttle: 20 us cost a lone request some (median of 8 runs, p50 194 us against 169) and brought
/// 64 at once some more a second (17,500 against 14,600), on a host too busy to decide by that.
const RECEIVE_INTERVAL_US: u16 = 0;

/// When a card that found no frame to receive into is set up again.
const RETRY_NS: u64 = 10_000_000;

const ETHERNET_HEADER_BYTES: usize = 14;
/// What every link carries.
pub const ORDINARY_MTU: u16 = 1500;
/// The least an IPv4 link must carry (RFC 791 section 3.2), and the usual jumbo packet.
const MIN_MTU: u16 = 68;
const MAX_MTU: u16 = 9000;
/// Such a packet, with a VLAN's tag, has no more pieces than a packet may.
const _: () = assert!((ETHERNET_HEADER_BYTES + 4 + MAX_MTU as usize).div_ceil(FRAME_BYTES) <= MAX_PIECES);

const RECEIVE_RING: RingSize = RingSize::new(receive::DESCRIPTORS).expect("a power of two");
const TRANSMIT_RING: RingSize = RingSize::new(transmit::DESCRIPTORS).expect("a power of two");

/// Why a card could not be brought up.
#[derive(Debug)]
pub enum StartError {
    Pci(PciError),
    /// Its port is fibre or a backplane.
    NotCopper,
    /// The card does not finish its reset.
    ResetTimedOut,
    /// The card's memory holds no address for it.
    NoAddress,
    /// A queue does not begin.
    QueueRefused,
    /// Firmware does not let go of the PHY.
    PhyBusy,
    /// The PHY does not answer.
    PhySilent,
    /// The card has too few interrupt messages.
    TooFewVectors(u16),
    Interrupt(IrqError),
    Memory(OutOfMemory),
    /// The pool has too few frames to receive into.
    NoFrames,
    /// All softirqs are taken.
    NoSoftirq,
    Task(SpawnError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Pci(error) => error.fmt(f),
            StartError::NotCopper => f.write_str("its port is not copper, and others are not driven"),
            StartError::ResetTimedOut => f.write_str("the card does not finish its reset"),
            StartError::NoAddress => f.write_str("the card has no address of its own"),
            StartError::QueueRefused => f.write_str("the card does not begin a queue"),
            StartError::PhyBusy => f.write_str("firmware does not let go of the card's PHY"),
            StartError::PhySilent => f.write_str("the card's PHY does not answer"),
            StartError::TooFewVectors(count) => {
                write!(f, "the card has {count} interrupt messages and needs {VECTORS}")
            }
            StartError::Interrupt(error) => error.fmt(f),
            StartError::Memory(error) => error.fmt(f),
            StartError::NoFrames => f.write_str("the frame pool is empty"),
            StartError::NoSoftirq => f.write_str("all softirqs are taken"),
            StartError::Task(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for StartError {}

macro_rules! wrapped {
    ($($variant:ident($inner:ty),)*) => {
        $(impl From<$inner> for StartError {
            fn from(error: $inner) -> StartError {
                StartError::$variant(error)
            }
        })*
    };
}

wrapped! {
    Pci(PciError),
    Interrupt(IrqError),
    Memory(OutOfMemory),
    Task(SpawnError),
}

/// Whether the card is in use. Written under both queues' locks, but for `Running` to `Faulty`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Health {
    Running,
    /// Found to misbehave; the softirq will restart it, from `retry_ns` on.
    Faulty,
    /// Given up.
    Down,
}

/// A card of the 82576's family.
pub struct Igb {
    name: String,
    model: Model,
    function: &'static PciDevice,
    registers: Registers,
    mac: [u8; 6],
    mtu: u16,
    turn: Turn,
    receive: SpinLock<ReceiveSide>,
    transmit: SpinLock<TransmitSide>,
    receiver: SpinLock<Option<Arc<dyn Receiver>>>,
    health: AtomicU8,
    /// The softirq's alone.
    restarts: SpinLock<Restarts>,
    /// Not 0: a restart that was counted failed for want of frames, and is tried again then.
    retry_ns: AtomicU64,
    /// Wakes the task that raises the softirq at `retry_ns`.
    retry: Event,
    /// Something happened beside the queues.
    changed: AtomicBool,
    link_is_up: AtomicBool,
    counters: NetCounters,
    cpu: usize,
    softirq: Once<Softirq>,
    /// Kept for their lives; the table must go before the interrupts it points to.
    interrupts: Once<(Msix, [Interrupt; VECTORS as usize])>,
}

impl Igb {
    /// Brings a card up: frames may come, and are dropped until a receiver is set.
    pub fn start(
        function: &'static PciDevice,
        model: Model,
        name: String,
        cpu: usize,
        mtu: u16,
    ) -> Result<Arc<Igb>, StartError> {
        if model.port != Port::Copper {
            return Err(StartError::NotCopper);
        }
        let registers = Registers::map(function)?;
        function.disable_bus_master();
        if !registers.reset() {
            return Err(StartError::ResetTimedOut);
        }
        let mac = registers.mac()?;
        let msix = function.msix_setup()?;
        if msix.count() < VECTORS {
            return Err(StartError::TooFewVectors(msix.count()));
        }
        let receive_memory = RingBuffer::new(RECEIVE_RING, "a receive ring")?;
        let receive_ring = ReceiveRing::new(receive_memory, RECEIVE_RING, FRAME_BYTES as u16);
        let transmit_memory = RingBuffer::new(TRANSMIT_RING, "a transmit ring")?;
        let transmit_ring = TransmitRing::new(transmit_memory, TRANSMIT_RING);
        let device = Arc::new(Igb {
            name,
            model,
            function,
            registers,
            mac,
            mtu: mtu.clamp(MIN_MTU, MAX_MTU),
            turn: Turn::default(),
            receive: SpinLock::new(ReceiveSide::new(receive_ring)),
            transmit: SpinLock::new(TransmitSide::new(transmit_ring)),
            receiver: SpinLock::new(None),
            health: AtomicU8::new(Health::Running as u8),
            restarts: SpinLock::new(Restarts::new()),
            retry_ns: AtomicU64::new(0),
            retry: Event::new(),
            changed: AtomicBool::new(false),
            link_is_up: AtomicBool::new(false),
            counters: NetCounters::default(),
            cpu,
            softirq: Once::new(),
            interrupts: Once::new(),
        });
        device.connect(msix)?;
        let started = device.go(&mut device.receive.lock(), &mut device.transmit.lock());
        match started {
            Ok(()) => device.log_start(),
            Err(_) => function.disable_bus_master(),
        }
        started.map(|()| device)
    }

    /// Connects interrupts and softirq. The device never goes away again: they hold on to it.
    fn connect(self: &Arc<Self>, msix: Msix) -> Result<(), StartError> {
        let device = self.clone();
        let softirq =
            softirq::register("igb", Arc::new(move || device.serve())).map_err(|_| StartError::NoSoftirq)?;
        let _ = self.softirq.set(softirq);
        let on_queues = |device: Arc<Self>| {
            move || {
                add(&device.counters.interrupts, 1);
                softirq.raise();
            }
        };
        let device = self.clone();
        let on_change = move || {
            device.changed.store(true, Release);
            softirq.raise();
        };
        let name = |what: &str| alloc::format!("{}{what}", self.name);
        let interrupts = [
            irq::allocate(&self.name, self.cpu, Arc::new(on_queues(self.clone())))?,
            irq::allocate(&name(" sent"), self.cpu, Arc::new(on_queues(self.clone())))?,
            irq::allocate(&name(" state"), self.cpu, Arc::new(on_change))?,
        ];
        for (vector, interrupt) in [RECEIVE_VECTOR, TRANSMIT_VECTOR, OTHER_VECTOR].iter().zip(&interrupts) {
            msix.bind((*vector).into(), interrupt);
        }
        let _ = self.interrupts.set((msix, interrupts));
        let device = self.clone();
        task::spawn(&name("/retry"), Placement::Cpu(self.cpu), Priority::Normal, move || {
            loop {
                device.retry.wait();
                task::sleep_until(device.retry_ns.load(Acquire));
                device.raise();
            }
        })?;
        Ok(())
    }

    /// Sets a card up that was just reset, and lets it work: from here on it reads and writes memory.
    fn go(&self, receive: &mut ReceiveSide, transmit: &mut TransmitSide) -> Result<(), StartError> {
        self.function.enable_bus_master();
        self.registers.start_link()?;
        self.registers.start_receiving(&receive.ring, self.mtu)?;
        self.registers.start_transmitting(&transmit.ring)?;
        if !receive.fill(&self.registers, &self.counters) {
            return Err(StartError::NoFrames);
        }
        self.registers.start_interrupts(RECEIVE_INTERVAL_US);
        // Whatever the link did before its changes were told.
        self.changed.store(true, Release);
        self.raise();
        Ok(())
    }

    fn log_start(&self) {
        let [a, b, c, d, e, f] = self.mac;
        log::info!(
            "{}: {}{} at {}, {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}, MTU {}, rings of {} and {}, interrupts \
             on CPU {}",
            self.name,
            self.model.name,
            if self.model.tried { "" } else { " (untried)" },
            self.function.address,
            self.mtu,
            RECEIVE_RING.get(),
            TRANSMIT_RING.get(),
            self.cpu,
        );
    }

    fn raise(&self) {
        if let Some(softirq) = self.softirq.get() {
            softirq.raise_on(self.cpu);
        }
    }

    fn health_is(&self, health: Health) -> bool {
        self.health.load(Acquire) == health as u8
    }

    /// Notes that the card misbehaves. The ring that found out is dead already.
    fn mark_faulty(&self, what: &dyn fmt::Display) {
        let (running, faulty) = (Health::Running as u8, Health::Faulty as u8);
        if self.health.compare_exchange(running, faulty, AcqRel, Acquire).is_ok() {
            add(&self.counters.rx_errors, 1);
            log::warn!("{}: {what}", self.name);
            self.raise();
        }
    }

    /// One turn of the softirq.
    fn serve(&self) {
        let work = || {
            if self.changed.swap(false, AcqRel) && self.health_is(Health::Running) {
                self.look_at_state();
            }
            if self.health_is(Health::Faulty) && now_ns() >= self.retry_ns.load(Acquire) {
                self.set_up_again();
            }
            self.take_and_pump();
        };
        self.turn.take(work, || self.raise());
    }

    fn take_and_pump(&self) {
        if !self.health_is(Health::Running) {
            return;
        }
        let batch = self.receive.lock().take(&self.registers, &self.counters);
        let full = match batch {
            Ok(batch) => {
                let full = batch.full;
                self.deliver(batch);
                full
            }
            Err(fault) => return self.mark_faulty(&fault),
        };
        if let Err(fault) = self.pump(&mut self.transmit.lock()) {
            return self.mark_faulty(&fault);
        }
        // With more there, others of this CPU get their turn before the next batch; the vector stays
        // masked meanwhile.
        if full {
            self.raise();
        } else if !self.turn.is_polled() {
            self.registers.unmask(RECEIVE_VECTOR);
        }
    }

    fn pump(&self, transmit: &mut TransmitSide) -> Result<(), igb_protocol::RingFault> {
        transmit.pump(self.link_is_up.load(Relaxed), &self.registers, &self.counters)
    }

    fn deliver(&self, batch: Batch) {
        let mut frames = batch.frames;
        if frames.is_empty() {
            return;
        }
        let receiver = self.receiver.lock().clone();
        let Some(receiver) = receiver else {
            add(&self.counters.rx_dropped, frames.len() as u64);
            return;
        };
        add(&self.counters.rx_frames, frames.len() as u64);
        add(&self.counters.rx_bytes, batch.bytes);
        while let Some(frame) = frames.pop() {
            receiver.receive(frame);
        }
        receiver.receive_done();
    }

    fn look_at_state(&self) {
        let causes = self.registers.take_causes();
        let link = self.registers.link();
        if link == Link::Gone {
            self.mark_faulty(&"the card does not answer any more");
        } else if causes & (cause::FATAL | cause::DMA_OUT_OF_SYNC) != 0 {
            self.mark_faulty(&format_args!("the card reports a fatal error ({causes:#x})"));
        }
        if self.link_is_up.swap(link.is_up(), AcqRel) != link.is_up() {
            log::info!("{}: link {link}", self.name);
        }
        self.registers.unmask(OTHER_VECTOR);
    }

    /// Resets the card, takes its frames back, and sets it up again.
    fn set_up_again(&self) {
        let mut receive = self.receive.lock();
        let mut transmit = self.transmit.lock();
        // After this it reaches no memory, whether or not it can be reset.
        self.function.disable_bus_master();
        let was_reset = self.registers.reset();
        receive.reset();
        transmit.reset();
        if !was_reset {
            return self.give_up(&mut transmit, &StartError::ResetTimedOut);
        }
        if self.retry_ns.load(Acquire) == 0 {
            let Some(restarts) = self.restarts.lock().count(now_ns()) else {
                return self.give_up(&mut transmit, &"it misbehaved too often");
            };
            log::warn!("{}: reset ({restarts} of {MAX_RESTARTS})", self.name);
        }
        match self.go(&mut receive, &mut transmit) {
            Ok(()) => {
                self.retry_ns.store(0, Release);
                self.health.store(Health::Running as u8, Release);
                log::warn!("{}: running again", self.name);
            }
            Err(StartError::NoFrames) => self.retry_later(&mut receive, &mut transmit),
            Err(error) => {
                self.function.disable_bus_master();
                receive.reset();
                self.give_up(&mut transmit, &error);
            }
        }
    }

    /// The pool is empty, and some of it waits here: to receive matters more.
    fn retry_later(&self, receive: &mut ReceiveSide, transmit: &mut TransmitSide) {
        self.function.disable_bus_master();
        receive.reset();
        transmit.drop_backlog(&self.counters);
        let retry_ns = now_ns() + RETRY_NS;
        if self.retry_ns.swap(retry_ns, AcqRel) == 0 {
            log::warn!("{}: waits for frames to receive into", self.name);
        }
        self.retry.signal();
    }

    /// The card reaches no memory, and the rings are empty.
    fn give_up(&self, transmit: &mut TransmitSide, why: &dyn fmt::Display) {
        transmit.drop_backlog(&self.counters);
        self.health.store(Health::Down as u8, Release);
        self.link_is_up.store(false, Release);
        log::error!("{}: down for good: {why}", self.name);
    }
}

impl NetDevice for Igb {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }

    fn max_segments(&self) -> usize {
        MAX_PIECES
    }

    fn transmit(&self, chain: &mut FrameChain) -> usize {
        let mut side = self.transmit.lock();
        // Under the lock, because a restart ends under it.
        if self.health_is(Health::Down) {
            let frames = chain.len();
            drop(side);
            add(&self.counters.tx_dropped, frames as u64);
            drop(core::mem::take(chain));
            return frames;
        }
        let longest_bytes = ETHERNET_HEADER_BYTES + usize::from(self.mtu);
        let taken = side.accept(chain, longest_bytes, &self.counters);
        if self.health_is(Health::Running) {
            let pumped = self.pump(&mut side);
            drop(side);
            if let Err(fault) = pumped {
                self.mark_faulty(&fault);
            }
        }
        taken
    }

    fn set_polled(&self, polled: bool) {
        // What came meanwhile has its cause pending: the message comes at once.
        if self.turn.set_polled(polled) && self.health_is(Health::Running) {
            self.registers.unmask(RECEIVE_VECTOR);
        }
    }

    fn poll(&self) -> bool {
        let something = self.health_is(Health::Running) && self.receive.lock().ring.has_next();
        if something {
            self.turn.take(|| self.take_and_pump(), || self.raise());
        }
        something
    }

    fn set_receiver(&self, receiver: Arc<dyn Receiver>) {
        *self.receiver.lock() = Some(receiver);
    }

    fn restart(&self) {
        self.mark_faulty(&"a restart was asked for");
    }

    fn stats(&self) -> NetStats {
        // Also the moment to give back what an idle card has long sent.
        if self.health_is(Health::Running) {
            self.transmit.lock().reclaim();
            let (damaged, missed) = self.registers.take_drops();
            if (damaged, missed) != (u32::MAX, u32::MAX) {
                add(&self.counters.rx_errors, damaged.into());
                add(&self.counters.rx_dropped, missed.into());
            }
        }
        self.counters.snapshot()
    }
}
