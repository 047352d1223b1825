//! `load`: measures one service, or is the echo that services are compared with.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use load::target::Target;
use load::{Operation, Plan, echo, run};

/// Measures block services with one loop and one histogram.
#[derive(Parser)]
#[command(name = "load")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Ask a service for random places of its disk, and print what that gave as JSON
    Run {
        /// netblk://HOST:PORT (netblk2:// for version 2), echo://HOST:PORT, nbd://HOST:PORT/EXPORT or nvme-tcp://HOST:PORT/SUBSYSTEM
        target: Target,
        /// Writes destroy what the disk holds
        #[arg(long, value_enum, default_value_t = Operation::Read)]
        operation: Operation,
        /// Of one request
        #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
        bytes: u32,
        /// Requests under way at once
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
        window: u16,
        /// Measured time
        #[arg(long, default_value_t = 2.0)]
        seconds: f64,
        /// Time before that which is not measured
        #[arg(long, default_value_t = 0.5)]
        warm_up: f64,
        /// Only the disk's first so many MiB are asked for
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
        range_mib: u64,
        /// Which places, in which order
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Be the bare echo, until killed
    Echo {
        /// Where to listen
        address: SocketAddr,
    },
}

fn main() -> ExitCode {
    match work(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn work(command: Command) -> Result<()> {
    match command {
        Command::Run { target, operation, bytes, window, seconds, warm_up, range_mib, seed } => {
            let plan = Plan {
                operation,
                bytes,
                window: usize::from(window),
                warm_up: Duration::try_from_secs_f64(warm_up).context("--warm-up")?,
                duration: Duration::try_from_secs_f64(seconds).context("--seconds")?,
                range_bytes: range_mib << 20,
                seed,
            };
            let mut protocol = target.connect(&plan)?;
            let report = run(protocol.as_mut(), &plan)?;
            println!("{}", serde_json::to_string(&report).context("writing the report")?);
            Ok(())
        }
        Command::Echo { address } => echo::serve(address),
    }
}
