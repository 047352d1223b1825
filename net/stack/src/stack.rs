//! The stack of one card, its task, and what others may ask of it.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Relaxed, Release},
};

use ingress::{Interface, Neighbour, Subnet};
use kcore::event::Event;
use kcore::frame::{FrameChain, NetFrame};
use kcore::net::{NetDevice, NetStats};
use kcore::sync::{Once, SpinLock};
use kcore::task::{self, Placement, Priority, SpawnError, TaskHandle};
use netwire::MacAddr;

use crate::counters::{Counters, DropCount, SendDrop};
use crate::echo::Echo;
use crate::handlers::{BindError, Binding, ChecksumPolicy, Handlers, UdpHandler};
use crate::library::Library;
use crate::link::{LibraryQueue, Link};
use crate::output::{Origin, Output, Sent};
use crate::ping::{PingError, PingReply, Pings};
use crate::receive::{Ear, Forwarder};
use crate::registry;

/// How a stack gets its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressConfig {
    Dhcp,
    /// Without a gateway only the own network is reached.
    Fixed {
        subnet: Subnet,
        gateway: Option<Ipv4Addr>,
    },
}

/// Where an address came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AddressSource {
    /// There is none yet.
    Nowhere,
    Fixed,
    Dhcp {
        server: Ipv4Addr,
        name_servers: Vec<Ipv4Addr>,
        /// How long the address is lent; `None` where the server does not say.
        lease_seconds: Option<u32>,
        /// When the lease was taken or changed, in ns since boot.
        since_ns: u64,
    },
}

/// An interface's addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    pub subnet: Option<Subnet>,
    pub gateway: Option<Ipv4Addr>,
    pub source: AddressSource,
}

impl Addresses {
    pub(crate) const NONE: Addresses =
        Addresses { subnet: None, gateway: None, source: AddressSource::Nowhere };
}

/// Why a stack could not be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    Task(SpawnError),
    /// The card's address is a group's or zero.
    NoStationAddress,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Task(error) => write!(f, "the task \"net\" cannot be started: {error}"),
            StartError::NoStationAddress => f.write_str("the card has no MAC address of its own"),
        }
    }
}

impl core::error::Error for StartError {}

/// The node's own IP on one card.
pub struct Stack {
    card: Arc<dyn NetDevice>,
    mac: MacAddr,
    addresses: SpinLock<Addresses>,
    pub(crate) handlers: Arc<Handlers>,
    pub(crate) forwarder: SpinLock<Option<Arc<dyn Forwarder>>>,
    /// The forwarder took frames of this batch.
    pub(crate) forwarder_used: AtomicBool,
    pub(crate) output: Output,
    pub(crate) pings: Pings,
    pub(crate) echo: SpinLock<Option<Echo>>,
    pub(crate) counters: Counters,
    pub(crate) queue: Arc<LibraryQueue>,
    /// Frames of this batch went to the library.
    pub(crate) library_used: AtomicBool,
    /// Wakes the task: frames for the library, or a deadline that it does not know.
    pub(crate) wake: Event,
    /// Signalled when the addresses change.
    address_changed: Event,
    task: Once<TaskHandle>,
    stopping: AtomicBool,
}

impl Stack {
    /// Starts a stack on a card; its task runs on CPU `cpu`. It is known to [`all`](crate::all) until
    /// [`Stack::stop`].
    pub fn start(
        card: Arc<dyn NetDevice>,
        config: AddressConfig,
        cpu: usize,
    ) -> Result<Arc<Stack>, StartError> {
        let mac = MacAddr(card.mac());
        if !mac.is_station() {
            return Err(StartError::NoStationAddress);
        }
        let queue = Arc::new(LibraryQueue::new());
        let link = Link::new(card.clone(), queue.clone());
        let addresses = match config {
            AddressConfig::Dhcp => Addresses::NONE,
            AddressConfig::Fixed { subnet, gateway } => {
                Addresses { subnet: Some(subnet), gateway, source: AddressSource::Fixed }
            }
        };
        let stack = Arc::new(Stack {
            output: Output::new(card.clone(), mac),
            card,
            mac,
            addresses: SpinLock::new(addresses),
            handlers: Arc::new(Handlers::new()),
            forwarder: SpinLock::new(None),
            forwarder_used: AtomicBool::new(false),
            pings: Pings::new(),
            echo: SpinLock::new(None),
            counters: Counters::default(),
            queue,
            library_used: AtomicBool::new(false),
            wake: Event::new(),
            address_changed: Event::new(),
            task: Once::new(),
            stopping: AtomicBool::new(false),
        });
        let library = Library::new(link, mac, &config);
        let running = stack.clone();
        let name = format!("net/{}", stack.card.name());
        let task = task::spawn(&name, Placement::Cpu(cpu), Priority::Normal, move || running.run(library))
            .map_err(StartError::Task)?;
        // Set here alone.
        let _ = stack.task.set(task);
        stack.card.set_receiver(Arc::new(Ear(stack.clone())));
        registry::add(&stack);
        Ok(stack)
    }

