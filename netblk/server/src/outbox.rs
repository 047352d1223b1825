//! Replies on their way to the card, and whose they are: what a reply's datagram took of the service's
//! room is given back when the card has it.

use alloc::collections::VecDeque;

use kcore::frame::NetFrame;
use netblk_logic::{Client, Turns};
use netwire::UdpHeaders;
use stack::Answers;

use crate::instance::Instance;
use crate::room::Side;
use crate::slot::SLOTS;

/// The replies of one worker.
pub(crate) struct Outbox {
    replies: Answers,
    /// For each of them: whose it is, and how many datagrams it speaks for.
    owners: VecDeque<(Client, u8)>,
}

impl Outbox {
    pub fn new() -> Self {
        // Every reply's room was taken, so there are never more than there is room.
        Self { replies: Answers::new(), owners: VecDeque::with_capacity(SLOTS) }
    }

    pub fn len(&self) -> usize {
        self.owners.len()
    }

    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Appends a reply to `addresses` that speaks for so many of a client's datagrams.
    pub fn push(&mut self, frame: NetFrame, addresses: &UdpHeaders, client: Client, datagrams: u8) {
        self.replies.push(frame, addresses);
        self.owners.push_back((client, datagrams));
    }

    /// Hands every reply to the card at once; what it has no room for stays. How many it took.
    pub fn send(&mut self, instance: &Instance, turns: &mut Turns) -> usize {
        if self.replies.is_empty() {
            return 0;
        }
        let sent = instance.send(self.replies.chain());
        for (client, datagrams) in self.owners.drain(..sent.min(self.owners.len())) {
            settle(instance, turns, client, datagrams);
        }
        sent
    }

    /// Gives up what the card does not take. How many replies that were.
    pub fn discard(&mut self, instance: &Instance, turns: &mut Turns) -> usize {
        let lost = self.owners.len();
        for (client, datagrams) in self.owners.drain(..) {
            settle(instance, turns, client, datagrams);
        }
        self.replies = Answers::new();
        lost
    }
}

/// Some of a client's datagrams are with the card, or there will be no reply to them.
pub(crate) fn settle(instance: &Instance, turns: &mut Turns, client: Client, datagrams: u8) {
    instance.room.give(Side::Worker, client, datagrams.into());
    turns.done(client, datagrams.into());
}
