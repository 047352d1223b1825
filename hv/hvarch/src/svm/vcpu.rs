//! A virtual CPU under SVM: its VMCB, its registers, and one entry and exit.

use alloc::sync::Arc;

use kcore::memory::{OutOfMemory, PageRun};
use kcore::sync::irq_off;
use machine::asid::Asid;
use machine::backend::{
    CodeBits, DescriptorTable, EntryRequest, Exit, Gpr, Gprs, Injection, InjectionKind, InstructionBytes,
    InvalidState, PagingState, Segment, SegmentName, SystemState, Vcpu,
};
use machine::{prefix, walk};
use raw_cpuid::cpuid;
use virtio_device::GuestRam;
use x86_64::registers::control::Cr3;

use super::exit;
use super::host::{self, EntryPass};
use super::vmcb::{
    self, Event, EventKind, Intercept3, Intercept4, TlbControl, VirtualInterrupt, Vmcb, VmcbSegment,
};
use super::world;
use crate::fpu::FpuState;
use crate::{Doorbell, GuestSpace, TscOrigin, VcpuError, fpu};

const EFER_LMA: u64 = 1 << 10;
const EFER_SVME: u64 = 1 << 12;
const RFLAGS_RESERVED_ONE: u64 = 1 << 1;
const RFLAGS_IF: u64 = 1 << 9;
const DR6_RESET: u64 = 0xffff_0ff0;
const DR7_RESET: u64 = 0x400;
const SHADOW: u64 = 1;

/// The intercepts of every guest: all that leaves the guest's own registers and memory,
/// and the instructions this machine does not offer.
const INTERCEPTS3: Intercept3 = Intercept3::INTR
    .union(Intercept3::NMI)
    .union(Intercept3::VINTR)
    .union(Intercept3::RDPMC)
    .union(Intercept3::CPUID)
    .union(Intercept3::INVD)
    .union(Intercept3::HLT)
    .union(Intercept3::INVLPGA)
    .union(Intercept3::IOIO_PROT)
    .union(Intercept3::MSR_PROT)
    .union(Intercept3::SHUTDOWN);

const INTERCEPTS4: Intercept4 = Intercept4::VMRUN
    .union(Intercept4::VMMCALL)
    .union(Intercept4::VMLOAD)
    .union(Intercept4::VMSAVE)
    .union(Intercept4::STGI)
    .union(Intercept4::CLGI)
    .union(Intercept4::SKINIT)
    .union(Intercept4::RDTSCP)
    .union(Intercept4::WBINVD)
    .union(Intercept4::MONITOR)
    .union(Intercept4::MWAIT)
    .union(Intercept4::MWAIT_ARMED)
    .union(Intercept4::XSETBV);

/// #DB and #AC can deliver each other for ever in microcode, with no boundary at which
/// an interrupt is taken (CVE-2015-5307, CVE-2015-8104); #MC is the host's.
const INTERCEPTED_EXCEPTIONS: u32 =
    vmcb::EXCEPTION_DEBUG | vmcb::EXCEPTION_ALIGNMENT | vmcb::EXCEPTION_MACHINE_CHECK;

/// A page that holds a VMCB.
pub(super) struct VmcbPage(PageRun);

impl VmcbPage {
    fn new() -> Result<Self, OutOfMemory> {
        Ok(Self(PageRun::new(1, 1, "virtual machine control block")?))
    }

    fn physical(&self) -> u64 {
        self.0.phys().as_u64()
    }

    fn get(&self) -> &Vmcb {
        // SAFETY: the run is one page, page-aligned as `Vmcb` asks, owned by `self`, and
        // was zeroed, which is a legal value of every field (`TlbControl::Nothing` is
        // 0). The processor writes it only inside `world::run`, while `self` is
        // mutably borrowed; it leaves `tlb_control` as the kernel wrote it.
        unsafe { &*self.0.as_ptr().cast::<Vmcb>() }
    }

    fn get_mut(&mut self) -> &mut Vmcb {
        // SAFETY: as in `get`, and exclusive by `&mut self`.
        unsafe { &mut *self.0.as_ptr().cast::<Vmcb>() }
    }
}

