//! rustfmt and clippy.

use std::process::Command;

use anyhow::Result;
use cargo_metadata::Metadata;

use super::{Check, is_host};
use crate::run;
use crate::toolchain::Toolchain;
use crate::workspace;

/// Runs a tool; what it prints, if it fails, is the problem.
fn tool(check: &mut Check, command: &mut Command) -> Result<()> {
    let output = command.output()?;
    if !output.status.success() {
        let text = format!(
            "{}\n{}{}",
            run::show(command),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        check.problems.push(text);
    }
    Ok(())
}

fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    command
}

pub fn format() -> Result<Check> {
    let mut check = Check::new("the sources are formatted");
    tool(&mut check, cargo().args(["fmt", "--all", "--check", "--", "--color=never"]))?;
    Ok(check)
}

/// The packages that are built for the host, with their tests.
pub fn clippy_host(metadata: &Metadata) -> Result<Check> {
    let mut check = Check::new("clippy, host packages");
    let mut command = cargo();
    command.args(["clippy", "--quiet", "--all-targets"]);
    let mut packages = 0;
    for package in metadata.workspace_packages() {
        if is_host(package, metadata) {
            command.args(["--package", package.name.as_str()]);
            packages += 1;
        }
    }
    command.args(["--", "--deny", "warnings"]);
    tool(&mut check, &mut command)?;
    check.notes.push(format!("{packages} packages"));
    Ok(check)
}

/// The packages that are built for bare metal only. Debian's toolchain has no clippy: then the host's looks at their
/// libraries as if they were for the host, which all of them can be as long as nothing is linked.
pub fn clippy_kernel(metadata: &Metadata) -> Result<Check> {
    let mut check = Check::new("clippy, kernel packages");
    let mut command = match Toolchain::present() {
        Some(toolchain @ Toolchain::Rustup { .. }) => {
            let mut command = crate::kernel::cargo(&toolchain, "clippy", &crate::kernel::target_dir()?);
            command.arg("--quiet");
            command
        }
        Some(Toolchain::Debian { .. }) | None => {
            check
                .notes
                .push("the bare-metal toolchain has no clippy; the host's checks the libraries".to_owned());
            let mut command = cargo();
            command.args(["clippy", "--quiet", "--lib"]);
            command
        }
    };
    let mut packages = 0;
    for package in metadata.workspace_packages() {
        let has_library = package.targets.iter().any(|target| target.is_lib());
        if !is_host(package, metadata) && has_library {
            command.args(["--package", package.name.as_str()]);
            packages += 1;
        }
    }
    command.args(["--", "--deny", "warnings"]);
    tool(&mut check, &mut command)?;
    check.notes.push(format!("{packages} packages"));
    Ok(check)
}
