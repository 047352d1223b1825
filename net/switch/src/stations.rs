//! Where stations are: the filtering database (IEEE 802.1Q-2018 section 8.8).
//!
//! A table of fixed size, made once: sets of [`WAYS`] entries, an address belonging to the set its
//! hash names. A lookup reads one set, two cache lines; there is nothing to rehash and no worst
//! case beyond it. When a set is full, the entry that was silent longest gives way, but never a
//! bound one.
//!
//! The hash is keyed, so that a guest cannot choose addresses that fall into one set.

use alloc::boxed::Box;
use alloc::vec;

use netwire::MacAddr;

use crate::port::PortId;

/// Entries of a set.
const WAYS: usize = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub mac: MacAddr,
    pub port: PortId,
    pub bound: bool,
    /// When it last sent; not meaningful if bound.
    pub seen_ns: u64,
}

/// What [`Stations::learn`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learned {
    /// It was known there already.
    Known,
    /// It is new, or was too long ago. If an entry gave way, it was this port's.
    New { evicted: Option<PortId> },
    /// It was at this port before.
    Moved { from: PortId },
    /// It is bound to this port; a bound address is never learned.
    Bound { to: PortId },
    /// Every entry it could have is bound, or is not this port's to take.
    NoRoom,
}

#[derive(Debug)]
pub(crate) struct Stations {
    sets: Box<[[Option<Entry>; WAYS]]>,
    key: u64,
    ageing_ns: u64,
}

impl Stations {
    /// A table of at least `capacity` entries (a power of two of sets).
    pub fn new(capacity: usize, key: u64, ageing_ns: u64) -> Self {
        let sets = capacity.div_ceil(WAYS).next_power_of_two();
        Self { sets: vec![[None; WAYS]; sets].into_boxed_slice(), key, ageing_ns }
    }

    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    pub fn lookup(&self, mac: MacAddr, now_ns: u64) -> Option<Entry> {
        let set = &self.sets[self.set_of(mac)];
        set.iter().flatten().find(|entry| entry.mac == mac && self.is_current(entry, now_ns)).copied()
    }

    /// Notes that `mac` sent from `port`. A port that has its share of entries already gets
    /// another only in place of one of its own.
    pub fn learn(&mut self, mac: MacAddr, port: PortId, has_its_share: bool, now_ns: u64) -> Learned {
        let ageing_ns = self.ageing_ns;
        let set_index = self.set_of(mac);
        let set = &mut self.sets[set_index];
        if let Some(entry) = set.iter_mut().flatten().find(|entry| entry.mac == mac) {
            if entry.bound {
                return Learned::Bound { to: entry.port };
            }
            let was_current = now_ns.saturating_sub(entry.seen_ns) <= ageing_ns;
            let from = entry.port;
            *entry = Entry { mac, port, bound: false, seen_ns: now_ns };
            return match (was_current, from == port) {
                (true, true) => Learned::Known,
                (true, false) => Learned::Moved { from },
                // Counted at its old port still, so that leaves there as an eviction does.
                (false, _) => Learned::New { evicted: Some(from) },
            };
        }
        let may_take = |entry: Option<&Entry>| !has_its_share || entry.is_some_and(|e| e.port == port);
        let Some(place) = victim(set, may_take) else { return Learned::NoRoom };
        let evicted = set[place].map(|entry| entry.port);
        set[place] = Some(Entry { mac, port, bound: false, seen_ns: now_ns });
        Learned::New { evicted }
    }

    /// Binds `mac` to `port`, taking it from wherever it was learned. The entry that made room,
    /// or was the address's own, is returned; an error if all entries it could have are bound, or
    /// this address is bound already.
    pub fn bind(&mut self, mac: MacAddr, port: PortId) -> Result<Option<Entry>, Option<PortId>> {
        let set_index = self.set_of(mac);
        let set = &mut self.sets[set_index];
        let own = set.iter().position(|entry| entry.is_some_and(|entry| entry.mac == mac));
        if let Some(entry) = own.and_then(|place| set[place]).filter(|entry| entry.bound) {
            return Err(Some(entry.port));
        }
        let place = own.or_else(|| victim(set, |_| true)).ok_or(None)?;
        Ok(set[place].replace(Entry { mac, port, bound: true, seen_ns: 0 }))
    }

    /// Forgets all addresses of a port, bound ones too.
    pub fn forget_port(&mut self, port: PortId) {
        for entry in self.sets.iter_mut().flatten() {
            if entry.is_some_and(|entry| entry.port == port) {
                *entry = None;
            }
        }
    }

    /// All current entries, in no order.
    pub fn iter(&self, now_ns: u64) -> impl Iterator<Item = &Entry> {
        self.sets.iter().flatten().flatten().filter(move |entry| self.is_current(entry, now_ns))
    }

    fn is_current(&self, entry: &Entry, now_ns: u64) -> bool {
        entry.bound || now_ns.saturating_sub(entry.seen_ns) <= self.ageing_ns
    }

    /// Two rounds of multiply and fold, keyed before each: not cryptography, but to place many
    /// addresses into one set one must know the key.
    fn set_of(&self, mac: MacAddr) -> usize {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15; // 2^64 over the golden ratio
        let [a, b, c, d, e, f] = mac.0;
        let mut hash = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) ^ self.key;
        hash = hash.wrapping_mul(ODD);
        hash = (hash ^ (hash >> 29) ^ self.key.rotate_left(32)).wrapping_mul(ODD);
        // The high bits are the well mixed ones; the mask makes it a set's number.
        ((hash >> 32) & (self.sets.len() as u64 - 1)) as usize
    }
}

/// The place in a set that a new entry may have: a free one, else that of the longest silent
/// learned entry, among those that may be taken.
fn victim(set: &[Option<Entry>; WAYS], may_take: impl Fn(Option<&Entry>) -> bool) -> Option<usize> {
    let unbound = |entry: &Option<Entry>| !entry.is_some_and(|entry| entry.bound);
    let places = set.iter().enumerate().filter(|(_, entry)| unbound(entry) && may_take(entry.as_ref()));
    places.min_by_key(|(_, entry)| entry.map(|entry| entry.seen_ns)).map(|(place, _)| place)
}
