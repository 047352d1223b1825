//! The bare echo: what any service over UDP costs at least. Both ends; what is on the wire is `echo_wire`'s.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result, ensure};
use echo_wire::Request;

use crate::datagrams::Datagrams;
use crate::plan::{Operation, Plan};
use crate::run::Protocol;

/// What a reply to a WRITE takes, more or less.
const SHORT_REPLY_BYTES: u16 = 32;
/// What netblk puts into one datagram at an MTU of 1500 and sectors of 512 bytes.
const DATAGRAM_DATA_BYTES: u32 = 1024;

/// The client.
pub struct Echo {
    datagrams: Datagrams,
    request: Request,
    request_bytes: usize,
    slots: Vec<Slot>,
}

/// Cookies are the slot and how often it was asked, so that a late answer fits nothing.
#[derive(Clone, Default)]
struct Slot {
    asked: u32,
    /// Replies that have not come, a bit each.
    missing: u16,
}

impl Echo {
    /// Moves the bytes that a disk's requests of this plan would move, both ways.
    pub fn connect(server: SocketAddr, plan: &Plan) -> Result<Self> {
        let (request, request_bytes) = match plan.operation {
            Operation::Read => {
                let replies = plan.bytes.div_ceil(DATAGRAM_DATA_BYTES);
                let reply_bytes = plan.bytes.div_ceil(replies.max(1));
                let reply_bytes = u16::try_from(reply_bytes).context("a reply that is too long")?;
                let replies = u8::try_from(replies).ok().filter(|count| *count <= echo_wire::MAX_REPLIES);
                let replies = replies.context("more replies than an echo may ask for")?;
                (Request { cookie: 0, reply_bytes, replies }, echo_wire::MIN_REQUEST_BYTES)
            }
            Operation::Write => {
                ensure!(plan.bytes <= DATAGRAM_DATA_BYTES, "a write that is more than one datagram");
                let request_bytes = plan.bytes as usize + echo_wire::MIN_REQUEST_BYTES;
                (Request { cookie: 0, reply_bytes: SHORT_REPLY_BYTES, replies: 1 }, request_bytes)
            }
        };
        let datagrams = Datagrams::connect(server)?;
        Ok(Self { datagrams, request, request_bytes, slots: vec![Slot::default(); plan.window] })
    }
}

impl Protocol for Echo {
    fn request(&mut self, slot: usize, _offset: u64) -> Result<()> {
        let state = self.slots.get_mut(slot).context("a slot outside the window")?;
        state.asked = state.asked.wrapping_add(1);
        state.missing = u16::MAX >> (echo_wire::MAX_REPLIES - self.request.replies);
        let cookie = (slot as u64) << 32 | u64::from(state.asked);
        let datagram = self.datagrams.push(None);
        datagram.extend_from_slice(&Request { cookie, ..self.request }.header());
        datagram.resize(self.request_bytes, 0);
        Ok(())
    }

    fn send(&mut self) -> Result<bool> {
        self.datagrams.send()
    }

    fn receive(&mut self, answered: &mut Vec<usize>) -> Result<()> {
        let slots = &mut self.slots;
        self.datagrams.receive(|datagram| {
            let Some((cookie, number)) = echo_wire::parse_reply(datagram) else { return };
            let slot = usize::try_from(cookie >> 32).unwrap_or(usize::MAX);
            let Some(state) = slots.get_mut(slot) else { return };
            let bit = 1_u16.checked_shl(u32::from(number)).unwrap_or(0);
            if u64::from(state.asked) == cookie & u64::from(u32::MAX) && state.missing & bit != 0 {
                state.missing &= !bit;
                if state.missing == 0 {
                    answered.push(slot);
                }
            }
        })
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.datagrams.socket()
    }

    fn ask_again(&mut self, slot: usize) -> Result<()> {
        self.request(slot, 0)
    }
}

/// The server, for ever.
pub fn serve(address: SocketAddr) -> Result<()> {
    let mut datagrams = Datagrams::listen(address)?;
    loop {
        answer(&mut datagrams)?;
    }
}

/// One batch.
fn answer(datagrams: &mut Datagrams) -> Result<()> {
    for (datagram, from) in datagrams.wait()? {
        let Some(request) = Request::parse(&datagram) else { continue };
        for number in 0..request.replies {
            let reply = datagrams.push(from);
            reply.extend_from_slice(&request.reply_header(number));
            reply.resize(usize::from(request.reply_bytes), 0);
        }
    }
    // What the socket does not take now it takes with the next batch.
    datagrams.send()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::run::run;

    fn free_address() -> SocketAddr {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
    }

    #[test]
    fn every_request_is_answered_once_by_all_its_replies() {
        let address = free_address();
        let (listening, listens) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut server = Datagrams::listen(address).unwrap();
            listening.send(()).unwrap();
            loop {
                answer(&mut server).unwrap();
            }
        });
        listens.recv().unwrap();
        for (operation, bytes) in [(Operation::Read, 1024), (Operation::Read, 4096), (Operation::Write, 1024)]
        {
            let plan = Plan {
                operation,
                bytes,
                window: 16,
                warm_up: Duration::from_millis(10),
                duration: Duration::from_millis(100),
                range_bytes: 1 << 20,
                seed: 1,
            };
            let mut echo = Echo::connect(address, &plan).unwrap();
            let report = run(&mut echo, &plan).unwrap();
            assert!(report.requests > 100 && report.p50_us <= report.p99_us, "{report:?}");
        }
    }

    #[test]
    fn a_server_that_says_nothing_is_an_error() {
        let address = free_address();
        let plan = Plan {
            operation: Operation::Read,
            bytes: 1024,
            window: 4,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(50),
            range_bytes: 1 << 20,
            seed: 1,
        };
        let _silent = UdpSocket::bind(address).unwrap();
        let mut echo = Echo::connect(address, &plan).unwrap();
        assert!(run(&mut echo, &plan).unwrap_err().to_string().contains("no request was answered"));
    }
}
