//! The card, as a worker that waits awake looks after it.
//!
//! A worker that polls its rings for the next request would still have another CPU woken by the card's interrupt to put
//! it there. It can as well take it from the card itself. But one that has work all the time leaves that to
//! the card's softirq again, so that two CPUs share what is too much for one.

use alloc::sync::Arc;

use kcore::net::NetDevice;
use netblk_logic::IdlePoll;

/// Rounds with work, without one look in vain, after which a worker has too much to look after the card.
const MOST_ROUNDS: u32 = 64;

/// See the module.
pub(crate) struct PolledCard {
    card: Arc<dyn NetDevice>,
    /// The worker may wait awake for requests; else it does so for its disk alone, and leaves the card to others.
    may_poll: bool,
    /// The card knows that it is polled.
    polled: bool,
    rounds: u32,
}

impl PolledCard {
    pub fn new(card: Arc<dyn NetDevice>, idle_poll: IdlePoll) -> Self {
        Self { card, may_poll: idle_poll != IdlePoll::Fixed(0), polled: false, rounds: 0 }
    }

    /// Takes what has come, if the card is polled. Whether there was something.
    pub fn poll(&self) -> bool {
        self.polled && self.card.poll()
    }

    /// The worker waits awake.
    pub fn begin(&mut self) {
        self.rounds = 0;
        if self.may_poll && !self.polled {
            self.polled = true;
            self.card.set_polled(true);
        }
    }

    /// There was work in a round.
    pub fn worked(&mut self) {
        self.rounds += 1;
        if self.rounds >= MOST_ROUNDS {
            self.end();
        }
    }

    /// The worker will not look for a while.
    pub fn end(&mut self) {
        self.rounds = 0;
        if self.polled {
            self.polled = false;
            self.card.set_polled(false);
        }
    }
}
