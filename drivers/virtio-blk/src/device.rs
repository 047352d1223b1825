//! A device: how it is started, watched, set up again and shut down.
//!
//! ```text
//!   start ---> Running ---- trouble ----> Resetting ---- reset in vain, or too often ---> Finished
//!                 ^                           |                                              ^
//!                 +------ set up again -------+            Running ----- shut_down ----------+
//! ```

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};

use disk_guard::Guarded;
use kcore::block::{DiskStats, IoStatus};
use kcore::irq::{self, Interrupt};
use kcore::mutex::Mutex;
use kcore::pci::{Msix, PciDevice};
use kcore::task::{self, Placement, Priority};
use kcore::{cpu, time};
use virtio_driver::blk::Shape;
use virtio_driver::{Features, QueueFault, QueueSize, RequestLayout, status};
use virtio_pci::Registers;

use crate::queue::{Memory, Queue};
use crate::setup::{self, StartError};
use crate::{Guard, Trouble};

/// Requests of a queue at most: netblk has 256 slots an instance.
const QUEUE_ENTRIES: u16 = 256;

/// What a shutdown waits for outstanding transfers before it goes on without them.
const DRAIN_NS: u64 = 2_000_000_000;

/// The command register of the configuration space and its bus master bit (PCI 3.0 sec 6.2.2).
const COMMAND: u16 = 0x04;
const BUS_MASTER: u16 = 1 << 2;

/// What stands for a device that had to be reset without having failed any request: no status of
/// virtio's own.
const RESET_CODE: u16 = 0x100;

/// Where a device is in its life. From `Finished` nothing leads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Running = 0,
    /// Transfers are refused as busy.
    Resetting = 1,
    /// Given up, vanished or shut down: transfers are refused for good.
    Finished = 2,
}

/// Interrupt messages: changes of the configuration have the first of their own where there are two
/// at least; the queues have the others.
struct Vectors {
    config: Option<u16>,
    first_queue: u16,
    queues: u16,
}

impl Vectors {
    fn of(messages: u16, queues: u16) -> Vectors {
        match messages {
            0 | 1 => Vectors { config: None, first_queue: 0, queues: 1 },
            several => Vectors { config: Some(0), first_queue: 1, queues: queues.min(several - 1) },
        }
    }
}

/// One device. The message table goes before the interrupts it points to, and those before the
/// memory of the queues.
pub struct Device {
    msix: Msix,
    _config_interrupt: Option<Interrupt>,
    queues: Box<[Arc<Queue>]>,
    vectors: Vectors,
    name: String,
    function: &'static PciDevice,
    registers: Arc<Registers>,
    guard: Arc<Guard>,
    phase: AtomicU8,
    features: Features,
    /// As the device said, and with the pieces that its queues can link.
    offered_shape: Shape,
    shape: Shape,
    /// Held by whoever stops or starts the device.
    turn: Mutex<()>,
}

impl Device {
    /// Starts a device. Tasks only.
    pub fn start(function: &'static PciDevice, name: String) -> Result<Arc<Device>, StartError> {
        let least = virtio_driver::blk::Config::LEAST_BYTES;
        let registers = Arc::new(Registers::map(function, least).map_err(StartError::Registers)?);
        // The firmware may have used it; whatever it left there must not reach memory.
        setup::reset(&registers)?;
        let (features, offered_shape) = setup::negotiate(&registers)?;
        let msix = function.msix_setup().map_err(StartError::Pci)?;
        // There are far fewer CPUs than 2^16.
        let vectors = Vectors::of(msix.count(), offered_shape.queues().min(cpu::count() as u16));
        let guard = Arc::new(Guard::new());
        let mut queues = Vec::new();
        let mut shape = offered_shape;
        for number in 0..vectors.queues {
            let layout = layout(&registers, features, &offered_shape, number)?;
            shape = shape.with_segments(layout.segments());
            let event_index = features.contains(Features::EVENT_INDEX);
            let queue = Queue::new(registers.clone(), guard.clone(), layout, event_index);
            let queue = queue.map_err(StartError::Memory)?;
            let interrupt = queue.connect(&format!("{name}/{number}"), usize::from(number));
            msix.bind(vectors.first_queue + number, interrupt.map_err(StartError::Interrupt)?);
            queues.push(queue);
        }
        let mut config_interrupt = None;
        if let Some(vector) = vectors.config {
            let on_change = {
                let guard = guard.clone();
                Arc::new(move || guard.look_now())
            };
            let interrupt = irq::allocate(&format!("{name}/state"), 0, on_change);
            let interrupt = interrupt.map_err(StartError::Interrupt)?;
            msix.bind(vector, &interrupt);
            config_interrupt = Some(interrupt);
        }
        let device = Arc::new(Device {
            msix,
            _config_interrupt: config_interrupt,
            queues: queues.into_boxed_slice(),
            vectors,
            name,
            function,
            registers,
            guard,
            phase: AtomicU8::new(Phase::Resetting as u8),
            features,
            offered_shape,
            shape,
            turn: Mutex::new(()),
        });
        let guarded = device.clone();
        // High: a CPU full of busy tasks must not delay what ends their transfers.
        let guard_name = format!("{}/guard", device.name);
        device
            .go()
            .and_then(|()| {
                task::spawn(&guard_name, Placement::Any, Priority::High, move || disk_guard::run(&*guarded))
                    .map(drop)
                    .map_err(StartError::Task)
            })
            .inspect_err(|_| device.abandon())?;
        device.log_start();
        Ok(device)
    }

