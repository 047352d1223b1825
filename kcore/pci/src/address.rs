//! Where a function sits: bus, device, function.

use core::fmt;

/// The address of one function in segment 0. Holding one proves that device and function are in
/// range, so an offset computed from it stays inside the configuration window of its bus.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    bus: u8,
    device_function: u8,
}

impl Address {
    /// Devices on one bus (PCI sec 3.2.2.3.2: five bits).
    pub const DEVICES: u8 = 32;
    /// Functions of one device (three bits).
    pub const FUNCTIONS: u8 = 8;

    /// `None` where `device` or `function` cannot exist.
    #[must_use]
    pub const fn new(bus: u8, device: u8, function: u8) -> Option<Self> {
        if device < Self::DEVICES && function < Self::FUNCTIONS {
            Some(Self { bus, device_function: device << 3 | function })
        } else {
            None
        }
    }

    #[must_use]
    pub const fn bus(self) -> u8 {
        self.bus
    }

    #[must_use]
    pub const fn device(self) -> u8 {
        self.device_function >> 3
    }

    #[must_use]
    pub const fn function(self) -> u8 {
        self.device_function & 7
    }

    /// Bits 15:0 of the routing identifier (PCIe sec 2.2.4.2), which both configuration
    /// mechanisms put into the access: bus 15:8, device 7:3, function 2:0.
    #[must_use]
    pub const fn routing_id(self) -> u16 {
        (self.bus as u16) << 8 | self.device_function as u16
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:02x}:{:02x}.{}", self.bus, self.device(), self.function())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_lspci_writes_it() {
        let address = Address::new(0x3a, 0x1f, 7).unwrap();
        assert_eq!(address.to_string(), "3a:1f.7");
        assert_eq!(address.routing_id(), 0x3aff);
        assert_eq!((address.bus(), address.device(), address.function()), (0x3a, 0x1f, 7));
    }

    #[test]
    fn impossible_addresses_are_refused() {
        assert_eq!(Address::new(0, 32, 0), None);
        assert_eq!(Address::new(0, 0, 8), None);
    }
}
