//! Partition tables: GPT and MBR, read without trusting a byte of them.
//!
//! A table is data on a disk that anybody may have written, and its numbers become the bounds of
//! what a client or a guest may read and write. So a partition leaves this crate only as an
//! [`Extent`] that lies on the disk, outside the table itself, and over no other partition; what
//! does not is refused by itself, with the reason, and the rest of the disk stays usable. Tables
//! are read once into memory and judged there: a disk that answers differently the second time
//! gains nothing.
//!
//! Documents: UEFI Specification 2.10 chapter 5 ("UEFI"). MBR and its extended partitions have no
//! standard beyond UEFI sec 5.2.1 and long practice.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod crc32;
mod extent;
pub mod fake;
mod gpt;
mod guid;
mod layout;
mod mbr;
mod source;

pub use extent::Extent;
pub use gpt::{GptCopy, HeaderError};
pub use guid::Guid;
pub use layout::{Kind, Layout, Partition, Reason, Refused, ScanError, Table, scan};
pub use source::{SectorSource, Unreadable};
