//! Services, by the number of their port: started, listed, stopped.

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use kcore::block::{self, Access, Claim, Disk};
use kcore::frame::{self, FRAME_BYTES, MAX_PIECES};
use kcore::memory::OutOfMemory;
use kcore::mutex::Mutex;
use kcore::sync::Once;
use kcore::task::{self, Placement, Priority, SpawnError, TaskHandle};
use kcore::{cpu, random, time};
use netblk_logic::{IdlePoll, ROOM_FOR_ONE, Sessions, StartOptions, V2_DATA_START, default_cpu};
use netblk_proto::{Info, Label, Limits, v2};
use stack::{BindError, Binding, ChecksumPolicy, Stack};

use crate::instance::{Instance, Terms};
use crate::list::{ServiceInfo, Traffic};
use crate::receive::Ear;
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
    /// Nobody else writes to the disk while it is served.
    _claim: Claim,
    /// The disk itself, of which a partition may be served: doorbells and interrupts are its own.
    device: Arc<dyn Disk>,
    /// What the devices had counted at the start.
    at_start: Traffic,
    /// The traffic when the services were last listed.
    listed: Traffic,
}

/// How long the end of a service waits for others to let go of it before it says so, and how often it
/// looks: they have nothing left to do with it, so nobody would signal.
const LAST_HOLDER_NS: u64 = 1_000_000_000;
const HOLDER_LOOK_NS: u64 = 100_000;

static SERVICES: Mutex<Vec<Service>> = Mutex::new(Vec::new());

/// Why a service was not started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartError {
    /// No disk has that name.
    NoSuchDisk(String),
    /// A guest uses the disk.
    InUse(block::InUse),
    /// No card with an IP stack has that name.
    NoSuchCard(String),
    /// There is no such CPU.
    NoSuchCpu(usize),
    /// Datagrams of that size do not fit the card's.
    Mtu {
        /// As asked.
        mtu: u16,
        /// The most there can be.
        most: u16,
    },
    /// The disk cannot be served.
    Limits(v2::LimitsError),
    /// The disk cannot move a datagram's worth, or a sector, at once.
    Transfer {
        /// What it would have to move.
        bytes: u32,
        /// The disk's limit.
        most: u32,
    },
    /// The card sends packets of one piece only, and the datagrams would need two.
    Pieces,
    /// There is no memory for the pages that such a disk or datagram size needs.
    Pages(OutOfMemory),
    /// The port cannot be had.
    Bind(BindError),
    /// The worker cannot be started.
    Spawn(SpawnError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchDisk(name) => write!(f, "there is no disk {name}; `disks` lists those there are"),
            Self::InUse(error) => error.fmt(f),
            Self::NoSuchCard(name) => {
                write!(f, "there is no network card {name} with an IP stack; `net` lists those there are")
            }
            Self::NoSuchCpu(number) => {
                write!(f, "there is no CPU {number}: cpu= goes from 0 to {}", cpu::count() - 1)
            }
            Self::Mtu { mtu, most } => {
                write!(f, "mtu={mtu}: this card carries {most} bytes")
            }
            Self::Limits(error) => error.fmt(f),
            Self::Transfer { bytes, most } => {
                write!(f, "the disk moves {most} bytes at once, and {bytes} are needed: lower mtu=")
            }
            Self::Pieces => f.write_str(
                "the card sends packets of one piece only: serve a disk with smaller sectors, or lower mtu=",
            ),
            Self::Pages(error) => write!(f, "no memory for pages: {error}"),
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
    let read_only = options.read_only || disk.read_only();
    let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
    // Several services may serve the same disk: its clients are told apart by nobody anyway.
    let claim = block::claim(&*disk, "netblk", access).map_err(StartError::InUse)?;
    let device = block::find(&disk.extent().disk).unwrap_or_else(|| disk.clone());
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
        _claim: claim,
        started_ns: time::now_ns(),
        at_start: traffic(&instance, &*device),
        listed: Traffic::default(),
        device,
        instance,
        options,
    };
    let info = service.info();
    services.push(service);
    log::info!("netblk: serving {info}");
    Ok(info)
}

/// A page: what the disk reads at once of a long READ.
const PAGE_BYTES: u32 = 4096;

