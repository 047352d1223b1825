//! The requests under way: what to send, what an answer means, when to ask again.
//!
//! The engine knows no socket and no clock. It is told what time it is (ns since any moment) and
//! what arrived, and it says what to send and when to come back; so a test can lose, double and
//! reorder at will and always see the same run.
//!
//! A request is one *flight*, with one timer. Every transmission of it has its own cookie, and all
//! of them stay valid until the flight has landed: a late answer to the first is as good as one to
//! the second, and each is timed against its own transmission. A READ lands piece by piece; what is
//! asked again is the part from the first to the last piece that is missing.
//!
//! ```text
//!              start                    all pieces, or the one answer
//!   (waiting) -------> [in the outbox] --sent--> [timer runs] -----------> (landed)
//!                            ^                        |  \ status 4: wait, then ask again,
//!                            +--- time is up, or -----+   `          without counting a try
//!                                 long overtaken
//! ```
//!
//! In version 2 all flights belong to a session ([`link`]). When the server does not know it any more,
//! or is silent for long, there is a new one, and every flight is sent again in it. If the server's
//! epoch is another, what was answered since the last FLUSH is written again first ([`log`]).

mod flight;
pub mod link;
mod log;
mod session;
mod wire;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;

use netblk_proto::InfoError;
use netblk_proto::v2::{self, NONCE_BYTES, Op, PreSharedKey, Status};

pub use self::flight::{MAX_PIECES, Request};
pub use self::link::Protocol;

use self::flight::{Busy, Flight, Purpose, Verdict};
use self::link::Link;
use self::log::Log;
use self::wire::{Answer, Language};
use crate::pacing::{Pacer, share_ns};
use crate::rtt::RoundTrip;
use crate::window::Window;

/// The first pause after "busy"; it doubles.
const BUSY_PAUSE_NS: u64 = 2_000_000;
/// "Bad request" this often is believed. The engine asks for nothing that INFO forbids, so the first
/// one says that the request was damaged on its way; but a server that was restarted with other
/// options means it.
const BAD_REQUESTS_BELIEVED: u32 = 5;
/// The longest pause after "busy".
const BUSY_PAUSE_MAX_NS: u64 = 200_000_000;
/// A server that says nothing for so long has perhaps forgotten the session, or the network has
/// forgotten this client's address: hello again. It costs two round trips when it was for nothing.
const SILENCE_NS: u64 = 2_000_000_000;
/// A flight that so many later transmissions have overtaken, beyond two windows of them, is lost.
const OVERTAKEN: u64 = 16;

/// What the caller allows.
pub struct Config {
    /// Requests under way at most.
    pub window: u32,
    /// Datagrams under way at most: the server's slots, or what the socket's buffer holds.
    pub datagrams: u32,
    /// The most data in one datagram.
    pub datagram_bytes: u32,
    /// The device's sector.
    pub sector_bytes: u32,
    /// Transmissions of one request before it is given up.
    pub max_tries: u32,
    /// How long a server that owes answers may say nothing at all.
    pub patience_ns: u64,
    /// How long a server may go on saying "busy".
    pub busy_patience_ns: u64,
    /// The first cookie: random, so that a stranger's or an earlier run's answers fit nothing.
    pub first_cookie: u64,
    /// Which versions to speak.
    pub protocol: Protocol,
    /// The service's key; zeros for none.
    pub key: PreSharedKey,
    /// A FLUSH is sent when the log of what is not durable has so many bytes.
    pub log_bytes: usize,
    /// Gives a fresh random nonce for each session.
    pub nonces: Box<dyn FnMut() -> [u8; NONCE_BYTES] + Send>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("window", &self.window)
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

/// A request that landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// What [`Engine::start`] called it.
    pub id: u64,
    /// What it was.
    pub op: Op,
    /// Bytes from the start of the device.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// From the first transmission to the last answer.
    pub latency_ns: u64,
}

/// A request that the server refused, or that its disk failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// What [`Engine::start`] called it.
    pub id: u64,
    /// What it was.
    pub op: Op,
    /// Which part of it.
    pub offset: u64,
    /// How long a part.
    pub length: u32,
    /// Why.
    pub status: Status,
}

/// What an answer brought.
#[derive(Debug)]
pub enum Event<'a> {
    /// Part of a READ, each part once.
    Data {
        /// The READ.
        id: u64,
        /// Bytes from the start of the device.
        offset: u64,
        /// The data.
        bytes: &'a [u8],
    },
    /// The body of an INFO, not yet looked at.
    Info(&'a [u8]),
    /// A request is done.
    Landed(Landed),
    /// A request will not be done.
    Refused(Refusal),
}

