//! Where `unsafe` stands, and how much of it.
//!
//! The count is of the keyword itself: blocks, functions, impls, extern blocks and attributes alike; comments and
//! strings do not count. It may shrink by itself; to grow, it needs a change of `docs/unsafe.toml` in the same commit,
//! which a reviewer sees.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};
use cargo_metadata::Metadata;
use proc_macro2::{TokenStream, TokenTree};
use serde::{Deserialize, Serialize};

use super::{Check, room, rust_files};
use crate::workspace;

/// The packages that may contain it; the smoke kernels are the tests of arch and hvarch on a bare machine.
const ALLOWED: [&str; 4] = ["arch", "kcore", "hvarch", "arch-smoke"];

const RECORD: &str = "docs/unsafe.toml";

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    /// Room to count. A room that is not named has none.
    rooms: BTreeMap<String, usize>,
}

/// Compares the counts with the record.
pub fn check_counts(root: &Path) -> Result<Check> {
    let mut check = Check::new("no more unsafe than is recorded");
    let counted = count_rooms(root)?;
    let path = root.join(RECORD);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let recorded: Record = toml::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
    for (room, count) in &counted {
        let before = recorded.rooms.get(room).copied().unwrap_or(0);
        check.notes.push(format!("{count:>5} in {room} (recorded: {before})"));
        if *count > before {
            check.problems.push(format!(
                "{room} has {count} uses of unsafe, {RECORD} records {before}. Do without, or record it: cargo xtask lint --record-unsafe"
            ));
        }
    }
    check.notes.push(format!("{:>5} in all", counted.values().sum::<usize>()));
    Ok(check)
}

/// Checks that every other package's crates forbid it.
pub fn check_forbidden(metadata: &Metadata) -> Result<Check> {
    let mut check = Check::new("unsafe is forbidden outside arch, kcore and hvarch");
    for package in metadata.workspace_packages() {
        if ALLOWED.contains(&package.name.as_str()) {
            continue;
        }
        for target in &package.targets {
            let is_crate = target.is_lib() || target.is_bin() || target.is_proc_macro();
            if is_crate {
                let text = workspace::read_text(target.src_path.as_std_path())?;
                if !text.contains("#![forbid(unsafe_code)]") {
                    let file =
                        target.src_path.strip_prefix(&metadata.workspace_root).unwrap_or(&target.src_path);
                    check
                        .problems
                        .push(format!("{file} ({}) has no #![forbid(unsafe_code)]", room(package, metadata)));
                }
            }
        }
    }
    Ok(check)
}

/// Writes the record.
pub fn record(root: &Path) -> Result<()> {
    let record = Record { rooms: count_rooms(root)? };
    let mut text = String::from(
        "# How often the keyword `unsafe` stands in each room. `cargo xtask lint` fails where there is more;\n\
         # `cargo xtask lint --record-unsafe` writes this file. The commit that does says why.\n\n[rooms]\n",
    );
    for (room, count) in &record.rooms {
        text.push_str(&format!("\"{room}\" = {count}\n"));
    }
    workspace::write_if_changed(&root.join(RECORD), text.as_bytes())?;
    print!("{text}");
    Ok(())
}

/// The counts of the rooms that have any. A room here is a package's folder.
fn count_rooms(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut rooms = BTreeMap::new();
    for file in rust_files(root)? {
        let text = workspace::read_text(&file)?;
        let count = count(&text).with_context(|| format!("reading {} as Rust", file.display()))?;
        if count > 0 {
            let folder = file.ancestors().find(|folder| folder.join("Cargo.toml").is_file()).unwrap_or(root);
            let room = folder.strip_prefix(root).unwrap_or(folder).display().to_string();
            *rooms.entry(room).or_insert(0) += count;
        }
    }
    Ok(rooms)
}

fn count(text: &str) -> Result<usize> {
    let tokens: TokenStream = text.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    Ok(count_tokens(tokens))
}

fn count_tokens(tokens: TokenStream) -> usize {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Ident(word) => usize::from(word == "unsafe"),
            TokenTree::Group(group) => count_tokens(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keyword_counts() {
        let text = r#"
            //! unsafe in a document
            #![forbid(unsafe_code)]
            #[unsafe(no_mangle)]
            /// unsafe here too
            pub unsafe fn f() { let s = "unsafe"; unsafe { g() } /* unsafe */ }
        "#;
        assert_eq!(count(text).unwrap(), 3);
    }
}
