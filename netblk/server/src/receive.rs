//! The card's side: from a received datagram to a slot, in the receive softirq.
//!
//! What needs no disk is answered here, in the frame that brought it: INFO, refusals, and "busy".

use alloc::sync::Arc;

use kcore::frame::{FrameChain, NetFrame};
use netblk_logic::DATA_START;
use netblk_proto::{
    Command, Durability, HEADER_BYTES, INFO_BYTES, Op, ReplyHeader, Request, SectorRange, Status, check,
};
use netwire::UdpHeaders;
use stack::{UdpHandler, UdpMeta};

use crate::instance::Instance;
use crate::slot::{Job, Work};

/// The handler that a service binds its port with.
pub(crate) struct Ear(pub Arc<Instance>);

impl UdpHandler for Ear {
    fn datagram(&self, frame: NetFrame, meta: &UdpMeta) {
        let instance = &self.0;
        let addresses = meta.reply_headers();
        match check(meta.payload(frame.bytes()), &instance.limits) {
            Ok(request) => {
                instance.counters.request(request.command.op());
                instance.accept(frame, addresses, request, meta.payload_offset + HEADER_BYTES);
            }
            Err(refused) => match refused.answer {
                Some(answer) => instance.answer(frame, &addresses, &answer, 0),
                None => instance.counters.dropped(refused.fault),
            },
        }
    }

    /// One wake-up for everything that this batch queued.
    fn batch_done(&self) {
        self.0.event.signal();
    }
}

impl Instance {
    fn accept(&self, frame: NetFrame, addresses: UdpHeaders, request: Request, data_offset: usize) {
        let cookie = request.cookie;
        match request.command {
            Command::Info => self.describe(frame, &addresses, cookie),
            Command::Read(range, durability) => self.accept_read(frame, addresses, cookie, range, durability),
            Command::Write(range, durability) => {
                let work = Work::Write(range, durability, data_offset);
                self.accept_one(Job { addresses, cookie, work }, frame);
            }
            Command::Flush => self.accept_one(Job { addresses, cookie, work: Work::Flush }, frame),
        }
    }

    /// A slot for every datagram of the answer. Where the slots end, the rest of the range is
    /// refused in one piece, and the client asks for it again.
    fn accept_read(
        &self,
        frame: NetFrame,
        addresses: UdpHeaders,
        cookie: u64,
        range: SectorRange,
        durability: Durability,
    ) {
        let mut pieces = range.pieces(&self.limits);
        while let Some(rest) = pieces.rest() {
            let Some(piece) = pieces.next() else { return };
            let job = Job { addresses, cookie, work: Work::Read(piece, durability) };
            if self.queue(job, None).is_err() {
                let busy = ReplyHeader::new(Op::Read, cookie, rest.offset(), rest.length(), Status::Busy);
                return self.answer(frame, &addresses, &busy, 0);
            }
        }
        // The request's frame is not needed: the answers get fresh ones when the disk is asked.
    }

    fn accept_one(&self, job: Job, frame: NetFrame) {
        if let Err(Some(frame)) = self.queue(job, Some(frame)) {
            self.answer(frame, &job.addresses, &job.reply(Status::Busy), 0);
        }
    }

    fn describe(&self, mut frame: NetFrame, addresses: &UdpHeaders, cookie: u64) {
        let info = self.info.to_bytes();
        frame.whole_mut()[DATA_START..DATA_START + INFO_BYTES].copy_from_slice(&info);
        let reply = ReplyHeader::new(Op::Info, cookie, 0, INFO_BYTES as u32, Status::Ok);
        self.answer(frame, addresses, &reply, INFO_BYTES);
    }

    /// Sends the frame that brought a request back as its answer.
    fn answer(&self, mut frame: NetFrame, addresses: &UdpHeaders, reply: &ReplyHeader, data_bytes: usize) {
        // What a jumbo request has behind its head is no part of the answer.
        drop(frame.detach());
        self.address(&mut frame, addresses, reply, data_bytes);
        let mut chain = FrameChain::new();
        chain.push(frame);
        if self.send(&mut chain) == 0 {
            self.counters.replies_lost.one();
        }
    }
}
