//! What guests may not see of each other.

use machine::backend::{Gpr, SystemState};
use virtio_device::{GuestPhysAddr, GuestRam};

use crate::guest::{END_OF_RAM, Guest, HOLE, real_mode};
use crate::{Outcome, ensure};

/// CR4.OSFXSR: SSE instructions do not trap.
fn real_mode_with_sse() -> SystemState {
    let mut state = real_mode();
    state.cr4 |= 1 << 9;
    state
}

pub fn vector_state() -> Outcome {
    let code = [
        0x66, 0x0f, 0x6e, 0xc0, // movd xmm0, eax
        0xe6, 0x80, // 1: out 0x80, al
        0x66, 0x0f, 0x7e, 0xc0, // movd eax, xmm0
        0x66, 0xe7, 0x81, // out 0x81, eax
        0xeb, 0xf5, // jmp 1b
    ];
    let mut guests = [Guest::new(&code)?, Guest::new(&code)?];
    for (number, guest) in (1u32..).zip(&mut guests) {
        guest.restart(&real_mode_with_sse());
        guest.vcpu.set_gpr(Gpr::RAX, u64::from(number * 0x1111_1111));
        guest.expect_out(0x80, (number * 0x1111_1111) & 0xff)?;
    }
    for _ in 0..3 {
        for (number, guest) in (1u32..).zip(&mut guests) {
            guest.expect_out(0x81, number * 0x1111_1111)?;
            guest.expect_out(0x80, (number * 0x1111_1111) & 0xff)?;
        }
    }
    // A third guest finds the state of reset, not what the others left.
    let mut fresh = Guest::new(&[0x66, 0x0f, 0x7e, 0xc0, 0x66, 0xe7, 0x81])?;
    fresh.restart(&real_mode_with_sse());
    fresh.vcpu.set_gpr(Gpr::RAX, 7);
    fresh.expect_out(0x81, 0)?;
    let supported = fresh.vcpu.supported_xcr0();
    for (value, legal) in [(1, true), (0, false), (3, true), (4, false), (supported, true), (!0, false)] {
        ensure!(fresh.vcpu.set_xcr0(value) == legal, "XCR0 {value:#x}: legal is {legal}");
    }
    Ok(())
}

pub fn memory() -> Outcome {
    const MARK: &[u8] = b"left behind by a guest";
    let mut free_pages = None;
    for _ in 0..5 {
        {
            let guest = Guest::new(&[0xf4])?;
            let mut bytes = [0; MARK.len()];
            for address in [0x3000, HOLE.start - 64, HOLE.end, END_OF_RAM - 64] {
                let address = GuestPhysAddr::new(address);
                ensure!(guest.memory.read(address, &mut bytes).is_ok(), "no RAM at {address}");
                ensure!(bytes == [0; MARK.len()], "{bytes:x?} at {address} of a new guest");
                ensure!(guest.memory.write(address, MARK).is_ok(), "no RAM at {address}");
                let read = guest.memory.read(address, &mut bytes);
                ensure!(read.is_ok() && bytes == MARK, "{bytes:x?} at {address}, just written");
            }
            for address in [HOLE.start - 4, HOLE.start, HOLE.end - 4, END_OF_RAM - 4, u64::MAX - 4] {
                let address = GuestPhysAddr::new(address);
                ensure!(guest.memory.read(address, &mut bytes).is_err(), "read RAM at {address}");
                ensure!(guest.memory.write(address, MARK).is_err(), "wrote RAM at {address}");
            }
        }
        let free = kcore::memory::stats().free_pages;
        ensure!(*free_pages.get_or_insert(free) == free, "{free_pages:?} pages were free, now {free}");
    }
    Ok(())
}
