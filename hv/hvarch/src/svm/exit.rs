//! From SVM's exit codes (AMD APM vol. 2 appendix C) to the machine's [`Exit`].

use core::arch::asm;

use machine::backend::{
    AccessBytes, CodeBits, Exit, Gpr, Injection, InvalidState, IoDirection, IoExit, MmioAccess, SegmentName,
    StringIo, Vcpu,
};
use machine::prefix::{self, Prefixes};
use virtio_device::GuestPhysAddr;

use super::vcpu::SvmVcpu;

const WRITE_CR8: u64 = 0x018;
const EXCEPTION_FIRST: u64 = 0x040;
const EXCEPTION_LAST: u64 = 0x05f;
pub const MACHINE_CHECK: u64 = EXCEPTION_FIRST + 18;
const INTR: u64 = 0x060;
const NMI: u64 = 0x061;
const VINTR: u64 = 0x064;
const RDPMC: u64 = 0x06f;
const CPUID: u64 = 0x072;
const IRET: u64 = 0x074;
const INVD: u64 = 0x076;
const PAUSE: u64 = 0x077;
const HLT: u64 = 0x078;
const INVLPGA: u64 = 0x07a;
const IOIO: u64 = 0x07b;
const MSR: u64 = 0x07c;
const SHUTDOWN: u64 = 0x07f;
const VMRUN: u64 = 0x080;
const VMMCALL: u64 = 0x081;
const VMLOAD: u64 = 0x082;
const VMSAVE: u64 = 0x083;
const STGI: u64 = 0x084;
const CLGI: u64 = 0x085;
const SKINIT: u64 = 0x086;
const RDTSCP: u64 = 0x087;
const WBINVD: u64 = 0x089;
const MONITOR: u64 = 0x08a;
const MWAIT: u64 = 0x08b;
const MWAIT_ARMED: u64 = 0x08c;
const XSETBV: u64 = 0x08d;
const RDPRU: u64 = 0x08e;
pub const NESTED_PAGE_FAULT: u64 = 0x400;
const INVALID: u64 = u64::MAX;
/// The same as QEMU's TCG has it.
const INVALID_IN_32_BITS: u64 = 0xffff_ffff;

/// Whether VMRUN refused the guest's state: then nothing of the entry has taken place.
pub fn is_refusal(exit_code: u64) -> bool {
    matches!(exit_code, INVALID | INVALID_IN_32_BITS)
}

const VECTOR_ALIGNMENT: u8 = 17;

/// EXITINFO1 of a port access (sec. 15.10.2).
struct IoInfo(u64);

impl IoInfo {
    const IN: u64 = 1 << 0;
    const STRING: u64 = 1 << 2;
    const REPEAT: u64 = 1 << 3;
    const BYTES_1: u64 = 1 << 4;
    const BYTES_2: u64 = 1 << 5;
    const BYTES_4: u64 = 1 << 6;
    const ADDRESS_16: u64 = 1 << 7;
    const ADDRESS_32: u64 = 1 << 8;
    const ADDRESS_64: u64 = 1 << 9;

