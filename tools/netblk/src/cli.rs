//! What the user asks for, and how it is shown.

use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use netblk::size::{parse_size, show_size};
use netblk::{Client, Error, Options, bench, client, transfer, verify};
use serde_json::json;

/// How much `verify` tries if no length is given.
const VERIFY_BYTES: u64 = 16 << 20;

/// Disks of a nos node, over UDP.
///
/// Exit codes: 0 done; 1 data differs; 2 wrong usage; 3 no answer; 4 the server refused or its disk
/// failed; 5 this machine failed; 130 interrupted.
#[derive(Parser)]
#[command(name = "netblk", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Common {
    /// The server, as HOST:PORT.
    target: String,
    /// Requests under way at once; fewer while the network loses.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    window: u32,
    /// How often a request is sent before it is given up.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    retries: u32,
    /// Results as JSON on standard output.
    #[arg(long)]
    json: bool,
    /// No progress bar.
    #[arg(long)]
    quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Shows what a server serves.
    Info(Common),
    /// Reads a range of the device into a file or to standard output.
    Read {
        #[command(flatten)]
        common: Common,
        /// Where to; "-" is standard output.
        #[arg(default_value = "-")]
        output: PathBuf,
        /// First byte; k, M, G, T multiply by 1024.
        #[arg(long, default_value = "0", value_parser = parse_size)]
        offset: u64,
        /// How many bytes; to the end of the device if not given.
        #[arg(long, value_parser = parse_size)]
        length: Option<u64>,
    },
    /// Writes a file to the device, then flushes.
    Write {
        #[command(flatten)]
        common: Common,
        /// What; "-" is standard input.
        input: PathBuf,
        /// First byte, a whole sector.
        #[arg(long, default_value = "0", value_parser = parse_size)]
        offset: u64,
        /// Write through the disk's cache.
        #[arg(long)]
        fua: bool,
    },
    /// Makes all completed writes durable.
    Flush(Common),
    /// Writes a pattern, reads it back and compares; then puts back what was there.
    Verify {
        #[command(flatten)]
        common: Common,
        /// First byte, a whole sector.
        #[arg(long, default_value = "0", value_parser = parse_size)]
        offset: u64,
        /// How many bytes, whole sectors; 16 MiB if not given.
        #[arg(long, value_parser = parse_size)]
        length: Option<u64>,
        /// The pattern's seed; a random one if not given.
        #[arg(long)]
        seed: Option<u64>,
        /// Leave the pattern there: needs no memory and is faster.
        #[arg(long, conflicts_with = "read_only")]
        overwrite: bool,
        /// Write nothing: compare the device with this file.
        #[arg(long, value_name = "FILE", conflicts_with_all = ["length", "seed"])]
        read_only: Option<PathBuf>,
    },
    /// Measures random reads, or writes.
    Bench {
        #[command(flatten)]
        common: Common,
        /// How long to measure; half a second of warm-up comes before.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Bytes of a request.
        #[arg(long, default_value = "1k", value_parser = parse_size)]
        block: u64,
        /// First byte of the range.
        #[arg(long, default_value = "0", value_parser = parse_size)]
        offset: u64,
        /// Bytes of the range; to the end of the device if not given.
        #[arg(long, value_parser = parse_size)]
        length: Option<u64>,
        /// Writes instead of reads. What the range holds is DESTROYED.
        #[arg(long)]
        destructive_writes: bool,
        /// Write through the disk's cache.
        #[arg(long, requires = "destructive_writes")]
        fua: bool,
        /// Which places in which order; a random one if not given.
        #[arg(long)]
        seed: Option<u64>,
    },
}