/// Checks that disk, card and options fit together.
fn prepare(options: &StartOptions, disk: Arc<dyn Disk>, stack: &Arc<Stack>) -> Result<Instance, StartError> {
    let card = stack.card();
    let (mtu, most) = (options.mtu, card.mtu());
    if mtu > most {
        return Err(StartError::Mtu { mtu, most });
    }
    let read_only = options.read_only || disk.read_only();
    let features = disk.features();
    let sector_bytes = disk.sector_bytes();
    let in_bytes = |able: bool, sectors: u32| if able { sectors.saturating_mul(sector_bytes) } else { 0 };
    let disk_segments = usize::from(features.max_segments);
    let device = v2::Device {
        sector_bytes,
        sectors: disk.sectors(),
        read_only,
        max_write_bytes: 0,
        max_discard_bytes: in_bytes(features.discard, features.max_discard_sectors),
        max_write_zeroes_bytes: in_bytes(features.write_zeroes, features.max_write_zeroes_sectors),
    };
    let limits = v2::Limits::new(device, mtu).map_err(StartError::Limits)?;
    let max_write_bytes = most_without_copy(limits.datagram_bytes(), disk_segments);
    let limits =
        v2::Limits::new(v2::Device { max_write_bytes, ..device }, mtu).map_err(StartError::Limits)?;
    // Not one sector in a datagram: version 1 is not spoken.
    let v1_limits = Limits::new(sector_bytes, disk.sectors(), mtu, read_only).ok();

    let datagram_bytes = limits.datagram_bytes().max(v1_limits.map_or(0, |limits| limits.datagram_bytes()));
    let at_once = datagram_bytes.max(sector_bytes).max(limits.max_write_bytes());
    if disk.max_transfer_bytes() < at_once {
        return Err(StartError::Transfer { bytes: at_once, most: disk.max_transfer_bytes() });
    }
    let must_page = sector_bytes > limits.datagram_bytes() || !fits_frame(datagram_bytes);
    let may_page = card.max_segments() > 1;
    if must_page && !may_page {
        return Err(StartError::Pieces);
    }
    let pages = if may_page { frame::prepare_pages().map_err(StartError::Pages) } else { Ok(()) };
    let pages = if must_page { pages.map(|()| true)? } else { may_page && pages.is_ok() };

    let info = |datagram_bytes, max_read_bytes, max_write_bytes| Info {
        size_bytes: limits.size_bytes(),
        sector_bytes,
        max_read_bytes,
        max_write_bytes,
        datagram_bytes,
        slots: ROOM_FOR_ONE,
        read_only,
        mtu,
        name: Label::new(disk.name()),
        model: Label::new(&disk.model()),
    };
    let epoch = random::seed();
    let v2_info = v2::Info {
        device: info(limits.datagram_bytes(), limits.max_read_bytes(), limits.max_write_bytes()),
        capabilities: v2::Capabilities {
            discard: limits.max_discard_bytes() > 0,
            write_zeroes: limits.max_write_zeroes_bytes() > 0,
            key_in_use: options.access.key.is_some(),
            volatile_cache: features.volatile_cache,
        },
        max_discard_bytes: limits.max_discard_bytes(),
        max_write_zeroes_bytes: limits.max_write_zeroes_bytes(),
        write_window: v2::WINDOW,
        epoch,
    };
    let v1 = v1_limits.map(|limits| {
        (limits, info(limits.datagram_bytes(), limits.max_read_bytes(), limits.datagram_bytes()))
    });
    let terms = Terms {
        v1,
        v2: limits,
        v2_info,
        page_bytes: if pages { PAGE_BYTES.min(disk.max_transfer_bytes()) } else { 0 },
        disk_segments,
        access: options.access.clone(),
    };
    let mut secret = [0; 16];
    secret[..8].copy_from_slice(&random::seed().to_ne_bytes());
    secret[8..].copy_from_slice(&random::seed().to_ne_bytes());
    Ok(Instance::new(terms, disk, stack.clone(), Sessions::new(secret, epoch)))
}

/// The longest WRITE whose frames, headers included, the disk takes as they are.
fn most_without_copy(datagram_bytes: u32, disk_segments: usize) -> u32 {
    let frames_each = (V2_DATA_START + datagram_bytes as usize).div_ceil(FRAME_BYTES);
    let datagrams = disk_segments.min(MAX_PIECES) / frames_each;
    // A few pages.
    datagram_bytes * datagrams as u32
}

