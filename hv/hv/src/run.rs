//! One run of a guest, from its memory to its last CPU's end.
//!
//! Each guest CPU is a task on a host CPU of its own choosing, and owns what only it
//! touches: the backend's virtual CPU and the machine's [`Cpu`]. The rest is shared by
//! the run: the board behind a lock, the mailboxes, the bells, the card. What the guest
//! occupies of the node ([`Body`]) ends with its last CPU's task, however long somebody
//! still looks at the run.
//!
//! A task's round: hear the bell, do the devices' work (the first CPU), ask the machine
//! what the next entry needs, arm the host's timer for the nearest of all deadlines,
//! enter, and have the machine answer the exit. A CPU with nothing to run sleeps until
//! its next timer edge or its bell: never to the end of a tick.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hvarch::{GuestMemory, GuestSpace, TscOrigin};
use kcore::event::Event;
use kcore::sync::SpinLock;
use kcore::task::{self, Placement, Priority};
use kcore::{time, timer};
use machine::apic::bus::ApicBus;
use machine::backend::Vcpu;
use machine::chipset::{Board, BoardLock};
use machine::counters::Counters;
use machine::cpu::{Action, Cpu, GuestConfig, Next};
use machine::loader::{self, LinuxBoot, StartState};
use machine::memory_map;
use machine::time::nearer;

use crate::bell::Bells;
use crate::devices::{Devices, Round};
use crate::disk::DiskStats;
use crate::fabric::Fabric;
use crate::guest::{ConsoleLine, Ending, Guest};
use crate::nic::NicStats;

/// Bytes moved from the console's queue to the guest's UART at once.
const INPUT_CHUNK: usize = 64;
/// How long [`Run::counters`] waits for the CPUs to publish theirs.
const PUBLISH_WAIT_NS: u64 = 100_000_000;
/// Rounds of the devices' work before the guest is entered though there is more: another
/// CPU of the guest may add to the queues for ever, and must not keep the first one out.
const MOST_ROUNDS: u32 = 4;
/// How long the guest then has until the next round.
const BETWEEN_ROUNDS_NS: u64 = 50_000;

/// See the module.
pub struct Run {
    guest: Arc<Guest>,
    config: GuestConfig,
    /// Until the last CPU has left. The lock is held for a moment only, and before any
    /// lock of the card.
    body: SpinLock<Option<Arc<Body>>>,
    bus: Arc<ApicBus>,
    bells: Bells,
    start: StartState,
    origin: TscOrigin,
    cpus: Vec<CpuShare>,
    /// Set once: why the CPUs leave.
    ending: SpinLock<Option<Ending>>,
    leaving: AtomicBool,
    /// Tasks that have not left.
    alive: AtomicUsize,
    /// Somebody types.
    pub(crate) input_waits: AtomicBool,
}

/// What the guest occupies: memory, devices, a port of the switch with its address, its disks.
struct Body {
    memory: Arc<GuestMemory>,
    space: Arc<GuestSpace>,
    board: BoardCell,
    devices: Devices,
}

/// What others may see of one CPU.
struct CpuShare {
    host_cpu: usize,
    halted: AtomicBool,
    counters: SpinLock<Counters>,
    publish: AtomicBool,
    published: Event,
}

/// The board behind its lock.
struct BoardCell(SpinLock<Board>);

impl BoardLock for BoardCell {
    fn with<R>(&self, work: impl FnOnce(&mut Board) -> R) -> R {
        work(&mut self.0.lock())
    }
}

