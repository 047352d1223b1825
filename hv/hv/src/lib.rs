//! The hypervisor: guests, their consoles, their switch.
//!
//! This room puts the pieces together and holds no decision of its own that another
//! could make: what a guest's CPU does next is [`machine`]'s, what its queues mean is
//! [`virtio_device`]'s, where a frame goes is [`switch`]'s, how a guest is entered is
//! [`hvarch`]'s. What is left is who runs where, who wakes whom, and what becomes of a
//! guest that ends.
//!
//! ```text
//!   guest CPU tasks (run)  --OUT-->  card (nic) --frames--> switch (fabric) --> card of another
//!        ^   |                                                   |
//!        |   +--UART--> console ring --> shell                   +--> node's port --> stack, NAT
//!        +---- bells: interrupts, frames, typed bytes, stop
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bell;
pub mod console;
mod devices;
mod disk;
mod fabric;
mod gateway;
mod guest;
mod hvc;
mod nic;
mod node_port;
mod placement;
mod rng;
mod run;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use announce::Announcement;
use kcore::net::NetDevice;
use kcore::sync::SpinLock;
use kcore::task::{self, Priority};
use kcore::{cpu, softirq, time};
use machine::counters::Counters;
use machine::restart::RestartWait;
use netwire::MacAddr;
use stack::{Stack, Subnet};
use switch::Settings;

use console::Console;
pub use disk::{DiskSpec, DiskStats};
use fabric::Fabric;
pub use gateway::Gateway;
use guest::State;
pub use guest::{Ending, Guest, GuestSpec};
pub use nic::NicStats;
pub use node_port::NAME as NODE_PORT_NAME;
use node_port::SwitchDevice;
use placement::Placement;
use run::Run;

/// How long [`Hypervisor::stop`] waits for a guest's CPUs to leave.
const STOP_WAIT_NS: u64 = 5_000_000_000;

/// Locally administered addresses: the node's port, and the guests' in order.
const NODE_MAC: MacAddr = MacAddr([0x02, 0x6e, 0x6f, 0x73, 0xff, 0x01]);

/// Guests that the switch has ports for, beside the node.
pub const MOST_GUESTS: u8 = switch::MOST_PORTS - 1;

/// The address of the card of the guest with this number.
pub const fn guest_mac(number: u8) -> MacAddr {
    MacAddr([0x02, 0x6e, 0x6f, 0x73, 0x00, number])
}

/// Why a command could not be followed. Its text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandError {
    NoSuchGuest {
        name: String,
        known: String,
    },
    AlreadyRunning {
        name: String,
    },
    NotRunning {
        name: String,
    },
    /// The processor, or the firmware.
    NoVirtualization(String),
    /// The node has fewer CPUs for guests than this guest wants.
    TooFewCpus {
        wanted: usize,
        there_are: usize,
    },
    NoTask(String),
    DoesNotStop {
        name: String,
    },
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommandError::NoSuchGuest { name, known } if known.is_empty() => {
                write!(f, "there is no guest {name}: nos.toml describes none")
            }
            CommandError::NoSuchGuest { name, known } => {
                write!(f, "there is no guest {name}; there are: {known}")
            }
            CommandError::AlreadyRunning { name } => {
                write!(f, "{name} runs already; 'hv console {name}' shows it, 'hv stop {name}' ends it")
            }
            CommandError::NotRunning { name } => {
                write!(f, "{name} does not run; 'hv start {name}' starts it")
            }
            CommandError::NoVirtualization(why) => write!(f, "this node cannot run guests: {why}"),
            CommandError::TooFewCpus { wanted, there_are } => write!(
                f,
                "the guest wants {wanted} CPUs and this node has {there_are} for guests; \
                 lower its cpus in nos.toml or give the node more"
            ),
            CommandError::NoTask(why) => write!(f, "no task could be started: {why}; try again"),
            CommandError::DoesNotStop { name } => {
                write!(f, "{name} has not stopped yet; 'hv list' shows when it has")
            }
        }
    }
}

impl core::error::Error for CommandError {}

/// A guest's line in `hv list`.
#[derive(Clone, Debug)]
pub struct GuestLine {
    pub name: String,
    pub state: String,
    pub cpus: usize,
    pub memory_bytes: u64,
    /// While it runs.
    pub host_cpus: Vec<usize>,
    pub mac: Option<MacAddr>,
    /// Times since the node's boot.
    pub started_ns: Option<u64>,
    pub first_output_ns: Option<u64>,
    pub ready_ns: Option<u64>,
}

