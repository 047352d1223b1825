//! Who was silent longest: lists of places by the time of last use.
//!
//! There is one list per idle time, so that in each the first is always the next to expire:
//! whether anything has expired is a look at a few heads, and making room never a search.

use alloc::boxed::Box;
use alloc::vec;

use crate::index::{NOWHERE, Place};

/// The lists, in the order in which they give up a connection when the table is full.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum AgeClass {
    /// TCP not yet open at both ends, or closing.
    TcpTransitory,
    Echo,
    Udp,
    TcpEstablished,
}

impl AgeClass {
    pub const ALL: [Self; 4] = [Self::TcpTransitory, Self::Echo, Self::Udp, Self::TcpEstablished];
}

#[derive(Clone, Copy, Debug)]
struct Links {
    before: Place,
    after: Place,
}

const UNLINKED: Links = Links { before: NOWHERE, after: NOWHERE };

/// Doubly linked lists through one array, oldest first.
#[derive(Debug)]
pub(crate) struct AgeLists {
    /// First and last of each class.
    ends: [Links; AgeClass::ALL.len()],
    links: Box<[Links]>,
}

impl AgeLists {
    pub fn new(places: usize) -> Self {
        Self { ends: [UNLINKED; AgeClass::ALL.len()], links: vec![UNLINKED; places].into_boxed_slice() }
    }

    /// The place of a class that was silent longest.
    pub fn oldest(&self, class: AgeClass) -> Option<Place> {
        let first = self.ends[class as usize].after;
        (first != NOWHERE).then_some(first)
    }

    /// Puts a place, in no list yet, behind all others of its class.
    pub fn push(&mut self, class: AgeClass, place: Place) {
        let last = self.ends[class as usize].before;
        self.links[place as usize] = Links { before: last, after: NOWHERE };
        match last {
            NOWHERE => self.ends[class as usize].after = place,
            last => self.links[last as usize].after = place,
        }
        self.ends[class as usize].before = place;
    }

    /// Takes a place out of the list of its class.
    pub fn remove(&mut self, class: AgeClass, place: Place) {
        let Links { before, after } = core::mem::replace(&mut self.links[place as usize], UNLINKED);
        match before {
            NOWHERE => self.ends[class as usize].after = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NOWHERE => self.ends[class as usize].before = before,
            after => self.links[after as usize].before = before,
        }
    }

    pub fn clear(&mut self) {
        self.ends = [UNLINKED; AgeClass::ALL.len()];
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lists_are_queues(steps in proptest::collection::vec((0u32..12, 0usize..4), 1..300)) {
            let mut lists = AgeLists::new(12);
            let mut model: [VecDeque<Place>; 4] = Default::default();
            for (place, class) in steps {
                // Using a place moves it to the end of a class, as a packet does.
                if let Some(old) = model.iter().position(|list| list.contains(&place)) {
                    model[old].retain(|&other| other != place);
                    lists.remove(AgeClass::ALL[old], place);
                }
                if place % 5 != 0 {
                    model[class].push_back(place);
                    lists.push(AgeClass::ALL[class], place);
                }
                for (list, class) in model.iter().zip(AgeClass::ALL) {
                    prop_assert_eq!(lists.oldest(class), list.front().copied());
                }
            }
            for (list, class) in model.iter_mut().zip(AgeClass::ALL) {
                while let Some(place) = list.pop_front() {
                    prop_assert_eq!(lists.oldest(class), Some(place));
                    lists.remove(class, place);
                }
                prop_assert_eq!(lists.oldest(class), None);
            }
        }
    }
}
