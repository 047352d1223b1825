//! Modules of a Linux kernel, in the order in which they need each other: what an initramfs without modprobe loads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::workspace;

/// The modules of these names and those they depend on, each behind its dependencies. `folder` is a kernel's folder of
/// modules. A module that is not there is built into the kernel.
pub fn in_order(folder: &Path, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    find(&folder.join("kernel"), &mut files)?;
    let mut ordered = Vec::new();
    for name in names {
        take(name, &files, &mut ordered)?;
    }
    Ok(ordered)
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry.with_context(|| format!("reading {}", folder.display()))?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".ko")) {
            files.push(path);
        }
    }
    Ok(())
}

fn take(name: &str, files: &[PathBuf], ordered: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    // A module's name has underscores where its file's may have hyphens.
    let is_it = |path: &&PathBuf| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.split(".ko").next().is_some_and(|stem| stem.replace('-', "_") == name)
    };
    if ordered.iter().any(|(other, _)| other == name) {
        return Ok(());
    }
    let Some(path) = files.iter().find(is_it) else { return Ok(()) };
    let module = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => {
            let output = Command::new("xz").arg("-dc").arg(path).output().context("starting xz")?;
            anyhow::ensure!(output.status.success(), "xz cannot unpack {}", path.display());
            output.stdout
        }
        _ => workspace::read_bytes(path)?,
    };
    for dependency in dependencies(&module)? {
        take(&dependency, files, ordered)?;
    }
    ordered.push((name.to_owned(), module));
    Ok(())
}

/// A module says what it needs in its section `.modinfo`: strings `key=value`, each ended by a NUL.
fn dependencies(module: &[u8]) -> Result<Vec<String>> {
    use object::{Object as _, ObjectSection as _};
    let file = object::File::parse(module).context("reading a kernel module")?;
    let section = file.section_by_name(".modinfo").context("a kernel module has no .modinfo")?;
    let data = section.data().context("reading .modinfo")?;
    Ok(data
        .split(|byte| *byte == 0)
        .filter_map(|line| std::str::from_utf8(line).ok()?.strip_prefix("depends="))
        .flat_map(|names| names.split(','))
        .filter(|name| !name.is_empty())
        .map(|name| name.replace('-', "_"))
        .collect())
}
