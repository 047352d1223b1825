//! The registers of a virtio device on PCI (VIRTIO 1.2 section 4.1.4), without the device.
//!
//! A state machine over (region, offset, size, value): it does not know whether the regions lie
//! in I/O or memory BARs. What a write means beyond its register is returned as an [`Effect`],
//! for whoever holds the queues.
//!
//! Accesses must have a field's own width (4.1.3.1), 64-bit fields being accessed whole or by
//! halves. Others, and those to no field, read as 0 or are ignored, and are counted: a driver
//! that makes them is broken, but not a danger.

use alloc::vec::Vec;

use crate::features::Features;
use crate::queue::QueueSetup;
use crate::ram::GuestPhysAddr;
use crate::status::Status;

/// VIRTIO_MSI_NO_VECTOR (4.1.4.3): no MSI-X vector is mapped.
pub const NO_VECTOR: u16 = 0xffff;

/// Pending messages are a bitmap of this many MSI-X vectors; more than one per queue and one for
/// the configuration is of no use.
pub const MOST_VECTORS: u16 = 64;

/// The structures that the device's PCI capabilities point to (4.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Common,
    Notify,
    Isr,
    Device,
}

/// Distance of two queues' notify addresses, notify_off_multiplier of 4.1.4.4.
pub const NOTIFY_MULTIPLIER_BYTES: u32 = 4;

/// Length of the common configuration structure (4.1.4.3).
pub const COMMON_BYTES: u32 = 0x3c;

/// One half of a 64-bit field, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Low,
    High,
    Whole,
}

impl Part {
    fn of(self, field: u64) -> u64 {
        match self {
            Self::Low => field & u64::from(u32::MAX),
            Self::High => field >> 32,
            Self::Whole => field,
        }
    }

    fn put(self, field: &mut GuestPhysAddr, value: u64) {
        let old = field.as_u64();
        *field = GuestPhysAddr::new(match self {
            Self::Low => (old & !u64::from(u32::MAX)) | (value & u64::from(u32::MAX)),
            Self::High => (old & u64::from(u32::MAX)) | (value << 32),
            Self::Whole => value,
        });
    }
}

/// The fields of struct virtio_pci_common_cfg. `queue_notify_data` and `queue_reset` belong to
/// features that are not offered, so they are not among them and read as 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    DeviceFeatureSelect,
    DeviceFeature,
    DriverFeatureSelect,
    DriverFeature,
    ConfigMsixVector,
    NumQueues,
    DeviceStatus,
    ConfigGeneration,
    QueueSelect,
    QueueSize,
    QueueMsixVector,
    QueueEnable,
    QueueNotifyOff,
    QueueDesc(Part),
    QueueDriver(Part),
    QueueDevice(Part),
}

impl Field {
    fn at(offset: u32, size: u8) -> Option<Self> {
        let part = match size {
            8 => Part::Whole,
            _ if offset & 4 == 0 => Part::Low,
            _ => Part::High,
        };
        Some(match (offset, size) {
            (0x00, 4) => Self::DeviceFeatureSelect,
            (0x04, 4) => Self::DeviceFeature,
            (0x08, 4) => Self::DriverFeatureSelect,
            (0x0c, 4) => Self::DriverFeature,
            (0x10, 2) => Self::ConfigMsixVector,
            (0x12, 2) => Self::NumQueues,
            (0x14, 1) => Self::DeviceStatus,
            (0x15, 1) => Self::ConfigGeneration,
            (0x16, 2) => Self::QueueSelect,
            (0x18, 2) => Self::QueueSize,
            (0x1a, 2) => Self::QueueMsixVector,
            (0x1c, 2) => Self::QueueEnable,
            (0x1e, 2) => Self::QueueNotifyOff,
            (0x20, 4 | 8) | (0x24, 4) => Self::QueueDesc(part),
            (0x28, 4 | 8) | (0x2c, 4) => Self::QueueDriver(part),
            (0x30, 4 | 8) | (0x34, 4) => Self::QueueDevice(part),
            _ => return None,
        })
    }
}

/// What the driver has written about one queue.
#[derive(Clone, Copy, Debug)]
struct QueueRegisters {
    maximum: u16,
    setup: QueueSetup,
    msix_vector: u16,
    enabled: bool,
}

impl QueueRegisters {
    fn reset(maximum: u16) -> Self {
        let nowhere = GuestPhysAddr::new(0);
        Self {
            maximum,
            setup: QueueSetup {
                size: maximum,
                descriptor_table: nowhere,
                available_ring: nowhere,
                used_ring: nowhere,
            },
            msix_vector: NO_VECTOR,
            enabled: false,
        }
    }
}