/// What `hv stat` shows.
#[derive(Clone, Debug)]
pub struct GuestStat {
    /// By guest CPU.
    pub cpus: Vec<Counters>,
    pub nic: Option<NicStats>,
    pub disks: Vec<DiskStats>,
}

/// The module.
pub struct Hypervisor {
    /// The backend's name, or why there is none.
    backend: Result<&'static str, String>,
    fabric: Arc<Fabric>,
    node_port: Option<Arc<SwitchDevice>>,
    guests: Vec<Arc<Guest>>,
    /// Between the guests' network and the uplink, if there are both.
    gateway: SpinLock<Option<Arc<Gateway>>>,
    /// What runs on each host CPU. Taken alone, or under a guest's state.
    placement: SpinLock<Placement>,
}

impl Hypervisor {
    /// Takes the descriptions over and makes the switch. Starts nothing. `hash_key` is
    /// random.
    pub fn new(guests: Vec<GuestSpec>, hash_key: u64) -> Arc<Hypervisor> {
        let backend = hvarch::init().map_err(|error| error.to_string());
        match &backend {
            Ok(name) => log::info!("hv: {name}"),
            Err(why) => log::warn!("hv: no guests: {why}"),
        }
        let fabric = Arc::new(Fabric::new(Settings::new(hash_key)));
        let node_port = match SwitchDevice::new(&fabric, NODE_MAC) {
            Ok(device) => Some(device),
            Err(error) => {
                log::error!("hv: the node has no port on the switch: {error}");
                None
            }
        };
        Arc::new(Hypervisor {
            backend,
            fabric,
            node_port,
            guests: guests.into_iter().map(|spec| Arc::new(Guest::new(spec))).collect(),
            gateway: SpinLock::new(None),
            placement: SpinLock::new(Placement::new()),
        })
    }

    /// The node's port of the switch, for the stack.
    pub fn node_port(&self) -> Option<Arc<dyn NetDevice>> {
        self.node_port.clone().map(|device| device as Arc<dyn NetDevice>)
    }

    /// Makes the node the guests' router: between their network `subnet`, on which the
    /// node is by `inside` (the stack on [`Hypervisor::node_port`]), and the network of
    /// `uplink`. `keys` are random.
    pub fn connect(
        &self,
        uplink: &Arc<Stack>,
        inside: &Arc<Stack>,
        subnet: Subnet,
        keys: [u64; 2],
    ) -> Option<Arc<Gateway>> {
        let port = self.node_port.as_ref()?;
        let gateway = Arc::new(Gateway::new(uplink.clone(), inside.clone(), subnet, keys));
        port.set_gateway(gateway.clone());
        uplink.set_forwarder(Some(gateway.clone()));
        *self.gateway.lock() = Some(gateway.clone());
        Some(gateway)
    }

    /// The guests' way out, and the outside's way in.
    pub fn gateway(&self) -> Option<Arc<Gateway>> {
        self.gateway.lock().clone()
    }

    /// The guests that run, or are about to.
    pub fn under_way(&self) -> Vec<String> {
        let is_under_way = |guest: &&Arc<Guest>| guest.state.lock().is_under_way();
        self.guests.iter().filter(is_under_way).map(|guest| guest.spec.name.clone()).collect()
    }

    /// Ends everything: guests, the gateway, the node's port with its stack `inside`, and
    /// virtualization on every CPU. Tasks only.
    pub fn shut_down(&self, inside: Option<&Arc<Stack>>) {
        self.stop_all();
        let gateway = self.gateway.lock().take();
        if let Some(gateway) = &gateway {
            gateway.uplink().set_forwarder(None);
        }
        if let Some(port) = &self.node_port {
            port.disconnect();
        }
        if let Some(inside) = inside {
            inside.stop();
        }
        // Nobody is inside the gateway any more.
        softirq::quiesce();
        drop(gateway);
        for cpu in 0..cpu::count() {
            let place = task::Placement::Cpu(cpu);
            match task::spawn("hv/off", place, Priority::Normal, hvarch::shut_down_this_cpu) {
                Ok(task) => task.join(),
                Err(error) => log::error!("hv: virtualization stays on at CPU {cpu}: {error}"),
            }
        }
        hvarch::shut_down();
    }

    /// Frames of floods for whose copies the node had no memory.
    pub fn flood_copies_lost(&self) -> u64 {
        self.fabric.copies_lost()
    }

    /// The guests, as `hv list` shows them.
    pub fn list(&self) -> Vec<GuestLine> {
        self.guests.iter().map(|guest| line_of(guest)).collect()
    }

