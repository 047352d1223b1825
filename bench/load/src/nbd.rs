//! NBD, fixed newstyle, simple replies: as most clients speak it (the NBD protocol, doc/proto.md of the reference
//! implementation).

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result, bail, ensure};

use crate::plan::{Operation, Plan};
use crate::run::Protocol;
use crate::stream::Stream;

// "Newstyle negotiation": the server's greeting and the client's flags.
const GREETING_MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
const CLIENT_FIXED_NEWSTYLE: u32 = 1 << 0;
// "Option types" and "Option reply types".
const OPTION_GO: u32 = 7;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_ERROR_BIT: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
// "Request message" and "Simple reply message".
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const COMMAND_READ: u16 = 0;
const COMMAND_WRITE: u16 = 1;

const SIMPLE_REPLY_BYTES: usize = 16;

/// A client of one export, with one connection.
pub struct Nbd {
    stream: Stream,
    operation: Operation,
    bytes: u32,
    /// Whether a slot's request is under way.
    busy: Vec<bool>,
    /// The answer whose data is coming: slot and bytes still to come.
    coming: Option<(usize, usize)>,
}

impl Nbd {
    /// Chooses an export.
    pub fn connect(server: SocketAddr, export: &str, plan: &Plan) -> Result<Self> {
        let mut stream = Stream::connect(server)?;
        let size_bytes = negotiate(&mut stream, export)?;
        ensure!(plan.range_bytes <= size_bytes, "the export has only {size_bytes} bytes");
        stream.stop_waiting()?;
        let busy = vec![false; plan.window];
        Ok(Self { stream, operation: plan.operation, bytes: plan.bytes, busy, coming: None })
    }
}

/// The handshake; the export's size.
fn negotiate(stream: &mut Stream, export: &str) -> Result<u64> {
    let magics = (u64::from_be_bytes(stream.read()?), u64::from_be_bytes(stream.read()?));
    ensure!(magics == (GREETING_MAGIC, OPTION_MAGIC), "this is no NBD server of the new style");
    let flags = u16::from_be_bytes(stream.read()?);
    ensure!(flags & FLAG_FIXED_NEWSTYLE != 0, "the server does not speak the fixed new style");
    stream.write(&CLIENT_FIXED_NEWSTYLE.to_be_bytes())?;
    let name_bytes = u32::try_from(export.len()).context("the export's name")?;
    let mut option = Vec::new();
    option.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    option.extend_from_slice(&OPTION_GO.to_be_bytes());
    option.extend_from_slice(&(4 + name_bytes + 2).to_be_bytes());
    option.extend_from_slice(&name_bytes.to_be_bytes());
    option.extend_from_slice(export.as_bytes());
    // No information is asked for beyond what always comes.
    option.extend_from_slice(&0_u16.to_be_bytes());
    stream.write(&option)?;
    let mut size_bytes = None;
    loop {
        ensure!(u64::from_be_bytes(stream.read()?) == OPTION_REPLY_MAGIC, "this is no answer to an option");
        let _option = u32::from_be_bytes(stream.read()?);
        let kind = u32::from_be_bytes(stream.read()?);
        let length = u32::from_be_bytes(stream.read()?);
        let body = stream.read_some(length as usize)?;
        match kind {
            REPLY_ACK => return size_bytes.context("the server does not say how large the export is"),
            REPLY_INFO => {
                if let Some((kind, rest)) = body.split_first_chunk()
                    && u16::from_be_bytes(*kind) == INFO_EXPORT
                {
                    size_bytes = rest.first_chunk().map(|size| u64::from_be_bytes(*size));
                }
            }
            kind if kind & REPLY_ERROR_BIT != 0 => {
                bail!("the server refuses {export:?}: {}", String::from_utf8_lossy(&body))
            }
            _ => {}
        }
    }
}

impl Protocol for Nbd {
    fn request(&mut self, slot: usize, offset: u64) -> Result<()> {
        *self.busy.get_mut(slot).context("a slot outside the window")? = true;
        let outgoing = self.stream.outgoing();
        let command = match self.operation {
            Operation::Read => COMMAND_READ,
            Operation::Write => COMMAND_WRITE,
        };
        outgoing.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        outgoing.extend_from_slice(&0_u16.to_be_bytes());
        outgoing.extend_from_slice(&command.to_be_bytes());
        outgoing.extend_from_slice(&(slot as u64).to_be_bytes());
        outgoing.extend_from_slice(&offset.to_be_bytes());
        outgoing.extend_from_slice(&self.bytes.to_be_bytes());
        if self.operation == Operation::Write {
            outgoing.resize(outgoing.len() + self.bytes as usize, slot.to_le_bytes()[0]);
        }
        Ok(())
    }

    fn send(&mut self) -> Result<bool> {
        self.stream.send()
    }

    fn receive(&mut self, answered: &mut Vec<usize>) -> Result<()> {
        self.stream.receive()?;
        loop {
            if let Some((slot, left)) = self.coming {
                let left = left - self.stream.skip(left);
                if left > 0 {
                    self.coming = Some((slot, left));
                    return Ok(());
                }
                self.coming = None;
                answered.push(slot);
            }
            let Some(reply) = self.stream.peek::<SIMPLE_REPLY_BYTES>() else { return Ok(()) };
            self.stream.skip(SIMPLE_REPLY_BYTES);
            let [m0, m1, m2, m3, e0, e1, e2, e3, cookie @ ..] = reply;
            ensure!(
                u32::from_be_bytes([m0, m1, m2, m3]) == SIMPLE_REPLY_MAGIC,
                "this is no answer to a request"
            );
            let error = u32::from_be_bytes([e0, e1, e2, e3]);
            ensure!(error == 0, "the server answers with error {error}");
            let slot = usize::try_from(u64::from_be_bytes(cookie)).unwrap_or(usize::MAX);
            let busy = self.busy.get_mut(slot).filter(|busy| **busy);
            *busy.context("an answer to a request that was not made")? = false;
            let data = if self.operation == Operation::Read { self.bytes as usize } else { 0 };
            self.coming = Some((slot, data));
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    fn ask_again(&mut self, _slot: usize) -> Result<()> {
        // TCP sees to what is lost; a server that is slow is measured as slow.
        Ok(())
    }
}
