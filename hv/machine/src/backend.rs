//! The seam between the machine and the processor's virtualization.
//!
//! Everything above this trait (device models, run-loop decisions, loader) is one
//! code for AMD SVM, Intel VT-x and, in host tests, for a scripted fake. Three rules
//! shape it:
//!
//! - **What the next entry needs travels with the entry** ([`EntryRequest`]): the
//!   event to inject, whether more wait behind it, and the deadline. There is no call
//!   that toggles "an interrupt is pending"; the backend opens and closes its
//!   interrupt-window exit from `more_pending` alone.
//! - **An exit says everything the machine must know to answer it**, including the
//!   length of the instruction: the machine answers, then calls
//!   [`Vcpu::advance_rip`]. Only memory-mapped accesses are decoded above the seam,
//!   because only the processors' help with those differs too much to hide.
//! - **What an exit reports is a claim of the guest.** Sizes and directions are typed
//!   here so that they cannot be wrong; addresses, values and vectors can be anything.
//!
//! An event whose delivery was cut short by an exit (SVM's EXITINTINFO, VT-x's
//! IDT-vectoring information) is kept by the backend and injected again by itself;
//! until then [`Vcpu::accepts_interrupt`] is false.

use virtio_device::GuestPhysAddr;

/// Number of a general-purpose register, in the encoding order of the instruction
/// set (ModRM.reg with the REX bit): RAX 0, RCX 1, RDX 2, RBX 3, RSP 4, RBP 5, RSI 6,
/// RDI 7, R8..R15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpr(u8);

impl Gpr {
    pub const RAX: Gpr = Gpr(0);
    pub const RCX: Gpr = Gpr(1);
    pub const RDX: Gpr = Gpr(2);
    pub const RBX: Gpr = Gpr(3);
    pub const RSP: Gpr = Gpr(4);
    pub const RBP: Gpr = Gpr(5);
    pub const RSI: Gpr = Gpr(6);
    pub const RDI: Gpr = Gpr(7);

    /// The register of a four-bit encoding; higher bits are ignored.
    pub const fn from_encoding(encoding: u8) -> Gpr {
        Gpr(encoding & 0xf)
    }

    /// Below 16, always.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The sixteen general-purpose registers, indexed by [`Gpr`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gprs(pub [u64; 16]);

impl core::ops::Index<Gpr> for Gprs {
    type Output = u64;
    fn index(&self, register: Gpr) -> &u64 {
        &self.0[register.index()]
    }
}

impl core::ops::IndexMut<Gpr> for Gprs {
    fn index_mut(&mut self, register: Gpr) -> &mut u64 {
        &mut self.0[register.index()]
    }
}

/// A segment register's number in the encoding order of the instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentName {
    Es = 0,
    Cs = 1,
    Ss = 2,
    Ds = 3,
    Fs = 4,
    Gs = 5,
}

/// Attributes of a segment as bytes 5 and 6 of its descriptor hold them (APM vol. 2
/// sec. 4.7; the layout VT-x uses): type 3:0, S 4, DPL 6:5, P 7, AVL 12, L 13, D/B 14,
/// G 15. Bit 16 of VT-x ("unusable") is `P` clear here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentAttributes(pub u16);

impl SegmentAttributes {
    pub const PRESENT: u16 = 1 << 7;
    pub const CODE_OR_DATA: u16 = 1 << 4;
    pub const LONG: u16 = 1 << 13;
    pub const DEFAULT_BIG: u16 = 1 << 14;
    pub const GRANULARITY: u16 = 1 << 15;

    /// Read/execute, accessed, 64-bit.
    pub const CODE_64: Self = Self(Self::PRESENT | Self::CODE_OR_DATA | 0xb | Self::LONG | Self::GRANULARITY);
    /// Read/execute, accessed, 32-bit.
    pub const CODE_32: Self =
        Self(Self::PRESENT | Self::CODE_OR_DATA | 0xb | Self::DEFAULT_BIG | Self::GRANULARITY);
    /// Read/write, accessed, 32-bit (and what 64-bit mode takes).
    pub const DATA_32: Self =
        Self(Self::PRESENT | Self::CODE_OR_DATA | 0x3 | Self::DEFAULT_BIG | Self::GRANULARITY);
    /// What reset leaves in CS (SDM vol. 3 table 10-1): read/write/execute, 16-bit.
    pub const CODE_16: Self = Self(Self::PRESENT | Self::CODE_OR_DATA | 0xb);
    /// What reset leaves in the data segments.
    pub const DATA_16: Self = Self(Self::PRESENT | Self::CODE_OR_DATA | 0x3);
    /// A busy 32/64-bit task-state segment.
    pub const TASK_BUSY: Self = Self(Self::PRESENT | 0xb);
    /// A local descriptor table.
    pub const LOCAL_TABLE: Self = Self(Self::PRESENT | 0x2);

