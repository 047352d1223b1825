//! A bridge to a disk in memory, and a client that sends what it is told to.

use std::io::{Read, Write};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;

use netblk::disk::{Answer, DiskInfo, Request};
use netblk::nbd::{self, Backend, Export, Listen};

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;

type Done = Box<dyn FnOnce(Answer) + Send>;

/// A disk in memory. Clones are the same disk.
#[derive(Clone)]
pub struct Memory {
    pub read_only: bool,
    pub discard: bool,
    sector_bytes: u32,
    inner: Arc<Inner>,
}

struct Inner {
    state: Mutex<State>,
    asked: Condvar,
}

struct State {
    bytes: Vec<u8>,
    asked: Vec<Request>,
    /// Answers are kept until there are so many.
    hold_back: usize,
    held: Vec<(Answer, Done)>,
}

impl Memory {
    pub fn of(bytes: usize, sector_bytes: u32) -> Self {
        let state = State { bytes: vec![0; bytes], asked: Vec::new(), hold_back: 0, held: Vec::new() };
        let inner = Arc::new(Inner { state: Mutex::new(state), asked: Condvar::new() });
        Self { read_only: false, discard: true, sector_bytes, inner }
    }

    pub fn export(&self) -> Export {
        Export { name: "disk".to_owned(), disk: Arc::new(self.clone()), read_only: false }
    }

    pub fn content(&self) -> Vec<u8> {
        self.inner.state.lock().unwrap().bytes.clone()
    }

    pub fn asked(&self) -> Vec<Request> {
        self.inner.state.lock().unwrap().asked.clone()
    }

    /// Answers come in packs of so many, the last first.
    pub fn hold_back(&self, count: usize) {
        let mut state = self.inner.state.lock().unwrap();
        state.hold_back = count;
        state.let_go();
    }

    pub fn wait_until_asked(&self, count: usize) {
        let state = self.inner.state.lock().unwrap();
        drop(self.inner.asked.wait_while(state, |state| state.asked.len() < count).unwrap());
    }
}

impl State {
    fn let_go(&mut self) {
        if self.held.len() >= self.hold_back {
            for (answer, done) in self.held.drain(..).rev() {
                done(answer);
            }
        }
    }

    fn perform(&mut self, request: &Request) -> Vec<u8> {
        let range = |offset: u64, length: usize| offset as usize..offset as usize + length;
        match request {
            Request::Read { offset, length } => return self.bytes[range(*offset, *length as usize)].to_vec(),
            Request::Write { offset, data, .. } => {
                self.bytes[range(*offset, data.len())].copy_from_slice(data);
            }
            Request::Discard { offset, length } | Request::WriteZeroes { offset, length, .. } => {
                self.bytes[range(*offset, *length as usize)].fill(0);
            }
            Request::Flush => {}
        }
        Vec::new()
    }
}

impl Backend for Memory {
    fn info(&self) -> DiskInfo {
        DiskInfo {
            size_bytes: self.inner.state.lock().unwrap().bytes.len() as u64,
            sector_bytes: self.sector_bytes,
            read_only: self.read_only,
            discard: self.discard,
            write_zeroes: true,
            version: 2,
        }
    }

    fn submit(&self, request: Request, done: Done) {
        let mut state = self.inner.state.lock().unwrap();
        let answer = Ok(state.perform(&request));
        state.asked.push(request);
        state.held.push((answer, done));
        state.let_go();
        self.inner.asked.notify_all();
    }
}

