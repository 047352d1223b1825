//! The wire formats that the node reads and writes: Ethernet II, ARP, IPv4, UDP,
//! TCP headers and ICMP echo.
//!
//! The switch, the NAT, netblk and the node's own stack all look at the same
//! bytes, and all of them look at bytes that a stranger sent. So there is one
//! place that decides whether a header can be believed, and it works in two
//! stages that every protocol here shares:
//!
//! - a *view* ([`EthernetFrame`], [`Ipv4Packet`], [`UdpDatagram`], [`TcpSegment`],
//!   [`ArpPacket`], [`IcmpMessage`]) is made by `check` and by nothing else.
//!   Holding one proves that every length in the header was compared with the
//!   bytes that are there; its accessors cannot fail. A view keeps its fixed
//!   header as an array, so the compiler checks the field offsets.
//! - a *representation* ([`EthernetHeader`], [`Ipv4Header`], [`UdpHeader`],
//!   [`TcpHeader`], [`ArpMessage`], [`IcmpEcho`]) is plain values that cannot
//!   express an illegal header. `parse` makes one from a view, `emit` writes one
//!   into an array of exactly its length.
//!
//! Checking lengths and checking sums are separate steps: a sum costs a read of
//! every byte, and netblk's path must not touch its payload. A view says
//! `verify_checksum` and the caller decides.
//!
//! Two pieces join the layers: [`UdpHeaders`] writes the 14 + 20 + 8 bytes that
//! netblk puts before its data, and [`FlowMut`] rewrites addresses and ports in
//! place and keeps the checksums right without reading the payload (NAT).
//!
//! Not taken: smoltcp's `wire` module, which the node's stack uses underneath.
//! Its views check once but index a slice with every accessor, it keeps no
//! incremental checksum, and the switch and netblk would carry a TCP/IP stack for
//! three headers.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod checksum;

mod arp;
mod error;
mod ethernet;
mod flow;
mod icmp;
mod ipv4;
mod tcp;
mod udp;

pub use arp::{ArpMessage, ArpOperation, ArpPacket};
pub use core::net::{Ipv4Addr, SocketAddrV4};
pub use error::{Layer, Malformed, PayloadTooLong};
pub use ethernet::{EtherType, EthernetFrame, EthernetHeader, MacAddr, set_ethernet_addresses};
pub use flow::{FlowError, FlowMut, Transport};
pub use icmp::{EchoKind, IcmpEcho, IcmpMessage, QuotedPacket, icmp_type};
pub use ipv4::{IpProtocol, Ipv4Header, Ipv4Packet};
pub use tcp::{TcpFlags, TcpHeader, TcpSegment};
pub use udp::{UdpDatagram, UdpHeader, UdpHeaders};
