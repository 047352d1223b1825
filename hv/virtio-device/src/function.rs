//! A virtio PCI function: registers, queues and a device model, held together.
//!
//! The split is the specification's: the registers know nothing of networks, the model nothing
//! of registers. This file carries what happens on one side to the other, and is where a queue
//! fault becomes DEVICE_NEEDS_RESET.

use alloc::vec::Vec;

use crate::fault::{DeviceFault, QueueFault};
use crate::features::Features;
use crate::queue::Virtqueue;
use crate::ram::GuestRam;
use crate::registers::{Effect, Region, RegisterCounters, Registers, Source};
use crate::status::Status;

/// What kind of device it is: the device ID of VIRTIO 1.2 section 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    Net,
    Block,
    Console,
    Entropy,
}

impl DeviceKind {
    /// The virtio device ID.
    pub const fn id(self) -> u16 {
        match self {
            Self::Net => 1,
            Self::Block => 2,
            Self::Console => 3,
            Self::Entropy => 4,
        }
    }
}

/// A kind of device behind the registers. It never sees them: it says what it offers, is told
/// when it starts and stops, and is handed its queues by the function's operations.
pub trait DeviceModel {
    fn kind(&self) -> DeviceKind;

    /// The features of the device type; those of the queues and VERSION_1 are added.
    fn features(&self) -> Features;

    /// Whether the device can work with this subset of the offer (2.2.2).
    fn accepts(&self, _chosen: Features) -> bool {
        true
    }

    /// The largest size of each queue, each a power of two. The length is the number of queues.
    fn queue_sizes(&self) -> &[u16];

    /// Copies device configuration from `offset` on. Bytes past its end stay as they are: zero.
    fn read_config(&self, offset: u32, into: &mut [u8]);

    /// The driver is ready and chose these features.
    fn start(&mut self, _chosen: Features) {}

    /// The queues are gone: reset, given up, or after a fault. Nothing is owed to them any more.
    fn stop(&mut self);

    /// Whether somebody still reads or writes the driver's memory on the device's behalf, though
    /// the queues are gone. A reset is not over before that ends.
    fn holds_memory(&self) -> bool {
        false
    }
}

/// What an access to the registers asks of whoever drives the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Event {
    Nothing,
    /// The device went live: the queues may hold something already.
    Started,
    /// The device is live no longer: forget due times, and frames on their way to it.
    Stopped,
    /// The driver has put something into this queue of a live device.
    Notified {
        queue: u16,
    },
}

/// The whole function. After every call that may change it, look at [`Self::interrupt_line`] and
/// [`Self::take_message`].
#[derive(Debug)]
pub struct Function<M> {
    pub(crate) registers: Registers,
    pub(crate) queues: Vec<Option<Virtqueue>>,
    pub(crate) model: M,
    fault: Option<DeviceFault>,
    faults: u64,
}

impl<M: DeviceModel> Function<M> {
    /// A function as after power-on, with `msix_vectors` MSI-X vectors (0: INTx only).
    pub fn new(model: M, msix_vectors: u16) -> Self {
        let queue_features = Features::VERSION_1 | Features::EVENT_IDX | Features::INDIRECT_DESC;
        let offered = model.features() | queue_features;
        let registers = Registers::new(offered, model.queue_sizes(), msix_vectors);
        let queues = model.queue_sizes().iter().map(|_| None).collect();
        Self { registers, queues, model, fault: None, faults: 0 }
    }

    /// A read of `size` bytes (1, 2, 4, or 8) at `offset` of a region.
    pub fn read(&mut self, region: Region, offset: u32, size: u8) -> u64 {
        match region {
            Region::Common => self.registers.read_common(offset, size),
            Region::Isr => self.registers.read_isr(offset),
            Region::Device if matches!(size, 1 | 2 | 4 | 8) => {
                self.registers.config_read();
                let mut bytes = [0; 8];
                self.model.read_config(offset, &mut bytes[..usize::from(size)]);
                u64::from_le_bytes(bytes)
            }
            Region::Device | Region::Notify => {
                self.registers.odd_read();
                0
            }
        }
    }

