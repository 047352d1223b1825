//! Where things are found: a hash index over the numbers of an array's places.

use alloc::boxed::Box;
use alloc::vec;
use core::net::SocketAddrV4;

use netwire::Transport;

/// The number of a place in one of the tables' arrays.
pub(crate) type Place = u32;

/// No place.
pub(crate) const NOWHERE: Place = Place::MAX;

/// Chains of places by hash, in two arrays made once. The index holds no keys: whoever looks
/// something up compares each candidate with the entry itself.
#[derive(Debug)]
pub(crate) struct Index {
    /// First place of each chain; a power of two of them.
    heads: Box<[Place]>,
    /// Next place in the chain of each place.
    next: Box<[Place]>,
}

impl Index {
    /// An index over `places` places.
    pub fn new(places: usize) -> Self {
        Self {
            heads: vec![NOWHERE; places.max(1).next_power_of_two()].into_boxed_slice(),
            next: vec![NOWHERE; places].into_boxed_slice(),
        }
    }

    pub fn insert(&mut self, hash: u64, place: Place) {
        let head = self.chain(hash);
        self.next[place as usize] = self.heads[head];
        self.heads[head] = place;
    }

    /// Takes out a place that was inserted with this hash.
    pub fn remove(&mut self, hash: u64, place: Place) {
        let head = self.chain(hash);
        let after = self.next[place as usize];
        if self.heads[head] == place {
            self.heads[head] = after;
            return;
        }
        let mut at = self.heads[head];
        while at != NOWHERE {
            let next = self.next[at as usize];
            if next == place {
                self.next[at as usize] = after;
                return;
            }
            at = next;
        }
    }

    /// The first place of the hash's chain that `is_it`.
    pub fn find(&self, hash: u64, is_it: impl Fn(Place) -> bool) -> Option<Place> {
        let mut at = self.heads[self.chain(hash)];
        while at != NOWHERE {
            if is_it(at) {
                return Some(at);
            }
            at = self.next[at as usize];
        }
        None
    }

    pub fn clear(&mut self) {
        self.heads.fill(NOWHERE);
    }

    fn chain(&self, hash: u64) -> usize {
        // The high bits are the well mixed ones; the mask makes it a chain's number.
        ((hash >> 32) & (self.heads.len() as u64 - 1)) as usize
    }
}

/// The hash of endpoints. Keyed, so that nobody outside can aim at one chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher {
    key: u64,
}

impl Hasher {
    pub const fn new(key: u64) -> Self {
        Self { key }
    }

    pub fn pair(self, transport: Transport, one: SocketAddrV4, other: SocketAddrV4) -> u64 {
        self.mix(self.one(transport, one) ^ bits(other))
    }

    pub fn one(self, transport: Transport, endpoint: SocketAddrV4) -> u64 {
        self.mix(bits(endpoint) | (transport as u64) << 48)
    }

    /// An outside port towards one remote endpoint.
    pub fn port_to(self, transport: Transport, port: u16, remote: SocketAddrV4) -> u64 {
        self.mix(self.port(transport, port) ^ bits(remote))
    }

    pub fn port(self, transport: Transport, port: u16) -> u64 {
        self.mix(u64::from(port) | (transport as u64) << 48)
    }

    fn mix(self, value: u64) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 over the golden ratio
        let mixed = (value ^ self.key).wrapping_mul(ODD);
        (mixed ^ (mixed >> 29) ^ self.key.rotate_left(32)).wrapping_mul(ODD)
    }
}

fn bits(endpoint: SocketAddrV4) -> u64 {
    u64::from(endpoint.ip().to_bits()) << 16 | u64::from(endpoint.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_found_until_it_is_removed() {
        // Four chains for sixteen places, so that they are long.
        let mut index = Index { heads: vec![NOWHERE; 4].into(), next: vec![NOWHERE; 16].into() };
        let hash = |place: Place| Hasher::new(5).mix(u64::from(place));
        for place in 0..16 {
            index.insert(hash(place), place);
        }
        for gone in [3, 0, 15, 7] {
            index.remove(hash(gone), gone);
        }
        for place in 0..16 {
            let found = index.find(hash(place), |candidate| candidate == place);
            assert_eq!(found.is_some(), ![3, 0, 15, 7].contains(&place));
        }
    }
}
