//! What SVM needs of the host: whether it is there, and what each CPU keeps for it.

use alloc::sync::Arc;
use core::arch::asm;

use kcore::cpu::MAX_CPUS;
use kcore::memory::{OutOfMemory, PageRun};
use kcore::sync::{IrqSpinLock, SpinLock};
use machine::asid::{Asid, AsidSpace};
use raw_cpuid::cpuid;
use x86_64::registers::control::{Efer, EferFlags};
use x86_64::registers::model_specific::Msr;

use super::permissions::PermissionMaps;
use crate::{Unsupported, fpu};

/// VM_CR (APM vol. 2 sec. 15.30.1): bit 4, SVMDIS.
const MSR_VM_CR: Msr = Msr::new(0xc001_0114);
const VM_CR_SVMDIS: u64 = 1 << 4;
/// VM_HSAVE_PA (sec. 15.30.4).
const MSR_VM_HSAVE_PA: u32 = 0xc001_0117;

/// What this processor's SVM can do (CPUID 8000_000A, APM vol. 3 appendix E.4.9).
#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Address-space identifiers, number 0 (the host's) among them.
    pub asids: u32,
    /// The VMCB names the next instruction at an exit.
    pub next_rip: bool,
    /// The VMCB holds instruction bytes at a nested page fault.
    pub decode_assists: bool,
    /// RDPRU exists, and then must be intercepted.
    pub rdpru: bool,
}

/// What all guests share. A virtual CPU's VMCB names the maps, so it holds a share of this.
pub struct Shared {
    pub features: Features,
    pub maps: PermissionMaps,
}

/// Between [`init`] and [`shut_down`].
static SHARED: SpinLock<Option<Arc<Shared>>> = SpinLock::new(None);

/// One CPU's part.
struct HostCpu {
    /// Where VMRUN keeps the host's state. Never read.
    _save_area: PageRun,
    /// Filled by VMSAVE: what VMLOAD restores after an exit.
    host_state: PageRun,
    asids: AsidSpace,
}

static CPUS: [IrqSpinLock<Option<HostCpu>>; MAX_CPUS] = [const { IrqSpinLock::new(None) }; MAX_CPUS];

/// Looks whether SVM can be used, and makes what all guests share. Once is enough; more
/// is harmless.
pub fn init() -> Result<(), Unsupported> {
    if shared().is_some() {
        return Ok(());
    }
    let features = detect()?;
    let maps = PermissionMaps::new().map_err(Unsupported::OutOfMemory)?;
    // Whoever came first, the values are the same.
    SHARED.lock().get_or_insert_with(|| Arc::new(Shared { features, maps }));
    Ok(())
}

/// Forgets what [`init`] made. Virtual CPUs that there still are keep their share of it.
pub fn shut_down() {
    let shared = SHARED.lock().take();
    drop(shared);
}

fn detect() -> Result<Features, Unsupported> {
    let highest = cpuid!(0x8000_0000, 0).eax;
    if highest < 0x8000_000a || cpuid!(0x8000_0001, 0).ecx & 1 << 2 == 0 {
        return Err(Unsupported::NoVirtualization);
    }
    if cpuid!(1, 0).ecx & 1 << 26 == 0 {
        return Err(Unsupported::NoXsave);
    }
    // SAFETY: the processor has SVM, hence VM_CR; reading has no effect.
    if unsafe { MSR_VM_CR.read() } & VM_CR_SVMDIS != 0 {
        return Err(Unsupported::DisabledByFirmware);
    }
    let svm = cpuid!(0x8000_000a, 0);
    if svm.edx & 1 << 0 == 0 {
        return Err(Unsupported::NoNestedPaging);
    }
    let rdpru = highest >= 0x8000_0008 && cpuid!(0x8000_0008, 0).ebx & 1 << 4 != 0;
    Ok(Features {
        asids: svm.ebx,
        next_rip: svm.edx & 1 << 3 != 0,
        decode_assists: svm.edx & 1 << 7 != 0,
        rdpru,
    })
}

/// Features and permission maps; `None` before [`init`] has succeeded.
pub fn shared() -> Option<Arc<Shared>> {
    SHARED.lock().clone()
}

/// Turns SVM on here, if it is not. Interrupts may be on; the caller stays on this CPU.
pub fn enable_on_this_cpu() -> Result<(), OutOfMemory> {
    let asids = shared().map_or(0, |shared| shared.features.asids);
    let mut cpu = CPUS[kcore::cpu::index()].lock();
    if cpu.is_some() {
        return Ok(());
    }
    let save_area = PageRun::new(1, 1, "SVM host save area")?;
    let host_state = PageRun::new(1, 1, "SVM host state")?;
    fpu::enable_on_this_cpu();
    let mut hsave = Msr::new(MSR_VM_HSAVE_PA);
    // SAFETY: `init` found SVM present and enabled, so EFER.SVME may be set and
    // VM_HSAVE_PA exists; the page given to it is owned by `CPUS` from here on and is
    // freed by `disable_on_this_cpu` alone, after SVM is off. VMSAVE writes the whole page `host_state`, owned likewise, and
    // nothing else: FS, GS, TR, LDTR and the system-call registers of this CPU, none of
    // which the kernel changes after a CPU's start.
    unsafe {
        Efer::update(|efer| efer.insert(EferFlags::SECURE_VIRTUAL_MACHINE_ENABLE));
        hsave.write(save_area.phys().as_u64());
        asm!("vmsave rax", in("rax") host_state.phys().as_u64(), options(nostack, preserves_flags));
    }
    *cpu = Some(HostCpu { _save_area: save_area, host_state, asids: AsidSpace::new(asids) });
    Ok(())
}

/// Turns SVM off here and gives back what it needed, if it is on. No virtual CPU of this CPU may be
/// entered any more until it is turned on again.
pub fn disable_on_this_cpu() {
    // With interrupts off no entry is under way here: an entry holds them off, too.
    let mut cpu = CPUS[kcore::cpu::index()].lock();
    if cpu.is_none() {
        return;
    }
    let mut hsave = Msr::new(MSR_VM_HSAVE_PA);
    // SAFETY: SVM was turned on here, so both registers exist. No guest is inside: this CPU runs
    // this code. Without SVME nothing uses the host save area (APM vol. 2 sec. 15.30.4), whose page is
    // freed below.
    unsafe {
        hsave.write(0);
        Efer::update(|efer| efer.remove(EferFlags::SECURE_VIRTUAL_MACHINE_ENABLE));
    }
    *cpu = None;
}

/// What an entry on this CPU uses.
pub struct EntryPass {
    /// Of the area for VMLOAD.
    pub host_pa: u64,
    /// The entry must flush every translation, and then call [`flushed`].
    pub flush: bool,
}

/// Renews `asid` if it is not of this CPU's current generation. `None` if SVM is not
/// enabled here.
pub fn pass(asid: &mut Asid) -> Option<EntryPass> {
    let mut cpu = CPUS[kcore::cpu::index()].lock();
    let cpu = cpu.as_mut()?;
    let flush = cpu.asids.renew(asid);
    Some(EntryPass { host_pa: cpu.host_state.phys().as_u64(), flush })
}

/// VMRUN has flushed this CPU's translations.
pub fn flushed() {
    if let Some(cpu) = CPUS[kcore::cpu::index()].lock().as_mut() {
        cpu.asids.flushed();
    }
}