impl Run {
    /// Takes memory, loads the kernel and plugs the card in; no CPU runs yet.
    /// `host_cpus` has a host CPU for each of the guest's.
    pub(crate) fn new(guest: &Arc<Guest>, fabric: &Arc<Fabric>, host_cpus: &[usize]) -> Result<Run, String> {
        let spec = &guest.spec;
        let map: Vec<Range<u64>> =
            memory_map::ram_ranges(spec.memory_bytes).iter().map(|range| range.start..range.end()).collect();
        let memory = Arc::new(GuestMemory::new(&map).map_err(|error| format!("{error}"))?);
        let boot = LinuxBoot {
            kernel: spec.kernel,
            initrd: spec.initrd,
            command_line: &spec.command_line,
            ram_bytes: spec.memory_bytes,
            cpus: spec.cpus,
        };
        let loaded = loader::load_linux(&*memory, &boot).map_err(|error| format!("{error}"))?;
        let space = Arc::new(GuestSpace::new(memory.clone()).map_err(|error| format!("{error}"))?);

        let bells = Bells::new(spec.cpus);
        let bus = Arc::new(ApicBus::new(spec.cpus, bells.for_machine()));
        let config = GuestConfig {
            cpus: spec.cpus,
            tsc_hz: hvarch::tsc_hz(),
            unix_at_zero_ns: time::unix_at_boot_ns(),
        };
        let now_ns = time::now_ns();
        let console = ConsoleLine::new(guest.clone());
        let second_line = console.another();
        let mut board = Board::new(bus.clone(), Box::new(console), config.unix_at_zero_ns + now_ns, now_ns);
        let devices = Devices::plug(guest, second_line, fabric, &memory, &bells, &mut board)?;
        let cpus = host_cpus
            .iter()
            .map(|&host_cpu| CpuShare {
                host_cpu,
                halted: AtomicBool::new(false),
                counters: SpinLock::new(Counters::default()),
                publish: AtomicBool::new(false),
                published: Event::new(),
            })
            .collect();
        Ok(Run {
            guest: guest.clone(),
            config,
            body: SpinLock::new(Some(Arc::new(Body {
                memory,
                space,
                board: BoardCell(SpinLock::new(board)),
                devices,
            }))),
            bus,
            bells,
            start: loaded.start,
            origin: TscOrigin::now(),
            cpus,
            ending: SpinLock::new(None),
            leaving: AtomicBool::new(false),
            alive: AtomicUsize::new(0),
            input_waits: AtomicBool::new(true),
        })
    }

    /// Starts the CPUs' tasks. `on_end` is called once, by the last task to leave.
    pub(crate) fn start(
        self: &Arc<Self>,
        on_end: impl Fn(Ending) + Send + Sync + 'static,
    ) -> Result<(), String> {
        let on_end = Arc::new(on_end);
        // Held until all are spawned, so that none that leaves early is taken for the last.
        self.alive.store(1, Ordering::SeqCst);
        let mut result = Ok(());
        for (index, share) in self.cpus.iter().enumerate() {
            self.alive.fetch_add(1, Ordering::SeqCst);
            let (run, on_end) = (self.clone(), on_end.clone());
            let name = format!("{}/{index}", self.guest.spec.name);
            let spawned = task::spawn(&name, Placement::Cpu(share.host_cpu), Priority::Normal, move || {
                run.cpu_task(index);
                if let Some(ending) = run.leave() {
                    on_end(ending);
                }
            });
            if let Err(error) = spawned {
                self.alive.fetch_sub(1, Ordering::SeqCst);
                let why = format!("no task for CPU {index}: {error}");
                self.end(Ending::Failed(why.clone()));
                result = Err(why);
                break;
            }
        }
        if let Some(ending) = self.leave() {
            on_end(ending);
        }
        result
    }

    /// Asks all CPUs to leave. The first reason counts.
    pub(crate) fn end(&self, ending: Ending) {
        self.ending.lock().get_or_insert(ending);
        self.leaving.store(true, Ordering::SeqCst);
        self.bells.ring_all();
    }

    /// One task fewer. The last one gets the run's ending; the guest's memory and its
    /// port of the switch are free by then, before anyone hears of the end.
    fn leave(&self) -> Option<Ending> {
        let last = self.alive.fetch_sub(1, Ordering::SeqCst) == 1;
        last.then(|| {
            // The tasks have dropped their shares, so this is the last.
            let body = self.body.lock().take();
            if let Some(body) = &body {
                body.devices.drain();
            }
            drop(body);
            self.ending.lock().clone().unwrap_or(Ending::Stopped)
        })
    }

    /// Whether every CPU sleeps.
    pub fn is_halted(&self) -> bool {
        self.cpus.iter().all(|cpu| cpu.halted.load(Ordering::Relaxed))
    }

    /// The host CPUs, by guest CPU.
    pub fn host_cpus(&self) -> impl Iterator<Item = usize> {
        self.cpus.iter().map(|cpu| cpu.host_cpu)
    }

    pub fn nic_stats(&self) -> Option<NicStats> {
        // Under the lock: a share taken out of it could outlive the run.
        self.body.lock().as_ref()?.devices.nic_stats()
    }

    pub fn disk_stats(&self) -> Vec<DiskStats> {
        self.body.lock().as_ref().map(|body| body.devices.disk_stats()).unwrap_or_default()
    }

