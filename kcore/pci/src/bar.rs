//! Base address registers: where a function answers, and how large each window is.
//!
//! A size is found by writing ones and reading back which address bits stick (PCI sec 6.2.5.1),
//! and while the ones are in place the function would answer at the top of the address space. So
//! decoding is off for those few accesses, which is why sizes are read once, during enumeration,
//! before any driver can have the window in use.

use crate::{Address, ConfigSpace, Header, command, register};

/// Base address registers of the largest header.
pub const BARS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarKind {
    Io,
    Memory32,
    Memory64,
}

/// One window. Holding one proves that its size is a power of two, that its address is aligned
/// to it, and that the end does not wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bar {
    pub kind: BarKind,
    /// A port number for [`BarKind::Io`], else a physical address; zero where the firmware
    /// assigned nothing.
    pub address: u64,
    pub bytes: u64,
    pub prefetchable: bool,
}

impl Bar {
    #[must_use]
    pub fn is_assigned(&self) -> bool {
        self.address != 0
    }

    /// Whether `bytes` from `offset` on lie inside.
    #[must_use]
    pub fn contains(&self, offset: u64, bytes: u64) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

/// Reads and sizes all windows of a function. An entry is `None` where no register is
/// implemented, where it is the upper half of the one before, or where its contents contradict
/// themselves.
///
/// Host bridges are left alone: on real chipsets memory behind them, the console's too, stops
/// answering with their decoding, and nobody drives one.
pub fn read_bars(space: &impl ConfigSpace, address: Address, header: &Header) -> [Option<Bar>; BARS] {
    let mut bars = [None; BARS];
    if header.is_host_bridge() {
        return bars;
    }
    let saved_command = space.read16(address, register::COMMAND);
    space.write16(address, register::COMMAND, saved_command & !(command::IO_SPACE | command::MEMORY_SPACE));
    let count = header.bar_count();
    let mut index = 0;
    while index < count {
        let low = probe(space, address, index);
        let is_64_bit = low.original & 0b111 == 0b100;
        let high = (is_64_bit && index + 1 < count).then(|| probe(space, address, index + 1));
        bars[index] = decode(low, high);
        // The upper half is an address, never a register of its own, even if the pair is refused.
        index += if is_64_bit { 2 } else { 1 };
    }
    space.write16(address, register::COMMAND, saved_command);
    bars
}

/// What one register held, and what it read as after all ones were written.
#[derive(Clone, Copy)]
struct Probe {
    original: u32,
    sizing: u32,
}

fn probe(space: &impl ConfigSpace, address: Address, index: usize) -> Probe {
    // index < BARS, so the offset is at most 0x24.
    let offset = register::BAR0 + 4 * index as u16;
    let original = space.read32(address, offset);
    space.write32(address, offset, u32::MAX);
    let sizing = space.read32(address, offset);
    space.write32(address, offset, original);
    Probe { original, sizing }
}

fn decode(low: Probe, high: Option<Probe>) -> Option<Bar> {
    // All ones before and after: the function is gone. Zero afterwards: not implemented.
    if low.original == u32::MAX || low.sizing == 0 {
        return None;
    }
    let (kind, address, mask, prefetchable) = if low.original & 1 != 0 {
        // Upper half of an I/O register may be hardwired to zero: ports are 16 bits wide.
        let mask = u64::from(low.sizing & !0b11) | 0xffff_ffff_ffff_0000;
        (BarKind::Io, u64::from(low.original & !0b11), mask, false)
    } else {
        let prefetchable = low.original & 0b1000 != 0;
        let (address, mask) = (u64::from(low.original & !0xf), u64::from(low.sizing & !0xf));
        match low.original & 0b110 {
            // 01b placed the window below 1 MiB until PCI 2.2; it is a 32-bit address still.
            0b000 | 0b010 => (BarKind::Memory32, address, mask | !u64::from(u32::MAX), prefetchable),
            0b100 => {
                let high = high?;
                (
                    BarKind::Memory64,
                    address | u64::from(high.original) << 32,
                    mask | u64::from(high.sizing) << 32,
                    prefetchable,
                )
            }
            _ => return None,
        }
    };
    // A mask of address bits has ones from some bit upwards, so its negation is the size.
    let bytes = mask.wrapping_neg();
    let sound = bytes.is_power_of_two() && address & (bytes - 1) == 0;
    let fits = address.checked_add(bytes).is_some() && (kind != BarKind::Io || address <= 0xffff);
    (sound && fits).then_some(Bar { kind, address, bytes, prefetchable })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeFunction, FakeSpace};
    use proptest::prelude::*;

