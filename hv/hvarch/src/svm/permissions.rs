//! What a guest may touch without an exit: no port, and those model-specific registers
//! that VMRUN, VMLOAD and VMSAVE exchange anyway.

use core::ops::RangeInclusive;

use kcore::memory::{OutOfMemory, PageRun};

/// I/O permission map: a bit for each port, 12 KiB (APM vol. 2 sec. 15.10.1).
const IO_PAGES: usize = 3;
/// MSR permission map: two bits for each register, 8 KiB (sec. 15.11).
const MSR_PAGES: usize = 2;

const EXIT_ALWAYS: u8 = 0xff;

/// SYSENTER_CS, _ESP, _EIP; STAR, LSTAR, CSTAR, SFMASK; FS.base, GS.base and
/// KernelGSbase: the guest's own while it runs (table B-2), so there is nothing to
/// guard. EFER is not among them (SVME must stay set), nor PAT (VMRUN loads it from the
/// VMCB, but whether an emulator's WRMSR reaches it is not certain).
const PASSED_MSRS: [RangeInclusive<u32>; 3] =
    [0x174..=0x176, 0xc000_0081..=0xc000_0084, 0xc000_0100..=0xc000_0102];

/// The maps, shared by all guests.
pub struct PermissionMaps {
    io: PageRun,
    msr: PageRun,
}

impl PermissionMaps {
    pub fn new() -> Result<PermissionMaps, OutOfMemory> {
        let io = PageRun::new(IO_PAGES, 1, "I/O permission map")?;
        let msr = PageRun::new(MSR_PAGES, 1, "MSR permission map")?;
        for map in [&io, &msr] {
            for offset in 0..map.len_bytes() {
                set_byte(map, offset, EXIT_ALWAYS);
            }
        }
        for register in PASSED_MSRS.into_iter().flatten() {
            let (offset, shift) = msr_position(register);
            let byte = byte(&msr, offset) & !(0b11 << shift);
            set_byte(&msr, offset, byte);
        }
        Ok(PermissionMaps { io, msr })
    }

    pub fn io_pa(&self) -> u64 {
        self.io.phys().as_u64()
    }

    pub fn msr_pa(&self) -> u64 {
        self.msr.phys().as_u64()
    }
}

/// Byte and bit of a register's two bits: one vector of 2 KiB for each of the ranges
/// 0, 0xc000_0000 and 0xc001_0000 (table 15-10).
const fn msr_position(register: u32) -> (usize, u32) {
    let vector = if register < 0x2000 { 0 } else { 0x800 };
    let low = register as usize % 0x2000;
    (vector + low / 4, (low as u32 % 4) * 2)
}

fn byte(map: &PageRun, offset: usize) -> u8 {
    assert!(offset < map.len_bytes());
    // SAFETY: within the run, by the assertion; no reference to it exists.
    unsafe { map.as_ptr().add(offset).read_volatile() }
}

fn set_byte(map: &PageRun, offset: usize, value: u8) {
    assert!(offset < map.len_bytes());
    // SAFETY: as in `byte`; the maps are written only while they are made.
    unsafe { map.as_ptr().add(offset).write_volatile(value) }
}

const _: () = {
    assert!(msr_position(0x174).0 == 0x5d && msr_position(0x174).1 == 0);
    assert!(msr_position(0xc000_0082).0 == 0x820 && msr_position(0xc000_0082).1 == 4);
};
