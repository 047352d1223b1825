//! NVMe disks: the part of the driver that touches a controller.
//!
//! Decisions are in `nvme-protocol`; here are memory, doorbells, interrupts and tasks.
//!
//! # One queue pair per CPU
//! A transfer goes into the queue pair of the CPU that submits it, and its completion interrupt
//! comes to that CPU. So a netblk worker that polls on its own CPU is interrupted there and never
//! woken by another, two CPUs never contend for a queue, and no identifier or doorbell is shared.
//! The roads not taken: one pair per controller costs a lock between CPUs and an inter-processor
//! interrupt for most completions; one pair per netblk instance would need a second interface
//! beside `Disk`. Where a controller grants fewer pairs than there are CPUs, CPUs share.
//!
//! # Doorbells
//! Each is a bus write, and under a hypervisor an exit. [`Disk::submit`] only writes entries;
//! [`Disk::kick`] rings once for all of them; the interrupt handler takes up to 32 completions and
//! acknowledges them with one write. If more are waiting it raises its own interrupt again, so
//! that others get their turn in between.
//!
//! # Trouble
//! A command that is not answered in time, a fatal status, an impossible completion and an empty
//! slot all end the same way: the controller's guard task (`disk_guard`) turns bus mastering off, after which no
//! byte of memory can change any more, ends every outstanding transfer with an error, and tries a
//! reset. Memory is never handed back while a controller may still write to it.
//!
//! [`Disk::submit`]: kcore::block::Disk::submit
//! [`Disk::kick`]: kcore::block::Disk::kick

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod admin;
mod controller;
mod disk;
mod io;
mod queue;
mod registers;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use kcore::pci::{self, PciDevice};
use kcore::sync::IrqSpinLock;
use kcore::task::{self, Placement, Priority};

use controller::Controller;

/// The guard of a controller.
type Guard = disk_guard::Guard<nvme_protocol::Violation>;
/// Why a controller must be stopped.
type Trouble = disk_guard::Trouble<nvme_protocol::Violation>;

/// Class, subclass and register interface of an NVMe I/O controller (PCI Code and ID Assignment).
const CLASS: (u8, u8, u8) = (0x01, 0x08, 0x02);

static CONTROLLERS: IrqSpinLock<Vec<Arc<Controller>>> = IrqSpinLock::new(Vec::new());

/// Starts every NVMe controller and registers its namespaces as disks. Tasks only. Controllers
/// start side by side, so one that does not answer delays the others' disks by its time-out at most
/// once.
pub fn probe() {
    let is_nvme = |device: &&PciDevice| (device.class, device.subclass, device.prog_if) == CLASS;
    let mut tasks = Vec::new();
    for (number, device) in pci::devices().iter().filter(is_nvme).enumerate() {
        match task::spawn(&format!("nvme{number}/start"), Placement::Any, Priority::Normal, move || {
            start(number, device);
        }) {
            Ok(task) => tasks.push(task),
            Err(error) => log::error!("nvme{number}: not started: {error}"),
        }
    }
    for task in tasks {
        task.join();
    }
}

fn start(number: usize, device: &'static PciDevice) {
    match Controller::start(number, device) {
        Ok(controller) => CONTROLLERS.lock().push(controller),
        Err(error) => log::error!("nvme{number} at {}: not usable: {error}", device.address),
    }
}

/// Ends all transfers and has every controller write out its cache: before power-off or reboot.
/// Tasks only.
pub fn shut_down() {
    let controllers = CONTROLLERS.lock().clone();
    for controller in controllers {
        controller.shut_down();
    }
}
