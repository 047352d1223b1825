//! The connections that are translated, and what each holds: a mapping and part of a share.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddrV4;

use netwire::{TcpFlags, Transport};

use crate::age::{AgeClass, AgeLists};
use crate::counters::DropReason;
use crate::index::{Hasher, Index, Place};
use crate::mappings::Mappings;
use crate::shares::Shares;
use crate::tcp::{Side, TcpTrack};
use crate::translate::{Settings, Timeouts};

/// How silent a UDP connection must be to be given up for another: the least that RFC 4787 REQ-5
/// allows a NAT.
const UDP_LEAST_IDLE_NS: u64 = 120_000_000_000;

/// Expired connections that opening one cleans up at most, so that it costs the same always.
const CLEANED_AT_ONCE: usize = 8;

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Echo,
    Udp,
    TcpOpening,
    TcpEstablished,
    TcpClosing,
}

impl Phase {
    fn class(self) -> AgeClass {
        match self {
            Self::Echo => AgeClass::Echo,
            Self::Udp => AgeClass::Udp,
            Self::TcpOpening | Self::TcpClosing => AgeClass::TcpTransitory,
            Self::TcpEstablished => AgeClass::TcpEstablished,
        }
    }
}

/// A connection of a guest with a remote endpoint. An echo's identifier is the guest's port, and
/// the remote one's is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Connection {
    pub transport: Transport,
    pub inside: SocketAddrV4,
    pub remote: SocketAddrV4,
    /// The uplink's port (or identifier) that stands for `inside`.
    pub outside_port: u16,
    /// It came in through a forward.
    pub forwarded: bool,
    pub last_used_ns: u64,
    tcp: TcpTrack,
}

impl Connection {
    pub fn phase(&self) -> Phase {
        match self.transport {
            Transport::Udp => Phase::Udp,
            Transport::IcmpEcho => Phase::Echo,
            Transport::Tcp if self.tcp.is_closing() => Phase::TcpClosing,
            Transport::Tcp if self.tcp.is_established() => Phase::TcpEstablished,
            Transport::Tcp => Phase::TcpOpening,
        }
    }
}

/// How a connection came to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// A guest opened it and gets a port outside.
    Inside,
    /// It came in at a forward's port.
    Forward { port: u16 },
}

#[derive(Debug)]
pub(crate) struct Connections {
    entries: Box<[Option<Connection>]>,
    free: Vec<Place>,
    from_inside: Index,
    from_outside: Index,
    ages: AgeLists,
    mappings: Mappings,
    shares: Shares,
    hasher: Hasher,
    timeouts: Timeouts,
    pub made: u64,
    pub expired: u64,
    pub evicted: u64,
}

impl Connections {
    pub fn new(settings: &Settings) -> Self {
        let places = settings.connections as usize;
        let hasher = Hasher::new(settings.hash_key);
        Self {
            entries: vec![None; places].into_boxed_slice(),
            free: (0..settings.connections).collect(),
            from_inside: Index::new(places),
            from_outside: Index::new(places),
            ages: AgeLists::new(places),
            mappings: Mappings::new(places, hasher, settings.ports.clone(), settings.port_seed),
            shares: Shares::new(settings.connections_per_guest),
            hasher,
            timeouts: settings.timeouts,
            made: 0,
            expired: 0,
            evicted: 0,
        }
    }

    /// The connection that a packet from a guest belongs to, if it has not expired.
    pub fn find_from_inside(
        &mut self,
        transport: Transport,
        inside: SocketAddrV4,
        remote: SocketAddrV4,
        now_ns: u64,
    ) -> Option<Place> {
        let is_it = |c: &Connection| (c.transport, c.inside, c.remote) == (transport, inside, remote);
        let hash = self.hasher.pair(transport, inside, remote);
        let place = self.from_inside.find(hash, |place| self.get(place).is_some_and(is_it))?;
        self.unless_expired(place, now_ns)
    }

    /// The connection that a packet to an outside port belongs to, if it has not expired.
    pub fn find_from_outside(
        &mut self,
        transport: Transport,
        outside_port: u16,
        remote: SocketAddrV4,
        now_ns: u64,
    ) -> Option<Place> {
        let is_it =
            |c: &Connection| (c.transport, c.outside_port, c.remote) == (transport, outside_port, remote);
        let hash = self.hasher.port_to(transport, outside_port, remote);
        let place = self.from_outside.find(hash, |place| self.get(place).is_some_and(is_it))?;
        self.unless_expired(place, now_ns)
    }

    pub fn get(&self, place: Place) -> Option<&Connection> {
        self.entries.get(place as usize)?.as_ref()
    }

    /// Notes a packet of a connection.
    pub fn used(&mut self, place: Place, from: Side, flags: Option<TcpFlags>, now_ns: u64) {
        let Some(connection) = self.entries.get_mut(place as usize).and_then(Option::as_mut) else { return };
        let before = connection.phase().class();
        connection.last_used_ns = now_ns;
        if let Some(flags) = flags {
            connection.tcp.segment(from, flags);
        }
        let after = connection.phase().class();
        self.ages.remove(before, place);
        self.ages.push(after, place);
    }