    pub const fn is_long(self) -> bool {
        self.0 & Self::LONG != 0
    }

    pub const fn is_default_big(self) -> bool {
        self.0 & Self::DEFAULT_BIG != 0
    }

    pub const fn privilege_level(self) -> u8 {
        ((self.0 >> 5) & 3) as u8
    }
}

/// A segment register with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub selector: u16,
    pub attributes: SegmentAttributes,
    /// In bytes, already scaled by the granularity bit.
    pub limit_bytes: u32,
    pub base: u64,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DescriptorTable {
    pub base: u64,
    pub limit_bytes: u16,
}

/// What decides how a linear address becomes a guest-physical one. Cheap to fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagingState {
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub privilege_level: u8,
}

/// Width of code at the current instruction pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeBits {
    Sixteen,
    ThirtyTwo,
    SixtyFour,
}

impl CodeBits {
    pub const fn bits(self) -> u32 {
        match self {
            CodeBits::Sixteen => 16,
            CodeBits::ThirtyTwo => 32,
            CodeBits::SixtyFour => 64,
        }
    }
}

/// Registers that are set at reset, by the loader and at a start-up IPI, and that a
/// failure report prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemState {
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    /// IA32_PAT.
    pub pat: u64,
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub task: Segment,
    pub local_table: Segment,
    pub gdtr: DescriptorTable,
    pub idtr: DescriptorTable,
}

impl SystemState {
    /// The state after INIT (SDM vol. 3 table 10-1), CS at the reset vector.
    pub const RESET: SystemState = {
        let data =
            Segment { selector: 0, attributes: SegmentAttributes::DATA_16, limit_bytes: 0xffff, base: 0 };
        SystemState {
            cr0: 0x10,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            efer: 0,
            pat: 0x0007_0406_0007_0406,
            es: data,
            cs: Segment {
                selector: 0xf000,
                attributes: SegmentAttributes::CODE_16,
                limit_bytes: 0xffff,
                base: 0xffff_0000,
            },
            ss: data,
            ds: data,
            fs: data,
            gs: data,
            task: Segment {
                selector: 0,
                attributes: SegmentAttributes::TASK_BUSY,
                limit_bytes: 0xffff,
                base: 0,
            },
            local_table: Segment {
                selector: 0,
                attributes: SegmentAttributes::LOCAL_TABLE,
                limit_bytes: 0xffff,
                base: 0,
            },
            gdtr: DescriptorTable { base: 0, limit_bytes: 0xffff },
            idtr: DescriptorTable { base: 0, limit_bytes: 0xffff },
        }
    };
}

/// An event for the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    pub vector: u8,
    pub kind: InjectionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectionKind {
    /// Acknowledged at the guest's interrupt controller; needs
    /// [`Vcpu::accepts_interrupt`].
    ExternalInterrupt,
    /// Vector 2; needs [`Vcpu::accepts_nmi`].
    Nmi,
    /// A fault that an instruction of the guest earned, with its error code if the
    /// vector has one (APM vol. 2 sec. 8.2).
    Exception { error: Option<u32> },
}

impl Injection {
    pub const fn interrupt(vector: u8) -> Self {
        Self { vector, kind: InjectionKind::ExternalInterrupt }
    }

    pub const fn nmi() -> Self {
        Self { vector: 2, kind: InjectionKind::Nmi }
    }

    /// #UD.
    pub const fn undefined_opcode() -> Self {
        Self { vector: 6, kind: InjectionKind::Exception { error: None } }
    }

    /// #GP(0).
    pub const fn general_protection() -> Self {
        Self { vector: 13, kind: InjectionKind::Exception { error: Some(0) } }
    }

    /// #PF. The caller sets CR2 by [`Vcpu::set_cr2`].
    pub const fn page_fault(error: u32) -> Self {
        Self { vector: 14, kind: InjectionKind::Exception { error: Some(error) } }
    }
}

