//! The card: brought up, polled, and brought up again when it misbehaved.
//!
//! ```text
//!              start
//!                |
//!                v      QueueFault, NEEDS_RESET        restarts used up,
//!      +----- Running ------------------------> reset ---------------------> Down
//!      |         ^                              |   ^   or set-up refused
//!      |         +------------------------------+   |
//!      +-- softirq: take, deliver, refill, pump   retry: the pool was empty
//! ```
//!
//! Lock order: `turn`, `receive`, then `transmit`. A restart holds all.

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use kcore::dma::DmaBuffer;
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
use virtio_driver::pci::NO_VECTOR;
use virtio_driver::{
    Access, Features, MAX_RESTARTS, MissingFeature, PacketQueue, QueueLayout, QueueSize, Restarts, net,
    status,
};
use virtio_pci::{QueueMemory, RegisterError};

use crate::memory::{CardPacket, FrameQueue};
use crate::receive::{self, Batch, ReceiveSide};
use crate::registers::Registers;
use crate::transmit::{self, TransmitSide};

/// When a card that found no frame to receive into is set up again.
const RETRY_NS: u64 = 10_000_000;

const REQUIRED: Features = Features::VERSION_1.with(net::MAC);
const WANTED: Features = Features::EVENT_INDEX
    .with(Features::INDIRECT_DESCRIPTORS)
    .with(net::CSUM)
    .with(net::HOST_USO)
    .with(net::MTU)
    .with(net::STATUS);
/// What it takes to send trains.
const UDP_SEGMENTATION: Features = net::CSUM.with(net::HOST_USO);

const DEFAULT_MTU: u16 = 1500;
const ETHERNET_HEADER_BYTES: usize = 14;
/// The usual jumbo packet. No card is given room for more.
const MAX_MTU: u16 = 9000;
const _: () = assert!(frames_per_packet(MAX_MTU) <= MAX_PIECES);
/// The least an IPv4 link must carry (RFC 791 section 3.2).
const MIN_MTU: u16 = 68;

/// MSI-X entries: both queues share one, since one softirq serves them; changes of state have
/// their own where the card has two.
const QUEUE_VECTOR: u16 = 0;
const CONFIG_VECTOR: u16 = 1;

/// Frames that the longest packet of a link takes.
const fn frames_per_packet(mtu: u16) -> usize {
    (ETHERNET_HEADER_BYTES + mtu as usize).div_ceil(FRAME_BYTES)
}

