//! What happened to frames, by name.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ingress::DropReason;

/// Why a frame that somebody wanted to send was not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendDrop {
    /// Not an IPv4 packet behind room for an Ethernet header.
    NotIpv4,
    /// No address yet, or a far destination and no gateway.
    NoRoute,
    /// Nobody answers for the next hop's address.
    NoNeighbour,
    /// Too many frames wait for answers to ARP requests.
    TooManyWaiting,
    /// The card took no more.
    CardFull,
}

impl SendDrop {
    pub const ALL: [SendDrop; 5] = [
        SendDrop::NotIpv4,
        SendDrop::NoRoute,
        SendDrop::NoNeighbour,
        SendDrop::TooManyWaiting,
        SendDrop::CardFull,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            SendDrop::NotIpv4 => "not IPv4",
            SendDrop::NoRoute => "no route",
            SendDrop::NoNeighbour => "next hop does not answer",
            SendDrop::TooManyWaiting => "too many wait for ARP",
            SendDrop::CardFull => "card full",
        }
    }
}

const RECEIVE_DROPS: usize = DropReason::ALL.len();
const SEND_DROPS: usize = SendDrop::ALL.len();

/// A reason and how often it applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DropCount {
    pub name: &'static str,
    pub frames: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    received: [AtomicU64; RECEIVE_DROPS],
    sending: [AtomicU64; SEND_DROPS],
    /// Frames handed to bound UDP handlers.
    pub to_handlers: AtomicU64,
    /// Frames that the forwarder took.
    pub to_forwarder: AtomicU64,
    /// Frames handed to the TCP/IP library.
    pub to_library: AtomicU64,
}

impl Counters {
    pub fn received(&self, reason: DropReason) {
        self.received[reason.index()].fetch_add(1, Relaxed);
    }

    pub fn not_sent(&self, reason: SendDrop, frames: usize) {
        self.sending[reason as usize].fetch_add(frames as u64, Relaxed);
    }

    pub fn receive_drops(&self) -> Vec<DropCount> {
        DropReason::ALL
            .iter()
            .map(|reason| DropCount {
                name: reason.name(),
                frames: self.received[reason.index()].load(Relaxed),
            })
            .collect()
    }

    pub fn send_drops(&self) -> Vec<DropCount> {
        SendDrop::ALL
            .iter()
            .map(|reason| DropCount {
                name: reason.name(),
                frames: self.sending[*reason as usize].load(Relaxed),
            })
            .collect()
    }
}
