//! Where the parts of a split queue lie in its memory (VIRTIO sec 2.7).

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

/// Offsets of a queue's three parts in one contiguous memory, and of the packets' virtio
/// headers, which follow them there: a header per slot, so that no packet needs memory beside
/// its own frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLayout {
    size: QueueSize,
}

/// Bytes from one packet header to the next: 12 bytes used, kept aligned.
pub(crate) const HEADER_STRIDE: usize = 16;

impl QueueLayout {
    pub const fn new(size: QueueSize) -> QueueLayout {
        QueueLayout { size }
    }

    pub const fn size(&self) -> QueueSize {
        self.size
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
        16 * self.entries()
    }

    /// The used ring ("queue_device"), aligned to 4: flags, idx, ring, avail_event.
    pub const fn used(&self) -> usize {
        (self.available() + 6 + 2 * self.entries()).next_multiple_of(4)
    }

    /// The packets' headers.
    pub const fn headers(&self) -> usize {
        (self.used() + 6 + 8 * self.entries()).next_multiple_of(HEADER_STRIDE)
    }

    /// Bytes of the whole.
    pub const fn bytes(&self) -> usize {
        self.headers() + HEADER_STRIDE * (self.entries() / 2)
    }

    pub(crate) const fn descriptor(&self, index: u16) -> usize {
        self.descriptors() + 16 * index as usize
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

    proptest! {
        #[test]
        fn parts_are_aligned_and_apart(limit in 2u16..) {
            let layout = QueueLayout::new(QueueSize::largest(limit, u16::MAX).unwrap());
            let entries = usize::from(layout.size().get());
            prop_assert_eq!(layout.descriptors() % 16, 0);
            prop_assert_eq!(layout.available() % 2, 0);
            prop_assert_eq!(layout.used() % 4, 0);
            prop_assert!(layout.descriptors() + 16 * entries <= layout.available());
            prop_assert!(layout.used_event() + 2 <= layout.used());
            prop_assert!(layout.available_event() + 2 <= layout.headers());
            prop_assert!(layout.header((entries / 2 - 1) as u16) + HEADER_STRIDE <= layout.bytes());
        }
    }
}
