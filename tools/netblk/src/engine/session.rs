//! The engine between two sessions: what happens to the flights, and to what the server may have forgotten.

use netblk_proto::v2::Op;

use super::flight::{Flight, Purpose, Request};
use super::link::{Established, Link, Step};
use super::wire::Language;
use super::{Engine, Failure, Replay, enqueue};

impl Engine {
    /// The next datagram of the link, if something waits for a session.
    pub(super) fn next_of_link(&mut self, now_ns: u64, datagram: &mut Vec<u8>) -> bool {
        if self.flights.is_empty() {
            return false;
        }
        if self.link.is_none() {
            self.link_anew(now_ns);
        }
        let max_tries = self.config.max_tries;
        let due = |link: &&mut Link| link.due_ns() <= now_ns && link.tries() < max_tries;
        let Some(link) = self.link.as_mut().filter(due) else { return false };
        self.stats.repeated += u64::from(link.tries() > 0);
        self.stats.sent += 1;
        let cookie = self.next_cookie;
        self.next_cookie = self.next_cookie.wrapping_add(1);
        link.write(now_ns, cookie, datagram);
        true
    }

    /// The session is not to be used any more: a new one takes its place.
    pub(super) fn link_anew(&mut self, now_ns: u64) {
        self.language = None;
        self.forget_transmissions();
        let nonce = (self.config.nonces)();
        self.link = Some(Link::new(self.config.key.clone(), nonce, self.session, now_ns));
    }

    pub(super) fn receive_for_link(&mut self, now_ns: u64, datagram: &[u8]) -> Result<(), Failure> {
        let Some(link) = &mut self.link else {
            self.stats.ignored += 1;
            return Ok(());
        };
        let known = self.info.is_some();
        match link.receive(now_ns, datagram, self.config.protocol) {
            Step::Nothing => self.stats.ignored += 1,
            Step::Onward => self.heard_ns = now_ns,
            // The server is another than before: it has no such device, whatever it serves.
            Step::VersionOne if known => return Err(Failure::Changed),
            Step::VersionOne => self.settle(now_ns, Language::One, false),
            Step::Established(established) => self.establish(now_ns, established)?,
            // Whoever had a session may have one again: after a restart others may be in the way for a while, and
            // the answer has no tag. Patience decides.
            Step::Refused | Step::KeyNeeded if known => self.stats.ignored += 1,
            Step::Refused => return Err(Failure::NoSession),
            Step::KeyNeeded => return Err(Failure::KeyNeeded),
            Step::Nonsense(error) => return Err(Failure::Nonsense(error)),
        }
        Ok(())
    }

    fn establish(&mut self, now_ns: u64, established: Established) -> Result<(), Failure> {
        let Established { session, keys, info } = established;
        let mut restarted = false;
        if let Some(before) = &self.info {
            let (old, new) = (&before.device, &info.device);
            if (old.size_bytes, old.sector_bytes, old.datagram_bytes, old.read_only)
                != (new.size_bytes, new.sector_bytes, new.datagram_bytes, new.read_only)
            {
                return Err(Failure::Changed);
            }
            restarted = before.epoch != info.epoch;
        }
        self.info = Some(info);
        self.session = session;
        self.stats.sessions += 1;
        self.settle(now_ns, Language::Two { session, keys }, restarted);
        Ok(())
    }

    /// There is a language: everything that waited is sent, old changes first if the server was restarted.
    fn settle(&mut self, now_ns: u64, language: Language, restarted: bool) {
        self.language = Some(language);
        self.link = None;
        self.heard_ns = now_ns;
        self.next_number = 1;
        self.forget_transmissions();
        for flight in self.flights.values_mut() {
            start_over(flight);
        }
        if restarted {
            let replays: Vec<u64> = self.flights_for(|purpose| purpose == Purpose::Replay);
            for id in replays {
                self.take_down(id);
            }
            let end = self.log.mark();
            self.replay = Some(Replay { next: self.log.first(), end });
        }
        if self.replay.is_some() {
            for id in self.flights_for(|purpose| purpose == Purpose::Replay) {
                enqueue(&mut self.outbox, id, &self.flights[&id]);
            }
            self.go_on_replaying();
        } else {
            self.send_all_but_replays();
        }
    }

    /// Flights of some purposes, in the order in which they were started.
    fn flights_for(&self, purpose: impl Fn(Purpose) -> bool) -> Vec<u64> {
        let mut ids: Vec<u64> =
            self.flights.iter().filter(|(_, flight)| purpose(flight.purpose)).map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    fn send_all_but_replays(&mut self) {
        for id in self.flights_for(|purpose| purpose != Purpose::Replay) {
            enqueue(&mut self.outbox, id, &self.flights[&id]);
        }
    }

    /// Makes more old changes again, as many at once as the window has room for, those of a place one after the other;
    /// then everything that waited for them.
    pub(super) fn go_on_replaying(&mut self) {
        let Some(mut replay) = self.replay else { return };
        let under_way = self.flights_for(|purpose| purpose == Purpose::Replay);
        let mut left = under_way.len();
        while replay.next < replay.end
            && left < self.window.allowed() as usize
            && let Some(change) = self.log.get(replay.next).cloned()
        {
            let again =
                |flight: &Flight| flight.purpose == Purpose::Replay && flight.request.overlaps(&change);
            if self.flights.values().any(again) {
                break;
            }
            self.launch(change, Purpose::Replay);
            replay.next += 1;
            left += 1;
        }
        self.replay = (left > 0 || replay.next < replay.end).then_some(replay);
        if self.replay.is_none() {
            self.send_all_but_replays();
        }
    }

    /// A change was answered: it is kept until it is durable.
    pub(super) fn remember(&mut self, request: Request) {
        let volatile = self.info.as_ref().is_some_and(|info| info.capabilities.volatile_cache);
        if !request.is_change() || !volatile {
            return;
        }
        self.log.push(request);
        if self.log.bytes() > self.config.log_bytes && !self.shortening {
            self.shortening = true;
            self.launch(Request::Flush, Purpose::Shorten);
        }
    }

    /// Whether the user's changes up to now would be lost with the server's cache.
    pub fn owes_flush(&self) -> bool {
        !self.log.is_empty()
    }
}

/// A flight as it was before its first transmission in the session that ended; the answers it had are kept.
fn start_over(flight: &mut Flight) {
    flight.cookies.clear();
    flight.timer_ns = None;
    flight.busy = None;
    flight.tries = 0;
    flight.bad_requests = 0;
    flight.sequence = 0;
    debug_assert!(flight.request.op() == Op::Read || flight.missing == 1);
}
