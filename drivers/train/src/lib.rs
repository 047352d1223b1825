//! Trains: datagrams of one flow that a card is given as one packet and cuts up itself.
//!
//! A server answers a client with many datagrams at once, all of one length. Each costs the card, and a
//! hypervisor or a switch behind it, as much as a packet of 64 KiB would. Cards that segment UDP (virtio-net's
//! HOST_USO, the TSO of Intel's with L4T = UDP) take one packet with the data of all, and a length; they give
//! every segment the headers of the first, with lengths, number and checksum of its own. So all that software
//! does is to decide which datagrams of a queue may go together, and to write the first one's headers
//! as those of the whole. The data stays where it is: a train is the first packet, whole, and of the others
//! what lies behind their headers.
//!
//! Every segment gets a UDP checksum, computed by the card, also where the datagrams had none: the card
//! knows no train without.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// Ethernet, IPv4 without options, and UDP: what every packet of a train begins with.
pub const HEADERS_BYTES: usize = 14 + IPV4_BYTES + UDP_BYTES;
/// Where UDP's header begins: the checksum is computed from there on.
pub const CHECKSUM_START: u16 = 34;
/// Where in UDP's header its checksum is.
pub const CHECKSUM_OFFSET: u16 = 6;

const IPV4_START: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_START: usize = CHECKSUM_START as usize;
const UDP_BYTES: usize = 8;

/// The most that IPv4's length field can say of what is behind its header and UDP's.
const MOST_DATA_BYTES: usize = u16::MAX as usize - IPV4_BYTES - UDP_BYTES;

/// The most datagrams: Linux cuts no packet into more (UDP_MAX_SEGMENTS, before 6.9 of 64).
const MOST_DATAGRAMS: usize = 64;

/// A train that is being put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Train {
    /// Data of each datagram but the last, which may have less.
    segment_bytes: usize,
    data_bytes: usize,
    datagrams: usize,
    pieces: usize,
    most_pieces: usize,
    /// The last had less.
    closed: bool,
}

impl Train {
    /// A train of one, if `headers`, the first of its frame, are those of a whole UDP datagram over IPv4 that
    /// others may join. `packet_bytes`: with what is behind them; `pieces`: of its memory; `most_pieces`: that
    /// the card takes of a train.
    pub fn begin(headers: &[u8], packet_bytes: usize, pieces: usize, most_pieces: usize) -> Option<Train> {
        let headers: &[u8; HEADERS_BYTES] = headers.first_chunk()?;
        let is_ipv4 = headers[12..14] == [0x08, 0x00] && headers[IPV4_START] == 0x45;
        // No fragment, and none that follow.
        let is_whole = headers[20] & 0x3f == 0 && headers[21] == 0;
        let is_udp = headers[IPV4_START + 9] == 17;
        let data_bytes = packet_bytes.checked_sub(HEADERS_BYTES)?;
        let fits = data_bytes > 0 && data_bytes <= MOST_DATA_BYTES && pieces <= most_pieces;
        (is_ipv4 && is_whole && is_udp && fits).then_some(Train {
            segment_bytes: data_bytes,
            data_bytes,
            datagrams: 1,
            pieces,
            most_pieces,
            closed: false,
        })
    }

    /// Whether one more datagram of the flow has been taken in. `packet_bytes` and `pieces`: as for the first.
    pub fn add(&mut self, packet_bytes: usize, pieces: usize) -> bool {
        let Some(data_bytes) = packet_bytes.checked_sub(HEADERS_BYTES) else { return false };
        let fits = !self.closed
            && data_bytes > 0
            && data_bytes <= self.segment_bytes
            && self.data_bytes + data_bytes <= MOST_DATA_BYTES
            && self.datagrams < MOST_DATAGRAMS
            && self.pieces + pieces <= self.most_pieces;
        if fits {
            self.data_bytes += data_bytes;
            self.datagrams += 1;
            self.pieces += pieces;
            self.closed = data_bytes < self.segment_bytes;
        }
        fits
    }