/// How far the guest is with a non-maskable interrupt. SVM without virtual NMIs does
/// not tell, so its IRET is intercepted while one is in service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NmiState {
    Open,
    InService,
    /// The IRET at this address was about to end it.
    EndingAt(u64),
}

/// See the module.
pub struct SvmVcpu {
    vmcb: VmcbPage,
    gprs: Gprs,
    space: Arc<GuestSpace>,
    doorbell: Arc<Doorbell>,
    fpu: Arc<FpuState>,
    asid: Asid,
    /// The host CPU of the first entry, and of every one after.
    cpu: Option<usize>,
    /// Goes in at the next entry: what was asked for but not entered with, or what an
    /// exit cut short.
    event: Event,
    nmi: NmiState,
    next_rip_saved: bool,
    decode_assists: bool,
    /// Whose permission maps the VMCB names.
    _shared: Arc<host::Shared>,
}

impl SvmVcpu {
    /// A virtual CPU in its reset state, for a guest with the memory of `space`.
    pub fn new(
        space: Arc<GuestSpace>,
        doorbell: Arc<Doorbell>,
        origin: TscOrigin,
    ) -> Result<SvmVcpu, VcpuError> {
        let shared = host::shared().ok_or(VcpuError::NotInitialised)?;
        let (features, maps) = (&shared.features, &shared.maps);
        let mut vmcb = VmcbPage::new()?;
        let control = &mut vmcb.get_mut().control;
        control.intercept3 = INTERCEPTS3;
        control.intercept4 = INTERCEPTS4;
        if features.rdpru {
            control.intercept4 |= Intercept4::RDPRU;
        }
        control.intercept_exceptions = INTERCEPTED_EXCEPTIONS;
        control.intercept_cr_writes = vmcb::WRITE_CR8;
        control.io_permissions_pa = maps.io_pa();
        control.msr_permissions_pa = maps.msr_pa();
        control.virtual_interrupt = VirtualInterrupt::masking();
        control.nested_control = 1;
        control.tsc_offset = 0u64.wrapping_sub(origin.0);
        control.nested_cr3 = space.tables.root().as_u64();
        let mut vcpu = SvmVcpu {
            vmcb,
            gprs: Gprs::default(),
            space,
            doorbell,
            fpu: FpuState::new()?,
            asid: Asid::default(),
            cpu: None,
            event: Event::NONE,
            nmi: NmiState::Open,
            next_rip_saved: features.next_rip,
            decode_assists: features.decode_assists,
            _shared: shared.clone(),
        };
        vcpu.set_system(&SystemState::RESET);
        vcpu.set_rip(0xfff0);
        vcpu.set_rflags(0);
        let save = &mut vcpu.vmcb.get_mut().save;
        save.dr6 = DR6_RESET;
        save.dr7 = DR7_RESET;
        Ok(vcpu)
    }

    /// Enters and comes out, with interrupts off. `None` if the entry was refused
    /// because the host or the machine has something to do first.
    fn enter(&mut self, entry: &EntryRequest) -> Result<(), Exit> {
        let _interrupts = irq_off();
        let here = kcore::cpu::index();
        if *self.cpu.get_or_insert(here) != here {
            return Err(Exit::Invalid { reason: InvalidState::WrongCpu });
        }
        // Armed here, where nothing can come between it and the entry.
        kcore::timer::set_cpu_deadline(entry.deadline_ns);
        if entry.deadline_ns.is_some_and(|deadline_ns| deadline_ns <= kcore::time::now_ns()) {
            return Err(Exit::HostInterrupt);
        }
        let Some(EntryPass { host_pa, flush }) = host::pass(&mut self.asid) else {
            return Err(Exit::Invalid { reason: InvalidState::EntryRefused });
        };
        self.fpu.load();
        let event = core::mem::take(&mut self.event);
        if event.is_valid() && event.kind() == Some(EventKind::Nmi) {
            self.nmi = NmiState::InService;
        }
        let watch_iret = self.nmi == NmiState::InService;
        let asid = self.asid.number;
        let control = &mut self.vmcb.get_mut().control;
        control.event_injection = event;
        control.virtual_interrupt.set_window(entry.more_pending);
        control.intercept3.set(Intercept3::IRET, watch_iret);
        control.asid = asid;
        control.tlb_control = if flush { TlbControl::Everything } else { TlbControl::Nothing };
        control.clean = 0;

        if !self.doorbell.enter() {
            self.event = event;
            return Err(Exit::HostInterrupt);
        }
        let vmcb_pa = self.vmcb.physical();
        // SAFETY: `host::pass` proves that SVM is enabled here and `host_pa` filled;
        // interrupts are off by the guard. The VMCB's maps are those that
        // `self._shared` keeps alive, and its nested tables map the memory of `self.space`
        // alone, kept alive likewise; the guest's fields may hold anything, VMRUN checks them.
        // The kernel sets no breakpoints.
        let host_rip = unsafe { world::run(vmcb_pa, &mut self.gprs, host_pa) };
        self.doorbell.leave();
        // An entry that the processor refused has flushed nothing: the flush stays due.
        if flush && !exit::is_refusal(self.vmcb.get().control.exit_code) {
            host::flushed();
        }

        let vmcb = self.vmcb.get();
        // Only both together: a guest's kernel may well have its code or its tables
        // where this one has them.
        let (root, flags) = Cr3::read_raw();
        let host_cr3 = root.start_address().as_u64() | u64::from(flags);
        if vmcb.save.rip == host_rip && vmcb.save.cr3 == host_cr3 {
            return Err(Exit::Invalid { reason: InvalidState::EmulatorSavedHostState });
        }
        if vmcb.control.exit_code == exit::MACHINE_CHECK {
            exit::deliver_machine_check();
        }
        Ok(())
    }

