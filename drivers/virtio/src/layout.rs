//! Where the parts of a split queue lie in its memory (VIRTIO sec 2.7), and which descriptors a
//! packet takes.

use core::fmt;

/// The number of descriptors: a power of two from 2 to 32768 (VIRTIO sec 2.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueSize(u16);

impl QueueSize {
    /// The largest size that both the device, which names its limit, and the driver allow.
    /// `None` where the device has no such queue (0), or only one descriptor.
    pub fn largest(device_limit: u16, driver_limit: u16) -> Option<QueueSize> {
        let limit = device_limit.min(driver_limit).min(1 << 15);
        (limit >= 2).then(|| QueueSize(1 << limit.ilog2()))
    }

    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for QueueSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Offsets of a queue's three parts in one contiguous memory, and of what follows them there: a
/// virtio header per slot, so that no packet needs memory beside its own frames, and a table of
/// indirect descriptors per slot, where packets may have several pieces and the device reads such
/// tables (VIRTIO sec 2.7.5.3).
///
/// A slot has neighbouring descriptors of its own: two, for header and packet, and with indirect
/// tables never more, since a packet of several pieces then takes one that points to the slot's
/// table. Without them a slot has one for the header and one for each piece there may be, rounded
/// up to a power of two, since a descriptor's slot is computed for every packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLayout {
    size: QueueSize,
    /// The most pieces of a packet.
    segments: u16,
    indirect: bool,
    /// Descriptors of a slot, as a power of two.
    stride_shift: u32,
}

/// Bytes from one packet header to the next: 12 bytes used, kept aligned.
pub(crate) const HEADER_STRIDE: usize = 16;
/// Bytes of a descriptor.
const DESCRIPTOR_BYTES: usize = 16;

impl QueueLayout {
    /// For packets of one piece.
    pub const fn new(size: QueueSize) -> QueueLayout {
        QueueLayout { size, segments: 1, indirect: false, stride_shift: 1 }
    }

    /// For packets of up to `segments` pieces, with indirect tables if the device reads them. A
    /// queue so short that its chains could not be that long (VIRTIO sec 2.7.5.3.1) is one for
    /// packets of one piece.
    pub fn scattered(size: QueueSize, segments: u16, indirect: bool) -> QueueLayout {
        let stride = if indirect { 2 } else { u32::from(segments) + 1 }.next_power_of_two();
        if segments < 2 || segments >= size.get() || stride > u32::from(size.get()) {
            return QueueLayout::new(size);
        }
        QueueLayout { size, segments, indirect, stride_shift: stride.trailing_zeros() }
    }

    pub const fn size(&self) -> QueueSize {
        self.size
    }

    /// The most pieces of a packet.
    pub const fn segments(&self) -> u16 {
        self.segments
    }

    /// Whether packets of several pieces lie in indirect tables.
    pub const fn is_indirect(&self) -> bool {
        self.indirect
    }

    /// Packets that can be in flight at once.
    pub const fn slots(&self) -> u16 {
        self.size.get() >> self.stride_shift
    }

    /// The first descriptor of a slot, which the device names when it returns the packet.
    pub(crate) const fn head(&self, slot: u16) -> u16 {
        slot << self.stride_shift
    }

    /// The slot whose first descriptor `id` is; `None` for others, and where there is no such slot.
    pub(crate) const fn slot_of(&self, id: u32) -> Option<u16> {
        let slot = id >> self.stride_shift;
        if slot < self.slots() as u32 && slot << self.stride_shift == id { Some(slot as u16) } else { None }
    }

    const fn entries(&self) -> usize {
        self.size.get() as usize
    }

    /// The descriptor table ("queue_desc"), aligned to 16 in page-aligned memory.
    pub const fn descriptors(&self) -> usize {
        0
    }

    /// The available ring ("queue_driver"): flags, idx, ring, used_event.
    pub const fn available(&self) -> usize {
        DESCRIPTOR_BYTES * self.entries()
    }

    /// The used ring ("queue_device"), aligned to 4: flags, idx, ring, avail_event.
    pub const fn used(&self) -> usize {
        (self.available() + 6 + 2 * self.entries()).next_multiple_of(4)
    }

    /// The packets' headers.
    pub const fn headers(&self) -> usize {
        (self.used() + 6 + 8 * self.entries()).next_multiple_of(HEADER_STRIDE)
    }

    /// The indirect tables, aligned to 16.
    const fn tables(&self) -> usize {
        self.headers() + HEADER_STRIDE * self.slots() as usize
    }

    const fn table_bytes(&self) -> usize {
        if self.indirect { DESCRIPTOR_BYTES * (1 + self.segments as usize) } else { 0 }
    }

    /// Bytes of the whole.
    pub const fn bytes(&self) -> usize {
        self.tables() + self.table_bytes() * self.slots() as usize
    }

