//! Keys and tags: who said this, and is it whole?
//!
//! A session has two keys, one for each direction, so that nothing one side sent can be sent back to
//! it as if it were the other's. Both are derived from what HELLO and CONNECT exchanged and from the
//! service's secret; a service without one uses zeros, and then a tag only says "from the host that
//! opened this session" to whoever did not see it being opened.
//!
//! A tag is SipHash-2-4 with 128 bits over the header and the datagram's length: 54 bytes, a few hundred
//! cycles, cheap enough to make and to check one for every datagram in the receive path. It does NOT
//! cover sectors: no CPU of the node reads those, and a tag over them would have to. What a CPU writes
//! or reads in any case, the bodies of INFO and CONNECT, it covers.

use core::fmt;
use core::hash::Hasher;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::codes::Op;
use super::header::TAGGED_BYTES;
use super::hello::{CHALLENGE_BYTES, NONCE_BYTES};
use crate::header::REPLY_BIT;

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// What the derivation starts with, so that the same secret used elsewhere gives other keys.
const LABEL: &[u8] = b"nos netblk 2";

/// A service's secret: 32 bytes that its clients know too. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PreSharedKey([u8; Self::BYTES]);

/// Why a text is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyError {
    /// It does not have 64 digits.
    Length(usize),
    /// One of its characters is no hexadecimal digit; which one, counted from 1. (The text itself is
    /// not repeated: it may be a secret but for one letter.)
    Digit(usize),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(length) => write!(f, "a key has 64 hexadecimal digits, and this has {length}"),
            Self::Digit(place) => write!(f, "a key has 64 hexadecimal digits, and character {place} is none"),
        }
    }
}

impl core::error::Error for KeyError {}

impl PreSharedKey {
    /// Bytes of a key.
    pub const BYTES: usize = 32;

    /// What a service without a key uses.
    pub const NONE: Self = Self([0; Self::BYTES]);

    /// These bytes.
    pub const fn new(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Reads 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`KeyError`], which says what is wrong without saying what was written.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let length = text.chars().count();
        if length != Self::BYTES * 2 {
            return Err(KeyError::Length(length));
        }
        let mut key = [0; Self::BYTES];
        for (place, character) in text.chars().enumerate() {
            let digit = character.to_digit(16).ok_or(KeyError::Digit(place + 1))?;
            // A digit is less than 16.
            key[place / 2] = key[place / 2] << 4 | digit as u8;
        }
        Ok(Self(key))
    }
}

impl fmt::Debug for PreSharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PreSharedKey(not shown)")
    }
}

/// The two keys of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionKeys {
    /// For what the client sends.
    pub client_to_server: TagKey,
    /// For what the server sends.
    pub server_to_client: TagKey,
}

impl SessionKeys {
    /// HMAC-SHA-256 (RFC 2104) with the secret over the label, both sides' random numbers and the
    /// server's epoch; the first half is the client's key, the second the server's.
    pub fn derive(
        secret: &PreSharedKey,
        client_nonce: &[u8; NONCE_BYTES],
        challenge: &[u8; CHALLENGE_BYTES],
        epoch: u64,
    ) -> Self {
        // HMAC pads a key that is shorter than its hash's block with zeros (RFC 2104, section 2).
        let mut block = [0; 64];
        block[..PreSharedKey::BYTES].copy_from_slice(&secret.0);
        let mut mac = Hmac::<Sha256>::new(&block.into());
        mac.update(LABEL);
        mac.update(client_nonce);
        mac.update(challenge);
        mac.update(&epoch.to_be_bytes());
        let key: [u8; 32] = mac.finalize().into_bytes().into();
        let half = |start: usize| TagKey::new(core::array::from_fn(|index| key[start + index]));
        Self { client_to_server: half(0), server_to_client: half(16) }
    }
}

/// A key for tags of one direction. It is never shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TagKey {
    bytes: [u8; 16],
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKey(not shown)")
    }
}

