//! Each numbered request at most once.
//!
//! A session's changes to the disk are numbered from 1 on. The server remembers the highest number it
//! has seen and, for the [`WINDOW`] numbers up to it, what became of each. So a duplicate of a request
//! that is under way is dropped (its answer will come), one of a finished request gets the same answer
//! again, and one so old that its record is gone is refused: never carried out a second time, over what
//! was written since.
//!
//! The client's side of the bargain: it never sends number `s` while one of `s - WINDOW` or less is
//! unanswered. Then no number falls out of the window before its client knows how it went.

use super::codes::Status;

/// How many numbers a server remembers.
pub const WINDOW: u32 = 256;

const RECORDS: usize = WINDOW as usize;

/// What is known of a number inside the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Record {
    /// Nothing: it has not come, or was turned away without being carried out.
    Unknown,
    /// It is being carried out.
    Running,
    /// It was carried out, with this answer.
    Done(Status),
}

/// What to do with a numbered request that has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Carry it out.
    New,
    /// Drop it: it is being carried out.
    Running,
    /// Answer this: it was carried out.
    Done(Status),
    /// Refuse it with [`Status::TooOld`].
    TooOld,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Window {
    highest: u64,
    records: [Record; RECORDS],
}

impl Window {
    /// No number has come yet.
    pub const fn new() -> Self {
        Self { highest: 0, records: [Record::Unknown; RECORDS] }
    }

    /// What [`Window::arrive`] would say; nothing changes. For a part of a request that is not complete.
    pub fn look(&self, sequence: u64) -> Arrival {
        if sequence > self.highest {
            return Arrival::New;
        }
        if self.highest - sequence >= u64::from(WINDOW) {
            return Arrival::TooOld;
        }
        match self.records[Self::place(sequence)] {
            Record::Unknown => Arrival::New,
            Record::Running => Arrival::Running,
            Record::Done(status) => Arrival::Done(status),
        }
    }

    /// A request with this number has come. If it is [`Arrival::New`], it counts as running from now on:
    /// [`Window::finish`] or [`Window::forget`] must follow.
    #[must_use]
    pub fn arrive(&mut self, sequence: u64) -> Arrival {
        let arrival = self.look(sequence);
        if arrival == Arrival::New {
            if sequence > self.highest {
                self.advance(sequence);
            }
            self.records[Self::place(sequence)] = Record::Running;
        }
        arrival
    }

    /// A running request has ended. One whose number has left the window meanwhile is not recorded.
    pub fn finish(&mut self, sequence: u64, status: Status) {
        self.end(sequence, Record::Done(status));
    }

    /// A running request was turned away before anything happened: the next one with its number is new.
    pub fn forget(&mut self, sequence: u64) {
        self.end(sequence, Record::Unknown);
    }

    fn end(&mut self, sequence: u64, record: Record) {
        if self.look(sequence) == Arrival::Running {
            self.records[Self::place(sequence)] = record;
        }
    }

    /// Moves the window up to `sequence`; the records of the numbers that enter it are blank.
    fn advance(&mut self, sequence: u64) {
        let steps = (sequence - self.highest).min(u64::from(WINDOW));
        for step in 0..steps {
            self.records[Self::place(sequence - step)] = Record::Unknown;
        }
        self.highest = sequence;
    }

    fn place(sequence: u64) -> usize {
        (sequence % u64::from(WINDOW)) as usize
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn once_then_the_recorded_answer_then_too_old() {
        let mut window = Window::new();
        assert_eq!(window.arrive(1), Arrival::New);
        assert_eq!(window.arrive(1), Arrival::Running);
        window.finish(1, Status::IoError);
        assert_eq!(window.arrive(1), Arrival::Done(Status::IoError));
        assert_eq!(window.arrive(256), Arrival::New);
        assert_eq!(window.arrive(1), Arrival::Done(Status::IoError));
        assert_eq!(window.arrive(257), Arrival::New);
        assert_eq!(window.arrive(1), Arrival::TooOld);
        assert_eq!(window.arrive(2), Arrival::New);
    }

    #[test]
    fn what_was_turned_away_may_come_again() {
        let mut window = Window::new();
        assert_eq!(window.arrive(7), Arrival::New);
        window.forget(7);
        assert_eq!(window.arrive(7), Arrival::New);
        window.finish(7, Status::Ok);
        window.forget(7);
        assert_eq!(window.arrive(7), Arrival::Done(Status::Ok));
    }

    #[test]
    fn the_ends_of_the_number_line() {
        let mut window = Window::new();
        assert_eq!(window.arrive(u64::MAX), Arrival::New);
        assert_eq!(window.arrive(u64::MAX - 255), Arrival::New);
        assert_eq!(window.arrive(u64::MAX - 256), Arrival::TooOld);
        assert_eq!(window.look(0), Arrival::TooOld);
    }

    proptest! {
        /// Against a model that never forgets: no number runs twice, whatever comes in whatever order,
        /// and a recorded answer is the one that was given.
        #[test]
        fn no_number_is_ever_carried_out_twice(
            steps in proptest::collection::vec((1u64..1200, 0u8..4), 1..2000),
        ) {
            let mut window = Window::new();
            let mut highest = 0;
            let mut ran: HashMap<u64, Option<Status>> = HashMap::new();
            for (sequence, what) in steps {
                match what {
                    0 | 1 => {
                        let arrival = window.arrive(sequence);
                        highest = highest.max(sequence);
                        match arrival {
                            Arrival::New => prop_assert!(ran.insert(sequence, None).is_none(), "{} twice", sequence),
                            Arrival::Running => prop_assert_eq!(ran.get(&sequence), Some(&None)),
                            Arrival::Done(status) => prop_assert_eq!(ran.get(&sequence), Some(&Some(status))),
                            Arrival::TooOld => prop_assert!(highest - sequence >= u64::from(WINDOW)),
                        }
                    }
                    _ => {
                        let status = if what == 2 { Status::Ok } else { Status::IoError };
                        window.finish(sequence, status);
                        if ran.get(&sequence) == Some(&None) && highest - sequence < u64::from(WINDOW) {
                            ran.insert(sequence, Some(status));
                        }
                    }
                }
            }
        }

        /// A client that keeps the rule never hears "too old" for what it still waits for.
        #[test]
        fn an_unanswered_number_of_a_client_that_keeps_the_rule_stays_in_the_window(
            answered in proptest::collection::vec(any::<bool>(), 1..600), first in 1u64..1 << 60,
        ) {
            let mut window = Window::new();
            let mut waiting = std::collections::VecDeque::new();
            for (nth, answered) in answered.into_iter().enumerate() {
                let sequence = first + nth as u64;
                while waiting.front().is_some_and(|&oldest| oldest + u64::from(WINDOW) <= sequence) {
                    let oldest = waiting.pop_front().unwrap();
                    prop_assert_eq!(window.look(oldest), Arrival::Running);
                    window.finish(oldest, Status::Ok);
                }
                prop_assert_eq!(window.arrive(sequence), Arrival::New);
                if answered {
                    window.finish(sequence, Status::Ok);
                } else {
                    waiting.push_back(sequence);
                }
                for &waiting in &waiting {
                    prop_assert_eq!(window.look(waiting), Arrival::Running);
                }
            }
        }
    }
}
