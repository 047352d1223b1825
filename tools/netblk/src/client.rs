//! The engine on a socket: sends, receives, and sleeps exactly until something is due.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netblk_proto::Info;
use netblk_proto::v2::{self, NONCE_BYTES, Op, PreSharedKey};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use crate::engine::{Config, Engine, Event, Failure, Landed, Protocol, Refusal, Request, Stats};
use crate::error::Error;

/// Room for answers in the socket: what the system gives of this much.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;

/// What the kernel charges a received datagram beside its rounded data (`struct sk_buff`).
const DATAGRAM_CHARGE_BYTES: usize = 256;

/// "Nobody listens there" this often, with no answer ever: no need to wait for the time-outs.
const REFUSALS_BELIEVED: u32 = 3;

/// Datagrams taken from the socket before the timers are looked at again.
const RECEIVE_BATCH: usize = 256;

/// What is kept of changes that are not durable yet, before a FLUSH is sent by itself.
const LOG_BYTES: usize = 32 << 20;

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Requests under way at most.
    pub window: u32,
    /// Transmissions of a request before it is given up.
    pub max_tries: u32,
    /// How long a server that owes answers may be silent.
    pub patience: Duration,
    /// How long the server may go on saying "busy".
    pub busy_patience: Duration,
    /// Which versions of the protocol to speak.
    pub protocol: Protocol,
    /// The service's key; zeros for none.
    pub key: PreSharedKey,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window: 16,
            max_tries: 8,
            patience: Duration::from_secs(90),
            busy_patience: Duration::from_secs(10),
            protocol: Protocol::Auto,
            key: PreSharedKey::NONE,
        }
    }
}

impl Options {
    /// An engine that behaves so.
    pub(crate) fn engine(&self) -> Engine {
        Engine::new(Config {
            window: self.window,
            datagrams: 1,
            datagram_bytes: 512,
            sector_bytes: 512,
            max_tries: self.max_tries.max(1),
            patience_ns: nanoseconds(self.patience),
            busy_patience_ns: nanoseconds(self.busy_patience),
            first_cookie: random(),
            protocol: self.protocol,
            key: self.key.clone(),
            log_bytes: LOG_BYTES,
            nonces: Box::new(|| {
                let mut nonce = [0; NONCE_BYTES];
                nonce[..8].copy_from_slice(&random().to_ne_bytes());
                nonce[8..].copy_from_slice(&random().to_ne_bytes());
                nonce
            }),
        })
    }
}

/// Work for a client: requests, and what to do with their answers.
pub trait Job {
    /// The next request, or `None` if there is none at the moment. When there is none and nothing
    /// is under way, the job is done.
    ///
    /// # Errors
    /// Ends the run.
    fn next(&mut self, now_ns: u64) -> Result<Option<Request>, Error>;

    /// Part of a READ has come; every part comes once, in any order.
    ///
    /// # Errors
    /// Ends the run.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let _ = (offset, bytes);
        Ok(())
    }

    /// The request that [`Job::next`] returned last has this number.
    fn started(&mut self, id: u64) {
        let _ = id;
    }

    /// Part of the READ with this number has come. Those who do not tell their READs apart take [`Job::data`].
    ///
    /// # Errors
    /// Ends the run.
    fn piece(&mut self, id: u64, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let _ = id;
        self.data(offset, bytes)
    }

    /// A request was refused, or the disk failed it.
    ///
    /// # Errors
    /// Ends the run; it does so if nothing else is said.
    fn refused(&mut self, refusal: &Refusal) -> Result<(), Error> {
        Err((*refusal).into())
    }

    /// The body of an INFO has come.
    ///
    /// # Errors
    /// Ends the run.
    fn info(&mut self, body: &[u8]) -> Result<(), Error> {
        let _ = body;
        Ok(())
    }

    /// A request is done.
    ///
    /// # Errors
    /// Ends the run.
    fn landed(&mut self, landed: &Landed, now_ns: u64) -> Result<(), Error> {
        let _ = (landed, now_ns);
        Ok(())
    }
}

/// A connection to one server, in so far as UDP has any: the device is known.
pub struct Client {
    target: String,
    socket: UdpSocket,
    engine: Engine,
    info: Option<Info>,
    epoch: Instant,
    interrupted: Arc<AtomicBool>,
    outgoing: Vec<u8>,
    /// `outgoing` holds a datagram that the socket did not take yet.
    outgoing_waits: bool,
    incoming: Vec<u8>,
    refusals: u32,
    answered: bool,
    /// Becomes readable when the job has something new.
    bell: Option<Arc<OwnedFd>>,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoAnswer { op, tries, waited_ns } => Self::NoAnswer {
                target: String::new(),
                op,
                tries,
                waited: Duration::from_nanos(waited_ns),
                refused: false,
            },
            Failure::StillBusy { waited_ns } => Self::StillBusy { waited: Duration::from_nanos(waited_ns) },
            Failure::NoSession => Self::NoSession,
            Failure::KeyNeeded => Self::KeyNeeded,
            Failure::Nonsense(error) => Self::Nonsense(error),
            Failure::Changed => Self::Changed,
            Failure::Forgotten { offset, length, status } => Self::Forgotten { offset, length, status },
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        let Refusal { op, offset, length, status, .. } = refusal;
        Self::Refused { op, offset, length, status }
    }
}

