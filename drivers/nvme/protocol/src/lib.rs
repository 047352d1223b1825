//! What an NVMe driver decides, without a controller.
//!
//! Commands are built here, completions and identify data are judged here, and the arithmetic of
//! the queues and the bookkeeping of command identifiers live here, because all of them can be
//! driven by tests that no real disk would pass: a controller that completes what was never
//! asked, twice, or with a queue head that it cannot have. The driver above this crate moves
//! dwords between memory, registers and these types and decides nothing.
//!
//! Nothing in this crate reads a clock, allocates after construction, or trusts a field that the
//! controller wrote. A controller that contradicts itself is reported as a [`Violation`]; what it
//! still owes stays outstanding until the driver has stopped it, because memory that a confused
//! controller may still write to must not be handed back.
//!
//! Documents: NVM Express Base Specification 2.0 ("NVMe"), NVM Command Set Specification 1.0
//! ("NVM").
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod attachment;
mod awaited;
mod command;
mod completion;
mod identifiers;
mod identify;
mod queue;
pub mod register;
mod request;
mod transfer;

pub use attachment::{ATTACHMENT_BYTES, Attachment, MAX_SEGMENTS, Range, Scatter, ScatterError, Segment};
pub use awaited::Awaited;
pub use command::{Cns, Command, Feature};
pub use completion::{Completion, Status};
pub use identifiers::Class;
pub use identify::{
    CommandLimits, Controller, ControllerError, IDENTIFY_BYTES, Namespace, NamespaceError, namespace_list,
};
pub use queue::{Accepted, Full, MAX_ENTRIES, QueuePair, Submission, Violation};
pub use request::{ControllerLimits, Limits, Operation, Planned, Refusal, Request};
pub use transfer::{
    LIST_BYTES, LIST_ENTRIES, MAX_TRANSFER_BYTES, PAGE_BYTES, SecondPrp, Transfer, TransferError,
};

/// Bytes of a submission queue entry (NVMe sec 3.3.3.1), as CC.IOSQES announces them.
pub const SUBMISSION_BYTES: usize = 64;
/// Bytes of a completion queue entry (NVMe sec 3.3.3.2).
pub const COMPLETION_BYTES: usize = 16;
