//! Ranges, read and written in order or compared with what they should hold.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;

use netblk_proto::Info;

use crate::client::{Client, Job};
use crate::engine::{Landed, MAX_PIECES, Request};
use crate::error::{Error, Mismatch};

/// How far a READ may run ahead of the oldest that is missing something: what is kept in memory.
const AHEAD_BYTES: u64 = 32 << 20;

/// Bytes of a mismatch that are shown.
const SHOWN_BYTES: usize = 16;

/// Told of every byte that is done.
pub type Progress<'a> = &'a dyn Fn(u64);

/// Checks that a range is whole sectors of the device.
///
/// # Errors
/// [`Error::Usage`] says what does not fit.
pub fn check_range(info: &Info, offset: u64, length: u64) -> Result<(), Error> {
    let sector = u64::from(info.sector_bytes);
    if !offset.is_multiple_of(sector) || !length.is_multiple_of(sector) {
        return Err(Error::Usage(format!(
            "offset {offset} and length {length} must be whole sectors of {sector} bytes"
        )));
    }
    check_inside(info, offset, length)
}

/// Checks that a range lies on the device.
///
/// # Errors
/// [`Error::Usage`] says what does not fit.
pub fn check_inside(info: &Info, offset: u64, length: u64) -> Result<(), Error> {
    match offset.checked_add(length) {
        Some(end) if end <= info.size_bytes => Ok(()),
        _ => Err(Error::Usage(format!(
            "{length} bytes at {offset} do not lie on the device, which has {} bytes",
            info.size_bytes
        ))),
    }
}

/// Checks that the device may be written.
///
/// # Errors
/// [`Error::Usage`] if it is served read-only.
pub fn check_writable(info: &Info) -> Result<(), Error> {
    if info.read_only {
        return Err(Error::Usage(
            "the disk is served read-only; start it again without `ro` to write".to_owned(),
        ));
    }
    Ok(())
}

/// The most one READ of this program asks for.
fn read_step(info: &Info) -> u32 {
    info.max_read_bytes.min(info.datagram_bytes.saturating_mul(MAX_PIECES))
}

/// READs of a range from its start to its end.
struct Reads<'a, F> {
    next: u64,
    end: u64,
    step: u32,
    /// Everything before this is done; the reads stay within [`AHEAD_BYTES`] of it.
    done: u64,
    on_data: F,
    progress: Progress<'a>,
}

impl<F: FnMut(u64, &[u8]) -> Result<u64, Error>> Job for Reads<'_, F> {
    fn next(&mut self, _now_ns: u64) -> Result<Option<Request>, Error> {
        if self.next >= self.end || self.next > self.done + AHEAD_BYTES {
            return Ok(None);
        }
        let length = (self.end - self.next).min(self.step.into()) as u32;
        let offset = self.next;
        self.next += u64::from(length);
        Ok(Some(Request::Read { offset, length }))
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.done = (self.on_data)(offset, bytes)?;
        (self.progress)(bytes.len() as u64);
        Ok(())
    }
}

/// Reads whole sectors and gives `on_data` every piece once, in any order; it answers up to where
/// it is through.
fn read_pieces(
    client: &mut Client,
    offset: u64,
    length: u64,
    progress: Progress<'_>,
    on_data: impl FnMut(u64, &[u8]) -> Result<u64, Error>,
) -> Result<(), Error> {
    let step = read_step(&client.info());
    let end = offset + length;
    client.run(&mut Reads { next: offset, end, step, done: offset, on_data, progress })
}

/// Reads any range of bytes of the device into `sink`, in order.
///
/// # Errors
/// The server's, the network's, or the sink's.
pub fn read_to(
    client: &mut Client,
    offset: u64,
    length: u64,
    sink: &mut dyn Write,
    progress: Progress<'_>,
) -> Result<(), Error> {
    let info = client.info();
    check_inside(&info, offset, length)?;
    let sector = u64::from(info.sector_bytes);
    let (wanted_start, wanted_end) = (offset, offset + length);
    let start = wanted_start / sector * sector;
    let end = wanted_end.next_multiple_of(sector);
    let mut next = start;
    let mut early: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut write = |at: u64, bytes: &[u8]| {
        // The first and the last sector may be wanted in part.
        let from = (wanted_start.max(at) - at).min(bytes.len() as u64) as usize;
        let to = (wanted_end.max(at) - at).min(bytes.len() as u64) as usize;
        sink.write_all(&bytes[from..to.max(from)]).map_err(Error::local("writing what was read"))
    };
    read_pieces(client, start, end - start, progress, |at, bytes| {
        if at != next {
            early.insert(at, bytes.to_vec());
            return Ok(next);
        }
        write(at, bytes)?;
        next += bytes.len() as u64;
        while let Some(bytes) = early.remove(&next) {
            write(next, &bytes)?;
            next += bytes.len() as u64;
        }
        Ok(next)
    })?;
    sink.flush().map_err(Error::local("writing what was read"))
}

