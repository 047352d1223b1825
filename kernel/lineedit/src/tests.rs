//! The editor against a terminal.

use proptest::prelude::*;

use super::*;

/// As much of a terminal as the editor uses. Anything else it is sent is a failure.
struct Terminal {
    rows: Vec<Vec<u8>>,
    row: usize,
    column: usize,
}

impl Terminal {
    fn new() -> Self {
        Terminal { rows: vec![vec![b' '; COLUMNS]], row: 0, column: 0 }
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut bytes = bytes.iter().copied();
        while let Some(byte) = bytes.next() {
            match byte {
                b'\r' => self.column = 0,
                b'\n' => {
                    self.row += 1;
                    if self.row == self.rows.len() {
                        self.rows.push(vec![b' '; COLUMNS]);
                    }
                }
                BELL => {}
                0x1b => self.sequence(&mut bytes),
                0x20..=0x7e => {
                    assert!(self.column < COLUMNS, "the line wraps");
                    self.rows[self.row][self.column] = byte;
                    self.column += 1;
                }
                other => panic!("byte {other:#04x}"),
            }
        }
    }

    fn sequence(&mut self, bytes: &mut impl Iterator<Item = u8>) {
        assert_eq!(bytes.next(), Some(b'['));
        let mut number = 0usize;
        loop {
            match bytes.next().expect("a whole sequence") {
                digit @ b'0'..=b'9' => number = number * 10 + usize::from(digit - b'0'),
                b'K' => break self.rows[self.row][self.column..].fill(b' '),
                b'D' => break self.column -= number,
                b'J' => break self.rows.iter_mut().for_each(|row| row.fill(b' ')),
                b'H' => break (self.row, self.column) = (0, 0),
                other => panic!("sequence {other:#04x}"),
            }
        }
    }

    fn row(&self) -> &str {
        std::str::from_utf8(&self.rows[self.row]).unwrap().trim_end()
    }
}

struct Session {
    editor: LineEditor,
    terminal: Terminal,
    lines: Vec<String>,
}

struct Commands;

impl Complete for Commands {
    fn complete(&self, before_cursor: &str, candidates: &mut Vec<String>) {
        let words: &[&str] = if before_cursor.contains(' ') {
            &["list", "start", "stat", "stop"]
        } else {
            &["help", "hv", "netblk", "net"]
        };
        candidates.extend(words.iter().map(|word| word.to_string()));
    }
}

impl Session {
    fn new() -> Self {
        let mut session =
            Session { editor: LineEditor::new("nos> "), terminal: Terminal::new(), lines: vec![] };
        let mut out = Vec::new();
        session.editor.prompt(&mut out);
        session.terminal.write(&out);
        session
    }

    fn typed(mut self, bytes: &[u8]) -> Self {
        self.type_in(bytes);
        self
    }

    fn type_in(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let mut out = Vec::new();
            match self.editor.feed(*byte, &Commands, &mut out) {
                Outcome::Editing => {}
                Outcome::Line(line) => {
                    self.lines.push(line);
                    self.editor.prompt(&mut out);
                }
                Outcome::Interrupted | Outcome::EndOfInput => self.editor.prompt(&mut out),
            }
            self.terminal.write(&out);
        }
    }

    /// What the screen's row shows is the prompt and the part of the line around the cursor, which is where the
    /// line's is.
    fn check(&self) {
        let window: String = self.editor.text().chars().skip(self.editor.scroll).take(COLUMNS - 6).collect();
        assert_eq!(self.terminal.row(), format!("nos> {window}").trim_end());
        assert_eq!(self.terminal.column, 5 + self.editor.line.cursor() - self.editor.scroll);
    }

    fn line(&self) -> &str {
        self.check();
        self.editor.text()
    }
}

#[test]
fn what_is_typed_is_shown_and_entered() {
    let session = Session::new().typed(b"hv list\rps\n");
    assert_eq!(session.lines, ["hv list", "ps"]);
    assert_eq!(session.line(), "");
    assert!(session.terminal.rows[0].starts_with(b"nos> hv list "));
}

#[test]
fn every_key_edits() {
    for (keys, line) in [
        (&b"abc\x1b[D\x1b[DX"[..], "aXbc"),
        (b"abc\x01X\x05Y", "XabcY"),
        (b"abc\x1b[HX\x1b[FY", "XabcY"),
        (b"abc\x7f", "ab"),
        (b"abc\x01\x1b[3~", "bc"),
        (b"abc\x01\x04", "bc"),
        (b"one two\x17", "one "),
        (b"one two  \x17X", "one X"),
        (b"one two\x1b[D\x15", "o"),
        (b"one two\x01\x1b[1;5C\x0b", "one"),
        (b"one two\x01\x1bd", " two"),
        (b"abc\x02\x02\x06X", "abXc"),
        (b"abc\x1bb\x1bfX", "abcX"),
        (b"abc\x0cd", "abcd"),
        (b"abc\x1b[5~\x1b[?25ld", "abcd"),
        (b"abc\x03def", "def"),
    ] {
        assert_eq!(Session::new().typed(keys).line(), line, "{:?}", String::from_utf8_lossy(keys));
    }
}