    /// Gives the device its queues and lets it work: from here on it reads and writes memory.
    fn go(&self) -> Result<(), StartError> {
        self.registers.set_config_vector(self.vectors.config);
        let mut doorbells = Vec::new();
        for (number, queue) in (0_u16..).zip(&self.queues) {
            let rings = queue.layout().rings();
            if self.registers.queue_limit(number) < rings.size().get() {
                return Err(StartError::NoQueue(number));
            }
            let vector = self.vectors.first_queue + number;
            let doorbell = self.registers.enable_queue(number, rings, queue.phys(), vector);
            doorbells.push(doorbell.map_err(StartError::Registers)?);
        }
        self.function.enable_bus_master();
        self.registers.add_status(status::DRIVER_OK);
        for (queue, doorbell) in self.queues.iter().zip(doorbells) {
            queue.open(doorbell);
        }
        self.set_phase(Phase::Running);
        Ok(())
    }

    /// A device that was started half only.
    fn abandon(&self) {
        self.set_phase(Phase::Finished);
        for queue in &self.queues {
            queue.close();
        }
        self.function.disable_bus_master();
        let _ = setup::reset(&self.registers);
    }

    fn log_start(&self) {
        let Device { shape, name, .. } = self;
        let mib = (shape.blocks() * u64::from(shape.block_bytes())) >> 20;
        log::info!(
            "{name} at {}: virtio-blk, {mib} MiB, sectors of {} bytes{}, {} queues of {} requests, {} messages, {}",
            self.function.address,
            shape.block_bytes(),
            if shape.is_read_only() { ", read-only" } else { "" },
            self.queues.len(),
            self.queues.first().map_or(0, |queue| queue.layout().slots()),
            self.msix.count(),
            if shape.has_cache() { "volatile write cache" } else { "no volatile write cache" },
        );
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    pub fn address(&self) -> String {
        format!("{}", self.function.address)
    }

    /// The queue for transfers from the CPU this runs on.
    pub fn queue_here(&self) -> &Queue {
        // There is at least one, or the device would not have been started.
        &self.queues[cpu::index() % self.queues.len()]
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Running,
            1 => Phase::Resetting,
            _ => Phase::Finished,
        }
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Release);
    }

    pub fn stats(&self) -> DiskStats {
        let mut stats = DiskStats::default();
        for queue in &self.queues {
            queue.add_to(&mut stats);
        }
        stats
    }

    /// Stops the device, by its bus and by its own knowledge: either is enough on a real bus, but a
    /// model of a device may have looked its memory up before. What may become of its memory, and
    /// whether it stopped.
    fn stop(&self) -> (Memory, Result<(), StartError>) {
        for queue in &self.queues {
            queue.close();
        }
        self.function.disable_bus_master();
        let stopped = setup::reset(&self.registers);
        let unreachable = !self.function.is_present() || self.function.read16(COMMAND) & BUS_MASTER == 0;
        if stopped.is_ok() || unreachable {
            return (Memory::GivenBack, stopped);
        }
        log::error!("{}: neither it nor its bus stops: the memory of its transfers is lost", self.name);
        (Memory::Lost, stopped)
    }

    fn end_all(&self, status: IoStatus, memory: Memory) -> usize {
        self.queues.iter().map(|queue| queue.end_all(status, memory)).sum()
    }

    /// The second half of [`Device::start`], for a device that was reset and whose memory is all
    /// there.
    fn start_again(&self) -> Result<(), StartError> {
        let (features, shape) = setup::negotiate(&self.registers)?;
        // Another disk in its place, or other block sizes, and every limit would be wrong.
        if (features, shape) != (self.features, self.offered_shape) {
            return Err(StartError::Changed);
        }
        for queue in &self.queues {
            queue.restart();
        }
        self.go()
    }

    /// Lets outstanding transfers finish, has the device write out its cache, and parks it. Tasks
    /// only.
    pub fn shut_down(self: &Arc<Self>) {
        let deadline_ns = time::now_ns() + DRAIN_NS;
        while self.oldest_ns().is_some() && time::now_ns() < deadline_ns {
            task::sleep_ns(1_000_000);
        }
        if self.phase() == Phase::Running
            && let Err(error) = kcore::block::flush(&crate::VirtioDisk::new(self.clone()))
        {
            log::error!("{}: shutdown: {error}", self.name);
        }
        let _turn = self.turn.lock();
        if self.phase() == Phase::Finished {
            return;
        }
        self.set_phase(Phase::Finished);
        let (memory, _) = self.stop();
        self.end_all(IoStatus::Gone, memory);
        self.guard.wake();
    }
}