impl Client {
    /// Asks `target` (HOST:PORT) what it serves. `interrupted` ends any run when it becomes true.
    ///
    /// # Errors
    /// If the target is none, or does not answer, or answers nonsense.
    pub fn connect(target: &str, options: &Options, interrupted: Arc<AtomicBool>) -> Result<Self, Error> {
        let address = resolve(target)?;
        let socket = open(address).map_err(Error::local(format!("a socket to {target}")))?;
        let engine = options.engine();
        let mut client = Self {
            target: target.to_owned(),
            socket,
            engine,
            info: None,
            epoch: Instant::now(),
            interrupted,
            outgoing: Vec::new(),
            outgoing_waits: false,
            incoming: vec![0; 1 << 16],
            refusals: 0,
            answered: false,
            bell: None,
        };
        let mut asking = AskInfo { asked: false, info: None };
        client.run(&mut asking)?;
        let info = asking.info.ok_or_else(|| Error::Usage("the server described nothing".to_owned()))?;
        let datagrams = client.receivable(&info).min(info.slots);
        client.engine.configure(&info, datagrams);
        client.info = Some(info);
        Ok(client)
    }

    /// The device, as the server described it when asked.
    pub fn info(&self) -> Info {
        self.info.expect("connect() returns a client that has asked")
    }