/// What a register write asks of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// The driver reset the device, whose status was this: nothing of the queues may be used any
    /// more.
    Reset {
        before: Status,
    },
    /// The driver set DRIVER_OK: the queues may be used.
    Started,
    /// The driver gave the device up (FAILED) while it was live.
    GivenUp,
    /// The queue was enabled; what its registers say is to be checked now.
    Enabled {
        queue: u16,
        setup: QueueSetup,
        maximum: u16,
    },
    /// There is something in this queue.
    Notified {
        queue: u16,
    },
}

/// Who interrupts (4.1.5.3 and 4.1.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Queue(u16),
    Config,
}

/// ISR status bits (4.1.4.5).
const ISR_QUEUE: u8 = 1;
const ISR_CONFIG: u8 = 2;

/// Counts of accesses that meant nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisterCounters {
    /// Reads of no field, or of a width that is not the field's.
    pub odd_reads: u64,
    /// Writes that were ignored: to no field, of a wrong width, or against the order of 3.1.1.
    pub ignored_writes: u64,
    /// Notifications for a queue that does not exist.
    pub odd_notifies: u64,
}

/// The registers and the two ways to interrupt: ISR status with INTx, and MSI-X vectors.
#[derive(Debug)]
pub(crate) struct Registers {
    offered: Features,
    driver_features: Features,
    device_feature_select: u32,
    driver_feature_select: u32,
    status: Status,
    /// The driver has reset the device, and the device is not done with its memory yet: what the
    /// status register shows until it is.
    resetting: Option<Status>,
    queue_select: u16,
    queues: Vec<QueueRegisters>,
    config_generation: u8,
    /// The device's configuration changed since it was last read.
    config_changed: bool,
    config_msix_vector: u16,
    msix_vectors: u16,
    msix_enabled: bool,
    pending_messages: u64,
    isr: u8,
    counters: RegisterCounters,
}

impl Registers {
    pub fn new(offered: Features, queue_sizes: &[u16], msix_vectors: u16) -> Self {
        Self {
            offered,
            driver_features: Features::NONE,
            device_feature_select: 0,
            driver_feature_select: 0,
            status: Status::RESET,
            resetting: None,
            queue_select: 0,
            queues: queue_sizes.iter().map(|&size| QueueRegisters::reset(size)).collect(),
            config_generation: 0,
            config_changed: false,
            config_msix_vector: NO_VECTOR,
            msix_vectors: msix_vectors.min(MOST_VECTORS),
            msix_enabled: false,
            pending_messages: 0,
            isr: 0,
            counters: RegisterCounters::default(),
        }
    }

    pub fn status(&self) -> Status {
        self.status
    }

    /// The features both sides agreed on; none before FEATURES_OK.
    pub fn negotiated(&self) -> Features {
        if self.status.has(Status::FEATURES_OK) { self.driver_features } else { Features::NONE }
    }

    pub fn counters(&self) -> RegisterCounters {
        self.counters
    }

    /// The reset that the driver has just asked for is not over: the status register shows `before`
    /// until [`Self::end_reset`], and nothing else can be written (2.4.1: the device shows 0 once the
    /// reset is done, and the driver waits for that).
    pub fn hold_reset(&mut self, before: Status) {
        // A driver that asks again while it waits is shown the same.
        self.resetting.get_or_insert(before);
    }

    /// The device is done with the driver's memory.
    pub fn end_reset(&mut self) {
        self.resetting = None;
    }

    /// A queue fault: the driver is told and must reset (2.1.2).
    pub fn require_reset(&mut self) {
        self.status = self.status.with(Status::DEVICE_NEEDS_RESET);
        if self.status.has(Status::DRIVER_OK) {
            self.raise(Source::Config);
        }
    }

    /// The device's own configuration changed (3.2.1).
    pub fn config_changed(&mut self) {
        self.config_changed = true;
        if self.status.is_live() {
            self.raise(Source::Config);
        }
    }

    /// To be called when the driver is about to read device configuration: only a change that the
    /// driver has not seen moves the generation, so that eight bits suffice (4.1.4.3.1, note).
    pub fn config_read(&mut self) {
        if self.config_changed {
            self.config_changed = false;
            self.config_generation = self.config_generation.wrapping_add(1);
        }
    }

