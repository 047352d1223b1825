//! The lines entered before.

use alloc::collections::VecDeque;
use alloc::string::String;

/// A bounded list of lines, and a place in it while the person walks through it. The line that was being typed when
/// the walk began is kept and found again at its end.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Oldest first.
    lines: VecDeque<String>,
    walk: Option<Walk>,
}

#[derive(Debug)]
struct Walk {
    draft: String,
    index: usize,
}

impl History {
    pub(crate) const MOST_LINES: usize = 64;

    /// Remembers a line, unless it is blank or the same as the one before. Ends a walk.
    pub(crate) fn remember(&mut self, line: &str) {
        self.walk = None;
        if line.trim().is_empty() || self.lines.back().is_some_and(|last| last == line) {
            return;
        }
        if self.lines.len() == Self::MOST_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(String::from(line));
    }

    pub(crate) fn end_walk(&mut self) {
        self.walk = None;
    }

    /// The line before the current one; `current` is what stands in the editor.
    pub(crate) fn older(&mut self, current: &str) -> Option<&str> {
        let index = match &self.walk {
            Some(walk) => walk.index.checked_sub(1)?,
            None => self.lines.len().checked_sub(1)?,
        };
        match &mut self.walk {
            Some(walk) => walk.index = index,
            None => self.walk = Some(Walk { draft: String::from(current), index }),
        }
        self.lines.get(index).map(String::as_str)
    }

    /// The line after the current one; after the newest one, the draft.
    pub(crate) fn newer(&mut self) -> Option<String> {
        let walk = self.walk.as_mut()?;
        walk.index += 1;
        match self.lines.get(walk.index) {
            Some(line) => Some(line.clone()),
            None => self.walk.take().map(|walk| walk.draft),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_up_and_down_ends_at_the_draft() {
        let mut history = History::default();
        for line in ["one", "two", "two", "  "] {
            history.remember(line);
        }
        assert_eq!(history.older("dra"), Some("two"));
        assert_eq!(history.older("two"), Some("one"));
        assert_eq!(history.older("one"), None);
        assert_eq!(history.newer().as_deref(), Some("two"));
        assert_eq!(history.newer().as_deref(), Some("dra"));
        assert_eq!(history.newer(), None);
    }

    #[test]
    fn the_oldest_lines_go_first() {
        let mut history = History::default();
        for number in 0..History::MOST_LINES + 5 {
            history.remember(&format!("{number}"));
        }
        let mut oldest = None;
        while let Some(line) = history.older("") {
            oldest = Some(line.to_owned());
        }
        assert_eq!(oldest.as_deref(), Some("5"));
    }

    #[test]
    fn an_empty_history_leads_nowhere() {
        let mut history = History::default();
        assert_eq!(history.older("x"), None);
        assert_eq!(history.newer(), None);
    }
}
