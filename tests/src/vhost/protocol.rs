//! Messages of the vhost-user protocol (QEMU's docs/interop/vhost-user.rst): a header of three words, a body, and files.

use std::fs::File;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, bail};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

const HEADER_BYTES: usize = 12;
/// Version 1, and "this is a reply".
const REPLY_FLAGS: u32 = 1 | 1 << 2;
/// More than any message that is understood here.
const LIMIT_BYTES: usize = 4096;
/// A region of memory each, at most.
const MOST_FILES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    GetFeatures,
    SetFeatures,
    SetMemory,
    SetRingSize,
    SetRingAddresses,
    SetRingBase,
    GetRingBase,
    SetKick,
    SetCall,
    GetProtocolFeatures,
    /// One that asks for nothing.
    Other,
}

/// Their numbers.
const NUMBERS: [(u32, Request); 10] = [
    (1, Request::GetFeatures),
    (2, Request::SetFeatures),
    (5, Request::SetMemory),
    (8, Request::SetRingSize),
    (9, Request::SetRingAddresses),
    (10, Request::SetRingBase),
    (11, Request::GetRingBase),
    (12, Request::SetKick),
    (13, Request::SetCall),
    (15, Request::GetProtocolFeatures),
];

pub(super) struct Message {
    pub request: Request,
    pub body: Vec<u8>,
    pub files: Vec<File>,
}

impl Message {
    pub fn u32_at(&self, offset: usize) -> Result<u32> {
        u32_at(&self.body, offset)
    }

    pub fn u64_at(&self, offset: usize) -> Result<u64> {
        u64_at(&self.body, offset)
    }
}

pub(super) fn u32_at(body: &[u8], offset: usize) -> Result<u32> {
    let bytes =
        body.get(offset..).and_then(|rest| rest.first_chunk()).context("a message that is cut off")?;
    Ok(u32::from_le_bytes(*bytes))
}

pub(super) fn u64_at(body: &[u8], offset: usize) -> Result<u64> {
    let bytes =
        body.get(offset..).and_then(|rest| rest.first_chunk()).context("a message that is cut off")?;
    Ok(u64::from_le_bytes(*bytes))
}

/// The next message; `None` when QEMU has closed the connection.
pub(super) fn receive(stream: &UnixStream) -> Result<Option<Message>> {
    let mut files = Vec::new();
    let mut header = [0; HEADER_BYTES];
    if !fill(stream, &mut header, &mut files)? {
        return Ok(None);
    }
    let length = u32_at(&header, 8)? as usize;
    if length > LIMIT_BYTES {
        bail!("a message of {length} bytes");
    }
    let mut body = vec![0; length];
    if length > 0 && !fill(stream, &mut body, &mut files)? {
        return Ok(None);
    }
    let number = u32_at(&header, 0)?;
    let request =
        NUMBERS.iter().find(|(known, _)| *known == number).map_or(Request::Other, |(_, request)| *request);
    Ok(Some(Message { request, body, files }))
}

/// Reads until `buffer` is full, and takes the files that come with it. `false`: nothing more comes.
fn fill(stream: &UnixStream, buffer: &mut [u8], files: &mut Vec<File>) -> Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut buffer[filled..])];
        let received = rustix::net::recvmsg(stream, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
        let count = match received {
            Ok(received) => received.bytes,
            // QEMU was killed.
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(error) => return Err(error).context("reading a message"),
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights.map(File::from));
            }
        }
        if count == 0 {
            return Ok(false);
        }
        filled += count;
    }
    Ok(true)
}

pub(super) fn reply(stream: &mut UnixStream, request: Request, body: &[u8]) -> Result<()> {
    let number = NUMBERS.iter().find(|(_, known)| *known == request).map_or(0, |(number, _)| *number);
    let length = u32::try_from(body.len()).context("a reply's length")?;
    let mut message = Vec::new();
    for word in [number, REPLY_FLAGS, length] {
        message.extend(word.to_le_bytes());
    }
    message.extend(body);
    stream.write_all(&message).context("replying to QEMU")
}
