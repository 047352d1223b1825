//! A remote disk as a program uses one: from many threads, requests of any length, any number at once.
//!
//! One thread has the socket. It cuts each request into what the protocol carries, keeps as many pieces
//! under way as the window allows, taken from all requests in turns, and puts the answers together. A
//! request that touches what an earlier one changes, or changes what an earlier one touches, waits for
//! it: the protocol promises order only between what was answered and what is asked (docs/netblk-protocol.md).
//!
//! A dead link or a restarted server is not an error here, as long as it lasts no longer than the
//! patience that was asked for.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, eventfd};

use crate::client::{Client, Job, Options};
use crate::engine::{self, Landed, Refusal};
use crate::error::Error;

/// What is asked of a [`Disk`]. Offsets and lengths are bytes, whole sectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The answer is the data.
    Read {
        /// From the start of the device.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Writes.
    Write {
        /// From the start of the device.
        offset: u64,
        /// What.
        data: Vec<u8>,
        /// Whether it is durable when it is answered.
        fua: bool,
    },
    /// Makes durable what was answered before.
    Flush,
    /// The content is not needed any more.
    Discard {
        /// From the start of the device.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Writes zeros; where the server has no such op, as data.
    WriteZeroes {
        /// From the start of the device.
        offset: u64,
        /// How much.
        length: u32,
        /// Whether it is durable when it is answered.
        fua: bool,
    },
}

/// The data of a READ, nothing for the others; or why not, shared by all that failed with it.
pub type Answer = Result<Vec<u8>, Arc<Error>>;

/// What a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskInfo {
    /// Bytes, whole sectors.
    pub size_bytes: u64,
    /// Bytes of a sector.
    pub sector_bytes: u32,
    /// Whether it refuses to be changed.
    pub read_only: bool,
    /// Whether DISCARD is understood.
    pub discard: bool,
    /// Whether WRITE ZEROES needs no data on the wire.
    pub write_zeroes: bool,
    /// The version of the protocol that is spoken.
    pub version: u8,
}

type Done = Box<dyn FnOnce(Answer) + Send>;

/// A remote disk. Clones are the same disk; its thread ends with the last of them, when what was asked is answered.
#[derive(Clone)]
pub struct Disk {
    shared: Arc<Shared>,
}

