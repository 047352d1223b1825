//! The bare echo that block services over UDP are compared with.
//!
//! A service that moves a disk's sectors cannot be faster than one that moves as many bytes and has no disk. So that
//! both move the same bytes, the request says what it wants back: a READ of 4 KiB is a short datagram that asks for
//! four of 1 KiB, a WRITE is a long one that asks for a short one. The node and Linux answer the same datagrams.
//!
//! ```text
//!   request:  0 cookie 8 | 8 reply_bytes 2 | 10 replies 1 | 11 zero 1 | anything, at least to byte 32
//!   reply:    0 cookie 8 | 8 reply_bytes 2 | 10 number 1  | 11 zero 1 | zeros, reply_bytes in all
//! ```
//!
//! Big-endian. It multiplies bytes for whoever asks, so it is for a bench's own network and nothing else.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

/// Bytes of the header.
pub const HEADER_BYTES: usize = 12;
/// A request is at least this long.
pub const MIN_REQUEST_BYTES: usize = 32;
/// The longest reply: what IPv4 and UDP leave of an MTU of 1500.
pub const MAX_REPLY_BYTES: u16 = 1472;
/// The most replies to one request.
pub const MAX_REPLIES: u8 = 16;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The client's; in every reply.
    pub cookie: u64,
    /// Bytes of a reply.
    pub reply_bytes: u16,
    /// How many.
    pub replies: u8,
}

impl Request {
    /// Reads a request; `None` for anything else, which is not answered.
    pub fn parse(datagram: &[u8]) -> Option<Self> {
        if datagram.len() < MIN_REQUEST_BYTES {
            return None;
        }
        let header = datagram.first_chunk::<HEADER_BYTES>()?;
        let [c0, c1, c2, c3, c4, c5, c6, c7, bytes_high, bytes_low, replies, zero] = *header;
        let request = Self {
            cookie: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            reply_bytes: u16::from_be_bytes([bytes_high, bytes_low]),
            replies,
        };
        let fits = usize::from(request.reply_bytes) >= HEADER_BYTES && request.reply_bytes <= MAX_REPLY_BYTES;
        (fits && (1..=MAX_REPLIES).contains(&replies) && zero == 0).then_some(request)
    }

    /// The request's header; what follows is padding.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        header(self.cookie, self.reply_bytes, self.replies)
    }

    /// The header of one of the replies, 0 to `replies - 1`.
    pub fn reply_header(&self, number: u8) -> [u8; HEADER_BYTES] {
        header(self.cookie, self.reply_bytes, number)
    }
}

/// A reply that is as long as it says: its cookie and its number.
pub fn parse_reply(datagram: &[u8]) -> Option<(u64, u8)> {
    let [c0, c1, c2, c3, c4, c5, c6, c7, bytes_high, bytes_low, number, _] =
        *datagram.first_chunk::<HEADER_BYTES>()?;
    let whole = datagram.len() == usize::from(u16::from_be_bytes([bytes_high, bytes_low]));
    whole.then_some((u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]), number))
}

fn header(cookie: u64, reply_bytes: u16, count: u8) -> [u8; HEADER_BYTES] {
    let [c0, c1, c2, c3, c4, c5, c6, c7] = cookie.to_be_bytes();
    let [bytes_high, bytes_low] = reply_bytes.to_be_bytes();
    [c0, c1, c2, c3, c4, c5, c6, c7, bytes_high, bytes_low, count, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_understood_and_its_replies_are_told_apart() {
        let request = Request { cookie: 0x0102_0304_0506_0708, reply_bytes: 1024, replies: 4 };
        let mut datagram = [0; MIN_REQUEST_BYTES];
        datagram[..HEADER_BYTES].copy_from_slice(&request.header());
        assert_eq!(Request::parse(&datagram), Some(request));
        let mut reply = [0; 1024];
        reply[..HEADER_BYTES].copy_from_slice(&request.reply_header(3));
        assert_eq!(parse_reply(&reply), Some((request.cookie, 3)));
        assert_eq!(parse_reply(&reply[..1023]), None);
    }

    #[test]
    fn what_would_be_too_much_is_not_answered() {
        let datagram = |reply_bytes, replies| {
            let mut datagram = [0; MIN_REQUEST_BYTES];
            datagram[..HEADER_BYTES].copy_from_slice(&Request { cookie: 1, reply_bytes, replies }.header());
            datagram
        };
        assert!(Request::parse(&datagram(MAX_REPLY_BYTES, MAX_REPLIES)).is_some());
        for (reply_bytes, replies) in [(11, 1), (MAX_REPLY_BYTES + 1, 1), (1024, 0), (1024, MAX_REPLIES + 1)]
        {
            assert_eq!(Request::parse(&datagram(reply_bytes, replies)), None, "{reply_bytes} {replies}");
        }
        assert_eq!(Request::parse(&datagram(1024, 1)[..MIN_REQUEST_BYTES - 1]), None);
    }
}
