//! Which outside port a guest's port has.
//!
//! A mapping is made with the first connection from a guest's port and lasts as long as any of
//! them (endpoint-independent mapping, RFC 4787 REQ-1). Ports are chosen at random, so that an
//! outsider cannot guess the next one (RFC 6056), from a range of the NAT's own.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::net::SocketAddrV4;
use core::ops::RangeInclusive;

use netwire::Transport;

use crate::index::{Hasher, Index, Place};

/// Ports looked at for a free one. The tables are far smaller than the range, so the first is
/// nearly always free; the bound is for a caller whose ranges are not.
const MOST_PROBES: u32 = 1024;

#[derive(Clone, Copy, Debug)]
struct Mapping {
    transport: Transport,
    inside: SocketAddrV4,
    port: u16,
    /// Connections that use it; none if the place is free.
    connections: u32,
}

#[derive(Debug)]
pub(crate) struct Mappings {
    mappings: Box<[Mapping]>,
    free: Vec<Place>,
    by_inside: Index,
    by_port: Index,
    hasher: Hasher,
    ports: RangeInclusive<u16>,
    random: u64,
}

impl Mappings {
    pub fn new(places: usize, hasher: Hasher, ports: RangeInclusive<u16>, seed: u64) -> Self {
        let empty = Mapping {
            transport: Transport::Udp,
            inside: SocketAddrV4::new(core::net::Ipv4Addr::UNSPECIFIED, 0),
            port: 0,
            connections: 0,
        };
        let mut mappings = Self {
            mappings: vec![empty; places].into_boxed_slice(),
            free: Vec::with_capacity(places),
            by_inside: Index::new(places),
            by_port: Index::new(places),
            hasher,
            ports,
            random: seed | 1, // the generator's one fixed point is 0
        };
        mappings.clear();
        mappings
    }

    /// The outside port for a new connection from `inside`: the one it has, or a fresh one that
    /// `may_use` allows and no other guest's port has. `None` if there is none.
    pub fn acquire(
        &mut self,
        transport: Transport,
        inside: SocketAddrV4,
        may_use: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        if let Some(place) = self.find_inside(transport, inside) {
            self.mappings[place as usize].connections += 1;
            return Some(self.mappings[place as usize].port);
        }
        let port = self.free_port(transport, may_use)?;
        let place = self.free.pop()?;
        self.mappings[place as usize] = Mapping { transport, inside, port, connections: 1 };
        self.by_inside.insert(self.hasher.one(transport, inside), place);
        self.by_port.insert(self.hasher.port(transport, port), place);
        Some(port)
    }

    /// A connection from `inside` has ended.
    pub fn release(&mut self, transport: Transport, inside: SocketAddrV4) {
        let Some(place) = self.find_inside(transport, inside) else { return };
        let mapping = &mut self.mappings[place as usize];
        mapping.connections -= 1;
        if mapping.connections == 0 {
            let port = mapping.port;
            self.free.push(place);
            self.by_inside.remove(self.hasher.one(transport, inside), place);
            self.by_port.remove(self.hasher.port(transport, port), place);
        }
    }

    /// Whether a guest's port has this outside port.
    pub fn is_used(&self, transport: Transport, port: u16) -> bool {
        let is_it = |place: Place| {
            let mapping = &self.mappings[place as usize];
            (mapping.transport, mapping.port) == (transport, port)
        };
        self.by_port.find(self.hasher.port(transport, port), is_it).is_some()
    }

    pub fn clear(&mut self) {
        self.by_inside.clear();
        self.by_port.clear();
        self.free.clear();
        self.free.extend((0..).take(self.mappings.len()));
    }

    fn find_inside(&self, transport: Transport, inside: SocketAddrV4) -> Option<Place> {
        self.by_inside.find(self.hasher.one(transport, inside), |place| {
            let mapping = &self.mappings[place as usize];
            (mapping.transport, mapping.inside) == (transport, inside)
        })
    }

    /// A port from a random place of the range on.
    fn free_port(&mut self, transport: Transport, may_use: impl Fn(u16) -> bool) -> Option<u16> {
        let (first, last) = (u32::from(*self.ports.start()), u32::from(*self.ports.end()));
        let count = (last + 1).checked_sub(first).filter(|&count| count > 0)?;
        let start = self.next_random() % count;
        (0..count.min(MOST_PROBES))
            .filter_map(|step| u16::try_from(first + (start + step) % count).ok())
            .find(|&port| may_use(port) && !self.is_used(transport, port))
    }

    /// Marsaglia's xorshift64: unguessable enough for ports, whose number is small anyway.
    fn next_random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }
}
