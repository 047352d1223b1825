//! A controller: how it is started, stopped, reset and shut down.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{
    AtomicU8,
    Ordering::{Acquire, Release},
};

use disk_guard::Guarded;
use kcore::block::{DiskStats, IoStatus};
use kcore::irq::IrqError;
use kcore::memory::OutOfMemory;
use kcore::mutex::Mutex;
use kcore::pci::{Msix, PciDevice, PciError};
use kcore::sync::Once;
use kcore::task::{self, Placement, Priority, SpawnError};
use kcore::{block, cpu, time};
use nvme_protocol::register::Capabilities;
use nvme_protocol::{
    Cns, Command, CommandLimits, Controller as Identity, ControllerError, ControllerLimits, Feature, Limits,
    Namespace, PAGE_BYTES, Violation, namespace_list,
};

use crate::admin::{Admin, AdminError};
use crate::disk::NvmeDisk;
use crate::io::{IoQueue, MAX_DISKS, Memory};
use crate::registers::{ReadyError, Registers};
use crate::{Guard, Trouble};

/// Entries of an I/O queue, where the controller allows as many: netblk has 256 slots an instance,
/// and there may be more than one.
const QUEUE_ENTRIES: u32 = 512;

/// Most of a register window that is mapped. Registers come first; controllers with memory of
/// their own may have windows of gigabytes.
const WINDOW_BYTES: u64 = 1 << 20;

/// What a shutdown waits for outstanding transfers before it goes on without them.
const DRAIN_NS: u64 = 2_000_000_000;

/// The command register of the configuration space and its bus master bit (PCI 3.0 sec 6.2.2).
const COMMAND: u16 = 0x04;
const BUS_MASTER: u16 = 1 << 2;

/// The status code "internal error" (NVMe sec 3.3.3.2.1), which stands for a controller that had to
/// be reset without having failed any command in particular.
const INTERNAL_ERROR: u16 = 0x006;

/// Why a controller cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartError {
    Pci(PciError),
    Memory(OutOfMemory),
    Interrupt(IrqError),
    Ready(ReadyError),
    Admin(&'static str, AdminError),
    Identity(ControllerError),
    Task(SpawnError),
    /// The register window does not hold the doorbells.
    WindowTooSmall,
    NoNvmCommandSet,
    PageSize {
        min_bytes: u64,
    },
    /// One interrupt message; the admin queue and an I/O queue need one each.
    TooFewMessages,
    /// After a reset it is not what it was.
    Changed,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Pci(error) => error.fmt(f),
            StartError::Memory(error) => error.fmt(f),
            StartError::Interrupt(error) => error.fmt(f),
            StartError::Ready(error) => error.fmt(f),
            StartError::Admin(what, error) => write!(f, "{what}: {error}"),
            StartError::Identity(error) => error.fmt(f),
            StartError::Task(error) => error.fmt(f),
            StartError::WindowTooSmall => f.write_str("its register window does not hold the doorbells"),
            StartError::NoNvmCommandSet => f.write_str("it does not have the NVM command set"),
            StartError::PageSize { min_bytes } => write!(f, "its pages have {min_bytes} bytes at least"),
            StartError::TooFewMessages => f.write_str("it has fewer than two interrupt messages"),
            StartError::Changed => f.write_str("after the reset it is a different disk"),
        }
    }
}

/// Lets a controller reach memory while it lives. Declared after the memory in question, so that it
/// goes first whichever way a function is left.
struct BusMaster(&'static PciDevice);

impl BusMaster {
    fn enable(device: &'static PciDevice) -> BusMaster {
        device.enable_bus_master();
        BusMaster(device)
    }
}

impl Drop for BusMaster {
    fn drop(&mut self) {
        self.0.disable_bus_master();
    }
}

/// Where a controller is in its life. From `Finished` nothing leads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Running = 0,
    /// Transfers are refused as busy.
    Resetting = 1,
    /// Given up, vanished or shut down: transfers are refused for good.
    Finished = 2,
}

