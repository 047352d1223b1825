//! The clock, and the calendar.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the calendar showed at boot, in ns since 1970; 0 where there is no calendar.
static UNIX_AT_BOOT_NS: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds since boot; never goes back, the same on every CPU.
pub fn now_ns() -> u64 {
    arch::clock::now_ns()
}

/// Nanoseconds since 1970 at boot, by the battery-backed clock, to the second; 0 if it shows no
/// date. Add [`now_ns`] for the calendar's time now.
pub fn unix_at_boot_ns() -> u64 {
    UNIX_AT_BOOT_NS.load(Relaxed)
}

/// Reads the calendar. Once, on the boot CPU.
pub(crate) fn init() {
    if let Some(seconds) = arch::rtc::unix_seconds() {
        UNIX_AT_BOOT_NS.store((seconds * 1_000_000_000).saturating_sub(now_ns()), Relaxed);
    }
}
