//! Who gets the datagrams of which UDP port.
//!
//! The table is read for every datagram in the receive softirq. Its lock is held for the lookup
//! alone; what keeps a handler from being torn down while a datagram is in it is a count of
//! callers inside, taken under the same lock. [`Binding`]'s drop removes the entry and then waits
//! for that count, so that whoever unbinds knows that its handler is never called again.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use ingress::UdpMeta;
use kcore::balance::Whose;
use kcore::frame::NetFrame;
use kcore::sync::SpinLock;
use kcore::task;

/// How long an unbind waits between looks at a handler that is still inside.
const UNBIND_WAIT_NS: u64 = 100_000;

/// The port that the node's DHCP client listens on.
const DHCP_CLIENT_PORT: u16 = 68;

/// Gets the datagrams of a port. Called in the receive softirq of the card, never twice at once:
/// it must not sleep.
pub trait UdpHandler: Send + Sync {
    /// Takes a datagram. The frame belongs to the handler from here on: to keep, to give to a
    /// device, to send or to drop, from any context. On a jumbo link there may be further frames
    /// behind it (`NetFrame::detach`), all of whose bytes are payload; the headers are in this one.
    fn datagram(&self, frame: NetFrame, meta: &UdpMeta);

    /// The batch of frames that brought this handler datagrams is over: the moment for wake-ups.
    fn batch_done(&self) {}
}

/// Whether the stack looks at UDP checksums before it calls the handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumPolicy {
    /// A wrong one is a counted drop. Reads the whole payload.
    Verify,
    /// The handler has its own means, or trusts the link: the payload is not read.
    Ignore,
}

/// Why a port cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindError {
    InUse(u16),
    /// Port 0 is no port; 68 is the node's own DHCP client's.
    Reserved(u16),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::InUse(port) => write!(f, "UDP port {port} is in use: choose another"),
            BindError::Reserved(port) => write!(f, "UDP port {port} is reserved: choose another"),
        }
    }
}

impl core::error::Error for BindError {}

struct Bound {
    port: u16,
    policy: ChecksumPolicy,
    handler: Arc<dyn UdpHandler>,
    /// Callers in the handler now. Raised only under the table's lock, while the entry is in it.
    inside: AtomicUsize,
    /// It got datagrams in this batch.
    in_batch: AtomicBool,
    datagrams: AtomicU64,
}

pub(crate) struct Handlers {
    table: SpinLock<Vec<Arc<Bound>>>,
    /// Some entry has `in_batch` set: saves the walk at the end of other batches.
    batch_open: AtomicBool,
}

/// The right to call a handler.
pub(crate) struct Inside(Arc<Bound>);

impl Inside {
    fn enter(bound: &Arc<Bound>) -> Inside {
        bound.inside.fetch_add(1, Acquire);
        Inside(bound.clone())
    }

    pub fn policy(&self) -> ChecksumPolicy {
        self.0.policy
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Release);
    }
}

impl Handlers {
    pub fn new() -> Handlers {
        Handlers { table: SpinLock::new(Vec::new()), batch_open: AtomicBool::new(false) }
    }

    pub fn bind(
        self: &Arc<Self>,
        port: u16,
        policy: ChecksumPolicy,
        handler: Arc<dyn UdpHandler>,
    ) -> Result<Binding, BindError> {
        if port == 0 || port == DHCP_CLIENT_PORT {
            return Err(BindError::Reserved(port));
        }
        let bound = Arc::new(Bound {
            port,
            policy,
            handler,
            inside: AtomicUsize::new(0),
            in_batch: AtomicBool::new(false),
            datagrams: AtomicU64::new(0),
        });
        let mut table = self.table.lock();
        if table.iter().any(|other| other.port == port) {
            return Err(BindError::InUse(port));
        }
        table.push(bound.clone());
        Ok(Binding { handlers: self.clone(), bound })
    }

    /// The handler of a port, if it is bound.
    pub fn enter(&self, port: u16) -> Option<Inside> {
        self.table.lock().iter().find(|bound| bound.port == port).map(Inside::enter)
    }

    pub fn deliver(&self, inside: &Inside, frame: NetFrame, meta: &UdpMeta) {
        let bound = &inside.0;
        bound.datagrams.fetch_add(1, Relaxed);
        bound.in_batch.store(true, Relaxed);
        self.batch_open.store(true, Relaxed);
        bound.handler.datagram(frame, meta);
    }

    /// Tells those that got datagrams in this batch that it is over.
    pub fn batch_done(&self) {
        if !self.batch_open.swap(false, Relaxed) {
            return;
        }
        loop {
            let next = {
                let table = self.table.lock();
                table.iter().find(|bound| bound.in_batch.swap(false, Relaxed)).map(Inside::enter)
            };
            match next {
                Some(inside) => inside.0.handler.batch_done(),
                None => return,
            }
        }
    }

    pub fn is_bound(&self, port: u16) -> bool {
        port == DHCP_CLIENT_PORT || self.table.lock().iter().any(|bound| bound.port == port)
    }

    /// How many ports are bound.
    pub fn count(&self, whose: &Whose) -> usize {
        self.table.lock().iter().filter(|bound| whose.has(&*bound.handler)).count()
    }

    /// Bound ports and how many datagrams each got.
    pub fn list(&self) -> Vec<(u16, u64)> {
        let table = self.table.lock();
        table.iter().map(|bound| (bound.port, bound.datagrams.load(Relaxed))).collect()
    }
}

/// A bound port. Dropped, by a task, it unbinds the port and returns once nobody is inside the
/// handler any more.
#[must_use = "dropping the binding unbinds the port"]
pub struct Binding {
    handlers: Arc<Handlers>,
    bound: Arc<Bound>,
}

impl Binding {
    pub fn port(&self) -> u16 {
        self.bound.port
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let removed = {
            let mut table = self.handlers.table.lock();
            let place = table.iter().position(|other| Arc::ptr_eq(other, &self.bound));
            place.map(|place| table.swap_remove(place))
        };
        drop(removed);
        // With the entry gone nobody enters; the fence pairs with the release of the last to leave.
        while self.bound.inside.fetch_add(0, AcqRel) != 0 {
            task::sleep_ns(UNBIND_WAIT_NS);
        }
    }
}
