//! The capability list: a chain of offsets inside the function's own space.
//!
//! The chain is the device's to write, so nothing about it is believed: a pointer into the header
//! ends it, and so does one that was followed before, which bounds every walk by the 48 places
//! where a capability can start.

use crate::{Address, ConfigSpace, Header, HeaderKind, register, status};

/// Capability identifiers (PCI appendix H).
pub mod id {
    pub const POWER_MANAGEMENT: u8 = 0x01;
    pub const MSI: u8 = 0x05;
    pub const VENDOR_SPECIFIC: u8 = 0x09;
    pub const PCI_EXPRESS: u8 = 0x10;
    pub const MSI_X: u8 = 0x11;
}

/// One element. Its offset is a dword inside the device-specific part of the first 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    pub id: u8,
    pub offset: u16,
}

/// Walks the list of one function. Reads the device as it goes.
pub struct Capabilities<'a, Space> {
    space: &'a Space,
    address: Address,
    next: u8,
    /// One bit for each of the 64 dwords of the first 256 bytes.
    seen: u64,
}

impl<'a, Space: ConfigSpace> Capabilities<'a, Space> {
    pub fn new(space: &'a Space, address: Address, header: &Header) -> Self {
        let has_list = space.read16(address, register::STATUS) & status::CAPABILITIES != 0;
        let next = match header.kind {
            HeaderKind::Endpoint | HeaderKind::Bridge if has_list => {
                space.read8(address, register::CAPABILITIES_POINTER)
            }
            _ => 0,
        };
        Self { space, address, next, seen: 0 }
    }
}

impl<Space: ConfigSpace> Iterator for Capabilities<'_, Space> {
    type Item = Capability;

    fn next(&mut self) -> Option<Capability> {
        // The low two bits are reserved and must be masked (PCI sec 6.7).
        let offset = u16::from(self.next & !0b11);
        let place = 1_u64 << (offset / 4);
        if offset < register::DEVICE_SPECIFIC || self.seen & place != 0 {
            return None;
        }
        self.seen |= place;
        let [id, next] = self.space.read16(self.address, offset).to_le_bytes();
        if id == 0xff {
            self.next = 0;
            return None;
        }
        self.next = next;
        Some(Capability { id, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeFunction, FakeSpace};
    use proptest::prelude::*;

    fn walk(function: FakeFunction) -> Vec<Capability> {
        let at = Address::new(0, 3, 0).unwrap();
        let space = FakeSpace::new().with(at, function);
        let header = Header::read(&space, at).unwrap();
        Capabilities::new(&space, at, &header).collect()
    }

    #[test]
    fn a_list_is_walked_in_its_order() {
        let function = FakeFunction::endpoint(1, 1)
            .with_capability(0x98, id::MSI_X, &[0; 10])
            .with_capability(0x40, id::VENDOR_SPECIFIC, &[0; 14]);
        let found = walk(function);
        assert_eq!(
            found,
            [
                Capability { id: id::MSI_X, offset: 0x98 },
                Capability { id: id::VENDOR_SPECIFIC, offset: 0x40 },
            ]
        );
    }

    #[test]
    fn a_list_that_bites_its_tail_ends() {
        let function = FakeFunction::endpoint(1, 1)
            .with_capability(0x40, 1, &[])
            .with_capability(0x50, 5, &[])
            .with_byte(0x51, 0x40);
        assert_eq!(walk(function).len(), 2);
    }

    #[test]
    fn a_pointer_into_the_header_ends_the_list() {
        let function = FakeFunction::endpoint(1, 1).with_capability(0x40, 1, &[]).with_byte(0x41, 0x10);
        assert_eq!(walk(function).len(), 1);
    }

    proptest! {
        #[test]
        fn any_space_ends_the_walk(bytes in proptest::collection::vec(any::<u8>(), 0xc0), first: u8) {
            let mut function = FakeFunction::endpoint(1, 1).with_capability(0x40, 1, &[]);
            for (place, byte) in bytes.iter().enumerate() {
                function = function.with_byte(0x40 + place as u16, *byte);
            }
            function = function.with_byte(register::CAPABILITIES_POINTER, first);
            let found = walk(function);
            prop_assert!(found.len() <= 48);
            prop_assert!(found.iter().all(|capability| (0x40..=0xfc).contains(&capability.offset)));
        }
    }
}
