//! The other end of the node's cable, as Ethernet frames.
//!
//! The frames are put together by hand, field by field: these stories send what no proper stack would, and the node's
//! own formats must not decide what can be sent.

use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// The story's own addresses.
pub const STORY_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0xaa, 0xbb, 0xcc];
pub const STORY_IP: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 1);
/// The node's, as its configuration has to say.
pub const NODE_IP: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 2);
pub const NODE_CONFIGURATION: &str = "[node]\naddress = \"10.9.9.2/24\"\n";
/// What QEMU gives the first card by default.
pub const NODE_MAC: [u8; 6] = [0x52, 0x54, 0x00, 0x12, 0x34, 0x56];

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const BROADCAST: [u8; 6] = [0xff; 6];

/// The cable.
#[derive(Debug)]
pub struct Wire {
    socket: UnixDatagram,
    card: PathBuf,
}

impl Wire {
    pub(crate) fn open(own: &Path, card: PathBuf) -> Result<Wire> {
        let socket = UnixDatagram::bind(own).with_context(|| format!("binding {}", own.display()))?;
        Ok(Wire { socket, card })
    }

    /// Sends bytes as a frame.
    pub fn send(&mut self, frame: &[u8]) {
        self.socket.send_to(frame, &self.card).expect("sending a frame to the node's card");
    }

    /// The next frame that `wanted` has an answer for. ARP requests for the story's address are answered on the way.
    pub fn receive<T>(
        &mut self,
        patience: Duration,
        mut wanted: impl FnMut(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + patience;
        let mut buffer = [0; 65536];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.socket.set_read_timeout(Some(left)).expect("setting a deadline");
            let Ok(length) = self.socket.recv(&mut buffer) else { return None };
            let frame = &buffer[..length];
            if let Some(answer) = wanted(frame) {
                return Some(answer);
            }
            if is_arp_request_for(frame, STORY_IP) {
                let reply = arp(2, STORY_IP, NODE_MAC, NODE_IP);
                self.send(&ethernet(NODE_MAC, ARP, &reply));
            }
        }
    }

    /// Asks the node for an answer (ICMP echo), and says whether it came.
    pub fn ping(&mut self, number: u16) -> bool {
        self.send(&ethernet(NODE_MAC, IPV4, &ipv4(1, &icmp_echo(number))));
        self.receive(Duration::from_secs(10), |frame| {
            let is_reply = frame.len() >= 42
                && frame[12..14] == IPV4.to_be_bytes()
                && frame[23] == 1
                && frame[34] == 0
                && frame[40..42] == number.to_be_bytes();
            is_reply.then_some(())
        })
        .is_some()
    }

    /// Asks for the node's hardware address, and says whether the answer came.
    pub fn resolve(&mut self) -> bool {
        self.send(&ethernet(BROADCAST, ARP, &arp(1, STORY_IP, [0; 6], NODE_IP)));
        self.receive(Duration::from_secs(10), |frame| {
            let is_reply = frame.len() >= 42 && frame[12..14] == ARP.to_be_bytes() && frame[20..22] == [0, 2];
            is_reply.then_some(())
        })
        .is_some()
    }
}

fn is_arp_request_for(frame: &[u8], address: Ipv4Addr) -> bool {
    frame.len() >= 42
        && frame[12..14] == ARP.to_be_bytes()
        && frame[20..22] == [0, 1]
        && frame[38..42] == address.octets()
}

/// A frame from the story.
pub fn ethernet(to: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(14 + payload.len());
    frame.extend(to);
    frame.extend(STORY_MAC);
    frame.extend(ether_type.to_be_bytes());
    frame.extend(payload);
    frame
}

/// An IPv4 frame to the node.
pub fn to_node(packet: &[u8]) -> Vec<u8> {
    ethernet(NODE_MAC, IPV4, packet)
}

/// ARP for IPv4 over Ethernet (RFC 826); operation 1 asks, 2 answers.
pub fn arp(operation: u16, from: Ipv4Addr, to_mac: [u8; 6], to: Ipv4Addr) -> Vec<u8> {
    let mut packet = vec![0, 1, 8, 0, 6, 4];
    packet.extend(operation.to_be_bytes());
    packet.extend(STORY_MAC);
    packet.extend(from.octets());
    packet.extend(to_mac);
    packet.extend(to.octets());
    packet
}

/// An IPv4 packet to the node (RFC 791), right in every field.
pub fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).expect("a short packet");
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend(STORY_IP.octets());
    packet.extend(NODE_IP.octets());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

/// The same with one field of its header set to something else, and the header's checksum made right again, so that
/// the lie is believed.
pub fn ipv4_with(packet: &[u8], offset: usize, bytes: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[offset..offset + bytes.len()].copy_from_slice(bytes);
    packet[10..12].fill(0);
    let header = usize::from(packet[0] & 0xf) * 4;
    let sum = checksum(&packet[..header.min(packet.len())]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// A UDP datagram without a checksum (RFC 768); `length` is what its header says, right or not.
pub fn udp(port: u16, length: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    datagram.extend(40_000_u16.to_be_bytes());
    datagram.extend(port.to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

fn icmp_echo(number: u16) -> Vec<u8> {
    let mut message = vec![8, 0, 0, 0, 0x6e, 0x6f];
    message.extend(number.to_be_bytes());
    message.extend([0x5a; 32]);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// The Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_header_sums_to_zero() {
        let packet = ipv4(17, &udp(9, 8, &[]));
        assert_eq!(checksum(&packet[..20]), 0);
        assert_eq!(checksum(&ipv4_with(&packet, 2, &[1, 2])[..20]), 0);
        assert_eq!(checksum(&icmp_echo(3)), 0);
    }
}
