//! The switch itself.

use alloc::boxed::Box;
use alloc::vec;

use netwire::{EthernetFrame, MacAddr};

use crate::counters::{DropReason, PortCounters};
use crate::port::{MOST_PORTS, PortId, PortSet};
use crate::stations::{Learned, Stations};
use crate::storm::{Bucket, StormLimit};

/// What a switch is made with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Addresses that can be known at once.
    pub stations: usize,
    /// Addresses learned at one port at once, after which it learns a new one only in place of
    /// one of its own. Bound ones do not count, nor are ones refused that come over from another
    /// port.
    pub stations_per_port: u16,
    /// How long a silent station is remembered. 300 s is 802.1Q's recommendation (8.8.3).
    pub ageing_ns: u64,
    /// The longest frame carried, Ethernet header included.
    pub largest_frame_bytes: usize,
    /// Per ingress port; `None` floods without limit.
    pub storm: Option<StormLimit>,
    /// Key of the address hash: random, so that guests cannot aim.
    pub hash_key: u64,
}

impl Settings {
    /// The node's settings: MTU 1500 with one VLAN tag, and floods at a rate that lets ARP for a
    /// whole network pass at once but not a loop.
    pub const fn new(hash_key: u64) -> Self {
        Self {
            stations: 1024,
            stations_per_port: 512,
            ageing_ns: 300_000_000_000,
            largest_frame_bytes: 1518,
            storm: Some(StormLimit { frames_per_second: 10_000, burst_frames: 2_000 }),
            hash_key,
        }
    }
}

/// From which addresses a port may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SourceRule {
    /// From any that is not bound to another port: an uplink, with a network behind it.
    Any,
    /// Only from addresses bound to it: a guest.
    BoundOnly,
}

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision {
    /// It goes out of each of these ports; never none, never the one it came from.
    Forward(PortSet),
    Drop(DropReason),
}

/// Why no port was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachError {
    InUse(PortId),
    /// All [`MOST_PORTS`] ports are in use.
    Full,
}

/// Why an address was not bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    NotAttached(PortId),
    /// A group address or all zero.
    NotAStation(MacAddr),
    BoundTo(PortId),
    /// The entries this address could have are all bound.
    TableFull,
}

/// A known address, for people to look at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Station {
    pub mac: MacAddr,
    pub port: PortId,
    pub bound: bool,
    /// How long it has been silent; nothing for a bound one, which does not age.
    pub silent_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Port {
    rule: SourceRule,
    learned_stations: u32,
    floods: Bucket,
    counters: PortCounters,
}

/// A learning switch. See the crate's documentation.
#[derive(Debug)]
pub struct Switch {
    settings: Settings,
    attached: PortSet,
    /// One per [`PortId`]. Boxed: a switch is made and moved on a kernel stack.
    ports: Box<[Port]>,
    stations: Stations,
}

impl Switch {
    pub fn new(settings: Settings) -> Self {
        let detached = Port {
            rule: SourceRule::BoundOnly,
            learned_stations: 0,
            floods: Bucket::default(),
            counters: PortCounters::default(),
        };
        Self {
            settings,
            attached: PortSet::EMPTY,
            ports: vec![detached; usize::from(MOST_PORTS)].into_boxed_slice(),
            stations: Stations::new(settings.stations, settings.hash_key, settings.ageing_ns),
        }
    }

    /// Attaches something at the lowest free port.
    pub fn attach(&mut self, rule: SourceRule) -> Result<PortId, AttachError> {
        let free = (0..MOST_PORTS).filter_map(PortId::new).find(|&port| !self.attached.contains(port));
        let port = free.ok_or(AttachError::Full)?;
        self.attach_at(port, rule)?;
        Ok(port)
    }

    /// Attaches something at this port; its counters begin at zero.
    pub fn attach_at(&mut self, port: PortId, rule: SourceRule) -> Result<(), AttachError> {
        if self.attached.contains(port) {
            return Err(AttachError::InUse(port));
        }
        self.attached = self.attached.with(port);
        self.ports[port.index()] =
            Port { rule, learned_stations: 0, floods: Bucket::default(), counters: PortCounters::default() };
        Ok(())
    }

    /// Detaches what is at this port and forgets its addresses, bound ones too.
    pub fn detach(&mut self, port: PortId) {
        self.attached = self.attached.without(port);
        self.stations.forget_port(port);
        self.ports[port.index()].learned_stations = 0;
    }

    /// Binds an address to a port: only from there may it send, and only there is it reached.
    pub fn bind(&mut self, port: PortId, mac: MacAddr) -> Result<(), BindError> {
        if !self.attached.contains(port) {
            return Err(BindError::NotAttached(port));
        }
        if !mac.is_station() {
            return Err(BindError::NotAStation(mac));
        }
        let displaced = self.stations.bind(mac, port).map_err(|bound| match bound {
            Some(to) => BindError::BoundTo(to),
            None => BindError::TableFull,
        })?;
        if let Some(entry) = displaced {
            self.left(entry.port);
        }
        Ok(())
    }

