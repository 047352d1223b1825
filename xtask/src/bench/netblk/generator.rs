//! The load generator as a program: built for this, run here and in the Linux machine.
//!
//! It is linked statically, so that the one file runs on this system and in an initramfs whose C library is another.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::progress::Step;
use crate::run;
use crate::workspace;

use super::cases::{Case, Timing};

const TARGET: &str = "x86_64-unknown-linux-gnu";

#[derive(Debug, Clone)]
pub struct Generator {
    pub program: PathBuf,
}

/// What it reports; what else it says is of no use here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figures {
    pub per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Requests whose answer did not come and that were asked again.
    #[serde(default)]
    pub asked_again: u64,
    /// How often the server had no room for one.
    #[serde(default)]
    pub turned_away: u64,
    /// CPU time that the generator itself used, warm-up included.
    #[serde(default)]
    pub cpu_seconds: f64,
}

impl Generator {
    pub fn build() -> Result<Self> {
        let step = Step::begin("build the load generator");
        let folder = std::path::absolute(workspace::build_dir().join("load")).context("finding target/")?;
        let mut command = Command::new("cargo");
        command.args(["build", "--release", "--package", "load", "--target", TARGET, "--target-dir"]);
        command.arg(&folder).env("RUSTFLAGS", "-Ctarget-feature=+crt-static");
        run::run(&step, &mut command)?;
        step.done("");
        Ok(Self { program: folder.join(TARGET).join("release/load") })
    }

    /// Measures one case of a service at an address such as `nbd://127.0.0.1:10809/data`.
    pub fn measure(&self, target: &str, case: &Case, timing: Timing, seed: u64) -> Result<Figures> {
        let mut command = Command::new(&self.program);
        command.args(["run", target, "--operation", case.pattern.operation()]);
        command.args(["--bytes", &case.pattern.bytes().to_string()]);
        command.args(["--window", &case.window.to_string()]);
        command.args(["--seconds", &timing.seconds.to_string(), "--warm-up", &timing.warm_up.to_string()]);
        command.args(["--range-mib", &super::RANGE_MIB.to_string(), "--seed", &seed.to_string()]);
        let text = run::output(&mut command)?;
        serde_json::from_str(&text).with_context(|| format!("understanding the generator's {text:?}"))
    }
}
