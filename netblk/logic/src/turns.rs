//! Whose request is next.
//!
//! Requests wait in a queue for each client, and the clients with something queued take turns: in each a
//! client may have up to [`QUANTUM`] datagrams' worth handed to the disk (deficit round robin, Shreedhar
//! and Varghese, SIGCOMM 1995, without carrying the deficit over: no request is worth more than the
//! quantum). A disk's own queue is first come, first served, so whoever fills that would make the others
//! wait all the same. Hence, while others are about, a client has only its part of [`SHARED_DEPTH`]
//! datagrams between the hand-over and the card. "About" is counted, not timed: a client is, until
//! [`MEMORY`] requests have been handed over since its last one.
//!
//! A client's own requests keep their order. One that cannot start yet (it overlaps an older write) blocks
//! its client alone.

use alloc::boxed::Box;
use alloc::vec;

use crate::share::ROOM;

/// Clients that are told apart: sessions, and addresses that use version 1, by hash.
pub const CLIENTS: usize = 128;

/// A client, less than [`CLIENTS`].
pub type Client = u8;

/// What a client may hand over in one turn, in datagrams.
pub const QUANTUM: u32 = 8;

/// Datagrams of all clients that are under way at once while several are about.
pub const SHARED_DEPTH: u32 = 64;

/// The least that a client may have under way, however many are about.
pub const LEAST_DEPTH: u32 = 8;

/// After so many requests of others a client is no longer about.
pub const MEMORY: u64 = 1024;

/// After so many requests those that are about are counted again.
const COUNT_EVERY: u64 = 256;

/// No slot: the end of a queue.
const NONE: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Queue {
    head: u16,
    tail: u16,
    /// Its first request cannot start: not before [`Turns::unblock`].
    blocked: bool,
    /// It is in the circle.
    waits: bool,
    /// Datagrams between the hand-over and the card.
    under_way: u32,
    /// When it handed over last, in requests handed over by all; 0: never.
    last: u64,
}

/// What is queued in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Whose it is.
    pub client: Client,
    /// Which slot.
    pub slot: u32,
    /// How many datagrams it is worth, from 1 to [`QUANTUM`].
    pub datagrams: u32,
}

/// See the module.
pub struct Turns {
    queues: Box<[Queue]>,
    /// By slot: the next one in its queue, and its worth.
    links: Box<[(u16, u8)]>,
    /// The clients with something queued, in the order of their turns.
    circle: Box<[Client]>,
    first: usize,
    waiting: usize,
    /// What is left of the turn of the first of the circle.
    left: u32,
    queued: usize,
    any_blocked: bool,
    handed_over: u64,
    /// What each client may have under way, as of the last count of those that are about.
    depth: u32,
    /// When they are counted again.
    count_at: u64,
}