    /// Where this frame, come in at `ingress`, shall go. It is `frame` from the Ethernet header
    /// on, without a frame check sequence.
    pub fn decide(&mut self, ingress: PortId, frame: &[u8], now_ns: u64) -> Decision {
        if !self.attached.contains(ingress) {
            self.ports[ingress.index()].counters.count_drop(DropReason::NotAttached);
            return Decision::Drop(DropReason::NotAttached);
        }
        let counters = &mut self.ports[ingress.index()].counters;
        counters.frames_in += 1;
        counters.bytes_in += frame.len() as u64;
        match self.route(ingress, frame, now_ns) {
            Ok(ports) => {
                for port in ports {
                    let out = &mut self.ports[port.index()].counters;
                    out.frames_out += 1;
                    out.bytes_out += frame.len() as u64;
                }
                Decision::Forward(ports)
            }
            Err(reason) => {
                self.ports[ingress.index()].counters.count_drop(reason);
                Decision::Drop(reason)
            }
        }
    }

    fn route(&mut self, ingress: PortId, frame: &[u8], now_ns: u64) -> Result<PortSet, DropReason> {
        if frame.len() > self.settings.largest_frame_bytes {
            return Err(DropReason::Oversize);
        }
        let frame = EthernetFrame::check(frame).map_err(|_| DropReason::Undersize)?;
        let (source, destination) = (frame.source(), frame.destination());
        if !source.is_station() {
            return Err(DropReason::BadSource);
        }
        self.admit(ingress, source, now_ns)?;
        if is_link_local(destination) {
            return Err(DropReason::LinkLocal);
        }
        if destination.is_multicast() {
            let ports = self.flood(ingress, now_ns)?;
            self.ports[ingress.index()].counters.flooded_group += 1;
            return Ok(ports);
        }
        match self.stations.lookup(destination, now_ns) {
            Some(station) if station.port == ingress => Err(DropReason::NobodyElse),
            Some(station) => {
                self.ports[ingress.index()].counters.forwarded += 1;
                Ok(PortSet::only(station.port))
            }
            None => {
                let ports = self.flood(ingress, now_ns)?;
                self.ports[ingress.index()].counters.flooded_unknown += 1;
                Ok(ports)
            }
        }
    }

    /// Lets a source address in, and learns where it is.
    fn admit(&mut self, ingress: PortId, source: MacAddr, now_ns: u64) -> Result<(), DropReason> {
        if self.ports[ingress.index()].rule == SourceRule::BoundOnly {
            let own = self.stations.lookup(source, now_ns).is_some_and(|s| s.bound && s.port == ingress);
            return if own { Ok(()) } else { Err(DropReason::SpoofedSource) };
        }
        let has_its_share =
            self.ports[ingress.index()].learned_stations >= u32::from(self.settings.stations_per_port);
        match self.stations.learn(source, ingress, has_its_share, now_ns) {
            Learned::Known => {}
            Learned::Bound { to } if to == ingress => {}
            Learned::Bound { .. } => return Err(DropReason::SpoofedSource),
            Learned::NoRoom => self.ports[ingress.index()].counters.not_learned += 1,
            Learned::New { evicted } => {
                if let Some(port) = evicted {
                    self.left(port);
                }
                self.arrived(ingress);
            }
            Learned::Moved { from } => {
                self.left(from);
                self.ports[ingress.index()].counters.moved_here += 1;
                self.arrived(ingress);
            }
        }
        Ok(())
    }

    /// A port has one learned address more.
    fn arrived(&mut self, port: PortId) {
        let state = &mut self.ports[port.index()];
        state.counters.learned += 1;
        state.learned_stations += 1;
    }

    /// A port has one learned address less.
    fn left(&mut self, port: PortId) {
        let learned = &mut self.ports[port.index()].learned_stations;
        *learned = learned.saturating_sub(1);
    }

    fn flood(&mut self, ingress: PortId, now_ns: u64) -> Result<PortSet, DropReason> {
        let others = self.attached.without(ingress);
        if others.is_empty() {
            return Err(DropReason::NobodyElse);
        }
        match self.settings.storm {
            Some(limit) if !self.ports[ingress.index()].floods.take(limit, now_ns) => Err(DropReason::Storm),
            _ => Ok(others),
        }
    }

    /// The ports to which something is attached.
    pub fn attached(&self) -> PortSet {
        self.attached
    }

    /// The counters of a port since something was last attached there.
    pub fn counters(&self, port: PortId) -> &PortCounters {
        &self.ports[port.index()].counters
    }

    /// The known addresses, in no order.
    pub fn stations(&self, now_ns: u64) -> impl Iterator<Item = Station> {
        self.stations.iter(now_ns).map(move |entry| Station {
            mac: entry.mac,
            port: entry.port,
            bound: entry.bound,
            silent_ns: (!entry.bound).then(|| now_ns.saturating_sub(entry.seen_ns)),
        })
    }

    /// Addresses that can be known at once.
    pub fn station_capacity(&self) -> usize {
        self.stations.capacity()
    }
}

/// 01-80-C2-00-00-00 to -0F: between neighbouring bridges only (802.1Q-2018 table 8-1).
fn is_link_local(destination: MacAddr) -> bool {
    matches!(destination.0, [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00..=0x0f])
}
