//! The clock.

/// Nanoseconds since boot; never goes back, the same on every CPU.
pub fn now_ns() -> u64 {
    arch::clock::now_ns()
}
