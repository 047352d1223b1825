//! The gate: from a received frame to who gets it.

use core::net::{Ipv4Addr, SocketAddrV4};

use netwire::{
    ArpMessage, ArpPacket, EtherType, EthernetFrame, EthernetHeader, IcmpMessage, IpProtocol, Ipv4Packet,
    MacAddr, TcpSegment, UdpDatagram, UdpHeader, UdpHeaders,
};

use crate::drop_reason::DropReason;
use crate::interface::{Interface, is_never_a_host};

/// The port on which a DHCP client listens (RFC 2131 section 4.1).
const DHCP_CLIENT_PORT: u16 = 68;

/// The longest frame that anybody but a handler of datagrams gets: 1500 bytes behind the Ethernet
/// header.
pub const ORDINARY_FRAME_BYTES: usize = EthernetHeader::LEN + 1500;

/// Who gets a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// An ARP packet about us or for us: to learn from, and for the TCP/IP library if
    /// `for_us`.
    Arp { message: ArpMessage, for_us: bool },
    /// A datagram to our address, in the shape that handlers are promised.
    Udp(UdpMeta),
    /// A TCP segment to our address.
    Tcp,
    /// An ICMP message to our address.
    Icmp(IcmpMeta),
    /// Whatever else the TCP/IP library should see: DHCP answers, datagrams with IP options,
    /// protocols it refuses by ICMP.
    Library,
}

/// A UDP datagram that a handler may have. Holding one (from [`classify`]) proves of the frame it
/// was made from: addressed to our MAC and IP address and not to a group; from a source that an
/// answer can be sent to; IPv4 without options or fragments, the header's checksum right; and
/// `payload_offset + payload_bytes` inside the frame, or, where the packet takes several frames,
/// the end of the last of them. The UDP checksum has NOT been looked at: that reads every byte of
/// the payload (see [`verify_udp_checksum`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdpMeta {
    pub source_mac: MacAddr,
    pub source: SocketAddrV4,
    pub local_mac: MacAddr,
    pub destination: SocketAddrV4,
    /// Where the payload begins, in the first frame.
    pub payload_offset: usize,
    /// Its length, in all frames together.
    pub payload_bytes: usize,
    /// The field as sent; 0 means "not computed".
    pub checksum: u16,
}

impl UdpMeta {
    /// The headers of an answer.
    pub fn reply_headers(&self) -> UdpHeaders {
        UdpHeaders {
            source_mac: self.local_mac,
            destination_mac: self.source_mac,
            source: self.destination,
            destination: self.source,
        }
    }

    /// The payload, given the frame that this describes. Of a packet that takes several frames, given
    /// the first, what that has of it; the rest are all bytes of the others, in their order.
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let end = frame.len().min(self.payload_offset + self.payload_bytes);
        frame.get(self.payload_offset..end).unwrap_or(&[])
    }
}

/// An ICMP message to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcmpMeta {
    pub source: Ipv4Addr,
    pub ttl: u8,
    pub message_type: u8,
    pub code: u8,
    /// Where the ICMP message begins in the frame, and its length.
    pub offset: usize,
    pub bytes: usize,
}

/// Decides who gets a frame that arrived on `interface`.
pub fn classify(frame: &[u8], interface: &Interface) -> Result<Class, DropReason> {
    classify_packet(frame, 0, interface)
}

/// Decides who gets a packet whose first frame is `frame`, and of which `behind_bytes` more lie in
/// others. A packet that takes several frames is a datagram for a handler ([`Class::Udp`]) or dropped:
/// nobody else could use it. Its headers lie in the first frame, and its lengths must agree to the
/// byte, so that a handler need not look for the end of the payload.
pub fn classify_packet(
    frame: &[u8],
    behind_bytes: usize,
    interface: &Interface,
) -> Result<Class, DropReason> {
    let ethernet = EthernetFrame::check(frame)?;
    let to_us = ethernet.destination() == interface.mac;
    if !to_us && !ethernet.destination().is_multicast() {
        return Err(DropReason::NotOurMac);
    }
    if !ethernet.source().is_station() || ethernet.source() == interface.mac {
        return Err(DropReason::BadSource);
    }
    match ethernet.ethertype() {
        EtherType::ARP if behind_bytes > 0 => Err(DropReason::TooLong),
        EtherType::ARP => classify_arp(&ethernet, interface),
        EtherType::IPV4 => classify_ipv4(&ethernet, behind_bytes, interface, to_us),
        _ => Err(DropReason::OtherProtocol),
    }
}

fn classify_arp(ethernet: &EthernetFrame<'_>, interface: &Interface) -> Result<Class, DropReason> {
    let message = ArpMessage::parse(&ArpPacket::check(ethernet.payload())?);
    // A sender that hides behind another address than its frame's is not believed.
    if message.sender_mac != ethernet.source() {
        return Err(DropReason::BadSource);
    }
    let Some(subnet) = interface.subnet else {
        return Err(DropReason::ForeignArp);
    };
    if message.sender_ip == subnet.address() {
        return Err(DropReason::AddressConflict);
    }
    let for_us = message.target_ip == subnet.address();
    // A probe (RFC 5227 section 2.1.1) has no sender address: nothing to learn.
    let learnable = subnet.contains(message.sender_ip) && subnet.may_be_source(message.sender_ip);
    if for_us || learnable { Ok(Class::Arp { message, for_us }) } else { Err(DropReason::ForeignArp) }
}

