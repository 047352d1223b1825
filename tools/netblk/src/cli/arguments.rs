//! The command line. Help, completions and the manual page all come from here.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use netblk::size::parse_size;
use netblk::{Error, Options};

use super::access::Access;

/// Disks of a nos node, over UDP.
///
/// Exit codes: 0 done; 1 data differs; 2 wrong usage; 3 no answer; 4 the server refused or its disk
/// failed; 5 this machine failed; 130 interrupted.
#[derive(Parser)]
#[command(name = "netblk", version, max_term_width = 100)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// What every job has.
#[derive(Args)]
pub struct Common {
    #[command(flatten)]
    pub access: Access,
    /// How often a server that never answered is asked.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub retries: u32,
    /// How many seconds a server that answered before may be silent: a dead link or a restart for that long is no error.
    #[arg(long, value_name = "SECONDS", default_value_t = 90, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub patience: u64,
    /// Results as JSON, on standard output or into a file.
    #[arg(
        long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-",
        value_hint = ValueHint::FilePath
    )]
    pub json: Option<PathBuf>,
    /// No progress bar.
    #[arg(long)]
    pub quiet: bool,
}

impl Common {
    /// What the client library wants to know.
    ///
    /// # Errors
    /// If the key cannot be read.
    pub fn options(&self) -> Result<Options, Error> {
        Ok(Options {
            max_tries: self.retries,
            patience: Duration::from_secs(self.patience),
            ..self.access.options()?
        })
    }
}

#[derive(Subcommand)]
pub enum Command {
    /// Shows what a server serves.
    Info(Common),
    /// Reads a range of the device into a file or to standard output.
    Read {
        #[command(flatten)]
        common: Common,
        /// Where to; "-" is standard output.
        #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
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
        #[arg(value_hint = ValueHint::FilePath)]
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
    /// Tells the device that a range's content is not needed any more. It is LOST.
    Discard {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        range: Range,
    },
    /// Makes a range read as zeros, then flushes. What it holds is LOST.
    Zero {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        range: Range,
    },
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
        #[arg(long, value_name = "FILE", conflicts_with_all = ["length", "seed"], value_hint = ValueHint::FilePath)]
        read_only: Option<PathBuf>,
    },
    /// Measures random reads, writes, or a mix of both.
    Bench(Bench),
    /// Serves the disk to programs that speak NBD: qemu-img, nbd-client, fio, nbdinfo.
    Nbd(super::nbd::Arguments),
    /// Prints what a shell needs to complete this command's arguments.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Prints the manual page, as troff.
    Man,
}

/// Part of the device that is named in full: nothing is lost by default.
#[derive(Args)]
pub struct Range {
    /// First byte, a whole sector.
    #[arg(long, value_parser = parse_size)]
    pub offset: u64,
    /// How many bytes, whole sectors.
    #[arg(long, value_parser = parse_size)]
    pub length: u64,
}

#[derive(Args)]
pub struct Bench {
    #[command(flatten)]
    pub common: Common,
    /// How long to measure; half a second of warm-up comes before.
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Bytes of a request; several are measured one after the other (512,4k).
    #[arg(long, default_value = "1k", value_delimiter = ',', value_parser = parse_size)]
    pub block: Vec<u64>,
    /// Windows to measure one after the other (1,4,16,64), instead of the one of --window.
    #[arg(
        long, value_name = "WINDOWS", value_delimiter = ',', conflicts_with = "window",
        value_parser = clap::value_parser!(u32).range(1..=4096)
    )]
    pub sweep: Vec<u32>,
    /// First byte of the range.
    #[arg(long, default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// Bytes of the range; to the end of the device if not given.
    #[arg(long, value_parser = parse_size)]
    pub length: Option<u64>,
    /// Writes instead of reads. What the range holds is DESTROYED.
    #[arg(long)]
    pub destructive_writes: bool,
    /// How many of 100 requests are writes; the others are reads.
    #[arg(
        long, value_name = "PERCENT", default_value_t = 100, requires = "destructive_writes",
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub write_share: u32,
    /// Write through the disk's cache.
    #[arg(long, requires = "destructive_writes")]
    pub fua: bool,
    /// Which places in which order; a random one if not given.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Draw the latencies, and requests a second by window, into this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
}

/// What this program was called with. Alone, it shows its help.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Arguments {
    Arguments::parse_from(arguments)
}