    /// Descriptor `index` of slot `slot`'s indirect table.
    pub(crate) const fn table_entry(&self, slot: u16, index: u16) -> usize {
        self.tables() + self.table_bytes() * slot as usize + DESCRIPTOR_BYTES * index as usize
    }

    pub(crate) const fn descriptor(&self, index: u16) -> usize {
        self.descriptors() + DESCRIPTOR_BYTES * index as usize
    }

    pub(crate) const fn available_flags(&self) -> usize {
        self.available()
    }

    pub(crate) const fn available_index(&self) -> usize {
        self.available() + 2
    }

    /// Ring places repeat with the size, the free-running `position` does not.
    pub(crate) const fn available_place(&self, position: u16) -> usize {
        self.available() + 4 + 2 * (position & (self.size.get() - 1)) as usize
    }

    pub(crate) const fn used_event(&self) -> usize {
        self.available() + 4 + 2 * self.entries()
    }

    pub(crate) const fn used_flags(&self) -> usize {
        self.used()
    }

    pub(crate) const fn used_index(&self) -> usize {
        self.used() + 2
    }

    pub(crate) const fn used_place(&self, position: u16) -> usize {
        self.used() + 4 + 8 * (position & (self.size.get() - 1)) as usize
    }

    pub(crate) const fn available_event(&self) -> usize {
        self.used() + 4 + 8 * self.entries()
    }

    pub(crate) const fn header(&self, slot: u16) -> usize {
        self.headers() + HEADER_STRIDE * slot as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_powers_of_two() {
        assert_eq!(QueueSize::largest(0, 256), None);
        assert_eq!(QueueSize::largest(1, 256), None);
        assert_eq!(QueueSize::largest(1000, 256).unwrap().get(), 256);
        assert_eq!(QueueSize::largest(100, 256).unwrap().get(), 64);
        assert_eq!(QueueSize::largest(u16::MAX, u16::MAX).unwrap().get(), 32768);
    }

    #[test]
    fn a_short_queue_is_for_one_piece() {
        let size = |limit| QueueSize::largest(limit, limit).unwrap();
        assert_eq!(QueueLayout::scattered(size(4), 6, true), QueueLayout::new(size(4)));
        assert_eq!(QueueLayout::scattered(size(8), 1, true), QueueLayout::new(size(8)));
        assert_eq!(QueueLayout::scattered(size(8), 6, true).slots(), 4);
        assert_eq!(QueueLayout::scattered(size(8), 6, false).slots(), 1);
        assert_eq!(QueueLayout::scattered(size(256), 6, false).slots(), 32);
    }

    proptest! {
        #[test]
        fn slots_are_known_by_their_heads(limit in 2u16.., segments in 1u16..20, indirect: bool, id: u32) {
            let size = QueueSize::largest(limit, u16::MAX).unwrap();
            let layout = QueueLayout::scattered(size, segments, indirect);
            let slot = id as u16 % layout.slots();
            prop_assert_eq!(layout.slot_of(layout.head(slot).into()), Some(slot));
            for id in [id, id % 0x1_0000] {
                if let Some(slot) = layout.slot_of(id) {
                    prop_assert!(slot < layout.slots());
                    prop_assert_eq!(u32::from(layout.head(slot)), id);
                }
            }
        }

        #[test]
        fn parts_are_aligned_and_apart(limit in 2u16.., segments in 1u16..20, indirect: bool) {
            let size = QueueSize::largest(limit, u16::MAX).unwrap();
            let layout = QueueLayout::scattered(size, segments, indirect);
            let entries = usize::from(layout.size().get());
            prop_assert_eq!(layout.descriptors() % 16, 0);
            prop_assert_eq!(layout.available() % 2, 0);
            prop_assert_eq!(layout.used() % 4, 0);
            prop_assert_eq!(layout.table_entry(0, 0) % 16, 0);
            prop_assert!(layout.descriptors() + 16 * entries <= layout.available());
            prop_assert!(layout.used_event() + 2 <= layout.used());
            prop_assert!(layout.available_event() + 2 <= layout.headers());
            let slots = layout.slots();
            prop_assert!(slots > 0);
            let behind_header = if layout.is_indirect() { 1 } else { layout.segments() };
            prop_assert!(usize::from(layout.head(slots - 1) + behind_header) < entries);
            prop_assert!(slots == 1 || behind_header < layout.head(1));
            prop_assert!(layout.header(slots - 1) + HEADER_STRIDE <= layout.table_entry(0, 0));
            if layout.is_indirect() {
                let last = layout.table_entry(slots - 1, layout.segments());
                prop_assert_eq!(layout.table_entry(slots - 1, 0) % 16, 0);
                prop_assert!(last + 16 <= layout.bytes());
            } else {
                prop_assert!(layout.header(slots - 1) + HEADER_STRIDE <= layout.bytes());
            }
        }
    }
}
