//! virtio devices as a guest sees them, without a machine under them (VIRTIO 1.2, PCI transport,
//! split queues, the modern interface only).
//!
//! The crate is pure: it is told of register accesses, notifications and the time, it reads and
//! writes guest memory through [`GuestRam`], and it answers with what must happen next. It can
//! therefore be tested, fuzzed and measured on the host, where a guest that lies is a test case.
//!
//! ```text
//!   function   registers + queues + model; carries effects between them
//!     registers    common configuration, ISR, MSI-X vectors
//!     queue, chain the rings, and one request out of them
//!     net          the network device and its receive moderation
//!     block        the block device: requests, and their transfers to a disk
//!     console, entropy  a port for a terminal; random bytes at a rate
//!   ram        the guest's memory; fake has one for tests, and a driver
//! ```
//!
//! Where the register regions lie in PCI space, and the configuration space that says so, is the
//! machine's; nothing here knows a port.
//!
//! Whoever drives a device owes it: the calls that an [`Event`] or an outcome's `more` asks for,
//! [`NetFunction::receive`](net::NetFunction) at its due time, and after every call a look at
//! the interrupt line and the messages.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block;
pub mod chain;
pub mod console;
pub mod entropy;
pub mod fake;
pub mod fault;
pub mod features;
pub mod function;
pub mod net;
pub mod queue;
pub mod ram;
pub mod registers;
pub mod status;

pub use fault::{Area, DeviceFault, QueueFault};
pub use features::Features;
pub use function::{DeviceKind, DeviceModel, Event, Function};
pub use ram::{GuestPhysAddr, GuestRam, OutOfRange};
pub use registers::Region;
pub use status::Status;