    /// Bookkeeping that every exit needs before it is looked at.
    fn settle(&mut self) {
        let interrupted = self.vmcb.get().control.exit_int_info;
        if interrupted.is_valid() {
            // INT n and the exceptions of INT3 and INTO are the guest's instructions:
            // RIP still points at them, and they run again (sec. 15.20).
            let by_instruction = match interrupted.kind() {
                Some(EventKind::SoftwareInterrupt) | None => true,
                Some(EventKind::Exception) => matches!(interrupted.vector(), 3 | 4),
                Some(EventKind::ExternalInterrupt | EventKind::Nmi) => false,
            };
            if !by_instruction {
                self.event = interrupted;
            }
        }
        if let NmiState::EndingAt(rip) = self.nmi
            && rip != self.rip()
        {
            self.nmi = NmiState::Open;
        }
    }

    /// At an intercepted IRET: the NMI is over once the instruction has run. Whoever
    /// waits with the next one gets an interrupt window right after.
    pub(super) fn nmi_ends(&mut self) {
        self.nmi = NmiState::EndingAt(self.rip());
    }

    /// Puts an intercepted exception back.
    pub(super) fn reflect(&mut self, vector: u8, error: Option<u32>) {
        self.event = Event::new(vector, EventKind::Exception, error);
    }

    pub(super) fn vmcb(&self) -> &Vmcb {
        self.vmcb.get()
    }

    /// Whether the last exit interrupted the delivery of an event.
    pub(super) fn was_delivering(&self) -> bool {
        self.vmcb.get().control.exit_int_info.is_valid()
    }

    /// The length of the intercepted instruction, whose opcode is known.
    pub(super) fn length(&self, opcode: &[u8]) -> u8 {
        if self.next_rip_saved {
            let length = self.vmcb.get().control.next_rip.wrapping_sub(self.rip());
            if (1..=InstructionBytes::MAX_BYTES as u64).contains(&length) {
                return length as u8;
            }
        }
        let bytes = self.instruction();
        // Not fetched, or changed since by another CPU: as if there were no prefixes.
        prefix::length_of(bytes.as_slice(), self.code_bits(), opcode).unwrap_or(opcode.len() as u8)
    }

    fn segment_of(&self, name: SegmentName) -> VmcbSegment {
        let save = &self.vmcb.get().save;
        match name {
            SegmentName::Es => save.es,
            SegmentName::Cs => save.cs,
            SegmentName::Ss => save.ss,
            SegmentName::Ds => save.ds,
            SegmentName::Fs => save.fs,
            SegmentName::Gs => save.gs,
        }
    }

    /// Gives up every translation cached for this virtual CPU, by a new identifier.
    fn forget_translations(&mut self) {
        self.asid = Asid::default();
    }
}

