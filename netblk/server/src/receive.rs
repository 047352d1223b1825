//! The card's side: from a received datagram to a slot, in the receive softirq. Here is what both versions
//! share, and version 1; `sessions` has version 2.
//!
//! What needs no disk is answered here, in the frame that brought it: INFO, refusals, and "busy".

use alloc::boxed::Box;
use alloc::sync::Arc;

use arrayvec::ArrayVec;
use kcore::frame::{FRAME_BYTES, FrameChain, NetFrame};
use kcore::time;
use netblk_logic::{Client, DATA_START, V2_DATA_START};
use netblk_proto::v2::{self, Status};
use netblk_proto::{
    Command, Durability, Fault, HEADER_BYTES, INFO_BYTES, Info, ReplyHeader, Request, SectorRange,
    check_first_piece, refuse_version,
};
use netwire::UdpHeaders;
use stack::{UdpHandler, UdpMeta};

use crate::counters::Drop;
use crate::instance::Instance;
use crate::memory;
use crate::room::Side;
use crate::slot::{Cargo, Head, Job, MOST_FRAMES, Piece, ReadPiece, Ticket, Work};

/// Where the protocol's version stands, in both.
const VERSION_AT: usize = 4;

/// The handler that a service binds its port with.
pub(crate) struct Ear(pub Arc<Instance>);

impl UdpHandler for Ear {
    fn datagram(&self, frame: NetFrame, meta: &UdpMeta) {
        let payload = meta.payload(frame.bytes());
        // What says version 2 and is too short for it gets version 1's answer to a version it does not know.
        if payload.get(VERSION_AT) == Some(&v2::VERSION) && payload.len() >= v2::HEADER_BYTES {
            self.0.version_2(frame, meta);
        } else {
            self.0.version_1(frame, meta);
        }
    }
}

/// Who asked, and how to answer: the same for every datagram of a request.
#[derive(Clone, Copy)]
pub(crate) struct Asker {
    pub addresses: UdpHeaders,
    pub cookie: u64,
    pub client: Client,
    pub ticket: Option<Ticket>,
}

impl Asker {
    pub fn job(&self, datagrams: u32, work: Work) -> Job {
        let Self { addresses, cookie, client, ticket } = *self;
        // No request of one slot is worth more than a turn.
        Job { addresses, cookie, client, datagrams: datagrams as u8, ticket, work }
    }
}

impl Instance {
    fn version_1(&self, frame: NetFrame, meta: &UdpMeta) {
        let payload = meta.payload(frame.bytes());
        let checked = match &self.terms.v1 {
            Some((limits, _)) => check_first_piece(payload, meta.payload_bytes, limits),
            None => Err(refuse_version(payload)),
        };
        if let Err(refused) = &checked
            && refused.answer.is_none()
        {
            return self.counters.dropped(match refused.fault {
                Fault::Magic => Drop::Magic,
                Fault::ReplyBit => Drop::Reply,
                // Only what is too short to be recognised is dropped besides.
                _ => Drop::Short,
            });
        }
        let host = *meta.source.ip();
        if !self.terms.access.may_use_version_1(host, || self.is_neighbour(host)) {
            return self.counters.dropped(Drop::NotAllowed);
        }
        let addresses = meta.reply_headers();
        match checked {
            Ok(request) => {
                self.counters.request(request.command.op().into());
                let client = self.neighbours.heard(host, time::now_ns);
                let asker = Asker { addresses, cookie: request.cookie, client, ticket: None };
                self.accept(frame, &asker, request, meta.payload_offset + HEADER_BYTES);
            }
            Err(refused) => {
                if let Some(answer) = refused.answer {
                    self.answer(frame, &addresses, &Head::V1(answer), 0, &[]);
                }
            }
        }
    }

    /// Whether a host is on the card's own network.
    pub(crate) fn is_neighbour(&self, host: core::net::Ipv4Addr) -> bool {
        self.stack.subnet().is_some_and(|subnet| subnet.contains(host))
    }

