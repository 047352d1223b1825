//! `cargo xtask test`: every suite by name, one sum at the end.
//!
//! The suites are data. Most are run by cargo-nextest, which gives each test a process of its own and a time limit; its
//! figures come from the JUnit report that it writes, not from what it prints. The last line that this command prints is
//! `N passed, N failed`; a suite that could not be run at all counts as one failure, so that nothing is lost in silence.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};

use crate::lint;
use crate::progress::Step;
use crate::requirements;
use crate::run;
use crate::workspace;

/// What a suite came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Figures {
    passed: u64,
    failed: u64,
}

impl Figures {
    const ONE_FAILURE: Figures = Figures { passed: 0, failed: 1 };

    fn add(&mut self, other: Figures) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

struct Suite {
    name: &'static str,
    what: &'static str,
    kind: Kind,
}

enum Kind {
    /// The unit and property tests of every package that builds for the host.
    Host,
    /// The examples in the documentation.
    Examples,
    /// The models that loom checks in every interleaving.
    Loom,
    Lint,
    /// A file of stories in `tests/tests`, against whole nodes.
    Stories,
}

const SUITES: &[Suite] = &[
    Suite { name: "lint", what: "the rules of the house", kind: Kind::Lint },
    Suite { name: "host", what: "unit and property tests on the host", kind: Kind::Host },
    Suite { name: "examples", what: "the examples in the documentation", kind: Kind::Examples },
    Suite { name: "loom", what: "lock-free code in every interleaving", kind: Kind::Loom },
    Suite { name: "arch", what: "the machine layer, in a kernel of its own", kind: Kind::Stories },
    Suite { name: "hvarch", what: "the world switch, in a kernel of its own", kind: Kind::Stories },
    Suite { name: "hv_test", what: "guests of our own that try their machine", kind: Kind::Stories },
    Suite { name: "boot", what: "the node boots: CPUs, loaders, shell, power", kind: Kind::Stories },
    Suite { name: "modules", what: "modules that come, go, and leave nothing", kind: Kind::Stories },
    Suite { name: "netblk", what: "the disk over UDP", kind: Kind::Stories },
    Suite {
        name: "nbd",
        what: "the disk to programs that speak NBD, and to a Linux that mounts it",
        kind: Kind::Stories,
    },
    Suite {
        name: "sessions",
        what: "the disk over UDP, version 2, to clients that lie",
        kind: Kind::Stories,
    },
    Suite {
        name: "no_copy",
        what: "no instruction touches the data, by counting instructions",
        kind: Kind::Stories,
    },
    Suite {
        name: "power",
        what: "what was promised to be on the disk is there after a power cut",
        kind: Kind::Stories,
    },
    Suite {
        name: "disks",
        what: "disks: NVMe and virtio-blk, partitions, and what fails or hangs",
        kind: Kind::Stories,
    },
    Suite {
        name: "links",
        what: "network cards: jumbo packets, packets of several pieces",
        kind: Kind::Stories,
    },
    Suite {
        name: "floods",
        what: "clients that flood the server, and what is left for others",
        kind: Kind::Stories,
    },
    Suite {
        name: "faults",
        what: "verified writes through a bad network, restarts and power cuts",
        kind: Kind::Stories,
    },
    Suite { name: "hv", what: "guests and their network", kind: Kind::Stories },
    Suite { name: "guest_life", what: "guests that start, stop and reset in any order", kind: Kind::Stories },
    Suite { name: "guest_devices", what: "guests' disks, consoles, randomness", kind: Kind::Stories },
    Suite { name: "hostile", what: "bad configuration, frames, disks and guests", kind: Kind::Stories },
];

/// Names the suites.
pub fn list() {
    for suite in SUITES {
        println!("{:<10} {}", suite.name, suite.what);
    }
}

/// Runs suites by name; all of them if there is no name.
pub fn run(names: &[String]) -> Result<ExitCode> {
    for name in names {
        if !SUITES.iter().any(|suite| suite.name == name) {
            let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
            bail!("no suite {name}; there are {}", known.join(", "));
        }
    }
    let metadata =
        MetadataCommand::new().no_deps().exec().context("asking cargo for the workspace's packages")?;
    ensure_nextest()?;
    let mut total = Figures::default();
    let mut summary = Vec::new();
    for suite in SUITES.iter().filter(|suite| names.is_empty() || names.iter().any(|name| name == suite.name))
    {
        eprintln!("\n=== {}: {}", suite.name, suite.what);
        let started = Instant::now();
        let figures = suite.run(&metadata).unwrap_or_else(|error| {
            eprintln!("error: the suite {} could not be run: {error:#}", suite.name);
            Figures::ONE_FAILURE
        });
        total.add(figures);
        summary.push(format!(
            "{:<10} {:>5} passed, {:>3} failed   {:>6.1} s",
            suite.name,
            figures.passed,
            figures.failed,
            started.elapsed().as_secs_f64()
        ));
    }
    println!();
    for line in summary {
        println!("{line}");
    }
    println!("{} passed, {} failed", total.passed, total.failed);
    Ok(if total.failed == 0 && total.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Suite {
    fn run(&self, metadata: &Metadata) -> Result<Figures> {
        match self.kind {
            Kind::Lint => {
                let checks = lint::run()?;
                let failed = checks.iter().filter(|check| !check.passed()).count();
                let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
                Ok(Figures { passed: count(checks.len() - failed), failed: count(failed) })
            }
            Kind::Host => {
                requirements::ensure(HOST_REQUIREMENTS)?;
                nextest(metadata, &host_packages(metadata), |_| {})
            }
            Kind::Examples => examples(metadata),
            Kind::Loom => {
                let packages = loom_packages(metadata);
                // Another configuration of the same packages: in the usual target directory each would rebuild the
                // other's.
                let target_dir = metadata.target_directory.join("loom");
                nextest_in(metadata, target_dir.into(), &packages, |command| {
                    command.args(["--release", "--test", "model"]).env("RUSTFLAGS", "--cfg loom");
                })
            }
            Kind::Stories => {
                requirements::ensure(STORY_REQUIREMENTS)?;
                // Built here, where one sees it, and not by the first story that needs them.
                crate::kernel::build()?;
                crate::guest::build()?;
                let name = self.name;
                nextest(metadata, &["stories".to_owned()], |command| {
                    command.args(["--test", name]).env(crate::kernel::BUILT, "1");
                })
            }
        }
    }
}

/// The programs that the NBD bridge is tried with (tools/netblk/tests/nbd.rs).
const HOST_REQUIREMENTS: &[requirements::Requirement] =
    &[requirements::QEMU_IMG, requirements::LIBNBD, requirements::FIO];

const STORY_REQUIREMENTS: &[requirements::Requirement] = &[
    requirements::QEMU,
    requirements::SETPRIV,
    requirements::GRUB_MKRESCUE,
    requirements::GRUB_BIOS,
    requirements::GRUB_UEFI,
    requirements::XORRISO,
    requirements::MTOOLS,
    requirements::OVMF,
    requirements::DOSFSTOOLS,
    requirements::E2FSPROGS,
    requirements::QEMU_IMG,
];

/// The workspace's default members are what builds for the host; the stories have suites of their own.
fn host_packages(metadata: &Metadata) -> Vec<String> {
    metadata
        .workspace_default_packages()
        .iter()
        .filter(|package| package.name != "stories")
        .map(|package| package.name.to_string())
        .collect()
}

fn loom_packages(metadata: &Metadata) -> Vec<String> {
    metadata
        .workspace_packages()
        .iter()
        .filter(|package| package.dependencies.iter().any(|dependency| dependency.name == "loom"))
        .map(|package| package.name.to_string())
        .collect()
}

fn nextest(metadata: &Metadata, packages: &[String], adjust: impl FnOnce(&mut Command)) -> Result<Figures> {
    nextest_in(metadata, metadata.target_directory.clone().into(), packages, adjust)
}

/// Runs nextest on packages, and reads its report. Its own output goes to the person as it comes.
fn nextest_in(
    metadata: &Metadata,
    target_dir: PathBuf,
    packages: &[String],
    adjust: impl FnOnce(&mut Command),
) -> Result<Figures> {
    // nextest's store is `target/nextest` of the workspace, whatever the target directory is; in it, a folder for each
    // profile of .config/nextest.toml.
    let report = metadata.workspace_root.join("target/nextest/xtask/junit.xml").into_std_path_buf();
    workspace::remove(&report);
    let mut command = Command::new("cargo");
    command.current_dir(&metadata.workspace_root).env("CARGO_TARGET_DIR", &target_dir);
    command.args(["nextest", "run", "--profile", "xtask"]);
    for package in packages {
        command.args(["--package", package]);
    }
    adjust(&mut command);
    let status = command.status().with_context(|| format!("starting {}", run::show(&command)))?;
    let text = std::fs::read_to_string(&report).unwrap_or_default();
    let figures = junit_figures(&text);
    match figures {
        Some(figures) if status.success() || figures.failed > 0 => Ok(figures),
        // It built nothing, or ran nothing, or broke off: that must not pass for success.
        _ => bail!("{} ended with {status}", run::show(&command)),
    }
}

/// The figures of a JUnit report: the attributes of its outermost element.
fn junit_figures(report: &str) -> Option<Figures> {
    let start = report.find("<testsuites ")?;
    let element = &report[start..start + report[start..].find('>')?];
    let attribute = |name: &str| -> Option<u64> {
        let value = element.split(&format!(" {name}=\"")).nth(1)?;
        value.split('"').next()?.parse().ok()
    };
    let tests = attribute("tests")?;
    let failed = attribute("failures")? + attribute("errors")?;
    Some(Figures { passed: tests.checked_sub(failed)?, failed })
}

/// rustdoc runs the examples; nextest does not.
fn examples(metadata: &Metadata) -> Result<Figures> {
    let mut command = Command::new("cargo");
    command.current_dir(&metadata.workspace_root).args(["test", "--doc", "--no-fail-fast"]);
    for package in metadata.workspace_default_packages() {
        if package.targets.iter().any(|target| target.is_lib() && target.doctest) {
            command.args(["--package", package.name.as_str()]);
        }
    }
    let output = command.output().with_context(|| format!("starting {}", run::show(&command)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures = Figures::default();
    for line in text.lines() {
        if let Some(one) = libtest_figures(line) {
            figures.add(one);
        }
    }
    if !output.status.success() {
        eprintln!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
        if figures.failed == 0 {
            bail!("{} ended with {}", run::show(&command), output.status);
        }
    }
    eprintln!("{} examples", figures.passed + figures.failed);
    Ok(figures)
}

/// The figures of a line `test result: ok. 3 passed; 0 failed; ...`.
fn libtest_figures(line: &str) -> Option<Figures> {
    let rest = line.strip_prefix("test result: ")?;
    let number =
        |word: &str| -> Option<u64> { rest.split(word).next()?.trim().rsplit(' ').next()?.parse().ok() };
    Some(Figures { passed: number(" passed")?, failed: number(" failed")? })
}

/// Installs cargo-nextest, if it is not there.
fn ensure_nextest() -> Result<()> {
    if run::installed("cargo-nextest") {
        return Ok(());
    }
    let step = Step::begin("install cargo-nextest");
    run::run(&step, Command::new("cargo").args(["install", "--locked", "cargo-nextest"]))?;
    step.done("");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nextests_report_is_read() {
        let report = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"nextest-run\" tests=\"12\" failures=\"2\" errors=\"1\" uuid=\"x\">\n <testsuite tests=\"99\">";
        assert_eq!(junit_figures(report), Some(Figures { passed: 9, failed: 3 }));
        assert_eq!(junit_figures(""), None);
        assert_eq!(junit_figures("<testsuites name=\"x\" tests=\"1\" failures=\"2\" errors=\"0\">"), None);
    }

    #[test]
    fn rustdocs_result_is_read() {
        let line = "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out";
        assert_eq!(libtest_figures(line), Some(Figures { passed: 3, failed: 1 }));
        assert_eq!(libtest_figures("running 3 tests"), None);
    }

    #[test]
    fn every_suite_of_stories_has_its_file() {
        let folder = workspace::root().join("tests/tests");
        for suite in SUITES.iter().filter(|suite| matches!(suite.kind, Kind::Stories)) {
            let file = folder.join(format!("{}.rs", suite.name));
            let folder = folder.join(suite.name).join("main.rs");
            assert!(file.is_file() || folder.is_file(), "{}", file.display());
        }
    }
}