/// Why the engine gives up altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A request was sent as often as allowed, or for as long, and never answered.
    NoAnswer {
        /// What.
        op: Op,
        /// How often.
        tries: u32,
        /// Since when.
        waited_ns: u64,
    },
    /// The server said "busy" for too long.
    StillBusy {
        /// Since when.
        waited_ns: u64,
    },
    /// The server will not have this client: the key is wrong, or there are too many.
    NoSession,
    /// The server wants a key.
    KeyNeeded,
    /// The server describes a device that cannot be.
    Nonsense(InfoError),
    /// After a restart the server serves another device.
    Changed,
    /// After a restart a change that was answered before could not be made again.
    Forgotten {
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes.
        length: u32,
        /// The server's reason.
        status: Status,
    },
}

/// What happened so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Datagrams sent.
    pub sent: u64,
    /// Of these, repetitions because no answer came.
    pub repeated: u64,
    /// Answers of "busy".
    pub busy: u64,
    /// Datagrams received that answered nothing: late, doubled, damaged, or somebody else's.
    pub ignored: u64,
    /// Sessions so far; 0 in version 1.
    pub sessions: u64,
    /// Changes that were made again because the server was restarted.
    pub replayed: u64,
}

impl Stats {
    /// What happened since `before`; the sessions are counted from the beginning.
    #[must_use]
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            repeated: self.repeated - before.repeated,
            busy: self.busy - before.busy,
            ignored: self.ignored - before.ignored,
            sessions: self.sessions,
            replayed: self.replayed - before.replayed,
        }
    }
}

/// Changes that are made again, by the log's marks.
#[derive(Debug, Clone, Copy)]
struct Replay {
    next: u64,
    end: u64,
}

/// See the module.
pub struct Engine {
    config: Config,
    round_trip: RoundTrip,
    window: Window,
    pacer: Pacer,
    /// What is spoken; nothing before the first session, and between two.
    language: Option<Language>,
    /// The session that is being made.
    link: Option<Link>,
    /// The device as the last session's server described it.
    info: Option<v2::Info>,
    /// The number of the last session.
    session: u64,
    /// When the server was last heard, or first owed something since.
    heard_ns: u64,
    /// Nothing was under way before what was started last.
    owed_nothing: bool,
    flights: HashMap<u64, Flight>,
    /// Flights of the user, among `flights`.
    users: usize,
    next_id: u64,
    /// By cookie: the flight and when that transmission left.
    transmissions: HashMap<u64, (u64, u64)>,
    /// Transmissions in their order, to see who was overtaken.
    order: VecDeque<u64>,
    next_cookie: u64,
    /// What waits to be sent: flight and part.
    outbox: VecDeque<(u64, u16)>,
    timers: BTreeSet<(u64, u64)>,
    datagrams: u32,
    /// Numbers of changes under way.
    numbers: BTreeSet<u64>,
    next_number: u64,
    log: Log,
    replay: Option<Replay>,
    shortening: bool,
    /// A FLUSH that nobody asked for has failed, and nobody was told.
    unflushed: Option<Status>,
    /// A change that was answered could not be made again.
    lost: Option<Failure>,
    stats: Stats,
}

impl Engine {
    /// An engine with nothing under way.
    pub fn new(config: Config) -> Self {
        Self {
            round_trip: RoundTrip::new(),
            window: Window::new(config.window),
            pacer: Pacer::default(),
            language: (config.protocol == Protocol::One).then_some(Language::One),
            link: None,
            info: None,
            session: 0,
            heard_ns: 0,
            owed_nothing: true,
            flights: HashMap::new(),
            users: 0,
            next_id: 0,
            transmissions: HashMap::new(),
            order: VecDeque::new(),
            next_cookie: config.first_cookie,
            outbox: VecDeque::new(),
            timers: BTreeSet::new(),
            datagrams: 0,
            numbers: BTreeSet::new(),
            next_number: 1,
            log: Log::default(),
            replay: None,
            shortening: false,
            unflushed: None,
            lost: None,
            stats: Stats::default(),
            config,
        }
    }

