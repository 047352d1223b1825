//! The device's side of a split queue (VIRTIO 1.2 section 2.7), over memory that is read and written by copies.

use std::fs::File;
use std::io::{Read as _, Write as _};

use anyhow::{Context as _, Result, ensure};

use super::memory::Memory;

/// Descriptor flags.
const NEXT: u16 = 1;
const DEVICE_WRITES: u16 = 2;
const INDIRECT: u16 = 4;
const DESCRIPTOR_BYTES: u64 = 16;

pub(super) struct Buffer {
    pub address: u64,
    pub bytes: usize,
    pub device_writes: bool,
}

/// What the node gave in one go.
pub(super) struct Chain {
    pub head: u16,
    buffers: Vec<Buffer>,
}

impl Chain {
    pub fn iter(&self) -> std::slice::Iter<'_, Buffer> {
        self.buffers.iter()
    }

    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.bytes).sum()
    }
}

impl<'a> IntoIterator for &'a Chain {
    type Item = &'a Buffer;
    type IntoIter = std::slice::Iter<'a, Buffer>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[derive(Default)]
pub(super) struct Ring {
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub event_index: bool,
    kick: Option<File>,
    call: Option<File>,
    taken: u16,
    returned: u16,
}

impl Ring {
    pub fn begin_at(&mut self, base: u16) {
        (self.taken, self.returned) = (base, base);
    }

    /// Stops, and says how many chains were taken.
    pub fn stop(&mut self) -> u16 {
        self.kick = None;
        self.taken
    }

    pub fn set_kick(&mut self, kick: Option<File>) {
        self.kick = kick;
    }

    pub fn set_call(&mut self, call: Option<File>) {
        self.call = call;
    }

    pub fn kick(&self) -> Option<&File> {
        self.kick.as_ref()
    }

    /// Takes a kick that may have come: the ring is looked at in any case.
    pub fn drain_kick(&self) {
        if let Some(mut kick) = self.kick.as_ref() {
            // Not blocking: QEMU makes its event files so.
            let _ = kick.read(&mut [0; 8]);
        }
    }

    pub fn is_running(&self) -> bool {
        self.kick.is_some() && self.available != 0 && self.size > 0
    }

    fn place(&self, position: u16) -> u64 {
        u64::from(position % self.size)
    }

    /// The next chain that the node has made available.
    pub fn take(&mut self, memory: &Memory) -> Result<Option<Chain>> {
        if self.event_index {
            // A kick for the next one, please. Said before the index is looked at, so that none is missed; the word lies
            // behind the used ring.
            let event = self.used + 4 + 8 * u64::from(self.size);
            memory.write_user(event, &self.taken.to_le_bytes())?;
        }
        let index = u16::from_le_bytes(memory.read_user(self.available + 2)?);
        if index == self.taken {
            return Ok(None);
        }
        let head = u16::from_le_bytes(memory.read_user(self.available + 4 + 2 * self.place(self.taken))?);
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(Chain { head, buffers: self.walk(memory, head)? }))
    }

    fn walk(&self, memory: &Memory, head: u16) -> Result<Vec<Buffer>> {
        let mut buffers = Vec::new();
        let (address, bytes, flags, next) = self.descriptor(memory, head)?;
        if flags & INDIRECT == 0 {
            let mut entry = (address, bytes, flags, next);
            loop {
                buffers.push(buffer(entry));
                ensure!(buffers.len() <= self.size.into(), "a chain without end");
                if entry.2 & NEXT == 0 {
                    return Ok(buffers);
                }
                ensure!(entry.3 < self.size, "descriptor {} of {}", entry.3, self.size);
                entry = self.descriptor(memory, entry.3)?;
            }
        }
        let table = memory.read_guest(address, bytes as usize)?;
        let count = table.len() / DESCRIPTOR_BYTES as usize;
        let mut place = 0;
        loop {
            let at = place * DESCRIPTOR_BYTES as usize;
            let entry = parse(table.get(at..).and_then(|rest| rest.first_chunk()).context("a table's end")?);
            ensure!(entry.2 & INDIRECT == 0, "a table in a table");
            buffers.push(buffer(entry));
            ensure!(buffers.len() <= count, "a chain without end");
            if entry.2 & NEXT == 0 {
                return Ok(buffers);
            }
            place = entry.3.into();
        }
    }

    fn descriptor(&self, memory: &Memory, index: u16) -> Result<(u64, u32, u16, u16)> {
        Ok(parse(&memory.read_user(self.descriptors + DESCRIPTOR_BYTES * u64::from(index))?))
    }

    /// Returns a chain, or what is none.
    pub fn complete(&mut self, memory: &Memory, id: u32, written: u32) -> Result<()> {
        self.complete_times(memory, 1, id, written)
    }

    /// Returns a chain several times, at once: returned one by one it might be given again between.
    pub fn complete_times(&mut self, memory: &Memory, times: u16, id: u32, written: u32) -> Result<()> {
        let element = [id.to_le_bytes(), written.to_le_bytes()].concat();
        for time in 0..times {
            let place = self.place(self.returned.wrapping_add(time));
            memory.write_user(self.used + 4 + 8 * place, &element)?;
        }
        self.move_index(memory, times)
    }

    /// Moves the index of what was returned, and says so.
    pub fn move_index(&mut self, memory: &Memory, count: u16) -> Result<()> {
        self.returned = self.returned.wrapping_add(count);
        memory.write_user(self.used + 2, &self.returned.to_le_bytes())?;
        self.interrupt()
    }

    /// Overwrites all of the used ring, its index too.
    pub fn fill_with_noise(&mut self, memory: &Memory) -> Result<()> {
        let noise: Vec<u8> = (0..4 + 8 * u32::from(self.size))
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
            .collect();
        memory.write_user(self.used, &noise)?;
        self.interrupt()
    }

    fn interrupt(&self) -> Result<()> {
        if let Some(mut call) = self.call.as_ref() {
            call.write_all(&1_u64.to_ne_bytes()).context("interrupting the node")?;
        }
        Ok(())
    }
}

fn parse(bytes: &[u8; DESCRIPTOR_BYTES as usize]) -> (u64, u32, u16, u16) {
    let [a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, f0, f1, n0, n1] = *bytes;
    (
        u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
        u32::from_le_bytes([b0, b1, b2, b3]),
        u16::from_le_bytes([f0, f1]),
        u16::from_le_bytes([n0, n1]),
    )
}

fn buffer((address, bytes, flags, _): (u64, u32, u16, u16)) -> Buffer {
    Buffer { address, bytes: bytes as usize, device_writes: flags & DEVICE_WRITES != 0 }
}
