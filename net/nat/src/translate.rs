//! The two directions.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::ops::RangeInclusive;

use ingress::Subnet;
use netwire::{FlowError, FlowMut, IpProtocol, Ipv4Packet, Transport};

use crate::connections::{Connection, Connections, Origin};
use crate::counters::{Counters, DropReason};
use crate::forwards::{Forward, ForwardError, Forwards};
use crate::index::Place;
use crate::quoted;
use crate::tcp::{Side, opens};

/// How long a connection may be idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    pub udp_ns: u64,
    /// TCP that is not open at both ends yet, or closing.
    pub tcp_transitory_ns: u64,
    pub tcp_established_ns: u64,
    pub echo_ns: u64,
}

impl Timeouts {
    const SECOND_NS: u64 = 1_000_000_000;

    /// UDP 5 minutes (recommended by RFC 4787 REQ-5), TCP 4 minutes transitory and 2 hours 4
    /// minutes established (the least by RFC 5382 REQ-5), echo 60 seconds (the least by RFC 5508
    /// REQ-1).
    pub const RFC: Self = Self {
        udp_ns: 300 * Self::SECOND_NS,
        tcp_transitory_ns: 240 * Self::SECOND_NS,
        tcp_established_ns: 7440 * Self::SECOND_NS,
        echo_ns: 60 * Self::SECOND_NS,
    };
}

/// What a NAT is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The guests' network, with the node's own address on it.
    pub inside: Subnet,
    /// Connections at once, of all guests and of one.
    pub connections: u32,
    pub connections_per_guest: u32,
    /// The outside ports given out. Best apart from those that the node's own stack chooses from
    /// for itself (from 49152 on, RFC 6335), though it is asked for each.
    pub ports: RangeInclusive<u16>,
    pub timeouts: Timeouts,
    /// Key of the hashes and seed of the ports: random.
    pub hash_key: u64,
    pub port_seed: u64,
}

impl Settings {
    /// The node's settings. 4,096 connections take half a megabyte.
    pub const fn new(inside: Subnet, hash_key: u64, port_seed: u64) -> Self {
        Self {
            inside,
            connections: 4096,
            connections_per_guest: 2048,
            ports: 16_384..=49_151,
            timeouts: Timeouts::RFC,
            hash_key,
            port_seed,
        }
    }
}

/// Where a packet goes. All but `Node` and `Drop` have been rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// To the node's own stack, as it is.
    Node,
    /// Out of the uplink, on the route to this address.
    Uplink(Ipv4Addr),
    /// To this guest.
    Inside(Ipv4Addr),
    /// Nowhere. What the packet holds then is not defined.
    Drop(DropReason),
}

/// The translator. See the crate's documentation.
#[derive(Debug)]
pub struct Nat {
    inside: Subnet,
    uplink: Option<Ipv4Addr>,
    forwards: Forwards,
    connections: Connections,
    counters: Counters,
}

impl Nat {
    /// A NAT without an address outside; see [`Self::set_uplink`].
    pub fn new(settings: &Settings) -> Self {
        Self {
            inside: settings.inside,
            uplink: None,
            forwards: Forwards::default(),
            connections: Connections::new(settings),
            counters: Counters::default(),
        }
    }

    /// The node's address outside has come, gone or changed. Connections through another address
    /// are over.
    pub fn set_uplink(&mut self, uplink: Option<Ipv4Addr>) {
        if self.uplink != uplink {
            self.uplink = uplink;
            self.connections.clear();
        }
    }

    pub fn uplink(&self) -> Option<Ipv4Addr> {
        self.uplink
    }

    /// Lets the outside in to a guest's port. `node_uses` says which ports of the uplink are the
    /// node's own.
    pub fn add_forward(
        &mut self,
        forward: Forward,
        node_uses: impl Fn(Transport, u16) -> bool,
    ) -> Result<(), ForwardError> {
        let Forward { transport, port, inside } = forward;
        if transport == Transport::IcmpEcho || port == 0 || inside.port() == 0 {
            return Err(ForwardError::NotAPort);
        }
        if !self.is_guest(*inside.ip()) {
            return Err(ForwardError::NotInside(inside));
        }
        if node_uses(transport, port) {
            return Err(ForwardError::UsedByNode(port));
        }
        if self.connections.uses_port(transport, port) {
            return Err(ForwardError::InUse(port));
        }
        self.forwards.add(forward)
    }

