//! A guest for one check: a megabyte, one CPU in real mode, and code at [`CODE`].

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;

use hvarch::{Doorbell, GuestMemory, GuestSpace, TscOrigin};
use machine::backend::{EntryRequest, Exit, Gpr, IoDirection, Segment, SystemState, Vcpu};
use virtio_device::{GuestPhysAddr, GuestRam};

use crate::ensure;

/// Where the code begins, with CS = DS = SS = 0.
pub const CODE: u64 = 0x1000;
/// Where handlers of interrupts and exceptions begin.
pub const HANDLER: u64 = 0x2000;
const STACK: u64 = 0x8000;
/// There is RAM up to here, but for the VGA window.
pub const END_OF_RAM: u64 = 4 << 20;
/// The VGA window of a PC, left out of the guest's RAM.
pub const HOLE: core::ops::Range<u64> = 0xa_0000..0xc_0000;

/// Exits that a check may see of the host's affairs before it gives up.
const MOST_HOST_EXITS: usize = 10_000;

/// See the module.
pub struct Guest {
    pub memory: Arc<GuestMemory>,
    pub doorbell: Arc<Doorbell>,
    pub vcpu: Box<dyn Vcpu + Send>,
}

impl Guest {
    pub fn new(code: &[u8]) -> Result<Guest, String> {
        let map = [0..HOLE.start, HOLE.end..END_OF_RAM];
        let memory = Arc::new(GuestMemory::new(&map).map_err(|error| format!("{error}"))?);
        let space = Arc::new(GuestSpace::new(memory.clone()).map_err(|error| format!("{error}"))?);
        let doorbell = Arc::new(Doorbell::new());
        let vcpu = hvarch::new_vcpu(space, doorbell.clone(), TscOrigin::now());
        let mut guest = Guest { memory, doorbell, vcpu: vcpu.map_err(|error| format!("{error}"))? };
        guest.put(CODE, code)?;
        guest.restart(&real_mode());
        Ok(guest)
    }

    /// Sets the CPU to the beginning of the code.
    pub fn restart(&mut self, state: &SystemState) {
        self.vcpu.set_system(state);
        self.vcpu.set_rip(CODE);
        self.vcpu.set_rflags(0);
        self.vcpu.set_gpr(Gpr::RSP, STACK);
    }

    pub fn put(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        self.memory.write(GuestPhysAddr::new(address), bytes).map_err(|error| format!("{error}"))
    }

    /// A handler for a vector of the real-mode interrupt table.
    pub fn handle(&self, vector: u8, code: &[u8]) -> Result<(), String> {
        let address = HANDLER + u64::from(vector) * 16;
        self.put(u64::from(vector) * 4, &[address as u8, (address >> 8) as u8, 0, 0])?;
        self.put(address, code)
    }

    /// Runs with the entry until an exit that is the guest's doing. What the entry
    /// injects goes in once.
    pub fn run_with(&mut self, entry: EntryRequest) -> Result<Exit, String> {
        let mut entry = entry;
        for _ in 0..MOST_HOST_EXITS {
            let exit = self.vcpu.run(&entry);
            if exit != Exit::HostInterrupt {
                return Ok(exit);
            }
            entry.inject = None;
        }
        Err(String::from("the guest does not get on for interrupts of the host"))
    }

    pub fn run(&mut self) -> Result<Exit, String> {
        self.run_with(EntryRequest::default())
    }

    /// Runs to the next `OUT port, AL` and completes it.
    pub fn expect_out(&mut self, port: u16, value: u32) -> Result<(), String> {
        let exit = self.run()?;
        self.complete_out(exit, port, value)
    }

    /// Checks that the exit is this OUT, and completes it.
    pub fn complete_out(&mut self, exit: Exit, port: u16, value: u32) -> Result<(), String> {
        let Exit::Io(io) = exit else { return Err(format!("{exit:?}, not a port access")) };
        ensure!(
            io.port == port && io.direction == IoDirection::Out { value },
            "{io:x?} at {:#x}, not {value:#x} to port {port:#x}",
            self.vcpu.rip()
        );
        self.vcpu.advance_rip(io.length);
        Ok(())
    }
}

/// Real mode with all segments at 0 and the interrupt table at 0.
pub fn real_mode() -> SystemState {
    let mut state = SystemState::RESET;
    state.cs = Segment { selector: 0, base: 0, ..state.cs };
    state.idtr.limit_bytes = 0x3ff;
    state
}
