//! The guests' way out and the outside's way in: the node as a router with NAT.
//!
//! ```text
//!   guest --> switch --> node's port --outbound--> NAT --> stack of the uplink --> card
//!   guest <-- switch <-- stack of the node's port <-- NAT <--inbound-- card
//! ```
//!
//! [`nat::Nat`] decides and rewrites; this file carries. Both directions run in the
//! receive softirqs of their cards, on the frames themselves, and send in batches: what
//! a batch yields is one chain, handed on when the batch ends. What is the node's own
//! (ARP, ping, anything the NAT does not know) goes to the stacks as it came.
//!
//! Lock order: the NAT, then the uplink's addresses or its table of UDP handlers, which the
//! NAT is asked about. The stacks call in here with none of their locks held, and are
//! called with none of these held.

use alloc::sync::Arc;
use core::net::SocketAddrV4;

use kcore::frame::{FrameChain, NetFrame};
use kcore::sync::SpinLock;
use kcore::time;
use nat::{Counters, Forward, ForwardError, Nat, Settings, Transport, Verdict};
use netwire::{EtherType, EthernetFrame, EthernetHeader, MacAddr};
use stack::{Forwarder, Stack, Subnet};

/// See the module.
pub struct Gateway {
    /// Its lock comes before those of the uplink's addresses and of its handlers' table.
    nat: SpinLock<Nat>,
    uplink: Arc<Stack>,
    inside: Arc<Stack>,
    inside_mac: MacAddr,
    /// Taken alone, as is the next.
    to_uplink: SpinLock<FrameChain>,
    to_inside: SpinLock<FrameChain>,
}

impl Gateway {
    /// A gateway between the guests' network `subnet`, on which the node is by `inside`,
    /// and whatever lies behind `uplink`. The caller has both stacks call it.
    pub fn new(uplink: Arc<Stack>, inside: Arc<Stack>, subnet: Subnet, keys: [u64; 2]) -> Gateway {
        let [hash_key, port_seed] = keys;
        Gateway {
            nat: SpinLock::new(Nat::new(&Settings::new(subnet, hash_key, port_seed))),
            inside_mac: inside.mac(),
            uplink,
            inside,
            to_uplink: SpinLock::new(FrameChain::new()),
            to_inside: SpinLock::new(FrameChain::new()),
        }
    }

    /// The stack of the outside.
    pub fn uplink(&self) -> &Arc<Stack> {
        &self.uplink
    }

    /// Leads TCP connections to `port` of the uplink to `guest`.
    pub fn forward_tcp(&self, port: u16, guest: SocketAddrV4) -> Result<(), ForwardError> {
        let forward = Forward { transport: Transport::Tcp, port, inside: guest };
        self.nat.lock().add_forward(forward, |transport, port| self.node_uses(transport, port))
    }

    pub fn counters(&self) -> Counters {
        self.nat.lock().counters()
    }

    /// Connections that are tracked.
    pub fn connections(&self) -> usize {
        self.nat.lock().connection_count()
    }

    /// A frame from the switch: taken, or the stack's.
    pub(crate) fn outbound(&self, mut frame: NetFrame) -> Option<NetFrame> {
        let header = EthernetFrame::check(frame.bytes());
        let ours = header.is_ok_and(|header| {
            header.destination() == self.inside_mac && header.ethertype() == EtherType::IPV4
        });
        if !ours {
            return Some(frame);
        }
        let verdict = {
            let mut nat = self.nat.lock();
            nat.set_uplink(self.uplink.subnet().map(|subnet| subnet.address()));
            let packet = &mut frame.bytes_mut()[EthernetHeader::LEN..];
            nat.outbound(packet, time::now_ns(), |transport, port| self.node_uses(transport, port))
        };
        self.follow(verdict, frame)
    }

    fn follow(&self, verdict: Verdict, frame: NetFrame) -> Option<NetFrame> {
        match verdict {
            Verdict::Node => return Some(frame),
            Verdict::Uplink(_) => self.to_uplink.lock().push(frame),
            Verdict::Inside(_) => self.to_inside.lock().push(frame),
            // Counted by the NAT, by reason.
            Verdict::Drop(_) => {}
        }
        None
    }

    /// Sends what a batch has yielded, in both directions: a guest that uses a forward of
    /// the uplink's own address yields frames for the inside.
    pub(crate) fn batch_done(&self) {
        for (chain, stack) in [(&self.to_uplink, &self.uplink), (&self.to_inside, &self.inside)] {
            let frames = core::mem::take(&mut *chain.lock());
            if !frames.is_empty() {
                stack.send_ipv4(frames);
            }
        }
    }

    /// Whether the node itself uses this port of the uplink.
    fn node_uses(&self, transport: Transport, port: u16) -> bool {
        transport == Transport::Udp && self.uplink.uses_udp_port(port)
    }
}

impl Forwarder for Gateway {
    fn inbound(&self, mut frame: NetFrame) -> Option<NetFrame> {
        let verdict = {
            let mut nat = self.nat.lock();
            nat.set_uplink(self.uplink.subnet().map(|subnet| subnet.address()));
            // The stack has checked that there is an Ethernet header.
            let packet = frame.bytes_mut().get_mut(EthernetHeader::LEN..)?;
            nat.inbound(packet, time::now_ns())
        };
        self.follow(verdict, frame)
    }

    fn inbound_done(&self) {
        self.batch_done();
    }
}
