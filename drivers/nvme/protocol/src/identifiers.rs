//! Command identifiers: which are free, what each outstanding one stands for, and which
//! completions name none of them.
//!
//! An identifier on the wire is a slot's index below a generation that changes with every use of
//! the slot. So a completion that arrives twice, or long after its command was given up, does not
//! finish whatever uses the slot now, unless it comes back a full round of generations late.
//!
//! Some slots are kept from the asynchronous path, so that a server which fills the queue never
//! locks out a file system on the same disk. Free slots are used first in, first out: that keeps
//! the time between two uses of one slot as long as possible.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;

/// Who asks for an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The asynchronous path: refused while only the reserved ones are left.
    Asynchronous,
    /// A task that waits for its answer: takes a reserved one where nothing else is free.
    Synchronous,
}

/// Marks the end of a free list; no slot has this index.
const NONE: u16 = u16::MAX;

struct Outstanding<T> {
    payload: T,
    submitted_ns: u64,
}

struct Slot<T> {
    generation: u16,
    next_free: u16,
    outstanding: Option<Outstanding<T>>,
}

#[derive(Clone, Copy)]
struct FreeList {
    first: u16,
    last: u16,
}

/// Why a completion's identifier names nothing that is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stray {
    /// No slot has this index.
    Unknown,
    /// The slot is free, or in use under another generation.
    Stale,
}

/// What [`Identifiers::allocate`] hands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    pub identifier: u16,
    pub index: u16,
}

pub(crate) struct Identifiers<T> {
    slots: Box<[Slot<T>]>,
    /// The first `reserved` slots are the reserved ones.
    reserved: u16,
    free_general: FreeList,
    free_reserved: FreeList,
    index_bits: u32,
    generations: u16,
    outstanding: u16,
}

impl<T> Identifiers<T> {
    /// `count` slots, at most [`crate::MAX_ENTRIES`], of which `reserved` (fewer) are kept for
    /// synchronous use.
    pub(crate) fn new(count: u16, reserved: u16) -> Result<Self, TryReserveError> {
        let mut slots = Vec::new();
        slots.try_reserve_exact(usize::from(count))?;
        let last_of = |index| index + 1 == reserved || index + 1 == count;
        slots.extend((0..count).map(|index| Slot {
            generation: 0,
            next_free: if last_of(index) { NONE } else { index + 1 },
            outstanding: None,
        }));
        let list = |first: u16, end: u16| {
            if first < end { FreeList { first, last: end - 1 } } else { FreeList { first: NONE, last: NONE } }
        };
        let index_bits = u32::from(count).next_power_of_two().trailing_zeros();
        Ok(Self {
            slots: slots.into_boxed_slice(),
            reserved,
            free_general: list(reserved, count),
            free_reserved: list(0, reserved),
            index_bits,
            // One generation is never used, so that no identifier is FFFFh, which means "none"
            // in the error log (NVMe sec 3.3.3.1).
            generations: ((1_u32 << (16 - index_bits)) - 1) as u16,
            outstanding: 0,
        })
    }

