//! From the card: one packet at a time, in its receive softirq.
//!
//! A jumbo packet, which takes several frames, may be a datagram for a handler. Everybody else,
//! the forwarder and what it forwards to included, sees frames of the usual length only.

use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;

use ingress::{Class, DropReason, ORDINARY_FRAME_BYTES, classify_packet, verify_udp_checksum};
use kcore::frame::NetFrame;
use kcore::net::Receiver;

use crate::handlers::ChecksumPolicy;
use crate::stack::Stack;

/// Sees inbound frames of others' flows before the node's own stack: NAT and port forwards.
///
/// It is given frames that passed the gate: addressed to our MAC and IP address, an IPv4 packet
/// that is not a fragment and whose header checksum and lengths are right, carrying TCP, ICMP, or
/// UDP to a port that no handler has. Called in the receive softirq: it must not sleep.
pub trait Forwarder: Send + Sync {
    /// Takes the frame, or gives it back for the node's own stack.
    fn inbound(&self, frame: NetFrame) -> Option<NetFrame>;

    /// The batch of frames is over: the moment for wake-ups.
    fn inbound_done(&self) {}
}

/// The stack's ear on the card.
pub(crate) struct Ear(pub Arc<Stack>);

impl Receiver for Ear {
    fn receive(&self, frame: NetFrame) {
        if let Err(reason) = self.0.take(frame) {
            self.0.counters.received(reason);
        }
    }

    fn receive_done(&self) {
        self.0.batch_done();
    }
}

impl Stack {
    fn take(&self, frame: NetFrame) -> Result<(), DropReason> {
        let behind_bytes = frame.total_len() - frame.len();
        let class = classify_packet(frame.bytes(), behind_bytes, &self.interface())?;
        match class {
            Class::Arp { message, for_us } => {
                self.output.learn(&message, for_us, &self.counters);
                if for_us { self.to_library(frame) } else { Ok(()) }
            }
            Class::Udp(meta) => match self.handlers.enter(meta.destination.port()) {
                Some(inside) => {
                    if inside.policy() == ChecksumPolicy::Verify && !verify_udp_checksum(frame.pieces()) {
                        return Err(DropReason::BadChecksum);
                    }
                    self.counters.to_handlers.fetch_add(1, Relaxed);
                    self.handlers.deliver(&inside, frame, &meta);
                    Ok(())
                }
                None => self.forward(frame),
            },
            Class::Icmp(meta) if self.pings.take(frame.bytes(), &meta) => Ok(()),
            Class::Icmp(_) | Class::Tcp => self.forward(frame),
            Class::Library => self.to_library(frame),
        }
    }

    /// Offers a frame to the forwarder, then to the library.
    fn forward(&self, frame: NetFrame) -> Result<(), DropReason> {
        check_ordinary(&frame)?;
        let forwarder = self.forwarder.lock().clone();
        let Some(forwarder) = forwarder else { return self.to_library(frame) };
        match forwarder.inbound(frame) {
            Some(frame) => self.to_library(frame),
            None => {
                self.counters.to_forwarder.fetch_add(1, Relaxed);
                self.forwarder_used.store(true, Relaxed);
                Ok(())
            }
        }
    }

    fn to_library(&self, frame: NetFrame) -> Result<(), DropReason> {
        check_ordinary(&frame)?;
        if !self.queue.push(frame) {
            return Err(DropReason::StackBusy);
        }
        self.counters.to_library.fetch_add(1, Relaxed);
        self.library_used.store(true, Relaxed);
        Ok(())
    }

    fn batch_done(&self) {
        self.handlers.batch_done();
        if self.forwarder_used.swap(false, Relaxed) {
            let forwarder = self.forwarder.lock().clone();
            if let Some(forwarder) = forwarder {
                forwarder.inbound_done();
            }
        }
        if self.library_used.swap(false, Relaxed) {
            self.wake.signal();
        }
    }
}

/// Whether anybody but a handler may have this frame.
fn check_ordinary(frame: &NetFrame) -> Result<(), DropReason> {
    if frame.total_len() > ORDINARY_FRAME_BYTES { Err(DropReason::TooLong) } else { Ok(()) }
}