/// One controller. Fields go in this order: first it loses its way to memory, then its
/// interrupts, then the memory itself.
pub struct Controller {
    bus_master: Mutex<Option<BusMaster>>,
    _msix: Msix,
    queues: Box<[Arc<IoQueue>]>,
    admin: Arc<Admin>,
    name: String,
    device: &'static PciDevice,
    registers: Arc<Registers>,
    guard: Arc<Guard>,
    phase: AtomicU8,
    identity: Identity,
    limits: ControllerLimits,
    cache: Cache,
    /// Identifier and shape of each namespace that became a disk; checked again after a reset.
    namespaces: Vec<(u32, Namespace)>,
    disks: Once<Vec<Arc<NvmeDisk>>>,
}

impl Controller {
    /// Starts controller `number` and registers its disks. Tasks only.
    pub fn start(number: usize, device: &'static PciDevice) -> Result<Arc<Controller>, StartError> {
        let name = format!("nvme{number}");
        let bytes = device.bar(0).map_or(0, |bar| bar.bytes).min(WINDOW_BYTES);
        let window = device.map_bar_part(0, 0, bytes).map_err(StartError::Pci)?;
        let registers = Arc::new(Registers::new(window).ok_or(StartError::WindowTooSmall)?);
        let capabilities = registers.capabilities();
        check(capabilities)?;
        // The firmware may have used it; whatever it left there must not reach memory.
        registers.disable().map_err(StartError::Ready)?;

        let guard = Arc::new(Guard::new());
        let admin = Admin::new(registers.clone(), guard.clone()).map_err(StartError::Memory)?;
        let mut queues: Vec<Arc<IoQueue>> = Vec::new();
        let msix = device.msix_setup().map_err(StartError::Pci)?;
        let messages = msix.count() - 1;
        if messages == 0 {
            return Err(StartError::TooFewMessages);
        }
        let bus_master = BusMaster::enable(device);
        msix.bind(0, admin.connect(&format!("{name}/admin"), 0).map_err(StartError::Interrupt)?);
        admin.enable(&registers).map_err(StartError::Ready)?;
        let identity = identify(&admin, capabilities)?;
        let limits = command_limits(&admin, &identity, capabilities);
        let cache = find_cache(&admin, &identity);

        let pairs = request_pairs(&admin, (cpu::count() as u16).min(messages))?;
        if registers.len_bytes() < capabilities.window_bytes(pairs) {
            return Err(StartError::WindowTooSmall);
        }
        let entries = QUEUE_ENTRIES.min(capabilities.max_queue_entries()) as u16;
        for cpu in 0..pairs {
            let queue = IoQueue::new(registers.clone(), guard.clone(), cpu + 1, entries)
                .map_err(StartError::Memory)?;
            queues.push(queue.clone());
            let interrupt = queue.connect(&format!("{name}/{cpu}"), usize::from(cpu));
            msix.bind(cpu + 1, interrupt.map_err(StartError::Interrupt)?);
        }
        create_queues(&admin, &queues)?;
        let namespaces = find_namespaces(&name, &admin, &identity)?;
        log::info!(
            "{name} at {}: {} (serial {}, firmware {}), {pairs} queue pairs of {entries}, {cache}, {}",
            device.address,
            identity.model,
            identity.serial,
            identity.firmware,
            if identity.has_sgl { "scatter-gather lists" } else { "no scatter-gather lists" },
        );
        let controller = Arc::new(Controller {
            bus_master: Mutex::new(Some(bus_master)),
            _msix: msix,
            queues: queues.into_boxed_slice(),
            admin,
            name,
            device,
            registers,
            guard,
            phase: AtomicU8::new(Phase::Running as u8),
            identity,
            limits,
            cache,
            namespaces,
            disks: Once::new(),
        });
        controller.spawn_guard()?;
        controller.register_disks();
        Ok(controller)
    }

