//! Which MAC address a neighbour has: a table of fixed size fed by ARP (RFC 826).
//!
//! Entries are made in two ways only: somebody here wants to send to the address, or the
//! neighbour asked for ours, which means it is about to send to us. Other ARP packets refresh
//! what is there. So a stranger who floods the link can at most push out entries that nobody
//! used lately, and asking is limited to once a second and neighbour (RFC 1122 section 2.3.2.1).
//!
//! An entry that nobody confirmed for [`FRESH_NS`] is still used but asked about again; after
//! [`STALE_NS`] it is no longer believed.

use core::net::Ipv4Addr;

use netwire::MacAddr;

/// How long an answer is good without asking again.
pub const FRESH_NS: u64 = 60_000_000_000;
/// How long an answer is believed at all.
pub const STALE_NS: u64 = 120_000_000_000;
/// Between two questions for one neighbour.
const ASK_INTERVAL_NS: u64 = 1_000_000_000;
/// Questions before a neighbour counts as absent.
const ASK_LIMIT: u8 = 3;

/// What is known of one neighbour, for listings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    pub address: Ipv4Addr,
    /// `None` while the question is open.
    pub mac: Option<MacAddr>,
    pub confirmed_ns: u64,
}

/// The answer to [`Neighbours::resolve`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolution {
    /// Send to this address. With `ask`, also send an ARP request: the answer is getting old.
    Known { mac: MacAddr, ask: bool },
    /// Not known yet. With `ask`, send an ARP request now.
    Unknown { ask: bool },
    /// Asked and not answered, a moment ago.
    Absent,
    /// The table is full of open questions.
    Full,
}

/// What [`Neighbours::poll`] wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send an ARP request for this address.
    Ask(Ipv4Addr),
    /// Nobody answered: give up what waits for this address.
    GiveUp(Ipv4Addr),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Asked `asked` times, the last time at `asked_ns`.
    Asking {
        asked: u8,
        asked_ns: u64,
    },
    Known {
        mac: MacAddr,
        confirmed_ns: u64,
        asked_ns: Option<u64>,
    },
    /// Did not answer; remembered so that every packet to it does not start a new round.
    Absent {
        since_ns: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    address: Ipv4Addr,
    state: State,
    used_ns: u64,
}

/// The table, of `CAPACITY` neighbours.
#[derive(Debug)]
pub struct Neighbours<const CAPACITY: usize> {
    entries: [Option<Entry>; CAPACITY],
}

impl<const CAPACITY: usize> Default for Neighbours<CAPACITY> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CAPACITY: usize> Neighbours<CAPACITY> {
    pub const fn new() -> Self {
        Neighbours { entries: [None; CAPACITY] }
    }

    fn entry(&mut self, address: Ipv4Addr) -> Option<&mut Entry> {
        self.entries.iter_mut().flatten().find(|entry| entry.address == address)
    }

    /// A place for a new entry: an empty one, or that of the neighbour unused for longest. Open
    /// questions are not pushed out; packets wait for them.
    fn place(&mut self) -> Option<&mut Option<Entry>> {
        self.entries
            .iter_mut()
            .filter(|place| !matches!(place, Some(Entry { state: State::Asking { .. }, .. })))
            .min_by_key(|place| place.as_ref().map(|entry| entry.used_ns))
    }

