//! A device that writes what it likes into the rings: nothing is returned twice, nothing is lost.
#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use virtio_driver::fake::{FakeDevice, FakeMemory};
use virtio_driver::{Access, Packet, PacketQueue, QueueLayout, QueueSize};

const FRAME_BYTES: u32 = 2048;

fuzz_target!(|input: (bool, bool, Vec<(u8, u16, u32)>)| {
    let (event_index, receive, steps) = input;
    let layout = QueueLayout::new(QueueSize::largest(16, 16).expect("a size"));
    let memory = FakeMemory::new(&layout);
    let mut device = FakeDevice::new(memory.clone(), layout, event_index);
    let access = if receive { Access::DeviceWrites } else { Access::DeviceReads };
    let mut queue = PacketQueue::new(memory, layout, access, event_index);
    let mut out = BTreeSet::new();
    let mut next_token = 0_u32;
    for (kind, small, large) in steps {
        match kind % 6 {
            0 => {
                let _ = queue.submit(|| {
                    let token = next_token;
                    out.insert(token);
                    next_token += 1;
                    Some(Packet { device_address: u64::from(token) << 11, bytes: FRAME_BYTES, token })
                });
            }
            // Believable lies: a slot's descriptor, a length about right.
            1 => {
                let _ = device.complete(small % 16, large % 4096);
            }
            2 => device.return_element(u32::from(small), large),
            3 => device.move_index(small),
            4 => device.memory.poke(large as usize, small as u8),
            _ => {
                while let Ok(Some(used)) = queue.take_used() {
                    assert!(out.remove(&used.token));
                    assert!(!receive || used.written.unwrap_or(0) <= FRAME_BYTES);
                }
                let _ = queue.arm_interrupt(small);
            }
        }
    }
    queue.reset(|token| assert!(out.remove(&token)));
    assert!(out.is_empty());
});
