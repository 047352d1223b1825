//! The line being edited: text and cursor, nothing of the screen.

use alloc::string::String;

/// ASCII only, so that a byte is a character is a column. The shell's commands, names and options are ASCII; a
/// terminal line of another script would need tables of character widths for no gain here.
#[derive(Debug, Default)]
pub(crate) struct Line {
    text: String,
    /// 0 to the text's length.
    cursor: usize,
}

impl Line {
    /// Longer lines are refused: nothing the shell takes comes near.
    pub(crate) const MOST_BYTES: usize = 1024;

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn cursor(&self) -> usize {
        self.cursor
    }

    pub(crate) fn before_cursor(&self) -> &str {
        &self.text[..self.cursor]
    }

    pub(crate) fn take(&mut self) -> String {
        self.cursor = 0;
        core::mem::take(&mut self.text)
    }

    /// Replaces everything; the cursor goes to the end.
    pub(crate) fn replace(&mut self, text: String) {
        self.cursor = text.len();
        self.text = text;
    }

    /// False if there is no room.
    pub(crate) fn insert(&mut self, character: u8) -> bool {
        let room = self.text.len() < Self::MOST_BYTES && character.is_ascii();
        if room {
            self.text.insert(self.cursor, char::from(character));
            self.cursor += 1;
        }
        room
    }

    pub(crate) fn move_to(&mut self, cursor: usize) {
        self.cursor = cursor.min(self.text.len());
    }

    pub(crate) fn end(&self) -> usize {
        self.text.len()
    }

    /// Where the word to the left begins.
    pub(crate) fn word_left(&self) -> usize {
        let word_end = self.before_cursor().trim_end_matches(' ').len();
        self.text[..word_end].rfind(' ').map_or(0, |blank| blank + 1)
    }

    /// Where the word to the right ends.
    pub(crate) fn word_right(&self) -> usize {
        let after = &self.text[self.cursor..];
        let blanks = after.len() - after.trim_start_matches(' ').len();
        self.cursor + after[blanks..].find(' ').map_or(after.len(), |end| blanks + end)
    }

    /// Cuts out what lies between the cursor and `place`; the cursor is at the cut.
    pub(crate) fn cut_to(&mut self, place: usize) {
        let place = place.min(self.text.len());
        let (from, to) = (place.min(self.cursor), place.max(self.cursor));
        self.text.replace_range(from..to, "");
        self.cursor = from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, cursor: usize) -> Line {
        let mut line = Line::default();
        line.replace(text.to_owned());
        line.move_to(cursor);
        line
    }

    #[test]
    fn words_are_found_in_both_directions() {
        assert_eq!(line("hv  start alpha", 15).word_left(), 10);
        assert_eq!(line("hv  start alpha", 10).word_left(), 4);
        assert_eq!(line("hv  start alpha", 2).word_right(), 9);
        assert_eq!(line("hv ", 2).word_right(), 3);
        assert_eq!(line("", 0).word_left(), 0);
        assert_eq!(line("", 0).word_right(), 0);
    }

    #[test]
    fn a_cut_works_in_both_directions() {
        let mut cut = line("abcdef", 4);
        cut.cut_to(1);
        assert_eq!((cut.text(), cut.cursor()), ("aef", 1));
        cut.cut_to(99);
        assert_eq!((cut.text(), cut.cursor()), ("a", 1));
    }

    #[test]
    fn a_full_line_takes_no_more() {
        let mut full = line(&"x".repeat(Line::MOST_BYTES), 3);
        assert!(!full.insert(b'y'));
        assert!(!line("", 0).insert(0xe4));
    }
}
