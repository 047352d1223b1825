//! The node's own IP on one network card.
//!
//! ```text
//!                        card's receive softirq
//!                                |
//!                        ingress::classify ---------> counted drop, by name
//!                                |
//!      ARP ---> neighbours       |
//!       |          +-------------+--------------+------------------+
//!       |          | UDP, bound  | ICMP, ours   | the rest         |
//!       |          v             v              v                  |
//!       |      UdpHandler      ping         Forwarder (NAT)        |
//!       |   (the frame itself)                  | not its          |
//!       +---------------------------------------+--> queue --> smoltcp, in the task "net"
//! ```
//!
//! Two kinds of work share the card, and they must not wait for each other. What is frequent
//! (netblk's datagrams, guests' flows) is done in the softirq on the frame itself: a lookup, a
//! call, and the frame belongs to the handler. What is rare (DHCP, ARP replies, echo replies,
//! refusals) goes through smoltcp, in a task of its own that sleeps until a frame or a deadline
//! comes. The softirq never waits for that task: between them is a queue with a limit.
//!
//! smoltcp is used for what it is good at, and not asked for the neighbour table: it keeps its
//! own to itself, while NAT and ping send frames that never pass through it. So the stack has a
//! table of its own (`ingress::Neighbours`), fed by the same ARP packets.
//!
//! A [`Stack`] belongs to one card; there may be several (the uplink, a switch port).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod answers;
mod counters;
mod echo;
mod handlers;
mod library;
mod link;
mod output;
mod ping;
mod receive;
mod registry;
mod stack;

pub use answers::Answers;
pub use counters::{DropCount, SendDrop};
pub use echo::EchoState;
pub use handlers::{BindError, Binding, ChecksumPolicy, UdpHandler};
pub use ingress::{DropReason, Neighbour, Subnet, UdpMeta};
pub use ping::{PingError, PingReply};
pub use receive::Forwarder;
pub use registry::{all, towards};
pub use stack::{AddressConfig, AddressSource, Addresses, Stack, StackState, StartError};
