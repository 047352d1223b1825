//! What the parts of one service share.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use kcore::block::{CompletionSink, Disk, IoStatus};
use kcore::dma::DmaMemory;
use kcore::event::Event;
use kcore::frame::{FrameChain, NetFrame};
use kcore::net::NetDevice;
use netblk_logic::{DATA_START, write_headers};
use netblk_proto::{Info, Limits, ReplyHeader};
use netwire::UdpHeaders;
use rings::Ring;

use crate::counters::Counters;
use crate::slot::{End, Job, SLOTS, Slot};

/// A ring with room for every slot.
type SlotRing = Ring<SLOTS>;

/// See the module.
pub(crate) struct Instance {
    pub limits: Limits,
    pub info: Info,
    pub disk: Arc<dyn Disk>,
    pub card: Arc<dyn NetDevice>,
    slots: Box<[Slot]>,
    /// Producer: the worker. Consumer: the card's receive softirq.
    free: SlotRing,
    /// Producer: the card's receive softirq. Consumer: the worker.
    requests: SlotRing,
    /// Producers: the disk's interrupt handlers. Consumer: the worker.
    completions: SlotRing,
    /// Signalled after every push to `requests` (once a batch) and to `completions`.
    pub event: Event,
    stopping: AtomicBool,
    pub counters: Counters,
}

/// Why no push to these rings is refused: see the crate `rings`, "When `push` cannot fail".
const ROOM_FOR_ALL: &str = "a ring with one consumer has room for every slot";

impl Instance {
    pub fn new(limits: Limits, info: Info, disk: Arc<dyn Disk>, card: Arc<dyn NetDevice>) -> Self {
        Self {
            limits,
            info,
            disk,
            card,
            slots: (0..SLOTS).map(|_| Slot::new()).collect(),
            free: SlotRing::holding_every_number(),
            requests: SlotRing::new(),
            completions: SlotRing::new(),
            event: Event::new(),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
        }
    }

    pub fn slot(&self, number: u32) -> &Slot {
        &self.slots[number as usize]
    }

    /// Queues a job for the worker; gives its frame back if no slot is free. Receive softirq only.
    pub fn queue(&self, job: Job, frame: Option<NetFrame>) -> Result<(), Option<NetFrame>> {
        let Some(number) = self.free.pop() else { return Err(frame) };
        self.slot(number).put(job, frame);
        self.requests.push(number).expect(ROOM_FOR_ALL);
        Ok(())
    }

    /// The next queued slot. Worker only.
    pub fn next_request(&self) -> Option<u32> {
        self.requests.pop()
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

    /// Writes a reply's headers in front of `data_bytes` of data that are in place.
    pub fn address(
        &self,
        frame: &mut NetFrame,
        addresses: &UdpHeaders,
        reply: &ReplyHeader,
        data_bytes: usize,
    ) {
        let room = frame.whole_mut().first_chunk_mut().expect("a frame is longer than its headers");
        let written = write_headers(room, addresses, reply, data_bytes);
        // `Limits` holds data to what a datagram carries, and `service` that to a frame.
        frame.set_len(written.unwrap_or(DATA_START));
        self.counters.reply(reply.status);
    }

    /// Hands replies to the card; those it has no room for stay in the chain.
    pub fn send(&self, chain: &mut FrameChain) -> usize {
        self.counters.batches.one();
        self.card.transmit(chain)
    }
}

/// The disk's side, in interrupt context: push, signal, nothing more.
impl CompletionSink for Instance {
    fn complete(&self, cookie: u64, status: IoStatus, memory: Option<DmaMemory>) {
        let number = u32::try_from(cookie).ok().filter(|&number| (number as usize) < SLOTS);
        let Some(number) = number else { return self.counters.strays.one() };
        if !self.slot(number).ended(End { status, memory }) {
            return self.counters.strays.one();
        }
        self.completions.push(number).expect(ROOM_FOR_ALL);
        self.event.signal();
    }
}
