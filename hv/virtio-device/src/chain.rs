//! A descriptor chain, copied out of guest memory and checked whole before any use.
//!
//! The guest may change descriptors while the device walks them. So each descriptor is read once,
//! into the [`Chain`], and only what is in the chain is ever acted on. Walking first and acting
//! after also means that a chain with a fault at its end has had no effect at all.
//!
//! The chain's storage is made once and used again for every chain: no allocation per request.

use alloc::vec::Vec;

use crate::fault::QueueFault;
use crate::ram::{GuestPhysAddr, GuestRam, OutOfRange};

/// Bytes of one descriptor (VIRTIO 1.2 section 2.7.5).
pub(crate) const DESCRIPTOR_BYTES: u16 = 16;

/// A descriptor as read, not yet believed.
#[derive(Clone, Copy)]
struct Descriptor {
    address: GuestPhysAddr,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;

    fn read<R: GuestRam + ?Sized>(ram: &R, table: Table, index: u16) -> Result<Self, OutOfRange> {
        let offset = u64::from(index) * u64::from(DESCRIPTOR_BYTES);
        let lost = OutOfRange { address: table.address, bytes: offset };
        let mut raw = [0; DESCRIPTOR_BYTES as usize];
        ram.read(table.address.checked_add(offset).ok_or(lost)?, &mut raw)?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = raw;
        Ok(Self {
            address: GuestPhysAddr::new(u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7])),
            bytes: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }

    fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// A table of descriptors: the queue's own, or an indirect one.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub address: GuestPhysAddr,
    pub descriptors: u16,
}

/// The first descriptor of a chain that the driver made available. Holding one proves that it was
/// taken from the available ring and lies in the queue's table; it is what the used ring returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head(u16);

impl Head {
    pub fn index(self) -> u16 {
        self.0
    }
}

/// A piece of a chain's buffer. Holding one proves that it is at least one byte long and was
/// wholly guest memory when the chain was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    address: GuestPhysAddr,
    bytes: u32,
}

impl Segment {
    pub fn address(&self) -> GuestPhysAddr {
        self.address
    }

    pub fn len_bytes(&self) -> u32 {
        self.bytes
    }

    /// Its first `bytes` bytes and the rest, neither empty; `None` if it has no more than that.
    pub fn split(self, bytes: u32) -> Option<(Segment, Segment)> {
        let rest = self.bytes.checked_sub(bytes).filter(|&rest| rest > 0 && bytes > 0)?;
        let address = self.address.checked_add(u64::from(bytes))?;
        Some((Segment { bytes, ..self }, Segment { address, bytes: rest }))
    }

    /// Whether `next` begins where it ends, and both together are a segment.
    fn joined(self, next: Segment) -> Option<Segment> {
        let end = self.address.checked_add(u64::from(self.bytes))?;
        let bytes = self.bytes.checked_add(next.bytes)?;
        (end == next.address).then_some(Segment { bytes, ..self })
    }
}

/// Appends the `take` bytes behind the first `skip` of `segments`, or as many as there are. What
/// lies side by side becomes one segment.
pub(crate) fn cut(segments: &[Segment], skip: u32, take: u32, into: &mut Vec<Segment>) {
    let mut cursor = Cursor::new(segments);
    let mut skip = skip;
    while skip > 0 {
        let Some((_, bytes)) = cursor.advance(skip as usize) else { return };
        skip -= bytes as u32; // at most `skip`
    }
    let mut take = take;
    while take > 0 {
        let Some((address, bytes)) = cursor.advance(take as usize) else { return };
        let bytes = bytes as u32; // at most `take`
        take -= bytes;
        let next = Segment { address, bytes };
        match into.last_mut().and_then(|last| Some((last.joined(next)?, last))) {
            Some((joined, last)) => *last = joined,
            None => into.push(next),
        }
    }
}

/// A checked chain: first the segments that the device may read, then those it may write.
#[derive(Debug)]
pub struct Chain {
    head: Head,
    segments: Vec<Segment>,
    readable: usize,
    readable_bytes: u32,
    writable_bytes: u32,
}

impl Chain {
    /// Storage for the chains of a queue of up to `queue_size` descriptors.
    pub fn with_room_for(queue_size: u16) -> Self {
        Self {
            head: Head(0),
            segments: Vec::with_capacity(usize::from(queue_size)),
            readable: 0,
            readable_bytes: 0,
            writable_bytes: 0,
        }
    }

    pub fn head(&self) -> Head {
        self.head
    }

    /// The device-readable segments, in order.
    pub fn readable(&self) -> &[Segment] {
        &self.segments[..self.readable]
    }

    /// The device-writable segments, in order.
    pub fn writable(&self) -> &[Segment] {
        &self.segments[self.readable..]
    }

    pub fn readable_bytes(&self) -> u32 {
        self.readable_bytes
    }

    pub fn writable_bytes(&self) -> u32 {
        self.writable_bytes
    }

