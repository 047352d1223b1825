//! Services, by the number of their port: started, listed, stopped.

use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use kcore::block::{self, Disk, DiskStats};
use kcore::frame::FRAME_BYTES;
use kcore::mutex::Mutex;
use kcore::net::NetStats;
use kcore::sync::Once;
use kcore::task::{self, Placement, Priority, SpawnError, TaskHandle};
use kcore::{cpu, time};
use netblk_logic::{StartOptions, default_cpu};
use netblk_proto::{Info, Label, Limits, LimitsError, Op, Status};
use netwire::EthernetHeader;
use stack::{BindError, Binding, ChecksumPolicy, Stack};

use crate::counters::Counts;
use crate::instance::Instance;
use crate::receive::Ear;
use crate::slot::SLOTS;
use crate::worker::{Leftovers, Worker};

/// A running service.
struct Service {
    options: StartOptions,
    cpu: usize,
    instance: Arc<Instance>,
    worker: TaskHandle,
    /// What the worker left undone, once it has ended.
    leftovers: Arc<Once<Leftovers>>,
    binding: Binding,
    started_ns: u64,
    /// The devices' counters at the start.
    disk_stats: DiskStats,
    card_stats: NetStats,
}

static SERVICES: Mutex<Vec<Service>> = Mutex::new(Vec::new());

/// Why a service was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    /// No disk has that name.
    NoSuchDisk(String),
    /// No card with an IP stack has that name.
    NoSuchCard(String),
    /// There is no such CPU.
    NoSuchCpu(usize),
    /// Datagrams of that size do not fit the card's or a frame.
    Mtu {
        /// As asked.
        mtu: u16,
        /// The most there can be.
        most: u16,
    },
    /// The disk cannot be served.
    Limits(LimitsError),
    /// The disk cannot move a datagram's worth at once.
    Transfer {
        /// A datagram's worth.
        datagram_bytes: u32,
        /// The disk's limit.
        most: u32,
    },
    /// The port cannot be had.
    Bind(BindError),
    /// The worker cannot be started.
    Spawn(SpawnError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchDisk(name) => write!(f, "there is no disk {name}; `disks` lists those there are"),
            Self::NoSuchCard(name) => {
                write!(f, "there is no network card {name} with an IP stack; `net` lists those there are")
            }
            Self::NoSuchCpu(number) => {
                write!(f, "there is no CPU {number}: cpu= goes from 0 to {}", cpu::count() - 1)
            }
            Self::Mtu { mtu, most } => {
                write!(f, "mtu={mtu}: this card and the node's frames carry {most} bytes")
            }
            Self::Limits(error) => error.fmt(f),
            Self::Transfer { datagram_bytes, most } => write!(
                f,
                "the disk moves {most} bytes at once and a datagram carries {datagram_bytes}: lower mtu="
            ),
            Self::Bind(error) => error.fmt(f),
            Self::Spawn(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for StartError {}

/// Starts a service on the card that `options` name, which must be one of `stacks`.
///
/// # Errors
/// [`StartError`] says what is missing or does not fit; nothing is left behind.
pub fn start(stacks: &[Arc<Stack>], options: StartOptions) -> Result<ServiceInfo, StartError> {
    let disk = block::find(&options.disk).ok_or_else(|| StartError::NoSuchDisk(options.disk.clone()))?;
    let stack = stacks
        .iter()
        .find(|stack| stack.card().name() == options.nic)
        .ok_or_else(|| StartError::NoSuchCard(options.nic.clone()))?;
    let worker_cpu = options.cpu.unwrap_or(default_cpu(cpu::count()));
    if worker_cpu >= cpu::count() {
        return Err(StartError::NoSuchCpu(worker_cpu));
    }
    let instance = Arc::new(prepare(&options, disk, stack)?);

    // One service at a time comes or goes: what is done here may sleep.
    let mut services = SERVICES.lock();
    let port = options.port.get();
    if services.iter().any(|service| service.options.port == options.port) {
        return Err(StartError::Bind(BindError::InUse(port)));
    }
    let ear = Arc::new(Ear(instance.clone()));
    // To verify a UDP checksum would be to read every byte of a WRITE.
    let binding = stack.udp_bind(port, ChecksumPolicy::Ignore, ear).map_err(StartError::Bind)?;
    let leftovers = Arc::new(Once::new());
    let worker = spawn_worker(&options, worker_cpu, &instance, &leftovers)?;
    let service = Service {
        cpu: worker_cpu,
        worker,
        leftovers,
        binding,
        started_ns: time::now_ns(),
        disk_stats: instance.disk.stats(),
        card_stats: instance.card.stats(),
        instance,
        options,
    };
    let info = service.info();
    services.push(service);
    log::info!("netblk: serving {info}");
    Ok(info)
}

/// Checks that disk, card and options fit together.
fn prepare(options: &StartOptions, disk: Arc<dyn Disk>, stack: &Stack) -> Result<Instance, StartError> {
    let card = stack.card().clone();
    let frame_mtu = u16::try_from(FRAME_BYTES - EthernetHeader::LEN).unwrap_or(u16::MAX);
    let most = card.mtu().min(frame_mtu);
    if options.mtu > most {
        return Err(StartError::Mtu { mtu: options.mtu, most });
    }
    let read_only = options.read_only || disk.read_only();
    let limits = Limits::new(disk.sector_bytes(), disk.sectors(), options.mtu, read_only)
        .map_err(StartError::Limits)?;
    let datagram_bytes = limits.datagram_bytes();
    if disk.max_transfer_bytes() < datagram_bytes {
        return Err(StartError::Transfer { datagram_bytes, most: disk.max_transfer_bytes() });
    }
    let info = Info {
        size_bytes: limits.size_bytes(),
        sector_bytes: limits.sector_bytes(),
        max_read_bytes: limits.max_read_bytes(),
        max_write_bytes: datagram_bytes,
        datagram_bytes,
        slots: SLOTS as u32,
        read_only,
        mtu: options.mtu,
        name: Label::new(disk.name()),
        model: Label::new(&disk.model()),
    };
    Ok(Instance::new(limits, info, disk, card))
}

fn spawn_worker(
    options: &StartOptions,
    worker_cpu: usize,
    instance: &Arc<Instance>,
    leftovers: &Arc<Once<Leftovers>>,
) -> Result<TaskHandle, StartError> {
    let (instance, leftovers) = (instance.clone(), leftovers.clone());
    let idle_poll_ns = u64::from(options.poll_us) * 1000;
    let name = alloc::format!("netblk/{}", options.port);
    // High: a task that computes on this CPU, a guest's for one, would else delay each reply by its
    // slice. Nobody starves: the worker sleeps or yields after every round, awake polling too, and a
    // normal task that waits gets a turn after a slice all the same (`sched::owes_turn`).
    task::spawn(&name, Placement::Cpu(worker_cpu), Priority::High, move || {
        let left = Worker::new(instance, idle_poll_ns).run();
        let _ = leftovers.set(left);
    })
    .map_err(StartError::Spawn)
}

/// No service has that port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopError(pub u16);

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing is served on port {}; `netblk list` shows what is", self.0)
    }
}