    /// A write of `size` bytes at `offset` of a region. `ram` is where an enabled queue must lie.
    pub fn write<R: GuestRam + ?Sized>(
        &mut self,
        ram: &R,
        region: Region,
        offset: u32,
        size: u8,
        value: u64,
    ) -> Event {
        let model = &self.model;
        let effect = match region {
            Region::Common => {
                let fit = |chosen| model.accepts(chosen);
                self.registers.write_common(offset, size, value, fit)
            }
            Region::Notify => self.registers.write_notify(offset),
            // The ISR is read-only, and so is all device configuration of the models here: the
            // network device's MAC can only be written through the legacy interface (5.1.4.2).
            Region::Isr | Region::Device => self.registers.ignored(),
        };
        match effect {
            Effect::None => Event::Nothing,
            Effect::Reset { before } => {
                self.drop_queues();
                self.fault = None;
                if self.model.holds_memory() {
                    self.registers.hold_reset(before);
                }
                Event::Stopped
            }
            Effect::GivenUp => {
                self.drop_queues();
                Event::Stopped
            }
            Effect::Started => {
                self.model.start(self.registers.negotiated());
                Event::Started
            }
            Effect::Enabled { queue, setup, maximum } => {
                match Virtqueue::new(&setup, maximum, self.registers.negotiated(), ram) {
                    Ok(ready) => {
                        if let Some(slot) = self.queues.get_mut(usize::from(queue)) {
                            *slot = Some(ready);
                        }
                        Event::Nothing
                    }
                    Err(fault) => {
                        self.fail(queue, fault);
                        Event::Stopped
                    }
                }
            }
            Effect::Notified { queue } => {
                let enabled = matches!(self.queues.get(usize::from(queue)), Some(Some(_)));
                if enabled && self.is_live() { Event::Notified { queue } } else { Event::Nothing }
            }
        }
    }

    /// The level of INTx; also the Interrupt Status bit of the PCI status register (4.1.4.5.1).
    pub fn interrupt_line(&self) -> bool {
        self.registers.interrupt_line()
    }

    /// Takes one MSI-X vector whose message is to be sent; ask until there is none.
    pub fn take_message(&mut self) -> Option<u16> {
        self.registers.take_message()
    }

    /// Follows the MSI-X enable bit of PCI configuration space.
    pub fn set_msix_enabled(&mut self, enabled: bool) {
        self.registers.set_msix_enabled(enabled);
    }

    /// Whether the driver is ready and the device may use the queues.
    pub fn is_live(&self) -> bool {
        self.registers.status().is_live()
    }

    pub fn status(&self) -> Status {
        self.registers.status()
    }

    /// The features both sides agreed on.
    pub fn negotiated(&self) -> Features {
        self.registers.negotiated()
    }

    /// Why the device asks for a reset, until it gets it.
    pub fn fault(&self) -> Option<DeviceFault> {
        self.fault
    }

    /// How often a fault has stopped the device since the guest's start.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    pub fn register_counters(&self) -> RegisterCounters {
        self.registers.counters()
    }

    pub fn model(&self) -> &M {
        &self.model
    }

    /// A queue of a live device, with the model that works on it.
    pub(crate) fn live_queue(&mut self, index: u16) -> Option<(&mut Virtqueue, &mut M)> {
        if !self.is_live() {
            return None;
        }
        let queue = self.queues.get_mut(usize::from(index))?.as_mut()?;
        Some((queue, &mut self.model))
    }

    /// To be called when a model holds less memory than before: a reset that waited for it ends.
    pub(crate) fn memory_released(&mut self) {
        if !self.model.holds_memory() {
            self.registers.end_reset();
        }
    }

    pub(crate) fn interrupt(&mut self, queue: u16) {
        self.registers.raise(Source::Queue(queue));
    }

    /// The driver broke its queue: the device stops and says why.
    pub(crate) fn fail(&mut self, queue: u16, fault: QueueFault) {
        self.fault = Some(DeviceFault { queue, fault });
        self.faults += 1;
        self.registers.require_reset();
        self.drop_queues();
    }

    fn drop_queues(&mut self) {
        self.queues.fill_with(|| None);
        self.model.stop();
    }
}
