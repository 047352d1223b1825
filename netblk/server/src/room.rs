//! How much of a service's room is taken, and by whom: what `netblk_logic::admits` decides about.
//!
//! A datagram's room is taken when its request is accepted and given back when the card has taken its
//! reply, or when there will be none. The receive softirq takes, and may change its mind; the worker gives
//! back. Each side has figures of its own that it alone changes, so that neither needs an atomic
//! read-modify-write; what is held is their difference.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use netblk_logic::{CLIENTS, Client, admits};

/// Who changes a figure: only one task at a time is either.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Softirq,
    Worker,
}

/// What the softirq has taken and the worker has given back, modulo 2^32.
#[derive(Default)]
struct Account {
    taken: AtomicU32,
    given: AtomicU32,
}

impl Account {
    fn held(&self) -> u32 {
        // Softirq and worker never see more given than taken; who only shows the figures might.
        let held = self.taken.load(Relaxed).wrapping_sub(self.given.load(Relaxed));
        if held > u32::MAX / 2 { 0 } else { held }
    }

    fn take(&self, datagrams: u32) {
        self.taken.store(self.taken.load(Relaxed).wrapping_add(datagrams), Relaxed);
    }

    fn give(&self, side: Side, datagrams: u32) {
        match side {
            Side::Softirq => self.taken.store(self.taken.load(Relaxed).wrapping_sub(datagrams), Relaxed),
            Side::Worker => self.given.store(self.given.load(Relaxed).wrapping_add(datagrams), Relaxed),
        }
    }
}

pub(crate) struct Room {
    all: Account,
    own: Box<[Account]>,
}

impl Room {
    pub fn new() -> Self {
        Self { all: Account::default(), own: (0..CLIENTS).map(|_| Account::default()).collect() }
    }

    /// Takes room for so many datagrams of a client, or none. Receive softirq only.
    #[must_use]
    pub fn take(&self, client: Client, datagrams: u32) -> bool {
        let own = &self.own[usize::from(client)];
        let admitted = admits(datagrams, own.held(), self.all.held());
        if admitted {
            own.take(datagrams);
            self.all.take(datagrams);
        }
        admitted
    }

    pub fn give(&self, side: Side, client: Client, datagrams: u32) {
        self.own[usize::from(client)].give(side, datagrams);
        self.all.give(side, datagrams);
    }

    /// What a client holds.
    pub fn held_by(&self, client: Client) -> u32 {
        self.own[usize::from(client)].held()
    }

    /// What all hold.
    pub fn held(&self) -> u32 {
        self.all.held()
    }
}