    /// How to send to `address` now.
    pub fn resolve(&mut self, address: Ipv4Addr, now_ns: u64) -> Resolution {
        let asking = State::Asking { asked: 1, asked_ns: now_ns };
        let Some(entry) = self.entry(address) else {
            let Some(place) = self.place() else { return Resolution::Full };
            *place = Some(Entry { address, state: asking, used_ns: now_ns });
            return Resolution::Unknown { ask: true };
        };
        entry.used_ns = now_ns;
        match &mut entry.state {
            State::Asking { .. } => Resolution::Unknown { ask: false },
            State::Absent { since_ns } if now_ns.saturating_sub(*since_ns) < ASK_INTERVAL_NS => {
                Resolution::Absent
            }
            State::Known { mac, confirmed_ns, asked_ns }
                if now_ns.saturating_sub(*confirmed_ns) < STALE_NS =>
            {
                let old = now_ns.saturating_sub(*confirmed_ns) >= FRESH_NS;
                let asked_lately = asked_ns.is_some_and(|at| now_ns.saturating_sub(at) < ASK_INTERVAL_NS);
                let ask = old && !asked_lately;
                if ask {
                    *asked_ns = Some(now_ns);
                }
                Resolution::Known { mac: *mac, ask }
            }
            State::Absent { .. } | State::Known { .. } => {
                entry.state = asking;
                Resolution::Unknown { ask: true }
            }
        }
    }

    /// Takes what an ARP packet says of its sender. With `make`, a neighbour not in the table is
    /// entered. Returns whether an open question was answered, so that what waited can go.
    pub fn learn(&mut self, address: Ipv4Addr, mac: MacAddr, make: bool, now_ns: u64) -> bool {
        if !mac.is_station() {
            return false;
        }
        let known = State::Known { mac, confirmed_ns: now_ns, asked_ns: None };
        if let Some(entry) = self.entry(address) {
            let open = matches!(entry.state, State::Asking { .. });
            entry.state = known;
            return open;
        }
        if make && let Some(place) = self.place() {
            *place = Some(Entry { address, state: known, used_ns: now_ns });
        }
        false
    }

    /// One thing that is due; call until `None`.
    pub fn poll(&mut self, now_ns: u64) -> Option<Action> {
        for entry in self.entries.iter_mut().flatten() {
            if let State::Asking { asked, asked_ns } = &mut entry.state
                && now_ns.saturating_sub(*asked_ns) >= ASK_INTERVAL_NS
            {
                let address = entry.address;
                if *asked < ASK_LIMIT {
                    (*asked, *asked_ns) = (*asked + 1, now_ns);
                    return Some(Action::Ask(address));
                }
                entry.state = State::Absent { since_ns: now_ns };
                return Some(Action::GiveUp(address));
            }
        }
        None
    }

    /// When [`Neighbours::poll`] will next have something, if nothing happens before.
    pub fn deadline_ns(&self) -> Option<u64> {
        let due = self.entries.iter().flatten().filter_map(|entry| match entry.state {
            State::Asking { asked_ns, .. } => Some(asked_ns.saturating_add(ASK_INTERVAL_NS)),
            State::Known { .. } | State::Absent { .. } => None,
        });
        due.min()
    }

    /// Forgets everything: the interface has another address now. What waits is given up.
    pub fn clear(&mut self) {
        self.entries = [None; CAPACITY];
    }

    /// Who is known or asked for.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.entries.iter().flatten().filter_map(|entry| match entry.state {
            State::Known { mac, confirmed_ns, .. } => {
                Some(Neighbour { address: entry.address, mac: Some(mac), confirmed_ns })
            }
            State::Asking { asked_ns, .. } => {
                Some(Neighbour { address: entry.address, mac: None, confirmed_ns: asked_ns })
            }
            State::Absent { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    fn host(number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 2, number)
    }

    #[test]
    fn a_question_is_asked_three_times_and_given_up() {
        let mut table = Neighbours::<4>::new();
        assert_eq!(table.resolve(host(2), 0), Resolution::Unknown { ask: true });
        assert_eq!(table.resolve(host(2), 1), Resolution::Unknown { ask: false });
        assert_eq!(table.poll(SECOND - 1), None);
        assert_eq!(table.deadline_ns(), Some(SECOND));
        assert_eq!(table.poll(SECOND), Some(Action::Ask(host(2))));
        assert_eq!(table.poll(SECOND), None);
        assert_eq!(table.poll(2 * SECOND), Some(Action::Ask(host(2))));
        assert_eq!(table.poll(3 * SECOND), Some(Action::GiveUp(host(2))));
        assert_eq!((table.poll(9 * SECOND), table.deadline_ns()), (None, None));
        assert_eq!(table.resolve(host(2), 3 * SECOND + 1), Resolution::Absent);
        assert_eq!(table.resolve(host(2), 4 * SECOND), Resolution::Unknown { ask: true });
    }