    /// Ends a forward and the connections that came in through it: its port may be another's next.
    pub fn remove_forward(&mut self, transport: Transport, port: u16) -> Option<Forward> {
        let removed = self.forwards.remove(transport, port)?;
        let came_through = |c: &Connection| c.forwarded && (c.transport, c.outside_port) == (transport, port);
        self.connections.close_all(came_through);
        Some(removed)
    }

    pub fn forwards(&self) -> impl Iterator<Item = &Forward> {
        self.forwards.iter()
    }

    /// A guest is gone, and its connections with it.
    pub fn forget_guest(&mut self, guest: Ipv4Addr) {
        self.connections.close_all(|connection| *connection.inside.ip() == guest);
    }

    /// Ends up to `most` connections that were idle too long. Opening connections does it too, so
    /// this only matters to who looks at the numbers, or waits for ports.
    pub fn expire(&mut self, now_ns: u64, most: usize) -> usize {
        self.connections.expire(now_ns, most)
    }

    /// Whether an outside port is a guest's at the moment, so that the node must not take it.
    pub fn uses_port(&self, transport: Transport, port: u16) -> bool {
        self.connections.uses_port(transport, port) || self.forwards.find(transport, port).is_some()
    }

    pub fn counters(&self) -> Counters {
        let mut counters = self.counters;
        counters.connections_made = self.connections.made;
        counters.connections_expired = self.connections.expired;
        counters.connections_evicted = self.connections.evicted;
        counters
    }

    pub fn connections(&self) -> impl Iterator<Item = &Connection> {
        self.connections.iter()
    }

    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// A packet that a guest sent to the node: an Ethernet frame's payload. `node_uses` says which
    /// ports of the uplink are the node's own; it is asked when a port is given out.
    pub fn outbound(
        &mut self,
        packet: &mut [u8],
        now_ns: u64,
        node_uses: impl Fn(Transport, u16) -> bool,
    ) -> Verdict {
        let result = self.try_outbound(packet, now_ns, node_uses);
        self.verdict(result)
    }

    /// A packet that came in at the uplink: an Ethernet frame's payload.
    pub fn inbound(&mut self, packet: &mut [u8], now_ns: u64) -> Verdict {
        let result = self.try_inbound(packet, now_ns);
        self.verdict(result)
    }

    fn verdict(&mut self, result: Result<Verdict, DropReason>) -> Verdict {
        result.unwrap_or_else(|reason| {
            self.counters.count_drop(reason);
            Verdict::Drop(reason)
        })
    }

    fn try_outbound(
        &mut self,
        packet: &mut [u8],
        now_ns: u64,
        node_uses: impl Fn(Transport, u16) -> bool,
    ) -> Result<Verdict, DropReason> {
        let header = Ipv4Packet::check(packet).map_err(|_| DropReason::Malformed)?;
        let (source, destination) = (header.source(), header.destination());
        if destination == self.inside.address() {
            return Ok(Verdict::Node);
        }
        if !self.is_guest(source) {
            return Err(DropReason::SpoofedSource);
        }
        // Not to the node itself, so the guest takes it for its router.
        let uplink = self.uplink.ok_or(DropReason::NoUplink)?;
        if !is_routable(destination) || self.inside.contains(destination) {
            return Err(DropReason::NotRoutable);
        }
        let to_uplink = destination == uplink;
        let mut flow = match FlowMut::check(packet) {
            Ok(flow) => flow,
            Err(_) if to_uplink => return Ok(Verdict::Node),
            Err(error) => return Err(reason_of(error)),
        };
        let transport = flow.transport();
        let (inside, remote) = (flow.source(), flow.destination());
        if to_uplink && !self.uses_port(transport, remote.port()) {
            return Ok(Verdict::Node);
        }
        check_ports(transport, inside, remote)?;
        if flow.ttl() <= 1 {
            return Err(DropReason::TtlExpired);
        }
        if transport == Transport::IcmpEcho && !flow.echo_is_request() {
            return Err(DropReason::NoConnection); // nobody outside can have asked
        }
        let flags = flow.tcp_flags();
        let place = match self.connections.find_from_inside(transport, inside, remote, now_ns) {
            Some(place) => place,
            None if flags.is_none_or(opens) => {
                let forwards = &self.forwards;
                let may_use = |port| forwards.find(transport, port).is_none() && !node_uses(transport, port);
                self.connections.open(Origin::Inside, transport, inside, remote, now_ns, may_use)?
            }
            None => return Err(DropReason::NoConnection),
        };
        self.connections.used(place, Side::Inside, flags, now_ns);
        let outside = SocketAddrV4::new(uplink, self.connection(place)?.outside_port);
        flow.set_source(outside);
        if to_uplink {
            let verdict = self.deliver(flow, now_ns)?;
            self.counters.hairpinned += 1;
            return Ok(verdict);
        }
        if !flow.decrement_ttl() {
            return Err(DropReason::TtlExpired);
        }
        self.counters.outbound += 1;
        Ok(Verdict::Uplink(destination))
    }

