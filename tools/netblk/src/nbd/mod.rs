//! The bridge to everybody else: a netblk disk as an export of the Network Block Device protocol.
//!
//! ```text
//!   qemu-img, nbd-client, fio, nbdinfo --TCP or UNIX socket--> negotiate, serve --> disk::Disk --UDP--> node
//! ```
//!
//! Spoken is the fixed newstyle of doc/proto.md with FLUSH, FUA, TRIM, WRITE ZEROES and structured
//! replies, on any number of connections. A FLUSH on one covers what was answered on all (the server's
//! does, whoever wrote it), so clients may use several. Blocks are the disk's sectors: what is not whole
//! sectors is refused with EINVAL, and a client that does not ask for block sizes is served only where
//! they are the 512 bytes that it takes for granted.

mod listen;
mod negotiate;
mod serve;
pub mod wire;

use std::sync::Arc;

pub use listen::{Listen, run};
pub use negotiate::{Outcome, negotiate};
pub use serve::{MOST_BYTES, Served, serve};

use crate::disk::{Answer, Disk, DiskInfo, Request};
use wire::{Style, info, transmission};

/// What stands behind an export. Beside [`Disk`] there is one in memory, for tests.
pub trait Backend: Send + Sync {
    /// What it is.
    fn info(&self) -> DiskInfo;

    /// Asks for something; `done` is called with the answer, from any thread.
    fn submit(&self, request: Request, done: Box<dyn FnOnce(Answer) + Send>);
}

impl Backend for Disk {
    fn info(&self) -> DiskInfo {
        Disk::info(self)
    }

    fn submit(&self, request: Request, done: Box<dyn FnOnce(Answer) + Send>) {
        Disk::submit(self, request, done);
    }
}

/// What is served.
#[derive(Clone)]
pub struct Export {
    /// Its name; clients may leave it out.
    pub name: String,
    /// What stands behind it.
    pub disk: Arc<dyn Backend>,
    /// Refuse changes whatever the disk does.
    pub read_only: bool,
}

/// What a client is advised to use: a page, if a sector is not longer.
const PREFERRED_BYTES: u32 = 4096;

impl Export {
    fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    fn size_bytes(&self) -> u64 {
        self.disk.info().size_bytes
    }

    fn sector_bytes(&self) -> u32 {
        self.disk.info().sector_bytes
    }

    fn is_read_only(&self) -> bool {
        self.read_only || self.disk.info().read_only
    }

    fn can_trim(&self) -> bool {
        self.disk.info().discard
    }

    fn flags(&self, style: Style) -> u16 {
        let mut flags = transmission::HAS_FLAGS | transmission::FLUSH | transmission::MULTI_CONNECTION;
        if self.is_read_only() {
            flags |= transmission::READ_ONLY;
        } else {
            flags |= transmission::FUA | transmission::WRITE_ZEROES;
            if self.can_trim() {
                flags |= transmission::TRIM;
            }
        }
        if style == Style::Structured {
            flags |= transmission::DO_NOT_FRAGMENT;
        }
        flags
    }

    /// The answers to INFO and GO: what must be said, and what was asked for.
    fn describe(&self, wanted: &[u16], style: Style) -> Vec<Vec<u8>> {
        let item = |kind: u16, data: &[&[u8]]| [&kind.to_be_bytes()[..], &data.concat()].concat();
        let size = self.size_bytes().to_be_bytes();
        let mut items = vec![item(info::EXPORT, &[&size, &self.flags(style).to_be_bytes()])];
        if wanted.contains(&info::NAME) {
            items.push(item(info::NAME, &[self.name.as_bytes()]));
        }
        if wanted.contains(&info::DESCRIPTION) {
            items.push(item(info::DESCRIPTION, &[b"a disk of a nos node"]));
        }
        let sector_bytes = self.sector_bytes();
        let preferred_bytes = sector_bytes.max(PREFERRED_BYTES);
        let sizes = [sector_bytes, preferred_bytes, MOST_BYTES].map(u32::to_be_bytes).concat();
        items.push(item(info::BLOCK_SIZE, &[&sizes]));
        items
    }
}