impl Turns {
    /// Nothing is queued.
    pub fn new() -> Self {
        let queue = Queue { head: NONE, tail: NONE, blocked: false, waits: false, under_way: 0, last: 0 };
        Self {
            queues: vec![queue; CLIENTS].into_boxed_slice(),
            links: vec![(NONE, 0); ROOM as usize].into_boxed_slice(),
            circle: vec![0; CLIENTS].into_boxed_slice(),
            first: 0,
            waiting: 0,
            left: QUANTUM,
            queued: 0,
            any_blocked: false,
            handed_over: 0,
            depth: ROOM,
            count_at: 0,
        }
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Appends a request to its client's queue.
    pub fn push(&mut self, request: Queued) {
        let Queued { client, slot, datagrams } = request;
        // A slot's number is less than ROOM, and a worth at most QUANTUM.
        let number = slot as u16;
        self.links[slot as usize] = (NONE, datagrams as u8);
        let queue = &mut self.queues[usize::from(client)];
        match queue.tail {
            NONE => queue.head = number,
            tail => self.links[usize::from(tail)].0 = number,
        }
        queue.tail = number;
        self.queued += 1;
        if !queue.waits {
            self.join_circle(client);
        }
    }

    /// Takes the request whose turn it is, if one may start. It counts as under way.
    pub fn take(&mut self) -> Option<Queued> {
        // Once more than there are: the first may have had part of its turn before.
        let mut looks = self.waiting;
        while self.waiting > 0 {
            let client = self.circle[self.first];
            let queue = &mut self.queues[usize::from(client)];
            let slot = queue.head;
            let (next, datagrams) = self.links[usize::from(slot)];
            let worth = u32::from(datagrams);
            if queue.blocked || queue.under_way + worth > self.depth || worth > self.left {
                if looks == 0 {
                    return None;
                }
                looks -= 1;
                self.rotate();
                continue;
            }
            queue.head = next;
            queue.under_way += worth;
            self.left -= worth;
            self.queued -= 1;
            self.handed_over += 1;
            queue.last = self.handed_over;
            if next == NONE {
                queue.tail = NONE;
                self.leave_circle();
            }
            if self.handed_over >= self.count_at {
                self.count();
            }
            return Some(Queued { client, slot: u32::from(slot), datagrams: worth });
        }
        None
    }

    /// Puts a request back that could not start, in front of its client's queue; the client is passed over
    /// until [`Turns::unblock`].
    pub fn put_back(&mut self, request: Queued) {
        let Queued { client, slot, datagrams } = request;
        let queue = &mut self.queues[usize::from(client)];
        queue.under_way = queue.under_way.saturating_sub(datagrams);
        queue.blocked = true;
        self.any_blocked = true;
        self.links[slot as usize] = (queue.head, datagrams as u8);
        if queue.head == NONE {
            queue.tail = slot as u16;
        }
        queue.head = slot as u16;
        self.queued += 1;
        if !queue.waits {
            self.join_circle(client);
        }
    }

    /// Something has changed that a blocked request may have waited for.
    pub fn unblock(&mut self) {
        if core::mem::take(&mut self.any_blocked) {
            for queue in &mut self.queues {
                queue.blocked = false;
            }
        }
    }

    /// Some of a client's datagrams are with the card, or gone.
    pub fn done(&mut self, client: Client, datagrams: u32) {
        let queue = &mut self.queues[usize::from(client)];
        queue.under_way = queue.under_way.saturating_sub(datagrams);
    }

    /// Takes out every request that waits, in no particular order.
    pub fn drain(&mut self) -> impl Iterator<Item = Queued> + '_ {
        core::iter::from_fn(|| {
            self.unblock();
            if self.waiting == 0 {
                return None;
            }
            let client = self.circle[self.first];
            self.queues[usize::from(client)].under_way = 0;
            self.left = QUANTUM;
            self.take()
        })
    }

    /// Counts who is about, and so how much of a client's may be under way. Who is about changes slowly:
    /// now and then is enough, and when someone comes who was not.
    fn count(&mut self) {
        let now = self.handed_over;
        let is_about = |queue: &&Queue| {
            queue.waits || queue.under_way > 0 || (queue.last > 0 && now - queue.last < MEMORY)
        };
        // As many as there are clients.
        let about = self.queues.iter().filter(is_about).count() as u32;
        self.depth = if about <= 1 { ROOM } else { (SHARED_DEPTH / about).max(LEAST_DEPTH) };
        self.count_at = now + COUNT_EVERY;
    }

    fn join_circle(&mut self, client: Client) {
        self.circle[(self.first + self.waiting) % CLIENTS] = client;
        self.waiting += 1;
        let queue = &mut self.queues[usize::from(client)];
        queue.waits = true;
        let was_about = queue.under_way > 0 || (queue.last > 0 && self.handed_over - queue.last < MEMORY);
        if !was_about {
            self.count();
        }
    }

    /// The first of the circle has nothing queued any more.
    fn leave_circle(&mut self) {
        self.queues[usize::from(self.circle[self.first])].waits = false;
        self.first = (self.first + 1) % CLIENTS;
        self.waiting -= 1;
        self.left = QUANTUM;
    }

    /// The first of the circle has had its turn.
    fn rotate(&mut self) {
        self.circle[(self.first + self.waiting) % CLIENTS] = self.circle[self.first];
        self.first = (self.first + 1) % CLIENTS;
        self.left = QUANTUM;
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
