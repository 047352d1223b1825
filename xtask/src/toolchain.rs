//! The compiler for bare metal.
//!
//! Two kinds will do. rustup's, with the precompiled library of `x86_64-unknown-none`, is the usual one. Debian's
//! packages have no such library but the library's source, and `build-std` makes it from that; that is the only use of
//! RUSTC_BOOTSTRAP, the project's own sources need no unstable feature. A machine that has one of the two uses it; a
//! machine that has neither gets rustup's if rustup can fetch it, else Debian's.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::packages::{self, Manager};
use crate::progress::Step;
use crate::run;

/// The kernel's target.
pub const TARGET: &str = "x86_64-unknown-none";

/// Debian's packages for it. `rustc-web` follows Rust's releases, where `rustc` stays at the release's.
const DEBIAN_PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "lld"];

/// The options that both kinds take: code at the top of the address space, at a fixed address, with frame pointers
/// for the backtrace of a panic.
///
/// SHA-256 is the portable one: the others' vector instructions are none that this target has.
const RUSTFLAGS: &str = "-Crelocation-model=static -Ccode-model=kernel -Cforce-frame-pointers=yes \
                         --cfg sha2_backend=\"soft\"";

/// A compiler that can build the kernel.
#[derive(Debug, Clone)]
pub enum Toolchain {
    Rustup { cargo: PathBuf },
    Debian { cargo: PathBuf, rustc: PathBuf, version: String },
}

impl Toolchain {
    /// What this machine has.
    pub fn present() -> Option<Toolchain> {
        rustup_present().or_else(debian_present)
    }

    /// What this machine has, or can get.
    pub fn get() -> Result<Toolchain> {
        if let Some(toolchain) = Self::present() {
            return Ok(toolchain);
        }
        if let Some(toolchain) = rustup_fetch() {
            return Ok(toolchain);
        }
        if Manager::find() != Some(Manager::Apt) {
            bail!(
                "no compiler for {TARGET}: `rustup target add {TARGET}` did not work, and without apt there are no \
                 Debian packages to take instead"
            );
        }
        packages::install(&DEBIAN_PACKAGES.map(str::to_owned))?;
        debian_present().context(
            "Debian's Rust packages are installed, but their compiler or its library's source is not found",
        )
    }

    /// In words, for the person.
    pub fn describe(&self) -> String {
        match self {
            Toolchain::Rustup { .. } => format!("rustup's {TARGET}"),
            Toolchain::Debian { version, .. } => {
                format!("Debian's {version}, with the core library from source")
            }
        }
    }

    /// The libraries that come with the compiler, where it brings them ready-made.
    pub fn libraries(&self) -> Result<Vec<PathBuf>> {
        let Toolchain::Rustup { .. } = self else { return Ok(Vec::new()) };
        let folder =
            run::output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
        let entries =
            std::fs::read_dir(folder.trim()).with_context(|| format!("reading {}", folder.trim()))?;
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.with_context(|| format!("reading {}", folder.trim()))?.path();
            if path.extension().is_some_and(|ending| ending == "rlib") {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    /// Cargo, set up to `build`, `check` or `clippy` packages for bare metal into `target_dir`.
    pub fn cargo(&self, subcommand: &str, target_dir: &Path) -> Command {
        let mut command = match self {
            Toolchain::Rustup { cargo } => Command::new(cargo),
            Toolchain::Debian { cargo, .. } => Command::new(cargo),
        };
        // What the cargo that runs this program has set for itself must not reach the other one.
        for variable in
            ["RUSTUP_TOOLCHAIN", "CARGO", "RUSTC", "RUSTDOC", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"]
        {
            command.env_remove(variable);
        }
        command.arg(subcommand).args(["--target", TARGET]).env("CARGO_TARGET_DIR", target_dir);
        match self {
            Toolchain::Rustup { .. } => {
                command.env("RUSTFLAGS", RUSTFLAGS);
            }
            Toolchain::Debian { rustc, .. } => {
                command
                    .env("RUSTC", rustc)
                    .env("RUSTC_BOOTSTRAP", "1")
                    .env("RUSTFLAGS", format!("-Clinker=ld.lld -Clinker-flavor=ld.lld {RUSTFLAGS}"))
                    .args([
                        "-Zbuild-std=core,alloc,compiler_builtins",
                        "-Zbuild-std-features=compiler-builtins-mem",
                    ]);
            }
        }
        command
    }
}

fn rustup_present() -> Option<Toolchain> {
    if !run::installed("rustup") {
        return None;
    }
    let targets = run::output(Command::new("rustup").args(["target", "list", "--installed"])).ok()?;
    targets
        .lines()
        .any(|line| line.trim() == TARGET)
        .then(|| Toolchain::Rustup { cargo: PathBuf::from("cargo") })
}

/// `rustup target add`, which on a machine without the internet fails sooner or later; not later than this.
fn rustup_fetch() -> Option<Toolchain> {
    const PATIENCE: Duration = Duration::from_secs(120);
    if !run::installed("rustup") {
        return None;
    }
    let step = Step::begin(format!("rustup target add {TARGET}"));
    let seconds = PATIENCE.as_secs().to_string();
    let fetched =
        run::run(&step, Command::new("timeout").args([&seconds, "rustup", "target", "add", TARGET]));
    match fetched.is_ok().then(rustup_present).flatten() {
        Some(toolchain) => {
            step.done("");
            Some(toolchain)
        }
        None => {
            step.done("not to be had here; taking Debian's packages");
            None
        }
    }
}

fn debian_present() -> Option<Toolchain> {
    let (cargo, rustc) = (PathBuf::from("/usr/bin/cargo"), PathBuf::from("/usr/bin/rustc"));
    let version = run::output(Command::new(&rustc).arg("--version")).ok()?;
    let sysroot = run::output(Command::new(&rustc).args(["--print", "sysroot"])).ok()?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/src/lib.rs");
    let version = version.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    (cargo.is_file() && library.is_file() && run::installed("ld.lld")).then_some(Toolchain::Debian {
        cargo,
        rustc,
        version,
    })
}
