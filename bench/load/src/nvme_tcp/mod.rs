//! NVMe over TCP, an initiator with one queue: what Linux's target (nvmet) is measured with.
//!
//! Enough of it to measure: one connection for the administrator's queue, which makes the controller ready and says
//! what the namespace is, and one for reads and writes. Writes travel in the capsule, as Linux's initiator sends
//! writes of this size; no digests, no keep-alive.

pub mod pdu;

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use anyhow::{Context as _, Result, bail, ensure};

use crate::plan::{Operation, Plan};
use crate::run::Protocol;
use crate::stream::Stream;
use pdu::{Blocks, Command, Incoming, opcode};

const NAMESPACE: u32 = 1;
/// Entries of the queues.
const ADMIN_ENTRIES: u16 = 32;
const QUEUE_ENTRIES: u16 = 128;
/// The controller whose identifier the target chooses (Fabrics section 3.3).
const ANY_CONTROLLER: u16 = 0xffff;

/// A client of one namespace.
pub struct NvmeTcp {
    stream: Stream,
    /// The controller lives as long as this connection.
    _admin: Stream,
    opcode: u8,
    bytes: u32,
    block_bytes: u32,
    /// Whether a slot's command is under way; its identifier is the slot.
    busy: Vec<bool>,
    /// Data that is coming: bytes, and the slot if its command is done with them.
    coming: Option<(usize, Option<usize>)>,
}

impl NvmeTcp {
    /// Connects to the first namespace of a subsystem.
    pub fn connect(server: SocketAddr, subsystem: &str, plan: &Plan) -> Result<Self> {
        ensure!(plan.window < usize::from(QUEUE_ENTRIES), "a queue of {QUEUE_ENTRIES} is too short for that");
        let (mut admin, controller) = connect_queue(server, subsystem, 0, ADMIN_ENTRIES, ANY_CONTROLLER)?;
        enable(&mut admin)?;
        let namespace = identify_namespace(&mut admin)?;
        ensure!(plan.range_bytes <= namespace.bytes, "the namespace has only {} bytes", namespace.bytes);
        ensure!(
            plan.bytes.is_multiple_of(namespace.block_bytes),
            "requests of {} bytes on blocks of {}",
            plan.bytes,
            namespace.block_bytes
        );
        let (mut stream, _) = connect_queue(server, subsystem, 1, QUEUE_ENTRIES, controller)?;
        stream.stop_waiting()?;
        let opcode = match plan.operation {
            Operation::Read => opcode::READ,
            Operation::Write => opcode::WRITE,
        };
        Ok(Self {
            stream,
            _admin: admin,
            opcode,
            bytes: plan.bytes,
            block_bytes: namespace.block_bytes,
            busy: vec![false; plan.window],
            coming: None,
        })
    }
}

/// A connection that is a queue of a controller; the controller's identifier.
fn connect_queue(
    server: SocketAddr,
    subsystem: &str,
    queue: u16,
    entries: u16,
    controller: u16,
) -> Result<(Stream, u16)> {
    let mut stream = Stream::connect(server)?;
    stream.write(&pdu::connection_request())?;
    let response = stream.read::<{ pdu::CONNECTION_BYTES }>()?;
    ensure!(response[0] == pdu::kind::CONNECTION_RESPONSE, "this is no NVMe target");
    let digests = response[11];
    ensure!(digests == 0, "the target wants digests");
    let data = pdu::connect_data(controller, subsystem).context("a subsystem's name is shorter")?;
    let result = command(&mut stream, &Command::connect(0, queue, entries), &data)
        .with_context(|| format!("connecting queue {queue} of {subsystem:?}"))?
        .0;
    // The low 16 bits (Fabrics section 3.3).
    Ok((stream, (result & 0xffff) as u16))
}

/// Makes the controller ready (NVMe base specification, the properties CC and CSTS).
fn enable(admin: &mut Stream) -> Result<()> {
    const CONTROLLER_CONFIGURATION: u32 = 0x14;
    const CONTROLLER_STATUS: u32 = 0x1c;
    const SUBMISSION_ENTRY_LOG2: u64 = 6 << 16;
    const COMPLETION_ENTRY_LOG2: u64 = 4 << 20;
    const ENABLE: u64 = 1;
    const READY: u64 = 1;
    const TRIES: usize = 1000;
    let value = SUBMISSION_ENTRY_LOG2 | COMPLETION_ENTRY_LOG2 | ENABLE;
    command(admin, &Command::property_set(0, CONTROLLER_CONFIGURATION, value), &[])?;
    for _ in 0..TRIES {
        if command(admin, &Command::property_get(0, CONTROLLER_STATUS), &[])?.0 & READY != 0 {
            return Ok(());
        }
    }
    bail!("the controller does not become ready")
}

