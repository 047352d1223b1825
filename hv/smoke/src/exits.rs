//! What makes a guest come out, and what the exit says.

use alloc::format;

use machine::backend::{
    AccessBytes, Exit, Gpr, Injection, InvalidState, IoDirection, MmioAccess, SegmentName,
};
use virtio_device::GuestPhysAddr;

use crate::guest::{CODE, END_OF_RAM, Guest, HOLE, real_mode};
use crate::{Outcome, ensure};

pub fn port_accesses() -> Outcome {
    let mut guest = Guest::new(&[
        0xb0, 0x5a, // mov al, 0x5a
        0xe6, 0x80, // out 0x80, al
        0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xef, // out dx, ax
        0x66, 0xed, // in eax, dx
        0xe6, 0x81, // out 0x81, al
    ])?;
    guest.vcpu.set_gpr(Gpr::RAX, 0x1122_3300);
    guest.expect_out(0x80, 0x5a)?;
    guest.expect_out(0x3f8, 0x335a)?;
    let exit = guest.run()?;
    let Exit::Io(io) = exit else { return Err(format!("{exit:?}, not IN")) };
    ensure!(
        (io.port, io.bytes, io.direction, io.length) == (0x3f8, AccessBytes::Four, IoDirection::In, 2),
        "{io:x?}"
    );
    ensure!(io.string.is_none(), "{io:x?} is no string access");
    guest.vcpu.set_gpr(Gpr::RAX, 0xcafe_ba77);
    guest.vcpu.advance_rip(io.length);
    guest.expect_out(0x81, 0x77)
}

pub fn string_port_accesses() -> Outcome {
    let mut guest = Guest::new(&[
        0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xf3, 0x6e, // rep outsb
        0x2e, 0x6f, // cs outsw
        0x6c, // insb
    ])?;
    let expected = [
        (SegmentName::Ds, true, AccessBytes::One, 2),
        (SegmentName::Cs, false, AccessBytes::Two, 2),
        (SegmentName::Es, false, AccessBytes::One, 1),
    ];
    guest.vcpu.set_gpr(Gpr::RCX, 3);
    for (segment, repeat, bytes, length) in expected {
        let exit = guest.run()?;
        let Exit::Io(io) = exit else { return Err(format!("{exit:?}, not a port access")) };
        let Some(string) = io.string else { return Err(format!("{io:x?}, not a string access")) };
        ensure!(
            (string.segment, string.repeat, io.bytes, io.length) == (segment, repeat, bytes, length),
            "{io:x?}, expected {segment:?} {repeat} {bytes:?} {length}"
        );
        ensure!(string.address_bytes == AccessBytes::Two, "{io:x?}");
        guest.vcpu.advance_rip(io.length);
    }
    Ok(())
}

pub fn lengths_with_prefixes() -> Outcome {
    let mut guest = Guest::new(&[
        0x0f, 0xa2, // cpuid
        0x2e, 0x66, 0x0f, 0xa2, // the same behind two prefixes
        0x3e, 0xf4, // ds hlt
        0xe6, 0x80, // out 0x80, al
    ])?;
    for length in [2, 4] {
        let exit = guest.run()?;
        ensure!(exit == Exit::Cpuid { length }, "{exit:?}, not CPUID of {length} bytes");
        guest.vcpu.advance_rip(length);
    }
    let exit = guest.run()?;
    ensure!(exit == Exit::Hlt { length: 2 }, "{exit:?}, not HLT of 2 bytes");
    guest.vcpu.advance_rip(2);
    guest.vcpu.set_gpr(Gpr::RAX, 1);
    guest.expect_out(0x80, 1)
}

pub fn model_specific_registers() -> Outcome {
    let mut guest = Guest::new(&[
        0x66, 0xb9, 0x82, 0x00, 0x00, 0xc0, // mov ecx, LSTAR
        0x66, 0xb8, 0x78, 0x56, 0x34, 0x12, // mov eax, 0x12345678
        0x66, 0x31, 0xd2, // xor edx, edx
        0x0f, 0x30, // wrmsr: passes
        0x66, 0x31, 0xc0, // xor eax, eax
        0x0f, 0x32, // rdmsr: passes
        0xe6, 0x80, // out 0x80, al
        0x66, 0xb9, 0x80, 0x00, 0x00, 0xc0, // mov ecx, EFER
        0x0f, 0x30, // wrmsr
    ])?;
    guest.expect_out(0x80, 0x78)?;
    let exit = guest.run()?;
    let expected = Exit::MsrWrite { index: 0xc000_0080, value: 0x1234_5678, length: 2 };
    ensure!(exit == expected, "{exit:x?}, not {expected:x?}");
    ensure!(guest.vcpu.efer() == 0, "the guest sees EFER {:#x}", guest.vcpu.efer());
    Ok(())
}

