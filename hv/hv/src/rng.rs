//! A guest's source of randomness: the processor's, at a rate that the guest cannot exceed.
//!
//! There is none on a processor without a generator: a guest that credits itself entropy for what
//! can be guessed is worse off than one that knows that it has none.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hvarch::GuestMemory;
use kcore::random;
use kcore::sync::SpinLock;
use machine::pci::Identity;
use virtio_device::entropy::{EntropyFunction, Source};
use virtio_device::{DeviceKind, Event, Region};

use crate::bell::Bells;
use crate::devices::{Device, Round};

struct Processor;

impl Source for Processor {
    fn next(&mut self) -> Option<[u8; 8]> {
        random::hardware().map(u64::to_le_bytes)
    }
}

/// The device.
pub struct GuestRandom {
    ram: Arc<GuestMemory>,
    function: SpinLock<EntropyFunction>,
    wanted: AtomicBool,
    /// When the guest may have more; 0: it has not asked.
    due_ns: AtomicU64,
    bells: Bells,
}

impl GuestRandom {
    /// `None` if the processor has no generator.
    pub fn new(ram: Arc<GuestMemory>, bells: Bells) -> Option<GuestRandom> {
        random::hardware()?;
        Some(GuestRandom {
            ram,
            function: SpinLock::new(EntropyFunction::entropy(0)),
            wanted: AtomicBool::new(false),
            due_ns: AtomicU64::new(0),
            bells,
        })
    }
}

impl Device for GuestRandom {
    fn identity(&self) -> Identity {
        Identity { virtio_type: DeviceKind::Entropy.id(), config_bytes: 0, queues: 1 }
    }

    fn what(&self) -> &str {
        "source of entropy"
    }

    fn read(&self, region: Region, offset: u32, bytes: u8) -> u64 {
        self.function.lock().read(region, offset, bytes)
    }

    fn write(&self, region: Region, offset: u32, bytes: u8, value: u64) {
        let event = self.function.lock().write(&*self.ram, region, offset, bytes, value);
        if event != Event::Nothing {
            self.wanted.store(true, Ordering::SeqCst);
            self.bells.ring_device_cpu();
        }
    }

    fn interrupt_line(&self) -> bool {
        self.function.lock().interrupt_line()
    }

    fn round(&self, now_ns: u64) -> Round {
        let due_ns = self.due_ns.load(Ordering::Relaxed);
        let due = due_ns != 0 && due_ns <= now_ns;
        // Notified while it waits for the bucket: it looks again at the due time anyway.
        let wanted = due_ns == 0 && self.wanted.swap(false, Ordering::SeqCst);
        if !due && !wanted {
            return Round { due_ns: (due_ns != 0).then_some(due_ns), ..Round::default() };
        }
        let mut function = self.function.lock();
        let filled = function.fill(&*self.ram, &mut Processor, now_ns);
        self.due_ns.store(filled.due_ns.unwrap_or(0), Ordering::Relaxed);
        Round { more: false, due_ns: filled.due_ns, fault: function.fault() }
    }
}