    fn spawn_guard(self: &Arc<Self>) -> Result<(), StartError> {
        let controller = self.clone();
        let name = format!("{}/guard", self.name);
        // High: a CPU full of busy tasks must not delay what ends their transfers.
        task::spawn(&name, Placement::Any, Priority::High, move || disk_guard::run(&*controller))
            .map(drop)
            .map_err(StartError::Task)
    }

    fn register_disks(self: &Arc<Self>) {
        let mut disks = Vec::new();
        for (slot, (id, namespace)) in self.namespaces.iter().enumerate() {
            let name = format!("{}n{id}", self.name);
            let Some(limits) = Limits::new(*id, *namespace, &self.limits) else {
                log::error!("{name}: not usable: a transfer cannot hold one sector");
                continue;
            };
            let mib = (namespace.sectors << namespace.sector_shift) >> 20;
            let protected = if namespace.write_protected { ", write-protected" } else { "" };
            log::info!("{name}: {mib} MiB, sectors of {} bytes{protected}", namespace.sector_bytes());
            disks.push(Arc::new(NvmeDisk::new(self.clone(), name, slot, limits)));
        }
        for disk in &disks {
            block::register(disk.clone());
        }
        let _ = self.disks.set(disks);
    }

    /// The queue for transfers from the CPU this runs on.
    pub fn queue_here(&self) -> &IoQueue {
        // There is at least one, or the controller would not have been started.
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

    pub fn model(&self) -> String {
        format!("{} {}", self.identity.model, self.identity.serial)
    }

    /// Whether completed writes may be lost with the power. Whoever does not say is taken to have it.
    pub fn has_volatile_cache(&self) -> bool {
        self.cache == Cache::On
    }

    pub fn stats(&self, disk: usize) -> DiskStats {
        let mut stats = DiskStats::default();
        for queue in &self.queues {
            queue.add_to(disk, &mut stats);
        }
        stats
    }

    /// Whether the controller, whose way to memory was taken away, can still write to it. `stopped`:
    /// what it answered when it was told to stop.
    fn judge_memory(&self, stopped: Result<(), ReadyError>) -> Memory {
        let stopped = stopped.is_ok() || !self.device.is_present();
        if stopped || self.device.read16(COMMAND) & BUS_MASTER == 0 {
            return Memory::GivenBack;
        }
        log::error!("{}: neither it nor its bus stops: the memory of its transfers is lost", self.name);
        Memory::Lost
    }

    /// The second half of [`Controller::start`], for a controller whose memory is all there.
    fn start_again(&self) -> Result<(), StartError> {
        let capabilities = self.registers.capabilities();
        self.admin.enable(&self.registers).map_err(StartError::Ready)?;
        // Another disk in the slot, or other sector sizes, and every limit would be wrong.
        if identify(&self.admin, capabilities)? != self.identity {
            return Err(StartError::Changed);
        }
        for (id, namespace) in &self.namespaces {
            let page = admin(&self.admin, "identify namespace", |admin| admin.identify(Cns::Namespace, *id))?;
            if Namespace::parse(&page) != Ok(*namespace) {
                return Err(StartError::Changed);
            }
        }
        let wanted = self.queues.len() as u16;
        if request_pairs(&self.admin, wanted)? != wanted {
            return Err(StartError::Changed);
        }
        create_queues(&self.admin, &self.queues)
    }

    /// Lets outstanding transfers finish, then has the controller write out its cache and park.
    /// Tasks only.
    pub fn shut_down(&self) {
        self.set_phase(Phase::Finished);
        let deadline_ns = time::now_ns() + DRAIN_NS;
        while self.oldest_ns().is_some() && time::now_ns() < deadline_ns {
            task::sleep_ns(1_000_000);
        }
        let mut bus_master = self.bus_master.lock();
        // A reset that was under way may have ended well meanwhile.
        self.set_phase(Phase::Finished);
        if bus_master.is_none() {
            return;
        }
        for queue in &self.queues {
            queue.rings().close();
        }
        let parked = self.registers.shut_down();
        if let Err(error) = parked {
            log::error!("{}: shutdown: {error}", self.name);
        }
        *bus_master = None;
        let memory = self.judge_memory(parked);
        for queue in &self.queues {
            queue.end_all(IoStatus::Gone, memory);
        }
        self.guard.wake();
    }
}

impl Guarded for Controller {
    type Violation = Violation;