impl core::error::Error for StopError {}

/// What was under way when a service was stopped.
#[derive(Debug, Clone)]
pub struct StopReport {
    /// The port, free again.
    pub port: u16,
    /// The disk, in nobody's hands now.
    pub disk: String,
    /// Queued requests that were dropped; their clients get no answer.
    pub requests_dropped: u64,
    /// Transfers that the disk had, and has given back.
    pub transfers_awaited: u64,
    /// Slots that still hold something. Not zero: a fault of this module.
    pub slots_in_use: usize,
    /// Free frames of the pool at the beginning and at the end; other tasks use it too.
    pub free_frames: (u32, u32),
}

impl fmt::Display for StopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, disk, requests_dropped, transfers_awaited, slots_in_use, free_frames } = self;
        write!(
            f,
            "{disk} on port {port} stopped: {requests_dropped} requests dropped, {transfers_awaited} transfers \
             awaited, {slots_in_use} slots in use, free frames {} before and {} after",
            free_frames.0, free_frames.1
        )
    }
}

/// Stops the service on a port. When this returns nothing of it is left: the port is free, the
/// worker has ended, the disk has given every frame back. Tasks only.
///
/// # Errors
/// [`StopError`] if nothing is served there.
pub fn stop(port: u16) -> Result<StopReport, StopError> {
    let service = {
        let mut services = SERVICES.lock();
        let place = services.iter().position(|service| service.options.port.get() == port);
        services.swap_remove(place.ok_or(StopError(port))?)
    };
    // Without the lock: a disk may take its time, and `list` should not wait for it.
    Ok(service.end())
}

/// Stops every service. Tasks only.
pub fn stop_all() -> Vec<StopReport> {
    let services = core::mem::take(&mut *SERVICES.lock());
    services.into_iter().map(Service::end).collect()
}

/// Every service and its counters.
pub fn list() -> Vec<ServiceInfo> {
    SERVICES.lock().iter().map(Service::info).collect()
}

impl Service {
    /// First nothing more comes in, then the worker ends, and it ends only when the disk owes
    /// nothing. What the slots hold after that would be a leak.
    fn end(self) -> StopReport {
        let free_before = kcore::frame::pool_stats().free;
        drop(self.binding);
        self.instance.stop();
        self.worker.join();
        let left = self.leftovers.get().copied().unwrap_or_default();
        let report = StopReport {
            port: self.options.port.get(),
            disk: self.options.disk,
            requests_dropped: left.requests,
            transfers_awaited: left.transfers,
            slots_in_use: self.instance.slots_in_use(),
            free_frames: (free_before, kcore::frame::pool_stats().free),
        };
        log::info!("netblk: {report}");
        report
    }