    /// Starts a guest; its boot goes on by itself, and [`Hypervisor::list`] tells what
    /// came of it.
    pub fn start(self: &Arc<Self>, name: &str) -> Result<(), CommandError> {
        let guest = self.find(name)?;
        if let Err(why) = &self.backend {
            return Err(CommandError::NoVirtualization(why.clone()));
        }
        let host_cpus = self.place(guest.spec.cpus)?;
        {
            let mut state = guest.state.lock();
            if state.is_under_way() {
                drop(state);
                self.release(&host_cpus);
                return Err(CommandError::AlreadyRunning { name: name.to_string() });
            }
            *state = State::Starting { stop_wanted: false };
        }
        self.say_shared(name, &host_cpus);
        self.launch(guest, host_cpus, 0)
    }

    /// Spawns the task that makes the run, `wait_ns` from now. The state is Starting.
    fn launch(
        self: &Arc<Self>,
        guest: Arc<Guest>,
        host_cpus: Vec<usize>,
        wait_ns: u64,
    ) -> Result<(), CommandError> {
        // On the guest's own CPU: several guests then start side by side, and the shell
        // goes on.
        let place = task::Placement::Cpu(host_cpus.first().copied().unwrap_or(0));
        let task_name = format!("{}/start", guest.spec.name);
        let (hv, starting, cpus) = (self.clone(), guest.clone(), host_cpus.clone());
        let spawned = task::spawn(&task_name, place, Priority::Normal, move || {
            if wait_ns > 0 {
                task::sleep_ns(wait_ns);
            }
            hv.make_run(&starting, &cpus);
        });
        spawned.map(|_| ()).map_err(|error| {
            self.release(&host_cpus);
            *guest.state.lock() = State::Stopped;
            guest.ended.signal();
            CommandError::NoTask(error.to_string())
        })
    }

    fn make_run(self: &Arc<Self>, guest: &Arc<Guest>, host_cpus: &[usize]) {
        guest.reset_milestones();
        if guest.state.lock().is_stop_wanted() {
            return self.ended(guest, host_cpus, Ending::Stopped);
        }
        let run = match Run::new(guest, &self.fabric, host_cpus) {
            Ok(run) => Arc::new(run),
            Err(why) => return self.ended(guest, host_cpus, Ending::Failed(why)),
        };
        let stopped = {
            let mut state = guest.state.lock();
            let stopped = state.is_stop_wanted();
            if !stopped {
                *state = State::Running(run.clone());
            }
            stopped
        };
        if stopped {
            drop(run);
            return self.ended(guest, host_cpus, Ending::Stopped);
        }
        let at_ms = time::now_ns() / 1_000_000;
        log::info!("{}", Announcement::GuestStarted { guest: &guest.spec.name, at_ms });
        let (hv, of_run, cpus) = (self.clone(), guest.clone(), host_cpus.to_vec());
        if let Err(why) = run.start(move |ending| hv.ended(&of_run, &cpus, ending)) {
            log::warn!("guest {}: {why}", guest.spec.name);
        }
    }

    /// A run is over and its CPUs have left, or it has not come to be.
    fn ended(self: &Arc<Self>, guest: &Arc<Guest>, host_cpus: &[usize], ending: Ending) {
        let (old, ending) = {
            let mut state = guest.state.lock();
            // Whoever stops a guest is told that it is stopped, however it came to its end.
            let ending = if state.is_stop_wanted() { Ending::Stopped } else { ending };
            let next = match &ending {
                Ending::Reset => State::Starting { stop_wanted: false },
                Ending::Stopped => State::Stopped,
                Ending::PowerOff | Ending::Exited(_) | Ending::Failed(_) => State::Ended(ending.clone()),
            };
            if ending != Ending::Reset {
                self.release(host_cpus);
            }
            (core::mem::replace(&mut *state, next), ending)
        };
        drop(old);
        if ending == Ending::Reset {
            return self.restart(guest, host_cpus);
        }
        let reason = ending.to_string();
        log::info!("{}", Announcement::GuestStopped { guest: &guest.spec.name, reason: &reason });
        guest.ended.signal();
    }

    /// Starts a guest again that has reset itself.
    fn restart(self: &Arc<Self>, guest: &Arc<Guest>, host_cpus: &[usize]) {
        let name = &guest.spec.name;
        let RestartWait { wait_ns, loop_begins } = guest.pace.lock().reset(time::now_ns());
        log::info!("guest {name} resets");
        if loop_begins {
            let wait_ms = wait_ns / 1_000_000;
            log::warn!("guest {name} resets again and again: from now on {wait_ms} ms later each time");
        }
        if let Err(error) = self.launch(guest.clone(), host_cpus.to_vec(), wait_ns) {
            let reason = error.to_string();
            log::error!("guest {name} could not be started again: {reason}");
            log::info!("{}", Announcement::GuestStopped { guest: name, reason: &reason });
        }
    }