    fn guard(&self) -> &Guard {
        &self.guard
    }

    fn is_finished(&self) -> bool {
        self.phase() == Phase::Finished
    }

    fn oldest_ns(&self) -> Option<u64> {
        self.queues.iter().filter_map(|queue| queue.rings().oldest_ns()).min()
    }

    fn answered(&self) -> u64 {
        self.queues.iter().map(|queue| queue.answered()).sum()
    }

    /// Empty slots mostly read as ones, but some bridges
    /// answer with zeros; the configuration space knows.
    fn find_trouble(&self) -> Option<Trouble> {
        let status = self.registers.status();
        if status.is_gone() || !self.device.is_present() {
            Some(Trouble::Gone)
        } else if status.is_fatal() {
            Some(Trouble::Fatal)
        } else if !status.is_ready() {
            Some(Trouble::NotReady)
        } else {
            None
        }
    }

    fn recover(&self, trouble: Trouble, again: bool) {
        let mut bus_master = self.bus_master.lock();
        if self.is_finished() {
            return;
        }
        self.set_phase(Phase::Resetting);
        for queue in &self.queues {
            queue.rings().close();
        }
        // Two locks on memory: the way to it, and the controller's own knowledge of it. Either is
        // enough on a real bus, but a model of a controller may have looked its memory up before.
        *bus_master = None;
        let stopped = self.registers.disable();
        // Only now may the transfers' owners have theirs back, and only if one of the two held.
        let memory = self.judge_memory(stopped);
        let gone = trouble == Trouble::Gone || stopped == Err(ReadyError::Gone) || !self.device.is_present();
        // One that does not stop may still have old commands: it never gets its way to memory back.
        let again = again && !gone && stopped.is_ok();
        if !again {
            // Before the transfers end: whoever submits the next one learns that it is the end.
            self.set_phase(Phase::Finished);
        }
        let status = match trouble {
            _ if gone => IoStatus::Gone,
            Trouble::Expired => IoStatus::TimedOut,
            _ => IoStatus::DeviceError { code: INTERNAL_ERROR },
        };
        let ended: usize = self.queues.iter().map(|queue| queue.end_all(status, memory)).sum();
        self.admin.close();
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
        let new_bus_master = BusMaster::enable(self.device);
        match self.start_again() {
            Ok(()) => {
                *bus_master = Some(new_bus_master);
                self.set_phase(Phase::Running);
                log::warn!("{}: in use again after a reset", self.name);
            }
            Err(error) => {
                drop(new_bus_master);
                self.admin.close();
                for queue in &self.queues {
                    queue.rings().close();
                }
                self.set_phase(Phase::Finished);
                log::error!("{}: given up: the reset failed: {error}", self.name);
            }
        }
    }

