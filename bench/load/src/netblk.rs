//! netblk, version 1: the node's own protocol.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netblk_proto::{Flags, Info, Op, Reply, RequestHeader, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::datagrams::Datagrams;
use crate::plan::{Operation, Plan};
use crate::run::Protocol;

/// A client of one disk.
pub struct Netblk {
    datagrams: Datagrams,
    operation: Operation,
    bytes: u32,
    /// Of one reply to a READ.
    datagram_bytes: u32,
    slots: Vec<Slot>,
    turned_away: u64,
}

#[derive(Clone, Default)]
struct Slot {
    /// Cookies are the slot and this, so that a late answer fits nothing.
    asked: u32,
    offset: u64,
    /// Datagrams that have not come, a bit each.
    missing: u64,
}

impl Netblk {
    /// Asks what the server serves.
    pub fn connect(server: SocketAddr, plan: &Plan) -> Result<Self> {
        let mut datagrams = Datagrams::connect(server)?;
        let info = describe(&mut datagrams)?;
        let most = match plan.operation {
            Operation::Read => info.max_read_bytes.min(64 * info.datagram_bytes),
            Operation::Write => info.max_write_bytes,
        };
        ensure!(plan.bytes <= most, "a request of {} bytes; the server takes {most}", plan.bytes);
        ensure!(plan.range_bytes <= info.size_bytes, "the disk has only {} bytes", info.size_bytes);
        Ok(Self {
            datagrams,
            operation: plan.operation,
            bytes: plan.bytes,
            datagram_bytes: info.datagram_bytes,
            slots: vec![Slot::default(); plan.window],
            turned_away: 0,
        })
    }
}

const ASK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

fn describe(datagrams: &mut Datagrams) -> Result<Info> {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut info = None;
    while info.is_none() {
        ensure!(Instant::now() < deadline, "the server does not say what it serves");
        let request = RequestHeader { op: Op::Info, flags: Flags::NONE, cookie: 0, offset: 0, length: 0 };
        datagrams.push(None).extend_from_slice(&request.to_bytes());
        datagrams.send()?;
        let mut ready = [PollFd::from_borrowed_fd(datagrams.socket(), PollFlags::IN)];
        poll(&mut ready, Some(&ASK_AGAIN)).context("waiting for the server")?;
        datagrams.receive(|datagram| {
            if let Ok(Reply::Info { body, .. }) = Reply::parse(datagram) {
                info = Info::parse(body).ok();
            }
        })?;
    }
    info.context("unreachable: the loop ends with a description")
}

impl Netblk {
    /// Puts a request, or a part of one, into what is to be sent.
    fn push(&mut self, cookie: u64, offset: u64, length: u32) {
        let op = match self.operation {
            Operation::Read => Op::Read,
            Operation::Write => Op::Write,
        };
        let header = RequestHeader { op, flags: Flags::NONE, cookie, offset, length };
        let datagram = self.datagrams.push(None);
        datagram.extend_from_slice(&header.to_bytes());
        if op == Op::Write {
            // Other bytes for other slots.
            datagram.resize(datagram.len() + length as usize, (cookie >> 32).to_le_bytes()[0]);
        }
    }
}

impl Protocol for Netblk {
    fn request(&mut self, slot: usize, offset: u64) -> Result<()> {
        let state = self.slots.get_mut(slot).context("a slot outside the window")?;
        state.asked = state.asked.wrapping_add(1);
        state.offset = offset;
        let datagrams = match self.operation {
            Operation::Read => self.bytes.div_ceil(self.datagram_bytes),
            Operation::Write => 1,
        };
        state.missing = u64::MAX >> (u64::BITS - datagrams);
        let cookie = (slot as u64) << 32 | u64::from(state.asked);
        self.push(cookie, offset, self.bytes);
        Ok(())
    }

    fn send(&mut self) -> Result<bool> {
        self.datagrams.send()
    }

    fn receive(&mut self, answered: &mut Vec<usize>) -> Result<()> {
        let (slots, datagram_bytes) = (&mut self.slots, u64::from(self.datagram_bytes));
        let mut refused = None;
        let mut busy = Vec::new();
        self.datagrams.receive(|datagram| {
            let Ok(reply) = Reply::parse(datagram) else { return };
            let cookie = reply.cookie();
            let slot = usize::try_from(cookie >> 32).unwrap_or(usize::MAX);
            let Some(state) = slots.get_mut(slot) else { return };
            if u64::from(state.asked) != cookie & u64::from(u32::MAX) || state.missing == 0 {
                return;
            }
            match reply {
                Reply::Data { offset, .. } => {
                    let piece = offset.wrapping_sub(state.offset) / datagram_bytes;
                    let piece = u32::try_from(piece).unwrap_or(u32::MAX);
                    state.missing &= !1_u64.checked_shl(piece).unwrap_or(0);
                }
                Reply::Written { .. } => state.missing = 0,
                Reply::Failed { offset, length, status: Status::Busy, .. } => {
                    busy.push((cookie, offset, length));
                }
                Reply::Failed { status, .. } => refused = Some(status),
                Reply::Info { .. } | Reply::Flushed { .. } => {}
            }
            if state.missing == 0 {
                answered.push(slot);
            }
        })?;
        if let Some(status) = refused {
            bail!("the server says {status:?}");
        }
        // What the server had no room for is asked for again, and only that.
        for (cookie, offset, length) in busy {
            self.turned_away += 1;
            self.push(cookie, offset, length);
        }
        Ok(())
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.datagrams.socket()
    }

    fn turned_away(&self) -> u64 {
        self.turned_away
    }

    /// READ and WRITE of the same data are idempotent.
    fn ask_again(&mut self, slot: usize) -> Result<()> {
        let offset = self.slots.get(slot).context("a slot outside the window")?.offset;
        self.request(slot, offset)
    }
}