    pub fn raise(&mut self, source: Source) {
        let (bit, vector) = match source {
            Source::Config => (ISR_CONFIG, self.config_msix_vector),
            Source::Queue(index) => {
                let queue = self.queues.get(usize::from(index));
                (ISR_QUEUE, queue.map_or(NO_VECTOR, |queue| queue.msix_vector))
            }
        };
        if !self.msix_enabled || bit == ISR_CONFIG {
            self.isr |= bit;
        }
        if self.msix_enabled && vector < self.msix_vectors {
            self.pending_messages |= 1 << vector;
        }
    }

    /// Whether INTx is asserted; a level.
    pub fn interrupt_line(&self) -> bool {
        !self.msix_enabled && self.isr != 0
    }

    /// Takes one MSI-X vector whose message is to be sent.
    pub fn take_message(&mut self) -> Option<u16> {
        if self.pending_messages == 0 {
            return None;
        }
        let vector = self.pending_messages.trailing_zeros() as u16;
        self.pending_messages &= self.pending_messages - 1;
        Some(vector)
    }

    /// Follows the MSI-X enable bit in PCI configuration space.
    pub fn set_msix_enabled(&mut self, enabled: bool) {
        self.msix_enabled = enabled && self.msix_vectors > 0;
        if !self.msix_enabled {
            self.pending_messages = 0;
        }
    }

    pub fn read_isr(&mut self, offset: u32) -> u64 {
        if offset != 0 {
            self.counters.odd_reads += 1;
            return 0;
        }
        u64::from(core::mem::take(&mut self.isr))
    }

    pub fn read_common(&mut self, offset: u32, size: u8) -> u64 {
        let Some(field) = Field::at(offset, size) else {
            self.counters.odd_reads += 1;
            return 0;
        };
        let queue = self.queues.get(usize::from(self.queue_select));
        let address = |part: Part, of: fn(&QueueSetup) -> GuestPhysAddr| {
            queue.map_or(0, |queue| part.of(of(&queue.setup).as_u64()))
        };
        match field {
            Field::DeviceFeatureSelect => u64::from(self.device_feature_select),
            Field::DeviceFeature => u64::from(self.offered.word(self.device_feature_select)),
            Field::DriverFeatureSelect => u64::from(self.driver_feature_select),
            Field::DriverFeature => u64::from(self.driver_features.word(self.driver_feature_select)),
            Field::ConfigMsixVector => u64::from(self.config_msix_vector),
            Field::NumQueues => self.queues.len() as u64,
            Field::DeviceStatus => u64::from(self.resetting.unwrap_or(self.status).bits()),
            Field::ConfigGeneration => u64::from(self.config_generation),
            Field::QueueSelect => u64::from(self.queue_select),
            // 0 tells the driver that there is no such queue (4.1.4.3.1).
            Field::QueueSize => queue.map_or(0, |queue| u64::from(queue.setup.size)),
            Field::QueueMsixVector => queue.map_or(NO_VECTOR, |queue| queue.msix_vector).into(),
            Field::QueueEnable => queue.is_some_and(|queue| queue.enabled).into(),
            Field::QueueNotifyOff => queue.map_or(0, |_| u64::from(self.queue_select)),
            Field::QueueDesc(part) => address(part, |setup| setup.descriptor_table),
            Field::QueueDriver(part) => address(part, |setup| setup.available_ring),
            Field::QueueDevice(part) => address(part, |setup| setup.used_ring),
        }
    }