impl Vcpu for SvmVcpu {
    fn run(&mut self, entry: &EntryRequest) -> Exit {
        if let Some(injection) = entry.inject {
            // Kept until an entry takes place: the machine has already told the
            // guest's interrupt controller that it was delivered.
            debug_assert!(!self.event.is_valid(), "injection while an event is kept");
            self.event = event_of(injection);
        }
        if let Err(exit) = self.enter(entry) {
            return exit;
        }
        self.settle();
        exit::decode(self)
    }

    fn gpr(&self, register: Gpr) -> u64 {
        match register {
            Gpr::RAX => self.vmcb.get().save.rax,
            Gpr::RSP => self.vmcb.get().save.rsp,
            register => self.gprs[register],
        }
    }

    fn set_gpr(&mut self, register: Gpr, value: u64) {
        match register {
            Gpr::RAX => self.vmcb.get_mut().save.rax = value,
            Gpr::RSP => self.vmcb.get_mut().save.rsp = value,
            register => self.gprs[register] = value,
        }
    }

    fn gprs(&self) -> Gprs {
        let mut all = self.gprs;
        all[Gpr::RAX] = self.gpr(Gpr::RAX);
        all[Gpr::RSP] = self.gpr(Gpr::RSP);
        all
    }

    fn rip(&self) -> u64 {
        self.vmcb.get().save.rip
    }

    fn set_rip(&mut self, rip: u64) {
        self.vmcb.get_mut().save.rip = rip;
    }

    fn rflags(&self) -> u64 {
        self.vmcb.get().save.rflags
    }

    fn set_rflags(&mut self, rflags: u64) {
        self.vmcb.get_mut().save.rflags = rflags | RFLAGS_RESERVED_ONE;
    }

    fn advance_rip(&mut self, length: u8) {
        let next = self.rip().wrapping_add(u64::from(length));
        let next = if self.code_bits() == CodeBits::SixtyFour { next } else { next & 0xffff_ffff };
        let vmcb = self.vmcb.get_mut();
        vmcb.save.rip = next;
        vmcb.control.interrupt_shadow &= !SHADOW;
    }

    fn code_bits(&self) -> CodeBits {
        let save = &self.vmcb.get().save;
        let attributes = Segment::from(save.cs).attributes;
        if save.efer & EFER_LMA != 0 && attributes.is_long() {
            CodeBits::SixtyFour
        } else if attributes.is_default_big() {
            CodeBits::ThirtyTwo
        } else {
            CodeBits::Sixteen
        }
    }

    fn paging(&self) -> PagingState {
        let save = &self.vmcb.get().save;
        PagingState {
            cr0: save.cr0,
            cr3: save.cr3,
            cr4: save.cr4,
            efer: self.efer(),
            privilege_level: save.cpl,
        }
    }

    fn segment(&self, name: SegmentName) -> Segment {
        self.segment_of(name).into()
    }

    fn system(&self) -> SystemState {
        let save = &self.vmcb.get().save;
        let table = |segment: VmcbSegment| DescriptorTable {
            base: segment.base,
            limit_bytes: segment.limit_bytes as u16,
        };
        SystemState {
            cr0: save.cr0,
            cr2: save.cr2,
            cr3: save.cr3,
            cr4: save.cr4,
            efer: self.efer(),
            pat: save.guest_pat,
            es: save.es.into(),
            cs: save.cs.into(),
            ss: save.ss.into(),
            ds: save.ds.into(),
            fs: save.fs.into(),
            gs: save.gs.into(),
            task: save.tr.into(),
            local_table: save.ldtr.into(),
            gdtr: table(save.gdtr),
            idtr: table(save.idtr),
        }
    }

    fn set_system(&mut self, state: &SystemState) {
        let table = |table: DescriptorTable| VmcbSegment {
            limit_bytes: u32::from(table.limit_bytes),
            base: table.base,
            ..VmcbSegment::default()
        };
        let vmcb = self.vmcb.get_mut();
        vmcb.control.interrupt_shadow = 0;
        let save = &mut vmcb.save;
        save.cr0 = state.cr0;
        save.cr2 = state.cr2;
        save.cr3 = state.cr3;
        save.cr4 = state.cr4;
        save.efer = state.efer | EFER_SVME;
        save.guest_pat = state.pat;
        save.es = state.es.into();
        save.cs = state.cs.into();
        save.ss = state.ss.into();
        save.ds = state.ds.into();
        save.fs = state.fs.into();
        save.gs = state.gs.into();
        save.tr = state.task.into();
        save.ldtr = state.local_table.into();
        save.gdtr = table(state.gdtr);
        save.idtr = table(state.idtr);
        save.cpl = state.ss.attributes.privilege_level();
        self.event = Event::NONE;
        self.nmi = NmiState::Open;
        self.forget_translations();
    }