fn classify_ipv4(
    ethernet: &EthernetFrame<'_>,
    behind_bytes: usize,
    interface: &Interface,
    to_us: bool,
) -> Result<Class, DropReason> {
    let packet = Ipv4Packet::check_first_piece(ethernet.payload(), behind_bytes)?;
    if !packet.verify_checksum() {
        return Err(DropReason::BadChecksum);
    }
    let Some(subnet) = interface.subnet else {
        // Before we have an address only an offer of one concerns us; the offered address, to
        // which it may be sent, is not ours yet (RFC 2131 section 4.1).
        return if !is_never_a_host(packet.source()) && is_dhcp_answer(&packet) {
            Ok(Class::Library)
        } else {
            Err(DropReason::NotOurAddress)
        };
    };
    if !subnet.may_be_source(packet.source()) {
        return Err(DropReason::BadSource);
    }
    if packet.destination() != subnet.address() {
        let to_all = packet.destination().is_broadcast() || Some(packet.destination()) == subnet.broadcast();
        return if to_all && is_dhcp_answer(&packet) {
            Ok(Class::Library)
        } else {
            Err(DropReason::NotOurAddress)
        };
    }
    if !to_us {
        return Err(DropReason::LinkBroadcast);
    }
    if packet.is_fragment() {
        return Err(DropReason::Fragment);
    }
    let offset = EthernetHeader::LEN + packet.header_bytes();
    match packet.protocol() {
        IpProtocol::UDP => {
            let datagram = UdpDatagram::check_first_piece(packet.payload(), behind_bytes)?;
            let for_library = packet.has_options() || datagram.destination_port() == DHCP_CLIENT_PORT;
            if behind_bytes > 0 {
                if for_library {
                    return Err(DropReason::TooLong);
                }
                check_exact(ethernet.payload().len() + behind_bytes, &packet, &datagram)?;
            }
            if for_library {
                return Ok(Class::Library);
            }
            Ok(Class::Udp(UdpMeta {
                source_mac: ethernet.source(),
                source: SocketAddrV4::new(packet.source(), datagram.source_port()),
                local_mac: interface.mac,
                destination: SocketAddrV4::new(packet.destination(), datagram.destination_port()),
                payload_offset: offset + UdpHeader::LEN,
                payload_bytes: datagram.payload_bytes(),
                checksum: datagram.checksum(),
            }))
        }
        _ if behind_bytes > 0 => Err(DropReason::TooLong),
        IpProtocol::TCP => TcpSegment::check(packet.payload()).map(|_| Class::Tcp).map_err(Into::into),
        IpProtocol::ICMP => {
            let message = IcmpMessage::check(packet.payload())?;
            Ok(Class::Icmp(IcmpMeta {
                source: packet.source(),
                ttl: packet.ttl(),
                message_type: message.message_type(),
                code: message.code(),
                offset,
                bytes: packet.payload().len(),
            }))
        }
        _ => Ok(Class::Library),
    }
}

/// Whether a packet of several frames and its datagram end where the frames do.
fn check_exact(
    arrived_bytes: usize,
    packet: &Ipv4Packet<'_>,
    datagram: &UdpDatagram<'_>,
) -> Result<(), DropReason> {
    let datagram_bytes = UdpHeader::LEN + datagram.payload_bytes();
    let exact = packet.total_bytes() == arrived_bytes
        && packet.header_bytes() + datagram_bytes == packet.total_bytes();
    if exact { Ok(()) } else { Err(DropReason::LyingLength) }
}

/// Looks at the datagram in the packet's first frame: one that takes more is no DHCP answer.
fn is_dhcp_answer(packet: &Ipv4Packet<'_>) -> bool {
    packet.protocol() == IpProtocol::UDP
        && !packet.is_fragment()
        && UdpDatagram::check(packet.payload())
            .is_ok_and(|datagram| datagram.destination_port() == DHCP_CLIENT_PORT)
}

/// Whether the UDP checksum of a packet that was classified, given its frames, holds or was not
/// computed. Reads the whole payload.
pub fn verify_udp_checksum<'a>(frames: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>) -> bool {
    let mut frames = frames.into_iter();
    let Some(first) = frames.next() else { return false };
    let behind_bytes = frames.clone().map(<[u8]>::len).sum();
    let verified = || {
        let packet = Ipv4Packet::check_first_piece(EthernetFrame::check(first)?.payload(), behind_bytes)?;
        let datagram = UdpDatagram::check_first_piece(packet.payload(), behind_bytes)?;
        let holds = datagram.verify_checksum_with(frames, packet.source(), packet.destination());
        Ok::<bool, netwire::Malformed>(holds)
    };
    verified().unwrap_or(false)
}