impl Guarded for Device {
    type Violation = QueueFault;

    fn guard(&self) -> &Guard {
        &self.guard
    }

    fn is_finished(&self) -> bool {
        self.phase() == Phase::Finished
    }

    fn oldest_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| queue.oldest_ns()).min()
    }

    fn answered(&self) -> u64 {
        self.queues.iter().map(|queue| queue.answered()).sum()
    }

    /// Empty slots mostly read as ones, but some bridges answer with zeros; the configuration space
    /// knows.
    fn find_trouble(&self) -> Option<Trouble> {
        let now = self.registers.status();
        if now == u8::MAX || !self.function.is_present() {
            Some(Trouble::Gone)
        } else if now & status::DEVICE_NEEDS_RESET != 0 {
            Some(Trouble::Fatal)
        } else if now & status::DRIVER_OK == 0 {
            Some(Trouble::NotReady)
        } else {
            None
        }
    }

    fn recover(&self, trouble: Trouble, again: bool) {
        let _turn = self.turn.lock();
        if self.is_finished() {
            return;
        }
        self.set_phase(Phase::Resetting);
        // Only after this may the transfers' owners have their memory back.
        let (memory, stopped) = self.stop();
        let gone = trouble == Trouble::Gone || !self.function.is_present();
        // One that does not stop may still have old requests: it never gets its way to memory back.
        let again = again && !gone && stopped.is_ok();
        if !again {
            // Before the transfers end: whoever submits the next one learns that it is the end.
            self.set_phase(Phase::Finished);
        }
        let status = match trouble {
            _ if gone => IoStatus::Gone,
            Trouble::Expired => IoStatus::TimedOut,
            _ => IoStatus::DeviceError { code: RESET_CODE },
        };
        let ended = self.end_all(status, memory);
        self.guard.forget();
        log::error!("{}: {trouble}; {ended} transfers ended as failed", self.name);
        if !again {
            let why = match stopped {
                _ if gone => "it is gone",
                Err(_) => "it does not stop",
                Ok(()) => "resets do not help",
            };
            log::error!("{}: given up: {why}", self.name);
            return;
        }
        match self.start_again() {
            Ok(()) => log::warn!("{}: in use again after a reset", self.name),
            Err(error) => {
                self.abandon();
                log::error!("{}: given up: the reset failed: {error}", self.name);
            }
        }
    }

    fn log_failures(&self) -> bool {
        let mut any = false;
        for failure in self.queues.iter().filter_map(|queue| queue.take_failure()) {
            log::error!("{}: {failure}", self.name);
            any = true;
        }
        any
    }
}

/// How queue `number` lies in memory.
fn layout(
    registers: &Registers,
    features: Features,
    shape: &Shape,
    number: u16,
) -> Result<RequestLayout, StartError> {
    let indirect = features.contains(Features::INDIRECT_DESCRIPTORS);
    // Without indirect tables a request takes as many descriptors as it has pieces, rounded up.
    let limit = if indirect { QUEUE_ENTRIES } else { 8 * QUEUE_ENTRIES };
    QueueSize::largest(registers.queue_limit(number), limit)
        .and_then(|size| RequestLayout::new(size, shape.max_segments(), indirect))
        .ok_or(StartError::NoQueue(number))
}
