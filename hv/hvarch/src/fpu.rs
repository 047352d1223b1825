//! The guest's vector state and breakpoint addresses, kept in the processor.
//!
//! The kernel is built without floating point, so what a guest left in the vector
//! registers stays there over its exits, and saving it at each would cost more than the
//! rest of the exit. Each host CPU therefore remembers whose state it holds, and
//! exchanges it only when another virtual CPU is about to enter there. Virtual CPUs
//! are bound to one host CPU ([`InvalidState::WrongCpu`]), so a state is never looked
//! for elsewhere.
//!
//! Every state component that any guest may enable is saved and restored, whatever its
//! XCR0 says at the moment, or a guest could leave (or find) data in a component that
//! is switched off (AMD APM vol. 2 sec. 11.5).
//!
//! [`InvalidState::WrongCpu`]: machine::backend::InvalidState::WrongCpu

use alloc::sync::Arc;
use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kcore::cpu::MAX_CPUS;
use kcore::memory::{OutOfMemory, PAGE_BYTES, PageRun};
use kcore::sync::IrqSpinLock;
use raw_cpuid::cpuid;
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};
use x86_64::registers::debug::DebugAddressRegister;
use x86_64::registers::debug::{Dr0, Dr1, Dr2, Dr3};

const X87: u64 = 1 << 0;
const SSE: u64 = 1 << 1;
const AVX: u64 = 1 << 2;
/// Opmask, upper halves of ZMM0..15, ZMM16..31: all or none (APM vol. 2 sec. 11.5.2).
const AVX512: u64 = 7 << 5;

/// Where FXSAVE's area holds FCW and MXCSR (APM vol. 2 fig. 11-8), and their values
/// after reset.
const FCW_OFFSET: usize = 0;
const FCW_RESET: u16 = 0x037f;
const MXCSR_OFFSET: usize = 24;
const MXCSR_RESET: u32 = 0x1f80;

static LOADED: [IrqSpinLock<Option<Arc<FpuState>>>; MAX_CPUS] = [const { IrqSpinLock::new(None) }; MAX_CPUS];

/// The XCR0 bits that guests may set on this processor: those whose components this
/// module saves.
pub fn supported_xcr0() -> u64 {
    let offered = cpuid!(0xd, 0);
    let offered = u64::from(offered.eax) | u64::from(offered.edx) << 32;
    let mut supported = offered & (X87 | SSE | AVX);
    if offered & AVX512 == AVX512 && supported & AVX != 0 {
        supported |= AVX512;
    }
    supported
}

/// Whether XSETBV would take `value` (APM vol. 2 sec. 11.5.2).
fn is_legal_xcr0(value: u64) -> bool {
    value & !supported_xcr0() == 0
        && value & X87 != 0
        && (value & AVX == 0 || value & SSE != 0)
        && (value & AVX512 == 0 || value & (AVX512 | AVX) == (AVX512 | AVX))
}

/// Readies this CPU's control registers for XSAVE. The kernel's own code uses no vector
/// registers, so it does not notice.
pub(crate) fn enable_on_this_cpu() {
    // SAFETY: the bits make FXSAVE and XSAVE known to the processor (APM vol. 2 sec.
    // 11.3.1, 11.5.1) and let vector instructions run without a trap; they change no
    // mapping and no instruction that the kernel executes.
    unsafe {
        Cr0::update(|cr0| {
            cr0.remove(Cr0Flags::EMULATE_COPROCESSOR | Cr0Flags::TASK_SWITCHED);
            cr0.insert(Cr0Flags::MONITOR_COPROCESSOR);
        });
        Cr4::update(|cr4| cr4.insert(Cr4Flags::OSFXSR | Cr4Flags::OSXMMEXCPT_ENABLE | Cr4Flags::OSXSAVE));
    }
}

/// One virtual CPU's state, when no host CPU holds it.
pub(crate) struct FpuState {
    /// An XSAVE area; touched by XSAVE and XRSTOR alone once it is made.
    area: PageRun,
    xcr0: AtomicU64,
    breakpoints: [AtomicU64; 4],
}