    /// Takes over what INFO said, and the datagrams that may be under way.
    pub fn configure(&mut self, info: &netblk_proto::Info, datagrams: u32) {
        self.config.datagram_bytes = info.datagram_bytes;
        self.config.sector_bytes = info.sector_bytes;
        self.config.datagrams = datagrams.max(1);
    }

    /// Changes the window, for the next run.
    pub fn set_window(&mut self, window: u32) {
        self.config.window = window;
        self.window = Window::new(window);
    }

    /// Changes how often a request is sent before it is given up.
    pub fn set_max_tries(&mut self, max_tries: u32) {
        self.config.max_tries = max_tries;
    }

    /// What happened so far.
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// The smoothed round trip, once there is one.
    pub const fn round_trip_ns(&self) -> Option<u64> {
        self.round_trip.smoothed_ns()
    }

    /// The device as the server of the last session described it; `None` in version 1.
    pub const fn session_info(&self) -> Option<&v2::Info> {
        self.info.as_ref()
    }

    /// Whether nothing of the user's is under way.
    pub const fn is_idle(&self) -> bool {
        self.users == 0
    }

    /// Whether a request may start now.
    pub fn has_room(&self, request: &Request) -> bool {
        if self.users == 0 {
            return true;
        }
        let under_way = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
        let datagrams = request.datagrams(self.config.datagram_bytes);
        under_way < self.window.allowed()
            && self.datagrams + datagrams <= self.config.datagrams
            && !(request.is_change() && self.log.bytes() > 2 * self.config.log_bytes)
    }

    /// Puts a request under way; the number it is called by comes back.
    pub fn start(&mut self, request: Request) -> u64 {
        self.launch(request, Purpose::User)
    }

    fn launch(&mut self, request: Request, purpose: Purpose) -> u64 {
        self.owed_nothing |= self.flights.is_empty();
        let id = self.next_id;
        self.next_id += 1;
        let flight = Flight::new(request, purpose, self.config.datagram_bytes);
        self.datagrams += flight.datagrams;
        self.users += usize::from(purpose == Purpose::User);
        // While old changes are made again, and while there is no session, everything else waits.
        if self.language.is_some() && (self.replay.is_none() || purpose == Purpose::Replay) {
            enqueue(&mut self.outbox, id, &flight);
        }
        self.flights.insert(id, flight);
        id
    }

    /// Drops everything under way.
    pub fn abandon(&mut self) {
        let numbered = self.flights.values().any(|flight| flight.sequence != 0);
        self.flights.clear();
        self.forget_transmissions();
        (self.datagrams, self.users, self.shortening) = (0, 0, false);
        // A link that was given up begins anew with the next request, and what was being made again does from the start.
        self.link = None;
        if let Some(replay) = &mut self.replay {
            replay.next = self.log.first();
        }
        if numbered && matches!(self.language, Some(Language::Two { .. })) {
            // What was dropped may still arrive, and must not run after what comes next: a new session
            // takes the place of this one, and nothing of the old runs any more.
            self.language = None;
        }
    }

    fn forget_transmissions(&mut self) {
        self.transmissions.clear();
        self.order.clear();
        self.outbox.clear();
        self.timers.clear();
        self.numbers.clear();
    }

    /// Writes the next datagram to send into `datagram`; `false` if there is none now. Whatever is
    /// taken counts as sent at `now_ns`.
    pub fn next_datagram(&mut self, now_ns: u64, datagram: &mut Vec<u8>) -> bool {
        if std::mem::take(&mut self.owed_nothing) {
            self.heard_ns = now_ns;
        }
        if self.language.is_none() {
            return self.next_of_link(now_ns, datagram);
        }
        let share_ns = share_ns(self.round_trip.smoothed_ns(), self.window.allowed());
        while let Some((place, (id, part))) = self.next_in_outbox() {
            if part == 0 && self.pacer.ready_ns(share_ns) > now_ns {
                return false;
            }
            self.outbox.remove(place);
            let Some(language) = &self.language else { return false };
            // A flight may land while it waits here for its repetition.
            let Some(flight) = self.flights.get_mut(&id) else { continue };
            if flight.request.is_change() && flight.sequence == 0 && matches!(language, Language::Two { .. })
            {
                flight.sequence = self.next_number;
                self.next_number += 1;
                self.numbers.insert(flight.sequence);
            }
            if part == 0 {
                flight.tries += 1;
                self.pacer.sent(now_ns, share_ns);
            }
            flight.started_ns.get_or_insert(now_ns);
            flight.log_mark.get_or_insert(self.log.mark());
            let cookie = self.next_cookie;
            self.next_cookie = self.next_cookie.wrapping_add(1);
            flight.cookies.push(cookie);
            self.transmissions.insert(cookie, (id, now_ns));
            self.order.push_back(cookie);
            self.stats.sent += 1;
            let asking = flight.asking(part, self.config.datagram_bytes, self.config.sector_bytes);
            language.write(&asking, cookie, datagram);
            let deadline_ns = now_ns + self.round_trip.timeout_ns(flight.tries);
            set_timer(&mut self.timers, id, flight, deadline_ns);
            return true;
        }
        false
    }