    /// Ends the stack of a card that goes. The card delivers nothing any more; when this returns, the
    /// stack's task has ended and nobody finds the stack. Tasks only.
    pub fn stop(&self) {
        registry::remove(self);
        self.stop_echo();
        self.set_forwarder(None);
        self.stopping.store(true, Release);
        self.wake.signal();
        if let Some(task) = self.task.get() {
            task.join();
        }
    }

    /// The task: sleeps until a frame for the library comes or a deadline passes.
    fn run(&self, mut library: Library) {
        while !self.stopping.load(Acquire) {
            let polled = library.poll(&self.counters);
            if let Some(addresses) = polled.addresses {
                self.set_addresses(addresses);
            }
            let ask_again_ns =
                self.output.poll(self.origin(), &self.counters, |next_hop| self.pings.absent(next_hop));
            match polled.deadline_ns.into_iter().chain(ask_again_ns).min() {
                Some(deadline_ns) => {
                    self.wake.wait_until(deadline_ns);
                }
                None => self.wake.wait(),
            }
        }
    }

    fn set_addresses(&self, new: Addresses) {
        let old = core::mem::replace(&mut *self.addresses.lock(), new.clone());
        if (old.subnet, old.gateway) != (new.subnet, new.gateway) {
            self.output.forget(&self.counters);
            match new.subnet {
                Some(subnet) => {
                    let gateway =
                        new.gateway.map_or_else(|| String::from("no gateway"), |ip| format!("gateway {ip}"));
                    log::info!("{}: {subnet}, {gateway}", self.card.name());
                }
                None if old.subnet.is_some() => log::warn!("{}: the address is lost", self.card.name()),
                None => {}
            }
        }
        self.address_changed.signal();
    }

    /// Waits until there is an address, or until `deadline_ns` (ns since boot). One task at a time.
    pub fn wait_for_address(&self, deadline_ns: u64) -> Option<Subnet> {
        loop {
            if let Some(subnet) = self.subnet() {
                return Some(subnet);
            }
            if !self.address_changed.wait_until(deadline_ns) {
                return self.subnet();
            }
        }
    }

    pub fn card(&self) -> &Arc<dyn NetDevice> {
        &self.card
    }

    pub fn mac(&self) -> MacAddr {
        self.mac
    }

    /// Our address and the prefix of our network; `None` until there is one.
    pub fn subnet(&self) -> Option<Subnet> {
        self.addresses.lock().subnet
    }

    pub fn gateway(&self) -> Option<Ipv4Addr> {
        self.addresses.lock().gateway
    }

    pub(crate) fn interface(&self) -> Interface {
        Interface { mac: self.mac, subnet: self.subnet() }
    }

    fn origin(&self) -> Option<Origin> {
        let addresses = self.addresses.lock();
        addresses.subnet.map(|subnet| Origin { subnet, gateway: addresses.gateway })
    }

    /// Has the datagrams of a UDP port handed to `handler`, frame and all, until the binding is
    /// dropped.
    pub fn udp_bind(
        &self,
        port: u16,
        policy: ChecksumPolicy,
        handler: Arc<dyn UdpHandler>,
    ) -> Result<Binding, BindError> {
        self.handlers.bind(port, policy, handler)
    }

