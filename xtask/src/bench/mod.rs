//! `cargo xtask bench`: what is measured, how, and where the figures go.
//!
//! Every measurement writes Markdown for people, JSON for programs, and plots under `target/bench/`. The figures are of
//! this machine and this emulator, and say so.
//!
//! | module | |
//! |---|---|
//! | `boot` | how long the node takes to be there |
//! | `netblk` | the node against Linux, on the same emulated machine |
//! | `queue` | the device side of a virtio queue against rust-vmm's, on this machine itself |
//! | `report`, `statistics` | tables, bars; medians and spread |

mod boot;
mod netblk;
mod queue;
mod report;
mod statistics;

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::qemu::{self, Nic};
use crate::requirements;
use crate::workspace;

/// The options of `bench`, as they are on the command line.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Which ones
    pub names: Vec<String>,
    /// How often each measurement is taken
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// netblk: each measurement once and shortly, to see whether everything works
    #[arg(long)]
    pub quick: bool,
    /// netblk: with this network card only; both, one after the other, if it is not said
    #[arg(long, value_enum)]
    pub nic: Option<Nic>,
    /// netblk: write the table and the plots into docs/, too
    #[arg(long)]
    pub record: bool,
}

struct Bench {
    name: &'static str,
    what: &'static str,
    measure: fn(&Options) -> Result<()>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "boot",
        what: "from the emulator's start to the shell, and to each guest's",
        measure: |options| report::write(&boot::measure(options.runs)?),
    },
    Bench {
        name: "netblk",
        what: "the disk over UDP against Linux's block services, and against what each machine allows",
        measure: netblk::measure,
    },
    Bench {
        name: "queue",
        what: "a chain through the device side of a virtio queue, and through rust-vmm's",
        measure: |options| report::write(&queue::measure(options.runs)?),
    },
];

pub fn measure(options: &Options) -> Result<()> {
    if options.names.is_empty() {
        for bench in BENCHES {
            println!("{:<10} {}", bench.name, bench.what);
        }
        return Ok(());
    }
    for name in &options.names {
        let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
            bail!("no bench {name}; `cargo xtask bench` lists them");
        };
        (bench.measure)(options)?;
    }
    Ok(())
}

/// A file of figures of this name.
fn figures_file(name: &str) -> PathBuf {
    workspace::target().join("bench").join(name)
}

/// What a figure cannot be read without.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown processor", |(_, model)| model);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (major, minor) = requirements::qemu_version().unwrap_or((0, 0));
    let accelerator = if qemu::kvm_is_usable() { "KVM" } else { "TCG" };
    format!("{cpus} CPUs of {model}; QEMU {major}.{minor} with {accelerator}")
}
