//! Address-space identifiers: whose translations are whose in a host CPU's TLB.
//!
//! A translation that the processor caches carries the identifier that its guest CPU was entered
//! with, so guests need no flush between them as long as no two have had the same one (APM
//! vol. 2 sec. 15.16). Identifiers are given out in order; when they are used up, a new generation
//! begins, every guest CPU gets a new one at its next entry, and the TLB is flushed once. That flush
//! is done by the entry itself, and an entry that was prepared may yet be refused, so it stays due
//! for **any** guest CPU until an entry has taken place.

/// What a guest CPU keeps: good while its host CPU's generation lasts. The default is of no
/// generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asid {
    pub number: u32,
    generation: u64,
}

/// The identifiers of one host CPU.
#[derive(Debug)]
pub struct AsidSpace {
    /// How many there are, number 0 (the host's) among them.
    count: u32,
    /// The next one that no guest CPU has had in this generation.
    next: u32,
    generation: u64,
    flush_due: bool,
}

impl AsidSpace {
    pub const fn new(count: u32) -> AsidSpace {
        AsidSpace { count, next: 1, generation: 1, flush_due: false }
    }

    /// Renews `asid` if it is not of the current generation. Whether the entry must flush every
    /// translation; once it has, the caller says so by [`AsidSpace::flushed`].
    #[must_use]
    pub fn renew(&mut self, asid: &mut Asid) -> bool {
        if asid.generation != self.generation {
            if self.next >= self.count {
                self.generation += 1;
                self.next = 1;
                self.flush_due = true;
            }
            *asid = Asid { number: self.next, generation: self.generation };
            self.next += 1;
        }
        self.flush_due
    }

    /// An entry that was to flush has taken place.
    pub fn flushed(&mut self) {
        self.flush_due = false;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_refused_at_the_wrap_leaves_the_flush_to_the_next() {
        let mut space = AsidSpace::new(3);
        let mut guests = [Asid::default(); 3];
        assert!(!space.renew(&mut guests[0]) && !space.renew(&mut guests[1]));
        assert!(space.renew(&mut guests[2]), "two identifiers for three");
        assert!(space.renew(&mut guests[2]), "the bell rang before the entry: it is still due");
        assert!(space.renew(&mut guests[0]), "for another guest CPU, too");
        space.flushed();
        assert!(!space.renew(&mut guests[0]) && !space.renew(&mut guests[2]));
    }

    proptest! {
        /// Guest CPUs that enter, are refused, and forget their translations, in any order: none
        /// ever runs with an identifier under which another's translations are cached.
        #[test]
        fn no_guest_finds_translations_of_another(
            count in 2u32..6,
            steps in proptest::collection::vec((0usize..5, 0u8..4), 1..300),
        ) {
            let mut space = AsidSpace::new(count);
            let mut guests = [Asid::default(); 5];
            // Each guest CPU's translations, and their age: it forgot the older ones.
            let mut ages = [0u32; 5];
            let mut cached: HashMap<u32, (usize, u32)> = HashMap::new();
            for (guest, what) in steps {
                if what == 0 {
                    guests[guest] = Asid::default();
                    ages[guest] += 1;
                    continue;
                }
                let flush = space.renew(&mut guests[guest]);
                let number = guests[guest].number;
                prop_assert!(number >= 1 && number < count);
                if what == 1 {
                    continue; // the bell rang
                }
                if flush {
                    cached.clear();
                    space.flushed();
                }
                let mine = (guest, ages[guest]);
                prop_assert_eq!(*cached.entry(number).or_insert(mine), mine);
            }
        }
    }
}
