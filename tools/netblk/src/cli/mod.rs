//! What the user asks for, and how it is shown.

mod access;
mod arguments;
mod bench;
mod generate;
mod nbd;

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use netblk::disk::{Disk, Request};
use netblk::size::show_size;
use netblk::{Client, Error, client, transfer, verify};
use serde_json::json;

pub use self::arguments::{Arguments, parse};
use self::arguments::{Command, Common, Range};

/// How much `verify` tries if no length is given.
const VERIFY_BYTES: u64 = 16 << 20;

/// Does what was asked.
///
/// # Errors
/// Whatever stood in the way.
pub fn run(arguments: &Arguments, interrupted: Arc<AtomicBool>) -> Result<(), Error> {
    match &arguments.command {
        Command::Completions { shell } => generate::completions(*shell),
        Command::Nbd(arguments) => nbd::run(arguments),
        Command::Man => generate::manual(),
        Command::Info(common) => info(&connect(common, interrupted)?, common),
        Command::Read { common, output, offset, length } => {
            read(&mut connect(common, interrupted)?, common, output, *offset, *length)
        }
        Command::Write { common, input, offset, fua } => {
            write(&mut connect(common, interrupted)?, common, input, *offset, *fua)
        }
        Command::Flush(common) => {
            connect(common, interrupted)?.flush()?;
            show(common, &json!({ "flushed": true }), "flushed: every completed write is durable")
        }
        Command::Discard { common, range } => {
            let cut = |offset, length| Request::Discard { offset, length };
            change_range(common, range, "discarding", "discarded", &interrupted, cut)
        }
        Command::Zero { common, range } => {
            let cut = |offset, length| Request::WriteZeroes { offset, length, fua: false };
            change_range(common, range, "zeroing", "zeroed and flushed", &interrupted, cut)
        }
        Command::Verify { common, offset, read_only: Some(path), .. } => {
            compare(&mut connect(common, interrupted)?, common, *offset, path)
        }
        Command::Verify { common, offset, length, seed, overwrite, read_only: None } => {
            let client = &mut connect(common, interrupted)?;
            let left = client.info().size_bytes.saturating_sub(*offset);
            let length = length.unwrap_or(left.min(VERIFY_BYTES));
            let seed = seed.unwrap_or_else(client::random_seed);
            let plan = verify::Plan { offset: *offset, length, seed, overwrite: *overwrite };
            try_pattern(client, common, &plan)
        }
        Command::Bench(arguments) => bench::run(&mut connect(&arguments.common, interrupted)?, arguments),
    }
}

fn connect(common: &Common, interrupted: Arc<AtomicBool>) -> Result<Client, Error> {
    let options = common.options()?;
    let mut client = Client::connect(&common.access.target, &options, interrupted)?;
    client.rely_on_patience();
    Ok(client)
}

/// A result: JSON if that was asked for on standard output, else text for people.
fn show(common: &Common, json: &serde_json::Value, text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match &common.json {
        Some(path) if path == Path::new("-") => writeln!(out, "{json}"),
        Some(path) => {
            // For people there still is the text.
            std::fs::write(path, format!("{json:#}\n"))
                .map_err(Error::local(format!("writing {}", path.display())))?;
            writeln!(out, "{text}")
        }
        None => writeln!(out, "{text}"),
    }
    .map_err(Error::local("writing the result"))
}

/// A bar on standard error, where a person sees it and no file gets it.
fn bar(common: &Common, what: &str, bytes: u64) -> ProgressBar {
    let seen = std::io::stderr().is_terminal() && !common.quiet && common.json.is_none();
    let target = if seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template(
        "{msg} [{wide_bar}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(bytes), target).with_style(style).with_message(what.to_owned())
}

fn rate(bytes: u64, elapsed: Duration) -> String {
    let per_second = bytes as f64 / elapsed.as_secs_f64().max(1e-9);
    format!("{} in {:.2} s, {}/s", show_size(bytes), elapsed.as_secs_f64(), show_size(per_second as u64))
}

fn info(client: &Client, common: &Common) -> Result<(), Error> {
    let info = client.info();
    let session = client.session_info();
    let able = session.map(|session| session.capabilities).unwrap_or_default();
    let round_trip_us = client.round_trip().map(|round_trip| round_trip.as_micros() as u64);
    let json = json!({
        "target": common.access.target,
        "name": info.name.as_str(),
        "model": info.model.as_str(),
        "size_bytes": info.size_bytes,
        "sector_bytes": info.sector_bytes,
        "read_only": info.read_only,
        "max_read_bytes": info.max_read_bytes,
        "max_write_bytes": info.max_write_bytes,
        "datagram_bytes": info.datagram_bytes,
        "slots": info.slots,
        "mtu": info.mtu,
        "round_trip_us": round_trip_us,
        "protocol": client.version(),
        "discard": able.discard,
        "write_zeroes": able.write_zeroes,
        "key_in_use": able.key_in_use,
        "volatile_cache": session.map(|session| session.capabilities.volatile_cache),
        "max_discard_bytes": session.map(|session| session.max_discard_bytes),
        "max_write_zeroes_bytes": session.map(|session| session.max_write_zeroes_bytes),
    });
    let abilities: Vec<&str> = [
        (able.discard, "discard"),
        (able.write_zeroes, "write zeroes"),
        (able.volatile_cache, "a volatile cache"),
        (able.key_in_use, "a key"),
    ]
    .into_iter()
    .filter_map(|(is_there, name)| is_there.then_some(name))
    .collect();
    let text = format!(
        "{} ({}) at {}\n  size        {} ({} bytes), {} sectors of {} bytes\n  access      {}\n  \
         a READ      up to {}, answered in datagrams of up to {}\n  a WRITE     up to {}\n  \
         the server  {} slots, MTU {}, round trip {} us\n  protocol    version {}{}{}",
        info.name.as_str(),
        if info.model.as_str().is_empty() { "model unknown" } else { info.model.as_str() },
        common.access.target,
        show_size(info.size_bytes),
        info.size_bytes,
        info.size_bytes / u64::from(info.sector_bytes),
        info.sector_bytes,
        if info.read_only { "read-only" } else { "read and write" },
        show_size(info.max_read_bytes.into()),
        show_size(info.datagram_bytes.into()),
        show_size(info.max_write_bytes.into()),
        info.slots,
        info.mtu,
        round_trip_us.unwrap_or(0),
        client.version(),
        if abilities.is_empty() { "" } else { "; with " },
        abilities.join(", "),
    );
    show(common, &json, &text)
}

fn read(
    client: &mut Client,
    common: &Common,
    output: &Path,
    offset: u64,
    length: Option<u64>,
) -> Result<(), Error> {
    let length = length.unwrap_or(client.info().size_bytes.saturating_sub(offset));
    transfer::check_inside(&client.info(), offset, length)?;
    let to_stdout = output == Path::new("-");
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Error::Usage(
            "a terminal is no place for a disk's content; name an output file".to_owned(),
        ));
    }
    let mut sink: Box<dyn Write> = if to_stdout {
        Box::new(BufWriter::with_capacity(1 << 20, std::io::stdout().lock()))
    } else {
        let file = File::create(output).map_err(Error::local(format!("creating {}", output.display())))?;
        Box::new(BufWriter::with_capacity(1 << 20, file))
    };
    let bar = bar(common, "reading", length);
    let start = Instant::now();
    transfer::read_to(client, offset, length, &mut *sink, &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    if to_stdout {
        return Ok(());
    }
    let elapsed = start.elapsed();
    let json =
        json!({ "bytes": length, "seconds": elapsed.as_secs_f64(), "repeated": client.stats().repeated });
    show(common, &json, &format!("read {}", rate(length, elapsed)))
}