    fn set_cr2(&mut self, linear: u64) {
        self.vmcb.get_mut().save.cr2 = linear;
    }

    fn efer(&self) -> u64 {
        self.vmcb.get().save.efer & !EFER_SVME
    }

    fn set_efer(&mut self, efer: u64) {
        let save = &mut self.vmcb.get_mut().save;
        save.efer = (efer & !EFER_LMA) | (save.efer & EFER_LMA) | EFER_SVME;
        // NXE changes what cached translations mean.
        self.forget_translations();
    }

    fn set_pat(&mut self, pat: u64) {
        self.vmcb.get_mut().save.guest_pat = pat;
        self.forget_translations();
    }

    fn xcr0(&self) -> u64 {
        self.fpu.xcr0()
    }

    fn set_xcr0(&mut self, value: u64) -> bool {
        self.fpu.set_xcr0(value)
    }

    fn supported_xcr0(&self) -> u64 {
        fpu::supported_xcr0()
    }

    fn set_task_priority(&mut self, priority: u8) {
        self.vmcb.get_mut().control.virtual_interrupt.set_task_priority(priority);
    }

    fn tsc(&self) -> u64 {
        arch::cpu::tsc().wrapping_add(self.vmcb.get().control.tsc_offset)
    }

    fn set_tsc(&mut self, value: u64) {
        self.vmcb.get_mut().control.tsc_offset = value.wrapping_sub(arch::cpu::tsc());
    }

    fn accepts_interrupt(&self) -> bool {
        let vmcb = self.vmcb.get();
        vmcb.save.rflags & RFLAGS_IF != 0
            && vmcb.control.interrupt_shadow & SHADOW == 0
            && !self.event.is_valid()
    }

    fn accepts_nmi(&self) -> bool {
        self.nmi == NmiState::Open
            && self.vmcb.get().control.interrupt_shadow & SHADOW == 0
            && !self.event.is_valid()
    }

    fn instruction(&self) -> InstructionBytes {
        let vmcb = self.vmcb.get();
        let fetched = usize::from(vmcb.control.fetched_count);
        if self.decode_assists
            && vmcb.control.exit_code == exit::NESTED_PAGE_FAULT
            && (1..=InstructionBytes::MAX_BYTES).contains(&fetched)
        {
            return InstructionBytes::new(&vmcb.control.fetched_bytes[..fetched]);
        }
        let linear = match self.code_bits() {
            CodeBits::SixtyFour => vmcb.save.rip,
            CodeBits::Sixteen | CodeBits::ThirtyTwo => {
                vmcb.save.cs.base.wrapping_add(vmcb.save.rip) & 0xffff_ffff
            }
        };
        let mut bytes = [0; InstructionBytes::MAX_BYTES];
        let ram: &dyn GuestRam = &*self.space.memory;
        let count = walk::copy_from_linear(ram, &self.paging(), linear, walk::WalkAccess::Fetch, &mut bytes);
        InstructionBytes::new(&bytes[..count])
    }

    fn host_cpuid(&self, leaf: u32, subleaf: u32) -> [u32; 4] {
        let answer = cpuid!(leaf, subleaf);
        [answer.eax, answer.ebx, answer.ecx, answer.edx]
    }
}

impl Drop for SvmVcpu {
    fn drop(&mut self) {
        self.fpu.unload();
    }
}

fn event_of(injection: Injection) -> Event {
    match injection.kind {
        InjectionKind::ExternalInterrupt => Event::new(injection.vector, EventKind::ExternalInterrupt, None),
        InjectionKind::Nmi => Event::new(2, EventKind::Nmi, None),
        InjectionKind::Exception { error } => Event::new(injection.vector, EventKind::Exception, error),
    }
}