    /// The first of those that may leave now. A change that cannot have its number yet is passed over: what it waits for,
    /// the repetition of the oldest, may stand behind it.
    fn next_in_outbox(&self) -> Option<(usize, (u64, u16))> {
        self.outbox.iter().copied().enumerate().find(|&(_, (id, _))| self.may_number(id))
    }

    /// Whether a flight that may need a number can have one: the client never has number s under way while s - 256
    /// is (docs/netblk-protocol.md, "At most once").
    fn may_number(&self, id: u64) -> bool {
        let window = self.info.as_ref().map_or(u64::MAX, |info| u64::from(info.write_window));
        let needs_one =
            self.flights.get(&id).is_some_and(|flight| flight.request.is_change() && flight.sequence == 0);
        !needs_one || self.numbers.first().is_none_or(|&oldest| self.next_number - oldest < window)
    }

    /// When [`Engine::next_datagram`] or [`Engine::on_time`] wants to be called.
    pub fn deadline_ns(&self) -> Option<u64> {
        if self.language.is_none() {
            let wanted = !self.flights.is_empty();
            return self.link.as_ref().map(Link::due_ns).or(Some(0)).filter(|_| wanted);
        }
        let share_ns = share_ns(self.round_trip.smoothed_ns(), self.window.allowed());
        // What is held back for want of a number is brought on by an answer, not by time.
        let paced_ns = self.next_in_outbox().map(|_| self.pacer.ready_ns(share_ns));
        let timer_ns = self.timers.first().map(|&(deadline_ns, _)| deadline_ns);
        paced_ns.into_iter().chain(timer_ns).min()
    }

    /// Looks at the timers.
    ///
    /// # Errors
    /// [`Failure`] if a request has been sent, or refused as busy, for too long.
    pub fn on_time(&mut self, now_ns: u64) -> Result<(), Failure> {
        if let Some(failure) = self.lost {
            return Err(failure);
        }
        if self.language.is_none() {
            let tries = self.link.as_ref().map_or(0, Link::tries);
            let waited_ns = now_ns.saturating_sub(self.heard_ns);
            if self
                .link
                .as_ref()
                .is_some_and(|link| tries >= self.config.max_tries && link.due_ns() <= now_ns)
            {
                return Err(Failure::NoAnswer { op: Op::Hello, tries, waited_ns });
            }
            return self.judge_patience(now_ns, Op::Hello, tries);
        }
        while let Some(&(deadline_ns, id)) = self.timers.first() {
            if deadline_ns > now_ns {
                break;
            }
            self.timers.pop_first();
            let Some(flight) = self.flights.get_mut(&id) else { continue };
            flight.timer_ns = None;
            let op = flight.request.op();
            match &mut flight.busy {
                Some(busy) if busy.pausing => {
                    busy.pausing = false;
                    flight.tries = flight.tries.saturating_sub(1);
                }
                _ => {
                    let tries = flight.tries;
                    if tries >= self.config.max_tries {
                        let waited_ns = now_ns.saturating_sub(flight.started_ns.unwrap_or(now_ns));
                        return Err(Failure::NoAnswer { op, tries, waited_ns });
                    }
                    self.judge_patience(now_ns, op, tries)?;
                    self.stats.repeated += 1;
                    let sent_ns = sent_ns(&self.transmissions, self.flights.get(&id));
                    if tries > 1 && self.heard_ns < sent_ns {
                        self.window.silent(now_ns);
                    } else {
                        self.window.lost(now_ns, sent_ns);
                    }
                }
            }
            if let Some(flight) = self.flights.get(&id) {
                enqueue(&mut self.outbox, id, flight);
            }
        }
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        let owed = !self.transmissions.is_empty();
        if owed && silent_ns >= SILENCE_NS && matches!(self.language, Some(Language::Two { .. })) {
            self.link_anew(now_ns);
        }
        Ok(())
    }

