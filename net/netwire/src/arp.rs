//! ARP for Ethernet and IPv4 (RFC 826).

use core::net::Ipv4Addr;

use crate::error::{Layer, Malformed};
use crate::ethernet::{EtherType, MacAddr};

const HARDWARE_ETHERNET: u16 = 1;

/// What an ARP packet asks or says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ArpOperation {
    Request,
    Reply,
}

impl TryFrom<u16> for ArpOperation {
    type Error = Malformed;

    fn try_from(value: u16) -> Result<ArpOperation, Malformed> {
        match value {
            1 => Ok(ArpOperation::Request),
            2 => Ok(ArpOperation::Reply),
            found => Err(Malformed::ArpOperation { found }),
        }
    }
}

impl From<ArpOperation> for u16 {
    fn from(operation: ArpOperation) -> u16 {
        match operation {
            ArpOperation::Request => 1,
            ArpOperation::Reply => 2,
        }
    }
}

/// A whole ARP packet for Ethernet and IPv4 with a known operation.
#[derive(Clone, Copy, Debug)]
pub struct ArpPacket<'a> {
    bytes: &'a [u8; ArpMessage::LEN],
    operation: ArpOperation,
}

impl<'a> ArpPacket<'a> {
    /// Checks an Ethernet frame's payload; padding behind the packet is ignored.
    pub fn check(bytes: &'a [u8]) -> Result<ArpPacket<'a>, Malformed> {
        let Some(packet) = bytes.first_chunk::<{ ArpMessage::LEN }>() else {
            return Err(Malformed::TooShort { layer: Layer::Arp, needs: ArpMessage::LEN, has: bytes.len() });
        };
        let hardware = u16::from_be_bytes([packet[0], packet[1]]);
        let protocol = u16::from_be_bytes([packet[2], packet[3]]);
        let (hardware_bytes, protocol_bytes) = (packet[4], packet[5]);
        if (hardware, protocol, hardware_bytes, protocol_bytes)
            != (HARDWARE_ETHERNET, EtherType::IPV4.0, 6, 4)
        {
            return Err(Malformed::ArpFamily { hardware, protocol, hardware_bytes, protocol_bytes });
        }
        let operation = ArpOperation::try_from(u16::from_be_bytes([packet[6], packet[7]]))?;
        Ok(ArpPacket { bytes: packet, operation })
    }

    pub fn operation(&self) -> ArpOperation {
        self.operation
    }

    pub fn sender_mac(&self) -> MacAddr {
        let b = self.bytes;
        MacAddr([b[8], b[9], b[10], b[11], b[12], b[13]])
    }

    pub fn sender_ip(&self) -> Ipv4Addr {
        let b = self.bytes;
        Ipv4Addr::new(b[14], b[15], b[16], b[17])
    }

    pub fn target_mac(&self) -> MacAddr {
        let b = self.bytes;
        MacAddr([b[18], b[19], b[20], b[21], b[22], b[23]])
    }

    pub fn target_ip(&self) -> Ipv4Addr {
        let b = self.bytes;
        Ipv4Addr::new(b[24], b[25], b[26], b[27])
    }
}

/// An ARP request or reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArpMessage {
    pub operation: ArpOperation,
    pub sender_mac: MacAddr,
    pub sender_ip: Ipv4Addr,
    pub target_mac: MacAddr,
    pub target_ip: Ipv4Addr,
}

impl ArpMessage {
    /// Bytes of the packet behind the Ethernet header.
    pub const LEN: usize = 28;

    pub fn parse(packet: &ArpPacket<'_>) -> ArpMessage {
        ArpMessage {
            operation: packet.operation(),
            sender_mac: packet.sender_mac(),
            sender_ip: packet.sender_ip(),
            target_mac: packet.target_mac(),
            target_ip: packet.target_ip(),
        }
    }

    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0..2].copy_from_slice(&HARDWARE_ETHERNET.to_be_bytes());
        out[2..4].copy_from_slice(&EtherType::IPV4.0.to_be_bytes());
        out[4] = 6;
        out[5] = 4;
        out[6..8].copy_from_slice(&u16::from(self.operation).to_be_bytes());
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target_ip.octets());
    }
}
