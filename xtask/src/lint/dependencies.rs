//! Every crate from outside has said why it is here, in `docs/dependencies.md`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use cargo_metadata::Metadata;

use super::Check;

const DOCUMENT: &str = "docs/dependencies.md";

/// Checks that the document names each direct dependency, and no other.
pub fn check(metadata: &Metadata, root: &Path) -> Result<Check> {
    let mut check = Check::new("docs/dependencies.md names every direct dependency");
    let mut used: BTreeMap<&str, &str> = BTreeMap::new();
    for package in metadata.workspace_packages() {
        for dependency in &package.dependencies {
            if dependency.path.is_none() {
                used.insert(&dependency.name, &package.name);
            }
        }
    }
    let text = std::fs::read_to_string(root.join(DOCUMENT)).unwrap_or_default();
    let documented: Vec<&str> = text.lines().filter_map(documented_name).collect();
    for (name, user) in &used {
        if !documented.contains(name) {
            check.problems.push(format!("{DOCUMENT} does not name {name}, which {user} uses"));
        }
    }
    for name in documented {
        if !used.contains_key(name) {
            check.problems.push(format!("{DOCUMENT} names {name}, which nothing uses"));
        }
    }
    check.notes.push(format!("{} direct dependencies", used.len()));
    Ok(check)
}

/// A row of the document's table begins with the crate's name in backquotes.
fn documented_name(line: &str) -> Option<&str> {
    line.strip_prefix("| `")?.split('`').next()
}
