//! Version 2 in the receive softirq: who is this, may it, and has it asked before?
//!
//! A datagram's session is looked up, its tag checked and its number looked at under the sessions' lock;
//! what follows (room, slots, answers) is done without it, with a copy of what was found.

use alloc::boxed::Box;

use arrayvec::ArrayVec;
use kcore::frame::NetFrame;
use kcore::{random, time};
use netblk_logic::{ConnectError, V2_DATA_START};
use netblk_proto::v2::{
    Added, Arrival, Command, ConnectBody, HELLO_REPLY_BYTES, HeaderView, HelloBody, HelloReply, INFO_BYTES,
    Op, PartOfWrite, ReplyHeader, Request, Status, TagKey, WriteShape, check,
};
use netblk_proto::{Durability, Flags, REPLY_BIT, SectorRange, v2};
use stack::UdpMeta;

use crate::counters::Drop;
use crate::instance::{Instance, client_at};
use crate::receive::{Asker, cargo_of, spread};
use crate::room::Side;
use crate::slot::{Cargo, Head, Piece, Ticket, Work};

/// What a look at a datagram led to.
enum Verdict {
    Drop(Drop),
    /// Tagged with this key, if there is one.
    Answer(ReplyHeader, Option<TagKey>),
    CarryOut(Request, Asker),
}

impl Instance {
    pub(crate) fn version_2(&self, frame: NetFrame, meta: &UdpMeta) {
        let verdict = match HeaderView::of_first_piece(meta.payload(frame.bytes()), meta.payload_bytes) {
            Ok(view) => self.judge(&view, meta),
            Err(_) => Verdict::Drop(Drop::Short),
        };
        match verdict {
            Verdict::Drop(why) => self.counters.dropped(why),
            Verdict::Answer(reply, key) => {
                self.answer(frame, &meta.reply_headers(), &Head::V2(reply, key), 0, &[]);
            }
            Verdict::CarryOut(request, asker) => {
                self.counters.request(request.command.op());
                self.carry_out(frame, meta, request, &asker);
            }
        }
    }

    fn judge(&self, view: &HeaderView<'_>, meta: &UdpMeta) -> Verdict {
        if !view.is_request() {
            let is_reply = view.magic() == netblk_proto::MAGIC && view.op() & REPLY_BIT != 0;
            return Verdict::Drop(if is_reply { Drop::Reply } else { Drop::Magic });
        }
        let is_hello = view.op() == Op::Hello.code() || view.op() == Op::Connect.code();
        if is_hello && view.session() == 0 {
            self.judge_stranger(view, meta)
        } else {
            self.judge_guest(view, meta)
        }
    }

    /// HELLO or CONNECT. No answer is longer than what was asked, whoever asked.
    fn judge_stranger(&self, view: &HeaderView<'_>, meta: &UdpMeta) -> Verdict {
        let host = *meta.source.ip();
        let answer = |status| Verdict::Answer(ReplyHeader::echo(view, status), None);
        if !self.terms.access.may_have_session(host, || self.is_neighbour(host)) {
            return answer(Status::Refused);
        }
        match check(view, &self.terms.v2) {
            Err(fault) => answer(fault.status()),
            Ok(request) => {
                let asker = Asker {
                    addresses: meta.reply_headers(),
                    cookie: request.cookie,
                    // Neither takes room.
                    client: 0,
                    ticket: None,
                };
                Verdict::CarryOut(request, asker)
            }
        }
    }

