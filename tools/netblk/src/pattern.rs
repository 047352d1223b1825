//! Data that can be recognised: every eight bytes are a function of a seed and of their place on
//! the device, so that data in the wrong place is as visible as data that is wrong.

/// Fills `buffer`, which stands for the device from `offset` on (both whole eights).
pub fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    for (index, word) in buffer.chunks_mut(8).enumerate() {
        let place = offset / 8 + index as u64;
        word.copy_from_slice(&mix(seed ^ mix(place)).to_le_bytes()[..word.len()]);
    }
}

/// The output function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, OOPSLA 2014): a bijection that changes half the bits for any change of input.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of random numbers from a seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `bound` (not zero), every one as likely within 2^-64 of it.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_one_content_however_it_is_cut() {
        let mut whole = [0; 4096];
        fill(7, 512, &mut whole);
        for piece in 0..8 {
            let mut part = [0; 512];
            fill(7, 512 + piece * 512, &mut part);
            assert_eq!(part[..], whole[piece as usize * 512..][..512]);
        }
    }

    #[test]
    fn other_places_and_other_seeds_look_different() {
        let sector = |seed, offset| {
            let mut bytes = [0; 512];
            fill(seed, offset, &mut bytes);
            bytes
        };
        assert_ne!(sector(1, 0), sector(2, 0));
        assert_ne!(sector(1, 0), sector(1, 512));
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| random.below(10) < 10));
    }
}
