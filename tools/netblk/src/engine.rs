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
//!                            +--------- time is up ---+   `          without counting a try
//! ```

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::rtt::RoundTrip;
use crate::window::Window;
use netblk_proto::{Flags, Info, Op, Reply, RequestHeader, Status};

/// Pieces a READ may have: one bit each.
pub const MAX_PIECES: u32 = u64::BITS;

/// The first pause after "busy"; it doubles.
const BUSY_PAUSE_NS: u64 = 2_000_000;
/// "Bad request" this often is believed. The engine asks for nothing that INFO forbids, so the first
/// one says that the request was damaged on its way; but a server that was restarted with other
/// options means it.
const BAD_REQUESTS_BELIEVED: u32 = 3;
/// The longest pause after "busy".
const BUSY_PAUSE_MAX_NS: u64 = 200_000_000;

/// What the caller allows.
#[derive(Debug, Clone)]
pub struct Config {
    /// Requests under way at most.
    pub window: u32,
    /// Datagrams under way at most: the server's slots, or what the socket's buffer holds.
    pub datagrams: u32,
    /// The most data in one reply to a READ.
    pub datagram_bytes: u32,
    /// Transmissions of one request before it is given up.
    pub max_tries: u32,
    /// How long a server may go on saying "busy".
    pub busy_patience_ns: u64,
    /// The first cookie: random, so that a stranger's or an earlier run's answers fit nothing.
    pub first_cookie: u64,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Ask for the device's description.
    Info,
    /// Read a range of at most [`MAX_PIECES`] datagrams.
    Read {
        /// Bytes from the start of the device.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Write one datagram of data.
    Write {
        /// Bytes from the start of the device.
        offset: u64,
        /// The data.
        data: Vec<u8>,
        /// Write through the disk's cache.
        fua: bool,
    },
    /// Make completed writes durable.
    Flush,
}

impl Request {
    /// The op that asks for it.
    pub const fn op(&self) -> Op {
        match self {
            Self::Info => Op::Info,
            Self::Read { .. } => Op::Read,
            Self::Write { .. } => Op::Write,
            Self::Flush => Op::Flush,
        }
    }

    /// Bytes from the start of the device (0 for INFO and FLUSH).
    pub const fn offset(&self) -> u64 {
        match self {
            Self::Read { offset, .. } | Self::Write { offset, .. } => *offset,
            Self::Info | Self::Flush => 0,
        }
    }

    /// Bytes moved (0 for INFO and FLUSH).
    pub fn length(&self) -> u32 {
        match self {
            Self::Read { length, .. } => *length,
            Self::Write { data, .. } => u32::try_from(data.len()).unwrap_or(u32::MAX),
            Self::Info | Self::Flush => 0,
        }
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
}

/// Why the engine gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A request was sent as often as allowed and never answered.
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
    /// The server said no.
    Refused {
        /// What.
        op: Op,
        /// Which part of it.
        offset: u64,
        /// How long a part.
        length: u32,
        /// Why.
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
}

struct Flight {
    request: Request,
    started_ns: Option<u64>,
    tries: u32,
    /// Pieces that have not come, one bit each (one piece for all but READ).
    missing: u64,
    /// Datagrams this flight stands for while it is up.
    datagrams: u32,
    cookies: Vec<u64>,
    timer_ns: Option<u64>,
    busy: Option<Busy>,
    bad_requests: u32,
}

/// The server is out of slots for this flight.
#[derive(Clone, Copy)]
struct Busy {
    since_ns: u64,
    pause_ns: u64,
    /// The timer that runs is the pause, not the wait for an answer.
    pausing: bool,
}

/// See the module.
pub struct Engine {
    config: Config,
    round_trip: RoundTrip,
    window: Window,
    flights: HashMap<u64, Flight>,
    next_id: u64,
    /// By cookie: the flight and when that transmission left.
    transmissions: HashMap<u64, (u64, u64)>,
    next_cookie: u64,
    outbox: VecDeque<u64>,
    timers: BTreeSet<(u64, u64)>,
    datagrams: u32,
    stats: Stats,
}

impl Engine {
    /// An engine with nothing under way.
    pub fn new(config: Config) -> Self {
        Self {
            round_trip: RoundTrip::new(),
            window: Window::new(config.window),
            flights: HashMap::new(),
            next_id: 0,
            transmissions: HashMap::new(),
            next_cookie: config.first_cookie,
            outbox: VecDeque::new(),
            timers: BTreeSet::new(),
            datagrams: 0,
            stats: Stats::default(),
            config,
        }
    }

    /// Takes over what INFO said, and the datagrams that may be under way.
    pub fn configure(&mut self, info: &Info, datagrams: u32) {
        self.config.datagram_bytes = info.datagram_bytes;
        self.config.datagrams = datagrams.max(1);
    }

    /// Changes the window, for the next run.
    pub fn set_window(&mut self, window: u32) {
        self.config.window = window;
        self.window = Window::new(window);
    }

