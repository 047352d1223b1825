/// Per CPU.
pub fn init() {}
pub fn eoi() {}
pub fn send_ipi(cpu: usize, vector: u8) {}
pub fn send_nmi(cpu: usize) {}
pub fn timer_calibrate() {}
/// One-shot; may fire early where `ns_from_now` exceeds the counter (seconds), never late.
pub fn timer_arm(ns_from_now: u64) {}
pub fn timer_disarm() {}
pub fn msi_message(cpu: usize, vector: u8) -> (u64, u32) { todo!() }
