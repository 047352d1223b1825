//! Builds the kernel.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::progress::Step;
use crate::run;
use crate::symbols;
use crate::toolchain::{TARGET, Toolchain};
use crate::workspace;

/// Another compiler than the workspace's own builds it, so it has a target directory of its own.
pub fn target_dir() -> Result<PathBuf> {
    std::path::absolute(workspace::target().join("kernel")).context("finding target/")
}

/// The kernel and what goes with it.
#[derive(Debug, Clone)]
pub struct Kernel {
    pub elf: PathBuf,
    /// The text of the symbols file.
    pub symbols: PathBuf,
}

/// Set, to any value, by a command that has just built the kernel and the guests' files for the commands that it starts.
pub const BUILT: &str = "NOS_BUILT";

/// Builds it, or finds that it is built.
pub fn build() -> Result<Kernel> {
    if std::env::var_os(BUILT).is_some() {
        let elf = target_dir()?.join(TARGET).join("release/kernel");
        return Ok(Kernel { elf, symbols: workspace::build_dir().join("symbols") });
    }
    let toolchain = Toolchain::get()?;
    let step = Step::begin("build the kernel");
    let target_dir = target_dir()?;
    run::run(&step, cargo(&toolchain, "build", &target_dir).args(["--release", "--package", "kernel"]))?;
    let elf = target_dir.join(TARGET).join("release/kernel");
    let image = workspace::read_bytes(&elf)?;
    ensure!(!image.is_empty(), "{} is empty", elf.display());
    let symbols = workspace::build_dir().join("symbols");
    workspace::write_if_changed(&symbols, symbols::table(&image)?.as_bytes())?;
    step.done(format!("with {}", toolchain.describe()));
    Ok(Kernel { elf, symbols })
}

/// Cargo for the kernel's rooms, run at the workspace's root.
pub fn cargo(toolchain: &Toolchain, subcommand: &str, target_dir: &std::path::Path) -> Command {
    let mut command = toolchain.cargo(subcommand, target_dir);
    command.current_dir(workspace::root());
    command
}
