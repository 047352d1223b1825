//! What a guest has on its PCI bus.
//!
//! Every device has two sides. Its registers are touched by whichever CPU of the guest does
//! it, under the board's lock; its queues are worked on by the task of the guest's first CPU,
//! in rounds. What an access asks for is left in flags, and the first CPU's bell is rung.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hvarch::GuestMemory;
use machine::chipset::Board;
use machine::pci::{Endpoint, Identity};
use machine::time::nearer;
use virtio_device::{DeviceFault, Region};

use crate::bell::Bells;
use crate::disk::{DiskStats, GuestDisk};
use crate::fabric::Fabric;
use crate::guest::{ConsoleLine, Guest};
use crate::hvc::VirtioConsole;
use crate::nic::{Nic, NicStats};
use crate::rng::GuestRandom;

/// When [`Device::round`] wants to be called again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// At once: there is more.
    pub more: bool,
    /// At this time at the latest.
    pub due_ns: Option<u64>,
    /// The guest's driver broke its queue.
    pub fault: Option<DeviceFault>,
}

/// A device, for the guest's registers and for the first CPU's task.
pub trait Device: Send + Sync {
    /// What it is on the guest's PCI bus.
    fn identity(&self) -> Identity;

    /// Its name in messages.
    fn what(&self) -> &str;

    fn read(&self, region: Region, offset: u32, bytes: u8) -> u64;

    fn write(&self, region: Region, offset: u32, bytes: u8, value: u64);

    /// The level of INTx.
    fn interrupt_line(&self) -> bool;

    /// Works on the queues; the first CPU's task, before it enters the guest or sleeps.
    fn round(&self, now_ns: u64) -> Round;

    /// The guest's CPUs have left. Waits until nobody but them could still write to its memory.
    fn drain(&self) {}
}

/// A device's registers, for the bus.
struct Registers(Arc<dyn Device>);

impl Endpoint for Registers {
    fn read(&mut self, region: Region, offset: u32, bytes: u8) -> u64 {
        self.0.read(region, offset, bytes)
    }

    fn write(&mut self, region: Region, offset: u32, bytes: u8, value: u64) {
        self.0.write(region, offset, bytes, value);
    }

    fn interrupt_line(&self) -> bool {
        self.0.interrupt_line()
    }
}

/// All of a guest's devices.
#[derive(Default)]
pub struct Devices {
    nic: Option<Arc<Nic>>,
    disks: Vec<Arc<GuestDisk>>,
    console: Option<Arc<VirtioConsole>>,
    all: Vec<Arc<dyn Device>>,
}

impl Devices {
    /// Makes what the guest's description asks for and what every guest has, and puts it on the
    /// board's bus. `line` is for the virtio console.
    pub fn plug(
        guest: &Arc<Guest>,
        line: ConsoleLine,
        fabric: &Arc<Fabric>,
        memory: &Arc<GuestMemory>,
        bells: &Bells,
        board: &mut Board,
    ) -> Result<Devices, String> {
        let spec = &guest.spec;
        let mut devices = Devices::default();
        if let Some(mac) = spec.network {
            let nic = Nic::new(fabric, mac, memory.clone(), bells.clone());
            let nic = Arc::new(nic.map_err(|error| format!("{error}"))?);
            devices.nic = Some(nic.clone());
            devices.add(nic, board)?;
        }
        for disk in &spec.disks {
            let disk = GuestDisk::new(disk, &spec.name, spec.cpus, memory.clone(), bells.clone())?;
            let disk = Arc::new(disk);
            devices.disks.push(disk.clone());
            devices.add(disk, board)?;
        }
        let console = VirtioConsole::new(guest.clone(), line, memory.clone(), bells.clone());
        let console = Arc::new(console);
        devices.console = Some(console.clone());
        devices.add(console, board)?;
        if let Some(random) = GuestRandom::new(memory.clone(), bells.clone()) {
            devices.add(Arc::new(random), board)?;
        }
        Ok(devices)
    }

    fn add(&mut self, device: Arc<dyn Device>, board: &mut Board) -> Result<(), String> {
        let registers = Box::new(Registers(device.clone()));
        board.pci.add(device.identity(), registers).map_err(|_| String::from("the PCI bus is full"))?;
        self.all.push(device);
        Ok(())
    }

    /// Every device's round. The error is why the guest must end.
    pub fn round(&self, now_ns: u64) -> Result<Round, String> {
        let mut sum = Round::default();
        for device in &self.all {
            let round = device.round(now_ns);
            if let Some(fault) = round.fault {
                return Err(format!("{}: {fault}", device.what()));
            }
            sum.more |= round.more;
            sum.due_ns = nearer(sum.due_ns, round.due_ns);
        }
        Ok(sum)
    }

    /// Somebody has typed. False if it is for the UART.
    pub fn input_arrived(&self) -> bool {
        self.console.as_ref().is_some_and(|console| console.input_arrived())
    }

    /// See [`Device::drain`].
    pub fn drain(&self) {
        self.all.iter().for_each(|device| device.drain());
    }

    pub fn disk_stats(&self) -> Vec<DiskStats> {
        self.disks.iter().map(|disk| disk.stats()).collect()
    }

    pub fn nic_stats(&self) -> Option<NicStats> {
        self.nic.as_ref().map(|nic| nic.stats())
    }
}
