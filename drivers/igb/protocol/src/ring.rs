//! What both rings have in common.

use core::fmt;

use crate::descriptor;

/// Memory shared with the card: one value at a time, at a checked and aligned offset, never a
/// reference. Little-endian. `load_acquire_u32` keeps later reads behind it.
pub trait RingMemory {
    fn read_u32(&self, offset: usize) -> u32;
    fn write_u64(&self, offset: usize, value: u64);
    fn load_acquire_u32(&self, offset: usize) -> u32;
}

/// How many descriptors a ring has: a power of two from 8 to 4096, so that its bytes are a multiple of
/// 128 (82576 sec 8.10, RDLEN).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingSize(u16);

impl RingSize {
    #[must_use]
    pub const fn new(descriptors: u16) -> Option<RingSize> {
        match descriptors.is_power_of_two() && descriptors >= 8 && descriptors <= 4096 {
            true => Some(RingSize(descriptors)),
            false => None,
        }
    }

    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Bytes of the ring's memory.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0 as usize * descriptor::BYTES
    }

    /// The descriptor that is `count` after `index`.
    pub(crate) const fn after(self, index: u16, count: u16) -> u16 {
        index.wrapping_add(count) & (self.0 - 1)
    }

    /// Descriptors from `from` on to the one before `to`.
    pub(crate) const fn between(self, from: u16, to: u16) -> u16 {
        to.wrapping_sub(from) & (self.0 - 1)
    }
}

/// The card wrote what cannot be true. Whose fault: the card's. From here on the ring is dead until
/// the card has been reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingFault {
    /// A received piece is longer than its buffer.
    Overrun { bytes: u16, room: u16 },
    /// A packet goes on in the next buffer although this one is not full.
    Gap { bytes: u16, room: u16 },
    /// Nothing was sent for too long, with packets to send and a link.
    Stuck { packets: u16 },
}

impl fmt::Display for RingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            RingFault::Overrun { bytes, room } => {
                write!(f, "the card claims {bytes} bytes received into {room}")
            }
            RingFault::Gap { bytes, room } => {
                write!(f, "the card left a buffer with {bytes} of {room} bytes in mid-packet")
            }
            RingFault::Stuck { packets } => write!(f, "the card sends none of {packets} packets"),
        }
    }
}

impl core::error::Error for RingFault {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes() {
        for good in [8, 16, 256, 4096] {
            assert_eq!(RingSize::new(good).unwrap().bytes() % 128, 0);
        }
        for bad in [0, 1, 4, 24, 255, 8192] {
            assert_eq!(RingSize::new(bad), None);
        }
    }

    proptest! {
        #[test]
        fn steps_add_up(log2 in 3_u32..13, from: u16, count: u16) {
            let size = RingSize::new(1 << log2).unwrap();
            let (from, count) = (from % size.get(), count % size.get());
            let to = size.after(from, count);
            prop_assert!(to < size.get());
            prop_assert_eq!(size.between(from, to), count);
        }
    }
}
