//! Random numbers of the processor.

use x86_64::instructions::random::RdRand;

/// Sixty-four bits from RDRAND (SDM vol. 2, RDRAND), mixed with the time-stamp counter, which
/// alone stands in where the processor has none: enough to key a hash table, not a secret.
pub fn seed() -> u64 {
    let hardware = RdRand::new().and_then(RdRand::get_u64).unwrap_or(0);
    hardware ^ super::cpu::tsc().wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32)
}

/// How often RDRAND is asked before it counts as failed (SDM vol. 1, 7.3.17.1).
const TRIES: usize = 10;

/// Sixty-four bits from RDRAND and nothing else; `None` where the processor has none, or none now.
pub fn hardware() -> Option<u64> {
    let generator = RdRand::new()?;
    (0..TRIES).find_map(|_| generator.get_u64())
}
