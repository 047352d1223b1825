//! Which cards there are.

/// The vendor.
pub const INTEL: u16 = 0x8086;

/// What a card's port is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Port {
    /// Twisted pair, by the PHY on the chip.
    Copper,
    /// Fibre, a backplane or an SFP cage: links that are brought up by other means.
    Other,
}

/// A card of the family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Model {
    pub name: &'static str,
    pub port: Port,
    /// Whether the driver has been tried with it, or only follows its datasheet.
    pub tried: bool,
}

impl Model {
    /// The model with this PCI device identifier of [`INTEL`]'s (82576 and I350 sec 9, I210 sec 9.4).
    #[must_use]
    pub const fn of(device: u16) -> Option<Model> {
        let (name, port) = match device {
            0x10c9 | 0x10e8 | 0x150a | 0x1526 => ("82576", Port::Copper),
            0x10e6 | 0x10e7 | 0x150d | 0x1518 => ("82576", Port::Other),
            0x1521 => ("I350", Port::Copper),
            0x1522..=0x1524 => ("I350", Port::Other),
            0x1533 | 0x157b => ("I210", Port::Copper),
            0x1536..=0x1538 | 0x157c => ("I210", Port::Other),
            0x1539 => ("I211", Port::Copper),
            _ => return None,
        };
        // The one that QEMU has.
        Some(Model { name, port, tried: device == 0x10c9 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cards_of_servers_are_known_and_others_are_not() {
        for (device, name) in [(0x10c9, "82576"), (0x1533, "I210"), (0x1539, "I211"), (0x1521, "I350")] {
            let model = Model::of(device).unwrap();
            assert_eq!((model.name, model.port), (name, Port::Copper));
        }
        assert_eq!(Model::of(0x1536).unwrap().port, Port::Other);
        // The 82574 (e1000e), the 82576's virtual function, the I225 (igc).
        for other in [0x10d3, 0x10ca, 0x15f2] {
            assert_eq!(Model::of(other), None);
        }
    }

    #[test]
    fn only_what_was_tried_says_so() {
        let tried: Vec<u16> =
            (0..=u16::MAX).filter(|device| Model::of(*device).is_some_and(|model| model.tried)).collect();
        assert_eq!(tried, [0x10c9]);
    }
}
