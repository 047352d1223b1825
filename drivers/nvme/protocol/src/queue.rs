//! A submission queue with its completion queue: places, wrap-around, doorbells, phase.
//!
//! There are fewer identifiers than places by one, so the submission queue cannot overflow as
//! long as completions name outstanding commands, and it needs no queue head from the controller.
//! The head that every completion carries is checked all the same: one that is not between the
//! last head and the tail means that the controller fetched something else than what was written.
//!
//! The first contradiction stops the pair: no further completion is taken from it. The driver
//! then stops the controller, takes back what is outstanding ([`QueuePair::take_any`]) and may
//! start over ([`QueuePair::restart`]).

use alloc::collections::TryReserveError;
use core::fmt;

use crate::completion::{Completion, phase_of};
use crate::identifiers::{Class, Identifiers, Stray};

/// Most entries of a queue here; leaves six bits of an identifier to the generation.
pub const MAX_ENTRIES: u16 = 1024;

/// One queue pair. `T` is what the driver keeps for each outstanding command.
pub struct QueuePair<T> {
    queue: u16,
    entries: u16,
    tail: u16,
    /// The tail that the controller was last told.
    announced_tail: u16,
    /// The controller's progress, by its latest completion.
    submission_head: u16,
    completion_head: u16,
    announced_completion_head: u16,
    phase: bool,
    violated: bool,
    identifiers: Identifiers<T>,
}

/// Where a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submission {
    /// Its place in the submission queue.
    pub place: u16,
    pub identifier: u16,
    /// Below the number of entries and unique among outstanding commands: names what the driver
    /// keeps per command, such as room for a PRP list.
    pub index: u16,
}

/// No identifier of that class is free; the payload comes back.
#[derive(Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// A completion that ended an outstanding command.
#[derive(Debug, PartialEq, Eq)]
pub struct Accepted<T> {
    pub payload: T,
    pub completion: Completion,
}

/// What a controller cannot honestly have said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    UnknownIdentifier {
        identifier: u16,
    },
    /// Completed before, or given up.
    StaleIdentifier {
        identifier: u16,
    },
    WrongQueue {
        queue: u16,
    },
    WrongHead {
        head: u16,
    },
    /// The phase tag changed back while the entry was read.
    UnstableEntry,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownIdentifier { identifier } => {
                write!(out, "a completion for identifier {identifier:#06x}, which does not exist")
            }
            Self::StaleIdentifier { identifier } => {
                write!(out, "a completion for identifier {identifier:#06x}, which is not outstanding")
            }
            Self::WrongQueue { queue } => write!(out, "a completion for submission queue {queue}"),
            Self::WrongHead { head } => write!(out, "a completion with queue head {head}"),
            Self::UnstableEntry => write!(out, "a completion that changed while it was read"),
        }
    }
}

impl<T> QueuePair<T> {
    /// Queue number `queue` with `entries` places (clamped to 2..=[`MAX_ENTRIES`]) in each
    /// direction; `reserved` identifiers are kept for [`Class::Synchronous`].
    pub fn new(queue: u16, entries: u16, reserved: u16) -> Result<Self, TryReserveError> {
        let entries = entries.clamp(2, MAX_ENTRIES);
        let commands = entries - 1;
        Ok(Self {
            queue,
            entries,
            tail: 0,
            announced_tail: 0,
            submission_head: 0,
            completion_head: 0,
            announced_completion_head: 0,
            phase: true,
            violated: false,
            identifiers: Identifiers::new(commands, reserved.min(commands - 1))?,
        })
    }

    #[must_use]
    pub fn entries(&self) -> u16 {
        self.entries
    }

    #[must_use]
    pub fn outstanding(&self) -> u16 {
        self.identifiers.outstanding()
    }

    /// When the oldest outstanding command was submitted.
    #[must_use]
    pub fn oldest_ns(&self) -> Option<u64> {
        self.identifiers.oldest_ns()
    }

