//! Challenges that a server need not remember.
//!
//! A challenge is a keyed hash of what it is for: the client's address and port, its nonce, and the
//! time, in units of eight seconds. Whoever sends one back received it at that address a short while
//! ago, and a flood of HELLOs costs the server no memory. The secret lives as long as the service.

use core::net::SocketAddrV4;

use netblk_proto::v2::{CHALLENGE_BYTES, NONCE_BYTES};
use siphasher::sip128::SipHasher24;

/// A unit of a challenge's time.
pub const CHALLENGE_UNIT_NS: u64 = 8_000_000_000;

/// Makes challenges and knows them again.
pub struct Challenger {
    secret: [u8; 16],
}

impl Challenger {
    /// With a random secret.
    pub const fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    /// The challenge for a client that says hello now.
    pub fn challenge(
        &self,
        client: SocketAddrV4,
        nonce: &[u8; NONCE_BYTES],
        now_ns: u64,
    ) -> [u8; CHALLENGE_BYTES] {
        self.of_unit(client, nonce, now_ns / CHALLENGE_UNIT_NS)
    }

    /// Whether a challenge is one that this client was given in this unit of time or the one before.
    pub fn holds(
        &self,
        client: SocketAddrV4,
        nonce: &[u8; NONCE_BYTES],
        challenge: &[u8; CHALLENGE_BYTES],
        now_ns: u64,
    ) -> bool {
        let unit = now_ns / CHALLENGE_UNIT_NS;
        // Whole words are compared, so that the time taken tells nothing about where they differ.
        let same = |unit| {
            u128::from_ne_bytes(self.of_unit(client, nonce, unit)) ^ u128::from_ne_bytes(*challenge) == 0
        };
        same(unit) || unit.checked_sub(1).is_some_and(same)
    }

    fn of_unit(&self, client: SocketAddrV4, nonce: &[u8; NONCE_BYTES], unit: u64) -> [u8; CHALLENGE_BYTES] {
        let mut message = [0; 4 + 2 + NONCE_BYTES + 8];
        message[..4].copy_from_slice(&client.ip().octets());
        message[4..6].copy_from_slice(&client.port().to_be_bytes());
        message[6..6 + NONCE_BYTES].copy_from_slice(nonce);
        message[6 + NONCE_BYTES..].copy_from_slice(&unit.to_be_bytes());
        SipHasher24::new_with_key(&self.secret).hash(&message).as_u128().to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_challenge_holds_for_its_client_and_a_while(
            ip: [u8; 4], port: u16, nonce: [u8; 16], now_ns in 0..u64::MAX / 2, later_ns in 0..4 * CHALLENGE_UNIT_NS,
            other_ip: [u8; 4], other_port: u16, other_nonce: [u8; 16], secret: [u8; 16],
        ) {
            let challenger = Challenger::new(secret);
            let client = SocketAddrV4::new(Ipv4Addr::from(ip), port);
            let challenge = challenger.challenge(client, &nonce, now_ns);
            let units = (now_ns + later_ns) / CHALLENGE_UNIT_NS - now_ns / CHALLENGE_UNIT_NS;
            prop_assert_eq!(challenger.holds(client, &nonce, &challenge, now_ns + later_ns), units <= 1);
            let elsewhere = SocketAddrV4::new(Ipv4Addr::from(other_ip), other_port);
            prop_assert_eq!(challenger.holds(elsewhere, &nonce, &challenge, now_ns), elsewhere == client);
            prop_assert_eq!(challenger.holds(client, &other_nonce, &challenge, now_ns), other_nonce == nonce);
        }
    }
}