/// Why a card could not be brought up.
#[derive(Debug)]
pub enum StartError {
    Pci(PciError),
    Registers(RegisterError),
    Feature(MissingFeature),
    /// The card refused the features it had offered.
    FeaturesRefused,
    /// The card does not finish its reset.
    ResetTimedOut,
    /// The card has no such queue, or one too short for the packets of its link.
    NoQueue(u16),
    Interrupt(IrqError),
    Memory(OutOfMemory),
    /// The pool has not one frame to receive into.
    NoFrames,
    /// All softirqs are taken.
    NoSoftirq,
    Task(SpawnError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Pci(error) => error.fmt(f),
            StartError::Registers(error) => error.fmt(f),
            StartError::Feature(error) => error.fmt(f),
            StartError::FeaturesRefused => f.write_str("the card refused the features it had offered"),
            StartError::ResetTimedOut => f.write_str("the card does not finish its reset"),
            StartError::NoQueue(queue) => write!(f, "the card has no usable queue {queue}"),
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
    Registers(RegisterError),
    Feature(MissingFeature),
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

/// A virtio network card.
pub struct VirtioNet {
    name: String,
    function: &'static PciDevice,
    registers: Registers,
    features: Features,
    mac: [u8; 6],
    mtu: u16,
    max_segments: usize,
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
    /// The card said that its configuration changed.
    changed: AtomicBool,
    link_is_up: AtomicBool,
    counters: NetCounters,
    cpu: usize,
    softirq: Once<Softirq>,
    /// Kept for their lives; the table must go before the interrupts it points to.
    interrupts: Once<(Msix, Interrupt, Option<Interrupt>)>,
}

impl VirtioNet {
    /// Brings a card up: frames may come, and are dropped until a receiver is set.
    pub fn start(
        function: &'static PciDevice,
        name: String,
        cpu: usize,
    ) -> Result<Arc<VirtioNet>, StartError> {
        let registers = Registers::map(function)?;
        if !registers.reset() {
            return Err(StartError::ResetTimedOut);
        }
        let (features, mtu) = negotiate(&registers)?;
        let indirect = features.contains(Features::INDIRECT_DESCRIPTORS);
        let layout = |queue, limit, segments: usize| {
            QueueSize::largest(registers.queue_limit(queue), limit)
                .map(|size| QueueLayout::scattered(size, segments as u16, indirect))
                .ok_or(StartError::NoQueue(queue))
        };
        let frames_per_packet = frames_per_packet(mtu);
        let receive_layout = layout(net::RECEIVE_QUEUE, receive::DESCRIPTORS, frames_per_packet)?;
        if usize::from(receive_layout.segments()) < frames_per_packet {
            return Err(StartError::NoQueue(net::RECEIVE_QUEUE));
        }
        let segments_udp = features.contains(UDP_SEGMENTATION);
        let transmit_pieces = if indirect && segments_udp { transmit::MOST_PIECES } else { MAX_PIECES };
        let transmit_layout = layout(net::TRANSMIT_QUEUE, transmit::descriptors(indirect), transmit_pieces)?;
        let msix = function.msix_setup()?;
        let config_vector = (msix.count() > CONFIG_VECTOR).then_some(CONFIG_VECTOR);
        let new_queue = |layout: QueueLayout, access, what| -> Result<FrameQueue, OutOfMemory> {
            let memory = QueueMemory(DmaBuffer::new(layout.bytes(), what)?);
            Ok(PacketQueue::new(memory, layout, access, features.contains(Features::EVENT_INDEX)))
        };
        let receive_queue = new_queue(receive_layout, Access::DeviceWrites, "a receive queue")?;
        let transmit_queue = new_queue(transmit_layout, Access::DeviceReads, "a transmit queue")?;
        let doorbell = |number, queue: &FrameQueue| {
            let base = queue.memory().0.phys().as_u64();
            registers.enable_queue(number, queue.layout(), base, QUEUE_VECTOR)
        };
        registers.set_config_vector(config_vector);
        let receive_doorbell = doorbell(net::RECEIVE_QUEUE, &receive_queue)?;
        let transmit_doorbell = doorbell(net::TRANSMIT_QUEUE, &transmit_queue)?;
        let link_is_up = !features.contains(net::STATUS) || registers.link_is_up();
        let device = Arc::new(VirtioNet {
            mac: registers.mac(),
            name,
            function,
            registers,
            features,
            mtu,
            max_segments: usize::from(transmit_layout.segments()).min(MAX_PIECES),
            turn: Turn::default(),
            receive: SpinLock::new(ReceiveSide {
                queue: receive_queue,
                doorbell: receive_doorbell,
                frames_per_packet,
            }),
            transmit: SpinLock::new(TransmitSide::new(transmit_queue, transmit_doorbell, segments_udp)),
            receiver: SpinLock::new(None),
            health: AtomicU8::new(Health::Running as u8),
            restarts: SpinLock::new(Restarts::new()),
            retry_ns: AtomicU64::new(0),
            retry: Event::new(),
            changed: AtomicBool::new(false),
            link_is_up: AtomicBool::new(link_is_up),
            counters: NetCounters::default(),
            cpu,
            softirq: Once::new(),
            interrupts: Once::new(),
        });
        let started = device.connect(msix, config_vector).and_then(|()| {
            let mut receive = device.receive.lock();
            device.go(&mut receive)
        });
        match started {
            Ok(()) => device.log_start(),
            Err(_) => function.disable_bus_master(),
        }
        started.map(|()| device)
    }

    /// Connects interrupts and softirq. The device never goes away again: they hold on to it.
    fn connect(self: &Arc<Self>, msix: Msix, config_vector: Option<u16>) -> Result<(), StartError> {
        let device = self.clone();
        let softirq = softirq::register("virtio-net", Arc::new(move || device.serve()))
            .map_err(|_| StartError::NoSoftirq)?;
        let _ = self.softirq.set(softirq);
        let device = self.clone();
        let on_queues = Arc::new(move || {
            add(&device.counters.interrupts, 1);
            softirq.raise();
        });
        let queues = irq::allocate(&self.name, self.cpu, on_queues)?;
        msix.bind(QUEUE_VECTOR, &queues);
        let mut changes = None;
        if let Some(vector) = config_vector {
            let device = self.clone();
            let on_change = Arc::new(move || {
                device.changed.store(true, Release);
                softirq.raise();
            });
            let interrupt = irq::allocate(&alloc::format!("{} state", self.name), self.cpu, on_change)?;
            msix.bind(vector, &interrupt);
            changes = Some(interrupt);
        }
        let _ = self.interrupts.set((msix, queues, changes));
        let device = self.clone();
        let name = alloc::format!("{}/retry", self.name);
        task::spawn(&name, Placement::Cpu(self.cpu), Priority::Normal, move || {
            loop {
                device.retry.wait();
                task::sleep_until(device.retry_ns.load(Acquire));
                device.raise();
            }
        })?;
        Ok(())
    }

    /// Lets the card work: from here on it reads and writes memory.
    fn go(&self, receive: &mut ReceiveSide) -> Result<(), StartError> {
        self.function.enable_bus_master();
        self.registers.add_status(status::DRIVER_OK);
        let frames = receive.refill(FrameChain::new(), &self.registers, &self.counters);
        if frames == 0 {
            return Err(StartError::NoFrames);
        }
        if receive.queue.arm_interrupt(1) {
            self.raise();
        }
        Ok(())
    }

    fn log_start(&self) {
        let [a, b, c, d, e, f] = self.mac;
        log::info!(
            "{}: virtio-net at {}, {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}, MTU {}, {} receive and {} transmit \
             packets, {}{}, interrupts on CPU {}, link {}",
            self.name,
            self.function.address,
            self.mtu,
            self.receive.lock().queue.slot_count(),
            self.transmit.lock().queue.slot_count(),
            if self.features.contains(Features::EVENT_INDEX) { "event indices" } else { "event flags" },
            if self.features.contains(UDP_SEGMENTATION) { ", cuts up UDP" } else { "" },
            self.cpu,
            if self.link_is_up.load(Relaxed) { "up" } else { "down" },
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

    /// Notes that the card misbehaves. The queue that found out is dead already.
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
            if self.changed.swap(false, AcqRel) {
                self.look_at_state();
            }
            if self.health_is(Health::Faulty) && now_ns() >= self.retry_ns.load(Acquire) {
                self.restart();
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
        let pumped = self.transmit.lock().pump(&self.registers, &self.counters);
        if let Err(fault) = pumped {
            return self.mark_faulty(&fault);
        }
        // With more there, others of this CPU get their turn before the next batch; interrupts
        // stay off meanwhile.
        if full || !self.turn.is_polled() && self.receive.lock().queue.arm_interrupt(1) {
            self.raise();
        }
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
        if self.registers.status() & status::DEVICE_NEEDS_RESET != 0 {
            self.mark_faulty(&"the card asks to be reset");
        }
        if self.features.contains(net::STATUS) {
            let up = self.registers.link_is_up();
            if self.link_is_up.swap(up, AcqRel) != up {
                log::info!("{}: link {}", self.name, if up { "up" } else { "down" });
            }
        }
    }

    /// Resets the card, takes its frames back, and sets it up again.
    fn restart(&self) {
        let mut receive = self.receive.lock();
        let mut transmit = self.transmit.lock();
        if !self.registers.reset() {
            return self.give_up(&mut receive, &mut transmit, &StartError::ResetTimedOut);
        }
        reclaim_all(&mut receive, &mut transmit);
        if self.retry_ns.load(Acquire) == 0 {
            let Some(restarts) = self.restarts.lock().count(now_ns()) else {
                return self.give_up(&mut receive, &mut transmit, &"it misbehaved too often");
            };
            log::warn!("{}: reset ({restarts} of {MAX_RESTARTS})", self.name);
        }
        let set_up = self.set_up_again(&mut receive, &mut transmit).and_then(|()| self.go(&mut receive));
        match set_up {
            Ok(()) => {
                self.retry_ns.store(0, Release);
                self.health.store(Health::Running as u8, Release);
                log::warn!("{}: running again", self.name);
            }
            Err(StartError::NoFrames) => self.retry_later(&mut transmit),
            Err(error) => self.give_up(&mut receive, &mut transmit, &error),
        }
    }

    /// The pool is empty, and some of it waits here: to receive matters more.
    fn retry_later(&self, transmit: &mut TransmitSide) {
        self.function.disable_bus_master();
        transmit.drop_backlog(&self.counters);
        let retry_ns = now_ns() + RETRY_NS;
        if self.retry_ns.swap(retry_ns, AcqRel) == 0 {
            log::warn!("{}: waits for frames to receive into", self.name);
        }
        self.retry.signal();
    }

    fn set_up_again(&self, receive: &mut ReceiveSide, transmit: &mut TransmitSide) -> Result<(), StartError> {
        let (features, _) = negotiate(&self.registers)?;
        if features != self.features {
            return Err(StartError::FeaturesRefused);
        }
        let config_vector =
            self.interrupts.get().and_then(|(_, _, changes)| changes.as_ref().map(|_| CONFIG_VECTOR));
        self.registers.set_config_vector(config_vector);
        let enable = |number, queue: &FrameQueue| {
            if self.registers.queue_limit(number) < queue.layout().size().get() {
                return Err(StartError::NoQueue(number));
            }
            let base = queue.memory().0.phys().as_u64();
            Ok(self.registers.enable_queue(number, queue.layout(), base, QUEUE_VECTOR)?)
        };
        receive.doorbell = enable(net::RECEIVE_QUEUE, &receive.queue)?;
        transmit.doorbell = enable(net::TRANSMIT_QUEUE, &transmit.queue)?;
        Ok(())
    }

    fn give_up(&self, receive: &mut ReceiveSide, transmit: &mut TransmitSide, why: &dyn fmt::Display) {
        // Whether or not it was reset, or half set up again: after this it reaches no memory.
        self.function.disable_bus_master();
        reclaim_all(receive, transmit);
        self.health.store(Health::Down as u8, Release);
        log::error!("{}: down for good: {why}", self.name);
    }
}

/// Takes every frame back. Only when the card cannot reach memory any more.
fn reclaim_all(receive: &mut ReceiveSide, transmit: &mut TransmitSide) {
    receive.queue.reset(CardPacket::free);
    transmit.queue.reset(CardPacket::free);
}

/// The steps of VIRTIO sec 3.1.1 up to the features, and what follows from them for the MTU.
fn negotiate(registers: &Registers) -> Result<(Features, u16), StartError> {
    registers.add_status(status::ACKNOWLEDGE);
    registers.add_status(status::DRIVER);
    let mut features = registers.offered_features().negotiate(REQUIRED, WANTED)?;
    if !features.contains(net::CSUM) {
        features = features.without(net::HOST_USO);
    }
    let mut mtu = DEFAULT_MTU;
    if features.contains(net::MTU) {
        match registers.mtu() {
            offered @ MIN_MTU..=MAX_MTU => mtu = offered,
            // Packets for which no room is made: not accepting the feature leaves the usual 1500
            // (VIRTIO sec 5.1.4.2).
            _ => features = features.without(net::MTU),
        }
    }
    if !registers.accept(features) {
        return Err(StartError::FeaturesRefused);
    }
    Ok((features, mtu))
}

impl NetDevice for VirtioNet {
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
        self.max_segments
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
            let pumped = side.pump(&self.registers, &self.counters);
            drop(side);
            if let Err(fault) = pumped {
                self.mark_faulty(&fault);
            }
        }
        taken
    }

    fn set_polled(&self, polled: bool) {
        let interrupts_wanted = self.turn.set_polled(polled) && self.health_is(Health::Running);
        if interrupts_wanted && self.receive.lock().queue.arm_interrupt(1) {
            self.raise();
        }
    }

    fn poll(&self) -> bool {
        let something = self.health_is(Health::Running) && self.receive.lock().queue.has_used();
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
        if self.health_is(Health::Running)
            && let Err(fault) = self.transmit.lock().reclaim()
        {
            self.mark_faulty(&fault);
        }
        self.counters.snapshot()
    }
}

// The vector that means "none" must not be one that is used.
const _: () = assert!(QUEUE_VECTOR != NO_VECTOR && CONFIG_VECTOR != NO_VECTOR);
