//! Feature negotiation (VIRTIO sec 2.2): the driver accepts a part of what the device offers.

use core::fmt;

/// A set of feature bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features(pub u64);

impl Features {
    /// The device reads descriptors from tables that a descriptor points to (VIRTIO sec 2.7.5.3).
    pub const INDIRECT_DESCRIPTORS: Features = Features(1 << 28);
    /// Both sides put an index into the rings and want to hear only when it is passed
    /// (VIRTIO sec 2.7.7.1, 2.7.10).
    pub const EVENT_INDEX: Features = Features(1 << 29);
    /// The device follows VIRTIO 1.0 or later. Without it this driver does not speak.
    pub const VERSION_1: Features = Features(1 << 32);
    /// The device reaches memory through an IOMMU that the driver must program. Listed so that
    /// its absence from what is accepted is visibly on purpose: DMA addresses here are physical.
    pub const ACCESS_PLATFORM: Features = Features(1 << 33);

    #[must_use]
    pub const fn with(self, other: Features) -> Features {
        Features(self.0 | other.0)
    }

    #[must_use]
    pub const fn without(self, other: Features) -> Features {
        Features(self.0 & !other.0)
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// What to accept of `self`, which the device offers: all of `required` and what there is of
    /// `wanted`.
    pub fn negotiate(self, required: Features, wanted: Features) -> Result<Features, MissingFeature> {
        let missing = required.0 & !self.0;
        if missing != 0 {
            return Err(MissingFeature { bit: missing.trailing_zeros() });
        }
        Ok(Features(self.0 & (required.0 | wanted.0)))
    }
}

/// The device does not offer a feature that the driver cannot do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingFeature {
    pub bit: u32,
}

impl fmt::Display for MissingFeature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bit {
            32 => f.write_str("the device is older than VIRTIO 1.0 (feature VERSION_1 is missing)"),
            bit => write!(f, "the device lacks feature bit {bit}"),
        }
    }
}

impl core::error::Error for MissingFeature {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_must_be_offered_and_wanted_may_be() {
        let required = Features::VERSION_1;
        let wanted = Features::EVENT_INDEX;
        let offered = Features::VERSION_1.with(Features::ACCESS_PLATFORM);
        assert_eq!(offered.negotiate(required, wanted), Ok(Features::VERSION_1));
        let old = Features::EVENT_INDEX.negotiate(required, wanted);
        assert_eq!(old, Err(MissingFeature { bit: 32 }));
    }
}