    fn accept(&self, frame: NetFrame, asker: &Asker, request: Request, data_offset: usize) {
        // A request that was checked was checked against limits.
        let Some((limits, info)) = &self.terms.v1 else { return };
        match request.command {
            Command::Info => self.describe(frame, asker, info),
            Command::Read(range, durability) => {
                self.accept_read(frame, asker, range, durability, limits.datagram_bytes());
            }
            Command::Write(range, durability) => {
                let cargo = cargo_of(frame, data_offset, range.length() as usize);
                self.accept_write(asker, range, durability, 1, cargo);
            }
            Command::Flush => self.accept_one(frame, asker, Work::Flush),
        }
    }

    /// A slot for everything that the disk reads at once. Where the room ends, the rest of the range is
    /// refused in one piece, and the client asks for it again.
    pub(crate) fn accept_read(
        &self,
        frame: NetFrame,
        asker: &Asker,
        range: SectorRange,
        durability: Durability,
        datagram_bytes: u32,
    ) {
        let datagrams = |length: u32| length.div_ceil(datagram_bytes);
        // What fits one frame goes straight into it.
        let at_once = if self.fits_frame(asker.ticket.is_some(), range.length(), datagram_bytes) {
            datagram_bytes
        } else {
            (self.terms.page_bytes / datagram_bytes * datagram_bytes).max(datagram_bytes)
        };
        let parts = datagrams(range.length()) as u16;
        let mut pieces = range.cut(at_once);
        let mut first_part = 0;
        while let Some(rest) = pieces.rest() {
            let Some(range) = pieces.next() else { return };
            let worth = datagrams(range.length());
            let job = asker.job(worth, Work::Read(ReadPiece { range, durability, first_part, parts }));
            if !self.admit(job, Cargo::None) {
                // Busy for all that is left.
                let work = Work::Read(ReadPiece { range: rest, durability, first_part, parts });
                let busy = asker.job(0, work);
                return self.answer_job(frame, &busy, Status::Busy);
            }
            first_part += worth as u16;
        }
        // The request's frame is not needed: the answers get fresh ones when the disk is asked.
    }

    /// Whether that many bytes of a READ travel in one datagram, and lie in its first frame behind the
    /// headers. Otherwise the disk reads into a page, and the datagrams are sent out of that.
    pub(crate) fn fits_frame(&self, is_version_2: bool, bytes: u32, datagram_bytes: u32) -> bool {
        let start = if is_version_2 { V2_DATA_START } else { DATA_START };
        bytes <= datagram_bytes && start + bytes as usize <= FRAME_BYTES
    }

    /// A WRITE is whole: `datagrams` brought it.
    pub(crate) fn accept_write(
        &self,
        asker: &Asker,
        range: SectorRange,
        durability: Durability,
        datagrams: u32,
        cargo: Cargo,
    ) {
        let job = asker.job(datagrams, Work::Write(range, durability));
        if !self.room.take(job.client, datagrams) {
            return self.turn_away(&job, cargo);
        }
        self.enqueue_write(job, cargo);
    }

    /// As [`Instance::accept_write`], with its room taken.
    pub(crate) fn enqueue_write(&self, job: Job, cargo: Cargo) {
        if let Err(cargo) = self.queue(job, cargo) {
            self.room.give(Side::Softirq, job.client, job.datagrams.into());
            self.turn_away(&job, cargo);
        }
    }

    /// There is no room for a request.
    fn turn_away(&self, job: &Job, cargo: Cargo) {
        self.record(job, Status::Busy);
        if let Some(frame) = memory::reply_frame(cargo) {
            self.answer_job(frame, job, Status::Busy);
        }
    }

    /// A request of one datagram that needs the disk.
    pub(crate) fn accept_one(&self, frame: NetFrame, asker: &Asker, work: Work) {
        let (job, cargo) = (asker.job(1, work), Cargo::Frame(frame));
        if !self.room.take(job.client, 1) {
            return self.turn_away(&job, cargo);
        }
        if let Err(cargo) = self.queue(job, cargo) {
            self.room.give(Side::Softirq, job.client, 1);
            self.turn_away(&job, cargo);
        }
    }

