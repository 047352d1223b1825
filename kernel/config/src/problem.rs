//! What is wrong with a configuration, and where.

use alloc::string::String;
use core::fmt;

/// One mistake in `nos.toml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What stands there.
    pub found: String,
    /// What would have been right.
    pub expected: String,
    /// What the node does without it ("guest alpha is left out").
    pub consequence: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "nos.toml line {}, column {}: found {}, expected {}; {}",
            self.line, self.column, self.found, self.expected, self.consequence
        )
    }
}

/// Line and column, both from 1, of a byte offset. An offset beyond the text, or inside a character, is taken as the
/// nearest place before it.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[line_start..].chars().count() + 1)
}
