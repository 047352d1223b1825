//! The frames' side of the switch: ports with queues, and the moving of frames.
//!
//! [`switch::Switch`] decides and owns nothing; this file owns the frames. A batch that
//! came in at a port is decided under one lock and handed to each destination as one
//! chain after the lock is gone, so that a destination may take locks of its own and
//! wake others. A frame for several ports is copied for all but the last.
//!
//! Nothing here waits. A queue that is full drops, and counts.

use alloc::sync::Arc;
use alloc::vec::Vec;

use kcore::frame::{FrameChain, NetFrame};
use kcore::sync::SpinLock;
use netwire::MacAddr;
use switch::{AttachError, BindError, Decision, PortCounters, PortId, Settings, SourceRule, Switch};

/// What is plugged into a port.
pub trait Port: Send + Sync {
    /// Takes the frames: queues them, or drops and counts them. Called without a lock
    /// of the fabric, from tasks and softirq tasks.
    fn deliver(&self, frames: FrameChain);
}

/// Why nothing could be plugged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlugError {
    Attach(AttachError),
    Bind(BindError),
}

impl core::fmt::Display for PlugError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            PlugError::Attach(AttachError::Full) => f.write_str("every port of the switch is in use"),
            PlugError::Attach(error) => write!(f, "the switch has no port for it: {error:?}"),
            PlugError::Bind(error) => write!(f, "the switch does not take its address: {error:?}"),
        }
    }
}

struct Plugged {
    id: PortId,
    port: Arc<dyn Port>,
}

struct Inner {
    switch: Switch,
    ports: Vec<Plugged>,
    /// Copies for which there was no frame.
    copies_lost: u64,
}

/// The node's one switch.
pub struct Fabric {
    inner: SpinLock<Inner>,
}

impl Fabric {
    pub fn new(settings: Settings) -> Fabric {
        Fabric {
            inner: SpinLock::new(Inner { switch: Switch::new(settings), ports: Vec::new(), copies_lost: 0 }),
        }
    }

    /// Plugs `port` in as the tenant of `mac`: it may send from that address alone. The
    /// plug's drop pulls it out.
    pub fn plug(self: &Arc<Self>, mac: MacAddr, port: Arc<dyn Port>) -> Result<Plug, PlugError> {
        let mut inner = self.inner.lock();
        let id = inner.switch.attach(SourceRule::BoundOnly).map_err(PlugError::Attach)?;
        if let Err(error) = inner.switch.bind(id, mac) {
            inner.switch.detach(id);
            return Err(PlugError::Bind(error));
        }
        inner.ports.push(Plugged { id, port });
        Ok(Plug { fabric: self.clone(), id })
    }

    /// Carries a batch that came in at `ingress`. Returns how many packets it did not take, because
    /// they have several pieces: the ports copy single frames.
    fn carry(&self, ingress: PortId, mut frames: FrameChain, now_ns: u64) -> usize {
        let mut refused = 0;
        let mut out: Vec<(Arc<dyn Port>, FrameChain)> = Vec::new();
        {
            let mut inner = self.inner.lock();
            while let Some(frame) = frames.pop() {
                if frame.piece_count() > 1 {
                    refused += 1;
                    continue;
                }
                // A dropped frame is counted by the switch, under its reason.
                let Decision::Forward(ports) = inner.switch.decide(ingress, frame.bytes(), now_ns) else {
                    continue;
                };
                let mut rest = ports.iter();
                let Some(mut next) = rest.next() else { continue };
                for following in rest {
                    match copy_of(&frame) {
                        Some(copy) => push(&inner.ports, &mut out, next, copy),
                        None => inner.copies_lost += 1,
                    }
                    next = following;
                }
                push(&inner.ports, &mut out, next, frame);
            }
        }
        for (port, frames) in out {
            port.deliver(frames);
        }
        refused
    }

    /// Frames that were to be flooded and found no memory for their copies.
    pub fn copies_lost(&self) -> u64 {
        self.inner.lock().copies_lost
    }
}

/// Puts `frame` on the chain for port `id`.
fn push(ports: &[Plugged], out: &mut Vec<(Arc<dyn Port>, FrameChain)>, id: PortId, frame: NetFrame) {
    let Some(plugged) = ports.iter().find(|plugged| plugged.id == id) else { return };
    // Batches go to one or two ports: a search costs less than a table for all.
    match out.iter_mut().find(|(port, _)| Arc::ptr_eq(port, &plugged.port)) {
        Some((_, chain)) => chain.push(frame),
        None => {
            let mut chain = FrameChain::new();
            chain.push(frame);
            out.push((plugged.port.clone(), chain));
        }
    }
}

fn copy_of(frame: &NetFrame) -> Option<NetFrame> {
    let mut copy = NetFrame::alloc()?;
    copy.set_len(frame.len());
    copy.bytes_mut().copy_from_slice(frame.bytes());
    Some(copy)
}

/// A port in use. Frames go in by it; dropping it unplugs.
pub struct Plug {
    fabric: Arc<Fabric>,
    id: PortId,
}

impl Plug {
    /// Returns how many packets were not taken, because they have several pieces.
    pub fn send(&self, frames: FrameChain, now_ns: u64) -> usize {
        if frames.is_empty() { 0 } else { self.fabric.carry(self.id, frames, now_ns) }
    }

    pub fn counters(&self) -> PortCounters {
        *self.fabric.inner.lock().switch.counters(self.id)
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        let plugged = {
            let mut inner = self.fabric.inner.lock();
            inner.switch.detach(self.id);
            let place = inner.ports.iter().position(|plugged| plugged.id == self.id);
            place.map(|place| inner.ports.swap_remove(place))
        };
        // What was plugged in, and its queue, goes without the lock.
        drop(plugged);
    }
}

/// A bounded queue of frames between the switch and what reads a port.
pub struct FrameQueue {
    /// Taken alone or as the last but for the frames' pool, whose lock comes after it.
    inner: SpinLock<Queue>,
    limit: usize,
}

struct Queue {
    frames: FrameChain,
    dropped: u64,
}

impl FrameQueue {
    pub fn new(limit: usize) -> FrameQueue {
        FrameQueue { inner: SpinLock::new(Queue { frames: FrameChain::new(), dropped: 0 }), limit }
    }

    /// Queues what there is room for and drops the rest. How many wait now.
    pub fn push(&self, mut frames: FrameChain) -> usize {
        let mut inner = self.inner.lock();
        let room = self.limit.saturating_sub(inner.frames.len());
        if frames.len() <= room {
            inner.frames.append(&mut frames);
        } else {
            inner.dropped += (frames.len() - room) as u64;
            for frame in core::iter::from_fn(|| frames.pop()).take(room) {
                inner.frames.push(frame);
            }
        }
        inner.frames.len()
    }

    /// Takes the frame that has waited longest.
    pub fn pop(&self) -> Option<NetFrame> {
        self.inner.lock().frames.pop()
    }

    /// Takes everything that waits, behind what `into` has already.
    pub fn take(&self, into: &mut FrameChain) {
        into.append(&mut self.inner.lock().frames);
    }

    pub fn dropped(&self) -> u64 {
        self.inner.lock().dropped
    }

    pub fn limit(&self) -> usize {
        self.limit
    }
}
