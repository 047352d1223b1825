//! What the parts of one service share.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use kcore::block::{CompletionSink, Disk, IoStatus};
use kcore::dma::DmaMemory;
use kcore::event::Event;
use kcore::frame::{FrameChain, NetFrame};
use kcore::net::NetDevice;
use kcore::sync::SpinLock;
use netblk_logic::{
    Access, Client, DATA_START, IDLE_NS, MOST_SESSIONS, Queued, Session, SessionPlace, Sessions,
    V2_DATA_START, write_headers,
};
use netblk_proto::{Limits, v2};
use netwire::UdpHeaders;
use rings::{Ring, Sleeper};
use stack::Stack;

use crate::counters::{Counters, Drop};
use crate::neighbours::Neighbours;
use crate::room::{Room, Side};
use crate::slot::{Cargo, End, Head, Job, Piece, SLOTS, Slot};

/// A ring with room for every slot; on the heap, for it is a good part of a task's stack.
type SlotRing = Box<Ring<SLOTS>>;

/// What is served, and to whom; fixed when the service starts.
pub(crate) struct Terms {
    /// Version 1's; `None`: a sector does not fit a datagram, and version 1 is not spoken.
    pub v1: Option<(Limits, netblk_proto::Info)>,
    pub v2: v2::Limits,
    pub v2_info: v2::Info,
    /// What the disk reads at once of a READ that takes several datagrams, whole datagrams of either
    /// version; 0: one datagram's worth, straight into its frame.
    pub page_bytes: u32,
    /// Pieces that the disk takes a WRITE's data in.
    pub disk_segments: usize,
    pub access: Access,
}

/// See the module.
pub(crate) struct Instance {
    pub terms: Terms,
    pub disk: Arc<dyn Disk>,
    pub stack: Arc<Stack>,
    pub card: Arc<dyn NetDevice>,
    slots: Box<[Slot]>,
    /// Producer: the worker. Consumer: the card's receive softirq.
    free: SlotRing,
    /// Producer: the card's receive softirq. Consumer: the worker.
    requests: SlotRing,
    /// Producers: the disk's interrupt handlers. Consumer: the worker.
    completions: SlotRing,
    /// The worker, as far as pushes to `requests` and `completions` are concerned.
    worker: Sleeper,
    /// Signalled for the worker when it sleeps and there is something to do.
    event: Event,
    stopping: AtomicBool,
    pub room: Room,
    /// The receive softirq's for every datagram of version 2, the worker's for the end of every numbered
    /// request; held for a few hundred instructions.
    pub sessions: SpinLock<Sessions<Piece>>,
    /// By place: the number of the session that lives there, for the worker to ask without the lock.
    live: Box<[AtomicU64]>,
    /// When a session may have been silent for too long; `u64::MAX` without sessions.
    expiry_ns: AtomicU64,
    /// Who uses version 1.
    pub neighbours: Neighbours,
    pub counters: Counters,
}

/// What travels through the ring of requests beside a slot's number, so that the worker need not look into the
/// slot to know whose turn it is.
const CLIENT_SHIFT: u32 = 16;
const WORTH_SHIFT: u32 = 24;

const _: () = assert!(SLOTS.is_power_of_two() && SLOTS <= 1 << CLIENT_SHIFT);

/// Why no push to these rings is refused: see the crate `rings`, "When `push` cannot fail".
const ROOM_FOR_ALL: &str = "a ring with one consumer has room for every slot";

impl Instance {
    pub fn new(terms: Terms, disk: Arc<dyn Disk>, stack: Arc<Stack>, sessions: Sessions<Piece>) -> Self {
        let card = stack.card().clone();
        Self {
            terms,
            disk,
            stack,
            card,
            slots: (0..SLOTS).map(|_| Slot::new()).collect(),
            free: Box::new(Ring::holding_every_number()),
            requests: Box::new(Ring::new()),
            completions: Box::new(Ring::new()),
            worker: Sleeper::new(),
            event: Event::new(),
            stopping: AtomicBool::new(false),
            room: Room::new(),
            sessions: SpinLock::new(sessions),
            live: (0..MOST_SESSIONS).map(|_| AtomicU64::new(0)).collect(),
            expiry_ns: AtomicU64::new(u64::MAX),
            neighbours: Neighbours::new(),
            counters: Counters::default(),
        }
    }

    pub fn slot(&self, number: u32) -> &Slot {
        &self.slots[number as usize]
    }

    /// Queues a job for the worker, whose room is taken already; gives its cargo back if no slot is
    /// free. Receive softirq only.
    pub fn queue(&self, job: Job, cargo: Cargo) -> Result<(), Cargo> {
        let Some(number) = self.free.pop() else { return Err(cargo) };
        self.slot(number).fill(job, cargo);
        let queued = number | u32::from(job.client) << CLIENT_SHIFT | u32::from(job.datagrams) << WORTH_SHIFT;
        self.requests.push(queued).expect(ROOM_FOR_ALL);
        self.rouse();
        Ok(())
    }

    /// Something was pushed: wakes the worker if it sleeps.
    fn rouse(&self) {
        if self.worker.rouse() {
            self.event.signal();
        }
    }

