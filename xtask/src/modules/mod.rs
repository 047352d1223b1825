//! Modules: made of the libraries that one build of kernel and modules has left, and of no others.
//!
//! The kernel's libraries and the modules' come out of one run of cargo, so that features, layouts and
//! mangled names agree. What the kernel links is shared; what only a module needs becomes the module
//! ([`link`]), and the names that it wants of the rest become the kernel's table of exports
//! ([`exports`]), which the kernel's own link takes in. Both carry the same fingerprint: SHA-256 over
//! every shared library. Whoever changes one of them, or the compiler, has another kernel.

mod exports;
mod link;
mod object_file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{DependencyKind, Message, Metadata, MetadataCommand, PackageId};
use modfile::Identity;
use sha2::{Digest as _, Sha256};

use crate::run;
use crate::toolchain::{TARGET, Toolchain};
use crate::workspace;

/// Every module: its name, and the package whose library begins it.
pub const MODULES: [(&str, &str); 3] =
    [("netblk", "netblk-module"), ("hv", "hv-module"), ("floor", "floor-module")];

/// The package that everything shared belongs to.
const KERNEL: &str = "kernel";

/// The packages whose libraries are built together.
pub fn packages() -> impl Iterator<Item = &'static str> {
    std::iter::once(KERNEL).chain(MODULES.into_iter().map(|(_, package)| package))
}

/// Where a module's file is.
pub fn path(target_dir: &Path, name: &str) -> PathBuf {
    target_dir.join("modules").join(format!("{name}.ko"))
}

/// Where the kernel's table of exports is, as an object file for its linker.
pub fn exports_path(target_dir: &Path) -> PathBuf {
    target_dir.join("modules/exports.o")
}

/// What was made.
#[derive(Debug)]
pub struct Made {
    pub identity: Identity,
    pub exported: usize,
}

/// Makes every module and the table of exports out of the libraries that `cargo build` has left. `build`
/// is that command once more: it does nothing but name them.
pub fn make(toolchain: &Toolchain, mut build: Command, target_dir: &Path) -> Result<Made> {
    let text = run::output(build.arg("--message-format=json"))?;
    let libraries = libraries(&text)?;
    let metadata = MetadataCommand::new()
        .manifest_path(workspace::root().join("Cargo.toml"))
        .other_options(["--filter-platform".to_owned(), TARGET.to_owned()])
        .exec()
        .context("asking cargo for the packages that the kernel is made of")?;
    let of_kernel = closure(&metadata, KERNEL)?;
    let known: BTreeSet<&PackageId> = metadata.packages.iter().map(|package| &package.id).collect();
    // What no package of ours is comes with the compiler: core, alloc and the like.
    let is_shared = |id: &PackageId| of_kernel.contains(id) || !known.contains(id);
    let shared: Vec<&Path> =
        libraries.iter().filter(|(id, _)| is_shared(id)).map(|(_, path)| path.as_path()).collect();
    let identity = fingerprint(&shared, &toolchain.libraries()?)?;

    let mut wanted = BTreeSet::new();
    for (name, package) in MODULES {
        let mine = closure(&metadata, package)?;
        let own = libraries.iter().filter(|(id, _)| mine.contains(*id) && !is_shared(id));
        let own = own.map(|(_, path)| workspace::read_bytes(path)).collect::<Result<Vec<_>>>()?;
        let linked = link::link(&own, &identity).with_context(|| format!("making the module {name}"))?;
        wanted.extend(linked.imports);
        workspace::write_if_changed(&path(target_dir, name), &linked.file)?;
    }
    let exports = exports::object(&identity, &wanted)?;
    workspace::write_if_changed(&exports_path(target_dir), &exports)?;
    Ok(Made { identity, exported: wanted.len() })
}

/// The libraries for the kernel's target that cargo names, by package.
fn libraries(messages: &str) -> Result<BTreeMap<PackageId, PathBuf>> {
    let mut libraries = BTreeMap::new();
    for message in Message::parse_stream(messages.as_bytes()) {
        let Message::CompilerArtifact(artifact) = message.context("reading what cargo says")? else {
            continue;
        };
        let is_ours = |path: &&cargo_metadata::camino::Utf8PathBuf| {
            path.extension() == Some("rlib") && path.components().any(|part| part.as_str() == TARGET)
        };
        if let Some(path) = artifact.filenames.iter().find(is_ours) {
            libraries.insert(artifact.package_id, path.clone().into_std_path_buf());
        }
    }
    if libraries.is_empty() {
        bail!("cargo named no library for {TARGET}");
    }
    Ok(libraries)
}

/// A package and all that it uses.
fn closure(metadata: &Metadata, name: &str) -> Result<BTreeSet<PackageId>> {
    let resolve = metadata.resolve.as_ref().context("cargo's answer has no dependencies in it")?;
    let root = metadata.workspace_packages().into_iter().find(|package| package.name == name);
    let mut found = BTreeSet::new();
    let mut open = vec![root.with_context(|| format!("there is no package {name}"))?.id.clone()];
    while let Some(id) = open.pop() {
        let node = resolve.nodes.iter().find(|node| node.id == id);
        if found.insert(id)
            && let Some(node) = node
        {
            let is_normal = |dependency: &&cargo_metadata::NodeDep| {
                dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
            };
            open.extend(node.deps.iter().filter(is_normal).map(|dependency| dependency.pkg.clone()));
        }
    }
    Ok(found)
}

/// SHA-256 over the libraries, names and contents.
fn fingerprint(shared: &[&Path], of_compiler: &[PathBuf]) -> Result<Identity> {
    let mut paths: Vec<&Path> =
        of_compiler.iter().map(PathBuf::as_path).chain(shared.iter().copied()).collect();
    paths.sort_by_key(|path| path.file_name());
    let mut sha = Sha256::new();
    for path in paths {
        let bytes = workspace::read_bytes(path)?;
        sha.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        sha.update((bytes.len() as u64).to_le_bytes());
        sha.update(bytes);
    }
    Ok(sha.finalize().into())
}
