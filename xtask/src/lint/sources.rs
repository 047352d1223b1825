//! Rules on files.

use std::path::Path;

use anyhow::Result;

use super::{Check, rust_files};
use crate::workspace;

/// A file that is longer does more than one thing.
const MOST_LINES: usize = 800;

pub fn check_lengths(root: &Path) -> Result<Check> {
    let mut check = Check::new("no file is longer than 800 lines");
    let mut longest = (0, String::new());
    let files = rust_files(root)?;
    for file in &files {
        let lines = workspace::read_text(file)?.lines().count();
        let name = file.strip_prefix(root).unwrap_or(file).display().to_string();
        if lines > MOST_LINES {
            check.problems.push(format!("{name} has {lines} lines"));
        }
        longest = longest.max((lines, name));
    }
    check.notes.push(format!("{} files, the longest is {} with {} lines", files.len(), longest.1, longest.0));
    Ok(check)
}