struct Shared {
    info: DiskInfo,
    sender: Option<Sender<(Request, Done)>>,
    bell: Arc<OwnedFd>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Disk {
    /// Connects to `target` (HOST:PORT).
    ///
    /// # Errors
    /// If there is no such target, it does not answer, or it will not have this client.
    pub fn open(target: &str, options: &Options) -> Result<Self, Error> {
        let mut client = Client::connect(target, options, Arc::new(AtomicBool::new(false)))?;
        client.rely_on_patience();
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Error::local("a bell for the disk's thread")(error.into()))?;
        let bell = Arc::new(bell);
        client.set_bell(bell.clone());
        let limits = Limits::of(&client);
        let info = limits.info;
        let (sender, receiver) = mpsc::channel();
        let pump = Pump::new(limits, receiver, bell.clone());
        let thread = thread::Builder::new()
            .name("netblk disk".to_owned())
            .spawn(move || pump.run(client))
            .map_err(Error::local("starting the disk's thread"))?;
        let shared = Shared { info, sender: Some(sender), bell, thread: Mutex::new(Some(thread)) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What it is.
    pub fn info(&self) -> DiskInfo {
        self.shared.info
    }

    /// Asks for something; `done` is called with the answer, from the disk's thread, which it must not keep.
    pub fn submit(&self, request: Request, done: impl FnOnce(Answer) + Send + 'static) {
        let Some(sender) = &self.shared.sender else { return };
        if let Err(refused) = sender.send((request, Box::new(done))) {
            let (_, done) = refused.0;
            return done(Err(Arc::new(Error::Usage("the disk's thread has ended".to_owned()))));
        }
        self.shared.ring();
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// The server's, the network's once patience has ended, or that the request is none for this disk.
    pub fn ask(&self, request: Request) -> Answer {
        let (sender, receiver) = mpsc::channel();
        self.submit(request, move |answer| {
            // Whoever asked may have been given up.
            let _ = sender.send(answer);
        });
        receiver.recv().unwrap_or_else(|_| Err(Arc::new(Error::Interrupted)))
    }
}

impl Shared {
    fn ring(&self) {
        // It can only be full, and then it rings.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.sender = None;
        self.ring();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A callback may hold the last clone: the thread cannot wait for itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// What the server takes at once.
#[derive(Debug, Clone, Copy)]
struct Limits {
    info: DiskInfo,
    read_bytes: u32,
    write_bytes: u32,
    discard_bytes: u32,
    zeroes_bytes: u32,
}

impl Limits {
    fn of(client: &Client) -> Self {
        let (info, session) = (client.info(), client.session_info());
        let able = session.map(|session| session.capabilities).unwrap_or_default();
        Self {
            info: DiskInfo {
                size_bytes: info.size_bytes,
                sector_bytes: info.sector_bytes,
                read_only: info.read_only,
                discard: able.discard,
                write_zeroes: able.write_zeroes,
                version: client.version(),
            },
            read_bytes: info.max_read_bytes.min(info.datagram_bytes.saturating_mul(engine::MAX_PIECES)),
            write_bytes: info.datagram_bytes.max(info.sector_bytes).min(info.max_write_bytes),
            discard_bytes: session.map_or(0, |session| session.max_discard_bytes),
            zeroes_bytes: session.map_or(0, |session| session.max_write_zeroes_bytes),
        }
    }

    /// Why a request cannot be made.
    fn check(&self, request: &Request) -> Result<(), Error> {
        let (offset, length) = request.range();
        let sector_bytes = u64::from(self.info.sector_bytes);
        if !offset.is_multiple_of(sector_bytes) || !length.is_multiple_of(sector_bytes) {
            return Err(Error::Usage(format!(
                "{length} bytes at {offset}: not whole sectors of {sector_bytes} bytes"
            )));
        }
        if offset.checked_add(length).is_none_or(|end| end > self.info.size_bytes) {
            return Err(Error::Usage(format!("{length} bytes at {offset}: the device ends before")));
        }
        if request.is_change() && self.info.read_only {
            return Err(Error::Usage("the device is read-only".to_owned()));
        }
        if matches!(request, Request::Discard { .. }) && !self.info.discard {
            return Err(Error::Usage("the device knows no discard".to_owned()));
        }
        Ok(())
    }

    /// The next piece of a request from `done` bytes on, and its length.
    fn piece(&self, request: &Request, done: u64) -> (engine::Request, u64) {
        let (offset, length) = request.range();
        let (at, left) = (offset + done, length - done);
        // Each limit is a u32, so the piece is one.
        let cut = |limit: u32| u32::try_from(left).unwrap_or(u32::MAX).min(limit);
        let write = |data: Vec<u8>, fua| engine::Request::Write { offset: at, data: Arc::new(data), fua };
        let piece = match request {
            Request::Flush => engine::Request::Flush,
            Request::Read { .. } => engine::Request::Read { offset: at, length: cut(self.read_bytes) },
            Request::Discard { .. } => {
                engine::Request::Discard { offset: at, length: cut(self.discard_bytes) }
            }
            Request::WriteZeroes { fua, .. } if self.info.write_zeroes => {
                engine::Request::WriteZeroes { offset: at, length: cut(self.zeroes_bytes), fua: *fua }
            }
            Request::WriteZeroes { fua, .. } => write(vec![0; cut(self.write_bytes) as usize], *fua),
            Request::Write { data, fua, .. } => {
                let start = usize::try_from(done).unwrap_or(usize::MAX);
                let end = start + cut(self.write_bytes) as usize;
                write(data[start..end].to_vec(), *fua)
            }
        };
        let bytes = piece.length().into();
        (piece, bytes)
    }
}

impl Request {
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Flush => (0, 0),
            Self::Read { offset, length }
            | Self::Discard { offset, length }
            | Self::WriteZeroes { offset, length, .. } => (*offset, u64::from(*length)),
            Self::Write { offset, data, .. } => (*offset, data.len() as u64),
        }
    }

    const fn is_change(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. })
    }

    /// Whether one must wait for the other.
    fn conflicts(&self, other: &Self) -> bool {
        let ((a, a_bytes), (b, b_bytes)) = (self.range(), other.range());
        (self.is_change() || other.is_change()) && a < b + b_bytes && b < a + a_bytes
    }
}

/// A request that is not answered yet.
struct Work {
    request: Request,
    done: Done,
    /// Earlier requests that it waits for.
    waits_for: usize,
    /// Bytes that have been given to the engine; a FLUSH counts as one.
    issued: u64,
    /// Pieces that the engine has.
    under_way: u32,
    /// The data of a READ.
    data: Vec<u8>,
    failed: Option<Arc<Error>>,
}

impl Work {
    /// What must be issued.
    fn total(&self) -> u64 {
        if self.request == Request::Flush { 1 } else { self.request.range().1 }
    }

