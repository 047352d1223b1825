//! The shell's line editor: bytes of a terminal in, bytes for a terminal out.
//!
//! It knows no device, no clock and no command, so it is tested on the host, against a small model of a terminal: what
//! the screen shows must always be what the line is. The kernel feeds it every byte of the console and writes what it
//! answers; the commands come in by [`Complete`], for the Tab key alone.
//!
//! Keys: arrows, Home, End, Backspace, Delete, Ctrl-A and Ctrl-E (ends of the line), Ctrl-B and Ctrl-F (a character),
//! Ctrl-Left, Ctrl-Right, Alt-B and Alt-F (a word), Ctrl-P and Ctrl-N (history), Ctrl-U and Ctrl-K (cut to an end),
//! Ctrl-W and Alt-D (cut a word), Ctrl-L (clear the screen), Ctrl-C (give the line up), Ctrl-D (end of input on an
//! empty line, else Delete), Tab.
//!
//! A serial line does not tell the terminal's width, and a line that wraps cannot be redrawn without it. So a line
//! that is too long for [`COLUMNS`] scrolls sideways, as if seen through a window that follows the cursor.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod history;
mod keys;
mod line;

#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use history::History;
use keys::{Key, KeyParser};
use line::Line;

/// The width that every terminal has.
pub const COLUMNS: usize = 80;

/// What a byte led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing for the caller; the editor may have written something.
    Editing,
    /// A whole line was entered. Call [`LineEditor::prompt`] after it was dealt with.
    Line(String),
    /// Ctrl-C: the line was given up. Call [`LineEditor::prompt`] again.
    Interrupted,
    /// Ctrl-D on an empty line.
    EndOfInput,
}

/// Knows the words that can stand at a place.
pub trait Complete {
    /// Adds every word that `before_cursor` can go on with. Its last word, which may be empty, is what the candidates
    /// have to begin with; others are ignored.
    fn complete(&self, before_cursor: &str, candidates: &mut Vec<String>);
}

/// No completion.
impl Complete for () {
    fn complete(&self, _before_cursor: &str, _candidates: &mut Vec<String>) {}
}

/// One line editor, for one terminal.
#[derive(Debug)]
pub struct LineEditor {
    prompt: String,
    keys: KeyParser,
    line: Line,
    history: History,
    /// The first character of the line that is on the screen.
    scroll: usize,
}

const BELL: u8 = 0x07;
const ERASE_TO_END: &[u8] = b"\x1b[K";
const CLEAR_SCREEN: &[u8] = b"\x1b[2J\x1b[H";

impl LineEditor {
    /// The prompt is shown before every line. It is cut where it would leave less than half a screen for the line.
    pub fn new(prompt: &str) -> Self {
        LineEditor {
            prompt: prompt.chars().filter(char::is_ascii).take(COLUMNS / 2).collect(),
            keys: KeyParser::default(),
            line: Line::default(),
            history: History::default(),
            scroll: 0,
        }
    }

    /// Shows the prompt and the line as it is: at the start, after a command, and after anything else has written to
    /// the terminal.
    pub fn prompt(&mut self, out: &mut Vec<u8>) {
        self.draw(out);
    }

    /// Wipes the prompt and the line off the screen, so that something else can be written in their place.
    pub fn hide(&self, out: &mut Vec<u8>) {
        out.push(b'\r');
        out.extend_from_slice(ERASE_TO_END);
    }

    /// The line as it stands.
    pub fn text(&self) -> &str {
        self.line.text()
    }

    /// Takes one byte from the terminal.
    pub fn feed(&mut self, byte: u8, words: &dyn Complete, out: &mut Vec<u8>) -> Outcome {
        let Some(key) = self.keys.feed(byte) else { return Outcome::Editing };
        match key {
            Key::Enter => {
                self.line.move_to(self.line.end());
                self.draw(out);
                out.extend_from_slice(b"\r\n");
                let text = self.line.take();
                self.history.remember(&text);
                self.scroll = 0;
                return Outcome::Line(text);
            }
            Key::Control(b'c') => {
                out.extend_from_slice(b"^C\r\n");
                self.line.take();
                self.history.end_walk();
                self.scroll = 0;
                return Outcome::Interrupted;
            }
            Key::Control(b'd') if self.line.text().is_empty() => {
                out.extend_from_slice(b"\r\n");
                return Outcome::EndOfInput;
            }
            Key::Character(character) => self.insert(character, out),
            Key::Tab => self.complete(words, out),
            Key::Control(b'l') => {
                out.extend_from_slice(CLEAR_SCREEN);
                self.draw(out);
            }
            Key::Up | Key::Control(b'p') => {
                let older = self.history.older(self.line.text()).map(String::from);
                self.recall(older, out);
            }
            Key::Down | Key::Control(b'n') => {
                let newer = self.history.newer();
                self.recall(newer, out);
            }
            other => {
                self.edit(other);
                self.draw(out);
            }
        }
        Outcome::Editing
    }

