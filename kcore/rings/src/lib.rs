//! A bounded ring that any number of producers and consumers may use at once, interrupt handlers
//! among them: Dmitry Vyukov's bounded multi-producer multi-consumer queue, for `u32` values.
//!
//! # Why this ring
//! A network block server hands small numbers (the indices of its request slots) between the
//! receive softirq, a worker task and the disk's interrupt handler, all on different CPUs. With a
//! locked queue the interrupt handler would wait for whoever holds the lock, and the lock's line
//! would travel once for taking and once for giving it back. Here an operation is one
//! compare-and-swap on a position, and a producer and a consumer touch different positions.
//!
//! Values are `u32`, not `T`, so that a cell is an atomic and the ring needs no `unsafe`: what a
//! value stands for (a slot, a frame, a timer) is the owner's table to know, and whoever pops a
//! number is its only holder until the number is pushed again.
//!
//! # How it works
//! Positions count up for ever; position `p` lives in cell `p % CAPACITY`. Each cell carries a
//! sequence number that says which position may use it next, and for what:
//!
//! ```text
//!   sequence = lap            position lap + index may be pushed        (cell is empty)
//!   sequence = lap + 1        position lap + index may be popped        (cell holds a value)
//!   sequence = lap + CAPACITY the same cell, one lap later: empty again
//! ```
//!
//! where `lap` is the position with its index bits cleared. (The published form stores
//! `lap + index`; leaving out the index makes every cell's first state zero, hence a ring that a
//! `static` can hold.) A producer claims a position by advancing `push_position`, writes the value
//! and publishes it by a release store of the sequence; a consumer acquires the sequence, so the
//! value it reads is the value that was published.
//!
//! # What an interrupt handler may count on
//! `push` and `pop` never wait for anyone. The only loop is the retry of a lost
//! compare-and-swap, and one is lost only because another operation won it. So a handler that
//! lands in the middle of a `push` on its own CPU does its own operation and returns; it does not
//! need the operation underneath it to go on. Interrupts need not be turned off around either.
//!
//! What it may NOT count on is strict order of visibility: an operation that is stopped between
//! its claim and its publication holds its one cell.
//!  - A stopped producer hides the values behind its own: `pop` answers `None` although later
//!    pushes have returned. They appear when it goes on. Hence the rule for wake-ups: **push, then
//!    signal**, every time; the stopped producer has its own signal still to send, so whoever
//!    sleeps after an empty `pop` is woken for all of them. (The signal must be a read-modify-write,
//!    so that seeing one producer's signal is seeing the pushes of those before it; [`Sleeper`] is how
//!    to leave out the signals that nobody needs.)
//!  - A stopped consumer holds its cell for one lap: `push` answers [`Full`] when it comes round to
//!    that cell, although the ring holds fewer than `CAPACITY` values.
//!
//! # When `push` cannot fail
//! If the values are the numbers of at most `CAPACITY` things, each in one place at a time, and the
//! ring has ONE consumer, `push` never answers `Full`: to lap a stopped consumer someone else must
//! have popped. With several consumers a lap is possible, and `Full` must be handled (it means: try
//! again after the stopped consumer has run). The model tests check both statements.

#![cfg_attr(not(any(test, loom)), no_std)]
#![forbid(unsafe_code)]

#[cfg(loom)]
mod model_atomic;
mod sleeper;

pub use sleeper::Sleeper;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
#[cfg(loom)]
use loom::sync::atomic::Ordering;
#[cfg(loom)]
use model_atomic::{AtomicU32, AtomicUsize};

/// The answer of [`Ring::push`] when the cell it needs is still taken; gives the value back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full(pub u32);

/// One line of the cache to itself: the two positions are written by different CPUs.
#[repr(align(64))]
struct Line<T>(T);

struct Cell {
    sequence: AtomicUsize,
    value: AtomicU32,
}