    /// A reader over the device-readable bytes, from the first on.
    pub fn reader(&self) -> Reader<'_> {
        Reader(Cursor::new(self.readable()))
    }

    /// A writer over the device-writable bytes, from the first on.
    pub fn writer(&self) -> Writer<'_> {
        Writer(Cursor::new(self.writable()))
    }

    /// Fills the chain with what the driver has put behind `head` in `table`.
    pub(crate) fn walk<R: GuestRam + ?Sized>(
        &mut self,
        ram: &R,
        table: Table,
        head: u16,
        indirect_negotiated: bool,
    ) -> Result<(), QueueFault> {
        let queue_size = table.descriptors;
        if head >= queue_size {
            return Err(QueueFault::HeadOutOfTable { head, size: queue_size });
        }
        self.head = Head(head);
        self.segments.clear();
        self.readable = 0;
        self.readable_bytes = 0;
        self.writable_bytes = 0;

        let mut table = table;
        let mut in_indirect = false;
        let mut index = head;
        // Bounded: each turn either adds a segment, of which there are at most `queue_size`, or
        // enters the one indirect table.
        let mut walked_in_table: u16 = 0;
        loop {
            if walked_in_table == table.descriptors {
                return Err(QueueFault::Loop { head });
            }
            walked_in_table += 1;
            let descriptor = Descriptor::read(ram, table, index)?;
            if descriptor.has(Descriptor::INDIRECT) {
                if !indirect_negotiated {
                    return Err(QueueFault::IndirectNotNegotiated { head });
                }
                if in_indirect {
                    return Err(QueueFault::IndirectNested { head });
                }
                if descriptor.has(Descriptor::NEXT) {
                    return Err(QueueFault::IndirectWithNext { head });
                }
                table = indirect_table(ram, descriptor, head)?;
                in_indirect = true;
                index = 0;
                walked_in_table = 0;
                continue;
            }
            self.add(ram, descriptor, queue_size)?;
            if !descriptor.has(Descriptor::NEXT) {
                return Ok(());
            }
            index = descriptor.next;
            if index >= table.descriptors {
                let table_size = table.descriptors;
                return Err(QueueFault::NextOutOfTable { head, next: index, table_size });
            }
        }
    }

    fn add<R: GuestRam + ?Sized>(
        &mut self,
        ram: &R,
        descriptor: Descriptor,
        queue_size: u16,
    ) -> Result<(), QueueFault> {
        let head = self.head.0;
        let Descriptor { address, bytes, .. } = descriptor;
        if self.segments.len() >= usize::from(queue_size) {
            return Err(QueueFault::ChainTooLong { head, limit: queue_size });
        }
        if bytes == 0 {
            return Err(QueueFault::ZeroLength { head });
        }
        if !ram.contains(address, u64::from(bytes)) {
            return Err(QueueFault::BufferOutOfRam { head, address, bytes });
        }
        let total = if descriptor.has(Descriptor::WRITE) {
            &mut self.writable_bytes
        } else {
            if self.segments.len() > self.readable {
                return Err(QueueFault::ReadableAfterWritable { head });
            }
            self.readable += 1;
            &mut self.readable_bytes
        };
        *total = total.checked_add(bytes).ok_or(QueueFault::ChainTooLarge { head })?;
        if self.readable_bytes.checked_add(self.writable_bytes).is_none() {
            return Err(QueueFault::ChainTooLarge { head });
        }
        self.segments.push(Segment { address, bytes });
        Ok(())
    }
}

/// The table an indirect descriptor refers to. Its WRITE flag is ignored (2.7.5.3.2).
fn indirect_table<R: GuestRam + ?Sized>(
    ram: &R,
    descriptor: Descriptor,
    head: u16,
) -> Result<Table, QueueFault> {
    let Descriptor { address, bytes, .. } = descriptor;
    let size_fault = QueueFault::IndirectTableSize { head, bytes };
    if bytes == 0 || !bytes.is_multiple_of(u32::from(DESCRIPTOR_BYTES)) {
        return Err(size_fault);
    }
    let descriptors = u16::try_from(bytes / u32::from(DESCRIPTOR_BYTES)).map_err(|_| size_fault)?;
    if !ram.contains(address, u64::from(bytes)) {
        return Err(QueueFault::IndirectTableOutOfRam { head, address, bytes });
    }
    Ok(Table { address, descriptors })
}

/// A place in a row of segments.
#[derive(Clone, Copy, Debug)]
struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that are already behind the cursor; less than its length.
    passed_bytes: u32,
}

impl<'a> Cursor<'a> {
    fn new(segments: &'a [Segment]) -> Self {
        Self { segments, passed_bytes: 0 }
    }

    /// The next run of at most `wanted` contiguous bytes, and steps over it.
    fn advance(&mut self, wanted: usize) -> Option<(GuestPhysAddr, usize)> {
        let (first, rest) = self.segments.split_first()?;
        let left_bytes = first.bytes - self.passed_bytes;
        let address = first.address.checked_add(u64::from(self.passed_bytes))?;
        match u32::try_from(wanted) {
            Ok(wanted_bytes) if wanted_bytes < left_bytes => {
                self.passed_bytes += wanted_bytes;
                Some((address, wanted))
            }
            _ => {
                self.segments = rest;
                self.passed_bytes = 0;
                Some((address, left_bytes as usize))
            }
        }
    }
}

/// Reads a chain's device-readable bytes in order, over segment borders.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(Cursor<'a>);

impl Reader<'_> {
    /// Copies the next bytes and tells how many: fewer than asked only at the chain's end.
    pub fn read<R: GuestRam + ?Sized>(&mut self, ram: &R, into: &mut [u8]) -> Result<usize, OutOfRange> {
        let mut done = 0;
        while done < into.len() {
            let Some((address, bytes)) = self.0.advance(into.len() - done) else { break };
            ram.read(address, &mut into[done..done + bytes])?;
            done += bytes;
        }
        Ok(done)
    }
}

/// Writes a chain's device-writable bytes in order, over segment borders.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'a>(Cursor<'a>);

impl Writer<'_> {
    /// Copies to the next bytes and tells how many: fewer than given only at the chain's end.
    pub fn write<R: GuestRam + ?Sized>(&mut self, ram: &R, from: &[u8]) -> Result<usize, OutOfRange> {
        let mut done = 0;
        while done < from.len() {
            let Some((address, bytes)) = self.0.advance(from.len() - done) else { break };
            ram.write(address, &from[done..done + bytes])?;
            done += bytes;
        }
        Ok(done)
    }
}