    /// Datagrams in it.
    pub fn datagrams(&self) -> usize {
        self.datagrams
    }

    /// Bytes of data in each datagram but the last.
    pub fn segment_bytes(&self) -> u16 {
        // Behind headers that fit 16 bits together with it.
        self.segment_bytes as u16
    }

    /// Bytes of data in all of them together.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Makes the first datagram's headers those of the whole: lengths, IPv4's checksum, and in UDP's the sum
    /// of the pseudo header, from which the card goes on (as with VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO 1.2 sec.
    /// 5.1.6.2). `with_length`: whether that sum has the length in it; a card that cuts up may add each
    /// segment's by itself.
    pub fn write_headers(&self, headers: &mut [u8], with_length: bool) {
        let Some(headers) = headers.first_chunk_mut::<HEADERS_BYTES>() else { return };
        // At most what 16 bits hold, by `fits`.
        let udp_bytes = (UDP_BYTES + self.data_bytes) as u16;
        let ipv4_bytes = udp_bytes + IPV4_BYTES as u16;
        headers[IPV4_START + 2..IPV4_START + 4].copy_from_slice(&ipv4_bytes.to_be_bytes());
        headers[IPV4_START + 10..IPV4_START + 12].fill(0);
        let checksum = !folded(sum(&headers[IPV4_START..UDP_START]));
        headers[IPV4_START + 10..IPV4_START + 12].copy_from_slice(&checksum.to_be_bytes());
        let length = if with_length { u32::from(udp_bytes) } else { 0 };
        let pseudo = sum(&headers[IPV4_START + 12..UDP_START]) + u32::from(headers[IPV4_START + 9]) + length;
        headers[UDP_START + 4..UDP_START + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        headers[UDP_START + 6..].copy_from_slice(&folded(pseudo).to_be_bytes());
    }
}

/// The sum of RFC 1071 of an even number of bytes, not folded: at most twenty of them.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

/// Twice is enough for a sum of so few.
fn folded(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet with its checksums, as a host sends it.
    fn packet(data: &[u8], number: u16) -> Vec<u8> {
        let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let udp_bytes = (8 + data.len()) as u16;
        packet.extend([0x45, 0]);
        packet.extend((20 + udp_bytes).to_be_bytes());
        packet.extend(number.to_be_bytes());
        packet.extend([0x40, 0, 64, 17, 0, 0, 192, 0, 2, 7, 198, 51, 100, 200]);
        let checksum = !folded(sum(&packet[14..34]));
        packet[24..26].copy_from_slice(&checksum.to_be_bytes());
        packet.extend(10809u16.to_be_bytes());
        packet.extend(40000u16.to_be_bytes());
        packet.extend(udp_bytes.to_be_bytes());
        packet.extend([0, 0]);
        packet.extend(data);
        packet
    }

    fn train_of(packets: &[Vec<u8>], most_pieces: usize) -> Option<(Train, Vec<u8>)> {
        let mut train = Train::begin(&packets[0], packets[0].len(), 1, most_pieces)?;
        let mut whole = packets[0].clone();
        for packet in &packets[1..] {
            if !train.add(packet.len(), 1) {
                break;
            }
            whole.extend(&packet[HEADERS_BYTES..]);
        }
        train.write_headers(&mut whole, true);
        Some((train, whole))
    }

    /// What a card does: cuts, and gives each segment its lengths and checksums.
    fn cut(whole: &[u8], segment_bytes: usize) -> Vec<Vec<u8>> {
        let number = u16::from_be_bytes([whole[18], whole[19]]);
        (0..)
            .zip(whole[HEADERS_BYTES..].chunks(segment_bytes))
            .map(|(nth, data)| packet(data, number + nth))
            .collect()
    }

    #[test]
    fn what_others_may_join_is_a_whole_datagram() {
        let good = packet(&[1; 100], 7);
        assert!(Train::begin(&good, good.len(), 1, 4).is_some());
        assert_eq!(Train::begin(&good, good.len(), 5, 4), None);
        assert_eq!(Train::begin(&good, HEADERS_BYTES, 1, 4), None);
        assert_eq!(Train::begin(&good[..41], 41, 1, 4), None);
        for (at, value) in [(12, 0x86), (14, 0x46), (20, 0x20), (20, 0x1f), (21, 1), (23, 6)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(Train::begin(&bad, bad.len(), 1, 4), None, "byte {at} is {value:#x}");
        }
    }

    #[test]
    fn the_last_may_be_shorter_and_nothing_comes_behind_it() {
        let mut train = Train::begin(&packet(&[1; 100], 7), 142, 1, 100).unwrap();
        assert!(!train.add(143, 1));
        assert!(!train.add(42, 1) && !train.add(41, 1));
        assert!(train.add(142, 1));
        assert!(train.add(43, 1));
        assert!(!train.add(43, 1));
        assert_eq!((train.datagrams(), train.segment_bytes(), train.data_bytes()), (3, 100, 201));
    }

    #[test]
    fn it_ends_where_the_fields_or_the_card_end() {
        let grow = |data: usize, pieces: usize, most_pieces: usize| {
            let mut train = Train::begin(&packet(&[1; 10], 7), 42 + data, pieces, most_pieces).unwrap();
            while train.add(42 + data, pieces) {}
            train
        };
        assert_eq!(grow(10, 1, 1000).datagrams(), MOST_DATAGRAMS);
        assert_eq!(grow(10, 2, 15).datagrams(), 7);
        let long = grow(8972, 1, 1000);
        assert_eq!(long.datagrams(), 7);
        assert!(long.data_bytes() <= MOST_DATA_BYTES && long.data_bytes() + 8972 > MOST_DATA_BYTES);
    }

    proptest! {
        /// The card's segments are the datagrams that went in, but for checksums and numbers.
        #[test]
        fn a_train_cut_up_is_what_it_was_made_of(bytes in 1usize..1472, count in 1usize..80, last in 1usize..1472) {
            let mut packets: Vec<_> = (0..count).map(|nth| packet(&vec![nth as u8; bytes], nth as u16)).collect();
            packets.push(packet(&vec![0xee; last], count as u16));
            let (train, whole) = train_of(&packets, 1000).unwrap();
            let segments = cut(&whole, train.segment_bytes().into());
            prop_assert_eq!(segments.len(), train.datagrams());
            for (segment, packet) in segments.iter().zip(&packets) {
                prop_assert_eq!(segment, packet);
            }
            // The whole is a sound IPv4 packet with the pseudo header's sum.
            prop_assert_eq!(folded(sum(&whole[14..34])), 0xffff);
            prop_assert_eq!(usize::from(u16::from_be_bytes([whole[16], whole[17]])), whole.len() - 14);
            prop_assert_eq!(usize::from(u16::from_be_bytes([whole[38], whole[39]])), whole.len() - 34);
            let pseudo = sum(&whole[26..34]) + 17 + u32::from(u16::from_be_bytes([whole[38], whole[39]]));
            prop_assert_eq!(u16::from_be_bytes([whole[40], whole[41]]), folded(pseudo));
        }

        /// Whatever the headers are, nothing panics, and nothing but them is written.
        #[test]
        fn any_bytes_are_looked_at_safely(mut bytes in proptest::collection::vec(any::<u8>(), 0..60), length in 0usize..70_000, pieces in 0usize..70) {
            if let Some(mut train) = Train::begin(&bytes, length, pieces, 60) {
                train.add(length, pieces);
                let behind = bytes[HEADERS_BYTES.min(bytes.len())..].to_vec();
                train.write_headers(&mut bytes, false);
                prop_assert_eq!(&bytes[HEADERS_BYTES.min(bytes.len())..], &behind[..]);
            }
        }
    }
}