    fn at() -> Address {
        Address::new(0, 3, 0).unwrap()
    }

    fn sized(function: FakeFunction) -> ([Option<Bar>; BARS], FakeSpace) {
        let space = FakeSpace::new().with(at(), function);
        let header = Header::read(&space, at()).unwrap();
        (read_bars(&space, at(), &header), space)
    }

    #[test]
    fn the_three_kinds_are_read_and_restored() {
        let function = FakeFunction::endpoint(0x1b36, 0x0010)
            .with_command(command::MEMORY_SPACE | command::IO_SPACE)
            .with_bar(0, 0xfebf_0004, 0xffff_c004)
            .with_bar(1, 0x0000_0038, 0xffff_ffff)
            .with_bar(2, 0x0000_c041, 0x0000_ffe1)
            .with_bar(3, 0xfebd_0008, 0xffff_f008);
        let (bars, space) = sized(function.clone());
        let memory64 =
            Bar { kind: BarKind::Memory64, address: 0x38_febf_0000, bytes: 0x4000, prefetchable: false };
        assert_eq!(bars[0], Some(memory64));
        assert_eq!(bars[1], None);
        let io = Bar { kind: BarKind::Io, address: 0xc040, bytes: 32, prefetchable: false };
        assert_eq!(bars[2], Some(io));
        let memory32 =
            Bar { kind: BarKind::Memory32, address: 0xfebd_0000, bytes: 0x1000, prefetchable: true };
        assert_eq!(bars[3], Some(memory32));
        assert_eq!(bars[4..], [None; 2]);
        for offset in (0..0x40).step_by(4) {
            assert_eq!(space.read32(at(), offset), function.dword(offset), "{offset:#x}");
        }
        assert!(space.was_sized_with_decoding_off(at()));
    }

    #[test]
    fn a_host_bridge_is_not_sized() {
        let function = FakeFunction::endpoint(0x8086, 0x1237).with_class(0x06, 0x00, 0).with_bar(
            0,
            0xfebf_0000,
            0xffff_f000,
        );
        let (bars, space) = sized(function);
        assert_eq!(bars, [None; BARS]);
        assert_eq!(space.writes(), 0);
    }

    #[test]
    fn a_64_bit_register_in_the_last_place_is_refused() {
        let (bars, _) = sized(FakeFunction::endpoint(1, 1).with_bar(5, 0xfebf_0004, 0xffff_c004));
        assert_eq!(bars[5], None);
    }

    proptest! {
        #[test]
        fn whatever_the_registers_say_a_window_is_sound(
            values: [u32; 6], masks: [u32; 6], bridge: bool,
        ) {
            let mut function = FakeFunction::endpoint(1, 1);
            if bridge {
                function = FakeFunction::bridge(1, 1, 1);
            }
            let count = if bridge { 2 } else { 6 };
            for index in 0..count {
                function = function.with_bar(index, values[index], masks[index]);
            }
            let (bars, _) = sized(function);
            for bar in bars.into_iter().flatten() {
                prop_assert!(bar.bytes.is_power_of_two());
                prop_assert_eq!(bar.address % bar.bytes, 0);
                prop_assert!(bar.address.checked_add(bar.bytes).is_some());
            }
        }
    }
}