    /// What happened so far.
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    /// The smoothed round trip, once there is one.
    pub const fn round_trip_ns(&self) -> Option<u64> {
        self.round_trip.smoothed_ns()
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Whether a request of `length` bytes may start now.
    pub fn has_room(&self, op: Op, length: u32) -> bool {
        let under_way = u32::try_from(self.flights.len()).unwrap_or(u32::MAX);
        under_way == 0
            || (under_way < self.window.allowed()
                && self.datagrams + self.pieces(op, length) <= self.config.datagrams)
    }

    fn pieces(&self, op: Op, length: u32) -> u32 {
        match op {
            Op::Read => length.div_ceil(self.config.datagram_bytes.max(1)).clamp(1, MAX_PIECES),
            Op::Info | Op::Write | Op::Flush => 1,
        }
    }

    /// Puts a request under way; the number it is called by comes back.
    pub fn start(&mut self, request: Request) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let datagrams = self.pieces(request.op(), request.length());
        self.datagrams += datagrams;
        let flight = Flight {
            request,
            started_ns: None,
            tries: 0,
            missing: u64::MAX >> (u64::BITS - datagrams),
            datagrams,
            cookies: Vec::with_capacity(1),
            timer_ns: None,
            busy: None,
            bad_requests: 0,
        };
        self.flights.insert(id, flight);
        self.outbox.push_back(id);
        id
    }

    /// Drops everything under way.
    pub fn abandon(&mut self) {
        self.flights.clear();
        self.transmissions.clear();
        self.outbox.clear();
        self.timers.clear();
        self.datagrams = 0;
    }

    /// Writes the next datagram to send into `datagram`; `false` if there is none now. Whatever is
    /// taken counts as sent at `now_ns`.
    pub fn next_datagram(&mut self, now_ns: u64, datagram: &mut Vec<u8>) -> bool {
        while let Some(id) = self.outbox.pop_front() {
            // A flight may land while it waits here for its repetition.
            let Some(flight) = self.flights.get_mut(&id) else { continue };
            let cookie = self.next_cookie;
            self.next_cookie = self.next_cookie.wrapping_add(1);
            flight.tries += 1;
            flight.started_ns.get_or_insert(now_ns);
            flight.cookies.push(cookie);
            self.transmissions.insert(cookie, (id, now_ns));
            self.stats.sent += 1;
            flight.write(cookie, self.config.datagram_bytes, datagram);
            let deadline_ns = now_ns + self.round_trip.timeout_ns(flight.tries);
            set_timer(&mut self.timers, id, flight, deadline_ns);
            return true;
        }
        false
    }

    /// When [`Engine::on_time`] wants to be called.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.timers.first().map(|&(deadline_ns, _)| deadline_ns)
    }

    /// Looks at the timers.
    ///
    /// # Errors
    /// [`Failure`] if a request has been sent, or refused as busy, for too long.
    pub fn on_time(&mut self, now_ns: u64) -> Result<(), Failure> {
        while let Some(&(deadline_ns, id)) = self.timers.first() {
            if deadline_ns > now_ns {
                break;
            }
            self.timers.pop_first();
            let Some(flight) = self.flights.get_mut(&id) else { continue };
            flight.timer_ns = None;
            let waited_ns = now_ns.saturating_sub(flight.started_ns.unwrap_or(now_ns));
            match &mut flight.busy {
                Some(busy) if busy.pausing => {
                    busy.pausing = false;
                    flight.tries = flight.tries.saturating_sub(1);
                }
                _ => {
                    if flight.tries >= self.config.max_tries {
                        let op = flight.request.op();
                        return Err(Failure::NoAnswer { op, tries: flight.tries, waited_ns });
                    }
                    self.stats.repeated += 1;
                    self.window.lost(now_ns, self.round_trip.timeout_ns(1));
                }
            }
            self.outbox.push_back(id);
        }
        Ok(())
    }

