//! Does the device hold what is written to it?
//!
//! A pattern that is different in every sector and for every seed is written over a range, flushed,
//! and read back. What stood there before is kept in memory and put back at the end, whatever
//! happened in between; if even that fails, it is left in a file.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crate::client::Client;
use crate::error::Error;
use crate::pattern;
use crate::size::show_size;
use crate::transfer::{self, Progress};

/// The longest range whose content is kept in memory.
pub const MAX_KEPT_BYTES: u64 = 1 << 30;

/// What to verify.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Bytes from the start of the device.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The pattern's.
    pub seed: u64,
    /// Leave the pattern there.
    pub overwrite: bool,
}

/// How many bytes [`verify`] moves, for its progress.
pub const fn moved_bytes(plan: &Plan) -> u64 {
    plan.length * if plan.overwrite { 2 } else { 4 }
}

/// See the module.
///
/// # Errors
/// [`Error::Mismatch`] if the device does not hold the pattern; or what went wrong on the way.
pub fn verify(client: &mut Client, plan: &Plan, progress: Progress<'_>) -> Result<(), Error> {
    transfer::check_range(&client.info(), plan.offset, plan.length)?;
    transfer::check_writable(&client.info())?;
    if plan.overwrite {
        return try_pattern(client, plan, progress);
    }
    if plan.length > MAX_KEPT_BYTES {
        return Err(Error::Usage(format!(
            "the content of {} would have to be kept in memory; choose a --length of at most {}, or --overwrite \
             to leave the pattern in its place",
            show_size(plan.length),
            show_size(MAX_KEPT_BYTES)
        )));
    }
    let kept = transfer::read_all(client, plan.offset, plan.length, progress)?;
    let tried = try_pattern(client, plan, progress);
    client.clear_interruption();
    match restore(client, plan, &kept, progress) {
        Ok(()) => tried,
        Err(error) => Err(rescue(plan, &kept, tried.err().unwrap_or(error))),
    }
}

fn try_pattern(client: &mut Client, plan: &Plan, progress: Progress<'_>) -> Result<(), Error> {
    let mut source = Pattern { seed: plan.seed, next: plan.offset, end: plan.offset + plan.length };
    transfer::write_from(client, plan.offset, &mut source, false, progress)?;
    client.flush()?;
    transfer::compare(client, plan.offset, plan.length, progress, |offset, buffer| {
        pattern::fill(plan.seed, offset, buffer);
        Ok(())
    })
}

fn restore(client: &mut Client, plan: &Plan, kept: &[u8], progress: Progress<'_>) -> Result<(), Error> {
    let mut source = kept;
    transfer::write_from(client, plan.offset, &mut source, false, progress)?;
    client.flush()
}

/// The old content could not be put back: leaves it in a file, and says so.
fn rescue(plan: &Plan, kept: &[u8], why: Error) -> Error {
    let path = PathBuf::from(format!("netblk-content-at-{}.img", plan.offset));
    let saved = File::create_new(&path).and_then(|mut file| file.write_all(kept));
    let what = match saved {
        Ok(()) => format!(
            "the content before the verification could not be put back; it is in {}: `netblk write TARGET {} \
             --offset {}` puts it back",
            path.display(),
            path.display(),
            plan.offset
        ),
        Err(error) => format!(
            "the content before the verification is lost: neither could it be put back nor written to {} ({error})",
            path.display()
        ),
    };
    Error::Local { what, source: std::io::Error::other(why) }
}

/// Compares the device with a file, from `offset` on; nothing is written. A last part of the file
/// that is no whole sector is compared as far as it goes.
///
/// # Errors
/// [`Error::Mismatch`] if they differ; or what went wrong on the way.
pub fn compare_with_file(
    client: &mut Client,
    offset: u64,
    path: &Path,
    progress: Progress<'_>,
) -> Result<u64, Error> {
    use std::os::unix::fs::FileExt;

    let what = || format!("reading {}", path.display());
    let file = File::open(path).map_err(Error::local(what()))?;
    let length = file.metadata().map_err(Error::local(what()))?.len();
    let info = client.info();
    transfer::check_inside(&info, offset, length)?;
    let sector = u64::from(info.sector_bytes);
    let whole = length / sector * sector;
    transfer::compare(client, offset, whole, progress, |at, buffer| {
        file.read_exact_at(buffer, at - offset).map_err(Error::local(what()))
    })?;
    if whole < length {
        let part = (length - whole) as usize;
        let last = transfer::read_all(client, offset + whole, sector, progress)?;
        transfer::compare(client, offset + whole, sector, &|_| {}, |_, buffer| {
            // Behind the file's end anything is right.
            buffer.copy_from_slice(&last);
            file.read_exact_at(&mut buffer[..part], whole).map_err(Error::local(what()))
        })?;
    }
    Ok(length)
}

/// The pattern as a reader.
struct Pattern {
    seed: u64,
    next: u64,
    end: u64,
}

impl Read for Pattern {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = (self.end - self.next).min(buffer.len() as u64) as usize;
        // Whole eights, but for the last read.
        let bytes = if bytes >= 8 { bytes / 8 * 8 } else { bytes };
        pattern::fill(self.seed, self.next, &mut buffer[..bytes]);
        self.next += bytes as u64;
        Ok(bytes)
    }
}

/// A file to write from, with a buffer that saves small reads.
///
/// # Errors
/// If it cannot be opened.
pub fn open_source(path: &Path) -> Result<(Box<dyn Read>, Option<u64>), Error> {
    if path == Path::new("-") {
        return Ok((Box::new(std::io::stdin().lock()), None));
    }
    let what = || format!("reading {}", path.display());
    let file = File::open(path).map_err(Error::local(what()))?;
    let metadata = file.metadata().map_err(Error::local(what()))?;
    let length = metadata.is_file().then_some(metadata.len());
    Ok((Box::new(BufReader::with_capacity(1 << 20, file)), length))
}