    /// A request in a session.
    fn judge_guest(&self, view: &HeaderView<'_>, meta: &UdpMeta) -> Verdict {
        let now_ns = time::now_ns();
        let mut sessions = self.sessions.lock();
        let Some((place, session)) = sessions.find(view.session(), meta.source) else {
            return Verdict::Answer(ReplyHeader::echo(view, Status::StaleSession), None);
        };
        if !view.is_tagged_with(&session.keys().client_to_server) {
            session.bad_tags += 1;
            return Verdict::Drop(Drop::BadTag);
        }
        session.heard(now_ns);
        let key = session.keys().server_to_client;
        let answer = |status| Verdict::Answer(ReplyHeader::echo(view, status), Some(key));
        let request = match check(view, &self.terms.v2) {
            Ok(request) => request,
            Err(fault) => return answer(fault.status()),
        };
        if let Some(sequence) = request.command.sequence() {
            // A part is not yet a request: its number counts as running once all parts are there.
            let arrival = match request.command {
                Command::Write(_, _, PartOfWrite { parts: 2.., .. }) => session.window.look(sequence),
                _ => session.window.arrive(sequence),
            };
            session.duplicates += u64::from(matches!(arrival, Arrival::Running | Arrival::Done(_)));
            match arrival {
                Arrival::New => {}
                Arrival::Running => return Verdict::Drop(Drop::UnderWay),
                Arrival::Done(status) => return answer(status),
                Arrival::TooOld => return answer(Status::TooOld),
            }
        }
        let ticket = Ticket { session: session.id(), key, sequence: view.sequence() };
        Verdict::CarryOut(
            request,
            Asker {
                addresses: meta.reply_headers(),
                cookie: request.cookie,
                client: client_at(place),
                ticket: Some(ticket),
            },
        )
    }

    fn carry_out(&self, frame: NetFrame, meta: &UdpMeta, request: Request, asker: &Asker) {
        match request.command {
            Command::Hello(body) => self.hello(frame, meta, asker, &body),
            Command::Connect(body) => self.connect(frame, meta, asker, &body),
            Command::Info => self.inform(frame, asker),
            Command::Read(range, durability) => {
                self.accept_read(frame, asker, range, durability, self.terms.v2.datagram_bytes());
            }
            Command::Write(range, durability, part) => {
                self.accept_part(frame, meta, asker, range, durability, part);
            }
            Command::Flush => self.accept_one(frame, asker, Work::Flush),
            Command::Discard(range, _) => self.accept_one(frame, asker, Work::Discard(range)),
            Command::WriteZeroes(range, durability, _) => {
                self.accept_one(frame, asker, Work::WriteZeroes(range, durability));
            }
            Command::Close => self.close(frame, asker),
        }
    }

    fn hello(&self, frame: NetFrame, meta: &UdpMeta, asker: &Asker, body: &HelloBody) {
        let now_ns = time::now_ns();
        let (challenge, epoch) = {
            let sessions = self.sessions.lock();
            let challenger = sessions.challenger();
            (challenger.challenge(meta.source, &body.client_nonce, now_ns), sessions.epoch())
        };
        let key_needed = self.terms.access.key.is_some();
        let body = HelloReply { challenge, epoch, key_needed }.to_bytes();
        self.answer_with(frame, asker, Op::Hello, 0, None, &body);
        const { assert!(HELLO_REPLY_BYTES < v2::HELLO_BODY_BYTES) }
    }

    fn connect(&self, frame: NetFrame, meta: &UdpMeta, asker: &Asker, body: &ConnectBody) {
        let Ok(view) = HeaderView::new(meta.payload(frame.bytes())) else { return };
        let (now_ns, random) = (time::now_ns(), random::seed());
        let connected = {
            let mut sessions = self.sessions.lock();
            let secret = self.terms.access.secret();
            let ended = &mut |place, session: netblk_logic::Session<Piece>| {
                self.session_ends(Side::Softirq, place, &session)
            };
            let connected = sessions.connect(meta.source, &view, body, secret, now_ns, random, ended);
            connected.map(|connected| {
                // A repeated CONNECT finds the session as it is.
                let key = sessions.get(connected.id).map(|session| session.keys().server_to_client);
                if !self.is_live(connected.id) {
                    self.session_begins(connected.place, connected.id, now_ns);
                }
                (connected, key)
            })
        };
        match connected {
            Ok((connected, key)) => {
                let body = self.terms.v2_info.to_bytes();
                self.answer_with(frame, asker, Op::Connect, connected.id, key, &body);
            }
            Err(error) => {
                let status = match error {
                    ConnectError::Stale => Status::StaleSession,
                    ConnectError::Tag | ConnectError::Full => Status::Refused,
                };
                let reply = ReplyHeader::echo(&view, status);
                self.answer(frame, &asker.addresses, &Head::V2(reply, None), 0, &[]);
            }
        }
    }

