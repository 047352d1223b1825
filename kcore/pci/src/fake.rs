//! Configuration spaces made of bytes, for the tests of this crate and of its users.

use alloc::collections::BTreeMap;
use core::cell::{Cell, RefCell};

use crate::{Address, ConfigSpace, command, register, status};

const BYTES: usize = 256;

/// One function: 256 bytes, and which bits of its base address registers can be written.
#[derive(Clone)]
pub struct FakeFunction {
    bytes: [u8; BYTES],
    bar_masks: [u32; 6],
    /// Where the next capability is linked in.
    last_pointer: u16,
}

impl FakeFunction {
    #[must_use]
    pub fn endpoint(vendor: u16, device: u16) -> Self {
        let mut bytes = [0; BYTES];
        bytes[0..2].copy_from_slice(&vendor.to_le_bytes());
        bytes[2..4].copy_from_slice(&device.to_le_bytes());
        Self { bytes, bar_masks: [0; 6], last_pointer: register::CAPABILITIES_POINTER }
    }

    #[must_use]
    pub fn bridge(vendor: u16, device: u16, secondary_bus: u8) -> Self {
        Self::endpoint(vendor, device)
            .with_class(0x06, 0x04, 0)
            .with_byte(register::HEADER_TYPE, 1)
            .with_byte(register::SECONDARY_BUS, secondary_bus)
    }

    #[must_use]
    pub fn multi_function(mut self) -> Self {
        self.bytes[usize::from(register::HEADER_TYPE)] |= 0x80;
        self
    }

    #[must_use]
    pub fn with_class(self, class: u8, subclass: u8, prog_if: u8) -> Self {
        self.with_byte(0x0b, class).with_byte(0x0a, subclass).with_byte(0x09, prog_if)
    }

    #[must_use]
    pub fn with_command(self, bits: u16) -> Self {
        let [low, high] = bits.to_le_bytes();
        self.with_byte(register::COMMAND, low).with_byte(register::COMMAND + 1, high)
    }

    /// `value` is the register as the firmware left it, `sizing` what it reads as once all ones
    /// were written.
    #[must_use]
    pub fn with_bar(mut self, index: usize, value: u32, sizing: u32) -> Self {
        let offset = usize::from(register::BAR0) + 4 * index;
        self.bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        self.bar_masks[index] = sizing;
        self
    }

    /// Appends a capability; `body` starts behind the two bytes of its header.
    #[must_use]
    pub fn with_capability(mut self, offset: u16, id: u8, body: &[u8]) -> Self {
        let place = usize::from(offset);
        self.bytes[usize::from(register::STATUS)] |= status::CAPABILITIES as u8;
        self.bytes[usize::from(self.last_pointer)] = offset as u8;
        self.bytes[place] = id;
        self.bytes[place + 1] = 0;
        self.bytes[place + 2..place + 2 + body.len()].copy_from_slice(body);
        self.last_pointer = offset + 1;
        self
    }

    #[must_use]
    pub fn with_byte(mut self, offset: u16, value: u8) -> Self {
        self.bytes[usize::from(offset)] = value;
        self
    }

    #[must_use]
    pub fn dword(&self, offset: u16) -> u32 {
        let place = usize::from(offset);
        self.bytes
            .get(place..place + 4)
            .map_or(u32::MAX, |bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn write(&mut self, offset: u16, value: &[u8]) {
        let place = usize::from(offset);
        let bar = (place.wrapping_sub(usize::from(register::BAR0))) / 4;
        if bar < self.bar_masks.len() && value == [0xff; 4] {
            let sizing = self.bar_masks[bar];
            self.bytes[place..place + 4].copy_from_slice(&sizing.to_le_bytes());
        } else if let Some(bytes) = self.bytes.get_mut(place..place + value.len()) {
            bytes.copy_from_slice(value);
        }
    }
}

/// A machine's functions. Reads of anything else are all ones.
#[derive(Default)]
pub struct FakeSpace {
    functions: RefCell<BTreeMap<Address, FakeFunction>>,
    writes: Cell<usize>,
    sized_while_decoding: RefCell<BTreeMap<Address, bool>>,
}

impl FakeSpace {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn with(self, address: Address, function: FakeFunction) -> Self {
        self.functions.borrow_mut().insert(address, function);
        self
    }

    #[must_use]
    pub fn writes(&self) -> usize {
        self.writes.get()
    }

    /// Whether all ones were written to a base address register, and never while the function
    /// would have answered at that address.
    #[must_use]
    pub fn was_sized_with_decoding_off(&self, address: Address) -> bool {
        self.sized_while_decoding.borrow().get(&address) == Some(&false)
    }

    fn read<const N: usize>(&self, address: Address, offset: u16) -> [u8; N] {
        let functions = self.functions.borrow();
        let bytes = functions.get(&address).map(|function| &function.bytes[..]);
        let place = usize::from(offset);
        bytes
            .and_then(|bytes| bytes.get(place..place + N))
            .and_then(|bytes| bytes.try_into().ok())
            .unwrap_or([0xff; N])
    }

    fn write(&self, address: Address, offset: u16, value: &[u8]) {
        self.writes.set(self.writes.get() + 1);
        let mut functions = self.functions.borrow_mut();
        let Some(function) = functions.get_mut(&address) else { return };
        if value == [0xff; 4] {
            let decoding = command::IO_SPACE | command::MEMORY_SPACE;
            let decodes = function.dword(register::COMMAND) & u32::from(decoding) != 0;
            *self.sized_while_decoding.borrow_mut().entry(address).or_default() |= decodes;
        }
        function.write(offset, value);
    }
}

impl ConfigSpace for FakeSpace {
    fn read8(&self, address: Address, offset: u16) -> u8 {
        u8::from_le_bytes(self.read(address, offset))
    }

    fn read16(&self, address: Address, offset: u16) -> u16 {
        u16::from_le_bytes(self.read(address, offset))
    }

    fn read32(&self, address: Address, offset: u16) -> u32 {
        u32::from_le_bytes(self.read(address, offset))
    }

    fn write8(&self, address: Address, offset: u16, value: u8) {
        self.write(address, offset, &value.to_le_bytes());
    }

    fn write16(&self, address: Address, offset: u16, value: u16) {
        self.write(address, offset, &value.to_le_bytes());
    }

    fn write32(&self, address: Address, offset: u16, value: u32) {
        self.write(address, offset, &value.to_le_bytes());
    }
}
