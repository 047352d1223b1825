//! Which pages of a range are in use: one bit a page, first fit.
//!
//! A bitmap and not a buddy allocator: runs of any length and alignment (guest memory in 2 MiB
//! pieces, a pool of frames, one page for a table) come from one search, freeing is exact, and
//! the whole state is 32 KiB a GiB. The search is linear, by words; nothing on a data path
//! allocates pages.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// Pages a word of the map describes.
pub const PAGES_PER_WORD: usize = 64;

/// A map of `pages` pages over borrowed words. A set bit is a page in use.
pub struct PageMap<'a> {
    words: &'a mut [u64],
    pages: usize,
    free: usize,
    /// No page below this one is free.
    lowest_free: usize,
}

impl<'a> PageMap<'a> {
    /// A map of `words.len() * 64` pages, all in use until [`PageMap::release`] says otherwise.
    pub fn new(words: &'a mut [u64]) -> Self {
        words.fill(u64::MAX);
        let pages = words.len() * PAGES_PER_WORD;
        PageMap { words, pages, free: 0, lowest_free: pages }
    }

    /// Pages the map describes.
    pub fn len(&self) -> usize {
        self.pages
    }

    /// Whether the map describes no page.
    pub fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Pages not in use.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Whether `page` is in use; a page outside the map is.
    pub fn is_used(&self, page: usize) -> bool {
        match self.words.get(page / PAGES_PER_WORD) {
            Some(word) => word & (1 << (page % PAGES_PER_WORD)) != 0,
            None => true,
        }
    }

    /// Takes `count` pages in a row whose first is a multiple of `align` pages. The first page.
    pub fn take(&mut self, count: usize, align: usize) -> Option<usize> {
        if count == 0 || align == 0 || count > self.free {
            return None;
        }
        let mut start = self.lowest_free.checked_next_multiple_of(align)?;
        loop {
            let end = start.checked_add(count).filter(|&end| end <= self.pages)?;
            match self.last_used(start, end) {
                None => break,
                Some(used) => start = (used + 1).checked_next_multiple_of(align)?,
            }
        }
        self.set(start, count, true);
        self.free -= count;
        if start == self.lowest_free {
            self.lowest_free = start + count;
        }
        Some(start)
    }

    /// Gives `count` pages from `start` back. Pages that are free already, or outside the map,
    /// are a fault of the caller: none is touched and the answer is false.
    pub fn release(&mut self, start: usize, count: usize) -> bool {
        let Some(end) = start.checked_add(count).filter(|&end| end <= self.pages) else { return false };
        if (start..end).any(|page| !self.is_used(page)) {
            return false;
        }
        self.set(start, count, false);
        self.free += count;
        self.lowest_free = self.lowest_free.min(start);
        true
    }

    /// The last page in use within `start..end`.
    fn last_used(&self, start: usize, end: usize) -> Option<usize> {
        let mut end = end;
        while end > start {
            let index = (end - 1) / PAGES_PER_WORD;
            let first = index * PAGES_PER_WORD;
            let low = start.saturating_sub(first).min(PAGES_PER_WORD);
            let high = end - first;
            let word = self.words[index] & mask(low, high);
            if word != 0 {
                return Some(first + (PAGES_PER_WORD - 1 - word.leading_zeros() as usize));
            }
            end = first.max(start);
        }
        None
    }

    fn set(&mut self, start: usize, count: usize, used: bool) {
        let end = start + count;
        let mut page = start;
        while page < end {
            let index = page / PAGES_PER_WORD;
            let first = index * PAGES_PER_WORD;
            let high = (end - first).min(PAGES_PER_WORD);
            let bits = mask(page - first, high);
            if used {
                self.words[index] |= bits;
            } else {
                self.words[index] &= !bits;
            }
            page = first + high;
        }
    }
}

/// A word with the bits `low..high` set; `high` is at most 64.
fn mask(low: usize, high: usize) -> u64 {
    let below = |bit: usize| if bit >= PAGES_PER_WORD { u64::MAX } else { (1u64 << bit) - 1 };
    below(high) & !below(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is taken and given back, no page is ever in two runs, the alignment holds,
        /// and the count of free pages is right.
        #[test]
        fn runs_never_overlap(steps in prop::collection::vec((1usize..200, 0u32..7, any::<bool>()), 1..120)) {
            let mut words = vec![0u64; 16];
            let mut map = PageMap::new(&mut words);
            prop_assert!(map.release(3, 1000));
            let mut model = vec![true; 1024];
            model[3..1003].fill(false);
            let mut runs: Vec<(usize, usize)> = Vec::new();
            for (count, shift, give_back) in steps {
                if give_back && !runs.is_empty() {
                    let (start, count) = runs.swap_remove(count % runs.len());
                    prop_assert!(map.release(start, count));
                    prop_assert!(!map.release(start, count));
                    model[start..start + count].fill(false);
                } else {
                    let align = 1 << shift;
                    let fits = (0..1024usize).step_by(align).find(|&start| {
                        start + count <= 1024 && model[start..start + count].iter().all(|used| !used)
                    });
                    let start = map.take(count, align);
                    prop_assert_eq!(start, fits);
                    if let Some(start) = start {
                        model[start..start + count].fill(true);
                        runs.push((start, count));
                    }
                }
                prop_assert_eq!(map.free(), model.iter().filter(|used| !**used).count());
            }
        }
    }
}