/// Whether that much data fits a frame behind version 2's headers.
const fn fits_frame(datagram_bytes: u32) -> bool {
    V2_DATA_START + datagram_bytes as usize <= FRAME_BYTES
}

fn spawn_worker(
    options: &StartOptions,
    worker_cpu: usize,
    instance: &Arc<Instance>,
    leftovers: &Arc<Once<Leftovers>>,
) -> Result<TaskHandle, StartError> {
    let (instance, leftovers) = (instance.clone(), leftovers.clone());
    let idle_poll = options.poll_us.map_or(IdlePoll::Learned, |us| IdlePoll::Fixed(u64::from(us) * 1000));
    let name = alloc::format!("netblk/{}", options.port);
    // High: a task that computes on this CPU, a guest's for one, would else delay each reply by its
    // slice. Nobody starves: the worker sleeps or yields after every round, awake polling too, and a
    // normal task that waits gets a turn after a slice all the same (`sched::owes_turn`).
    task::spawn(&name, Placement::Cpu(worker_cpu), Priority::High, move || {
        let left = Worker::new(instance, idle_poll).run();
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

/// Every service and its counters, and what there was since the last call.
pub fn list() -> Vec<ServiceInfo> {
    SERVICES.lock().iter_mut().map(Service::listed).collect()
}

/// Waits until nobody else holds the instance of the service on `port`: a disk that has called a
/// transfer's sink, or a card that has called the port's handler, may have a share of it for a moment
/// yet, and whoever unloads this module takes the code away that such a share leads to. So there is no
/// giving up.
fn wait_for_last_holder(instance: &Arc<Instance>, port: u16) {
    let mut notice_ns = time::now_ns() + LAST_HOLDER_NS;
    while Arc::strong_count(instance) > 1 {
        if time::now_ns() >= notice_ns {
            log::error!("netblk: somebody still holds the service on port {port}");
            notice_ns = time::now_ns() + LAST_HOLDER_NS;
        }
        task::sleep_ns(HOLDER_LOOK_NS);
    }
}

impl Service {
    /// First nothing more comes in, then the worker ends, and it ends only when the disk owes
    /// nothing. What the slots hold after that would be a leak.
    fn end(self) -> StopReport {
        let free_before = kcore::frame::pool_stats().free;
        drop(self.binding);
        self.instance.stop();
        self.worker.join();
        wait_for_last_holder(&self.instance, self.options.port.get());
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

    fn listed(&mut self) -> ServiceInfo {
        let info = self.info();
        self.listed = info.traffic;
        info
    }

    fn info(&self) -> ServiceInfo {
        let traffic = traffic(&self.instance, &*self.device).since(&self.at_start);
        let now_ns = time::now_ns();
        let mut clients = self.instance.clients(now_ns);
        clients.sort_by_key(|client| client.age_ns);
        ServiceInfo {
            port: self.options.port.get(),
            disk: self.options.disk.clone(),
            card: self.options.nic.clone(),
            read_only: self.instance.terms.v2.read_only(),
            mtu: self.options.mtu,
            cpu: self.cpu,
            poll_us: self.options.poll_us,
            access: alloc::format!("{}", self.options.access),
            size_bytes: self.instance.terms.v2.size_bytes(),
            sector_bytes: self.instance.terms.v2.sector_bytes(),
            uptime_ns: now_ns.saturating_sub(self.started_ns),
            busy_slots: self.instance.busy_slots(),
            room_taken: self.instance.room.held(),
            traffic,
            recent: traffic.since(&self.listed),
            counts: self.instance.counters.read_all(),
            clients,
        }
    }
}

/// What the service and its devices have counted until now.
fn traffic(instance: &Instance, device: &dyn Disk) -> Traffic {
    let (disk, card) = (device.stats(), instance.card.stats());
    Traffic {
        requests: instance.counters.read_all().requests.iter().sum(),
        disk_doorbells: disk.doorbells,
        disk_interrupts: disk.interrupts,
        card_doorbells: card.doorbells,
        card_interrupts: card.interrupts,
    }
}