/// A ring with room for `CAPACITY` values, a power of two and at least 2.
///
/// (With one cell, "holds a value of this lap" and "free for the next lap" would be the same
/// sequence number.)
pub struct Ring<const CAPACITY: usize> {
    push_position: Line<AtomicUsize>,
    pop_position: Line<AtomicUsize>,
    cells: [Cell; CAPACITY],
}

impl<const CAPACITY: usize> Ring<CAPACITY> {
    const INDEX_MASK: usize = {
        assert!(CAPACITY >= 2 && CAPACITY.is_power_of_two());
        CAPACITY - 1
    };

    /// An empty ring.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        let () = assert!(Self::INDEX_MASK > 0);
        Self {
            push_position: Line(AtomicUsize::new(0)),
            pop_position: Line(AtomicUsize::new(0)),
            cells: [const { Cell { sequence: AtomicUsize::new(0), value: AtomicU32::new(0) } }; CAPACITY],
        }
    }

    /// An empty ring (loom's atomics cannot be made in a constant).
    #[cfg(loom)]
    pub fn new() -> Self {
        Self {
            push_position: Line(AtomicUsize::new(0)),
            pop_position: Line(AtomicUsize::new(0)),
            cells: std::array::from_fn(|_| Cell { sequence: AtomicUsize::new(0), value: AtomicU32::new(0) }),
        }
    }

    /// A ring that holds `0..CAPACITY`: the list of free numbers.
    pub fn holding_every_number() -> Self {
        let ring = Self::new();
        for number in 0..CAPACITY {
            // Nobody shares the ring yet and it has room for exactly these.
            let number = u32::try_from(number).expect("a ring of more than 2^32 cells");
            ring.push(number).expect("a new ring has room");
        }
        ring
    }

    /// How many values the ring has room for.
    pub const fn capacity(&self) -> usize {
        CAPACITY
    }

    /// Puts a value at the end. Never waits; may be called in an interrupt handler.
    ///
    /// # Errors
    /// [`Full`] when the cell is still taken: `CAPACITY` values are in, or a consumer was stopped
    /// in the middle of taking the value one lap ago.
    pub fn push(&self, value: u32) -> Result<(), Full> {
        // Relaxed: the position only proposes a cell; the cell's sequence decides.
        let mut position = self.push_position.0.load(Ordering::Relaxed);
        loop {
            let index = position & Self::INDEX_MASK;
            let lap = position - index;
            let cell = &self.cells[index];
            // Acquire: pairs with the release in `pop`, so that our store of the new value comes
            // after the load of the old one.
            let sequence = cell.sequence.load(Ordering::Acquire);
            match relation(sequence, lap) {
                Relation::Same => {
                    match self.push_position.0.compare_exchange_weak(
                        position,
                        position.wrapping_add(1),
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            cell.value.store(value, Ordering::Relaxed);
                            cell.sequence.store(lap.wrapping_add(1), Ordering::Release);
                            return Ok(());
                        }
                        Err(current) => position = current,
                    }
                }
                // The cell still belongs to the lap before.
                Relation::Behind => return Err(Full(value)),
                // Another producer took the position after we read it.
                Relation::Ahead => position = self.push_position.0.load(Ordering::Relaxed),
            }
        }
    }

    /// Takes the oldest value, or `None` when the next one is not published (yet). Never waits; may
    /// be called in an interrupt handler.
    pub fn pop(&self) -> Option<u32> {
        let mut position = self.pop_position.0.load(Ordering::Relaxed);
        loop {
            let index = position & Self::INDEX_MASK;
            let lap = position - index;
            let cell = &self.cells[index];
            // Acquire: pairs with the release in `push`; the value is the one published.
            let sequence = cell.sequence.load(Ordering::Acquire);
            match relation(sequence, lap.wrapping_add(1)) {
                Relation::Same => {
                    match self.pop_position.0.compare_exchange_weak(
                        position,
                        position.wrapping_add(1),
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            let value = cell.value.load(Ordering::Relaxed);
                            cell.sequence.store(lap.wrapping_add(CAPACITY), Ordering::Release);
                            return Some(value);
                        }
                        Err(current) => position = current,
                    }
                }
                Relation::Behind => return None,
                Relation::Ahead => position = self.pop_position.0.load(Ordering::Relaxed),
            }
        }
    }

    /// Whether [`Ring::pop`] would find a value. For the one consumer of a ring: with several, it may be gone.
    pub fn has_next(&self) -> bool {
        let position = self.pop_position.0.load(Ordering::Relaxed);
        let index = position & Self::INDEX_MASK;
        let lap = position - index;
        let sequence = self.cells[index].sequence.load(Ordering::Acquire);
        matches!(relation(sequence, lap.wrapping_add(1)), Relation::Same)
    }

    /// How many positions are claimed by producers and not yet by consumers: a figure to show, not
    /// to decide on (both positions move while it is computed).
    pub fn len_hint(&self) -> usize {
        let popped = self.pop_position.0.load(Ordering::Relaxed);
        let pushed = self.push_position.0.load(Ordering::Relaxed);
        pushed.wrapping_sub(popped).min(CAPACITY)
    }
}

