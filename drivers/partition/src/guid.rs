//! Globally unique identifiers, as GPT stores them.

use core::fmt;

/// Sixteen bytes in GPT's order: the first three fields little-endian (UEFI appendix A).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Guid(pub [u8; 16]);

impl Guid {
    /// The type of an unused entry.
    pub const ZERO: Guid = Guid([0; 16]);

    /// From the usual way of writing one, read as one number.
    #[must_use]
    pub const fn from_u128(value: u128) -> Self {
        let b = value.to_be_bytes();
        Self([
            b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
            b[15],
        ])
    }

    /// What a partition of this type holds, for the types that are met on servers.
    #[must_use]
    pub fn type_name(&self) -> Option<&'static str> {
        const NAMES: [(Guid, &str); 7] = [
            (Guid::from_u128(0xc12a7328_f81f_11d2_ba4b_00a0c93ec93b), "EFI system"),
            (Guid::from_u128(0x21686148_6449_6e6f_744e_656564454649), "BIOS boot"),
            (Guid::from_u128(0x0fc63daf_8483_4772_8e79_3d69d8477de4), "Linux file system"),
            (Guid::from_u128(0x0657fd6d_a4ab_43c4_84e5_0933c84b4f4f), "Linux swap"),
            (Guid::from_u128(0xe6d6d379_f507_44c2_a23c_238f2a3df928), "Linux LVM"),
            (Guid::from_u128(0xa19d880f_05fc_4d3b_a006_743f0f84911e), "Linux RAID"),
            (Guid::from_u128(0xebd0a0a2_b9e5_4433_87c0_68b6b72699c7), "basic data"),
        ];
        NAMES.iter().find(|(guid, _)| guid == self).map(|(_, name)| *name)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The fields' bytes in the order of writing; see `from_u128`.
        const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        for (place, byte) in ORDER.into_iter().enumerate() {
            if matches!(place, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{:02x}", self.0[byte])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_written_as_it_is_read() {
        let guid = Guid::from_u128(0xc12a7328_f81f_11d2_ba4b_00a0c93ec93b);
        assert_eq!(guid.to_string(), "c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
        assert_eq!(guid.0[..4], [0x28, 0x73, 0x2a, 0xc1]);
        assert_eq!(guid.type_name(), Some("EFI system"));
        assert_eq!(Guid::ZERO.type_name(), None);
    }
}