pub fn device_memory() -> Outcome {
    let mut guest = Guest::new(&[
        0xb8, 0x00, 0xa0, // mov ax, 0xa000
        0x8e, 0xd8, // mov ds, ax
        0x88, 0x07, // mov [bx], al
        0x8a, 0x47, 0x10, // mov al, [bx + 0x10]
        0xea, 0x00, 0x00, 0x00, 0xb0, // jmp 0xb000:0
    ])?;
    for (offset, access, length) in [(4, MmioAccess::Write, 2), (0x14, MmioAccess::Read, 3)] {
        guest.vcpu.set_gpr(Gpr::RBX, 4);
        let exit = guest.run()?;
        let expected = Exit::Mmio { gpa: GuestPhysAddr::new(HOLE.start + offset), access };
        ensure!(exit == expected, "{exit:x?}, not {expected:x?}");
        let bytes = guest.vcpu.instruction();
        ensure!(bytes.as_slice().len() >= length, "only {:x?} of the instruction", bytes.as_slice());
        guest.vcpu.advance_rip(length as u8);
    }
    let exit = guest.run()?;
    let expected = Exit::Mmio { gpa: GuestPhysAddr::new(0xb_0000), access: MmioAccess::Fetch };
    ensure!(exit == expected, "{exit:x?}, not {expected:x?}");
    // Beyond the end of RAM there is nothing either.
    let mut state = real_mode();
    state.ds.base = END_OF_RAM;
    guest.put(CODE, &[0x88, 0x07])?;
    guest.restart(&state);
    guest.vcpu.set_gpr(Gpr::RBX, 0);
    let exit = guest.run()?;
    let expected = Exit::Mmio { gpa: GuestPhysAddr::new(END_OF_RAM), access: MmioAccess::Write };
    ensure!(exit == expected, "{exit:x?}, not {expected:x?}");
    Ok(())
}

pub fn refused_instructions() -> Outcome {
    let undefined = Injection::undefined_opcode();
    for (name, code, answer) in [
        // VMRUN is no instruction of real mode, so it cannot be tried here; RDTSCP is
        // intercepted, but QEMU's TCG does not heed that.
        // Behind each stands HLT.
        ("rdpmc", &[0x0f, 0x33, 0xf4][..], Injection::general_protection()),
        ("monitor", &[0x0f, 0x01, 0xc8, 0xf4], undefined),
        ("mwait", &[0x0f, 0x01, 0xc9, 0xf4], undefined),
    ] {
        let mut guest = Guest::new(code)?;
        let exit = guest.run()?;
        ensure!(exit == Exit::Refused { answer }, "{name}: {exit:?}");
        ensure!(guest.vcpu.rip() == CODE, "{name} moved RIP to {:#x}", guest.vcpu.rip());
    }
    Ok(())
}

pub fn triple_fault() -> Outcome {
    let mut guest = Guest::new(&[0xcd, 0x03])?; // int 3
    let mut state = real_mode();
    // The table is too short for any vector, that of the double fault too.
    state.idtr.limit_bytes = 0;
    guest.restart(&state);
    let exit = guest.run()?;
    ensure!(exit == Exit::Shutdown, "{exit:?}");
    Ok(())
}

pub fn impossible_state() -> Outcome {
    let mut guest = Guest::new(&[0xf4])?;
    let mut state = real_mode();
    // Long mode enabled and paging on without PAE (APM vol. 2 sec. 15.5.1).
    state.efer = 1 << 8;
    state.cr0 |= 1 << 31 | 1;
    guest.restart(&state);
    let exit = guest.run()?;
    ensure!(exit == Exit::Invalid { reason: InvalidState::EntryRefused }, "{exit:?}");
    // The CPU is not spoilt by it.
    guest.restart(&real_mode());
    let exit = guest.run()?;
    ensure!(exit == Exit::Hlt { length: 1 }, "afterwards {exit:?}");
    Ok(())
}