    fn has(&self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    fn port(&self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn bytes(&self) -> Option<AccessBytes> {
        match self.0 & (Self::BYTES_1 | Self::BYTES_2 | Self::BYTES_4) {
            Self::BYTES_1 => Some(AccessBytes::One),
            Self::BYTES_2 => Some(AccessBytes::Two),
            Self::BYTES_4 => Some(AccessBytes::Four),
            _ => None,
        }
    }

    /// `None` where the processor does not say (QEMU's TCG).
    fn address_bytes(&self) -> Option<AccessBytes> {
        match self.0 & (Self::ADDRESS_16 | Self::ADDRESS_32 | Self::ADDRESS_64) {
            Self::ADDRESS_16 => Some(AccessBytes::Two),
            Self::ADDRESS_32 => Some(AccessBytes::Four),
            Self::ADDRESS_64 => Some(AccessBytes::Eight),
            _ => None,
        }
    }
}

/// EXITINFO1 of a nested page fault (sec. 15.25.6).
mod nested_fault {
    pub const PRESENT: u64 = 1 << 0;
    pub const WRITE: u64 = 1 << 1;
    pub const FETCH: u64 = 1 << 4;
    /// The fault came while the processor walked the guest's own tables.
    pub const TABLE_WALK: u64 = 1 << 33;
}

/// Names the last exit of `vcpu` and takes from it what the answer needs.
pub fn decode(vcpu: &mut SvmVcpu) -> Exit {
    let control = &vcpu.vmcb().control;
    let (code, info1, info2) = (control.exit_code, control.exit_info1, control.exit_info2);
    match code {
        INTR | NMI | MACHINE_CHECK => Exit::HostInterrupt,
        VINTR => Exit::InterruptWindow,
        IOIO => port_access(vcpu, &IoInfo(info1), info2).unwrap_or(Exit::Other { code, info1, info2 }),
        HLT => Exit::Hlt { length: vcpu.length(&[0xf4]) },
        CPUID => Exit::Cpuid { length: vcpu.length(&[0x0f, 0xa2]) },
        MSR => model_specific(vcpu, info1 != 0),
        NESTED_PAGE_FAULT => nested_page_fault(vcpu, info1, info2),
        EXCEPTION_FIRST..=EXCEPTION_LAST => {
            let vector = (code - EXCEPTION_FIRST) as u8;
            vcpu.reflect(vector, (vector == VECTOR_ALIGNMENT).then_some(0));
            Exit::Reflected { vector }
        }
        IRET => {
            vcpu.nmi_ends();
            Exit::InterruptWindow
        }
        INVD => Exit::CacheFlush { length: vcpu.length(&[0x0f, 0x08]) },
        WBINVD => Exit::CacheFlush { length: vcpu.length(&[0x0f, 0x09]) },
        PAUSE => Exit::Pause { length: vcpu.length(&[0x90]) },
        VMMCALL => Exit::Hypercall { length: vcpu.length(&[0x0f, 0x01, 0xd9]) },
        XSETBV => Exit::Xsetbv {
            index: vcpu.gpr(Gpr::RCX) as u32,
            value: high_low(vcpu),
            length: vcpu.length(&[0x0f, 0x01, 0xd1]),
        },
        WRITE_CR8 => match prefix::move_to_cr8(vcpu.instruction().as_slice(), vcpu.code_bits()) {
            Some((source, length)) => Exit::TaskPriority { value: vcpu.gpr(source), length },
            // Exchanged under the processor by another CPU of the guest.
            None => Exit::Refused { answer: Injection::undefined_opcode() },
        },
        // No counter exists, so no counter number is a legal one (APM vol. 3, RDPMC).
        RDPMC => Exit::Refused { answer: Injection::general_protection() },
        INVLPGA | VMRUN | VMLOAD | VMSAVE | STGI | CLGI | SKINIT | RDTSCP | MONITOR | MWAIT | MWAIT_ARMED
        | RDPRU => Exit::Refused { answer: Injection::undefined_opcode() },
        SHUTDOWN => Exit::Shutdown,
        INVALID | INVALID_IN_32_BITS => Exit::Invalid { reason: InvalidState::EntryRefused },
        code => Exit::Other { code, info1, info2 },
    }
}

/// EDX:EAX.
fn high_low(vcpu: &SvmVcpu) -> u64 {
    vcpu.gpr(Gpr::RDX) << 32 | (vcpu.gpr(Gpr::RAX) & 0xffff_ffff)
}

fn model_specific(vcpu: &SvmVcpu, write: bool) -> Exit {
    let index = vcpu.gpr(Gpr::RCX) as u32;
    if write {
        Exit::MsrWrite { index, value: high_low(vcpu), length: vcpu.length(&[0x0f, 0x30]) }
    } else {
        Exit::MsrRead { index, length: vcpu.length(&[0x0f, 0x32]) }
    }
}

/// `None` if the processor's description of the access contradicts itself.
fn port_access(vcpu: &SvmVcpu, info: &IoInfo, next_rip: u64) -> Option<Exit> {
    let bytes = info.bytes()?;
    let length = next_rip.wrapping_sub(vcpu.rip());
    if !(1..=15).contains(&length) {
        return None;
    }
    let input = info.has(IoInfo::IN);
    let string = info.has(IoInfo::STRING).then(|| string_access(vcpu, info, input));
    let direction = if input {
        IoDirection::In
    } else if string.is_some() {
        IoDirection::Out { value: 0 }
    } else {
        IoDirection::Out { value: (vcpu.gpr(Gpr::RAX) & bytes.mask()) as u32 }
    };
    Some(Exit::Io(IoExit { port: info.port(), bytes, direction, string, length: length as u8 }))
}

/// The memory side of INS and OUTS. EXITINFO1 has the segment only with decode assists, and
/// not every processor fills in the address size; the prefixes say both.
fn string_access(vcpu: &SvmVcpu, info: &IoInfo, input: bool) -> StringIo {
    let code = vcpu.code_bits();
    let prefixes = Prefixes::scan(vcpu.instruction().as_slice(), code);
    let by_prefix = match (code, prefixes.address_size) {
        (CodeBits::SixtyFour, false) => AccessBytes::Eight,
        (CodeBits::SixtyFour, true) | (CodeBits::ThirtyTwo, false) | (CodeBits::Sixteen, true) => {
            AccessBytes::Four
        }
        (CodeBits::ThirtyTwo, true) | (CodeBits::Sixteen, false) => AccessBytes::Two,
    };
    let segment = match (code, prefixes.segment.unwrap_or(SegmentName::Ds)) {
        // INS has no choice.
        _ if input => SegmentName::Es,
        // Only FS and GS have a base in 64-bit code (APM vol. 1 sec. 2.1.3).
        (CodeBits::SixtyFour, SegmentName::Es | SegmentName::Cs | SegmentName::Ss) => SegmentName::Ds,
        (_, chosen) => chosen,
    };
    StringIo {
        repeat: info.has(IoInfo::REPEAT),
        address_bytes: info.address_bytes().unwrap_or(by_prefix),
        segment,
    }
}

fn nested_page_fault(vcpu: &SvmVcpu, info1: u64, info2: u64) -> Exit {
    let gpa = GuestPhysAddr::new(info2);
    if vcpu.was_delivering() {
        return Exit::Invalid { reason: InvalidState::DeliveryTouchedDevice { gpa } };
    }
    if info1 & nested_fault::TABLE_WALK != 0 {
        return Exit::Invalid { reason: InvalidState::TableOutsideRam { gpa } };
    }
    // RAM is mapped for every kind of access, so "present" would be a fault of ours.
    if info1 & nested_fault::PRESENT != 0 {
        return Exit::Other { code: NESTED_PAGE_FAULT, info1, info2 };
    }
    let access = if info1 & nested_fault::FETCH != 0 {
        MmioAccess::Fetch
    } else if info1 & nested_fault::WRITE != 0 {
        MmioAccess::Write
    } else {
        MmioAccess::Read
    };
    Exit::Mmio { gpa, access }
}

/// Hands a machine check that arrived inside the guest to the host's own handler.
pub fn deliver_machine_check() {
    // SAFETY: vector 18 has a handler on a stack of its own since the CPU's start
    // (arch::traps); it stops the node or returns.
    unsafe { asm!("int 18") };
}
