//! How much of a service's room is taken, and by whom: what `netblk_logic::admits` decides about.
//!
//! A datagram's room is taken when its request is accepted and given back when the card has taken its
//! reply, or when there will be none. Only the receive softirq takes, so that nobody comes between its
//! look and its taking; anyone gives back.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use netblk_logic::{CLIENTS, Client, admits};

pub(crate) struct Room {
    all: AtomicU32,
    own: Box<[AtomicU32]>,
}

impl Room {
    pub fn new() -> Self {
        Self { all: AtomicU32::new(0), own: (0..CLIENTS).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Takes room for so many datagrams of a client, or none. Receive softirq only.
    #[must_use]
    pub fn take(&self, client: Client, datagrams: u32) -> bool {
        let own = &self.own[usize::from(client)];
        let admitted = admits(datagrams, own.load(Relaxed), self.all.load(Relaxed));
        if admitted {
            own.fetch_add(datagrams, Relaxed);
            self.all.fetch_add(datagrams, Relaxed);
        }
        admitted
    }

    pub fn give(&self, client: Client, datagrams: u32) {
        self.own[usize::from(client)].fetch_sub(datagrams, Relaxed);
        self.all.fetch_sub(datagrams, Relaxed);
    }

    /// What a client holds.
    pub fn held_by(&self, client: Client) -> u32 {
        self.own[usize::from(client)].load(Relaxed)
    }

    /// What all hold.
    pub fn held(&self) -> u32 {
        self.all.load(Relaxed)
    }
}
