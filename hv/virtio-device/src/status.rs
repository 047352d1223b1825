//! The device status register and what a driver may do to it (VIRTIO 1.2 sections 2.1 and 3.1.1).
//!
//! ```text
//!   0 --ACKNOWLEDGE--> . --DRIVER--> . --FEATURES_OK--> . --DRIVER_OK--> live
//!   ^                                      (refused while the features do not fit)
//!   |                                                             |  queue fault
//!   +------- 0 is written, from every state: reset ------- DEVICE_NEEDS_RESET, or
//!                                                          FAILED when the driver gives up
//! ```
//!
//! Bits only ever accumulate until the reset: a driver must not clear one (2.1.1), so a write
//! that leaves one out does not clear it either.

use core::fmt;

/// The bits of the status register, by the specification's names.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Status(u8);

impl Status {
    pub const RESET: Self = Self(0);
    pub const ACKNOWLEDGE: Self = Self(1);
    pub const DRIVER: Self = Self(2);
    pub const DRIVER_OK: Self = Self(4);
    pub const FEATURES_OK: Self = Self(8);
    pub const DEVICE_NEEDS_RESET: Self = Self(64);
    pub const FAILED: Self = Self(128);

    pub const fn bits(self) -> u8 {
        self.0
    }

    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether the device may touch its queues (2.1.2): started, and neither side gave up.
    pub const fn is_live(self) -> bool {
        self.has(Self::DRIVER_OK) && !self.intersects(Self(Self::DEVICE_NEEDS_RESET.0 | Self::FAILED.0))
    }

    /// The status after the driver wrote the non-zero `value`. A step out of order is not taken:
    /// the driver reads back that the bit is missing, as 3.1.1 has it check FEATURES_OK.
    pub(crate) fn after_write(self, value: u8, features_fit: bool) -> Self {
        let wanted = Self(value);
        let mut next = self;
        for bit in [Self::ACKNOWLEDGE, Self::DRIVER, Self::FAILED] {
            if wanted.has(bit) {
                next = next.with(bit);
            }
        }
        let known = next.has(Self(Self::ACKNOWLEDGE.0 | Self::DRIVER.0));
        if wanted.has(Self::FEATURES_OK) && known && features_fit {
            next = next.with(Self::FEATURES_OK);
        }
        if wanted.has(Self::DRIVER_OK) && next.has(Self::FEATURES_OK) {
            next = next.with(Self::DRIVER_OK);
        }
        next
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::ACKNOWLEDGE, "ACKNOWLEDGE"),
            (Self::DRIVER, "DRIVER"),
            (Self::FEATURES_OK, "FEATURES_OK"),
            (Self::DRIVER_OK, "DRIVER_OK"),
            (Self::DEVICE_NEEDS_RESET, "DEVICE_NEEDS_RESET"),
            (Self::FAILED, "FAILED"),
        ];
        let mut set = f.debug_set();
        for (bit, name) in names {
            if self.has(bit) {
                set.entry(&format_args!("{name}"));
            }
        }
        set.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every status the device can be in against every byte a driver can write.
    #[test]
    fn every_transition_keeps_the_order_of_initialization() {
        for before in 0..=u8::MAX {
            let before = Status(before);
            let ordered = |s: Status| {
                (!s.has(Status::DRIVER_OK) || s.has(Status::FEATURES_OK))
                    && (!s.has(Status::FEATURES_OK) || s.bits() & 3 == 3)
            };
            if !ordered(before) {
                continue; // not reachable: the property below is the induction step
            }
            for value in 1..=u8::MAX {
                for fit in [false, true] {
                    let after = before.after_write(value, fit);
                    assert!(ordered(after), "{before:?} --{value:#x}--> {after:?}");
                    assert!(after.has(before), "a write cleared a bit");
                    let gained = after.bits() & !before.bits();
                    assert_eq!(gained & !value, 0, "a bit came that was not written");
                    assert_eq!(gained & 0x70, 0, "the driver set a bit that is not its own");
                    assert!(fit || gained & Status::FEATURES_OK.bits() == 0);
                }
            }
        }
    }
}
