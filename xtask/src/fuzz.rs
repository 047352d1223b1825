//! `cargo xtask fuzz`: random input for as long as there is time.
//!
//! The targets are the property tests at the untrusted edges, run with far more cases than `cargo xtask test` can
//! afford and with fresh randomness each time, and the coverage-guided targets of `fuzz/`, where there are any.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::progress::Step;
use crate::run;
use crate::workspace;

/// How many cases a property is given in one run; then the clock is looked at.
const CASES: u32 = 20_000;

/// Something that takes random input.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    /// A package whose tests hold properties.
    Properties(String),
    /// A target of cargo-fuzz.
    Coverage(String),
}

impl Target {
    fn name(&self) -> &str {
        match self {
            Target::Properties(name) | Target::Coverage(name) => name,
        }
    }
}

pub fn run(name: Option<&str>, seconds: u64) -> Result<()> {
    let targets = targets()?;
    let Some(name) = name else {
        println!("Targets:");
        for target in &targets {
            let kind = match target {
                Target::Properties(_) => "properties of the package",
                Target::Coverage(_) => "coverage-guided, with AddressSanitizer",
            };
            println!("  {:<20} {kind}", target.name());
        }
        return Ok(());
    };
    let chosen = targets.iter().find(|target| target.name() == name);
    match chosen.with_context(|| format!("no target {name}; `cargo xtask fuzz` lists them"))? {
        Target::Properties(package) => properties(package, Duration::from_secs(seconds)),
        Target::Coverage(target) => coverage(target, seconds),
    }
}

fn targets() -> Result<Vec<Target>> {
    let metadata =
        MetadataCommand::new().no_deps().exec().context("asking cargo for the workspace's packages")?;
    let mut targets: Vec<Target> = metadata
        .workspace_packages()
        .into_iter()
        .filter(|package| {
            package.dependencies.iter().any(|dependency| {
                dependency.name == "proptest" && dependency.kind == DependencyKind::Development
            })
        })
        .map(|package| Target::Properties(package.name.to_string()))
        .collect();
    let folder = PathBuf::from("fuzz/fuzz_targets");
    if let Ok(entries) = std::fs::read_dir(&folder) {
        for entry in entries {
            let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            if let Some(name) = path.file_stem().filter(|_| path.extension().is_some_and(|end| end == "rs")) {
                targets.push(Target::Coverage(name.to_string_lossy().into_owned()));
            }
        }
    }
    targets.sort_by(|left, right| left.name().cmp(right.name()));
    Ok(targets)
}

fn properties(package: &str, budget: Duration) -> Result<()> {
    let deadline = Instant::now() + budget;
    let step = Step::begin(format!("fuzz {package}"));
    let mut rounds = 0_u64;
    while rounds == 0 || Instant::now() < deadline {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--release", "--package", package]).env("PROPTEST_CASES", CASES.to_string());
        cargo.env("CARGO_TARGET_DIR", workspace::target().join("fuzz"));
        run::run(&step, &mut cargo)?;
        rounds += 1;
    }
    step.done(format!("{rounds} rounds of {CASES} cases of each property, nothing found"));
    Ok(())
}

fn coverage(target: &str, seconds: u64) -> Result<()> {
    if !run::installed("cargo-fuzz") {
        let step = Step::begin("install cargo-fuzz");
        run::run(&step, Command::new("cargo").args(["install", "--locked", "cargo-fuzz"]))?;
        step.done("");
    }
    let status = Command::new("cargo")
        .args(["+nightly", "fuzz", "run", target, "--", &format!("-max_total_time={seconds}")])
        .status()
        .context("starting cargo fuzz")?;
    if !status.success() {
        bail!("cargo fuzz found something: see above");
    }
    Ok(())
}