    /// Sleeps until there is something to do, `deadline_ns` (ns since boot) at the latest. Worker only.
    pub fn sleep(&self, deadline_ns: Option<u64>) {
        self.worker.lie_down();
        if !self.requests.has_next() && !self.completions.has_next() {
            match deadline_ns {
                Some(deadline_ns) => drop(self.event.wait_until(deadline_ns)),
                None => self.event.wait(),
            }
        }
        self.worker.get_up();
    }

    /// The next queued slot. Worker only.
    pub fn next_request(&self) -> Option<Queued> {
        let queued = self.requests.pop()?;
        Some(Queued {
            slot: queued % SLOTS as u32,
            // Eight bits each.
            client: (queued >> CLIENT_SHIFT) as u8,
            datagrams: queued >> WORTH_SHIFT,
        })
    }

    /// The next slot whose transfer ended. Worker only.
    pub fn next_completion(&self) -> Option<u32> {
        self.completions.pop()
    }

    /// Gives a slot back. Worker only.
    pub fn release(&self, number: u32) {
        self.free.push(number).expect(ROOM_FOR_ALL);
    }

    /// Slots that hold something; a figure to show.
    pub fn busy_slots(&self) -> usize {
        SLOTS - self.free.len_hint()
    }

    /// Slots that are not as they were made. For after the end: none may be.
    pub fn slots_in_use(&self) -> usize {
        self.slots.iter().filter(|slot| !slot.is_empty()).count()
    }

    /// Asks the worker to end.
    pub fn stop(&self) {
        self.stopping.store(true, Release);
        self.event.signal();
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Acquire)
    }

    /// A session began at a place.
    pub fn session_begins(&self, place: SessionPlace, id: u64, now_ns: u64) {
        self.live[place].store(id, Release);
        self.expiry_ns.fetch_min(now_ns.saturating_add(IDLE_NS), Relaxed);
        // It may sleep for longer than that.
        self.event.signal();
        self.counters.connects.one();
    }

    /// A session ended: what is queued in it will not be carried out, and the pieces it held are free.
    pub fn session_ends(&self, side: Side, place: SessionPlace, session: &Session<Piece>) {
        self.live[place].store(0, Release);
        let pieces = session.assemblies.pieces();
        self.room.give(side, client_at(place), pieces as u32);
        (0..pieces).for_each(|_| self.counters.dropped(Drop::GivenUp));
    }

    /// Whether a session lives. What was queued before it ended may be asked about after another began at
    /// its place: that one has another number.
    pub fn is_live(&self, session: u64) -> bool {
        self.live[session as usize % MOST_SESSIONS].load(Acquire) == session
    }

    /// When to look for silent sessions, if there are sessions.
    pub fn expiry_ns(&self) -> Option<u64> {
        Some(self.expiry_ns.load(Relaxed)).filter(|&at_ns| at_ns != u64::MAX)
    }

    /// Ends the sessions that were silent for too long. Worker only.
    pub fn expire_sessions(&self, now_ns: u64) {
        let mut sessions = self.sessions.lock();
        let next =
            sessions.expire(now_ns, &mut |place, session| self.session_ends(Side::Worker, place, &session));
        // With the lock, so that no session begins in between.
        self.expiry_ns.store(next.unwrap_or(u64::MAX), Relaxed);
    }

    /// Ends every session. Worker only.
    pub fn end_sessions(&self) {
        let mut sessions = self.sessions.lock();
        for place in 0..MOST_SESSIONS {
            sessions.end(place, &mut |place, session| self.session_ends(Side::Worker, place, &session));
        }
    }

    /// Writes a reply's headers in front of `data_bytes` of data that are in place, in the frame itself or
    /// behind it. `body` is what of the data a tag covers.
    pub fn address(
        &self,
        frame: &mut NetFrame,
        addresses: &UdpHeaders,
        head: &Head,
        data_bytes: usize,
        body: &[u8],
    ) {
        let whole = &mut frame.whole_mut()[..];
        // `Limits` holds data to what a datagram carries, so neither is ever too long.
        let headers = match head {
            Head::V1(reply) => {
                self.counters.reply(reply.status.into());
                let written = write_headers(whole, addresses, &reply.to_bytes(), data_bytes);
                written.map_or(DATA_START, |_| DATA_START)
            }
            Head::V2(reply, key) => {
                self.counters.reply(reply.status);
                let sealed = reply.seal(key.as_ref(), data_bytes, body);
                let written = write_headers(whole, addresses, &sealed, data_bytes);
                written.map_or(V2_DATA_START, |_| V2_DATA_START)
            }
        };
        frame.set_len(headers);
    }

    /// Hands replies to the card; those it has no room for stay in the chain.
    pub fn send(&self, chain: &mut FrameChain) -> usize {
        self.counters.batches.one();
        self.card.transmit(chain)
    }
}

/// The client that a session is, for turns and room. Places are fewer than clients.
pub(crate) const fn client_at(place: SessionPlace) -> Client {
    place as Client
}

/// The disk's side, in interrupt context: push, wake whoever sleeps, nothing more.
impl CompletionSink for Instance {
    fn complete(&self, cookie: u64, status: IoStatus, memory: Option<DmaMemory>) {
        let number = u32::try_from(cookie).ok().filter(|&number| (number as usize) < SLOTS);
        let Some(number) = number else { return self.counters.strays.one() };
        if !self.slot(number).ended(End { status, memory }) {
            return self.counters.strays.one();
        }
        self.completions.push(number).expect(ROOM_FOR_ALL);
        self.rouse();
    }
}
