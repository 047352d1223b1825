//! From bytes to keys.
//!
//! A terminal sends a key either as one byte or as an escape sequence (ECMA-48 section 5.4; the function keys as in
//! the VT220 programmer's reference, chapter 3). The parser keeps nothing but its state and two numbers, so a line
//! full of noise cannot make it grow, and it is never more than one byte away from understanding text again.

/// A key as the editor understands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Key {
    /// A printable ASCII character.
    Character(u8),
    Enter,
    Tab,
    Backspace,
    Delete,
    Left,
    Right,
    WordLeft,
    WordRight,
    Home,
    End,
    Up,
    Down,
    /// Ctrl-A is `Control(b'a')`, and so on. Those that are a key of another name come as that.
    Control(u8),
    /// Alt-D: deletes the word to the right.
    DeleteWordRight,
}

#[derive(Debug, Clone, Copy, Default)]
enum State {
    #[default]
    Ground,
    /// A carriage return was the last byte: a line feed right behind it belongs to it.
    AfterReturn,
    Escape,
    /// Inside `ESC [`. The parameters so far; `count` says which one is being read.
    Control {
        parameters: [u16; 2],
        count: usize,
    },
    /// Behind `ESC O`: one more byte.
    SingleShift,
}

#[derive(Debug, Default)]
pub(crate) struct KeyParser {
    state: State,
}

impl KeyParser {
    /// Takes one byte. Most bytes of an escape sequence are no key yet.
    pub(crate) fn feed(&mut self, byte: u8) -> Option<Key> {
        let state = core::mem::take(&mut self.state);
        match (state, byte) {
            (_, 0x1b) => {
                self.state = State::Escape;
                None
            }
            (State::AfterReturn, b'\n') => None,
            // A control character inside a sequence ends the sequence: better a lost key than a lost line end.
            (_, 0x00..0x20 | 0x7f) => self.control(byte),
            (State::Ground | State::AfterReturn, 0x20..=0x7e) => Some(Key::Character(byte)),
            (State::Escape, b'[') => {
                self.state = State::Control { parameters: [0; 2], count: 0 };
                None
            }
            (State::Escape, b'O') => {
                self.state = State::SingleShift;
                None
            }
            (State::Escape, b'b') => Some(Key::WordLeft),
            (State::Escape, b'f') => Some(Key::WordRight),
            (State::Escape, b'd') => Some(Key::DeleteWordRight),
            (State::Control { mut parameters, count }, b'0'..=b'9') => {
                if let Some(parameter) = parameters.get_mut(count) {
                    *parameter = parameter.saturating_mul(10).saturating_add(u16::from(byte - b'0'));
                }
                self.state = State::Control { parameters, count };
                None
            }
            (State::Control { parameters, count }, b';') => {
                self.state = State::Control { parameters, count: (count + 1).min(parameters.len()) };
                None
            }
            // Other parameter and intermediate bytes: skipped up to the final byte.
            (State::Control { parameters, count }, 0x20..=0x3f) => {
                self.state = State::Control { parameters, count };
                None
            }
            (State::Control { parameters, .. }, final_byte) => sequence(final_byte, parameters),
            (State::SingleShift, final_byte) => sequence(final_byte, [0; 2]),
            // Not ASCII, or Alt and a key that means nothing here.
            _ => None,
        }
    }

    fn control(&mut self, byte: u8) -> Option<Key> {
        match byte {
            b'\r' => {
                self.state = State::AfterReturn;
                Some(Key::Enter)
            }
            b'\n' => Some(Key::Enter),
            b'\t' => Some(Key::Tab),
            0x08 | 0x7f => Some(Key::Backspace),
            0x00 => None,
            0x01..=0x1a => Some(Key::Control(byte - 1 + b'a')),
            _ => None,
        }
    }
}

/// The key of a whole control sequence. The second parameter is 1 + the modifiers; 5 is Ctrl, 3 is Alt.
fn sequence(final_byte: u8, [number, modifiers]: [u16; 2]) -> Option<Key> {
    let by_word = matches!(modifiers, 3 | 5);
    match (final_byte, number) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'C', _) if by_word => Some(Key::WordRight),
        (b'D', _) if by_word => Some(Key::WordLeft),
        (b'C', _) => Some(Key::Right),
        (b'D', _) => Some(Key::Left),
        (b'H', _) | (b'~', 1 | 7) => Some(Key::Home),
        (b'F', _) | (b'~', 4 | 8) => Some(Key::End),
        (b'~', 3) => Some(Key::Delete),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut parser = KeyParser::default();
        bytes.iter().filter_map(|byte| parser.feed(*byte)).collect()
    }

    #[test]
    fn the_same_key_has_many_spellings() {
        assert_eq!(keys(b"\x1b[H\x1bOH\x1b[1~\x1b[7~"), [Key::Home; 4]);
        assert_eq!(keys(b"\x1b[F\x1bOF\x1b[4~\x1b[8~"), [Key::End; 4]);
        assert_eq!(keys(b"\x1b[A\x1bOA"), [Key::Up; 2]);
        assert_eq!(keys(b"\x1b[1;5D\x1b[1;3D\x1bb"), [Key::WordLeft; 3]);
        assert_eq!(keys(b"\x08\x7f"), [Key::Backspace; 2]);
    }

    #[test]
    fn a_line_end_is_one_enter_however_it_is_sent() {
        assert_eq!(keys(b"\r\n\r\n"), [Key::Enter; 2]);
        assert_eq!(keys(b"\n\n"), [Key::Enter; 2]);
        assert_eq!(keys(b"\r\r"), [Key::Enter; 2]);
        assert_eq!(keys(b"\rx\n"), [Key::Enter, Key::Character(b'x'), Key::Enter]);
    }

    #[test]
    fn unknown_sequences_are_swallowed_whole() {
        assert_eq!(
            keys(b"\x1b[?2004ha\x1b[38;5;200mb\x1b[99999999~c"),
            [b'a', b'b', b'c'].map(Key::Character)
        );
    }

    #[test]
    fn a_cut_sequence_costs_no_line_end() {
        assert_eq!(keys(b"\x1b\r\x1b[\r\x1b[12;\r\x1bO\r"), [Key::Enter; 4]);
        assert_eq!(keys(b"\x1b[\x1b[A"), [Key::Up]);
    }

    #[test]
    fn what_is_not_ascii_is_dropped() {
        assert_eq!(keys("aäb".as_bytes()), [b'a', b'b'].map(Key::Character));
    }
}
