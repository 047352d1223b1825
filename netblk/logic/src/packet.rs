//! The 72 bytes of headers in front of a reply's data.

use netblk_proto::{HEADER_BYTES, ReplyHeader};
use netwire::{PayloadTooLong, UdpHeaders};

/// Where a reply's data starts in its frame: behind Ethernet, IPv4, UDP and netblk.
pub const DATA_START: usize = UdpHeaders::LEN + HEADER_BYTES;

/// The first PRP entry of an NVMe command may point at any whole dword (NVMe Base Specification
/// 2.0, section 4.1.1), so a disk may write straight behind the headers.
const _: () = assert!(DATA_START == 72 && DATA_START.is_multiple_of(4));

/// The part of a frame that the CPU writes; what lies behind it is the disk's alone.
pub type HeaderRoom = [u8; DATA_START];

/// Writes the headers of a reply with `data_bytes` bytes of data and says how long its packet is.
///
/// # Errors
/// [`PayloadTooLong`] if no datagram can carry the data.
pub fn write_headers(
    room: &mut HeaderRoom,
    addresses: &UdpHeaders,
    reply: &ReplyHeader,
    data_bytes: usize,
) -> Result<usize, PayloadTooLong> {
    // The pieces are exactly the room: both lengths are the array's, known here.
    if let Some((outer, netblk)) = room.split_first_chunk_mut() {
        addresses.emit(outer, HEADER_BYTES + data_bytes)?;
        netblk.copy_from_slice(&reply.to_bytes());
    }
    Ok(DATA_START + data_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netblk_proto::{Op, Reply, Status};
    use netwire::{EthernetFrame, Ipv4Addr, Ipv4Packet, MacAddr, SocketAddrV4, UdpDatagram};

    #[test]
    fn a_reply_is_read_by_every_layer_and_its_data_is_untouched() {
        let client = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 2), 40000);
        let server = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), 10809);
        let request = UdpHeaders {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            source: client,
            destination: server,
        };
        let reply = ReplyHeader::new(Op::Read, 77, 4096, 1024, Status::Ok);
        let mut frame = [0xEE; 2048];
        let length =
            write_headers(frame.first_chunk_mut().unwrap(), &request.reversed(), &reply, 1024).unwrap();
        assert_eq!(length, 72 + 1024);
        assert!(frame[72..].iter().all(|&byte| byte == 0xEE));

        let ethernet = EthernetFrame::check(&frame[..length]).unwrap();
        assert_eq!(ethernet.destination(), request.source_mac);
        let ip = Ipv4Packet::check(ethernet.payload()).unwrap();
        assert!(ip.verify_checksum() && ip.dont_fragment());
        assert_eq!((ip.source(), ip.destination()), (*server.ip(), *client.ip()));
        let udp = UdpDatagram::check(ip.payload()).unwrap();
        assert_eq!((udp.source_port(), udp.destination_port(), udp.checksum()), (10809, 40000, 0));
        assert!(
            matches!(Reply::parse(udp.payload()), Ok(Reply::Data { cookie: 77, offset: 4096, data }) if data.len() == 1024)
        );
    }

    #[test]
    fn a_bare_header_is_longer_than_the_shortest_frame() {
        let nowhere = UdpHeaders {
            source_mac: MacAddr::ZERO,
            destination_mac: MacAddr::ZERO,
            source: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 1),
            destination: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 2),
        };
        let reply = ReplyHeader::new(Op::Flush, 0, 0, 0, Status::Ok);
        let length = write_headers(&mut [0; DATA_START], &nowhere, &reply, 0).unwrap();
        // IEEE 802.3 wants 60 bytes before the frame check sequence.
        assert!(length >= 60);
        assert!(write_headers(&mut [0; DATA_START], &nowhere, &reply, 70_000).is_err());
    }
}
