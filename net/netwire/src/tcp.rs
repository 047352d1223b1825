//! The TCP header (RFC 9293 section 3.1), as far as NAT and the tests need it.

use core::net::Ipv4Addr;

use crate::checksum::Accumulator;
use crate::error::{Layer, Malformed};
use crate::ipv4::IpProtocol;

/// The control bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    pub const FIN: TcpFlags = TcpFlags(0x01);
    pub const SYN: TcpFlags = TcpFlags(0x02);
    pub const RST: TcpFlags = TcpFlags(0x04);
    pub const PSH: TcpFlags = TcpFlags(0x08);
    pub const ACK: TcpFlags = TcpFlags(0x10);
    pub const URG: TcpFlags = TcpFlags(0x20);

    #[must_use]
    pub const fn with(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A segment whose header, options included, is whole.
#[derive(Clone, Copy, Debug)]
pub struct TcpSegment<'a> {
    header: &'a [u8; TcpHeader::LEN],
    options: &'a [u8],
    payload: &'a [u8],
}

impl<'a> TcpSegment<'a> {
    /// Checks an IPv4 packet's payload.
    pub fn check(bytes: &'a [u8]) -> Result<TcpSegment<'a>, Malformed> {
        let has = bytes.len();
        let Some((header, _)) = bytes.split_first_chunk::<{ TcpHeader::LEN }>() else {
            return Err(Malformed::TooShort { layer: Layer::Tcp, needs: TcpHeader::LEN, has });
        };
        let header_bytes = usize::from(header[12] >> 4) * 4;
        if header_bytes < TcpHeader::LEN {
            return Err(Malformed::LengthBelowHeader {
                layer: Layer::Tcp,
                claims: header_bytes,
                header: TcpHeader::LEN,
            });
        }
        let (Some(options), Some(payload)) =
            (bytes.get(TcpHeader::LEN..header_bytes), bytes.get(header_bytes..))
        else {
            return Err(Malformed::LengthBeyondData { layer: Layer::Tcp, claims: header_bytes, has });
        };
        Ok(TcpSegment { header, options, payload })
    }

    pub fn source_port(&self) -> u16 {
        u16::from_be_bytes([self.header[0], self.header[1]])
    }

    pub fn destination_port(&self) -> u16 {
        u16::from_be_bytes([self.header[2], self.header[3]])
    }

    pub fn sequence(&self) -> u32 {
        let h = self.header;
        u32::from_be_bytes([h[4], h[5], h[6], h[7]])
    }

    pub fn acknowledgement(&self) -> u32 {
        let h = self.header;
        u32::from_be_bytes([h[8], h[9], h[10], h[11]])
    }

    pub fn flags(&self) -> TcpFlags {
        TcpFlags(self.header[13])
    }

    pub fn window(&self) -> u16 {
        u16::from_be_bytes([self.header[14], self.header[15]])
    }

    pub fn checksum(&self) -> u16 {
        u16::from_be_bytes([self.header[16], self.header[17]])
    }

    pub fn urgent_pointer(&self) -> u16 {
        u16::from_be_bytes([self.header[18], self.header[19]])
    }

    /// The options as sent, not interpreted.
    pub fn options(&self) -> &'a [u8] {
        self.options
    }

    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Whether the checksum holds. Reads the whole payload.
    pub fn verify_checksum(&self, source: Ipv4Addr, destination: Ipv4Addr) -> bool {
        let bytes = TcpHeader::LEN + self.options.len() + self.payload.len();
        let Ok(length) = u16::try_from(bytes) else {
            return false;
        };
        Accumulator::new()
            .add_pseudo_header(source, destination, IpProtocol::TCP.0, length)
            .add_bytes(self.header)
            .add_bytes(self.options)
            .add_bytes(self.payload)
            .sum()
            == 0xffff
    }
}

/// A TCP header without options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpHeader {
    pub source_port: u16,
    pub destination_port: u16,
    pub sequence: u32,
    pub acknowledgement: u32,
    pub flags: TcpFlags,
    pub window: u16,
    pub urgent_pointer: u16,
}

impl TcpHeader {
    /// Bytes of a header without options.
    pub const LEN: usize = 20;

    /// `None` when the segment has options, which this cannot express.
    pub fn parse(segment: &TcpSegment<'_>) -> Option<TcpHeader> {
        segment.options().is_empty().then(|| TcpHeader {
            source_port: segment.source_port(),
            destination_port: segment.destination_port(),
            sequence: segment.sequence(),
            acknowledgement: segment.acknowledgement(),
            flags: segment.flags(),
            window: segment.window(),
            urgent_pointer: segment.urgent_pointer(),
        })
    }

    /// Writes the header with the checksum over `payload`, which must be at most
    /// what fits one IPv4 packet.
    pub fn emit(&self, out: &mut [u8; Self::LEN], source: Ipv4Addr, destination: Ipv4Addr, payload: &[u8]) {
        out[0..2].copy_from_slice(&self.source_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[4..8].copy_from_slice(&self.sequence.to_be_bytes());
        out[8..12].copy_from_slice(&self.acknowledgement.to_be_bytes());
        out[12] = 5 << 4;
        out[13] = self.flags.0;
        out[14..16].copy_from_slice(&self.window.to_be_bytes());
        out[16..18].copy_from_slice(&[0, 0]);
        out[18..20].copy_from_slice(&self.urgent_pointer.to_be_bytes());
        let length = ((Self::LEN + payload.len()) & 0xffff) as u16;
        let sum = Accumulator::new()
            .add_pseudo_header(source, destination, IpProtocol::TCP.0, length)
            .add_bytes(out)
            .add_bytes(payload)
            .checksum();
        out[16..18].copy_from_slice(&sum.to_be_bytes());
    }
}
