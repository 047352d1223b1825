//! Ethernet II framing (IEEE 802.3-2018 section 3.1, with the type field of RFC 894).
//! The frame check sequence never reaches software and is not part of a view.

use core::fmt;

use crate::error::{Layer, Malformed};

/// A 48-bit MAC address (IEEE 802-2014 section 8.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);
    pub const ZERO: MacAddr = MacAddr([0; 6]);

    /// Sent to every station.
    pub const fn is_broadcast(self) -> bool {
        matches!(self.0, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff])
    }

    /// Sent to a group: the I/G bit. True for the broadcast address too.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 0x01 != 0
    }

    /// May stand in a source field and be learned: neither a group nor all zero.
    pub const fn is_station(self) -> bool {
        !self.is_multicast() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl From<[u8; 6]> for MacAddr {
    fn from(bytes: [u8; 6]) -> MacAddr {
        MacAddr(bytes)
    }
}

/// The type field. Below 0x600 it is an 802.3 length instead.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EtherType(pub u16);

impl EtherType {
    pub const IPV4: EtherType = EtherType(0x0800);
    pub const ARP: EtherType = EtherType(0x0806);
    pub const VLAN: EtherType = EtherType(0x8100);
    pub const IPV6: EtherType = EtherType(0x86dd);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            EtherType::IPV4 => f.write_str("IPv4"),
            EtherType::ARP => f.write_str("ARP"),
            EtherType::VLAN => f.write_str("802.1Q"),
            EtherType::IPV6 => f.write_str("IPv6"),
            EtherType(other) => write!(f, "{other:#06x}"),
        }
    }
}

/// A received frame that has a whole Ethernet header.
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<'a> {
    header: &'a [u8; EthernetHeader::LEN],
    payload: &'a [u8],
}

impl<'a> EthernetFrame<'a> {
    /// Checks that `bytes` has a whole header. Runts below 60 bytes are accepted:
    /// padding is the sending hardware's business and virtual links skip it.
    pub fn check(bytes: &'a [u8]) -> Result<EthernetFrame<'a>, Malformed> {
        match bytes.split_first_chunk() {
            Some((header, payload)) => Ok(EthernetFrame { header, payload }),
            None => Err(Malformed::TooShort {
                layer: Layer::Ethernet,
                needs: EthernetHeader::LEN,
                has: bytes.len(),
            }),
        }
    }

    pub fn destination(&self) -> MacAddr {
        let h = self.header;
        MacAddr([h[0], h[1], h[2], h[3], h[4], h[5]])
    }

    pub fn source(&self) -> MacAddr {
        let h = self.header;
        MacAddr([h[6], h[7], h[8], h[9], h[10], h[11]])
    }

    pub fn ethertype(&self) -> EtherType {
        EtherType(u16::from_be_bytes([self.header[12], self.header[13]]))
    }

    /// What follows the header, padding included: the next layer's length field
    /// says where its data ends.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// An Ethernet II header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EthernetHeader {
    pub destination: MacAddr,
    pub source: MacAddr,
    pub ethertype: EtherType,
}

impl EthernetHeader {
    /// Bytes of the header.
    pub const LEN: usize = 14;

    pub fn parse(frame: &EthernetFrame<'_>) -> EthernetHeader {
        EthernetHeader {
            destination: frame.destination(),
            source: frame.source(),
            ethertype: frame.ethertype(),
        }
    }

    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0..6].copy_from_slice(&self.destination.0);
        out[6..12].copy_from_slice(&self.source.0);
        out[12..14].copy_from_slice(&self.ethertype.0.to_be_bytes());
    }
}

/// Gives a frame that is passed on its next hop's addresses; the type field stays.
pub fn set_ethernet_addresses(
    frame: &mut [u8],
    destination: MacAddr,
    source: MacAddr,
) -> Result<(), Malformed> {
    let has = frame.len();
    let Some(header) = frame.first_chunk_mut::<{ EthernetHeader::LEN }>() else {
        return Err(Malformed::TooShort { layer: Layer::Ethernet, needs: EthernetHeader::LEN, has });
    };
    header[0..6].copy_from_slice(&destination.0);
    header[6..12].copy_from_slice(&source.0);
    Ok(())
}
