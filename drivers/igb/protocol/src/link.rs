//! What the status register says of the link.

use core::fmt;

use crate::register::status;

/// How fast the link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speed {
    Mbit10,
    Mbit100,
    Mbit1000,
}

/// The link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    Down,
    Up {
        speed: Speed,
        full_duplex: bool,
    },
    /// The register reads as ones: nobody answers there any more.
    Gone,
}

impl Link {
    /// What a value of the status register says (82576 sec 8.2, STATUS).
    #[must_use]
    pub fn of(value: u32) -> Link {
        if value == u32::MAX {
            return Link::Gone;
        }
        if value & status::LINK_UP == 0 {
            return Link::Down;
        }
        let speed = match (value & status::SPEED) >> status::SPEED_SHIFT {
            0b00 => Speed::Mbit10,
            0b01 => Speed::Mbit100,
            // Both other codes are 1000 Mb/s.
            _ => Speed::Mbit1000,
        };
        Link::Up { speed, full_duplex: value & status::FULL_DUPLEX != 0 }
    }

    #[must_use]
    pub fn is_up(self) -> bool {
        matches!(self, Link::Up { .. })
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (speed, full_duplex) = match *self {
            Link::Down => return f.write_str("down"),
            Link::Gone => return f.write_str("gone"),
            Link::Up { speed, full_duplex } => (speed, full_duplex),
        };
        let mbit = match speed {
            Speed::Mbit10 => 10,
            Speed::Mbit100 => 100,
            Speed::Mbit1000 => 1000,
        };
        write!(f, "up, {mbit} Mb/s{}", if full_duplex { "" } else { ", half duplex" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_read() {
        assert_eq!(Link::of(0x8000_0281), Link::Down);
        assert_eq!(Link::of(0b1000_0011).to_string(), "up, 1000 Mb/s");
        assert_eq!(Link::of(0b1100_0011).to_string(), "up, 1000 Mb/s");
        assert_eq!(Link::of(0b0100_0011).to_string(), "up, 100 Mb/s");
        assert_eq!(Link::of(0b0000_0010).to_string(), "up, 10 Mb/s, half duplex");
        assert!(Link::of(0b10).is_up() && !Link::of(0).is_up());
    }

    #[test]
    fn a_card_that_is_gone_has_no_link() {
        assert_eq!(Link::of(u32::MAX), Link::Gone);
        assert!(!Link::Gone.is_up());
    }
}
