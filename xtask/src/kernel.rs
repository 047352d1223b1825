//! Builds the kernel and its modules: the libraries, then the modules out of them, then the kernel with
//! the names that they want.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::modules::{self, MODULES};
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
    /// The modules' names and files.
    pub modules: Vec<(String, PathBuf)>,
}

/// Set, to any value, by a command that has just built the kernel and the guests' files for the commands that it starts.
pub const BUILT: &str = "NOS_BUILT";

/// Builds it, or finds that it is built.
pub fn build() -> Result<Kernel> {
    let target_dir = target_dir()?;
    let elf = target_dir.join(TARGET).join("release/kernel");
    let symbols = workspace::build_dir().join("symbols");
    let modules = MODULES.map(|(name, _)| (name.to_owned(), modules::path(&target_dir, name))).to_vec();
    let kernel = Kernel { elf, symbols, modules };
    if std::env::var_os(BUILT).is_some() {
        return Ok(kernel);
    }
    let toolchain = Toolchain::get()?;
    let step = Step::begin("build the kernel and its modules");
    // One build after the other: in between, the files of two would be mixed.
    let _lock = workspace::lock(&target_dir.join("modules.lock"))?;
    let packages: Vec<&str> = modules::packages().flat_map(|package| ["--package", package]).collect();
    let exports = modules::exports_path(&target_dir);
    // The same packages in every run, so that each is built with the same features.
    let command = |what: &[&str]| {
        let mut command = cargo(&toolchain, "build", &target_dir);
        command.arg("--release").args(&packages).args(what).env("NOS_EXPORTS", &exports);
        command
    };
    run::run(&step, &mut command(&["--lib"]))?;
    let made = modules::make(&toolchain, command(&["--lib"]), &target_dir)?;
    let build = modfile::short(&made.identity).to_string();
    run::run(&step, command(&["--bin", "kernel"]).env("NOS_BUILD", &build))?;
    let image = workspace::read_bytes(&kernel.elf)?;
    ensure!(!image.is_empty(), "{} is empty", kernel.elf.display());
    workspace::write_if_changed(&kernel.symbols, symbols::table(&image)?.as_bytes())?;
    step.done(format!("{build}, {} names exported, with {}", made.exported, toolchain.describe()));
    Ok(kernel)
}

/// Cargo for the kernel's rooms, run at the workspace's root.
pub fn cargo(toolchain: &Toolchain, subcommand: &str, target_dir: &std::path::Path) -> Command {
    let mut command = toolchain.cargo(subcommand, target_dir);
    command.current_dir(workspace::root());
    command
}