    /// Takes an identifier and a place. The caller writes the entry there before it announces
    /// the tail.
    pub fn submit(&mut self, class: Class, payload: T, now_ns: u64) -> Result<Submission, Full<T>> {
        let allocated = self.identifiers.allocate(class, payload, now_ns).map_err(Full)?;
        let place = self.tail;
        self.tail = self.after(place);
        Ok(Submission { place, identifier: allocated.identifier, index: allocated.index })
    }

    /// The tail to write into the doorbell, if the controller does not know it yet.
    pub fn announce_tail(&mut self) -> Option<u16> {
        let news = self.tail != self.announced_tail;
        self.announced_tail = self.tail;
        news.then_some(self.tail)
    }

    /// The place that the next completion will be written to.
    #[must_use]
    pub fn completion_place(&self) -> u16 {
        self.completion_head
    }

    /// Whether an entry at [`Self::completion_place`] whose last dword is this has not been taken
    /// yet. Its other dwords are valid only if they are read after the last one.
    #[must_use]
    pub fn is_new(&self, last_dword: u32) -> bool {
        !self.violated && phase_of(last_dword) == self.phase
    }

    /// Judges the entry at [`Self::completion_place`], for which [`Self::is_new`] held.
    pub fn accept(&mut self, dwords: [u32; 4]) -> Result<Accepted<T>, Violation> {
        let accepted = self.judge(Completion::new(dwords));
        match accepted {
            Ok(_) => {
                self.completion_head = self.after(self.completion_head);
                if self.completion_head == 0 {
                    self.phase = !self.phase;
                }
            }
            Err(_) => self.violated = true,
        }
        accepted
    }

    /// The head to write into the completion doorbell, if entries were taken since the last time.
    pub fn announce_completion_head(&mut self) -> Option<u16> {
        let news = self.completion_head != self.announced_completion_head;
        self.announced_completion_head = self.completion_head;
        news.then_some(self.completion_head)
    }

    /// Takes back the payload of any outstanding command. Only for a controller that has been
    /// stopped: until then it may still use the memory that the payload stands for.
    pub fn take_any(&mut self) -> Option<T> {
        self.identifiers.take_any()
    }

    /// Begins again at the first place, as after a controller reset. Commands still outstanding
    /// keep their identifiers but will never be completed, so they should have been taken back.
    /// The memory of the completion queue must be zeroed before the controller starts.
    pub fn restart(&mut self) {
        self.tail = 0;
        self.announced_tail = 0;
        self.submission_head = 0;
        self.completion_head = 0;
        self.announced_completion_head = 0;
        self.phase = true;
        self.violated = false;
    }

    fn after(&self, place: u16) -> u16 {
        if place + 1 == self.entries { 0 } else { place + 1 }
    }

    /// Steps from `from` forward to `to` around the ring.
    fn distance(&self, from: u16, to: u16) -> u16 {
        if to >= from { to - from } else { to + self.entries - from }
    }

    fn judge(&mut self, completion: Completion) -> Result<Accepted<T>, Violation> {
        if completion.phase != self.phase {
            return Err(Violation::UnstableEntry);
        }
        if completion.submission_queue != self.queue {
            return Err(Violation::WrongQueue { queue: completion.submission_queue });
        }
        let head = completion.submission_head;
        let fetched = self.distance(self.submission_head, head.min(self.entries - 1));
        // Against the announced tail: what was not announced cannot have been fetched.
        if head >= self.entries || fetched > self.distance(self.submission_head, self.announced_tail) {
            return Err(Violation::WrongHead { head });
        }
        let identifier = completion.identifier;
        let payload = self.identifiers.take(identifier).map_err(|stray| match stray {
            Stray::Unknown => Violation::UnknownIdentifier { identifier },
            Stray::Stale => Violation::StaleIdentifier { identifier },
        })?;
        self.submission_head = head;
        Ok(Accepted { payload, completion })
    }
}

#[cfg(test)]
mod tests;
