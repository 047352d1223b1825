//! A device that writes what it likes into the rings: nothing is returned twice, nothing is lost.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use virtio_driver::fake::{FakeDevice, FakeMemory};
use virtio_driver::{Access, Packet, PacketMemory, PacketQueue, QueueLayout, QueueSize, Segment};

const FRAME_BYTES: u32 = 2048;
/// The most pieces of a packet.
const SEGMENTS: u16 = 3;

/// A packet's number, which also says how many pieces it has.
struct Token(u32);

impl Token {
    fn pieces(&self) -> u32 {
        1 + self.0 % u32::from(SEGMENTS)
    }
}

impl PacketMemory for Token {
    fn behind_count(&self) -> usize {
        self.pieces() as usize - 1
    }

    fn each_behind(&self, mut each: impl FnMut(Segment)) {
        for _ in 1..self.pieces() {
            each(Segment { device_address: u64::from(self.0) << 16 | 0x800, bytes: FRAME_BYTES });
        }
    }
}

fuzz_target!(|input: (bool, bool, u8, Vec<(u8, u16, u32)>)| {
    let (event_index, receive, shape, steps) = input;
    let size = QueueSize::largest(16, 16).expect("a size");
    let (layout, scattered) = match shape % 3 {
        0 => (QueueLayout::new(size), false),
        1 => (QueueLayout::scattered(size, SEGMENTS, false), true),
        _ => (QueueLayout::scattered(size, SEGMENTS, true), true),
    };
    let memory = FakeMemory::new(&layout);
    let mut device = FakeDevice::new(memory.clone(), layout, event_index);
    let access = if receive { Access::DeviceWrites } else { Access::DeviceReads };
    let mut queue = PacketQueue::new(memory, layout, access, event_index);
    let mut out = BTreeSet::new();
    let mut next_number = 0_u32;
    for (kind, small, large) in steps {
        match kind % 6 {
            0 => {
                let _ = queue.submit(|| {
                    let number = next_number;
                    out.insert(number);
                    next_number += if scattered { 1 } else { u32::from(SEGMENTS) };
                    let device_address = u64::from(number) << 16;
                    Some(Packet { device_address, bytes: FRAME_BYTES, segmentation: None, token: Token(number) })
                });
            }
            // Believable lies: a slot's descriptor, a length about right.
            1 => {
                let _ = device.complete(small % 16, large % 8192);
            }
            2 => device.return_element(u32::from(small), large),
            3 => device.move_index(small),
            4 => device.memory.poke(large as usize, small as u8),
            _ => {
                while let Ok(Some(used)) = queue.take_used() {
                    assert!(out.remove(&used.token.0));
                    assert!(!receive || used.written.unwrap_or(0) <= used.token.pieces() * FRAME_BYTES);
                }
                let _ = queue.arm_interrupt(small);
            }
        }
    }
    queue.reset(|token| assert!(out.remove(&token.0)));
    assert!(out.is_empty());
});
