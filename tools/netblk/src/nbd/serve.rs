//! The second part of a connection: requests, and their answers in any order.
//!
//! One thread reads requests and gives them to the disk; the disk's answers go through a queue to a second
//! thread that writes them, so that a client that does not read holds up nobody but itself. What one
//! connection has in memory is bounded: its reader waits while there is too much.

use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::Export;
use super::wire::{Command, Errno, REQUEST_HEADER_BYTES, Request, Style, flag};
use crate::disk::{self, Answer};
use crate::error::Error;
use netblk_proto::v2::Status;

/// The most that one request may move; clients are told.
pub const MOST_BYTES: u32 = 32 << 20;
/// Data of requests that are not answered, for one connection: two of the largest.
const MOST_UNANSWERED_BYTES: u64 = 2 * MOST_BYTES as u64;
/// Requests that are not answered, for one connection.
const MOST_UNANSWERED: u64 = 256;

/// What a connection owes its client.
#[derive(Default)]
struct Owed {
    state: Mutex<(u64, u64)>,
    less: Condvar,
}

impl Owed {
    fn lock(&self) -> MutexGuard<'_, (u64, u64)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for one more.
    fn take(&self, bytes: u64) {
        let mut owed = self.lock();
        while owed.0 > 0 && (owed.0 >= MOST_UNANSWERED || owed.1 + bytes > MOST_UNANSWERED_BYTES) {
            owed = self.less.wait(owed).unwrap_or_else(PoisonError::into_inner);
        }
        *owed = (owed.0 + 1, owed.1 + bytes);
    }

    fn give_back(&self, bytes: u64) {
        let mut owed = self.lock();
        *owed = (owed.0 - 1, owed.1 - bytes);
        self.less.notify_all();
    }

