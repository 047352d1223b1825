//! UDP (RFC 768), and the three headers of a datagram in one piece.

use core::net::{Ipv4Addr, SocketAddrV4};

use crate::checksum::Accumulator;
use crate::error::{Layer, Malformed, PayloadTooLong};
use crate::ethernet::{EtherType, EthernetHeader, MacAddr};
use crate::ipv4::{IpProtocol, Ipv4Header};

/// A datagram whose length field lies between its header and the bytes there are.
#[derive(Clone, Copy, Debug)]
pub struct UdpDatagram<'a> {
    header: &'a [u8; UdpHeader::LEN],
    payload: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Checks an IPv4 packet's payload. Bytes behind the length field are not part
    /// of the view.
    pub fn check(bytes: &'a [u8]) -> Result<UdpDatagram<'a>, Malformed> {
        UdpDatagram::check_first_piece(bytes, 0)
    }

    /// Checks the first piece of a datagram of which `behind_bytes` more lie elsewhere. The header
    /// must lie in the piece. [`UdpDatagram::payload`] is then what the piece has of the payload;
    /// [`UdpDatagram::payload_bytes`] is the whole one's, and at most what there is.
    pub fn check_first_piece(bytes: &'a [u8], behind_bytes: usize) -> Result<UdpDatagram<'a>, Malformed> {
        let has = bytes.len() + behind_bytes;
        let Some((header, rest)) = bytes.split_first_chunk::<{ UdpHeader::LEN }>() else {
            return Err(Malformed::TooShort { layer: Layer::Udp, needs: UdpHeader::LEN, has });
        };
        let claims = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let Some(payload_bytes) = claims.checked_sub(UdpHeader::LEN) else {
            return Err(Malformed::LengthBelowHeader { layer: Layer::Udp, claims, header: UdpHeader::LEN });
        };
        if claims > has {
            return Err(Malformed::LengthBeyondData { layer: Layer::Udp, claims, has });
        }
        let payload = &rest[..payload_bytes.min(rest.len())];
        Ok(UdpDatagram { header, payload })
    }

    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    /// The field as sent: 0 means "not computed".
    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[6], self.header[7]])
    }

    fn length(&self) -> u16 {
        u16::from_be_bytes([self.header[4], self.header[5]])
    }

    /// The payload; of a datagram in pieces, what the first has of it.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Length of the payload, as the header says.
    pub fn payload_bytes(&self) -> usize {
        // Checked to be no less than a header.
        usize::from(self.length()).saturating_sub(UdpHeader::LEN)
    }

    /// Whether the checksum holds or was not computed. Reads the whole payload.
    pub fn verify_checksum(&self, source: Ipv4Addr, destination: Ipv4Addr) -> bool {
        self.verify_checksum_with(core::iter::empty(), source, destination)
    }

    /// As [`UdpDatagram::verify_checksum`], of a datagram whose further pieces are `behind`. A
    /// datagram of which a piece before the last ends at an odd place is none whose checksum holds.
    pub fn verify_checksum_with<'b>(
        &self,
        behind: impl IntoIterator<Item = &'b [u8]>,
        source: Ipv4Addr,
        destination: Ipv4Addr,
    ) -> bool {
        if self.checksum() == 0 {
            return true;
        }
        let mut sum = Accumulator::new()
            .add_pseudo_header(source, destination, IpProtocol::UDP.0, self.length())
            .add_bytes(self.header)
            .add_bytes(self.payload);
        let mut last_bytes = self.payload.len();
        for piece in behind {
            if !last_bytes.is_multiple_of(2) {
                return false;
            }
            sum = sum.add_bytes(piece);
            last_bytes = piece.len();
        }
        sum.sum() == 0xffff
    }
}

/// A UDP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpHeader {
    pub source_port: u16,
    pub destination_port: u16,
    /// Private, so that header and payload always fit the length field.
    payload_bytes: u16,
}

