//! The virtual machine control block.
//!
//! AMD APM vol. 2 (publication 24593, rev. 3.42) appendix B, tables B-1 (control area)
//! and B-2 (state save area). The offsets of every named field are asserted at compile
//! time; the rest is reserved and stays zero, as sec. 15.5.1 asks.

use core::mem::{offset_of, size_of};

use bitflags::bitflags;
use machine::backend::{Segment, SegmentAttributes};

bitflags! {
    /// Intercept vector 3 (offset 0x00c).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Intercept3: u32 {
        const INTR = 1 << 0;
        const NMI = 1 << 1;
        const SMI = 1 << 2;
        const INIT = 1 << 3;
        const VINTR = 1 << 4;
        const RDPMC = 1 << 15;
        const CPUID = 1 << 18;
        const IRET = 1 << 20;
        const INVD = 1 << 22;
        const HLT = 1 << 24;
        const INVLPGA = 1 << 26;
        const IOIO_PROT = 1 << 27;
        const MSR_PROT = 1 << 28;
        const FERR_FREEZE = 1 << 30;
        const SHUTDOWN = 1 << 31;
    }
}

bitflags! {
    /// Intercept vector 4 (offset 0x010).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Intercept4: u32 {
        const VMRUN = 1 << 0;
        const VMMCALL = 1 << 1;
        const VMLOAD = 1 << 2;
        const VMSAVE = 1 << 3;
        const STGI = 1 << 4;
        const CLGI = 1 << 5;
        const SKINIT = 1 << 6;
        const RDTSCP = 1 << 7;
        const WBINVD = 1 << 9;
        const MONITOR = 1 << 10;
        const MWAIT = 1 << 11;
        const MWAIT_ARMED = 1 << 12;
        const XSETBV = 1 << 13;
        const RDPRU = 1 << 14;
    }
}

/// #DB, #AC and #MC in the exception intercept vector (offset 0x008).
pub const EXCEPTION_DEBUG: u32 = 1 << 1;
pub const EXCEPTION_ALIGNMENT: u32 = 1 << 17;
pub const EXCEPTION_MACHINE_CHECK: u32 = 1 << 18;

/// Bit 8 of the control-register write intercepts: MOV to CR8.
pub const WRITE_CR8: u16 = 1 << 8;

/// TLB_CONTROL (table B-1, offset 0x05c): what VMRUN flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TlbControl {
    Nothing = 0,
    /// Every ASID, global pages too. All processors have it (sec. 15.16.1).
    Everything = 1,
}

/// The virtual-interrupt word at offset 0x060 (sec. 15.21).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct VirtualInterrupt(u64);

impl VirtualInterrupt {
    const TPR_MASK: u64 = 0xff;
    const IRQ: u64 = 1 << 8;
    const IGNORE_TPR: u64 = 1 << 20;
    const MASKING: u64 = 1 << 24;

    /// V_INTR_MASKING: RFLAGS.IF of the guest masks virtual interrupts alone, the
    /// host's IF at VMRUN the physical ones, and CR8 of the guest is V_TPR.
    pub const fn masking() -> Self {
        Self(Self::MASKING)
    }

    pub fn set_task_priority(&mut self, priority: u8) {
        self.0 = (self.0 & !Self::TPR_MASK) | u64::from(priority & 0xf);
    }

    /// Opens or closes the window: V_IRQ with V_IGN_TPR makes a virtual interrupt
    /// pending that is never delivered, since its delivery is intercepted (VINTR).
    pub fn set_window(&mut self, open: bool) {
        self.0 &= !(Self::IRQ | Self::IGNORE_TPR);
        if open {
            self.0 |= Self::IRQ | Self::IGNORE_TPR;
        }
    }
}

/// EVENTINJ and EXITINTINFO (sec. 15.20, 15.7.2; figure 15-4): one format, so that an
/// event whose delivery an exit cut short goes back as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Event(u64);

/// The TYPE field of [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    ExternalInterrupt = 0,
    Nmi = 2,
    Exception = 3,
    SoftwareInterrupt = 4,
}

impl Event {
    const VALID: u64 = 1 << 31;
    const ERROR_VALID: u64 = 1 << 11;