    /// Opens a connection, for which `find_*` found none.
    pub fn open(
        &mut self,
        origin: Origin,
        transport: Transport,
        inside: SocketAddrV4,
        remote: SocketAddrV4,
        now_ns: u64,
        may_use_port: impl Fn(u16) -> bool,
    ) -> Result<Place, DropReason> {
        self.expire(now_ns, CLEANED_AT_ONCE);
        if let Origin::Forward { .. } = origin {
            // Its answers would be taken for those of the connection that is there.
            if self.find_from_inside(transport, inside, remote, now_ns).is_some() {
                return Err(DropReason::Collision);
            }
        }
        if !self.shares.may_take(*inside.ip()) {
            return Err(DropReason::ShareUsed);
        }
        if self.free.is_empty() {
            self.evict(now_ns)?;
        }
        let (outside_port, forwarded) = match origin {
            Origin::Forward { port } => (port, true),
            Origin::Inside => {
                let port = self.mappings.acquire(transport, inside, may_use_port);
                (port.ok_or(DropReason::NoPort)?, false)
            }
        };
        let tcp = TcpTrack::default();
        let last_used_ns = now_ns;
        let connection = Connection { transport, inside, remote, outside_port, forwarded, last_used_ns, tcp };
        let place = self.free.pop().ok_or(DropReason::TableFull)?;
        self.entries[place as usize] = Some(connection);
        self.from_inside.insert(self.hasher.pair(transport, inside, remote), place);
        self.from_outside.insert(self.hasher.port_to(transport, outside_port, remote), place);
        self.ages.push(connection.phase().class(), place);
        self.shares.take(*inside.ip());
        self.made += 1;
        Ok(place)
    }

    /// Whether a guest's connections use this outside port.
    pub fn uses_port(&self, transport: Transport, port: u16) -> bool {
        self.mappings.is_used(transport, port)
    }

    /// Ends connections that were idle too long, `most` at most; tells how many.
    pub fn expire(&mut self, now_ns: u64, most: usize) -> usize {
        let mut ended = 0;
        for class in AgeClass::ALL {
            while ended < most {
                let Some(place) = self.ages.oldest(class).filter(|&place| self.is_expired(place, now_ns))
                else {
                    break;
                };
                self.close(place);
                ended += 1;
            }
        }
        self.expired += ended as u64;
        ended
    }

    /// Ends the connections that `are_these`. A walk of the whole table, for a person's commands.
    pub fn close_all(&mut self, are_these: impl Fn(&Connection) -> bool) {
        for place in (0..).take(self.entries.len()) {
            if self.get(place).is_some_and(&are_these) {
                self.close(place);
            }
        }
    }

    /// Ends all connections, which have lost their outside address.
    pub fn clear(&mut self) {
        self.entries.fill(None);
        self.free.clear();
        self.free.extend((0..).take(self.entries.len()));
        self.from_inside.clear();
        self.from_outside.clear();
        self.ages.clear();
        self.mappings.clear();
        self.shares.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.entries.iter().flatten()
    }

    /// How many there are, expired ones that nobody has looked at among them.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Makes room: what is transitory first, then an echo, then a UDP connection that has been
    /// silent for as long as any must be kept.
    fn evict(&mut self, now_ns: u64) -> Result<(), DropReason> {
        let silent_ns = |place: Place| {
            self.get(place).map_or(0, |connection| now_ns.saturating_sub(connection.last_used_ns))
        };
        let candidates = [
            self.ages.oldest(AgeClass::TcpTransitory),
            self.ages.oldest(AgeClass::Echo),
            self.ages.oldest(AgeClass::Udp).filter(|&place| silent_ns(place) >= UDP_LEAST_IDLE_NS),
        ];
        let place = candidates.into_iter().flatten().next().ok_or(DropReason::TableFull)?;
        self.close(place);
        self.evicted += 1;
        Ok(())
    }

    fn unless_expired(&mut self, place: Place, now_ns: u64) -> Option<Place> {
        if self.is_expired(place, now_ns) {
            self.close(place);
            self.expired += 1;
            return None;
        }
        Some(place)
    }

    fn is_expired(&self, place: Place, now_ns: u64) -> bool {
        self.get(place).is_some_and(|connection| {
            let idle_ns = match connection.phase().class() {
                AgeClass::TcpTransitory => self.timeouts.tcp_transitory_ns,
                AgeClass::TcpEstablished => self.timeouts.tcp_established_ns,
                AgeClass::Udp => self.timeouts.udp_ns,
                AgeClass::Echo => self.timeouts.echo_ns,
            };
            now_ns.saturating_sub(connection.last_used_ns) > idle_ns
        })
    }

    fn close(&mut self, place: Place) {
        let Some(connection) = self.entries.get_mut(place as usize).and_then(Option::take) else { return };
        let Connection { transport, inside, remote, outside_port, forwarded, .. } = connection;
        self.ages.remove(connection.phase().class(), place);
        self.from_inside.remove(self.hasher.pair(transport, inside, remote), place);
        self.from_outside.remove(self.hasher.port_to(transport, outside_port, remote), place);
        self.shares.give_back(*inside.ip());
        if !forwarded {
            self.mappings.release(transport, inside);
        }
        self.free.push(place);
    }
}
