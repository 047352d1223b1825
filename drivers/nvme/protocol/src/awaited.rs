//! One place for one answer, and the number that says whose answer it is.
//!
//! The admin queue has one command under way at a time, but a command whose time ran out may be
//! answered while the next one is being sent: the interrupt has taken the completion off the ring
//! and has not stored it yet. Without the number that answer would be the next command's.

/// Where the answer to the latest question is put. The caller keeps it under one lock.
#[derive(Debug)]
pub struct Awaited<T> {
    number: u64,
    answer: Option<T>,
}

impl<T> Awaited<T> {
    #[must_use]
    pub const fn new() -> Self {
        Self { number: 0, answer: None }
    }

    /// Begins the next question: what is left of earlier ones is forgotten. The number goes with
    /// the question and comes back with its answer.
    pub fn ask(&mut self) -> u64 {
        self.number += 1;
        self.answer = None;
        self.number
    }

    /// Stores the answer to question `number`. `false`: that one is no longer waited for.
    pub fn answer(&mut self, number: u64, answer: T) -> bool {
        let awaited = number == self.number;
        if awaited {
            self.answer = Some(answer);
        }
        awaited
    }

    /// Stores what is an answer to whatever is asked: the queue's own end.
    pub fn answer_latest(&mut self, answer: T) {
        self.answer = Some(answer);
    }

    /// Takes the latest question's answer, if it has come.
    pub fn take(&mut self) -> Option<T> {
        self.answer.take()
    }
}

impl<T> Default for Awaited<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_late_answer_is_not_the_next_questions() {
        let mut awaited = Awaited::new();
        let first = awaited.ask();
        let second = awaited.ask();
        assert!(!awaited.answer(first, "late"));
        assert_eq!(awaited.take(), None);
        assert!(awaited.answer(second, "in time"));
        assert_eq!(awaited.take(), Some("in time"));
    }

    #[test]
    fn the_queues_end_answers_whatever_is_asked_but_not_what_comes_after() {
        let mut awaited = Awaited::new();
        awaited.ask();
        awaited.answer_latest("broken");
        assert_eq!(awaited.take(), Some("broken"));
        awaited.answer_latest("broken");
        awaited.ask();
        assert_eq!(awaited.take(), None);
    }

    proptest! {
        /// However questions and answers come in each other's way, what is taken belongs to the
        /// latest question.
        #[test]
        fn what_is_taken_was_asked_last(steps in proptest::collection::vec(0_u64..6, 0..64)) {
            let mut awaited = Awaited::new();
            let mut latest = 0;
            for step in steps {
                match step {
                    0 => latest = awaited.ask(),
                    1 => prop_assert!(awaited.take().is_none_or(|number: u64| number == latest)),
                    back => {
                        let number = latest.saturating_sub(back - 2);
                        prop_assert_eq!(awaited.answer(number, number), number == latest);
                    }
                }
            }
        }
    }
}