    /// What version 2 adds to the description; `None` where version 1 is spoken.
    pub fn session_info(&self) -> Option<v2::Info> {
        self.engine.session_info().copied()
    }

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        self.engine.stats()
    }

    /// The smoothed round trip.
    pub fn round_trip(&self) -> Option<Duration> {
        self.engine.round_trip_ns().map(Duration::from_nanos)
    }

    /// Changes the window, for the next run.
    pub fn set_window(&mut self, window: u32) {
        self.engine.set_window(window);
    }

    /// From here on patience alone decides when the server is given up, not how often it was asked.
    pub fn rely_on_patience(&mut self) {
        self.engine.set_max_tries(u32::MAX);
    }

    /// The version of the protocol that is spoken.
    pub fn version(&self) -> u8 {
        if self.session_info().is_some() { 2 } else { 1 }
    }

    /// Forgets an interruption: what follows puts things back in order.
    pub fn clear_interruption(&mut self) {
        self.interrupted.store(false, Ordering::Relaxed);
    }

    /// Has runs look at their job again when `bell` becomes readable; the job makes it unreadable.
    pub(crate) fn set_bell(&mut self, bell: Arc<OwnedFd>) {
        self.bell = Some(bell);
    }

    /// Makes every completed write durable.
    ///
    /// # Errors
    /// As [`Client::run`].
    pub fn flush(&mut self) -> Result<(), Error> {
        let mut flush = Some(Request::Flush);
        self.run(&mut Once(&mut flush))
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// The first that the job, the server or the network gives; nothing is under way after it.
    pub fn run(&mut self, job: &mut dyn Job) -> Result<(), Error> {
        let result = self.run_inner(job);
        self.engine.abandon();
        self.outgoing_waits = false;
        result.map_err(|error| self.complete(error))
    }

    fn run_inner(&mut self, job: &mut dyn Job) -> Result<(), Error> {
        let mut waiting: Option<Request> = None;
        loop {
            let now_ns = self.now_ns();
            loop {
                if waiting.is_none() {
                    waiting = job.next(now_ns)?;
                }
                let fits = |request: &mut Request| self.engine.has_room(request);
                match waiting.take_if(fits) {
                    Some(request) => job.started(self.engine.start(request)),
                    None => break,
                }
            }
            self.send()?;
            if waiting.is_none() && self.engine.is_idle() {
                return Ok(());
            }
            // A job whose next request waits for room has its turn when there is some, not when it has more.
            self.sleep(waiting.is_none())?;
            self.receive(job)?;
            self.engine.on_time(self.now_ns())?;
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
        }
    }

    fn send(&mut self) -> Result<(), Error> {
        loop {
            if !self.outgoing_waits {
                let now_ns = self.now_ns();
                if !self.engine.next_datagram(now_ns, &mut self.outgoing) {
                    return Ok(());
                }
            }
            self.outgoing_waits = false;
            match self.socket.send(&self.outgoing) {
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => {
                        self.outgoing_waits = true;
                        return Ok(());
                    }
                    // The answer of an earlier datagram: this one was not sent.
                    ErrorKind::ConnectionRefused => {
                        self.outgoing_waits = true;
                        self.refused()?;
                    }
                    // A full queue on the way is a loss like any other.
                    ErrorKind::Interrupted => self.outgoing_waits = true,
                    _ if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
                    _ => return Err(Error::local(format!("sending to {}", self.target))(error)),
                },
            }
        }
    }

    /// Sleeps until a datagram comes, the one that waits can be sent, a timer is due, or the job has something new.
    fn sleep(&self, for_job: bool) -> Result<(), Error> {
        let timeout = self.engine.deadline_ns().map(|deadline_ns| {
            let left_ns = deadline_ns.saturating_sub(self.now_ns());
            Timespec {
                tv_sec: i64::try_from(left_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (left_ns % 1_000_000_000).try_into().unwrap_or(0),
            }
        });
        let mut wanted = PollFlags::IN;
        wanted.set(PollFlags::OUT, self.outgoing_waits);
        let mut watched = vec![PollFd::new(&self.socket, wanted)];
        let bell = self.bell.as_ref().filter(|_| for_job);
        watched.extend(bell.map(|bell| PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)));
        match poll(&mut watched, timeout.as_ref()) {
            // A signal: whoever called looks at what it was.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Error::local("waiting for answers")(error.into())),
        }
    }

    fn receive(&mut self, job: &mut dyn Job) -> Result<(), Error> {
        for _ in 0..RECEIVE_BATCH {
            let bytes = match self.socket.recv(&mut self.incoming) {
                Ok(bytes) => bytes,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted => continue,
                    ErrorKind::ConnectionRefused => {
                        self.refused()?;
                        continue;
                    }
                    _ => return Err(Error::local(format!("receiving from {}", self.target))(error)),
                },
            };
            self.answered = true;
            let now_ns = nanoseconds(self.epoch.elapsed());
            self.engine.receive(now_ns, &self.incoming[..bytes], &mut |event| match event {
                Event::Data { id, offset, bytes } => job.piece(id, offset, bytes),
                Event::Info(body) => job.info(body),
                Event::Landed(landed) => job.landed(&landed, now_ns),
                Event::Refused(refusal) => job.refused(&refusal),
            })?;
        }
        Ok(())
    }

    /// The host said that nobody listens. It may be starting up, so that is not yet the end.
    fn refused(&mut self) -> Result<(), Error> {
        self.refusals += 1;
        if self.answered || self.refusals < REFUSALS_BELIEVED {
            return Ok(());
        }
        let waited = self.epoch.elapsed();
        Err(Error::NoAnswer {
            target: String::new(),
            op: Op::Info,
            tries: self.refusals,
            waited,
            refused: true,
        })
    }

    /// Adds what only the client knows to an error.
    fn complete(&self, error: Error) -> Error {
        match error {
            Error::NoAnswer { op, tries, waited, .. } => Error::NoAnswer {
                target: self.target.clone(),
                op,
                tries,
                waited,
                refused: self.refusals > 0 && !self.answered,
            },
            other => other,
        }
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }

    /// Answers that the socket's buffer holds if this program is not scheduled for a while.
    fn receivable(&self, info: &Info) -> u32 {
        let buffer_bytes = sockopt::socket_recv_buffer_size(&self.socket).unwrap_or(1 << 16);
        let datagram_bytes = info.datagram_bytes as usize + v2::DATAGRAM_OVERHEAD_BYTES;
        let charge_bytes = datagram_bytes.next_power_of_two() + DATAGRAM_CHARGE_BYTES;
        u32::try_from(buffer_bytes / charge_bytes).unwrap_or(u32::MAX).max(1)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn resolve(target: &str) -> Result<SocketAddr, Error> {
    let wrong = |why: String| Error::Target { target: target.to_owned(), why };
    if !target.contains(':') {
        return Err(wrong("the port is missing".to_owned()));
    }
    let addresses = target.to_socket_addrs().map_err(|error| wrong(error.to_string()))?;
    // netblk is IPv4: its UDP checksum is zero.
    addresses
        .into_iter()
        .find(SocketAddr::is_ipv4)
        .ok_or_else(|| wrong("it has no IPv4 address, and netblk is IPv4".to_owned()))
}

fn open(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(address)?;
    socket.set_nonblocking(true)?;
    // Either may be refused or cut down; what came of it is asked for later.
    let _ = sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES);
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES);
    Ok(socket)
}

/// A number that differs from run to run: the hasher's keys are the standard library's random ones.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A random seed, for those who were given none.
pub fn random_seed() -> u64 {
    random()
}

struct AskInfo {
    asked: bool,
    info: Option<Info>,
}

impl Job for AskInfo {
    fn next(&mut self, _now_ns: u64) -> Result<Option<Request>, Error> {
        Ok((!std::mem::replace(&mut self.asked, true)).then_some(Request::Info))
    }

    fn info(&mut self, body: &[u8]) -> Result<(), Error> {
        self.info = Some(Info::parse(body).map_err(Error::Nonsense)?);
        Ok(())
    }
}

struct Once<'a>(&'a mut Option<Request>);

impl Job for Once<'_> {
    fn next(&mut self, _now_ns: u64) -> Result<Option<Request>, Error> {
        Ok(self.0.take())
    }
}