/// All that one entry into the guest needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryRequest {
    /// Delivered at this entry. The machine has checked that the guest accepts it.
    pub inject: Option<Injection>,
    /// More interrupts wait (or one that the guest does not accept yet): come out as
    /// soon as the guest would take one ([`Exit::InterruptWindow`]).
    pub more_pending: bool,
    /// The guest's nearest timer edge or device time, in the node's clock. The host
    /// timer is armed for it by the run loop; the backend refuses an entry whose
    /// deadline has already passed ([`Exit::HostInterrupt`]), since the timer's
    /// interrupt may have been taken before the entry.
    pub deadline_ns: Option<u64>,
}

/// Bytes of one port or memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessBytes {
    One = 1,
    Two = 2,
    Four = 4,
    Eight = 8,
}

impl AccessBytes {
    pub const fn count(self) -> usize {
        self as usize
    }

    /// Ones where a value of this width has bits.
    pub const fn mask(self) -> u64 {
        match self {
            AccessBytes::One => 0xff,
            AccessBytes::Two => 0xffff,
            AccessBytes::Four => 0xffff_ffff,
            AccessBytes::Eight => u64::MAX,
        }
    }
}

/// An access to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoExit {
    pub port: u16,
    /// Never `Eight`.
    pub bytes: AccessBytes,
    pub direction: IoDirection,
    /// INS or OUTS: the data is in memory, not in RAX.
    pub string: Option<StringIo>,
    pub length: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDirection {
    /// The guest reads: the answer goes into AL/AX/EAX.
    In,
    /// The guest writes `value` (already cut to the width; 0 for a string operation).
    Out { value: u32 },
}

/// INS and OUTS (APM vol. 3): memory at `segment`:RDI (INS, always ES) or :RSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringIo {
    /// REP: RCX counts down; the instruction may be completed in parts.
    pub repeat: bool,
    /// Width of RSI, RDI and RCX.
    pub address_bytes: AccessBytes,
    pub segment: SegmentName,
}

/// What a guest did to memory that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmioAccess {
    Read,
    Write,
    Fetch,
}

/// Why the guest came out. `length` is the instruction's length in bytes, for
/// [`Vcpu::advance_rip`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Io(IoExit),
    /// Leaf in EAX, sub-leaf in ECX.
    Cpuid {
        length: u8,
    },
    /// The answer goes into EDX:EAX, or #GP.
    MsrRead {
        index: u32,
        length: u8,
    },
    MsrWrite {
        index: u32,
        value: u64,
        length: u8,
    },
    Hlt {
        length: u8,
    },
    /// An access to guest-physical memory that the nested tables do not map. The
    /// machine decodes the instruction ([`Vcpu::instruction`]).
    Mmio {
        gpa: GuestPhysAddr,
        access: MmioAccess,
    },
    /// XSETBV: the machine checks and answers by [`Vcpu::set_xcr0`] or #GP.
    Xsetbv {
        index: u32,
        value: u64,
        length: u8,
    },
    /// MOV to CR8: the local APIC's task priority (bits 3:0 of `value`).
    TaskPriority {
        value: u64,
        length: u8,
    },
    /// INVD or WBINVD: caches are coherent, nothing to do.
    CacheFlush {
        length: u8,
    },
    Pause {
        length: u8,
    },
    /// VMMCALL or VMCALL.
    Hypercall {
        length: u8,
    },
    /// An instruction that this machine does not offer (SVM's own, MONITOR, RDPMC,
    /// ...): inject this. RIP stays.
    Refused {
        answer: Injection,
    },
    /// The guest now accepts the interrupt (or NMI) that `more_pending` announced.
    InterruptWindow,
    /// The host's own business: an interrupt, the doorbell, or a deadline that passed
    /// before the entry. Nothing of the guest to answer.
    HostInterrupt,
    /// An exception that the backend watches (#DB, #AC: their nesting can lock up a
    /// processor) and has put back for the next entry by itself.
    Reflected {
        vector: u8,
    },
    /// Triple fault: the guest is gone.
    Shutdown,
    /// The processor refused the guest's state, or the state cannot be trusted. The
    /// guest must be stopped.
    Invalid {
        reason: InvalidState,
    },
    /// A code that this backend does not know, in the processor's own numbering.
    Other {
        code: u64,
        info1: u64,
        info2: u64,
    },
}

/// Why a guest's state is beyond use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidState {
    /// VMRUN's or VM entry's consistency checks failed.
    EntryRefused,
    /// Delivering an interrupt or exception touched memory that is not RAM (a stack
    /// or descriptor table in a device): there is no instruction to emulate.
    DeliveryTouchedDevice { gpa: GuestPhysAddr },
    /// The guest's own page tables lie outside its RAM.
    TableOutsideRam { gpa: GuestPhysAddr },
    /// QEMU's TCG saved the HOST's instruction pointer or CR3 as the guest's: a known
    /// fault of that emulator (its cpu_clear_ignne writes CPU 0's flags without a
    /// lock), not of the guest's or ours.
    EmulatorSavedHostState,
    /// Run on another host CPU than the one it began on.
    WrongCpu,
}