    fn inform(&self, frame: NetFrame, asker: &Asker) {
        let Some(ticket) = asker.ticket else { return };
        let body: [u8; INFO_BYTES] = self.terms.v2_info.to_bytes();
        self.answer_with(frame, asker, Op::Info, ticket.session, Some(ticket.key), &body);
    }

    fn close(&self, frame: NetFrame, asker: &Asker) {
        let Some(ticket) = asker.ticket else { return };
        self.sessions.lock().end(asker.client.into(), &mut |place, session| {
            self.session_ends(Side::Softirq, place, &session)
        });
        let reply = ReplyHeader::new(Op::Close, ticket.session, asker.cookie, 0, 0, Status::Ok);
        self.answer(frame, &asker.addresses, &Head::V2(reply, Some(ticket.key)), 0, &[]);
    }

    /// A datagram of a WRITE.
    fn accept_part(
        &self,
        frame: NetFrame,
        meta: &UdpMeta,
        asker: &Asker,
        range: SectorRange,
        durability: Durability,
        part: PartOfWrite,
    ) {
        let PartOfWrite { sequence, part, parts } = part;
        let offset = meta.payload_offset + v2::HEADER_BYTES;
        let bytes = meta.payload_bytes - v2::HEADER_BYTES;
        let piece = Piece { frame, offset, bytes };
        if parts == 1 {
            let cargo = cargo_of(piece.frame, offset, bytes);
            return self.accept_write(asker, range, durability, 1, cargo);
        }
        // The whole write is worth its parts; each takes its room when it comes.
        if !self.room.take(asker.client, 1) {
            let job = asker.job(0, Work::Write(range, durability));
            return self.answer_job(piece.frame, &job, Status::Busy);
        }
        let flags = if durability == Durability::ForceUnitAccess { Flags::FUA } else { Flags::NONE };
        let shape = WriteShape { sequence, offset: range.offset(), length: range.length(), flags, parts };
        let added = {
            let mut sessions = self.sessions.lock();
            let session = asker.ticket.and_then(|ticket| sessions.get(ticket.session));
            session.map(|session| {
                let added = session.assemblies.add(shape, part, piece);
                if matches!(added, Added::Complete(_)) {
                    // It was new when this part was judged, in this same softirq, so it still is.
                    let _ = session.window.arrive(sequence);
                }
                added
            })
        };
        match added {
            Some(Added::Complete(whole)) => {
                let mut data = Box::new(ArrayVec::new());
                for piece in whole {
                    spread(piece.frame, piece.offset, piece.bytes, &mut data);
                }
                let job = asker.job(parts.into(), Work::Write(range, durability));
                self.enqueue_write(job, Cargo::Data(data));
            }
            Some(Added::Kept { given_up }) => {
                for _ in given_up.into_iter().flatten() {
                    self.room.give(Side::Softirq, asker.client, 1);
                    self.counters.dropped(Drop::GivenUp);
                }
            }
            Some(Added::Doubled(_)) => {
                self.room.give(Side::Softirq, asker.client, 1);
                self.counters.dropped(Drop::DoubledPart);
            }
            Some(Added::Contradicts(piece)) => {
                self.room.give(Side::Softirq, asker.client, 1);
                let job = asker.job(0, Work::Write(range, durability));
                self.answer_job(piece.frame, &job, Status::BadRequest);
            }
            // The session ended since this datagram was judged.
            None => {
                self.room.give(Side::Softirq, asker.client, 1);
                self.counters.dropped(Drop::Ended);
            }
        }
    }

    /// An answer with a body that is no sectors.
    fn answer_with(
        &self,
        mut frame: NetFrame,
        asker: &Asker,
        op: Op,
        session: u64,
        key: Option<TagKey>,
        body: &[u8],
    ) {
        if let Some(room) = frame.whole_mut().get_mut(V2_DATA_START..V2_DATA_START + body.len()) {
            room.copy_from_slice(body);
        }
        // A body is shorter than a datagram.
        let reply = ReplyHeader::new(op, session, asker.cookie, 0, body.len() as u32, Status::Ok);
        self.answer(frame, &asker.addresses, &Head::V2(reply, key), body.len(), body);
    }
}