    /// Stops a guest at once, as pulling the plug would, and waits until it is gone.
    pub fn stop(&self, name: &str) -> Result<(), CommandError> {
        let guest = self.find(name)?;
        let run = {
            let mut state = guest.state.lock();
            match &mut *state {
                State::Running(run) => {
                    let run = run.clone();
                    *state = State::Stopping(run.clone());
                    Some(run)
                }
                State::Stopping(run) => Some(run.clone()),
                State::Starting { stop_wanted } => {
                    *stop_wanted = true;
                    None
                }
                State::Stopped | State::Ended(_) => {
                    return Err(CommandError::NotRunning { name: name.to_string() });
                }
            }
        };
        if let Some(run) = run {
            run.end(Ending::Stopped);
        }
        let deadline_ns = time::now_ns() + STOP_WAIT_NS;
        while guest.state.lock().is_under_way() {
            if time::now_ns() >= deadline_ns {
                return Err(CommandError::DoesNotStop { name: name.to_string() });
            }
            // The signal may be an earlier end's, so the state is what counts.
            guest.ended.wait_until(deadline_ns);
        }
        // For the next one who waits.
        guest.ended.signal();
        Ok(())
    }

    /// Stops every guest, before the node goes off.
    pub fn stop_all(&self) {
        for guest in &self.guests {
            if let Err(error @ CommandError::DoesNotStop { .. }) = self.stop(&guest.spec.name) {
                log::warn!("{error}");
            }
        }
    }

    /// Exits by reason and the card's counters.
    pub fn stat(&self, name: &str) -> Result<GuestStat, CommandError> {
        let run = self.running(name)?;
        Ok(GuestStat { cpus: run.counters(), nic: run.nic_stats(), disks: run.disk_stats() })
    }

    /// A guest's console. It is there whether the guest runs or not.
    pub fn console(&self, name: &str) -> Result<ConsoleHandle, CommandError> {
        Ok(ConsoleHandle { guest: self.find(name)? })
    }

    fn find(&self, name: &str) -> Result<Arc<Guest>, CommandError> {
        let found = self.guests.iter().find(|guest| guest.spec.name == name);
        found.cloned().ok_or_else(|| CommandError::NoSuchGuest {
            name: name.to_string(),
            known: self.guests.iter().map(|guest| guest.spec.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    fn running(&self, name: &str) -> Result<Arc<Run>, CommandError> {
        self.find(name)?.run().ok_or_else(|| CommandError::NotRunning { name: name.to_string() })
    }

    /// Takes a host CPU for each guest CPU.
    fn place(&self, cpus: usize) -> Result<Vec<usize>, CommandError> {
        let allowed = hvarch::guest_cpus();
        let there_are = allowed.len();
        let taken = self.placement.lock().take(cpus, allowed);
        taken.ok_or(CommandError::TooFewCpus { wanted: cpus, there_are })
    }

    /// Says where a guest runs beside a service, which slows both.
    fn say_shared(&self, name: &str, host_cpus: &[usize]) {
        for &cpu in host_cpus {
            if cpu::reservations(cpu) > 0 {
                log::warn!("guest {name} shares CPU {cpu} with a service of the node: no other is free");
            }
        }
    }

    fn release(&self, host_cpus: &[usize]) {
        self.placement.lock().release(host_cpus);
    }
}

fn line_of(guest: &Guest) -> GuestLine {
    let time = |cell: &core::sync::atomic::AtomicU64| Some(cell.load(Relaxed)).filter(|&ns| ns != 0);
    GuestLine {
        name: guest.spec.name.clone(),
        state: guest.state_text(),
        cpus: guest.spec.cpus,
        memory_bytes: guest.spec.memory_bytes,
        host_cpus: guest.run().map(|run| run.host_cpus().collect()).unwrap_or_default(),
        mac: guest.spec.network,
        started_ns: time(&guest.milestones.started_ns),
        first_output_ns: time(&guest.milestones.first_output_ns),
        ready_ns: time(&guest.milestones.ready_ns),
    }
}

/// An attached console.
pub struct ConsoleHandle {
    guest: Arc<Guest>,
}

impl ConsoleHandle {
    /// Types to the guest. How many bytes were taken.
    pub fn type_bytes(&self, bytes: &[u8]) -> usize {
        let count = self.guest.console.type_bytes(bytes);
        if let Some(run) = self.guest.run() {
            run.input_arrived();
        }
        count
    }
}

impl core::ops::Deref for ConsoleHandle {
    type Target = Console;
    fn deref(&self) -> &Console {
        &self.guest.console
    }
}