struct Namespace {
    bytes: u64,
    block_bytes: u32,
}

/// NVM command set specification, Identify Namespace: NSZE, FLBAS and the LBA formats.
fn identify_namespace(admin: &mut Stream) -> Result<Namespace> {
    const IDENTIFY_BYTES: u32 = 4096;
    const WHAT_NAMESPACE: u8 = 0;
    let identify = Command::identify(0, NAMESPACE, WHAT_NAMESPACE, IDENTIFY_BYTES);
    let (_, data) = command(admin, &identify, &[])?;
    ensure!(data.len() == IDENTIFY_BYTES as usize, "the target identifies with {} bytes", data.len());
    let blocks = u64::from_le_bytes(*data.first_chunk().context("a short answer")?);
    let format = usize::from(data[26] & 0xf);
    let block_bytes = 1_u32.checked_shl(u32::from(data[128 + 4 * format + 2])).unwrap_or(0);
    ensure!((512..=65_536).contains(&block_bytes), "blocks of {block_bytes} bytes");
    Ok(Namespace { bytes: blocks.saturating_mul(u64::from(block_bytes)), block_bytes })
}

/// One command and its answer: the completion's result and the data that came.
fn command(stream: &mut Stream, command: &Command, data: &[u8]) -> Result<(u64, Vec<u8>)> {
    let mut capsule = Vec::new();
    command.append_to(&mut capsule, data.len());
    capsule.extend_from_slice(data);
    stream.write(&capsule)?;
    let mut received = Vec::new();
    loop {
        match Incoming::parse(&stream.read()?) {
            Incoming::Completion { status: 0, result, .. } => return Ok((result, received)),
            Incoming::Completion { status, .. } => bail!("the target answers with status {status:#x}"),
            Incoming::Data { following_bytes, last, .. } => {
                received.extend_from_slice(&stream.read_some(following_bytes)?);
                if last {
                    return Ok((0, received));
                }
            }
            Incoming::Unknown { kind } => bail!("the target sends a PDU of type {kind:#x}"),
        }
    }
}

impl Protocol for NvmeTcp {
    fn request(&mut self, slot: usize, offset: u64) -> Result<()> {
        *self.busy.get_mut(slot).context("a slot outside the window")? = true;
        let at = Blocks {
            first: offset / u64::from(self.block_bytes),
            count: self.bytes / self.block_bytes,
            bytes: self.bytes,
        };
        let identifier = u16::try_from(slot).context("a slot outside the window")?;
        let command = Command::move_blocks(self.opcode, identifier, NAMESPACE, at);
        let data_bytes = if self.opcode == opcode::WRITE { self.bytes as usize } else { 0 };
        let outgoing = self.stream.outgoing();
        command.append_to(outgoing, data_bytes);
        outgoing.resize(outgoing.len() + data_bytes, slot.to_le_bytes()[0]);
        Ok(())
    }

    fn send(&mut self) -> Result<bool> {
        self.stream.send()
    }

    fn receive(&mut self, answered: &mut Vec<usize>) -> Result<()> {
        self.stream.receive()?;
        loop {
            if let Some((left, done)) = self.coming {
                let left = left - self.stream.skip(left);
                if left > 0 {
                    self.coming = Some((left, done));
                    return Ok(());
                }
                self.coming = None;
                answered.extend(done);
            }
            let Some(header) = self.stream.peek() else { return Ok(()) };
            self.stream.skip(pdu::RESPONSE_BYTES);
            match Incoming::parse(&header) {
                Incoming::Completion { identifier, status, .. } => {
                    ensure!(status == 0, "the target answers with status {status:#x}");
                    answered.push(self.done(identifier)?);
                }
                Incoming::Data { identifier, following_bytes, last } => {
                    let done = if last { Some(self.done(identifier)?) } else { None };
                    self.coming = Some((following_bytes, done));
                }
                Incoming::Unknown { kind } => bail!("the target sends a PDU of type {kind:#x}"),
            }
        }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.socket()
    }

    fn ask_again(&mut self, _slot: usize) -> Result<()> {
        // TCP sees to what is lost; a target that is slow is measured as slow.
        Ok(())
    }
}

impl NvmeTcp {
    fn done(&mut self, identifier: u16) -> Result<usize> {
        let slot = usize::from(identifier);
        let busy = self.busy.get_mut(slot).filter(|busy| **busy);
        *busy.context("an answer to a command that was not given")? = false;
        Ok(slot)
    }
}