fn write(client: &mut Client, common: &Common, input: &Path, offset: u64, fua: bool) -> Result<(), Error> {
    let (mut source, length) = verify::open_source(input)?;
    if let Some(length) = length {
        transfer::check_inside(&client.info(), offset, length)?;
    }
    let bar = bar(common, "writing", length.unwrap_or(0));
    let start = Instant::now();
    let bytes = transfer::write_from(client, offset, &mut *source, fua, &|bytes| bar.inc(bytes))?;
    client.flush()?;
    bar.finish_and_clear();
    let elapsed = start.elapsed();
    let json =
        json!({ "bytes": bytes, "seconds": elapsed.as_secs_f64(), "repeated": client.stats().repeated });
    show(common, &json, &format!("wrote and flushed {}", rate(bytes, elapsed)))
}

fn compare(client: &mut Client, common: &Common, offset: u64, path: &Path) -> Result<(), Error> {
    let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let bar = bar(common, "comparing", length);
    let bytes = verify::compare_with_file(client, offset, path, &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let json = json!({ "verified": true, "bytes": bytes, "repeated": client.stats().repeated });
    show(common, &json, &format!("{} on the device are the same as {}", show_size(bytes), path.display()))
}

fn try_pattern(client: &mut Client, common: &Common, plan: &verify::Plan) -> Result<(), Error> {
    let bar = bar(common, "verifying", verify::moved_bytes(plan));
    let start = Instant::now();
    verify::verify(client, plan, &|bytes| bar.inc(bytes))?;
    bar.finish_and_clear();
    let elapsed = start.elapsed();
    let stats = client.stats();
    let json = json!({
        "verified": true,
        "offset": plan.offset,
        "bytes": plan.length,
        "seed": plan.seed,
        "overwritten": plan.overwrite,
        "seconds": elapsed.as_secs_f64(),
        "datagrams": stats.sent,
        "repeated": stats.repeated,
    });
    let text = format!(
        "{} at {} hold what was written (seed {}){}; moved {}, {} of {} datagrams repeated",
        show_size(plan.length),
        plan.offset,
        plan.seed,
        if plan.overwrite { "" } else { ", and again what was there before" },
        rate(verify::moved_bytes(plan), elapsed),
        stats.repeated,
        stats.sent,
    );
    show(common, &json, &text)
}

/// The most that is asked for at once: how soon Ctrl-C is noticed, and how fine the progress bar is.
const CHANGE_BYTES: u64 = 64 << 20;

fn change_range(
    common: &Common,
    range: &Range,
    doing: &str,
    done: &str,
    interrupted: &AtomicBool,
    cut: impl Fn(u64, u32) -> Request,
) -> Result<(), Error> {
    let disk = Disk::open(&common.access.target, &common.options()?)?;
    let end = range.offset.checked_add(range.length).filter(|&end| end <= disk.info().size_bytes);
    let end = end.ok_or_else(|| {
        Error::Usage(format!("{} bytes at {}: the device ends before", range.length, range.offset))
    })?;
    let bar = bar(common, doing, range.length);
    let start = Instant::now();
    let mut at = range.offset;
    while at < end {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let bytes = (end - at).min(CHANGE_BYTES);
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        disk.ask(cut(at, length)).map_err(Error::Shared)?;
        bar.inc(bytes);
        at += bytes;
    }
    disk.ask(Request::Flush).map_err(Error::Shared)?;
    bar.finish_and_clear();
    let elapsed = start.elapsed();
    let json = json!({ "offset": range.offset, "bytes": range.length, "seconds": elapsed.as_secs_f64() });
    show(common, &json, &format!("{done} {}", rate(range.length, elapsed)))
}
