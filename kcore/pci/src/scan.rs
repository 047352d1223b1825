//! Which functions exist: the walk over buses and bridges.

use alloc::vec::Vec;
use core::ops::RangeInclusive;

use crate::{Address, ConfigSpace, Header, HeaderKind, register};

/// One enumeration. It remembers the buses it has walked, so that bridges which name each other,
/// or themselves, cost nothing and are walked once; a scan looks at 256 buses at most.
///
/// Bridges reach only what hangs under one root bus. Servers have several, and only AML says
/// which, so whoever scans may look into the buses that are left ([`Scan::unvisited`]) for any
/// device, as [`Scan::answers`] does, and walk those too.
pub struct Scan {
    buses: RangeInclusive<u8>,
    visited: [bool; 256],
}

impl Scan {
    /// Only buses in `buses` are ever accessed: the enhanced mechanism may cover fewer than 256.
    #[must_use]
    pub fn new(buses: RangeInclusive<u8>) -> Self {
        Self { buses, visited: [false; 256] }
    }

    /// Walks `root` and every bus below it; calls `found` for each function, in no order that
    /// could be relied on.
    pub fn walk(&mut self, space: &impl ConfigSpace, root: u8, mut found: impl FnMut(Address, Header)) {
        let mut pending = Vec::from([root]);
        while let Some(bus) = pending.pop() {
            let visited = &mut self.visited[usize::from(bus)];
            if *visited || !self.buses.contains(&bus) {
                continue;
            }
            *visited = true;
            for device in 0..Address::DEVICES {
                walk_device(space, bus, device, &mut |address, header: Header| {
                    if header.kind == HeaderKind::Bridge {
                        pending.push(space.read8(address, register::SECONDARY_BUS));
                    }
                    found(address, header);
                });
            }
        }
    }

    /// The buses in range that no walk has reached.
    pub fn unvisited(&self) -> impl Iterator<Item = u8> {
        let visited = self.visited;
        self.buses.clone().filter(move |bus| !visited[usize::from(*bus)])
    }

    /// Whether any device answers on `bus`.
    pub fn answers(space: &impl ConfigSpace, bus: u8) -> bool {
        (0..Address::DEVICES)
            .filter_map(|device| Address::new(bus, device, 0))
            .any(|address| !matches!(space.read16(address, register::VENDOR), 0 | 0xffff))
    }
}

fn walk_device(space: &impl ConfigSpace, bus: u8, device: u8, found: &mut impl FnMut(Address, Header)) {
    for function in 0..Address::FUNCTIONS {
        let Some(address) = Address::new(bus, device, function) else { return };
        let header = Header::read(space, address);
        if let Some(header) = header {
            found(address, header);
        }
        // Function 0 must exist, and says whether there are others (PCI sec 6.2.1).
        if function == 0 && !header.is_some_and(|header| header.multi_function) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeFunction, FakeSpace};
    use proptest::prelude::*;

    fn at(bus: u8, device: u8, function: u8) -> Address {
        Address::new(bus, device, function).unwrap()
    }

    fn walk(space: &FakeSpace, buses: RangeInclusive<u8>) -> (Vec<Address>, Scan) {
        let mut scan = Scan::new(buses);
        let mut found = Vec::new();
        scan.walk(space, 0, |address, _| found.push(address));
        found.sort();
        (found, scan)
    }

    #[test]
    fn buses_behind_bridges_are_walked() {
        let space = FakeSpace::new()
            .with(at(0, 0, 0), FakeFunction::endpoint(0x8086, 0x29c0).with_class(6, 0, 0))
            .with(at(0, 2, 0), FakeFunction::bridge(0x1b36, 0x000c, 1).multi_function())
            .with(at(0, 2, 3), FakeFunction::bridge(0x1b36, 0x000c, 4))
            .with(at(1, 0, 0), FakeFunction::bridge(0x1b36, 0x0001, 2))
            .with(at(2, 31, 0), FakeFunction::endpoint(0x1b36, 0x0010))
            .with(at(4, 0, 0), FakeFunction::endpoint(0x1af4, 0x1041));
        let (found, _) = walk(&space, 0..=255);
        assert_eq!(found, [at(0, 0, 0), at(0, 2, 0), at(0, 2, 3), at(1, 0, 0), at(2, 31, 0), at(4, 0, 0)]);
    }

    #[test]
    fn other_functions_are_looked_for_only_where_the_first_announces_them() {
        let space = FakeSpace::new()
            .with(at(0, 1, 0), FakeFunction::endpoint(1, 1))
            .with(at(0, 1, 1), FakeFunction::endpoint(1, 2))
            .with(at(0, 2, 1), FakeFunction::endpoint(1, 3));
        assert_eq!(walk(&space, 0..=255).0, [at(0, 1, 0)]);
    }

    #[test]
    fn bridges_in_a_circle_are_walked_once() {
        let space = FakeSpace::new()
            .with(at(0, 1, 0), FakeFunction::bridge(1, 1, 1))
            .with(at(1, 1, 0), FakeFunction::bridge(1, 1, 0))
            .with(at(1, 2, 0), FakeFunction::bridge(1, 1, 1));
        assert_eq!(walk(&space, 0..=255).0.len(), 3);
    }

    #[test]
    fn a_second_root_bus_is_found_among_the_unvisited() {
        let space = FakeSpace::new()
            .with(at(0, 1, 0), FakeFunction::bridge(1, 1, 1))
            .with(at(0x40, 5, 0), FakeFunction::endpoint(1, 2));
        let (found, scan) = walk(&space, 0..=0x7f);
        assert_eq!(found.len(), 1);
        let peers: Vec<u8> = scan.unvisited().filter(|bus| Scan::answers(&space, *bus)).collect();
        assert_eq!(peers, [0x40]);
    }

    #[test]
    fn a_bus_out_of_range_is_never_accessed() {
        let space = FakeSpace::new()
            .with(at(0, 1, 0), FakeFunction::bridge(1, 1, 9))
            .with(at(9, 0, 0), FakeFunction::endpoint(1, 2));
        assert_eq!(walk(&space, 0..=8).0, [at(0, 1, 0)]);
    }

    proptest! {
        #[test]
        fn any_web_of_bridges_ends_and_finds_nothing_twice(
            bridges in proptest::collection::vec((any::<u8>(), 0_u8..32, 0_u8..8, any::<u8>()), 0..60),
        ) {
            let mut space = FakeSpace::new();
            for (bus, device, function, secondary) in bridges {
                let bridge = FakeFunction::bridge(1, 1, secondary).multi_function();
                space = space.with(at(bus, device, function), bridge);
            }
            let (found, _) = walk(&space, 0..=255);
            let mut unique = found.clone();
            unique.dedup();
            prop_assert_eq!(found, unique);
        }
    }
}
