//! A range of sectors, and how requests on a partition become requests on its disk.

/// Sectors of a disk. Holding one proves that it is not empty and that its end can be counted;
/// those that [`crate::scan`] hands out lie on the disk that was scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    first_sector: u64,
    sectors: u64,
}

impl Extent {
    #[must_use]
    pub fn new(first_sector: u64, sectors: u64) -> Option<Self> {
        let counts = sectors != 0 && first_sector.checked_add(sectors).is_some();
        counts.then_some(Self { first_sector, sectors })
    }

    /// From the first to the last sector, both included.
    #[must_use]
    pub fn between(first_sector: u64, last_sector: u64) -> Option<Self> {
        let sectors = last_sector.checked_sub(first_sector)?.checked_add(1)?;
        Self::new(first_sector, sectors)
    }

    #[must_use]
    pub fn first_sector(&self) -> u64 {
        self.first_sector
    }

    #[must_use]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// The sector behind the last one.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first_sector + self.sectors
    }

    #[must_use]
    pub fn contains(&self, other: &Extent) -> bool {
        other.first_sector >= self.first_sector && other.end() <= self.end()
    }

    #[must_use]
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.first_sector < other.end() && other.first_sector < self.end()
    }

    /// Where on the disk `sectors` sectors from the partition's sector `first_sector` on begin;
    /// `None` if any of them is not the partition's.
    #[must_use]
    pub fn translate(&self, first_sector: u64, sectors: u32) -> Option<u64> {
        let end = first_sector.checked_add(u64::from(sectors))?;
        // At most `self.end()`, which can be counted.
        (end <= self.sectors).then(|| self.first_sector + first_sector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_extent_is_never_empty_or_endless() {
        assert_eq!(Extent::new(5, 0), None);
        assert_eq!(Extent::new(u64::MAX, 1), None);
        assert_eq!(Extent::between(5, 4), None);
        assert_eq!(Extent::between(0, u64::MAX), None);
        assert_eq!(Extent::between(5, 5), Extent::new(5, 1));
    }

    #[test]
    fn the_last_sector_of_a_partition_is_its_last() {
        let extent = Extent::new(2048, 100).unwrap();
        assert_eq!(extent.translate(0, 100), Some(2048));
        assert_eq!(extent.translate(99, 1), Some(2147));
        assert_eq!(extent.translate(99, 2), None);
        assert_eq!(extent.translate(u64::MAX, 1), None);
        assert_eq!(extent.translate(u64::MAX - 2047, 2048), None);
    }

    proptest! {
        /// No request leaves its partition, and none inside is refused.
        #[test]
        fn a_request_never_leaves_its_partition(
            start: u64, size: u64, first_sector: u64, sectors: u32, near: bool,
        ) {
            let Some(extent) = Extent::new(start, size) else { return Ok(()) };
            let first_sector = if near { size.saturating_sub(first_sector % 200) } else { first_sector };
            let sectors = if near { sectors % 200 } else { sectors };
            let inside = u128::from(first_sector) + u128::from(sectors) <= u128::from(size);
            match extent.translate(first_sector, sectors) {
                Some(on_disk) => {
                    prop_assert!(inside);
                    prop_assert_eq!(on_disk - start, first_sector);
                    prop_assert!(on_disk + u64::from(sectors) <= extent.end());
                }
                None => prop_assert!(!inside),
            }
        }
    }
}
