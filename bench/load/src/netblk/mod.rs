//! netblk, the node's own protocol, in both versions.

mod dialect;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result, bail, ensure};

use crate::datagrams::Datagrams;
use crate::plan::{Operation, Plan};
use crate::run::Protocol;
pub use dialect::Version;
use dialect::{Asked, Dialect, Said};

/// A client of one disk.
pub struct Netblk {
    datagrams: Datagrams,
    dialect: Dialect,
    operation: Operation,
    bytes: u32,
    /// Of one reply to a READ.
    datagram_bytes: u32,
    slots: Vec<Slot>,
    /// The number of the next change (version 2 numbers them).
    next_sequence: u64,
    /// Requests that must wait until older changes are answered.
    held: VecDeque<(usize, u64)>,
    turned_away: u64,
}

#[derive(Clone, Default)]
struct Slot {
    /// Cookies are the slot and this, so that a late answer fits nothing.
    asked: u32,
    offset: u64,
    /// Kept when a change is asked again.
    sequence: u64,
    /// Datagrams that have not come, a bit each; zero: nothing is under way.
    missing: u64,
}

impl Netblk {
    /// Asks what the server serves; in version 2 it also opens a session.
    pub fn connect(server: SocketAddr, version: Version, plan: &Plan) -> Result<Self> {
        let mut datagrams = Datagrams::connect(server)?;
        let (dialect, info) = Dialect::open(&mut datagrams, version)?;
        let most = match plan.operation {
            Operation::Read => info.max_read_bytes.min(64 * info.datagram_bytes),
            Operation::Write => info.max_write_bytes.min(info.datagram_bytes),
        };
        ensure!(plan.bytes <= most, "a request of {} bytes; the server takes {most}", plan.bytes);
        ensure!(plan.range_bytes <= info.size_bytes, "the disk has only {} bytes", info.size_bytes);
        Ok(Self {
            datagrams,
            dialect,
            operation: plan.operation,
            bytes: plan.bytes,
            datagram_bytes: info.datagram_bytes,
            slots: vec![Slot::default(); plan.window],
            next_sequence: 1,
            held: VecDeque::new(),
            turned_away: 0,
        })
    }

    /// Whether the next change is too far ahead of the oldest that is unanswered.
    fn must_wait(&self) -> bool {
        let Some(window) = self.dialect.sequence_window() else { return false };
        let writes = self.operation == Operation::Write;
        let under_way = self.slots.iter().filter(|slot| slot.missing != 0).map(|slot| slot.sequence);
        writes && under_way.min().is_some_and(|oldest| self.next_sequence - oldest >= window)
    }

    /// Puts a request under way, with its number.
    fn start(&mut self, slot: usize, offset: u64) -> Result<()> {
        let sequence = match self.operation {
            Operation::Read => 0,
            Operation::Write => self.next_sequence,
        };
        self.next_sequence += 1;
        self.ask(slot, offset, sequence)
    }

    fn ask(&mut self, slot: usize, offset: u64, sequence: u64) -> Result<()> {
        let datagrams = match self.operation {
            Operation::Read => self.bytes.div_ceil(self.datagram_bytes),
            Operation::Write => 1,
        };
        let state = self.slots.get_mut(slot).context("a slot outside the window")?;
        let asked = state.asked.wrapping_add(1);
        *state = Slot { asked, offset, sequence, missing: u64::MAX >> (u64::BITS - datagrams) };
        let cookie = (slot as u64) << 32 | u64::from(asked);
        self.push(&Asked { cookie, offset, length: self.bytes, sequence });
        Ok(())
    }

    /// Puts a request, or a part of one, into what is to be sent.
    fn push(&mut self, asked: &Asked) {
        self.dialect.write(self.operation, asked, self.datagrams.push(None));
    }
}

impl Protocol for Netblk {
    fn request(&mut self, slot: usize, offset: u64) -> Result<()> {
        if self.must_wait() {
            self.held.push_back((slot, offset));
            return Ok(());
        }
        self.start(slot, offset)
    }

    fn send(&mut self) -> Result<bool> {
        self.datagrams.send()
    }

    fn receive(&mut self, answered: &mut Vec<usize>) -> Result<()> {
        let Self { datagrams, dialect, slots, datagram_bytes, .. } = self;
        let mut refused = None;
        let mut busy = Vec::new();
        datagrams.receive(|datagram| {
            let Some((cookie, said)) = dialect.read(datagram) else { return };
            let slot = usize::try_from(cookie >> 32).unwrap_or(usize::MAX);
            let Some(state) = slots.get_mut(slot) else { return };
            if u64::from(state.asked) != cookie & u64::from(u32::MAX) || state.missing == 0 {
                return;
            }
            match said {
                Said::Data { offset } => {
                    let piece = offset.wrapping_sub(state.offset) / u64::from(*datagram_bytes);
                    let piece = u32::try_from(piece).unwrap_or(u32::MAX);
                    state.missing &= !1_u64.checked_shl(piece).unwrap_or(0);
                }
                Said::Written => state.missing = 0,
                Said::Busy { offset, length } => {
                    busy.push(Asked { cookie, offset, length, sequence: state.sequence });
                }
                Said::Refused(why) => refused = Some(why),
            }
            if state.missing == 0 {
                answered.push(slot);
            }
        })?;
        if let Some(why) = refused {
            bail!("the server says {why}");
        }
        // What the server had no room for is asked for again, and only that.
        for asked in busy {
            self.turned_away += 1;
            self.push(&asked);
        }
        while !self.must_wait()
            && let Some((slot, offset)) = self.held.pop_front()
        {
            self.start(slot, offset)?;
        }
        Ok(())
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.datagrams.socket()
    }

    fn turned_away(&self) -> u64 {
        self.turned_away
    }

    fn ask_again(&mut self, slot: usize) -> Result<()> {
        let Slot { offset, sequence, missing, .. } =
            *self.slots.get(slot).context("a slot outside the window")?;
        // One that is held was not sent yet.
        if missing == 0 { Ok(()) } else { self.ask(slot, offset, sequence) }
    }
}

impl Drop for Netblk {
    /// Makes room at the server. If this is lost the session ends by itself.
    fn drop(&mut self) {
        if self.dialect.close(self.datagrams.push(None)) {
            let _ = self.datagrams.send();
        }
    }
}