    fn judge_patience(&self, now_ns: u64, op: Op, tries: u32) -> Result<(), Failure> {
        let waited_ns = now_ns.saturating_sub(self.heard_ns);
        if !self.flights.is_empty() && waited_ns > self.config.patience_ns {
            return Err(Failure::NoAnswer { op, tries, waited_ns });
        }
        Ok(())
    }

    /// Takes a received datagram and passes on what it means.
    ///
    /// # Errors
    /// [`Failure`] if there is no going on, and what `on_event` returns.
    pub fn receive<E: From<Failure>>(
        &mut self,
        now_ns: u64,
        datagram: &[u8],
        on_event: &mut dyn FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(language) = &self.language else {
            return self.receive_for_link(now_ns, datagram).map_err(E::from);
        };
        let Some((cookie, answer)) = language.read(datagram) else {
            self.stats.ignored += 1;
            return Ok(());
        };
        let Some(&(id, sent_ns)) = self.transmissions.get(&cookie) else {
            self.stats.ignored += 1;
            return Ok(());
        };
        // A cookie lives exactly as long as its flight.
        let Some(flight) = self.flights.get_mut(&id) else { return Ok(()) };
        self.heard_ns = now_ns;
        match flight.judge(&answer, self.config.datagram_bytes) {
            Verdict::Foreign => {
                self.stats.ignored += 1;
                return Ok(());
            }
            Verdict::Stale => {
                self.link_anew(now_ns);
                return Ok(());
            }
            Verdict::Busy => {
                self.stats.busy += 1;
                return self.on_busy(now_ns, id).map_err(E::from);
            }
            Verdict::Refused { status: Status::BadRequest, .. }
                if flight.bad_requests + 1 < BAD_REQUESTS_BELIEVED =>
            {
                // An answer to an earlier transmission says nothing about the one under way.
                if flight.cookies.last() == Some(&cookie) {
                    flight.bad_requests += 1;
                    self.stats.repeated += 1;
                    enqueue(&mut self.outbox, id, flight);
                }
                return Ok(());
            }
            Verdict::Refused { offset, length, status } => {
                let op = flight.request.op();
                let purpose = flight.purpose;
                self.take_down(id);
                return match purpose {
                    Purpose::User => on_event(Event::Refused(Refusal { id, op, offset, length, status })),
                    Purpose::Replay => {
                        // For good: nobody can say any more what the disk holds.
                        let failure = Failure::Forgotten { offset, length, status };
                        self.lost = Some(failure);
                        Err(failure.into())
                    }
                    // A disk may say it only once: the user's next change or FLUSH is told.
                    Purpose::Shorten => {
                        self.shortening = false;
                        self.unflushed = Some(status);
                        Ok(())
                    }
                };
            }
            Verdict::Piece(mask) => {
                if flight.cookies.last() != Some(&cookie) {
                    self.window.late(sent_ns);
                    self.round_trip.late(now_ns.saturating_sub(sent_ns));
                }
                flight.missing &= !mask;
                flight.busy = None;
                self.round_trip.sample(now_ns.saturating_sub(sent_ns));
                if flight.missing != 0 {
                    // Progress: the wait for the next piece starts anew.
                    let deadline_ns = now_ns + self.round_trip.timeout_ns(flight.tries);
                    set_timer(&mut self.timers, id, flight, deadline_ns);
                }
            }
        }
        self.look_for_overtaken(now_ns, cookie);
        let purpose = self.flights.get(&id).map(|flight| flight.purpose);
        match answer {
            Answer::Data { offset, data } => on_event(Event::Data { id, offset, bytes: data })?,
            Answer::Info(body) => on_event(Event::Info(body))?,
            Answer::Done { .. } | Answer::Failed { .. } => {}
        }
        if let Some(landed) = self.land(now_ns, id)
            && purpose == Some(Purpose::User)
        {
            let Landed { id, op, offset, length, .. } = landed;
            let told = op == Op::Flush || op.is_numbered();
            match self.unflushed.take_if(|_| told) {
                Some(status) => {
                    on_event(Event::Refused(Refusal { id, op: Op::Flush, offset, length, status }))?
                }
                None => on_event(Event::Landed(landed))?,
            }
        }
        Ok(())
    }

