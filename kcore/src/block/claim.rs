//! Who uses which sectors: what a guest writes must not be served to others, nor the reverse.
//!
//! A claim is on sectors of a whole disk, wherever the name leads: a partition and the disk that
//! it is on are not taken twice. It is kept by whoever begins to use a disk for others, and holds
//! among them alone; the shell's own commands are the operator's and ask nobody.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use super::Disk;
use crate::sync::IrqSpinLock;

/// Where a disk's sectors are: on which whole disk, and from where on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskExtent {
    /// The whole disk's name.
    pub disk: String,
    /// In its sectors.
    pub sectors: Range<u64>,
}

/// What a claim is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any number of users may read.
    ReadOnly,
    /// Nobody else may read or write.
    ReadWrite,
}

struct Entry {
    number: u64,
    extent: DiskExtent,
    access: Access,
    owner: String,
}

struct Claims {
    entries: Vec<Entry>,
    next_number: u64,
}

static CLAIMS: IrqSpinLock<Claims> = IrqSpinLock::new(Claims { entries: Vec::new(), next_number: 0 });

/// The disk is in use by somebody else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    disk: String,
    owner: String,
    access: Access,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { disk, owner, access } = self;
        match access {
            Access::ReadOnly => write!(f, "{owner} reads {disk}: nobody else may write to it"),
            Access::ReadWrite => write!(f, "{owner} uses {disk}, and nobody else may"),
        }
    }
}

impl core::error::Error for InUse {}

/// The right to use a disk's sectors; given back when dropped.
#[derive(Debug)]
pub struct Claim(u64);

/// Claims all of `disk` for `owner`. The claims of one owner do not exclude each other.
pub fn claim(disk: &dyn Disk, owner: &str, access: Access) -> Result<Claim, InUse> {
    let extent = disk.extent();
    let mut claims = CLAIMS.lock();
    let other = claims.entries.iter().find(|entry| {
        let overlap = entry.extent.disk == extent.disk
            && entry.extent.sectors.start < extent.sectors.end
            && extent.sectors.start < entry.extent.sectors.end;
        let reads_alone = access == Access::ReadOnly && entry.access == Access::ReadOnly;
        overlap && !reads_alone && entry.owner != owner
    });
    if let Some(other) = other {
        return Err(InUse {
            disk: String::from(disk.name()),
            owner: other.owner.clone(),
            access: other.access,
        });
    }
    let number = claims.next_number;
    claims.next_number += 1;
    claims.entries.push(Entry { number, extent, access, owner: String::from(owner) });
    Ok(Claim(number))
}

impl Drop for Claim {
    fn drop(&mut self) {
        let gone = {
            let mut claims = CLAIMS.lock();
            let place = claims.entries.iter().position(|entry| entry.number == self.0);
            place.map(|place| claims.entries.swap_remove(place))
        };
        drop(gone);
    }
}