/// A bridge that runs in this process, at a UNIX socket. It ends with this value.
pub struct Bridge {
    path: PathBuf,
    stop: UnixStream,
    thread: Mutex<Option<JoinHandle<()>>>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Bridge {
    pub fn to(memory: &Memory) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("nos-nbd-{}-{number}", std::process::id()));
        let (stop, stopped) = UnixStream::pair().unwrap();
        let (ready, is_ready) = mpsc::channel();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let export = memory.export();
        let (listen, log) = (Listen::Unix(path.clone()), lines.clone());
        let thread = std::thread::spawn(move || {
            let ready = move |_: &Listen| ready.send(()).unwrap();
            nbd::run(&listen, &export, stopped.as_fd(), ready, move |line| log.lock().unwrap().push(line))
                .unwrap();
        });
        is_ready.recv().unwrap();
        Self { path, stop, thread: Mutex::new(Some(thread)), lines }
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.path.display())
    }

    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    /// Tells it to end, as a signal would.
    pub fn end(&self) -> JoinHandle<()> {
        (&self.stop).write_all(&[1]).unwrap();
        self.thread.lock().unwrap().take().unwrap()
    }

    /// Ends it, and returns what it said that is `wanted`.
    pub fn ended_with(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        self.end().join().unwrap();
        self.lines.lock().unwrap().iter().filter(|line| wanted(line)).cloned().collect()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        if self.thread.lock().unwrap().is_some() {
            let _ = self.end().join();
        }
    }
}

/// A client by hand.
pub struct Raw {
    pub stream: UnixStream,
    structured: bool,
}

impl Raw {
    pub fn connect(bridge: &Bridge, structured: bool) -> Self {
        let mut stream = bridge.connect();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3_u32.to_be_bytes()).unwrap();
        let option = |number: u32, data: &[u8]| {
            [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
        };
        if structured {
            stream.write_all(&option(8, &[])).unwrap();
            assert_eq!(read_option_reply(&mut stream), 1);
        }
        // GO to the export without a name, and its block sizes.
        stream.write_all(&option(7, &[0, 0, 0, 0, 0, 1, 0, 3])).unwrap();
        while read_option_reply(&mut stream) != 1 {}
        Self { stream, structured }
    }

    pub fn bytes(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    pub fn send(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, length: u32, data: &[u8]) {
        self.stream.write_all(&Self::bytes(kind, flags, cookie, offset, length, data)).unwrap();
    }

    /// The next reply, to a command of this kind: cookie, error, data.
    pub fn reply(&mut self, kind: u16, length: usize) -> (u64, u32, Vec<u8>) {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        if !self.structured {
            let header = self.take(16);
            assert_eq!(header[..4], [0x67, 0x44, 0x66, 0x98]);
            let error = number(&header[4..8]) as u32;
            let data = if error == 0 && kind == READ { self.take(length) } else { Vec::new() };
            return (number(&header[8..]), error, data);
        }
        let header = self.take(20);
        assert_eq!(header[..6], [0x66, 0x8e, 0x33, 0xef, 0, 1], "one chunk, the last");
        let payload = self.take(number(&header[16..]) as usize);
        let (error, data) = match number(&header[6..8]) {
            0 => (0, Vec::new()),
            1 => (0, payload[8..].to_vec()),
            0x8001 => (number(&payload[..4]) as u32, Vec::new()),
            other => panic!("a chunk of type {other}"),
        };
        assert!(error != 0 || data.len() == if kind == READ { length } else { 0 });
        (number(&header[8..16]), error, data)
    }

    /// Asks, and waits for the answer: error and data.
    pub fn ask(&mut self, kind: u16, offset: u64, length: u32, data: &[u8]) -> (u32, Vec<u8>) {
        self.send(kind, 0, 0x1234_5678_9abc_def0, offset, length, data);
        let (cookie, error, data) = self.reply(kind, length as usize);
        assert_eq!(cookie, 0x1234_5678_9abc_def0);
        (error, data)
    }

    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut taken = vec![0; bytes];
        self.stream.read_exact(&mut taken).unwrap();
        taken
    }
}

fn read_option_reply(stream: &mut UnixStream) -> u32 {
    let mut header = [0; 20];
    stream.read_exact(&mut header).unwrap();
    let field = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    let mut data = vec![0; field(16) as usize];
    stream.read_exact(&mut data).unwrap();
    field(12)
}

pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|place| (place * 31 + place / 251 + place / 65_521) as u8).collect()
}

/// A folder for one test's files.
pub fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("nos-nbd-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a program that `cargo xtask test host` has installed, and returns what it said.
pub fn run(command: &mut Command) -> String {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().unwrap_or_else(|error| {
        panic!("{name}: {error}; `cargo xtask test host` installs what these tests need")
    });
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {}\n{said}", output.status);
    said
}