impl TagKey {
    /// These bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self { bytes }
    }

    /// The tag over a header (its first 50 bytes), the number of bytes behind it, and `body`, if the
    /// header's op is one whose body a tag covers.
    pub(crate) fn tag(&self, tagged: &[u8; TAGGED_BYTES], body_bytes: usize, body: &[u8]) -> Tag {
        let mut message = [0; TAGGED_BYTES + 4];
        message[..TAGGED_BYTES].copy_from_slice(tagged);
        // No datagram has 4 GiB.
        message[TAGGED_BYTES..].copy_from_slice(&(body_bytes as u32).to_be_bytes());
        let hasher = SipHasher24::new_with_key(&self.bytes);
        let hash = if covers_body(tagged[5]) {
            let mut hasher = hasher;
            hasher.write(&message);
            hasher.write(body);
            hasher.finish128()
        } else {
            hasher.hash(&message)
        };
        Tag(hash.as_u128().to_le_bytes())
    }
}

/// Whether a tag covers what follows a header with this op.
fn covers_body(op: u8) -> bool {
    let op = op & !REPLY_BIT;
    op == Op::Info.code() || op == Op::Connect.code()
}

/// A tag. Two are compared in a time that does not depend on where they differ.
#[derive(Clone, Copy, Debug)]
pub struct Tag([u8; TAG_BYTES]);

impl Tag {
    /// What stands in place of a tag where there is no key.
    pub const NONE: Self = Self([0; TAG_BYTES]);

    /// From the wire.
    pub const fn new(bytes: [u8; TAG_BYTES]) -> Self {
        Self(bytes)
    }

    /// For the wire.
    pub const fn to_bytes(self) -> [u8; TAG_BYTES] {
        self.0
    }
}

impl PartialEq for Tag {
    /// One comparison of 128 bits: no loop that ends at the first difference.
    fn eq(&self, other: &Self) -> bool {
        u128::from_ne_bytes(self.0) ^ u128::from_ne_bytes(other.0) == 0
    }
}

impl Eq for Tag {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v2::header::{HeaderView, RequestHeader};

    #[test]
    fn a_key_is_read_from_hex_and_never_shown() {
        let text = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F";
        let key = PreSharedKey::from_hex(text).unwrap();
        assert_eq!(key, PreSharedKey::new(core::array::from_fn(|index| index as u8)));
        assert_eq!(PreSharedKey::from_hex(&text[1..]), Err(KeyError::Length(63)));
        assert_eq!(PreSharedKey::from_hex(&text.replace('F', "g")), Err(KeyError::Digit(64)));
        assert_eq!(PreSharedKey::from_hex(&text.replace("1F", "é!")), Err(KeyError::Digit(63)));
        assert!(!format!("{key:?} {:?}", TagKey::new([7; 16])).contains('7'));
    }

    #[test]
    fn the_hash_is_siphash_2_4_128_as_its_authors_publish_it() {
        // veorq/SipHash, vectors.h, vectors_sip128: key 00..0f, inputs of 0 and 1 bytes.
        let key: [u8; 16] = core::array::from_fn(|index| index as u8);
        let hash = |bytes: &[u8]| SipHasher24::new_with_key(&key).hash(bytes).as_u128().to_le_bytes();
        #[rustfmt::skip]
        assert_eq!(hash(&[]), [
            0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93,
        ]);
        #[rustfmt::skip]
        assert_eq!(hash(&[0]), [
            0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45,
        ]);
    }

    #[test]
    fn only_the_bodies_of_info_and_connect_are_covered() {
        let key = TagKey::new([1; 16]);
        for op in Op::ALL {
            let header = RequestHeader::new(op, 5, 6, 0, 4).seal(Some(&key), &[1, 2, 3, 4]);
            let changed = [&header[..], &[1, 2, 3, 5]].concat();
            let holds = HeaderView::new(&changed).unwrap().is_tagged_with(&key);
            assert_eq!(holds, !matches!(op, Op::Info | Op::Connect), "{op}");
        }
    }

    #[test]
    fn keys_depend_on_everything_that_was_exchanged() {
        let keys = |secret: u8, nonce: u8, challenge: u8, epoch: u64| {
            SessionKeys::derive(&PreSharedKey::new([secret; 32]), &[nonce; 16], &[challenge; 16], epoch)
        };
        let first = keys(0, 0, 0, 0);
        assert_ne!(first.client_to_server, first.server_to_client);
        for other in [keys(1, 0, 0, 0), keys(0, 1, 0, 0), keys(0, 0, 1, 0), keys(0, 0, 0, 1)] {
            assert_ne!(first.client_to_server, other.client_to_server);
            assert_ne!(first.server_to_client, other.server_to_client);
        }
    }
}