    pub(crate) fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Takes a slot for `payload`, or gives it back where the class has none left.
    pub(crate) fn allocate(&mut self, class: Class, payload: T, now_ns: u64) -> Result<Allocated, T> {
        let list = match class {
            Class::Synchronous if self.free_general.first == NONE => &mut self.free_reserved,
            Class::Asynchronous | Class::Synchronous => &mut self.free_general,
        };
        let index = list.first;
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return Err(payload) };
        list.first = slot.next_free;
        if list.first == NONE {
            list.last = NONE;
        }
        slot.outstanding = Some(Outstanding { payload, submitted_ns: now_ns });
        self.outstanding += 1;
        Ok(Allocated { identifier: slot.generation << self.index_bits | index, index })
    }

    /// Ends the command that a completion names.
    pub(crate) fn take(&mut self, identifier: u16) -> Result<T, Stray> {
        let index = (u32::from(identifier) & ((1 << self.index_bits) - 1)) as u16;
        let generation = identifier >> self.index_bits;
        let slot = self.slots.get(usize::from(index)).ok_or(Stray::Unknown)?;
        if slot.generation != generation {
            return Err(Stray::Stale);
        }
        self.release(index).ok_or(Stray::Stale)
    }

    /// Ends any one command: for a driver that has stopped the controller.
    pub(crate) fn take_any(&mut self) -> Option<T> {
        if self.outstanding == 0 {
            return None;
        }
        let index = self.slots.iter().position(|slot| slot.outstanding.is_some())?;
        self.release(index as u16)
    }

    /// When the oldest outstanding command was submitted. Walks all slots; for the guard task.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let outstanding = self.slots.iter().filter_map(|slot| slot.outstanding.as_ref());
        outstanding.map(|entry| entry.submitted_ns).min()
    }

    fn release(&mut self, index: u16) -> Option<T> {
        let slot = self.slots.get_mut(usize::from(index))?;
        let ended = slot.outstanding.take()?;
        slot.generation = (slot.generation + 1) % self.generations;
        slot.next_free = NONE;
        self.outstanding -= 1;
        let list = if index < self.reserved { &mut self.free_reserved } else { &mut self.free_general };
        let last = core::mem::replace(&mut list.last, index);
        match self.slots.get_mut(usize::from(last)) {
            Some(last) => last.next_free = index,
            None => list.first = index,
        }
        Some(ended.payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_reserved_slots_outlast_the_asynchronous_path() {
        let mut identifiers = Identifiers::new(12, 8).unwrap();
        for n in 0..4 {
            assert!(identifiers.allocate(Class::Asynchronous, n, 0).is_ok());
        }
        assert_eq!(identifiers.allocate(Class::Asynchronous, 99, 0), Err(99));
        for n in 4..12 {
            assert!(identifiers.allocate(Class::Synchronous, n, 0).is_ok());
        }
        assert_eq!(identifiers.allocate(Class::Synchronous, 99, 0), Err(99));
        assert_eq!(identifiers.outstanding(), 12);
    }

    #[test]
    fn a_reserved_slot_returns_to_the_reserve() {
        let mut identifiers = Identifiers::new(2, 1).unwrap();
        let general = identifiers.allocate(Class::Synchronous, 'a', 0).unwrap();
        let reserved = identifiers.allocate(Class::Synchronous, 'b', 0).unwrap();
        assert_eq!((general.index, reserved.index), (1, 0));
        assert_eq!(identifiers.take(reserved.identifier), Ok('b'));
        assert_eq!(identifiers.allocate(Class::Asynchronous, 'c', 0), Err('c'));
    }

    #[test]
    fn a_completion_that_comes_twice_does_not_finish_the_next_command() {
        let mut identifiers = Identifiers::new(2, 1).unwrap();
        let first = identifiers.allocate(Class::Asynchronous, 'a', 0).unwrap();
        assert_eq!(identifiers.take(first.identifier), Ok('a'));
        assert_eq!(identifiers.take(first.identifier), Err(Stray::Stale));
        let second = identifiers.allocate(Class::Asynchronous, 'b', 0).unwrap();
        assert_eq!(second.index, first.index);
        assert_eq!(identifiers.take(first.identifier), Err(Stray::Stale));
        assert_eq!(identifiers.take(second.identifier), Ok('b'));
    }

    #[test]
    fn the_oldest_decides() {
        let mut identifiers = Identifiers::new(4, 1).unwrap();
        assert_eq!(identifiers.oldest_ns(), None);
        identifiers.allocate(Class::Asynchronous, 'a', 30).unwrap();
        let older = identifiers.allocate(Class::Asynchronous, 'b', 10).unwrap();
        assert_eq!(identifiers.oldest_ns(), Some(10));
        identifiers.take(older.identifier).unwrap();
        assert_eq!(identifiers.oldest_ns(), Some(30));
    }

    proptest! {
        /// Against a map as the model: every payload comes back once, no outstanding identifier
        /// is handed out again, and none is FFFFh.
        #[test]
        fn identifiers_agree_with_a_map(
            count in 1_u16..40, kept in 0_u16..8, steps in proptest::collection::vec(any::<(bool, bool, u16)>(), 0..400),
        ) {
            let reserved = kept.min(count - 1);
            let mut identifiers = Identifiers::new(count, reserved).unwrap();
            let mut model = BTreeMap::new();
            for (payload, (allocate, synchronous, pick)) in steps.into_iter().enumerate() {
                if allocate {
                    let class = if synchronous { Class::Synchronous } else { Class::Asynchronous };
                    match identifiers.allocate(class, payload, 0) {
                        Ok(allocated) => {
                            prop_assert_ne!(allocated.identifier, u16::MAX);
                            prop_assert!(synchronous || allocated.index >= reserved);
                            prop_assert_eq!(model.insert(allocated.identifier, payload), None);
                        }
                        Err(returned) => {
                            prop_assert_eq!(returned, payload);
                            let limit = if synchronous { count } else { count - reserved };
                            prop_assert!(model.len() >= usize::from(limit));
                        }
                    }
                } else if let Some(&identifier) = model.keys().nth(usize::from(pick) % model.len().max(1)) {
                    prop_assert_eq!(identifiers.take(identifier), Ok(model.remove(&identifier).unwrap()));
                } else {
                    prop_assert!(identifiers.take(pick).is_err());
                }
                prop_assert_eq!(usize::from(identifiers.outstanding()), model.len());
            }
            let mut left: Vec<_> = core::iter::from_fn(|| identifiers.take_any()).collect();
            let mut expected: Vec<_> = model.into_values().collect();
            left.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(left, expected);
        }
    }
}