    fn info(&self) -> ServiceInfo {
        let (disk, card) = (self.instance.disk.stats(), self.instance.card.stats());
        ServiceInfo {
            port: self.options.port.get(),
            disk: self.options.disk.clone(),
            card: self.options.nic.clone(),
            read_only: self.instance.limits.read_only(),
            mtu: self.options.mtu,
            cpu: self.cpu,
            poll_us: self.options.poll_us,
            size_bytes: self.instance.limits.size_bytes(),
            sector_bytes: self.instance.limits.sector_bytes(),
            uptime_ns: time::now_ns().saturating_sub(self.started_ns),
            busy_slots: self.instance.busy_slots(),
            disk_doorbells: disk.doorbells - self.disk_stats.doorbells,
            disk_interrupts: disk.interrupts - self.disk_stats.interrupts,
            card_doorbells: card.doorbells - self.card_stats.doorbells,
            card_interrupts: card.interrupts - self.card_stats.interrupts,
            counts: self.instance.counters.read_all(),
        }
    }
}

/// A service, for the shell.
#[derive(Debug, Clone)]
pub struct ServiceInfo {
    /// The UDP port.
    pub port: u16,
    /// What is served.
    pub disk: String,
    /// The card it is served on.
    pub card: String,
    /// Whether WRITE is refused.
    pub read_only: bool,
    /// What datagrams are cut for.
    pub mtu: u16,
    /// The worker's CPU.
    pub cpu: usize,
    /// How long the worker polls for requests, in us.
    pub poll_us: u32,
    /// The device.
    pub size_bytes: u64,
    /// Its sector.
    pub sector_bytes: u32,
    /// Since the start.
    pub uptime_ns: u64,
    /// Slots at work now, of [`SLOTS`].
    pub busy_slots: usize,
    /// Since the start, whoever caused them.
    pub disk_doorbells: u64,
    /// Since the start, whoever caused them.
    pub disk_interrupts: u64,
    /// Since the start, whoever caused them.
    pub card_doorbells: u64,
    /// Since the start, whoever caused them.
    pub card_interrupts: u64,
    /// What the service counted.
    pub counts: Counts,
}

/// One line: what is served, and how.
impl fmt::Display for ServiceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, disk, card, mtu, cpu, poll_us, size_bytes, sector_bytes, .. } = self;
        let mode = if self.read_only { " ro" } else { "" };
        write!(
            f,
            "{disk}{mode} on {card} port {port}: {} MiB in sectors of {sector_bytes}, mtu={mtu} cpu={cpu} poll={poll_us}",
            size_bytes >> 20
        )
    }
}

impl ServiceInfo {
    /// The counters, a line for each group, zeros left out where a zero says nothing.
    pub fn counter_lines(&self) -> Vec<String> {
        let counts = &self.counts;
        let requests = pairs(Op::ALL.iter().map(|op| op.to_string()).zip(counts.requests), true);
        let replies = pairs(Status::ALL.iter().map(|status| status.to_string()).zip(counts.replies), false);
        let held = [
            ("queue full", counts.held_queue_full),
            ("no frame", counts.held_no_frame),
            ("overlap", counts.held_overlap),
        ];
        let dropped = [
            ("short", counts.dropped_short),
            ("not netblk", counts.dropped_magic),
            ("replies", counts.dropped_replies),
        ];
        let mut lines = alloc::vec![
            alloc::format!("requests   {requests}"),
            alloc::format!("replies    {replies}; {} not sent for want of room", counts.replies_lost),
            alloc::format!("bytes      {} read, {} written", counts.read_bytes, counts.written_bytes),
            alloc::format!("dropped    {} ({})", counts.dropped(), pairs(named(dropped), true)),
            alloc::format!("held       {}", pairs(named(held), true)),
            alloc::format!(
                "worker     {} disk kicks, {} reply batches, {} sleeps, {} of {SLOTS} slots busy",
                counts.kicks,
                counts.batches,
                counts.sleeps,
                self.busy_slots
            ),
            alloc::format!(
                "disk       {} doorbells, {} interrupts since the start",
                self.disk_doorbells,
                self.disk_interrupts
            ),
            alloc::format!(
                "card       {} doorbells, {} interrupts since the start",
                self.card_doorbells,
                self.card_interrupts
            ),
        ];
        if counts.strays > 0 {
            lines.push(alloc::format!(
                "strays     {} completions for nothing: a driver's fault",
                counts.strays
            ));
        }
        lines
    }
}

fn named<const N: usize>(pairs: [(&str, u64); N]) -> impl Iterator<Item = (String, u64)> {
    pairs.map(|(name, number)| (String::from(name), number)).into_iter()
}

/// "3 READ, 1 FLUSH"; with `zeros`, those too.
fn pairs(pairs: impl Iterator<Item = (String, u64)>, zeros: bool) -> String {
    let shown: Vec<String> = pairs
        .filter(|&(_, number)| zeros || number > 0)
        .map(|(name, number)| alloc::format!("{number} {name}"))
        .collect();
    if shown.is_empty() { String::from("none") } else { shown.join(", ") }
}