    /// Each CPU's counters, as of now.
    pub fn counters(&self) -> Vec<Counters> {
        for share in &self.cpus {
            share.publish.store(true, Ordering::SeqCst);
        }
        self.bells.ring_all();
        let deadline_ns = time::now_ns() + PUBLISH_WAIT_NS;
        for share in &self.cpus {
            while share.publish.load(Ordering::SeqCst) {
                if !share.published.wait_until(deadline_ns) {
                    break;
                }
            }
        }
        self.cpus.iter().map(|share| *share.counters.lock()).collect()
    }

    /// There is typed input for the guest.
    pub(crate) fn input_arrived(&self) {
        self.input_waits.store(true, Ordering::SeqCst);
        self.bells.ring_device_cpu();
    }

    /// The life of CPU `index`. Nothing of it outlives this call.
    fn cpu_task(&self, index: usize) {
        let share = &self.cpus[index];
        let bell = self.bells.of(index);
        // There as long as a task has not left.
        let Some(body) = self.body.lock().clone() else { return };
        let mut vcpu = match hvarch::new_vcpu(body.space.clone(), bell.doorbell(), self.origin) {
            Ok(vcpu) => vcpu,
            Err(error) => return self.end(Ending::Failed(format!("{error}"))),
        };
        let mut cpu = Cpu::new(index, self.config, self.bus.clone());
        if index == 0 {
            cpu.start(&mut *vcpu, &self.start);
        }
        let mut rounds = 0;
        loop {
            bell.take();
            if share.publish.swap(false, Ordering::SeqCst) {
                *share.counters.lock() = *cpu.counters();
                share.published.signal();
            }
            if self.leaving.load(Ordering::SeqCst) {
                break;
            }
            let mut devices = if index == 0 { self.device_round(&body) } else { Round::default() };
            if devices.more && rounds < MOST_ROUNDS {
                rounds += 1;
                continue;
            }
            rounds = 0;
            if devices.more {
                // Nobody rings for what is left, so it is the clock that comes back to it.
                devices.due_ns = nearer(devices.due_ns, Some(time::now_ns() + BETWEEN_ROUNDS_NS));
            }
            match cpu.before_entry(&mut *vcpu, &body.board, time::now_ns()) {
                Next::Enter(mut entry) => {
                    entry.deadline_ns = nearer(entry.deadline_ns, devices.due_ns);
                    let exit = vcpu.run(&entry);
                    let action = cpu.handle(&mut *vcpu, &*body.memory, &body.board, exit, time::now_ns());
                    self.act(action, &*vcpu);
                }
                // It has nothing to run: its devices may have the time.
                Next::Sleep { .. } if devices.more => task::yield_now(),
                Next::Sleep { until_ns } => {
                    timer::set_cpu_deadline(None);
                    share.halted.store(true, Ordering::Relaxed);
                    bell.sleep(nearer(until_ns, devices.due_ns));
                    share.halted.store(false, Ordering::Relaxed);
                }
            }
        }
        timer::set_cpu_deadline(None);
        *share.counters.lock() = *cpu.counters();
        share.published.signal();
    }

    fn act(&self, action: Action, vcpu: &dyn Vcpu) {
        match action {
            Action::Continue | Action::HostWork => {}
            Action::Yield => task::yield_now(),
            Action::Reset => self.end(Ending::Reset),
            Action::PowerOff => self.end(Ending::PowerOff),
            Action::Exit(status) => self.end(Ending::Exited(status)),
            Action::Stop(reason) => {
                log::warn!(
                    "guest {}: {reason}; rip {:#x} rflags {:#x} {:x?} {:x?}",
                    self.guest.spec.name,
                    vcpu.rip(),
                    vcpu.rflags(),
                    vcpu.gprs().0,
                    vcpu.system(),
                );
                self.end(Ending::Failed(format!("{reason}")));
            }
        }
    }

    /// The devices' work that waits, for the first CPU's task.
    fn device_round(&self, body: &Body) -> Round {
        if self.input_waits.load(Ordering::SeqCst) {
            self.feed_input(body);
        }
        body.devices.round(time::now_ns()).unwrap_or_else(|why| {
            self.end(Ending::Failed(why));
            Round::default()
        })
    }

    /// Moves typed input to the UART, whose queue has room for all of it, or lets the virtio console
    /// take it.
    fn feed_input(&self, body: &Body) {
        self.input_waits.store(false, Ordering::SeqCst);
        if body.devices.input_arrived() {
            return;
        }
        let mut chunk = [0; INPUT_CHUNK];
        loop {
            let count = self.guest.console.take_input(&mut chunk);
            if count == 0 {
                return;
            }
            // What does not fit has nobody who would want it: the guest has not read 64 KiB.
            body.board.with(|board| board.push_console_input(&chunk[..count]));
        }
    }
}