    pub const NONE: Event = Event(0);

    pub const fn new(vector: u8, kind: EventKind, error: Option<u32>) -> Self {
        let word = vector as u64 | (kind as u64) << 8 | Self::VALID;
        match error {
            Some(error) => Self(word | Self::ERROR_VALID | (error as u64) << 32),
            None => Self(word),
        }
    }

    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    pub const fn vector(self) -> u8 {
        self.0 as u8
    }

    /// `None` for the values that the manual reserves.
    pub const fn kind(self) -> Option<EventKind> {
        match (self.0 >> 8) & 7 {
            0 => Some(EventKind::ExternalInterrupt),
            2 => Some(EventKind::Nmi),
            3 => Some(EventKind::Exception),
            4 => Some(EventKind::SoftwareInterrupt),
            _ => None,
        }
    }
}

/// The control area (table B-1).
#[repr(C)]
pub struct Control {
    pub intercept_cr_reads: u16,
    pub intercept_cr_writes: u16,
    pub intercept_dr_reads: u16,
    pub intercept_dr_writes: u16,
    pub intercept_exceptions: u32,
    pub intercept3: Intercept3,
    pub intercept4: Intercept4,
    pub intercept5: u32,
    reserved_018: [u8; 0x028],
    pub io_permissions_pa: u64,
    pub msr_permissions_pa: u64,
    pub tsc_offset: u64,
    pub asid: u32,
    pub tlb_control: TlbControl,
    reserved_05d: [u8; 3],
    pub virtual_interrupt: VirtualInterrupt,
    /// Bit 0: the guest is in the shadow of STI or MOV SS.
    pub interrupt_shadow: u64,
    pub exit_code: u64,
    pub exit_info1: u64,
    pub exit_info2: u64,
    pub exit_int_info: Event,
    /// Bit 0: nested paging.
    pub nested_control: u64,
    reserved_098: [u8; 0x10],
    pub event_injection: Event,
    pub nested_cr3: u64,
    reserved_0b8: [u8; 8],
    /// Clean bits (sec. 15.15): 0 lets the processor trust nothing that it cached.
    pub clean: u64,
    /// The next instruction, on processors with NRIP save.
    pub next_rip: u64,
    /// Instruction bytes at a nested page fault, on processors with decode assists.
    pub fetched_count: u8,
    pub fetched_bytes: [u8; 15],
    reserved_0e0: [u8; 0x320],
}

/// A segment register as VMRUN, VMLOAD and VMSAVE hold it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct VmcbSegment {
    pub selector: u16,
    /// Descriptor bits 55:52 and 47:40, packed into twelve bits.
    pub attributes: u16,
    pub limit_bytes: u32,
    pub base: u64,
}

impl From<Segment> for VmcbSegment {
    fn from(segment: Segment) -> Self {
        let wide = segment.attributes.0;
        Self {
            selector: segment.selector,
            attributes: (wide & 0xff) | ((wide >> 4) & 0xf00),
            limit_bytes: segment.limit_bytes,
            base: segment.base,
        }
    }
}

impl From<VmcbSegment> for Segment {
    fn from(segment: VmcbSegment) -> Self {
        let packed = segment.attributes;
        Self {
            selector: segment.selector,
            attributes: SegmentAttributes((packed & 0xff) | ((packed & 0xf00) << 4)),
            limit_bytes: segment.limit_bytes,
            base: segment.base,
        }
    }
}

/// The state save area (table B-2).
#[repr(C)]
pub struct Save {
    pub es: VmcbSegment,
    pub cs: VmcbSegment,
    pub ss: VmcbSegment,
    pub ds: VmcbSegment,
    pub fs: VmcbSegment,
    pub gs: VmcbSegment,
    pub gdtr: VmcbSegment,
    pub ldtr: VmcbSegment,
    pub idtr: VmcbSegment,
    pub tr: VmcbSegment,
    reserved_0a0: [u8; 0x2b],
    pub cpl: u8,
    reserved_0cc: [u8; 4],
    pub efer: u64,
    reserved_0d8: [u8; 0x70],
    pub cr4: u64,
    pub cr3: u64,
    pub cr0: u64,
    pub dr7: u64,
    pub dr6: u64,
    pub rflags: u64,
    pub rip: u64,
    reserved_180: [u8; 0x58],
    pub rsp: u64,
    reserved_1e0: [u8; 0x18],
    pub rax: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub cr2: u64,
    reserved_248: [u8; 0x20],
    pub guest_pat: u64,
    reserved_270: [u8; 0x990],
}

