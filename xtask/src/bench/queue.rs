//! The device side of a virtio queue beside rust-vmm's: ns for a chain, on the host.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::run;
use crate::workspace;

use super::machine;
use super::report::{Report, Series};

/// What the program `queue-bench` prints.
#[derive(Debug, Deserialize)]
struct Figures {
    case: String,
    ours_ns: Vec<f64>,
    theirs_ns: Vec<f64>,
}

pub fn measure(runs: u32) -> Result<Report> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command.args(["run", "--quiet", "--release", "--package", "queue-bench", "--", &runs.to_string()]);
    let output = command.output().with_context(|| format!("starting {}", run::show(&command)))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {errors}", run::show(&command));
    let figures: Vec<Figures> =
        serde_json::from_slice(&output.stdout).context("reading what queue-bench measured")?;
    let series = figures
        .into_iter()
        .flat_map(|Figures { case, ours_ns, theirs_ns }| {
            [
                Series { label: format!("{case}: nos"), values: ours_ns },
                Series { label: format!("{case}: virtio-queue"), values: theirs_ns },
            ]
        })
        .collect();
    let what = "a chain from the available ring to the used ring, both on rust-vmm's memory";
    Ok(Report { name: "queue", what, unit: "ns", machine: machine(), series })
}