/// Does what was asked.
///
/// # Errors
/// Whatever stood in the way.
pub fn run(arguments: &Arguments, interrupted: Arc<AtomicBool>) -> Result<(), Error> {
    let common = arguments.command.common();
    let options = Options { window: common.window, max_tries: common.retries, ..Options::default() };
    let mut client = Client::connect(&common.target, &options, interrupted)?;
    let client = &mut client;
    match &arguments.command {
        Command::Info(_) => info(client, common),
        Command::Read { output, offset, length, .. } => read(client, common, output, *offset, *length),
        Command::Write { input, offset, fua, .. } => write(client, common, input, *offset, *fua),
        Command::Flush(_) => {
            client.flush()?;
            show(common, &json!({ "flushed": true }), "flushed: every completed write is durable")
        }
        Command::Verify { offset, read_only: Some(path), .. } => compare(client, common, *offset, path),
        Command::Verify { offset, length, seed, overwrite, read_only: None, .. } => {
            let left = client.info().size_bytes.saturating_sub(*offset);
            let length = length.unwrap_or(left.min(VERIFY_BYTES));
            let seed = seed.unwrap_or_else(client::random_seed);
            let plan = verify::Plan { offset: *offset, length, seed, overwrite: *overwrite };
            try_pattern(client, common, &plan)
        }
        Command::Bench { seconds, block, offset, length, destructive_writes, fua, seed, .. } => {
            let duration = Duration::try_from_secs_f64(*seconds)
                .ok()
                .filter(|duration| (0.1..=86400.0).contains(&duration.as_secs_f64()))
                .ok_or_else(|| Error::Usage(format!("--seconds {seconds} must be from 0.1 to 86400")))?;
            let block_bytes = u32::try_from(*block)
                .map_err(|_| Error::Usage(format!("--block {block} is more than a request can ask")))?;
            let left = client.info().size_bytes.saturating_sub(*offset);
            let plan = bench::Plan {
                writes: *destructive_writes,
                fua: *fua,
                block_bytes,
                window: common.window,
                duration,
                offset: *offset,
                length: length.unwrap_or(left),
                seed: seed.unwrap_or_else(client::random_seed),
            };
            measure(client, common, &plan)
        }
    }
}

impl Command {
    const fn common(&self) -> &Common {
        match self {
            Self::Info(common)
            | Self::Flush(common)
            | Self::Read { common, .. }
            | Self::Write { common, .. }
            | Self::Verify { common, .. }
            | Self::Bench { common, .. } => common,
        }
    }
}

/// A result: JSON if that was asked for, else a line for people.
fn show(common: &Common, json: &serde_json::Value, text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    let written = if common.json { writeln!(out, "{json}") } else { writeln!(out, "{text}") };
    written.map_err(Error::local("writing the result"))
}

/// A bar on standard error, where a person sees it and no file gets it.
fn bar(common: &Common, what: &str, bytes: u64) -> ProgressBar {
    let seen = std::io::stderr().is_terminal() && !common.quiet && !common.json;
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
    let round_trip_us = client.round_trip().map(|round_trip| round_trip.as_micros() as u64);
    let json = json!({
        "target": common.target,
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
    });
    let text = format!(
        "{} ({}) at {}\n  size        {} ({} bytes), {} sectors of {} bytes\n  access      {}\n  \
         a READ      up to {}, answered in datagrams of up to {}\n  a WRITE     up to {}\n  \
         the server  {} slots, MTU {}, round trip {} us",
        info.name.as_str(),
        if info.model.as_str().is_empty() { "model unknown" } else { info.model.as_str() },
        common.target,
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

fn measure(client: &mut Client, common: &Common, plan: &bench::Plan) -> Result<(), Error> {
    let what = if plan.writes { "random writes" } else { "random reads" };
    let bar = bar(common, what, 100);
    bar.set_style(
        ProgressStyle::with_template("{msg} [{wide_bar}] {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let report = bench::bench(client, plan, &|elapsed| {
        bar.set_position((100.0 * elapsed.as_secs_f64() / plan.duration.as_secs_f64()) as u64);
    })?;
    bar.finish_and_clear();
    let us = |duration: Duration| duration.as_secs_f64() * 1e6;
    let per_second = report.requests_per_second();
    let json = json!({
        "op": if plan.writes { "write" } else { "read" },
        "fua": plan.fua,
        "block_bytes": plan.block_bytes,
        "window": plan.window,
        "seconds": report.elapsed.as_secs_f64(),
        "requests": report.requests,
        "iops": per_second,
        "bytes_per_second": per_second * f64::from(plan.block_bytes),
        "mean_us": us(report.mean),
        "p50_us": us(report.p50),
        "p99_us": us(report.p99),
        "max_us": us(report.max),
        "datagrams": report.stats.sent,
        "repeated": report.stats.repeated,
        "busy": report.stats.busy,
        "ignored": report.stats.ignored,
        "seed": plan.seed,
    });
    let text = format!(
        "{what} of {} bytes, window {}: {per_second:.0} a second ({}/s)\n  latency  mean {:.0} us, p50 {:.0} us, \
         p99 {:.0} us, max {:.0} us\n  network  {} datagrams sent, {} repeated, {} answers \"busy\", {} ignored",
        plan.block_bytes,
        plan.window,
        show_size((per_second * f64::from(plan.block_bytes)) as u64),
        us(report.mean),
        us(report.p50),
        us(report.p99),
        us(report.max),
        report.stats.sent,
        report.stats.repeated,
        report.stats.busy,
        report.stats.ignored,
    );
    show(common, &json, &text)
}