    /// The keys that only move or cut.
    fn edit(&mut self, key: Key) {
        let line = &mut self.line;
        let cursor = line.cursor();
        match key {
            Key::Left | Key::Control(b'b') => line.move_to(cursor.saturating_sub(1)),
            Key::Right | Key::Control(b'f') => line.move_to(cursor + 1),
            Key::WordLeft => line.move_to(line.word_left()),
            Key::WordRight => line.move_to(line.word_right()),
            Key::Home | Key::Control(b'a') => line.move_to(0),
            Key::End | Key::Control(b'e') => line.move_to(line.end()),
            Key::Backspace => line.cut_to(cursor.saturating_sub(1)),
            Key::Delete | Key::Control(b'd') => line.cut_to(cursor + 1),
            Key::Control(b'u') => line.cut_to(0),
            Key::Control(b'k') => line.cut_to(line.end()),
            Key::Control(b'w') => line.cut_to(line.word_left()),
            Key::DeleteWordRight => line.cut_to(line.word_right()),
            _ => {}
        }
    }

    fn insert(&mut self, character: u8, out: &mut Vec<u8>) {
        let at_end = self.line.cursor() == self.line.end();
        if !self.line.insert(character) {
            out.push(BELL);
        } else if at_end && self.line.cursor() - self.scroll < self.room() {
            // By far the most frequent case, and at 115200 baud the one that is felt: one byte, not a whole line.
            out.push(character);
        } else {
            self.draw(out);
        }
    }

    fn recall(&mut self, text: Option<String>, out: &mut Vec<u8>) {
        match text {
            Some(text) => {
                self.line.replace(text);
                self.draw(out);
            }
            None => out.push(BELL),
        }
    }

    /// Tab: goes on as far as every candidate agrees; where they part at once, lists them.
    fn complete(&mut self, words: &dyn Complete, out: &mut Vec<u8>) {
        let before = self.line.before_cursor();
        let word = &before[before.rfind(' ').map_or(0, |blank| blank + 1)..];
        let mut candidates = Vec::new();
        words.complete(before, &mut candidates);
        candidates.retain(|candidate| candidate.is_ascii() && candidate.starts_with(word));
        candidates.sort_unstable();
        candidates.dedup();
        let Some(first) = candidates.first() else {
            out.push(BELL);
            return;
        };
        let agreed = candidates.iter().map(|candidate| common_prefix(first, candidate)).min().unwrap_or(0);
        let mut rest = String::from(&first[word.len()..agreed]);
        if candidates.len() == 1 {
            rest.push(' ');
        }
        if rest.is_empty() {
            out.extend_from_slice(b"\r\n");
            for candidate in &candidates {
                out.extend_from_slice(candidate.as_bytes());
                out.extend_from_slice(b"  ");
            }
            out.extend_from_slice(b"\r\n");
        }
        // A candidate with a control character in it would break the line; there is none, but the screen must not
        // depend on that.
        for character in rest.bytes().filter(|byte| matches!(byte, 0x20..=0x7e)) {
            if !self.line.insert(character) {
                out.push(BELL);
                break;
            }
        }
        self.draw(out);
    }

    /// How many columns there are for the line. The last one stays free: a terminal that has just filled it may
    /// already stand on the next row.
    fn room(&self) -> usize {
        COLUMNS - 1 - self.prompt.len()
    }

    /// Draws the row anew and moves the window so that the cursor is in it.
    fn draw(&mut self, out: &mut Vec<u8>) {
        let room = self.room();
        let cursor = self.line.cursor();
        if cursor < self.scroll {
            self.scroll = cursor;
        } else if cursor - self.scroll >= room {
            self.scroll = cursor + 1 - room;
        }
        let text = self.line.text();
        let shown = &text[self.scroll.min(text.len())..(self.scroll + room).min(text.len())];
        out.push(b'\r');
        out.extend_from_slice(self.prompt.as_bytes());
        out.extend_from_slice(shown.as_bytes());
        out.extend_from_slice(ERASE_TO_END);
        let back = shown.len() - (cursor - self.scroll);
        if back > 0 {
            out.extend_from_slice(format!("\x1b[{back}D").as_bytes());
        }
    }
}

fn common_prefix(one: &str, other: &str) -> usize {
    one.bytes().zip(other.bytes()).take_while(|(left, right)| left == right).count()
}
