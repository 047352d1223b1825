//! The node's own port of the switch, dressed as a network card.
//!
//! The node's stack, its shell's `ping` and the NAT know cards ([`NetDevice`]) and
//! nothing of a switch, so the port is one: what the stack transmits goes into the
//! switch, and what the switch delivers reaches the receiver in a softirq, in batches,
//! as from a real card. The address that guests use as their gateway is the stack's
//! address on this card.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kcore::frame::FrameChain;
use kcore::net::{NetDevice, NetStats, Receiver};
use kcore::softirq::{self, Owned, Softirq};
use kcore::sync::{Once, SpinLock};
use netwire::MacAddr;

use crate::fabric::{Fabric, FrameQueue, Plug, PlugError, Port};
use crate::gateway::Gateway;

/// The card's name.
pub const NAME: &str = "switch0";
/// Frames that may wait for the node: a burst of each of two guests.
const QUEUE_FRAMES: usize = 512;
/// Where the stack runs for the uplink, too: the frames of a connection from there to a
/// guest then stay on one CPU.
const SOFTIRQ_CPU: usize = 0;

struct NodePort {
    queue: FrameQueue,
    softirq: Once<Softirq>,
    receiver: SpinLock<Option<Arc<dyn Receiver>>>,
    /// Sees the frames before the receiver does.
    gateway: SpinLock<Option<Arc<Gateway>>>,
    received_frames: AtomicU64,
    received_bytes: AtomicU64,
    dropped: AtomicU64,
}

impl Port for NodePort {
    fn deliver(&self, frames: FrameChain) {
        self.queue.push(frames);
        if let Some(softirq) = self.softirq.get() {
            softirq.raise_on(SOFTIRQ_CPU);
        }
    }
}

impl NodePort {
    /// The softirq's work.
    fn drain(&self) {
        let mut frames = FrameChain::new();
        self.queue.take(&mut frames);
        let receiver = self.receiver.lock().clone();
        let gateway = self.gateway.lock().clone();
        while let Some(frame) = frames.pop() {
            self.received_frames.fetch_add(1, Relaxed);
            self.received_bytes.fetch_add(frame.len() as u64, Relaxed);
            let own = match &gateway {
                Some(gateway) => gateway.outbound(frame),
                None => Some(frame),
            };
            match (own, &receiver) {
                (Some(frame), Some(receiver)) => receiver.receive(frame),
                (Some(_), None) => {
                    self.dropped.fetch_add(1, Relaxed);
                }
                (None, _) => {}
            }
        }
        if let Some(gateway) = gateway {
            gateway.batch_done();
        }
        if let Some(receiver) = receiver {
            receiver.receive_done();
        }
    }
}

/// See the module.
pub struct SwitchDevice {
    mac: MacAddr,
    port: Arc<NodePort>,
    plug: Plug,
    /// Ends with the device.
    _softirq: Owned,
    sent_frames: AtomicU64,
    /// Packets of several pieces, which the switch does not carry.
    refused_packets: AtomicU64,
}

/// Why the node has no port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePortError {
    Plug(PlugError),
    NoSoftirq,
}

impl core::fmt::Display for NodePortError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            NodePortError::Plug(error) => error.fmt(f),
            NodePortError::NoSoftirq => f.write_str("every softirq is taken"),
        }
    }
}

impl SwitchDevice {
    /// Plugs the node into `fabric`.
    pub fn new(fabric: &Arc<Fabric>, mac: MacAddr) -> Result<Arc<SwitchDevice>, NodePortError> {
        let port = Arc::new(NodePort {
            queue: FrameQueue::new(QUEUE_FRAMES),
            softirq: Once::new(),
            receiver: SpinLock::new(None),
            gateway: SpinLock::new(None),
            received_frames: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        });
        let plug = fabric.plug(mac, port.clone()).map_err(NodePortError::Plug)?;
        let work = port.clone();
        let softirq = softirq::register_owned("switch", Arc::new(move || work.drain()))
            .map_err(|_| NodePortError::NoSoftirq)?;
        // Set here alone.
        let _ = port.softirq.set(softirq.softirq());
        Ok(Arc::new(SwitchDevice {
            mac,
            port,
            plug,
            _softirq: softirq,
            sent_frames: AtomicU64::new(0),
            refused_packets: AtomicU64::new(0),
        }))
    }
}

impl SwitchDevice {
    /// Has `gateway` see the guests' frames first.
    pub fn set_gateway(&self, gateway: Arc<Gateway>) {
        *self.port.gateway.lock() = Some(gateway);
    }

    /// Delivers nothing more, to nobody: the stack and the gateway hold the device, so it must not
    /// hold them. Frames that wait are dropped.
    pub fn disconnect(&self) {
        let gateway = self.port.gateway.lock().take();
        let receiver = self.port.receiver.lock().take();
        self.port.queue.take(&mut FrameChain::new());
        softirq::quiesce();
        drop((gateway, receiver));
    }
}

impl NetDevice for SwitchDevice {
    fn name(&self) -> &str {
        NAME
    }

    fn mac(&self) -> [u8; 6] {
        self.mac.0
    }

    fn transmit(&self, chain: &mut FrameChain) -> usize {
        let frames = core::mem::take(chain);
        let count = frames.len();
        let refused = self.plug.send(frames, kcore::time::now_ns());
        self.sent_frames.fetch_add((count - refused) as u64, Relaxed);
        self.refused_packets.fetch_add(refused as u64, Relaxed);
        count
    }

    fn set_receiver(&self, receiver: Arc<dyn Receiver>) {
        *self.port.receiver.lock() = Some(receiver);
    }

    fn stats(&self) -> NetStats {
        let counters = self.plug.counters();
        NetStats {
            rx_frames: self.port.received_frames.load(Relaxed),
            rx_bytes: self.port.received_bytes.load(Relaxed),
            rx_dropped: self.port.dropped.load(Relaxed) + self.port.queue.dropped(),
            tx_frames: self.sent_frames.load(Relaxed),
            tx_bytes: counters.bytes_in,
            tx_dropped: self.refused_packets.load(Relaxed),
            ..NetStats::default()
        }
    }
}