/// The whole block, one page.
#[repr(C, align(4096))]
pub struct Vmcb {
    pub control: Control,
    pub save: Save,
}

const _: () = {
    assert!(size_of::<Vmcb>() == 4096);
    assert!(offset_of!(Vmcb, save) == 0x400);
    assert!(offset_of!(Control, intercept_exceptions) == 0x008);
    assert!(offset_of!(Control, intercept3) == 0x00c);
    assert!(offset_of!(Control, intercept4) == 0x010);
    assert!(offset_of!(Control, intercept5) == 0x014);
    assert!(offset_of!(Control, io_permissions_pa) == 0x040);
    assert!(offset_of!(Control, msr_permissions_pa) == 0x048);
    assert!(offset_of!(Control, tsc_offset) == 0x050);
    assert!(offset_of!(Control, asid) == 0x058);
    assert!(offset_of!(Control, tlb_control) == 0x05c);
    assert!(offset_of!(Control, virtual_interrupt) == 0x060);
    assert!(offset_of!(Control, interrupt_shadow) == 0x068);
    assert!(offset_of!(Control, exit_code) == 0x070);
    assert!(offset_of!(Control, exit_info1) == 0x078);
    assert!(offset_of!(Control, exit_info2) == 0x080);
    assert!(offset_of!(Control, exit_int_info) == 0x088);
    assert!(offset_of!(Control, nested_control) == 0x090);
    assert!(offset_of!(Control, event_injection) == 0x0a8);
    assert!(offset_of!(Control, nested_cr3) == 0x0b0);
    assert!(offset_of!(Control, clean) == 0x0c0);
    assert!(offset_of!(Control, next_rip) == 0x0c8);
    assert!(offset_of!(Control, fetched_count) == 0x0d0);
    assert!(offset_of!(Control, fetched_bytes) == 0x0d1);
    assert!(offset_of!(Save, es) == 0x000);
    assert!(offset_of!(Save, cs) == 0x010);
    assert!(offset_of!(Save, ss) == 0x020);
    assert!(offset_of!(Save, ds) == 0x030);
    assert!(offset_of!(Save, fs) == 0x040);
    assert!(offset_of!(Save, gs) == 0x050);
    assert!(offset_of!(Save, gdtr) == 0x060);
    assert!(offset_of!(Save, ldtr) == 0x070);
    assert!(offset_of!(Save, idtr) == 0x080);
    assert!(offset_of!(Save, tr) == 0x090);
    assert!(offset_of!(Save, cpl) == 0x0cb);
    assert!(offset_of!(Save, efer) == 0x0d0);
    assert!(offset_of!(Save, cr4) == 0x148);
    assert!(offset_of!(Save, cr3) == 0x150);
    assert!(offset_of!(Save, cr0) == 0x158);
    assert!(offset_of!(Save, dr7) == 0x160);
    assert!(offset_of!(Save, dr6) == 0x168);
    assert!(offset_of!(Save, rflags) == 0x170);
    assert!(offset_of!(Save, rip) == 0x178);
    assert!(offset_of!(Save, rsp) == 0x1d8);
    assert!(offset_of!(Save, rax) == 0x1f8);
    assert!(offset_of!(Save, star) == 0x200);
    assert!(offset_of!(Save, lstar) == 0x208);
    assert!(offset_of!(Save, cstar) == 0x210);
    assert!(offset_of!(Save, sfmask) == 0x218);
    assert!(offset_of!(Save, kernel_gs_base) == 0x220);
    assert!(offset_of!(Save, sysenter_cs) == 0x228);
    assert!(offset_of!(Save, sysenter_esp) == 0x230);
    assert!(offset_of!(Save, sysenter_eip) == 0x238);
    assert!(offset_of!(Save, cr2) == 0x240);
    assert!(offset_of!(Save, guest_pat) == 0x268);
};
