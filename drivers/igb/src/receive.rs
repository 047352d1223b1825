//! The receive ring and the packet that is being put together.

use igb_protocol::{Assembly, RingFault, Step, register};
use kcore::frame::{FrameChain, MAX_PIECES, NetFrame};
use kcore::net::{NetCounters, add};

use crate::memory::FrameReceiveRing;
use crate::registers::Registers;

/// Pieces taken in one go before others on this CPU get a turn.
pub(crate) const BATCH: usize = 64;

/// Descriptors of the ring: all but one hold a frame. At a gigabit, 150 us of the shortest packets.
pub(crate) const DESCRIPTORS: u16 = 256;

/// With fewer frames than this a card is not started: it could not receive the longest packet while
/// another is on its way up.
const FEWEST_FRAMES: u16 = 2 * MAX_PIECES as u16;

pub(crate) struct ReceiveSide {
    pub ring: FrameReceiveRing,
    assembly: Assembly,
    /// The head of the packet under way, with what has come behind it.
    head: Option<NetFrame>,
}

/// What one look at the ring brought.
pub(crate) struct Batch {
    pub frames: FrameChain,
    /// Their bytes together.
    pub bytes: u64,
    /// There may be more.
    pub full: bool,
}

impl ReceiveSide {
    pub fn new(ring: FrameReceiveRing) -> ReceiveSide {
        ReceiveSide { ring, assembly: Assembly::new(MAX_PIECES as u16), head: None }
    }

    /// Takes up to [`BATCH`] pieces, and gives the card other frames in the place of those whose
    /// packets are delivered.
    pub fn take(&mut self, registers: &Registers, counters: &NetCounters) -> Result<Batch, RingFault> {
        let mut batch = Batch { frames: FrameChain::new(), bytes: 0, full: true };
        // For the card, in place of what it filled.
        let mut spare = FrameChain::new();
        for _ in 0..BATCH {
            let Some(piece) = self.ring.take()? else {
                batch.full = false;
                break;
            };
            let step = self.assembly.next(piece.bytes, piece.end_of_packet, piece.damaged);
            let frame = piece.token.reclaim(piece.bytes.into());
            match step {
                Step::Keep => self.keep(frame, &mut spare),
                Step::Complete => {
                    self.keep(frame, &mut spare);
                    if let Some(packet) = self.head.take() {
                        deliver(packet, &mut batch, &mut spare, counters);
                    }
                }
                Step::Drop { end } => {
                    spare.push(frame);
                    if let Some(begun) = self.head.take() {
                        put_back(begun, &mut spare);
                    }
                    add(&counters.rx_errors, end.into());
                }
            }
        }
        self.refill(&mut spare, registers, counters);
        Ok(batch)
    }

    /// Puts a piece behind the packet under way, or begins one with it.
    fn keep(&mut self, frame: NetFrame, spare: &mut FrameChain) {
        match &mut self.head {
            None => self.head = Some(frame),
            Some(head) => {
                // An empty one is given back: the packet ended before it.
                if let Err(unused) = head.attach_frame(frame) {
                    spare.push(unused);
                }
            }
        }
    }

    /// Gives the card `spare` frames, and the rest back to the pool.
    fn refill(&mut self, spare: &mut FrameChain, registers: &Registers, counters: &NetCounters) {
        while let Some(frame) = spare.pop() {
            if !self.post(frame) {
                break;
            }
        }
        self.announce(registers, counters);
    }

    /// Fills the ring from the pool. `false`: it has too few frames to begin with.
    #[must_use]
    pub fn fill(&mut self, registers: &Registers, counters: &NetCounters) -> bool {
        while self.ring.room() > 0 {
            let Some(frame) = NetFrame::alloc() else { break };
            if !self.post(frame) {
                break;
            }
        }
        self.announce(registers, counters);
        self.ring.in_flight() >= FEWEST_FRAMES
    }

    fn post(&mut self, frame: NetFrame) -> bool {
        let frame = frame.into_device();
        let address = frame.phys().as_u64();
        match self.ring.post(address, frame) {
            Ok(()) => true,
            Err(frame) => {
                drop(frame.reclaim(0));
                false
            }
        }
    }

    fn announce(&mut self, registers: &Registers, counters: &NetCounters) {
        if let Some(tail) = self.ring.announce() {
            add(&counters.doorbells, 1);
            registers.ring(register::receive_queue::TAIL, tail);
        }
    }

    /// Takes every frame back. Only when the card reaches no memory any more.
    pub fn reset(&mut self) {
        self.ring.reset(|frame| drop(frame.reclaim(0)));
        self.assembly.reset();
        self.head = None;
    }
}

/// Delivers a packet if there are frames to take the places of its own; otherwise those go back into
/// the ring, which so stays as full as it was.
fn deliver(packet: NetFrame, batch: &mut Batch, spare: &mut FrameChain, counters: &NetCounters) {
    for _ in 0..packet.piece_count() {
        match NetFrame::alloc() {
            Some(frame) => spare.push(frame),
            None => {
                add(&counters.rx_dropped, 1);
                return put_back(packet, spare);
            }
        }
    }
    batch.bytes += packet.total_len() as u64;
    batch.frames.push(packet);
}

/// Takes a packet apart: nobody gets it.
fn put_back(mut packet: NetFrame, spare: &mut FrameChain) {
    spare.append(&mut packet.detach());
    spare.push(packet);
}
