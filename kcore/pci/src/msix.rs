//! The MSI-X capability: how many vectors, and in which window their table lies.

use core::fmt;

use crate::{Address, BARS, Bar, BarKind, Capability, ConfigSpace, id};

/// Bits of the message control word, at offset 2 of the capability (PCI sec 6.8.2.3).
pub mod control {
    pub const OFFSET: u16 = 2;
    pub const TABLE_SIZE: u16 = 0x7ff;
    pub const FUNCTION_MASK: u16 = 1 << 14;
    pub const ENABLE: u16 = 1 << 15;
}

/// Layout of one table entry (PCI sec 6.8.2.6 to 6.8.2.9).
pub mod entry {
    pub const BYTES: u64 = 16;
    pub const ADDRESS_LOW: usize = 0;
    pub const ADDRESS_HIGH: usize = 4;
    pub const DATA: usize = 8;
    pub const VECTOR_CONTROL: usize = 12;
    pub const MASKED: u32 = 1;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableLocation {
    pub bar: u8,
    pub offset: u64,
}

/// A checked MSI-X capability: its table lies wholly inside an assigned memory window of the
/// function. (The pending bits are the device's own; nothing here reads them.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MsixCapability {
    /// Offset of the capability in configuration space.
    pub offset: u16,
    /// 1 to 2048.
    pub entries: u16,
    pub table: TableLocation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MsixError {
    /// The function has no such capability.
    Absent,
    /// The table's window is missing, not memory, not assigned, or too small.
    TableOutsideBar { bar: u8 },
}

impl fmt::Display for MsixError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => write!(out, "the device has no MSI-X capability"),
            Self::TableOutsideBar { bar } => {
                write!(out, "the MSI-X table does not lie in the device's memory window {bar}")
            }
        }
    }
}

impl MsixCapability {
    /// Finds and checks the capability of a function with these windows.
    pub fn read(
        space: &impl ConfigSpace,
        address: Address,
        mut capabilities: impl Iterator<Item = Capability>,
        bars: &[Option<Bar>; BARS],
    ) -> Result<Self, MsixError> {
        let found = capabilities.find(|capability| capability.id == id::MSI_X);
        let offset = found.ok_or(MsixError::Absent)?.offset;
        // The highest offset of a capability is 0xfc, so neither sum leaves the 4 KiB space. What
        // a truncated capability reads beyond 256 bytes is checked like everything else.
        let message_control = space.read16(address, offset + control::OFFSET);
        let place = space.read32(address, offset + 4);
        let entries = (message_control & control::TABLE_SIZE) + 1;
        // The low three bits name the window (PCI sec 6.8.2.4).
        let bar = (place & 0b111) as u8;
        let table = TableLocation { bar, offset: u64::from(place & !0b111) };
        let fits = bars.get(usize::from(bar)).copied().flatten().is_some_and(|window| {
            window.kind != BarKind::Io
                && window.is_assigned()
                && window.contains(table.offset, u64::from(entries) * entry::BYTES)
        });
        if fits { Ok(Self { offset, entries, table }) } else { Err(MsixError::TableOutsideBar { bar }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeFunction, FakeSpace};
    use crate::{Capabilities, Header, read_bars};
    use proptest::prelude::*;

    fn read(function: FakeFunction) -> Result<MsixCapability, MsixError> {
        let at = Address::new(0, 3, 0).unwrap();
        let space = FakeSpace::new().with(at, function);
        let header = Header::read(&space, at).unwrap();
        let bars = read_bars(&space, at, &header);
        MsixCapability::read(&space, at, Capabilities::new(&space, at, &header), &bars)
    }

    fn with_table(message_control: u16, place: u32) -> FakeFunction {
        let mut body = message_control.to_le_bytes().to_vec();
        body.extend(place.to_le_bytes());
        FakeFunction::endpoint(1, 1)
            .with_bar(0, 0xfebf_0000, 0xffff_c000)
            .with_bar(1, 0xc041, 0xffe1)
            .with_bar(2, 0, 0xffff_c000)
            .with_capability(0x40, id::MSI_X, &body)
    }

    #[test]
    fn a_table_inside_its_window_is_found() {
        let table = TableLocation { bar: 0, offset: 0x2000 };
        assert_eq!(read(with_table(64, 0x2000)), Ok(MsixCapability { offset: 0x40, entries: 65, table }));
    }

    #[test]
    fn a_table_that_leaves_its_window_is_refused() {
        // 0x4000 bytes hold 1024 entries; the last one must end inside.
        assert!(read(with_table(1023, 0)).is_ok());
        assert_eq!(read(with_table(1024, 0)), Err(MsixError::TableOutsideBar { bar: 0 }));
        assert_eq!(read(with_table(0, 0x4000)), Err(MsixError::TableOutsideBar { bar: 0 }));
    }

    #[test]
    fn a_table_in_ports_or_nowhere_is_refused() {
        for bar in 1..=7 {
            let refused = Err(MsixError::TableOutsideBar { bar });
            assert_eq!(read(with_table(0, u32::from(bar))), refused);
        }
    }

    #[test]
    fn a_function_without_it_says_so() {
        assert_eq!(read(FakeFunction::endpoint(1, 1)), Err(MsixError::Absent));
    }

    proptest! {
        #[test]
        fn a_table_never_leaves_its_window(message_control: u16, place: u32) {
            if let Ok(found) = read(with_table(message_control, place)) {
                prop_assert_eq!(found.table.bar, 0);
                prop_assert!(found.table.offset + 16 * u64::from(found.entries) <= 0x4000);
            }
        }
    }
}