impl core::fmt::Display for InvalidState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            InvalidState::EntryRefused => f.write_str("the processor refused the guest's register state"),
            InvalidState::DeliveryTouchedDevice { gpa } => {
                write!(f, "an interrupt's delivery touched device memory at {gpa}")
            }
            InvalidState::TableOutsideRam { gpa } => {
                write!(f, "the guest's page tables lie outside its memory, at {gpa}")
            }
            InvalidState::EmulatorSavedHostState => f.write_str(
                "QEMU TCG fault: the emulator saved the host's registers as the guest's \
                 (cpu_clear_ignne race on CPU 0); keep guests off CPU 0",
            ),
            InvalidState::WrongCpu => f.write_str("virtual CPU run on another host CPU than before"),
        }
    }
}

/// Up to fifteen bytes at the instruction pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstructionBytes {
    bytes: [u8; 15],
    length: u8,
}

impl InstructionBytes {
    /// The longest legal instruction (APM vol. 3 sec. 1.1).
    pub const MAX_BYTES: usize = 15;

    /// Takes at most fifteen bytes of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let mut copy = [0; Self::MAX_BYTES];
        let length = bytes.len().min(Self::MAX_BYTES);
        copy[..length].copy_from_slice(&bytes[..length]);
        Self { bytes: copy, length: length as u8 }
    }

    /// May be shorter than the instruction, when the rest cannot be fetched.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// One virtual CPU of a backend.
pub trait Vcpu {
    /// Enters the guest and returns at the next exit.
    fn run(&mut self, entry: &EntryRequest) -> Exit;

    fn gpr(&self, register: Gpr) -> u64;
    fn set_gpr(&mut self, register: Gpr, value: u64);
    /// All of them, for reports.
    fn gprs(&self) -> Gprs;

    fn rip(&self) -> u64;
    fn set_rip(&mut self, rip: u64);
    fn rflags(&self) -> u64;
    fn set_rflags(&mut self, rflags: u64);

    /// Completes the instruction that the exit reported: moves RIP (cut to 32 bits
    /// outside 64-bit code) and ends the interrupt shadow of STI or MOV SS.
    fn advance_rip(&mut self, length: u8);

    /// Width of the code at RIP.
    fn code_bits(&self) -> CodeBits;
    fn paging(&self) -> PagingState;
    fn segment(&self, name: SegmentName) -> Segment;
    fn system(&self) -> SystemState;
    /// Sets all of it: reset, loader, start-up IPI. Ends a halt's or STI's shadow and
    /// forgets events kept for injection.
    fn set_system(&mut self, state: &SystemState);
    fn set_cr2(&mut self, linear: u64);
    /// The guest's EFER as it reads it.
    fn efer(&self) -> u64;
    /// The machine has checked the bits; LMA is kept as the processor has it.
    fn set_efer(&mut self, efer: u64);
    fn set_pat(&mut self, pat: u64);

    fn xcr0(&self) -> u64;
    /// False if the value is not one the processor takes ([`Vcpu::supported_xcr0`],
    /// x87 on, AVX only with SSE, ...): answer #GP.
    fn set_xcr0(&mut self, value: u64) -> bool;
    fn supported_xcr0(&self) -> u64;

    /// CR8 as the guest reads it.
    fn set_task_priority(&mut self, priority: u8);

    /// The guest's time-stamp counter now. The backend makes all CPUs of a guest with
    /// one origin, so that their counters agree to the tick: a guest that measures a
    /// difference gives the counter up as a clock.
    fn tsc(&self) -> u64;
    /// Makes the guest's counter read `value` now.
    fn set_tsc(&mut self, value: u64);

    /// RFLAGS.IF set, no interrupt shadow, and no event kept for injection.
    fn accepts_interrupt(&self) -> bool;
    /// No NMI in service, no shadow, no event kept.
    fn accepts_nmi(&self) -> bool;

    /// Bytes at RIP, by the processor's help or by a walk of the guest's tables. Empty
    /// when they cannot be fetched.
    fn instruction(&self) -> InstructionBytes;

    /// What the processor's own CPUID says (the machine masks it).
    fn host_cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4];
}