    #[test]
    fn an_answer_is_used_refreshed_and_forgotten() {
        let mut table = Neighbours::<4>::new();
        let _ = table.resolve(host(2), 0);
        assert!(table.learn(host(2), MAC, false, 5));
        assert_eq!(table.resolve(host(2), 6), Resolution::Known { mac: MAC, ask: false });
        let old = 5 + FRESH_NS;
        assert_eq!(table.resolve(host(2), old), Resolution::Known { mac: MAC, ask: true });
        assert_eq!(table.resolve(host(2), old + 1), Resolution::Known { mac: MAC, ask: false });
        assert_eq!(table.resolve(host(2), old + SECOND), Resolution::Known { mac: MAC, ask: true });
        assert_eq!(table.resolve(host(2), 5 + STALE_NS), Resolution::Unknown { ask: true });
    }

    #[test]
    fn strangers_are_entered_only_when_they_ask_for_us() {
        let mut table = Neighbours::<4>::new();
        assert!(!table.learn(host(3), MAC, false, 0));
        assert_eq!(table.iter().count(), 0);
        assert!(!table.learn(host(3), MAC, true, 0));
        assert_eq!(table.resolve(host(3), 1), Resolution::Known { mac: MAC, ask: false });
        assert!(!table.learn(host(4), MacAddr::BROADCAST, true, 0));
        assert_eq!(table.iter().count(), 1);
    }

    #[test]
    fn a_full_table_pushes_out_the_unused_never_the_asked() {
        let mut table = Neighbours::<2>::new();
        table.learn(host(3), MAC, true, 0);
        let _ = table.resolve(host(4), 1);
        let _ = table.resolve(host(5), 2);
        assert_eq!(table.resolve(host(3), 3), Resolution::Full);
        assert!(!table.learn(host(6), MAC, true, 3));
        assert!(table.learn(host(4), MAC, false, 4));
        assert_eq!(table.resolve(host(3), 5), Resolution::Unknown { ask: true });
        assert_eq!(table.resolve(host(4), 6), Resolution::Full);
    }

    proptest! {
        /// Whatever happens, an address is in the table at most once, nobody is asked for more
        /// than once a second, and every open question comes to its end.
        #[test]
        fn questions_are_few_and_end(
            events in proptest::collection::vec((0u8..3, 1u8..8, 0u64..SECOND), 0..300)
        ) {
            let mut table = Neighbours::<3>::new();
            let mut now = 0;
            let mut last_asked = std::collections::HashMap::new();
            let mut asked = |address: Ipv4Addr, now: u64| {
                let before = last_asked.insert(address, now);
                before.is_none_or(|before| now - before >= SECOND)
            };
            let mut evicted = false;
            for (kind, number, step) in events {
                now += step;
                match kind {
                    0 => match table.resolve(host(number), now) {
                        Resolution::Known { ask: true, .. } | Resolution::Unknown { ask: true } => {
                            prop_assert!(asked(host(number), now) || evicted);
                        }
                        _ => {}
                    },
                    1 => {
                        evicted = true;
                        table.learn(host(number), MAC, number % 2 == 0, now);
                    }
                    _ => {}
                }
                while let Some(action) = table.poll(now) {
                    if let Action::Ask(address) = action {
                        prop_assert!(asked(address, now) || evicted);
                    }
                }
                let mut seen: Vec<_> = table.iter().map(|neighbour| neighbour.address).collect();
                seen.sort();
                seen.dedup();
                prop_assert_eq!(seen.len(), table.iter().count());
            }
            for _ in 0..4 {
                now += SECOND;
                while table.poll(now).is_some() {}
            }
            prop_assert_eq!(table.deadline_ns(), None);
        }
    }
}
