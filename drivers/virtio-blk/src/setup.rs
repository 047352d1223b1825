//! How a device is brought up, and what can be in the way.

use core::fmt;

use kcore::irq::IrqError;
use kcore::memory::OutOfMemory;
use kcore::pci::PciError;
use kcore::task::{self, SpawnError};
use kcore::time;
use virtio_driver::blk::{self, Config, Shape, ShapeError};
use virtio_driver::{Features, MissingFeature, status};
use virtio_pci::{RegisterError, Registers};

const REQUIRED: Features = Features::VERSION_1;
const WANTED: Features = Features::EVENT_INDEX
    .with(Features::INDIRECT_DESCRIPTORS)
    .with(blk::SIZE_MAX)
    .with(blk::SEG_MAX)
    .with(blk::READ_ONLY)
    .with(blk::BLK_SIZE)
    .with(blk::FLUSH)
    .with(blk::MULTI_QUEUE)
    .with(blk::DISCARD)
    .with(blk::WRITE_ZEROES);

/// How long a reset may take. The specification sets no limit; a device that waits for its own disk
/// may need seconds.
const RESET_LIMIT_NS: u64 = 5_000_000_000;
/// Waits between two looks at the status grow up to this.
const LONGEST_WAIT_NS: u64 = 20_000_000;
/// How often a configuration may change while it is read.
const CONFIG_ATTEMPTS: u32 = 16;

/// Why a device cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartError {
    Pci(PciError),
    Registers(RegisterError),
    Feature(MissingFeature),
    FeaturesRefused,
    ResetTimedOut,
    /// Its configuration changed whenever it was read.
    Unsteady,
    Shape(ShapeError),
    NoQueue(u16),
    Interrupt(IrqError),
    Memory(OutOfMemory),
    Task(SpawnError),
    /// After a reset it is not what it was.
    Changed,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Pci(error) => error.fmt(f),
            StartError::Registers(error) => error.fmt(f),
            StartError::Feature(error) => error.fmt(f),
            StartError::FeaturesRefused => f.write_str("it refused the features it had offered"),
            StartError::ResetTimedOut => f.write_str("it does not finish its reset"),
            StartError::Unsteady => f.write_str("its configuration does not hold still"),
            StartError::Shape(error) => error.fmt(f),
            StartError::NoQueue(queue) => write!(f, "it has no usable queue {queue}"),
            StartError::Interrupt(error) => error.fmt(f),
            StartError::Memory(error) => error.fmt(f),
            StartError::Task(error) => error.fmt(f),
            StartError::Changed => f.write_str("after the reset it is a different disk"),
        }
    }
}

impl core::error::Error for StartError {}

/// Resets the device and waits until it says so; then it uses no memory any more. Sleeps: the status
/// changes without an interrupt, and there is nothing to be woken by.
pub fn reset(registers: &Registers) -> Result<(), StartError> {
    registers.begin_reset();
    let limit_ns = time::now_ns() + RESET_LIMIT_NS;
    let mut wait_ns = 10_000;
    while registers.status() != 0 {
        if time::now_ns() > limit_ns {
            return Err(StartError::ResetTimedOut);
        }
        task::sleep_ns(wait_ns);
        wait_ns = (wait_ns * 2).min(LONGEST_WAIT_NS);
    }
    Ok(())
}

/// The steps of VIRTIO sec 3.1.1 up to the features, and what the device is with them.
pub fn negotiate(registers: &Registers) -> Result<(Features, Shape), StartError> {
    registers.add_status(status::ACKNOWLEDGE);
    registers.add_status(status::DRIVER);
    // Fields beyond the end of the configuration are not the device's to offer.
    let device = registers.device();
    let bytes = u32::try_from(device.len_bytes()).unwrap_or(u32::MAX);
    let offered = Config::usable(registers.offered_features(), bytes);
    let features = offered.negotiate(REQUIRED, WANTED).map_err(StartError::Feature)?;
    if !registers.accept(features) {
        return Err(StartError::FeaturesRefused);
    }
    let config = read_config(registers, features)?;
    let shape = Shape::new(features, &config).map_err(StartError::Shape)?;
    Ok((features, shape))
}

/// The configuration, all of one moment (VIRTIO sec 2.5.1).
fn read_config(registers: &Registers, features: Features) -> Result<Config, StartError> {
    for _ in 0..CONFIG_ATTEMPTS {
        let before = registers.config_generation();
        let config = Config::read(features, |offset| registers.device().read32(offset));
        if registers.config_generation() == before {
            return Ok(config);
        }
    }
    Err(StartError::Unsteady)
}