/// Reads whole sectors into memory.
///
/// # Errors
/// The server's or the network's.
pub fn read_all(
    client: &mut Client,
    offset: u64,
    length: u64,
    progress: Progress<'_>,
) -> Result<Vec<u8>, Error> {
    check_range(&client.info(), offset, length)?;
    let bytes = usize::try_from(length).map_err(|_| too_large(length))?;
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| too_large(length))?;
    buffer.resize(bytes, 0);
    read_pieces(client, offset, length, progress, |at, bytes| {
        let start = (at - offset) as usize;
        buffer[start..start + bytes.len()].copy_from_slice(bytes);
        // Its place is reserved, so nothing is kept beside: no need to hold reads back.
        Ok(offset + length)
    })?;
    Ok(buffer)
}

fn too_large(length: u64) -> Error {
    Error::Usage(format!("{length} bytes do not fit this machine's memory"))
}

/// Reads whole sectors and compares them with what `expected` says they hold.
///
/// # Errors
/// [`Error::Mismatch`] once the whole range has been compared; or the server's or the network's.
pub fn compare(
    client: &mut Client,
    offset: u64,
    length: u64,
    progress: Progress<'_>,
    mut expected: impl FnMut(u64, &mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let info = client.info();
    check_range(&info, offset, length)?;
    let sector_bytes = info.sector_bytes as usize;
    let mut right = Vec::new();
    let mut first: Option<Mismatch> = None;
    read_pieces(client, offset, length, progress, |at, found| {
        right.resize(found.len(), 0);
        expected(at, &mut right)?;
        if right != found {
            let sectors = right.chunks(sector_bytes).zip(found.chunks(sector_bytes));
            let differing = sectors.filter(|(right, found)| right != found).count() as u64;
            let start = right.iter().zip(found).position(|(right, found)| right != found).unwrap_or(0);
            let shown = |bytes: &[u8]| bytes[start..].iter().take(SHOWN_BYTES).copied().collect();
            let place = at + start as u64;
            let total = first.as_ref().map_or(0, |mismatch| mismatch.sectors) + differing;
            match &mut first {
                Some(mismatch) if mismatch.offset < place => mismatch.sectors = total,
                _ => {
                    first = Some(Mismatch {
                        offset: place,
                        sectors: total,
                        expected: shown(&right),
                        found: shown(found),
                    });
                }
            }
        }
        Ok(offset + length)
    })?;
    first.map_or(Ok(()), |mismatch| Err(Error::Mismatch(mismatch)))
}

/// WRITEs of whatever a reader gives, from an offset on.
struct Writes<'a> {
    next: u64,
    end: u64,
    step: usize,
    sector_bytes: usize,
    fua: bool,
    source: &'a mut dyn Read,
    exhausted: bool,
    tail: Vec<u8>,
    progress: Progress<'a>,
}

impl Job for Writes<'_> {
    fn next(&mut self, _now_ns: u64) -> Result<Option<Request>, Error> {
        if self.exhausted {
            return Ok(None);
        }
        let mut data = vec![0; self.step];
        let filled = fill(self.source, &mut data)?;
        self.exhausted = filled < self.step;
        let whole = filled / self.sector_bytes * self.sector_bytes;
        self.tail = data[whole..filled].to_vec();
        data.truncate(whole);
        if self.next + filled as u64 > self.end {
            return Err(Error::Usage(format!(
                "the data does not fit the device: {} bytes are left behind the offset, and there are more",
                self.end
            )));
        }
        if whole == 0 {
            return Ok(None);
        }
        let offset = self.next;
        self.next += whole as u64;
        Ok(Some(Request::Write { offset, data: Arc::new(data), fua: self.fua }))
    }

    fn landed(&mut self, landed: &Landed, _now_ns: u64) -> Result<(), Error> {
        (self.progress)(landed.length.into());
        Ok(())
    }
}

/// Reads until the buffer is full or the source ends.
fn fill(source: &mut dyn Read, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::local("reading what is to be written")(error)),
        }
    }
    Ok(filled)
}

/// Writes everything that `source` gives to the device, from a whole sector on. A last part that
/// is no whole sector keeps what the device has behind it. Not durable before a flush. The number
/// of bytes written comes back.
///
/// # Errors
/// The server's, the network's, or the source's.
pub fn write_from(
    client: &mut Client,
    offset: u64,
    source: &mut dyn Read,
    fua: bool,
    progress: Progress<'_>,
) -> Result<u64, Error> {
    let info = client.info();
    check_range(&info, offset, 0)?;
    check_writable(&info)?;
    // One datagram where a sector fits one: the loss of one is then not the loss of several.
    let step = info.datagram_bytes.max(info.sector_bytes).min(info.max_write_bytes);
    let mut writes = Writes {
        next: offset,
        end: info.size_bytes,
        step: step as usize,
        sector_bytes: info.sector_bytes as usize,
        fua,
        source,
        exhausted: false,
        tail: Vec::new(),
        progress,
    };
    client.run(&mut writes)?;
    let (end, tail) = (writes.next, writes.tail);
    if tail.is_empty() {
        return Ok(end - offset);
    }
    let mut sector = read_all(client, end, info.sector_bytes.into(), &|_| {})?;
    sector[..tail.len()].copy_from_slice(&tail);
    let bytes = tail.len() as u64;
    write_from(client, end, &mut sector.as_slice(), fua, &|_| progress(bytes))?;
    Ok(end - offset + bytes)
}