    /// Takes room and a slot for a job without a frame of its own. `false`: there is none.
    fn admit(&self, job: Job, cargo: Cargo) -> bool {
        if !self.room.take(job.client, job.datagrams.into()) {
            return false;
        }
        let queued = self.queue(job, cargo).is_ok();
        if !queued {
            self.room.give(Side::Softirq, job.client, job.datagrams.into());
        }
        queued
    }

    /// What a datagram of this job's version carries.
    pub(crate) fn datagram_bytes(&self, job: &Job) -> u32 {
        match (&job.ticket, &self.terms.v1) {
            (None, Some((limits, _))) => limits.datagram_bytes(),
            _ => self.terms.v2.datagram_bytes(),
        }
    }

    /// What became of a numbered request that was carried out, or was not.
    pub(crate) fn record(&self, job: &Job, status: Status) {
        let Some(Ticket { session, sequence, .. }) = job.ticket.filter(|ticket| ticket.sequence != 0) else {
            return;
        };
        if let Some(session) = self.sessions.lock().get(session) {
            match status {
                // Only what the disk has said is the answer for ever.
                Status::Ok | Status::IoError => session.window.finish(sequence, status),
                _ => session.window.forget(sequence),
            }
        }
    }

    fn describe(&self, mut frame: NetFrame, asker: &Asker, info: &Info) {
        let body = info.to_bytes();
        frame.whole_mut()[DATA_START..DATA_START + INFO_BYTES].copy_from_slice(&body);
        let reply = ReplyHeader::new(
            netblk_proto::Op::Info,
            asker.cookie,
            0,
            INFO_BYTES as u32,
            netblk_proto::Status::Ok,
        );
        self.answer(frame, &asker.addresses, &Head::V1(reply), INFO_BYTES, &body);
    }

    pub(crate) fn answer_job(&self, frame: NetFrame, job: &Job, status: Status) {
        let head = job.reply(status).head(job);
        self.answer(frame, &job.addresses, &head, 0, &[]);
    }

    /// Sends the frame that brought a request back as its answer. Behind the headers it holds `data_bytes`
    /// of data, of which a tag covers `body`.
    pub(crate) fn answer(
        &self,
        mut frame: NetFrame,
        addresses: &UdpHeaders,
        head: &Head,
        data_bytes: usize,
        body: &[u8],
    ) {
        // A request that came in several frames is answered in the first.
        drop(frame.detach());
        self.address(&mut frame, addresses, head, data_bytes, body);
        frame.set_len(frame.len() + data_bytes);
        let mut chain = FrameChain::new();
        chain.push(frame);
        if self.send(&mut chain) == 0 {
            self.counters.replies_lost.one();
        }
    }
}

/// A WRITE whose data came in one packet, `bytes` bytes from `offset` of its first frame on.
pub(crate) fn cargo_of(frame: NetFrame, offset: usize, bytes: usize) -> Cargo {
    if frame.piece_count() == 1 {
        return Cargo::Frame(frame);
    }
    let mut data = Box::new(ArrayVec::new());
    spread(frame, offset, bytes, &mut data);
    Cargo::Data(data)
}

/// The data of a received packet, `bytes` bytes from `offset` of its first frame on, frame by frame. (Behind
/// it may be what Ethernet filled up a short packet with.) What is too much is left out: `Limits` keeps a
/// WRITE to fewer frames than there is room for.
pub(crate) fn spread(
    mut frame: NetFrame,
    offset: usize,
    bytes: usize,
    data: &mut ArrayVec<Piece, MOST_FRAMES>,
) {
    let mut rest = frame.detach();
    let (mut next, mut offset, mut left) = (Some(frame), offset, bytes);
    while let Some(frame) = next {
        let bytes = frame.len().saturating_sub(offset).min(left);
        left -= bytes;
        if bytes > 0 {
            let _ = data.try_push(Piece { frame, offset, bytes });
        }
        (next, offset) = (rest.pop(), 0);
    }
}