    /// Takes a received datagram and passes on what it means.
    ///
    /// # Errors
    /// [`Failure`] if the server refused a request.
    pub fn receive<E: From<Failure>>(
        &mut self,
        now_ns: u64,
        datagram: &[u8],
        on_event: &mut dyn FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Ok(reply) = Reply::parse(datagram) else {
            self.stats.ignored += 1;
            return Ok(());
        };
        let Some(&(id, sent_ns)) = self.transmissions.get(&reply.cookie()) else {
            self.stats.ignored += 1;
            return Ok(());
        };
        // A cookie lives exactly as long as its flight.
        let Some(flight) = self.flights.get_mut(&id) else { return Ok(()) };
        let verdict = flight.judge(&reply, self.config.datagram_bytes);
        match verdict {
            Verdict::Foreign => {
                self.stats.ignored += 1;
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
                if flight.cookies.last() == Some(&reply.cookie()) {
                    flight.bad_requests += 1;
                    self.stats.repeated += 1;
                    self.outbox.push_back(id);
                }
                return Ok(());
            }
            Verdict::Refused { offset, length, status } => {
                let op = flight.request.op();
                return Err(Failure::Refused { op, offset, length, status }.into());
            }
            Verdict::Piece(mask) => {
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
        match reply {
            Reply::Data { offset, data, .. } => on_event(Event::Data { id, offset, bytes: data })?,
            Reply::Info { body, .. } => on_event(Event::Info(body))?,
            Reply::Written { .. } | Reply::Flushed { .. } | Reply::Failed { .. } => {}
        }
        if let Some(landed) = self.land(now_ns, id) {
            on_event(Event::Landed(landed))?;
        }
        Ok(())
    }

    /// Takes a flight down if nothing of it is missing.
    fn land(&mut self, now_ns: u64, id: u64) -> Option<Landed> {
        if self.flights.get(&id)?.missing != 0 {
            return None;
        }
        let flight = self.flights.remove(&id)?;
        if let Some(timer_ns) = flight.timer_ns {
            self.timers.remove(&(timer_ns, id));
        }
        for cookie in &flight.cookies {
            self.transmissions.remove(cookie);
        }
        self.datagrams -= flight.datagrams;
        self.window.answered();
        Some(Landed {
            id,
            op: flight.request.op(),
            offset: flight.request.offset(),
            length: flight.request.length(),
            latency_ns: now_ns.saturating_sub(flight.started_ns.unwrap_or(now_ns)),
        })
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
        self.window.lost(now_ns, busy.pause_ns);
        set_timer(&mut self.timers, id, flight, now_ns + busy.pause_ns);
        Ok(())
    }
}

fn set_timer(timers: &mut BTreeSet<(u64, u64)>, id: u64, flight: &mut Flight, deadline_ns: u64) {
    if let Some(old_ns) = flight.timer_ns.replace(deadline_ns) {
        timers.remove(&(old_ns, id));
    }
    timers.insert((deadline_ns, id));
}

/// What a reply is to the flight whose cookie it carries.
enum Verdict {
    /// These pieces, and they were missing.
    Piece(u64),
    /// Ask again later.
    Busy,
    /// No, and asking again will not help.
    Refused { offset: u64, length: u32, status: Status },
    /// Not an answer to this request, or one that was here before.
    Foreign,
}

impl Flight {
    /// The part that is missing: the whole request at first.
    fn missing_range(&self, datagram_bytes: u32) -> (u64, u32) {
        let (offset, length) = (self.request.offset(), self.request.length());
        if self.request.op() != Op::Read || self.missing == 0 {
            return (offset, length);
        }
        let first = u64::from(self.missing.trailing_zeros()) * u64::from(datagram_bytes);
        let end = u64::from(u64::BITS - self.missing.leading_zeros()) * u64::from(datagram_bytes);
        let end = end.min(u64::from(length));
        (offset + first, u32::try_from(end - first).unwrap_or(length))
    }

    fn write(&self, cookie: u64, datagram_bytes: u32, datagram: &mut Vec<u8>) {
        let (offset, length) = self.missing_range(datagram_bytes);
        let flags = match self.request {
            Request::Write { fua: true, .. } => Flags::FUA,
            _ => Flags::NONE,
        };
        let header = RequestHeader { op: self.request.op(), flags, cookie, offset, length };
        datagram.clear();
        datagram.extend_from_slice(&header.to_bytes());
        if let Request::Write { data, .. } = &self.request {
            datagram.extend_from_slice(data);
        }
    }

    fn judge(&self, reply: &Reply<'_>, datagram_bytes: u32) -> Verdict {
        match (&self.request, *reply) {
            (_, Reply::Failed { status: Status::Busy, .. }) => Verdict::Busy,
            (_, Reply::Failed { offset, length, status, .. }) => Verdict::Refused { offset, length, status },
            (Request::Read { offset: start, length }, Reply::Data { offset, data, .. }) => {
                match piece(*start, *length, datagram_bytes, offset, data.len()) {
                    Some(mask) if self.missing & mask != 0 => Verdict::Piece(mask),
                    _ => Verdict::Foreign,
                }
            }
            (Request::Write { offset: start, data, .. }, Reply::Written { offset, length, .. })
                if *start == offset && data.len() == length as usize =>
            {
                Verdict::Piece(1)
            }
            (Request::Info, Reply::Info { .. }) | (Request::Flush, Reply::Flushed { .. }) => {
                Verdict::Piece(1)
            }
            _ => Verdict::Foreign,
        }
    }
}

/// The bit of the piece at `offset`, if it is exactly one of those that the READ was cut into.
fn piece(start: u64, length: u32, datagram_bytes: u32, offset: u64, bytes: usize) -> Option<u64> {
    let distance = u32::try_from(offset.checked_sub(start)?).ok()?;
    if distance >= length || !distance.is_multiple_of(datagram_bytes) {
        return None;
    }
    let expected = (length - distance).min(datagram_bytes);
    let index = distance / datagram_bytes;
    (bytes == expected as usize && index < MAX_PIECES).then(|| 1 << index)
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
