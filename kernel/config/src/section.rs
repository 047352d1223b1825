//! One section of the file being read: typed access to its keys, and the mistakes found on the way.

use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::problem::{Problem, position};
use crate::suggest::nearest;

/// The text being read and the problems found in it so far. More than [`Report::MOST`] are not kept: past that the
/// file is not a configuration with mistakes in it but something else, and the console has better use.
pub(crate) struct Report<'t> {
    text: &'t str,
    problems: Vec<Problem>,
}

impl<'t> Report<'t> {
    pub(crate) const MOST: usize = 32;

    pub(crate) fn new(text: &'t str) -> Self {
        Report { text, problems: Vec::new() }
    }

    /// In the order of the file.
    pub(crate) fn into_problems(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        self.problems
    }

    pub(crate) fn add(&mut self, offset: usize, found: String, expected: String, consequence: String) {
        if self.problems.len() < Self::MOST {
            let (line, column) = position(self.text, offset);
            self.problems.push(Problem { line, column, found, expected, consequence });
        }
    }
}

/// What a mistake in a section costs.
pub(crate) enum Cost {
    /// The whole entry: "guest alpha is left out".
    Entry(String),
    /// That one setting, which keeps its default.
    Setting,
}

/// One table: `[node]`, or one `[[guest]]`.
pub(crate) struct Section<'s, 't, 'd> {
    report: &'s mut Report<'t>,
    table: &'s DeTable<'d>,
    /// Where the section starts: a missing key is reported there.
    offset: usize,
    /// Added to every span: the table may have been read from a piece of the text.
    base: usize,
    cost: Cost,
    /// Every key that was asked for, so that `finish` knows which of the table's are not among them.
    known: Vec<&'static str>,
    sound: bool,
}

impl<'s, 't, 'd> Section<'s, 't, 'd> {
    pub(crate) fn new(
        report: &'s mut Report<'t>,
        table: &'s DeTable<'d>,
        offset: usize,
        base: usize,
        cost: Cost,
    ) -> Self {
        Section { report, table, offset, base, cost, known: Vec::new(), sound: true }
    }

    /// Reports a mistake in the value of `key`, or in the section if the key is missing.
    pub(crate) fn wrong(&mut self, key: &str, found: String, expected: &str) {
        let offset = self.table.get(key).map_or(self.offset, |value| self.base + value.span().start);
        self.problem(offset, key, found, expected.to_owned());
    }

    fn problem(&mut self, offset: usize, key: &str, found: String, expected: String) {
        let consequence = match &self.cost {
            Cost::Entry(entry) => format!("{entry} is left out"),
            Cost::Setting => format!("{key} keeps its default"),
        };
        self.sound = false;
        self.report.add(offset, found, expected, consequence);
    }

    fn value(&mut self, key: &'static str) -> Option<&'s DeValue<'d>> {
        self.known.push(key);
        self.table.get(key).map(Spanned::get_ref)
    }

    /// The value of `key` as `convert` understands it. A missing key is `None`; so is one that `convert` does not
    /// understand, after it was reported.
    fn converted<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        convert: impl FnOnce(&'s DeValue<'d>) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(key)?;
        let converted = convert(value);
        if converted.is_none() {
            self.wrong(key, format!("{key} = {}", show(value)), expected);
        }
        converted
    }

    /// The value of a key that may have several forms.
    pub(crate) fn value_of<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        convert: impl FnOnce(&'s DeValue<'d>) -> Option<T>,
    ) -> Option<T> {
        self.converted(key, expected, convert)
    }

    pub(crate) fn text<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        convert: impl FnOnce(&'s str) -> Option<T>,
    ) -> Option<T> {
        self.converted(key, expected, |value| match value {
            DeValue::String(text) => convert(text),
            _ => None,
        })
    }

    /// As [`Section::text`], for what must not be repeated in a message.
    pub(crate) fn secret<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        convert: impl FnOnce(&'s str) -> Option<T>,
    ) -> Option<T> {
        let converted = match self.value(key)? {
            DeValue::String(text) => convert(text),
            _ => None,
        };
        if converted.is_none() {
            self.wrong(key, "something else".to_owned(), expected);
        }
        converted
    }

    pub(crate) fn integer(&mut self, key: &'static str, range: Range<u64>, expected: &str) -> Option<u64> {
        self.converted(key, expected, |value| match value {
            DeValue::Integer(integer) => u64::from_str_radix(integer.as_str(), integer.radix())
                .ok()
                .filter(|number| range.contains(number)),
            _ => None,
        })
    }

    pub(crate) fn flag(&mut self, key: &'static str, expected: &str) -> Option<bool> {
        self.converted(key, expected, DeValue::as_bool)
    }

    /// Reports the lack of a key that cannot be done without. A key that is there but wrong was reported already.
    pub(crate) fn require<T>(&mut self, key: &'static str, expected: &str, value: Option<T>) -> Option<T> {
        if value.is_none() && !self.table.contains_key(key) {
            self.problem(self.offset, key, format!("no {key}"), expected.to_owned());
        }
        value
    }

    /// The end of the section: reports every key that nobody asked for. True if the section had no mistake.
    pub(crate) fn finish(mut self) -> bool {
        let table = self.table;
        for (key, _) in table.iter() {
            let name: &str = key.get_ref();
            if !self.known.contains(&name) {
                let expected = expected_key(name, &self.known);
                let consequence = match &self.cost {
                    Cost::Entry(entry) => format!("{entry} is left out"),
                    Cost::Setting => "it is ignored".to_owned(),
                };
                self.sound = false;
                self.report.add(
                    self.base + key.span().start,
                    format!("the unknown key {}", quoted(name)),
                    expected,
                    consequence,
                );
            }
        }
        self.sound
    }
}

/// The keys that would have been known, the one that was probably meant first.
pub(crate) fn expected_key(name: &str, known: &[&'static str]) -> String {
    match nearest(name, known) {
        Some(meant) => format!("{meant} (did you mean that?)"),
        None => format!("one of {}", known.join(", ")),
    }
}

/// A value as a person would recognise it, on one line and not longer than a line.
pub(crate) fn show(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => quoted(text),
        DeValue::Integer(integer) => match integer.radix() {
            16 => format!("0x{}", short(integer.as_str())),
            8 => format!("0o{}", short(integer.as_str())),
            2 => format!("0b{}", short(integer.as_str())),
            _ => short(integer.as_str()),
        },
        DeValue::Float(float) => short(float.as_str()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(datetime) => datetime.to_string(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// In quotes, with whatever is not printable escaped: this text goes to a terminal.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", short(text))
}

fn short(text: &str) -> String {
    const MOST_CHARACTERS: usize = 40;
    let mut shown: String = text.chars().take(MOST_CHARACTERS).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST_CHARACTERS).is_some() {
        shown.push_str("...");
    }
    shown
}