impl<const CAPACITY: usize> Default for Ring<CAPACITY> {
    fn default() -> Self {
        Self::new()
    }
}

/// Where a cell's sequence stands, seen from the sequence an operation needs.
enum Relation {
    Behind,
    Same,
    Ahead,
}

/// Compares across the wrap of the counters: the two are never half the number range apart.
fn relation(sequence: usize, needed: usize) -> Relation {
    match sequence.wrapping_sub(needed) {
        0 => Relation::Same,
        ahead if ahead <= usize::MAX / 2 => Relation::Ahead,
        _ => Relation::Behind,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    static IN_A_STATIC: Ring<4> = Ring::new();

    #[test]
    fn a_static_may_hold_one() {
        assert_eq!(IN_A_STATIC.pop(), None);
        IN_A_STATIC.push(9).unwrap();
        assert_eq!(IN_A_STATIC.pop(), Some(9));
    }

    #[test]
    fn full_gives_the_value_back_and_loses_nothing() {
        let ring = Ring::<2>::new();
        ring.push(1).unwrap();
        ring.push(2).unwrap();
        assert_eq!(ring.push(3), Err(Full(3)));
        assert_eq!(ring.len_hint(), 2);
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some(1), Some(2), None));
    }

    #[test]
    fn the_free_list_starts_with_every_number_once() {
        let ring = Ring::<256>::holding_every_number();
        assert!((0..256).all(|number| ring.pop() == Some(number)));
        assert_eq!(ring.pop(), None);
    }

    #[test]
    fn positions_may_wrap() {
        let ring = Ring::<4>::new();
        // Both counters just before the end of their range, as after 2^64 operations.
        let start = usize::MAX - 3;
        ring.push_position.0.store(start, Ordering::Relaxed);
        ring.pop_position.0.store(start, Ordering::Relaxed);
        for cell in &ring.cells {
            cell.sequence.store(start, Ordering::Relaxed);
        }
        for value in 0..64 {
            ring.push(value).unwrap();
            ring.push(value + 1000).unwrap();
            assert_eq!(ring.pop(), Some(value));
            assert_eq!(ring.pop(), Some(value + 1000));
        }
    }

    proptest! {
        /// Alone, it is a plain queue with a limit.
        #[test]
        fn behaves_as_a_queue(operations in proptest::collection::vec(proptest::option::of(any::<u32>()), 0..200)) {
            let ring = Ring::<8>::new();
            let mut model = VecDeque::new();
            for operation in operations {
                match operation {
                    Some(value) if model.len() < 8 => {
                        prop_assert_eq!(ring.push(value), Ok(()));
                        model.push_back(value);
                    }
                    Some(value) => prop_assert_eq!(ring.push(value), Err(Full(value))),
                    None => prop_assert_eq!(ring.pop(), model.pop_front()),
                }
                prop_assert_eq!(ring.has_next(), !model.is_empty());
                prop_assert_eq!(ring.len_hint(), model.len());
            }
        }
    }
}