    fn log_failures(&self) -> bool {
        let mut any = false;
        for failure in self.queues.iter().filter_map(|queue| queue.take_failure()) {
            let namespace = self.namespaces.get(failure.disk).map_or(0, |(id, _)| *id);
            log::error!("{}n{namespace}: {failure}", self.name);
            any = true;
        }
        any
    }
}

fn check(capabilities: Capabilities) -> Result<(), StartError> {
    if capabilities.is_gone() {
        return Err(StartError::Ready(ReadyError::Gone));
    }
    if !capabilities.has_nvm_command_set() {
        return Err(StartError::NoNvmCommandSet);
    }
    let min_bytes = capabilities.min_page_bytes();
    if min_bytes > PAGE_BYTES {
        return Err(StartError::PageSize { min_bytes });
    }
    Ok(())
}

/// Runs one admin command, and says which it was if it fails.
fn admin<T>(
    admin: &Admin,
    what: &'static str,
    command: impl FnOnce(&Admin) -> Result<T, AdminError>,
) -> Result<T, StartError> {
    command(admin).map_err(|error| StartError::Admin(what, error))
}

fn identify(queue: &Admin, capabilities: Capabilities) -> Result<Identity, StartError> {
    let page = admin(queue, "identify controller", |admin| admin.identify(Cns::Controller, 0))?;
    Identity::parse(&page, capabilities.min_page_bytes()).map_err(StartError::Identity)
}

/// I/O queue pairs that the controller grants, at most `wanted`.
fn request_pairs(queue: &Admin, wanted: u16) -> Result<u16, StartError> {
    let command = Command::request_queue_pairs(wanted);
    let granted = admin(queue, "number of queues", |admin| admin.execute(command))?.granted_queue_pairs();
    // The smaller of two 16-bit numbers.
    Ok(granted.min(u32::from(wanted)) as u16)
}

/// Creates queue pair n with interrupt message n, empty, and opens it.
fn create_queues(queue: &Admin, pairs: &[Arc<IoQueue>]) -> Result<(), StartError> {
    for (number, pair) in (1_u16..).zip(pairs) {
        let rings = pair.rings();
        rings.reopen();
        let (entries, base) = (rings.entries(), rings.completion_phys());
        let command = Command::create_completion_queue(number, entries, base, number);
        admin(queue, "create completion queue", |admin| admin.execute(command))?;
        let command = Command::create_submission_queue(number, entries, rings.submission_phys());
        admin(queue, "create submission queue", |admin| admin.execute(command))?;
    }
    Ok(())
}

/// The namespaces that can be served; the others are named in the log.
fn find_namespaces(
    name: &str,
    queue: &Admin,
    identity: &Identity,
) -> Result<Vec<(u32, Namespace)>, StartError> {
    let list = admin(queue, "namespace list", |admin| admin.identify(Cns::ActiveNamespaces, 0))?;
    let mut namespaces = Vec::new();
    for id in namespace_list(&list).filter(|id| *id <= identity.namespaces) {
        if namespaces.len() == MAX_DISKS {
            log::warn!("{name}: namespaces from {id} on are left out: {MAX_DISKS} disks a controller");
            break;
        }
        let page = admin(queue, "identify namespace", |admin| admin.identify(Cns::Namespace, id))?;
        match Namespace::parse(&page) {
            Ok(namespace) => namespaces.push((id, namespace)),
            Err(error) => log::error!("{name}n{id}: not usable: {error}"),
        }
    }
    Ok(namespaces)
}

/// What the NVM command set adds to the controller's data. Old controllers fail the question, which
/// says that they set no limits of this kind.
fn command_limits(queue: &Admin, identity: &Identity, capabilities: Capabilities) -> ControllerLimits {
    let page = queue.identify(Cns::NvmController, 0).ok();
    let limits = page.map(|page| CommandLimits::parse(&page, capabilities.min_page_bytes()));
    ControllerLimits::new(identity, limits.as_ref())
}

/// The volatile write cache of a controller (NVMe sec 5.27.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cache {
    None,
    Off,
    On,
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cache::None => "no volatile write cache",
            Cache::Off => "volatile write cache off",
            Cache::On => "volatile write cache on",
        })
    }
}

fn find_cache(queue: &Admin, identity: &Identity) -> Cache {
    if !identity.has_volatile_write_cache {
        return Cache::None;
    }
    match queue.execute(Command::get_feature(Feature::VolatileWriteCache)) {
        Ok(completion) if completion.result & 1 == 0 => Cache::Off,
        // Whoever does not say must be taken to have it on; flushes are sent in any case.
        _ => Cache::On,
    }
}
