//! A guest CPU without a processor: registers, and a script of exits. What the machine does to it
//! can be looked at.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::backend::{
    CodeBits, EntryRequest, Exit, Gpr, Gprs, InstructionBytes, PagingState, Segment, SegmentName,
    SystemState, Vcpu,
};

const RFLAGS_IF: u64 = 1 << 9;
const EFER_LMA: u64 = 1 << 10;

pub struct FakeVcpu {
    pub gprs: Gprs,
    pub rip: u64,
    pub rflags: u64,
    pub system: SystemState,
    pub privilege_level: u8,
    /// After STI or MOV SS: cleared when the instruction is completed.
    pub shadow: bool,
    pub nmi_in_service: bool,
    pub xcr0: u64,
    pub supported_xcr0: u64,
    pub task_priority: u8,
    pub tsc: u64,
    pub instruction: Vec<u8>,
    /// What `run` returns, one after the other; then HostInterrupt.
    pub exits: VecDeque<Exit>,
    pub entries: Vec<EntryRequest>,
    /// EBX, ECX, EDX of leaf 0.
    pub vendor: [u32; 3],
}

pub const AMD: [u32; 3] = [0x6874_7541, 0x444d_4163, 0x6974_6e65];

impl Default for FakeVcpu {
    fn default() -> Self {
        Self {
            gprs: Gprs::default(),
            rip: 0,
            rflags: 2,
            system: SystemState::RESET,
            privilege_level: 0,
            shadow: false,
            nmi_in_service: false,
            xcr0: 1,
            supported_xcr0: 7,
            task_priority: 0,
            tsc: 0,
            instruction: Vec::new(),
            exits: VecDeque::new(),
            entries: Vec::new(),
            vendor: AMD,
        }
    }
}

impl FakeVcpu {
    pub fn enable_interrupts(&mut self, enabled: bool) {
        self.rflags = self.rflags & !RFLAGS_IF | if enabled { RFLAGS_IF } else { 0 };
    }

    /// 64-bit code without paging's help: as the loader leaves a CPU.
    pub fn long_mode(&mut self, cr3: u64) {
        self.system.cr0 = 1 | 1 << 31;
        self.system.cr3 = cr3;
        self.system.cr4 = 1 << 5;
        self.system.efer = 1 << 8 | EFER_LMA;
        self.system.cs.attributes = crate::backend::SegmentAttributes::CODE_64;
    }
}

impl Vcpu for FakeVcpu {
    fn run(&mut self, entry: &EntryRequest) -> Exit {
        self.entries.push(*entry);
        self.exits.pop_front().unwrap_or(Exit::HostInterrupt)
    }

    fn gpr(&self, register: Gpr) -> u64 {
        self.gprs[register]
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        self.gprs[register] = value;
    }

    fn gprs(&self) -> Gprs {
        self.gprs
    }

    fn rip(&self) -> u64 {
        self.rip
    }

    fn set_rip(&mut self, rip: u64) {
        self.rip = rip;
    }

    fn rflags(&self) -> u64 {
        self.rflags
    }

    fn set_rflags(&mut self, rflags: u64) {
        self.rflags = rflags | 2;
    }

    fn advance_rip(&mut self, length: u8) {
        let next = self.rip.wrapping_add(u64::from(length));
        self.rip = if self.code_bits() == CodeBits::SixtyFour { next } else { next & 0xffff_ffff };
        self.shadow = false;
    }

    fn code_bits(&self) -> CodeBits {
        if self.system.efer & EFER_LMA != 0 && self.system.cs.attributes.is_long() {
            CodeBits::SixtyFour
        } else if self.system.cs.attributes.is_default_big() {
            CodeBits::ThirtyTwo
        } else {
            CodeBits::Sixteen
        }
    }

    fn paging(&self) -> PagingState {
        PagingState {
            cr0: self.system.cr0,
            cr3: self.system.cr3,
            cr4: self.system.cr4,
            efer: self.system.efer,
            privilege_level: self.privilege_level,
        }
    }

    fn segment(&self, name: SegmentName) -> Segment {
        match name {
            SegmentName::Es => self.system.es,
            SegmentName::Cs => self.system.cs,
            SegmentName::Ss => self.system.ss,
            SegmentName::Ds => self.system.ds,
            SegmentName::Fs => self.system.fs,
            SegmentName::Gs => self.system.gs,
        }
    }

    fn system(&self) -> SystemState {
        self.system
    }

    fn set_system(&mut self, state: &SystemState) {
        self.system = *state;
        self.shadow = false;
    }

    fn set_cr2(&mut self, linear: u64) {
        self.system.cr2 = linear;
    }

    fn efer(&self) -> u64 {
        self.system.efer
    }

    fn set_efer(&mut self, efer: u64) {
        self.system.efer = efer & !EFER_LMA | self.system.efer & EFER_LMA;
    }

    fn set_pat(&mut self, pat: u64) {
        self.system.pat = pat;
    }

    fn xcr0(&self) -> u64 {
        self.xcr0
    }

    fn set_xcr0(&mut self, value: u64) -> bool {
        let legal = value & 1 != 0 && value & !self.supported_xcr0 == 0 && (value & 4 == 0 || value & 2 != 0);
        if legal {
            self.xcr0 = value;
        }
        legal
    }

    fn supported_xcr0(&self) -> u64 {
        self.supported_xcr0
    }

    fn set_task_priority(&mut self, priority: u8) {
        self.task_priority = priority;
    }

    fn tsc(&self) -> u64 {
        self.tsc
    }

    fn set_tsc(&mut self, value: u64) {
        self.tsc = value;
    }

    fn accepts_interrupt(&self) -> bool {
        self.rflags & RFLAGS_IF != 0 && !self.shadow
    }

    fn accepts_nmi(&self) -> bool {
        !self.nmi_in_service && !self.shadow
    }

    fn instruction(&self) -> InstructionBytes {
        InstructionBytes::new(&self.instruction)
    }

    fn host_cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4] {
        match (leaf, subleaf) {
            (0, _) => [0x10, self.vendor[0], self.vendor[2], self.vendor[1]],
            (0xd, 0) => [7, 0x340, 0x340, 0],
            (0xd, 1) => [0xf, 0x340, 0, 0],
            (0xd, 2) => [0x100, 0x240, 0, 0],
            (0x8000_0000, _) => [0x8000_0020, self.vendor[0], self.vendor[2], self.vendor[1]],
            _ => [u32::MAX; 4],
        }
    }
}
