//! What a card counts. Each counter is an atomic of its own: they are read by the shell at any
//! time and need not agree with each other.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kcore::net::NetStats;

#[derive(Default)]
pub(crate) struct Counters {
    pub rx_frames: AtomicU64,
    pub rx_bytes: AtomicU64,
    pub rx_dropped: AtomicU64,
    pub rx_errors: AtomicU64,
    pub tx_frames: AtomicU64,
    pub tx_bytes: AtomicU64,
    pub tx_dropped: AtomicU64,
    pub interrupts: AtomicU64,
    /// Writes of a tail register.
    pub doorbells: AtomicU64,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Relaxed);
}

impl Counters {
    pub fn snapshot(&self) -> NetStats {
        NetStats {
            rx_frames: self.rx_frames.load(Relaxed),
            rx_bytes: self.rx_bytes.load(Relaxed),
            rx_dropped: self.rx_dropped.load(Relaxed),
            rx_errors: self.rx_errors.load(Relaxed),
            tx_frames: self.tx_frames.load(Relaxed),
            tx_bytes: self.tx_bytes.load(Relaxed),
            tx_dropped: self.tx_dropped.load(Relaxed),
            interrupts: self.interrupts.load(Relaxed),
            doorbells: self.doorbells.load(Relaxed),
        }
    }
}