    /// Whether the node itself uses a UDP port here, so that nobody else may be given it.
    pub fn uses_udp_port(&self, port: u16) -> bool {
        self.handlers.is_bound(port)
    }

    /// Sets who sees the frames of forwarded ports and tracked flows.
    pub fn set_forwarder(&self, forwarder: Option<Arc<dyn Forwarder>>) {
        let old = core::mem::replace(&mut *self.forwarder.lock(), forwarder);
        drop(old);
    }

    /// Sends whole Ethernet frames as they are, under one lock and with one doorbell.
    pub fn transmit_raw(&self, frames: FrameChain) {
        self.output.send_raw(frames, &self.counters);
    }

    /// Sends IPv4 packets to their next hops. Each frame holds 14 bytes of room, which become the
    /// Ethernet header, and the packet. Frames whose next hop is not known wait for the answer to
    /// an ARP request, as long as few do. From any context but an interrupt.
    pub fn send_ipv4(&self, frames: FrameChain) {
        self.send(frames);
    }

    fn send(&self, frames: FrameChain) -> Sent {
        let sent = self.output.send_ipv4(frames, self.origin(), &self.counters);
        if sent.asked {
            self.wake.signal();
        }
        sent
    }

    /// The MAC address through which `destination` is reached, if it is known now; if not, it is
    /// asked for, and known a little later.
    pub fn next_hop_mac(&self, destination: Ipv4Addr) -> Option<MacAddr> {
        let origin = self.origin()?;
        let next_hop = origin.next_hop(destination)?;
        let (mac, asked) = self.output.resolve(next_hop, origin, &self.counters);
        if asked {
            self.wake.signal();
        }
        mac
    }

    /// Sends an echo request and waits for the answer. Tasks only.
    pub fn ping(
        &self,
        destination: Ipv4Addr,
        payload_bytes: usize,
        timeout_ns: u64,
    ) -> Result<PingReply, PingError> {
        let origin = self.origin().ok_or(PingError::NoAddress)?;
        let source = origin.subnet.address();
        if destination == source || destination.is_loopback() {
            return Err(PingError::Ourselves);
        }
        let next_hop = origin.next_hop(destination).ok_or(PingError::NotSent(SendDrop::NoRoute))?;
        let (pending, frame) = self.pings.prepare(source, destination, next_hop, payload_bytes)?;
        if let Some(reason) = self.send(chain_of(frame)).last_drop {
            pending.answer(Err(PingError::NotSent(reason)));
        }
        let outcome = pending.wait(timeout_ns);
        self.pings.finish(&pending);
        outcome
    }

    /// What the shell shows.
    pub fn state(&self) -> StackState {
        StackState {
            card: String::from(self.card.name()),
            mac: self.mac,
            mtu: self.card.mtu(),
            addresses: self.addresses.lock().clone(),
            neighbours: self.output.neighbours(),
            udp_ports: self.handlers.list(),
            card_stats: self.card.stats(),
            to_handlers: self.counters.to_handlers.load(Relaxed),
            to_forwarder: self.counters.to_forwarder.load(Relaxed),
            to_library: self.counters.to_library.load(Relaxed),
            receive_drops: self.counters.receive_drops(),
            send_drops: self.counters.send_drops(),
        }
    }
}

fn chain_of(frame: NetFrame) -> FrameChain {
    let mut chain = FrameChain::new();
    chain.push(frame);
    chain
}

/// The state of a stack, for the shell.
#[derive(Clone, Debug)]
pub struct StackState {
    pub card: String,
    pub mac: MacAddr,
    pub mtu: u16,
    pub addresses: Addresses,
    pub neighbours: Vec<Neighbour>,
    /// Bound ports and the datagrams each got.
    pub udp_ports: Vec<(u16, u64)>,
    pub card_stats: NetStats,
    /// Frames that UDP handlers, the forwarder and the TCP/IP library got.
    pub to_handlers: u64,
    pub to_forwarder: u64,
    pub to_library: u64,
    /// Received frames that went no further, by reason; zeros included.
    pub receive_drops: Vec<DropCount>,
    /// Frames that were not sent, by reason; zeros included.
    pub send_drops: Vec<DropCount>,
}
