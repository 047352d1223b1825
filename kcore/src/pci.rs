//! PCI (being written).
