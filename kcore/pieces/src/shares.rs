//! Who holds which page, and which are free.

use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, fence};

/// More holders than there can be cells and handles: the count has gone wrong.
const ABSURD: u32 = u32::MAX / 2;

/// The number of holders of each page.
#[derive(Debug)]
pub struct Shares {
    holders: Box<[AtomicU32]>,
}

impl Shares {
    /// Nobody holds any of `count` pages.
    pub fn new(count: u32) -> Result<Shares, TryReserveError> {
        let mut holders = Vec::new();
        holders.try_reserve_exact(count as usize)?;
        holders.extend((0..count).map(|_| AtomicU32::new(0)));
        Ok(Shares { holders: holders.into_boxed_slice() })
    }

    /// A free page gets its first holder.
    pub fn first(&self, index: u32) {
        let before = self.holders[index as usize].swap(1, Relaxed);
        assert!(before == 0, "page {index} was free and had {before} holders");
    }

    /// A holder shares the page with another.
    pub fn share(&self, index: u32) {
        let before = self.holders[index as usize].fetch_add(1, Relaxed);
        assert!((1..ABSURD).contains(&before), "page {index} is shared by {before} holders");
    }

    /// A holder gives its share back. `true`: it was the last, and what all others did with the
    /// page lies before this; the page is the caller's to free.
    #[must_use]
    pub fn leave(&self, index: u32) -> bool {
        let before = self.holders[index as usize].fetch_sub(1, Release);
        assert!((1..ABSURD).contains(&before), "page {index} was given back by {before} holders");
        if before > 1 {
            return false;
        }
        fence(Acquire);
        true
    }

    /// Whether the asking holder is the only one: nobody else can see the page, or will before the
    /// asker shares it.
    pub fn is_sole(&self, index: u32) -> bool {
        self.holders[index as usize].load(Acquire) == 1
    }
}

/// Numbers that are free. The last one given back is taken first: its memory may still be in the
/// cache.
#[derive(Debug)]
pub struct FreeList {
    /// With room for all there are, so giving back does not allocate.
    numbers: Vec<u32>,
    count: u32,
    low_water: u32,
}

impl FreeList {
    /// All of `0..count` are free.
    pub fn full(count: u32) -> Result<FreeList, TryReserveError> {
        let mut numbers = Vec::new();
        numbers.try_reserve_exact(count as usize)?;
        numbers.extend((0..count).rev());
        Ok(FreeList { numbers, count, low_water: count })
    }

    pub fn take(&mut self) -> Option<u32> {
        let number = self.numbers.pop()?;
        self.low_water = self.low_water.min(self.len());
        Some(number)
    }

    /// Gives a number back that was taken.
    pub fn give(&mut self, number: u32) {
        assert!(self.len() < self.count, "number {number} was given back twice");
        self.numbers.push(number);
    }

    pub fn len(&self) -> u32 {
        self.numbers.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The fewest that were ever free.
    pub fn low_water(&self) -> u32 {
        self.low_water
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_of_many_threads_is_one() {
        for _ in 0..50 {
            let shares = Shares::new(1).unwrap();
            shares.first(0);
            (0..7).for_each(|_| shares.share(0));
            let last = std::thread::scope(|scope| {
                let holders: Vec<_> = (0..8).map(|_| scope.spawn(|| shares.leave(0))).collect();
                holders.into_iter().map(|holder| holder.join().unwrap()).filter(|&last| last).count()
            });
            assert_eq!(last, 1);
        }
    }

    #[test]
    #[should_panic(expected = "was given back by 0 holders")]
    fn a_share_too_many_given_back_is_noticed() {
        let shares = Shares::new(1).unwrap();
        shares.first(0);
        assert!(shares.leave(0));
        let _ = shares.leave(0);
    }

    proptest! {
        /// Pages come and go, are shared and left: a page is free exactly when nobody holds it,
        /// and nobody gets one that somebody holds.
        #[test]
        fn a_page_is_free_when_nobody_holds_it(steps in proptest::collection::vec((0u8..3, any::<usize>()), 0..300)) {
            let shares = Shares::new(5).unwrap();
            let mut free = FreeList::full(5).unwrap();
            let mut held: Vec<u32> = Vec::new();
            let mut fewest = 5;
            for (step, which) in steps {
                match step {
                    0 => match free.take() {
                        Some(index) => {
                            prop_assert!(!held.contains(&index));
                            shares.first(index);
                            held.push(index);
                        }
                        None => prop_assert!((0..5).all(|index| held.contains(&index))),
                    },
                    1 if !held.is_empty() => {
                        let index = held[which % held.len()];
                        shares.share(index);
                        held.push(index);
                    }
                    2 if !held.is_empty() => {
                        let index = held.swap_remove(which % held.len());
                        let last = shares.leave(index);
                        prop_assert_eq!(last, !held.contains(&index));
                        if last {
                            free.give(index);
                        }
                    }
                    _ => {}
                }
                for &index in &held {
                    prop_assert_eq!(shares.is_sole(index), held.iter().filter(|&&other| other == index).count() == 1);
                }
                fewest = fewest.min(free.len());
                prop_assert_eq!(free.low_water(), fewest);
            }
        }
    }
}
