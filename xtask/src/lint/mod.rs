//! `cargo xtask lint`: the rules of the house, checked.
//!
//! The compiler's and clippy's rules are here, and those that no compiler knows: which room may use which, where
//! `unsafe` may stand and how much of it there is, how long a file may be, which dependency has said why it is here.
//! Each rule is a [`Check`]; the ones that only read the sources are unit tests too, so that `cargo test` alone finds
//! an arrow that points up.

mod arrows;
mod compilers;
mod dependencies;
mod sources;
mod unsafety;

use std::path::Path;

use anyhow::{Context as _, Result};
use cargo_metadata::{Metadata, MetadataCommand, Package};

use crate::progress::Step;
use crate::workspace;

/// The outcome of one rule.
#[derive(Debug)]
pub struct Check {
    pub name: &'static str,
    /// What breaks the rule, each with its place.
    pub problems: Vec<String>,
    /// For the person, whatever the outcome: a count, what was not checked and why.
    pub notes: Vec<String>,
}

impl Check {
    fn new(name: &'static str) -> Check {
        Check { name, problems: Vec::new(), notes: Vec::new() }
    }

    pub fn passed(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks every rule and shows the outcome of each.
pub fn run() -> Result<Vec<Check>> {
    let metadata = metadata()?;
    let root = workspace::root();
    type Rule<'r> = (&'r str, Box<dyn Fn() -> Result<Check> + 'r>);
    let rules: [Rule<'_>; 8] = [
        ("format", Box::new(compilers::format)),
        ("clippy, host", Box::new(|| compilers::clippy_host(&metadata))),
        ("clippy, kernel", Box::new(|| compilers::clippy_kernel(&metadata))),
        ("arrows", Box::new(|| Ok(arrows::check(&metadata)))),
        ("unsafe, count", Box::new(|| unsafety::check_counts(&root))),
        ("unsafe, forbidden", Box::new(|| unsafety::check_forbidden(&metadata))),
        ("files", Box::new(|| sources::check_lengths(&root))),
        ("dependencies", Box::new(|| dependencies::check(&metadata, &root))),
    ];
    let mut checks = Vec::new();
    for (name, rule) in rules {
        let step = Step::begin(format!("lint: {name}"));
        let check = rule()?;
        for note in &check.notes {
            step.say(note);
        }
        for problem in &check.problems {
            step.say(&format!("PROBLEM: {problem}"));
        }
        if check.passed() {
            step.done("");
        }
        checks.push(check);
    }
    Ok(checks)
}

/// Writes the present counts of `unsafe` into the committed file.
pub fn record_unsafe() -> Result<()> {
    unsafety::record(&workspace::root())
}

fn metadata() -> Result<Metadata> {
    MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        .exec()
        .context("asking cargo for the workspace's packages")
}

/// A package's folder, relative to the root: its room.
fn room<'p>(package: &'p Package, metadata: &Metadata) -> &'p str {
    let folder = package.manifest_path.parent().unwrap_or(&package.manifest_path);
    folder.strip_prefix(&metadata.workspace_root).unwrap_or(folder).as_str()
}

/// Whether a package is built for the host as well: those are the workspace's default members.
fn is_host(package: &Package, metadata: &Metadata) -> bool {
    metadata.workspace_default_members.contains(&package.id)
}

/// Every Rust file below the root that is the project's own.
fn rust_files(root: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        for entry in entries {
            let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(check: &Check) {
        assert!(check.passed(), "{}:\n{}", check.name, check.problems.join("\n"));
    }

    #[test]
    fn arrows_point_down() {
        holds(&arrows::check(&metadata().unwrap()));
    }

    #[test]
    fn no_room_has_more_unsafe_than_is_recorded() {
        holds(&unsafety::check_counts(&workspace::root()).unwrap());
    }

    #[test]
    fn unsafe_is_forbidden_where_it_is_not_needed() {
        holds(&unsafety::check_forbidden(&metadata().unwrap()).unwrap());
    }

    #[test]
    fn no_file_is_too_long() {
        holds(&sources::check_lengths(&workspace::root()).unwrap());
    }

    #[test]
    fn every_dependency_says_why_it_is_here() {
        holds(&dependencies::check(&metadata().unwrap(), &workspace::root()).unwrap());
    }
}