impl UdpHeader {
    /// Bytes of the header.
    pub const LEN: usize = 8;
    /// The longest payload inside one IPv4 packet.
    pub const PAYLOAD_LIMIT: usize = Ipv4Header::PAYLOAD_LIMIT - Self::LEN;

    pub fn new(
        source_port: u16,
        destination_port: u16,
        payload_bytes: usize,
    ) -> Result<UdpHeader, PayloadTooLong> {
        match u16::try_from(payload_bytes) {
            Ok(fits) if payload_bytes <= Self::PAYLOAD_LIMIT => {
                Ok(UdpHeader { source_port, destination_port, payload_bytes: fits })
            }
            _ => Err(PayloadTooLong { layer: Layer::Udp, payload_bytes, limit_bytes: Self::PAYLOAD_LIMIT }),
        }
    }

    /// `None` for a payload that no IPv4 packet can carry.
    pub fn parse(datagram: &UdpDatagram<'_>) -> Option<UdpHeader> {
        UdpHeader::new(datagram.source_port(), datagram.destination_port(), datagram.payload().len()).ok()
    }

    pub fn payload_bytes(&self) -> usize {
        usize::from(self.payload_bytes)
    }

    /// Writes the header with checksum 0, "not computed": legal over IPv4, and the
    /// only value that needs no look at the payload.
    pub fn emit(&self, out: &mut [u8; Self::LEN]) {
        out[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[4..6].copy_from_slice(&(self.payload_bytes + Self::LEN as u16).to_be_bytes());
        out[6..8].copy_from_slice(&[0, 0]);
    }

    /// As [`UdpHeader::emit`], with the checksum over `payload`, which must be the
    /// payload announced.
    pub fn emit_with_checksum(
        &self,
        out: &mut [u8; Self::LEN],
        source: Ipv4Addr,
        destination: Ipv4Addr,
        payload: &[u8],
    ) {
        self.emit(out);
        let sum = Accumulator::new()
            .add_pseudo_header(source, destination, IpProtocol::UDP.0, self.payload_bytes + Self::LEN as u16)
            .add_bytes(out)
            .add_bytes(payload)
            .checksum();
        // A computed zero is sent as all ones (RFC 768).
        let field = if sum == 0 { 0xffff } else { sum };
        out[6..8].copy_from_slice(&field.to_be_bytes());
    }
}

/// The Ethernet, IPv4 and UDP headers of one datagram, which a sender puts before
/// data that is already in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpHeaders {
    pub source_mac: MacAddr,
    pub destination_mac: MacAddr,
    pub source: SocketAddrV4,
    pub destination: SocketAddrV4,
}

impl UdpHeaders {
    /// 14 + 20 + 8 bytes.
    pub const LEN: usize = EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN;

    /// Headers of the answer to a datagram that had these.
    #[must_use]
    pub fn reversed(&self) -> UdpHeaders {
        UdpHeaders {
            source_mac: self.destination_mac,
            destination_mac: self.source_mac,
            source: self.destination,
            destination: self.source,
        }
    }

    /// Writes the three headers for `payload_bytes` that follow them, with UDP
    /// checksum 0.
    pub fn emit(&self, out: &mut [u8; Self::LEN], payload_bytes: usize) -> Result<(), PayloadTooLong> {
        let udp = UdpHeader::new(self.source.port(), self.destination.port(), payload_bytes)?;
        let ip = Ipv4Header::new(
            *self.source.ip(),
            *self.destination.ip(),
            IpProtocol::UDP,
            UdpHeader::LEN + payload_bytes,
        )?;
        let ethernet = EthernetHeader {
            destination: self.destination_mac,
            source: self.source_mac,
            ethertype: EtherType::IPV4,
        };
        // The three pieces are exactly `out`: an array of a length known here.
        if let Some((head, rest)) = out.split_first_chunk_mut() {
            ethernet.emit(head);
            if let Some((head, rest)) = rest.split_first_chunk_mut() {
                ip.emit(head);
                if let Some(head) = rest.first_chunk_mut() {
                    udp.emit(head);
                }
            }
        }
        Ok(())
    }
}
