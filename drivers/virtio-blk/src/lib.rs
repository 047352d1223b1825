//! Virtio block devices on PCI (VIRTIO 1.2 sec 5.2, 4.1).
//!
//! Decisions are in `virtio_driver::blk` and `virtio_driver::RequestQueue`; here are memory,
//! doorbells, interrupts and tasks. It is the NVMe driver's shape, because both serve the same path:
//!
//! - **One queue per CPU** where the device offers as many: a transfer goes into the queue of the CPU
//!   that submits it, and its completion interrupt comes to that CPU.
//! - **Doorbells.** [`Disk::submit`] only writes descriptors; [`Disk::kick`] announces all of them at
//!   once and rings once, or not at all while the device is looking by itself (event index). The
//!   interrupt handler takes up to 32 completions; if more are waiting it raises its own interrupt
//!   again, so that others get their turn in between.
//! - **Several pieces** of memory are what the queue is made of: nothing is copied together.
//! - **Forced unit access** does not exist here. A write that asks for it is a write with a flush
//!   behind it, in the slot that the write gave back a moment ago, so that it cannot fail for want
//!   of one; only then is the transfer complete. A device without a cache needs neither.
//! - **Trouble.** A request that is not answered in time, a device that asks for it, an impossible
//!   answer and an empty slot all end the same way: the device's guard task (`disk_guard`) turns bus
//!   mastering off, resets the device, ends every outstanding transfer with an error, and sets the
//!   device up again. Memory is never handed back while a device may still write to it.
//!
//! Not used: the legacy registers, secure erase, write-cache toggling, zoned devices.
//!
//! [`Disk::submit`]: kcore::block::Disk::submit
//! [`Disk::kick`]: kcore::block::Disk::kick

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod device;
mod disk;
mod queue;
mod setup;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kcore::block;
use kcore::pci;
use kcore::sync::IrqSpinLock;
use virtio_driver::QueueFault;
use virtio_driver::pci::{DEVICE_BLK, DEVICE_BLK_TRANSITIONAL, VENDOR};

use device::Device;
use disk::VirtioDisk;

/// The guard of a device.
type Guard = disk_guard::Guard<QueueFault>;
/// Why a device must be stopped.
type Trouble = disk_guard::Trouble<QueueFault>;

static DEVICES: IrqSpinLock<Vec<Arc<Device>>> = IrqSpinLock::new(Vec::new());

/// Starts every virtio block device and registers it as vda, vdb and so on, in the order of the bus.
/// One that cannot be started keeps its letter and is named in the log. Tasks only.
pub fn probe() {
    let is_blk = |function: &&pci::PciDevice| {
        function.vendor == VENDOR && [DEVICE_BLK, DEVICE_BLK_TRANSITIONAL].contains(&function.device)
    };
    for (number, function) in pci::devices().iter().filter(is_blk).enumerate() {
        let name = name(number);
        match Device::start(function, name.clone()) {
            Ok(device) => {
                DEVICES.lock().push(device.clone());
                block::register(Arc::new(VirtioDisk::new(device)));
            }
            Err(error) => log::error!("{name} at {}: not usable: {error}", function.address),
        }
    }
}

/// Ends all transfers and has every device write out its cache: before power-off or reboot. Tasks
/// only.
pub fn shut_down() {
    let devices = DEVICES.lock().clone();
    for device in devices {
        device.shut_down();
    }
}

/// vda to vdz, then vdaa: letters that count.
fn name(number: usize) -> String {
    let mut letters = Vec::new();
    let mut rest = number + 1;
    while rest > 0 {
        rest -= 1;
        // Below 26.
        letters.push(b'a' + (rest % 26) as u8);
        rest /= 26;
    }
    letters.iter().rev().fold(String::from("vd"), |mut name, letter| {
        name.push(char::from(*letter));
        name
    })
}