    /// Whether there is more to give to the engine; not once a part has failed.
    fn has_more(&self) -> bool {
        self.failed.is_none() && self.issued < self.total()
    }
}

/// The disk's thread.
struct Pump {
    limits: Limits,
    receiver: Receiver<(Request, Done)>,
    bell: Arc<OwnedFd>,
    works: BTreeMap<u64, Work>,
    next_ticket: u64,
    /// Works that have more for the engine and wait for nobody, in turns.
    ready: VecDeque<u64>,
    /// By the engine's number.
    pieces: HashMap<u64, u64>,
    /// The work of the piece that the engine is about to number.
    issuing: u64,
    closed: bool,
}

impl Pump {
    fn new(limits: Limits, receiver: Receiver<(Request, Done)>, bell: Arc<OwnedFd>) -> Self {
        Self {
            limits,
            receiver,
            bell,
            works: BTreeMap::new(),
            next_ticket: 0,
            ready: VecDeque::new(),
            pieces: HashMap::new(),
            issuing: 0,
            closed: false,
        }
    }

    fn run(mut self, mut client: Client) {
        while !self.closed {
            match self.receiver.recv() {
                Ok((request, done)) => self.admit(request, done),
                Err(_) => break,
            }
            if let Err(error) = client.run(&mut self) {
                self.fail_all(&Arc::new(error));
            }
        }
    }

    /// Takes what was submitted since the last time.
    fn take_submitted(&mut self) {
        let mut rung = [0; 8];
        // Before the channel is looked at, so that a ring in between is heard the next time.
        let _ = rustix::io::read(&*self.bell, &mut rung);
        loop {
            match self.receiver.try_recv() {
                Ok((request, done)) => self.admit(request, done),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    fn admit(&mut self, request: Request, done: Done) {
        if let Err(error) = self.limits.check(&request) {
            return done(Err(Arc::new(error)));
        }
        if request != Request::Flush && request.range().1 == 0 {
            return done(Ok(Vec::new()));
        }
        let waits_for = self.works.values().filter(|work| work.request.conflicts(&request)).count();
        let data = match &request {
            Request::Read { length, .. } => vec![0; *length as usize],
            _ => Vec::new(),
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.works
            .insert(ticket, Work { request, done, waits_for, issued: 0, under_way: 0, data, failed: None });
        if waits_for == 0 {
            self.ready.push_back(ticket);
        }
    }

    /// A piece has ended; if it was the last of its request, so has that.
    fn ended(&mut self, id: u64, error: Option<Error>) {
        let Some(ticket) = self.pieces.remove(&id) else { return };
        let Some(work) = self.works.get_mut(&ticket) else { return };
        work.under_way -= 1;
        if let Some(error) = error {
            work.failed.get_or_insert(Arc::new(error));
        }
        if work.under_way > 0 || work.has_more() {
            return;
        }
        let Some(work) = self.works.remove(&ticket) else { return };
        for (&later, waiting) in self.works.range_mut(ticket..) {
            if waiting.request.conflicts(&work.request) {
                waiting.waits_for -= 1;
                if waiting.waits_for == 0 {
                    self.ready.push_back(later);
                }
            }
        }
        (work.done)(work.failed.map_or(Ok(work.data), Err));
    }

    fn fail_all(&mut self, error: &Arc<Error>) {
        self.ready.clear();
        self.pieces.clear();
        for work in std::mem::take(&mut self.works).into_values() {
            (work.done)(Err(error.clone()));
        }
    }
}

impl Job for Pump {
    fn next(&mut self, _now_ns: u64) -> Result<Option<engine::Request>, Error> {
        self.take_submitted();
        while let Some(ticket) = self.ready.pop_front() {
            let Some(work) = self.works.get_mut(&ticket).filter(|work| work.has_more()) else { continue };
            let (piece, bytes) = self.limits.piece(&work.request, work.issued);
            work.issued += bytes.max(1);
            work.under_way += 1;
            if work.has_more() {
                self.ready.push_back(ticket);
            }
            self.issuing = ticket;
            return Ok(Some(piece));
        }
        Ok(None)
    }

    fn started(&mut self, id: u64) {
        self.pieces.insert(id, self.issuing);
    }

    fn piece(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if let Some(work) = self.pieces.get(&id).and_then(|ticket| self.works.get_mut(ticket)) {
            let start = usize::try_from(offset - work.request.range().0).unwrap_or(usize::MAX);
            if let Some(place) = start.checked_add(bytes.len()).and_then(|end| work.data.get_mut(start..end))
            {
                place.copy_from_slice(bytes);
            }
        }
        Ok(())
    }

    fn landed(&mut self, landed: &Landed, _now_ns: u64) -> Result<(), Error> {
        self.ended(landed.id, None);
        Ok(())
    }

    fn refused(&mut self, refusal: &Refusal) -> Result<(), Error> {
        self.ended(refusal.id, Some((*refusal).into()));
        Ok(())
    }
}
