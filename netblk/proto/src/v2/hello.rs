//! The bodies of HELLO and CONNECT: how a client proves that it receives at its address.
//!
//! ```text
//! HELLO     client_nonce 16 | zeros to 192
//! its reply challenge 16 | epoch 8 | flags 2 (bit 0: a key is needed) | zeros to 32
//! CONNECT   client_nonce 16 | challenge 16 | epoch 8 | replaces 8 | zeros to 192
//! its reply INFO, 128 bytes
//! ```
//!
//! The zeros make a request longer than any reply to it: whoever sends one in another's name makes that
//! other receive less than was sent.

/// Bytes of the client's random number.
pub const NONCE_BYTES: usize = 16;
/// Bytes of the server's answer to it.
pub const CHALLENGE_BYTES: usize = 16;
/// Bytes that follow the header of HELLO and of CONNECT.
pub const HELLO_BODY_BYTES: usize = 192;
/// Bytes that follow the header of a reply to HELLO.
pub const HELLO_REPLY_BYTES: usize = 32;

/// No reply to either is longer than its request: the reply to CONNECT carries INFO.
const _: () = assert!(HELLO_REPLY_BYTES <= HELLO_BODY_BYTES && super::INFO_BYTES <= HELLO_BODY_BYTES);

const FLAG_KEY_NEEDED: u16 = 1 << 0;

/// A body that is not as long as its op wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyError {
    /// Bytes that were there.
    pub bytes: usize,
}

/// Takes the next bytes of a body that is known to be long enough for its fields.
fn take<const N: usize>(body: &mut &[u8]) -> [u8; N] {
    match body.split_first_chunk() {
        Some((field, rest)) => {
            *body = rest;
            *field
        }
        None => [0; N],
    }
}

fn exactly(bytes: usize, body: &[u8]) -> Result<&[u8], BodyError> {
    if body.len() == bytes { Ok(body) } else { Err(BodyError { bytes: body.len() }) }
}

/// What follows a HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloBody {
    /// Random, fresh for every session.
    pub client_nonce: [u8; NONCE_BYTES],
}

impl HelloBody {
    /// Reads it; the padding may hold anything.
    ///
    /// # Errors
    /// [`BodyError`] if it is not 192 bytes long.
    pub fn parse(body: &[u8]) -> Result<Self, BodyError> {
        let mut rest = exactly(HELLO_BODY_BYTES, body)?;
        Ok(Self { client_nonce: take(&mut rest) })
    }

    /// The 192 bytes.
    pub fn to_bytes(&self) -> [u8; HELLO_BODY_BYTES] {
        let mut bytes = [0; HELLO_BODY_BYTES];
        bytes[..NONCE_BYTES].copy_from_slice(&self.client_nonce);
        bytes
    }
}

/// What follows a reply to HELLO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloReply {
    /// To be sent back in CONNECT, within some seconds.
    pub challenge: [u8; CHALLENGE_BYTES],
    /// Chosen at random whenever the service starts: another one means that it was restarted.
    pub epoch: u64,
    /// Whether the service has a key.
    pub key_needed: bool,
}

impl HelloReply {
    /// Reads it; unknown flags and the padding are ignored.
    ///
    /// # Errors
    /// [`BodyError`] if it is not 32 bytes long.
    pub fn parse(body: &[u8]) -> Result<Self, BodyError> {
        let mut rest = exactly(HELLO_REPLY_BYTES, body)?;
        Ok(Self {
            challenge: take(&mut rest),
            epoch: u64::from_be_bytes(take(&mut rest)),
            key_needed: u16::from_be_bytes(take(&mut rest)) & FLAG_KEY_NEEDED != 0,
        })
    }

    /// The 32 bytes.
    pub fn to_bytes(&self) -> [u8; HELLO_REPLY_BYTES] {
        let mut bytes = [0; HELLO_REPLY_BYTES];
        let flags = if self.key_needed { FLAG_KEY_NEEDED } else { 0 };
        bytes[..16].copy_from_slice(&self.challenge);
        bytes[16..24].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[24..26].copy_from_slice(&flags.to_be_bytes());
        bytes
    }
}

/// What follows a CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectBody {
    /// The HELLO's.
    pub client_nonce: [u8; NONCE_BYTES],
    /// The server's answer to it.
    pub challenge: [u8; CHALLENGE_BYTES],
    /// The server's, as it said it.
    pub epoch: u64,
    /// The session that this one takes the place of, or 0. The server ends it first: nothing that was
    /// sent in it is carried out once the new session exists.
    pub replaces: u64,
}

impl ConnectBody {
    /// Reads it; the padding may hold anything.
    ///
    /// # Errors
    /// [`BodyError`] if it is not 192 bytes long.
    pub fn parse(body: &[u8]) -> Result<Self, BodyError> {
        let mut rest = exactly(HELLO_BODY_BYTES, body)?;
        Ok(Self {
            client_nonce: take(&mut rest),
            challenge: take(&mut rest),
            epoch: u64::from_be_bytes(take(&mut rest)),
            replaces: u64::from_be_bytes(take(&mut rest)),
        })
    }

    /// The 192 bytes.
    pub fn to_bytes(&self) -> [u8; HELLO_BODY_BYTES] {
        let mut bytes = [0; HELLO_BODY_BYTES];
        bytes[..16].copy_from_slice(&self.client_nonce);
        bytes[16..32].copy_from_slice(&self.challenge);
        bytes[32..40].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.replaces.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bodies_are_read_back(nonce: [u8; 16], challenge: [u8; 16], epoch: u64, replaces: u64, key_needed: bool) {
            let hello = HelloBody { client_nonce: nonce };
            prop_assert_eq!(HelloBody::parse(&hello.to_bytes()), Ok(hello));
            let reply = HelloReply { challenge, epoch, key_needed };
            prop_assert_eq!(HelloReply::parse(&reply.to_bytes()), Ok(reply));
            let connect = ConnectBody { client_nonce: nonce, challenge, epoch, replaces };
            prop_assert_eq!(ConnectBody::parse(&connect.to_bytes()), Ok(connect));
        }

        #[test]
        fn bodies_of_another_length_are_none(body in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(HelloBody::parse(&body).is_ok(), body.len() == HELLO_BODY_BYTES);
            prop_assert_eq!(ConnectBody::parse(&body).is_ok(), body.len() == HELLO_BODY_BYTES);
            prop_assert_eq!(HelloReply::parse(&body).is_ok(), body.len() == HELLO_REPLY_BYTES);
        }
    }
}
