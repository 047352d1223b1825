//! The headers in front of a reply's data: 72 bytes in version 1, 108 in version 2.

use netblk_proto::{HEADER_BYTES, v2};
use netwire::{PayloadTooLong, UdpHeaders};

/// Where a version 1 reply's data starts in its frame: behind Ethernet, IPv4, UDP and netblk.
pub const DATA_START: usize = UdpHeaders::LEN + HEADER_BYTES;

/// Where a version 2 reply's data starts.
pub const V2_DATA_START: usize = UdpHeaders::LEN + v2::HEADER_BYTES;

/// The first PRP entry of an NVMe command may point at any whole dword (NVMe Base Specification
/// 2.0, section 4.1.1), so a disk may write straight behind the headers.
const _: () = assert!(DATA_START == 72 && DATA_START.is_multiple_of(4));
const _: () = assert!(V2_DATA_START == 108 && V2_DATA_START.is_multiple_of(4));

/// Writes the headers of a reply with `data_bytes` bytes of data behind `netblk`, its netblk header, and
/// says how long its packet is. What lies behind the headers is the disk's alone.
///
/// # Errors
/// [`PayloadTooLong`] if no datagram can carry the data.
pub fn write_headers<const NETBLK_BYTES: usize>(
    frame: &mut [u8],
    addresses: &UdpHeaders,
    netblk: &[u8; NETBLK_BYTES],
    data_bytes: usize,
) -> Result<usize, PayloadTooLong> {
    if let Some((outer, rest)) = frame.split_first_chunk_mut()
        && let Some(room) = rest.first_chunk_mut()
    {
        addresses.emit(outer, NETBLK_BYTES + data_bytes)?;
        *room = *netblk;
    }
    Ok(UdpHeaders::LEN + NETBLK_BYTES + data_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netblk_proto::{Op, Reply, ReplyHeader, Status};
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
        let length = write_headers(&mut frame, &request.reversed(), &reply.to_bytes(), 1024).unwrap();
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
    fn a_version_2_reply_has_its_data_36_bytes_later() {
        let addresses = UdpHeaders {
            source_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            destination_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            source: SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 15), 10809),
            destination: SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 2), 40000),
        };
        let key = v2::TagKey::new([5; 16]);
        let reply = v2::ReplyHeader::new(v2::Op::Read, 9, 77, 4096, 1024, v2::Status::Ok);
        let mut frame = [0xEE; 2048];
        let length = write_headers(&mut frame, &addresses, &reply.seal(Some(&key), 1024, &[]), 1024).unwrap();
        assert_eq!(length, 108 + 1024);
        assert!(frame[108..].iter().all(|&byte| byte == 0xEE));
        let reply = v2::Reply::parse(&frame[42..length], Some(&key)).unwrap();
        assert!(reply.authentic && reply.cookie == 77);
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
        let reply = reply.to_bytes();
        let length = write_headers(&mut [0; DATA_START], &nowhere, &reply, 0).unwrap();
        // IEEE 802.3 wants 60 bytes before the frame check sequence.
        assert!(length >= 60);
        assert!(write_headers(&mut [0; DATA_START], &nowhere, &reply, 70_000).is_err());
    }
}