#[test]
fn the_arrows_walk_through_the_history() {
    let mut session = Session::new().typed(b"one\rtwo\rdra");
    session.type_in(b"\x1b[A");
    assert_eq!(session.line(), "two");
    session.type_in(b"\x1b[A\x1b[A\x10");
    assert_eq!(session.line(), "one");
    session.type_in(b"\x1b[B\x1b[B");
    assert_eq!(session.line(), "dra");
    session.type_in(b"\x1b[A\x1b[AX\r");
    assert_eq!(session.lines, ["one", "two", "oneX"]);
    session.type_in(b"\x1b[A");
    assert_eq!(session.line(), "oneX");
}

#[test]
fn tab_goes_on_as_far_as_it_is_certain() {
    assert_eq!(Session::new().typed(b"he\t").line(), "help ");
    assert_eq!(Session::new().typed(b"n\t").line(), "net");
    assert_eq!(Session::new().typed(b"hv st\t").line(), "hv st");
    assert_eq!(Session::new().typed(b"hv l\t").line(), "hv list ");
    assert_eq!(Session::new().typed(b"x\t").line(), "x");
    assert_eq!(Session::new().typed(b"hv  alpha\x01\x1b[C\x1b[C\x1b[Cl\t").line(), "hv list  alpha");
}

#[test]
fn tab_lists_where_the_words_part() {
    let session = Session::new().typed(b"hv st\t");
    let listed = String::from_utf8(session.terminal.rows[1].clone()).unwrap();
    assert_eq!(listed.trim_end(), "start  stat  stop");
    assert_eq!(session.line(), "hv st");
}

#[test]
fn a_long_line_scrolls() {
    let mut session = Session::new();
    for number in 0..300u16 {
        session.type_in(&[b'a' + u8::try_from(number % 26).unwrap()]);
        session.check();
    }
    session.type_in(b"\x01");
    session.check();
    assert_eq!(session.editor.scroll, 0);
    for _ in 0..300 {
        session.type_in(b"\x1b[C");
        session.check();
    }
    session.type_in(b"\r");
    assert_eq!(session.lines[0].len(), 300);
}

#[test]
fn control_d_ends_the_input_only_on_an_empty_line() {
    let mut editor = LineEditor::new("");
    let mut out = Vec::new();
    editor.feed(b'x', &(), &mut out);
    assert_eq!(editor.feed(4, &(), &mut out), Outcome::Editing);
    editor.feed(0x7f, &(), &mut out);
    assert_eq!(editor.feed(4, &(), &mut out), Outcome::EndOfInput);
}

#[test]
fn a_line_survives_what_others_write() {
    let mut session = Session::new().typed(b"hv st\x1b[D");
    let mut out = Vec::new();
    session.editor.hide(&mut out);
    out.extend_from_slice(b"a log line\r\n");
    session.editor.prompt(&mut out);
    session.terminal.write(&out);
    assert!(session.terminal.rows[0].starts_with(b"a log line  "));
    assert_eq!(session.line(), "hv st");
}

/// Bytes among which the interesting ones are not rare.
fn key_bytes() -> impl Strategy<Value = Vec<u8>> {
    let sequence = prop::sample::select(vec![
        &b"\x1b[A"[..],
        b"\x1b[B",
        b"\x1b[C",
        b"\x1b[D",
        b"\x1b[H",
        b"\x1b[F",
        b"\x1b[3~",
        b"\x1b[1;5C",
        b"\x1b[1;5D",
        b"\x1bd",
        b"\t",
        b"\r",
        b"word of some length",
    ])
    .prop_map(<[u8]>::to_vec);
    let pieces = prop_oneof![4 => sequence, 2 => "[ -~]{1,8}".prop_map(String::into_bytes), 1 => any::<u8>().prop_map(|byte| vec![byte])];
    prop::collection::vec(pieces, 0..120).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn the_screen_shows_the_line_whatever_is_typed(bytes in key_bytes()) {
        let mut session = Session::new();
        for byte in bytes {
            session.type_in(&[byte]);
            session.check();
            prop_assert!(session.editor.text().bytes().all(|byte| matches!(byte, 0x20..=0x7e)));
        }
    }
}
