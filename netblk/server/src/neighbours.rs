//! Who uses version 1. It has no sessions, so the addresses are told apart by their hash: no table that a
//! forged source could fill. Two addresses with the same hash share their turn and their room.

use alloc::boxed::Box;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use netblk_logic::{CLIENTS, Client, MOST_SESSIONS};

use crate::counters::Counter;

/// Hash values; the clients behind those that are sessions.
const HASHES: usize = CLIENTS - MOST_SESSIONS;

const _: () = assert!(HASHES.is_power_of_two() && CLIENTS <= Client::MAX as usize + 1);

/// What is known of one hash value.
#[derive(Default)]
struct Entry {
    /// The address that came last, 0: none yet.
    address: AtomicU32,
    since_ns: AtomicU64,
    requests: Counter,
}

/// See the module.
pub(crate) struct Neighbours {
    entries: Box<[Entry]>,
}

/// An address that uses version 1, for `netblk list`.
#[derive(Debug, Clone, Copy)]
pub struct Neighbour {
    /// The last with its hash.
    pub address: Ipv4Addr,
    /// When it first came.
    pub since_ns: u64,
    /// Its requests, and those of others with its hash.
    pub requests: u64,
    /// Which client it is.
    pub client: Client,
}

impl Neighbours {
    pub fn new() -> Self {
        Self { entries: (0..HASHES).map(|_| Entry::default()).collect() }
    }

    /// A request has come from an address. Receive softirq only.
    pub fn heard(&self, address: Ipv4Addr, now_ns: impl FnOnce() -> u64) -> Client {
        // Fibonacci hashing: the top bits of the product, to which all bits of the address contribute.
        let hash = address.to_bits().wrapping_mul(0x9E37_79B9) >> (u32::BITS - HASHES.trailing_zeros());
        let entry = &self.entries[hash as usize];
        if entry.address.load(Relaxed) != address.to_bits() {
            entry.address.store(address.to_bits(), Relaxed);
            entry.since_ns.store(now_ns(), Relaxed);
        }
        entry.requests.one();
        // Less than CLIENTS.
        (MOST_SESSIONS + hash as usize) as Client
    }

    /// Those that came so far.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> {
        self.entries.iter().enumerate().filter(|(_, entry)| entry.address.load(Relaxed) != 0).map(
            |(hash, entry)| Neighbour {
                address: Ipv4Addr::from(entry.address.load(Relaxed)),
                since_ns: entry.since_ns.load(Relaxed),
                requests: entry.requests.get(),
                client: (MOST_SESSIONS + hash) as Client,
            },
        )
    }
}