    fn wait_for_none(&self) {
        let mut owed = self.lock();
        while owed.0 > 0 {
            owed = self.less.wait(owed).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A reply: its header, and the data of a READ.
struct Outgoing {
    header: Vec<u8>,
    data: Vec<u8>,
    bytes: u64,
}

/// What a connection did.
#[derive(Debug, Clone, Copy, Default)]
pub struct Served {
    pub requests: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

/// Serves until the client goes; returns when everything that it asked is done.
///
/// # Errors
/// The connection's; or the client does not speak NBD any more.
pub fn serve(
    reader: &mut impl Read,
    mut writer: impl Write + Send + 'static,
    export: &Export,
    style: Style,
) -> (Served, io::Result<()>) {
    let owed = Arc::new(Owed::default());
    let (sender, receiver) = mpsc::channel::<Outgoing>();
    let writing = {
        let owed = owed.clone();
        thread::spawn(move || write_replies(&mut writer, &receiver, &owed))
    };
    let mut served = Served::default();
    let result = read_requests(reader, export, style, &owed, &sender, &mut served);
    owed.wait_for_none();
    drop(sender);
    let written = writing.join().unwrap_or(Ok(()));
    (served, result.and(written))
}

/// Up to this much, copying the data behind their header is cheaper than a second call and, on TCP, a packet for the header.
const COPIED_BYTES: usize = 64 << 10;

fn write_reply(writer: &mut impl Write, mut header: Vec<u8>, data: &[u8]) -> io::Result<()> {
    if data.len() <= COPIED_BYTES {
        header.extend(data);
        return writer.write_all(&header);
    }
    writer.write_all(&header)?;
    writer.write_all(data)
}

fn write_replies(writer: &mut impl Write, receiver: &Receiver<Outgoing>, owed: &Owed) -> io::Result<()> {
    let mut result = Ok(());
    // After an error the rest is still counted, so that the reader does not wait for ever.
    while let Ok(outgoing) = receiver.recv() {
        if result.is_ok() {
            result = write_reply(writer, outgoing.header, &outgoing.data);
        }
        owed.give_back(outgoing.bytes);
    }
    result.and_then(|()| writer.flush())
}

fn read_requests(
    reader: &mut impl Read,
    export: &Export,
    style: Style,
    owed: &Arc<Owed>,
    sender: &Sender<Outgoing>,
    served: &mut Served,
) -> io::Result<()> {
    loop {
        let mut header = [0; REQUEST_HEADER_BYTES];
        match reader.read_exact(&mut header) {
            Ok(()) => {}
            // Without a word, or in the middle of one: what was asked before is done all the same.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
        let broken = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let request = Request::parse(&header).ok_or_else(|| broken("no request where one must be"))?;
        if request.command == Command::Disconnect {
            return Ok(());
        }
        served.requests += 1;
        let moves_data = matches!(request.command, Command::Read | Command::Write);
        if request.command == Command::Write && request.length > MOST_BYTES {
            // Behind it the next request cannot be found without reading all of it.
            return Err(broken("a write that is longer than the client was told"));
        }
        let bytes = if moves_data && request.length <= MOST_BYTES { u64::from(request.length) } else { 0 };
        owed.take(bytes);
        let mut data = Vec::new();
        if request.command == Command::Write {
            data.resize(request.length as usize, 0);
            if let Err(error) = reader.read_exact(&mut data) {
                owed.give_back(bytes);
                return Err(error);
            }
        }
        let answer = {
            let (sender, owed) = (sender.clone(), owed.clone());
            move |result: Result<Vec<u8>, Errno>| {
                let (header, data) = match result {
                    Ok(data) => (style.done(&request), data),
                    Err(error) => (style.failed(&request, error), Vec::new()),
                };
                if sender.send(Outgoing { header, data, bytes }).is_err() {
                    owed.give_back(bytes);
                }
            }
        };
        match judge(&request, data, export) {
            Ok(asked) => {
                match &asked {
                    disk::Request::Read { .. } => served.read_bytes += bytes,
                    disk::Request::Write { .. } => served.written_bytes += bytes,
                    _ => {}
                }
                let flush_after = request.command == Command::Trim && request.has(flag::FUA);
                let disk = export.disk.clone();
                export.disk.submit(
                    asked,
                    Box::new(move |result| match result {
                        // netblk's DISCARD knows no FUA.
                        Ok(_) if flush_after => {
                            let done = move |result| answer(translate(result));
                            disk.submit(disk::Request::Flush, Box::new(done));
                        }
                        result => answer(translate(result)),
                    }),
                );
            }
            Err(error) => answer(Err(error)),
        }
    }
}

/// Whether a request can be made, and which it is to the disk.
fn judge(request: &Request, data: Vec<u8>, export: &Export) -> Result<disk::Request, Errno> {
    let Request { flags, command, offset, length, .. } = *request;
    let fua = request.has(flag::FUA);
    let known = match command {
        Command::Write | Command::Trim | Command::Flush => flag::FUA,
        Command::Read => flag::FUA | flag::DO_NOT_FRAGMENT,
        Command::WriteZeroes => flag::FUA | flag::NO_HOLE,
        Command::Disconnect | Command::Unknown(_) => return Err(Errno::Invalid),
    };
    if flags & !known != 0 {
        return Err(Errno::Invalid);
    }
    if command == Command::Flush {
        return if (offset, length) == (0, 0) { Ok(disk::Request::Flush) } else { Err(Errno::Invalid) };
    }
    let sector_bytes = export.sector_bytes();
    if length == 0 || !length.is_multiple_of(sector_bytes) || !offset.is_multiple_of(sector_bytes.into()) {
        return Err(Errno::Invalid);
    }
    let changes = command != Command::Read;
    if changes && export.is_read_only() {
        return Err(Errno::NotPermitted);
    }
    if offset.checked_add(length.into()).is_none_or(|end| end > export.size_bytes()) {
        return Err(if changes { Errno::NoSpace } else { Errno::Invalid });
    }
    match command {
        Command::Read if length > MOST_BYTES => Err(Errno::Invalid),
        Command::Read => Ok(disk::Request::Read { offset, length }),
        Command::Write => Ok(disk::Request::Write { offset, data, fua }),
        Command::Trim if export.can_trim() => Ok(disk::Request::Discard { offset, length }),
        Command::WriteZeroes => Ok(disk::Request::WriteZeroes { offset, length, fua }),
        _ => Err(Errno::NotSupported),
    }
}

/// The disk's answer in NBD's words.
fn translate(answer: Answer) -> Result<Vec<u8>, Errno> {
    answer.map_err(|error| match &*error {
        Error::Refused { status: Status::ReadOnly, .. } => Errno::NotPermitted,
        Error::Refused { status: Status::OutOfRange, .. } => Errno::NoSpace,
        Error::Refused { status: Status::Unsupported, .. } => Errno::NotSupported,
        Error::Usage(_) => Errno::Invalid,
        _ => Errno::Io,
    })
}
