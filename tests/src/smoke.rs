//! Kernels of their own that check one room under QEMU: `arch/smoke`, `hv/smoke`.
//!
//! Each boots, runs its checks, says `N passed, N failed` on the serial line and switches the machine off.

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use xtask::toolchain::{TARGET, Toolchain};
use xtask::{kernel, qemu, workspace};

/// An emulator on a busy machine may take long; a machine that does not end has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ELF of a package, built now if it is not up to date.
pub fn kernel(package: &str) -> Result<PathBuf> {
    build(package, &["--release"], "release")
}

/// The same with overflow checks and debug assertions, those for undefined behaviour among them.
pub fn checked_kernel(package: &str) -> Result<PathBuf> {
    build(package, &[], "debug")
}

fn build(package: &str, profile: &[&str], folder: &str) -> Result<PathBuf> {
    workspace::enter_root()?;
    let target_dir = kernel::target_dir()?;
    let status = kernel::cargo(&Toolchain::get()?, "build", &target_dir)
        .args(["--quiet", "--package", package])
        .args(profile)
        .status()
        .with_context(|| format!("building {package}"))?;
    ensure!(status.success(), "{package} does not build");
    Ok(target_dir.join(TARGET).join(folder).join(package))
}

/// Boots a machine that ends by itself, and gives what it printed.
pub fn boot(arguments: &[&str]) -> Result<String> {
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", qemu::PROGRAM, "-no-user-config", "-nodefaults", "-display", "none"])
        .args(["-accel", "tcg,thread=multi", "-serial", "stdio", "-no-reboot"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting QEMU")?;
    let mut output = child.stdout.take().context("QEMU's output")?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned())
    });
    let started = Instant::now();
    let ended = loop {
        if child.try_wait()?.is_some() {
            break true;
        }
        if started.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            break false;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = reader.join().ok().context("the reading thread")??;
    ensure!(ended, "the machine did not switch itself off:\n{text}");
    Ok(text)
}
