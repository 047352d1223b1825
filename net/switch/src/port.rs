//! Ports and sets of them.

use core::fmt;
use core::ops::BitOr;

/// Ports of a switch: what a [`PortSet`] has bits for.
pub const MOST_PORTS: u8 = 64;

/// A port's number. Holding one proves that it is less than [`MOST_PORTS`], not that something
/// is attached there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortId(u8);

impl PortId {
    /// Port `number`, if there can be such a port.
    pub const fn new(number: u8) -> Option<Self> {
        if number < MOST_PORTS { Some(Self(number)) } else { None }
    }

    pub const fn number(self) -> u8 {
        self.0
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "port {}", self.0)
    }
}

/// A set of ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PortSet(u64);

impl PortSet {
    pub const EMPTY: Self = Self(0);

    pub const fn only(port: PortId) -> Self {
        Self(1 << port.0)
    }

    /// One bit per port, port 0 the lowest.
    pub const fn bits(self) -> u64 {
        self.0
    }

    pub const fn contains(self, port: PortId) -> bool {
        self.0 & (1 << port.0) != 0
    }

    #[must_use]
    pub const fn with(self, port: PortId) -> Self {
        Self(self.0 | 1 << port.0)
    }

    #[must_use]
    pub const fn without(self, port: PortId) -> Self {
        Self(self.0 & !(1 << port.0))
    }

    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// The ports in ascending order.
    pub const fn iter(self) -> Ports {
        Ports(self.0)
    }
}

impl BitOr for PortSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl IntoIterator for PortSet {
    type Item = PortId;
    type IntoIter = Ports;

    fn into_iter(self) -> Ports {
        self.iter()
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(PortId::number)).finish()
    }
}

/// Iterator over a [`PortSet`].
#[derive(Clone, Debug)]
pub struct Ports(u64);

impl Iterator for Ports {
    type Item = PortId;

    fn next(&mut self) -> Option<PortId> {
        if self.0 == 0 {
            return None;
        }
        let lowest = self.0.trailing_zeros() as u8; // below 64: a bit is set
        self.0 &= self.0 - 1;
        Some(PortId(lowest))
    }
}