impl FpuState {
    /// The state after reset.
    pub fn new() -> Result<Arc<FpuState>, OutOfMemory> {
        // ECX: the area for all components that the processor knows, enabled or not.
        let bytes = cpuid!(0xd, 0).ecx as usize;
        let area = PageRun::new(bytes.max(1).div_ceil(PAGE_BYTES), 1, "guest vector state")?;
        // A header of zeros makes XRSTOR set every component to its initial state, but
        // it loads MXCSR from the area all the same.
        let start = area.as_ptr();
        // SAFETY: both fields lie in the first 512 bytes of the page that `area` owns
        // and nothing else knows yet, and are aligned.
        unsafe {
            start.add(FCW_OFFSET).cast::<u16>().write(FCW_RESET);
            start.add(MXCSR_OFFSET).cast::<u32>().write(MXCSR_RESET);
        }
        Ok(Arc::new(FpuState { area, xcr0: AtomicU64::new(X87), breakpoints: Default::default() }))
    }

    pub fn xcr0(&self) -> u64 {
        self.xcr0.load(Relaxed)
    }

    /// Changes XCR0 as XSETBV would; false if it would fault.
    pub fn set_xcr0(self: &Arc<Self>, value: u64) -> bool {
        if !is_legal_xcr0(value) {
            return false;
        }
        let loaded = LOADED[kcore::cpu::index()].lock();
        self.xcr0.store(value, Relaxed);
        if loaded.as_ref().is_some_and(|state| Arc::ptr_eq(state, self)) {
            write_xcr0(value);
        }
        true
    }

    /// Brings the state into this CPU. Interrupts are off and stay so until the guest
    /// is entered.
    pub fn load(self: &Arc<Self>) {
        let mut loaded = LOADED[kcore::cpu::index()].lock();
        if loaded.as_ref().is_some_and(|state| Arc::ptr_eq(state, self)) {
            return;
        }
        write_xcr0(supported_xcr0());
        if let Some(other) = loaded.take() {
            other.save();
        }
        self.restore();
        write_xcr0(self.xcr0());
        *loaded = Some(self.clone());
    }

    /// Forgets the state wherever a CPU still holds it: its owner is gone.
    pub fn unload(self: &Arc<Self>) {
        for loaded in &LOADED {
            let mut loaded = loaded.lock();
            if loaded.as_ref().is_some_and(|state| Arc::ptr_eq(state, self)) {
                *loaded = None;
            }
        }
    }

    fn save(&self) {
        let breakpoints = [Dr0::read(), Dr1::read(), Dr2::read(), Dr3::read()];
        for (kept, now) in self.breakpoints.iter().zip(breakpoints) {
            kept.store(now, Relaxed);
        }
        // SAFETY: XSAVE is enabled (`enable_on_this_cpu` ran before any load), the
        // area is page-aligned and as large as CPUID asks for all components, and the
        // CPU's lock in `LOADED` is held by the caller, so nobody else uses it.
        unsafe {
            asm!("xsave64 [{area}]", area = in(reg) self.area.as_ptr(),
                in("eax") u32::MAX, in("edx") u32::MAX, options(nostack, preserves_flags));
        }
    }

    fn restore(&self) {
        let breakpoint = |index: usize| self.breakpoints[index].load(Relaxed);
        // Breakpoints are enabled by DR7, which is the guest's only inside the guest.
        Dr0::write(breakpoint(0));
        Dr1::write(breakpoint(1));
        Dr2::write(breakpoint(2));
        Dr3::write(breakpoint(3));
        // SAFETY: as in `save`; the area holds what `new` or XSAVE put there, so its
        // header and MXCSR are legal and XRSTOR does not fault. The compiler keeps
        // nothing in the vector registers, since the kernel's target has none.
        unsafe {
            asm!("xrstor64 [{area}]", area = in(reg) self.area.as_ptr(),
                in("eax") u32::MAX, in("edx") u32::MAX, options(nostack, preserves_flags));
        }
    }
}

fn write_xcr0(value: u64) {
    // SAFETY: CR4.OSXSAVE is set and `value` is legal (`is_legal_xcr0` or all that is
    // supported), so XSETBV does not fault; the kernel uses no vector state.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") value as u32, in("edx") (value >> 32) as u32,
            options(nomem, nostack, preserves_flags));
    }
}