    /// `features_fit` judges the driver's choice beyond its being a subset of the offer.
    pub fn write_common(
        &mut self,
        offset: u32,
        size: u8,
        value: u64,
        features_fit: impl FnOnce(Features) -> bool,
    ) -> Effect {
        let Some(field) = Field::at(offset, size) else { return self.ignored() };
        if self.resetting.is_some() {
            return self.ignored();
        }
        match field {
            Field::DeviceFeatureSelect => self.device_feature_select = low_u32(value),
            Field::DriverFeatureSelect => self.driver_feature_select = low_u32(value),
            Field::DriverFeature => {
                if self.status.has(Status::FEATURES_OK) {
                    return self.ignored(); // the agreement stands until the reset (3.1.1)
                }
                self.driver_features.set_word(self.driver_feature_select, low_u32(value));
            }
            Field::ConfigMsixVector => self.config_msix_vector = self.mappable(value),
            Field::QueueSelect => self.queue_select = low_u16(value),
            Field::DeviceStatus => return self.write_status(value, features_fit),
            Field::QueueMsixVector => {
                let vector = self.mappable(value);
                match self.queues.get_mut(usize::from(self.queue_select)) {
                    Some(queue) => queue.msix_vector = vector,
                    None => return self.ignored(),
                }
            }
            Field::QueueEnable => return self.write_enable(value),
            Field::QueueSize => match self.selected_setup() {
                Some(setup) => setup.size = low_u16(value),
                None => return self.ignored(),
            },
            Field::QueueDesc(part) => match self.selected_setup() {
                Some(setup) => part.put(&mut setup.descriptor_table, value),
                None => return self.ignored(),
            },
            Field::QueueDriver(part) => match self.selected_setup() {
                Some(setup) => part.put(&mut setup.available_ring, value),
                None => return self.ignored(),
            },
            Field::QueueDevice(part) => match self.selected_setup() {
                Some(setup) => part.put(&mut setup.used_ring, value),
                None => return self.ignored(),
            },
            Field::DeviceFeature | Field::NumQueues | Field::ConfigGeneration | Field::QueueNotifyOff => {
                return self.ignored();
            }
        }
        Effect::None
    }

    /// A write to the notify region: the offset says which queue, whatever the value (4.1.5.2;
    /// without VIRTIO_F_NOTIFICATION_DATA the value only repeats it).
    pub fn write_notify(&mut self, offset: u32) -> Effect {
        match u16::try_from(offset / NOTIFY_MULTIPLIER_BYTES) {
            Ok(queue) if usize::from(queue) < self.queues.len() => Effect::Notified { queue },
            _ => {
                self.counters.odd_notifies += 1;
                Effect::None
            }
        }
    }

    pub fn odd_read(&mut self) {
        self.counters.odd_reads += 1;
    }

    pub fn ignored(&mut self) -> Effect {
        self.counters.ignored_writes += 1;
        Effect::None
    }

    fn write_status(&mut self, value: u64, fit: impl FnOnce(Features) -> bool) -> Effect {
        let value = (value & 0xff) as u8;
        let before = self.status;
        if value == 0 {
            self.reset();
            return Effect::Reset { before };
        }
        // Beyond VERSION_1 a device may refuse what it can not work without (6.1, 2.2.2).
        let fits = self.offered.has(self.driver_features)
            && self.driver_features.has(Features::VERSION_1)
            && fit(self.driver_features);
        self.status = before.after_write(value, fits);
        if !self.status.is_live() && before.is_live() {
            Effect::GivenUp
        } else if self.status.is_live() && !before.is_live() {
            Effect::Started
        } else {
            Effect::None
        }
    }

    fn write_enable(&mut self, value: u64) -> Effect {
        let index = self.queue_select;
        let negotiated = self.status.has(Status::FEATURES_OK);
        match self.queues.get_mut(usize::from(index)) {
            // What the rings look like depends on the features, so they come first (3.1.1).
            Some(queue) if value == 1 && negotiated && !queue.enabled => {
                queue.enabled = true;
                Effect::Enabled { queue: index, setup: queue.setup, maximum: queue.maximum }
            }
            _ => self.ignored(),
        }
    }

    /// The selected queue's setup while it may be written: it freezes with queue_enable.
    fn selected_setup(&mut self) -> Option<&mut QueueSetup> {
        let queue = self.queues.get_mut(usize::from(self.queue_select))?;
        (!queue.enabled).then_some(&mut queue.setup)
    }

    /// The vector as it will be read back: NO_VECTOR if there is none such (4.1.5.1.2.1).
    fn mappable(&self, vector: u64) -> u16 {
        let vector = low_u16(vector);
        if vector < self.msix_vectors { vector } else { NO_VECTOR }
    }

    /// Back to power-on, but for what is not the driver's: the offer, the PCI function's MSI-X
    /// enable bit, the counters, and the generation, which a driver may compare over a reset.
    fn reset(&mut self) {
        self.driver_features = Features::NONE;
        self.device_feature_select = 0;
        self.driver_feature_select = 0;
        self.status = Status::RESET;
        self.queue_select = 0;
        for queue in &mut self.queues {
            *queue = QueueRegisters::reset(queue.maximum);
        }
        self.config_msix_vector = NO_VECTOR;
        self.pending_messages = 0;
        self.isr = 0;
    }
}

fn low_u32(value: u64) -> u32 {
    (value & u64::from(u32::MAX)) as u32
}

fn low_u16(value: u64) -> u16 {
    (value & u64::from(u16::MAX)) as u16
}