    fn try_inbound(&mut self, packet: &mut [u8], now_ns: u64) -> Result<Verdict, DropReason> {
        let header = Ipv4Packet::check(packet).map_err(|_| DropReason::Malformed)?;
        let (source, destination) = (header.source(), header.destination());
        if self.uplink != Some(destination) {
            return Ok(Verdict::Node);
        }
        if !is_routable(source) || source == destination || self.inside.contains(source) {
            return Err(DropReason::SpoofedSource);
        }
        let flow = match FlowMut::check(packet) {
            Ok(flow) => flow,
            Err(FlowError::Protocol(IpProtocol::ICMP)) => return self.try_error(packet, destination, now_ns),
            Err(FlowError::Protocol(_)) => return Ok(Verdict::Node),
            Err(error) => return Err(reason_of(error)),
        };
        if flow.echo_is_request() || !self.uses_port(flow.transport(), flow.destination().port()) {
            return Ok(Verdict::Node);
        }
        let verdict = self.deliver(flow, now_ns)?;
        self.counters.inbound += 1;
        Ok(verdict)
    }

    /// Takes a packet to one of our outside ports in to the guest that has it.
    fn deliver(&mut self, mut flow: FlowMut<'_>, now_ns: u64) -> Result<Verdict, DropReason> {
        let transport = flow.transport();
        let (remote, port) = (flow.source(), flow.destination().port());
        check_ports(transport, remote, flow.destination())?;
        if flow.ttl() <= 1 {
            return Err(DropReason::TtlExpired);
        }
        let flags = flow.tcp_flags();
        let place = match self.connections.find_from_outside(transport, port, remote, now_ns) {
            Some(place) => place,
            None if flags.is_none_or(opens) => {
                let forward = self.forwards.find(transport, port).ok_or(DropReason::NoConnection)?;
                let origin = Origin::Forward { port };
                self.connections.open(origin, transport, forward.inside, remote, now_ns, |_| true)?
            }
            None => return Err(DropReason::NoConnection),
        };
        self.connections.used(place, Side::Outside, flags, now_ns);
        let inside = self.connection(place)?.inside;
        flow.set_destination(inside);
        if !flow.decrement_ttl() {
            return Err(DropReason::TtlExpired);
        }
        Ok(Verdict::Inside(*inside.ip()))
    }

    /// An ICMP message other than echo for the uplink: ours if it quotes a packet of ours.
    fn try_error(&mut self, packet: &mut [u8], uplink: Ipv4Addr, now_ns: u64) -> Result<Verdict, DropReason> {
        let Some(subject) = quoted::subject(packet, uplink) else { return Ok(Verdict::Node) };
        let quoted::Subject { transport, outside_port, remote } = subject;
        let Some(place) = self.connections.find_from_outside(transport, outside_port, remote, now_ns) else {
            return Ok(Verdict::Node);
        };
        // The connection's idle time goes on: an error must not keep it alive, nor end it
        // (RFC 5508 REQ-4, RFC 4787 REQ-12).
        let inside = self.connection(place)?.inside;
        quoted::redirect(packet, transport, inside)?;
        self.counters.errors_in += 1;
        Ok(Verdict::Inside(*inside.ip()))
    }

    fn connection(&self, place: Place) -> Result<&Connection, DropReason> {
        self.connections.get(place).ok_or(DropReason::NoConnection)
    }

    fn is_guest(&self, address: Ipv4Addr) -> bool {
        self.inside.contains(address) && self.inside.may_be_source(address)
    }
}

fn reason_of(error: FlowError) -> DropReason {
    match error {
        FlowError::Malformed(_) => DropReason::Malformed,
        FlowError::Fragment => DropReason::Fragment,
        FlowError::Protocol(_) => DropReason::Protocol,
    }
}

/// An echo's other side has no port, which reads as 0; elsewhere 0 is nobody's.
fn check_ports(transport: Transport, one: SocketAddrV4, other: SocketAddrV4) -> Result<(), DropReason> {
    let has_ports = transport != Transport::IcmpEcho;
    if has_ports && (one.port() == 0 || other.port() == 0) { Err(DropReason::PortZero) } else { Ok(()) }
}

/// Whether an address can be one host's outside this node (RFC 1122 section 3.2.1.3): not of "this
/// network" or the loopback, no group, not reserved.
fn is_routable(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}