    /// A transmission that more than two windows of later ones have overtaken will not be answered. Its flight is sent
    /// again now, and not when its time is up (compare RFC 5681 section 3.2; a disk answers out of order, so three are
    /// no sign here).
    fn look_for_overtaken(&mut self, now_ns: u64, answered: u64) {
        let limit = 2 * u64::from(self.config.window) + OVERTAKEN;
        while let Some(&oldest) = self.order.front() {
            if let Some(&(id, sent_ns)) = self.transmissions.get(&oldest) {
                let distance = answered.wrapping_sub(oldest);
                // Half of all numbers lie before the other half.
                if distance < limit || distance > u64::MAX / 2 {
                    return;
                }
                if let Some(flight) = self.flights.get_mut(&id)
                    && flight.cookies.last() == Some(&oldest)
                    && flight.busy.is_none()
                    && flight.tries < self.config.max_tries
                {
                    self.stats.repeated += 1;
                    self.window.lost(now_ns, sent_ns);
                    enqueue(&mut self.outbox, id, flight);
                }
            }
            self.order.pop_front();
        }
    }

    /// Takes a flight down if nothing of it is missing.
    fn land(&mut self, now_ns: u64, id: u64) -> Option<Landed> {
        if self.flights.get(&id)?.missing != 0 {
            return None;
        }
        let under_way = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
        let flight = self.take_down(id)?;
        self.window.answered(under_way);
        let landed = Landed {
            id,
            op: flight.request.op(),
            offset: flight.request.offset(),
            length: flight.request.length(),
            latency_ns: now_ns.saturating_sub(flight.started_ns.unwrap_or(now_ns)),
        };
        match flight.purpose {
            Purpose::Replay => {
                self.stats.replayed += 1;
                self.go_on_replaying();
            }
            Purpose::User | Purpose::Shorten if landed.op == Op::Flush => {
                self.shortening &= flight.purpose != Purpose::Shorten;
                self.log.forget(flight.log_mark.unwrap_or(0));
            }
            Purpose::User | Purpose::Shorten => self.remember(flight.request),
        }
        Some(landed)
    }

    /// Removes a flight and all that leads to it.
    fn take_down(&mut self, id: u64) -> Option<Flight> {
        let flight = self.flights.remove(&id)?;
        if let Some(timer_ns) = flight.timer_ns {
            self.timers.remove(&(timer_ns, id));
        }
        for cookie in &flight.cookies {
            self.transmissions.remove(cookie);
        }
        self.numbers.remove(&flight.sequence);
        self.datagrams -= flight.datagrams;
        self.users -= usize::from(flight.purpose == Purpose::User);
        Some(flight)
    }

    fn on_busy(&mut self, now_ns: u64, id: u64) -> Result<(), Failure> {
        let Some(flight) = self.flights.get_mut(&id) else { return Ok(()) };
        let busy = match flight.busy {
            // A second refusal of the same transmission (a doubled datagram) changes nothing.
            Some(busy) if busy.pausing => return Ok(()),
            Some(busy) => {
                Busy { pause_ns: (busy.pause_ns * 2).min(BUSY_PAUSE_MAX_NS), pausing: true, ..busy }
            }
            None => Busy { since_ns: now_ns, pause_ns: BUSY_PAUSE_NS, pausing: true },
        };
        let waited_ns = now_ns - busy.since_ns;
        if waited_ns > self.config.busy_patience_ns {
            return Err(Failure::StillBusy { waited_ns });
        }
        flight.busy = Some(busy);
        set_timer(&mut self.timers, id, flight, now_ns + busy.pause_ns);
        self.window.lost(now_ns, sent_ns(&self.transmissions, self.flights.get(&id)));
        Ok(())
    }
}

/// Every part of a flight waits to be sent.
fn enqueue(outbox: &mut VecDeque<(u64, u16)>, id: u64, flight: &Flight) {
    outbox.extend((0..flight.parts()).map(|part| (id, part)));
}

/// When the last transmission of a flight left.
fn sent_ns(transmissions: &HashMap<u64, (u64, u64)>, flight: Option<&Flight>) -> u64 {
    let last = flight.and_then(|flight| flight.cookies.last());
    last.and_then(|cookie| transmissions.get(cookie)).map_or(0, |&(_, sent_ns)| sent_ns)
}

fn set_timer(timers: &mut BTreeSet<(u64, u64)>, id: u64, flight: &mut Flight, deadline_ns: u64) {
    if let Some(old_ns) = flight.timer_ns.replace(deadline_ns) {
        timers.remove(&(old_ns, id));
    }
    timers.insert((deadline_ns, id));
}

#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
