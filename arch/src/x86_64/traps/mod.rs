//! Exceptions and interrupts.
//!
//! Every vector has a stub (stubs.s) that saves all registers on the stack it arrived on
//! and calls [`dispatch`]. The stubs are plain assembly because the compiler's own ABI for
//! interrupt handlers is not stable, and because a device interrupt here may turn into a
//! context switch: the frame stays on the interrupted task's stack, and the handler may
//! return to it much later, on the same stack.
//!
//! What happens next is up to [`Hooks`]:
//!
//! - a device, timer or inter-processor interrupt calls `interrupt(vector)` with interrupts
//!   off. The hook acknowledges it with [`apic::eoi`](super::apic::eoi), and may switch
//!   contexts before or after;
//! - an exception calls `fault(&info)`, which does not return: the kernel has no exception
//!   that it expects;
//! - an NMI calls `nmi` on a stack of its own. It can arrive with any lock held, so the
//!   hook may take none. A backtrace from inside the hook continues in what was interrupted.
//!
//! The TLB shootdown vector is handled here; hooks never see it.
//!
//! Vectors: 0x20-0xdf devices, 0xe0 timer, 0xe1 reschedule, 0xe2 TLB shootdown,
//! 0xe3 `arch`'s own, 0xf0-0xfe the masked legacy controllers (spurious), 0xff APIC spurious.

mod tables;

pub use tables::IstStacks;
pub(super) use tables::load as load_tables;

use super::sync::Once;
use super::{apic, cpu, serial, shootdown};
use core::arch::global_asm;
use core::fmt::{self, Write};
use core::mem::offset_of;
use x86_64::registers::control::Cr2;

/// First vector for devices.
pub const VECTOR_DEVICE_FIRST: u8 = 0x20;
/// Last vector for devices.
pub const VECTOR_DEVICE_LAST: u8 = 0xdf;
/// The local APIC's timer.
pub const VECTOR_TIMER: u8 = 0xe0;
/// "Look at your run queue", from another CPU.
pub const VECTOR_RESCHEDULE: u8 = 0xe1;
/// "Forget these translations", from another CPU.
pub const VECTOR_TLB_SHOOTDOWN: u8 = 0xe2;
/// Ends a HLT of `arch`'s own and means nothing else.
pub(super) const VECTOR_WAKE: u8 = 0xe3;
/// Where the legacy interrupt controllers are moved to before they are masked.
pub const VECTOR_LEGACY_FIRST: u8 = 0xf0;
/// The local APIC's spurious interrupt; not acknowledged.
pub const VECTOR_SPURIOUS: u8 = 0xff;

const VECTOR_NMI: u64 = 2;
const VECTOR_DOUBLE_FAULT: u64 = 8;
const VECTOR_PAGE_FAULT: u64 = 14;

/// The general registers, in the order in which the stub leaves them in memory.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Registers {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
}

/// What a stub leaves on the stack.
#[repr(C)]
struct TrapFrame {
    registers: Registers,
    /// The low byte is the vector; the rest is its sign.
    vector: u64,
    error_code: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Everything the processor tells about an exception.
#[derive(Clone, Copy, Debug)]
pub struct FaultInfo {
    /// The exception's number.
    pub vector: u8,
    /// Its error code, or 0 where it has none.
    pub error_code: u64,
    /// The general registers.
    pub registers: Registers,
    /// The instruction.
    pub rip: u64,
    /// Its code segment.
    pub cs: u64,
    /// The flags.
    pub rflags: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The stack segment.
    pub ss: u64,
    /// The address of the last page fault on this CPU; meaningful for a page fault, and for
    /// a double fault that began as one.
    pub cr2: u64,
    /// The CPU.
    pub cpu: usize,
}

impl FaultInfo {
    /// The exception's name.
    pub const fn name(&self) -> &'static str {
        // AMD APM vol. 2 table 8-1; SDM vol. 3A table 6-1.
        match self.vector {
            0 => "divide error",
            1 => "debug",
            3 => "breakpoint",
            4 => "overflow",
            5 => "bound range",
            6 => "invalid opcode",
            7 => "device not available",
            8 => "double fault",
            10 => "invalid TSS",
            11 => "segment not present",
            12 => "stack fault",
            13 => "general protection",
            14 => "page fault",
            16 => "x87 floating point",
            17 => "alignment check",
            18 => "machine check",
            19 => "SIMD floating point",
            20 => "virtualization",
            21 => "control protection",
            28 => "hypervisor injection",
            29 => "VMM communication",
            30 => "security",
            _ => "reserved exception",
        }
    }

    /// The address that could not be accessed, if that is what the exception is about.
    pub fn address(&self) -> Option<super::addr::VirtAddr> {
        let about_memory = matches!(u64::from(self.vector), VECTOR_PAGE_FAULT | VECTOR_DOUBLE_FAULT);
        about_memory.then_some(super::addr::VirtAddr(self.cr2))
    }

    /// Whether a stack ran into the guard page below it.
    pub fn is_stack_overflow(&self) -> bool {
        self.address().is_some_and(super::paging::is_guard_page)
    }
}

impl fmt::Display for FaultInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = &self.registers;
        writeln!(
            f,
            "CPU {}: {} (vector {}, error code {:#x}) at {:#x}",
            self.cpu,
            self.name(),
            self.vector,
            self.error_code,
            self.rip
        )?;
        if let Some(address) = self.address() {
            let guard = if self.is_stack_overflow() { ", a stack's guard page" } else { "" };
            writeln!(f, "address {address}{guard}")?;
        }
        let registers = [
            ("rax", r.rax),
            ("rbx", r.rbx),
            ("rcx", r.rcx),
            ("rdx", r.rdx),
            ("rsi", r.rsi),
            ("rdi", r.rdi),
            ("rbp", r.rbp),
            ("rsp", self.rsp),
            ("r8", r.r8),
            ("r9", r.r9),
            ("r10", r.r10),
            ("r11", r.r11),
            ("r12", r.r12),
            ("r13", r.r13),
            ("r14", r.r14),
            ("r15", r.r15),
        ];
        for (index, (name, value)) in registers.iter().enumerate() {
            let end = if index % 4 == 3 { "\n" } else { "  " };
            write!(f, "{name:>3} {value:016x}{end}")?;
        }
        write!(f, "rflags {:#x}  cs {:#x}  ss {:#x}", self.rflags, self.cs, self.ss)
    }
}

/// Who is told about interrupts and faults.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// A device, timer or inter-processor interrupt; see the module's text.
    pub interrupt: fn(vector: u8),
    /// An exception.
    pub fault: fn(&FaultInfo) -> !,
    /// A non-maskable interrupt: RBP and RIP of what it interrupted.
    pub nmi: fn(frame_pointer: u64, rip: u64),
}

static HOOKS: Once<Hooks> = Once::new();

/// What happens before the kernel has set hooks of its own: interrupts are acknowledged
/// and dropped, a fault is printed and stops the CPU.
const DEFAULT_HOOKS: Hooks = Hooks {
    interrupt: |_| apic::eoi(),
    fault: |info| {
        // The writer cannot fail.
        let _ = write!(serial::Writer, "\nfault before the kernel's own handler:\n{info}\n");
        cpu::halt_forever()
    },
    nmi: |_, _| (),
};

/// Sets the hooks, once, before interrupts are turned on. A later call changes nothing.
pub fn set_hooks(hooks: Hooks) {
    // The hooks already there stay.
    let _ = HOOKS.set(hooks);
}

global_asm!(
    include_str!("stubs.s"),
    frame_rip = const offset_of!(TrapFrame, rip),
    dispatch = sym dispatch,
);

/// Where every interrupt and exception arrives, interrupts off.
extern "C" fn dispatch(frame: &mut TrapFrame) {
    let hooks = HOOKS.get().unwrap_or(&DEFAULT_HOOKS);
    #[allow(clippy::cast_possible_truncation, reason = "the low byte is the vector")]
    let vector = frame.vector as u8;
    match vector {
        VECTOR_TLB_SHOOTDOWN => {
            shootdown::answer();
            apic::eoi();
        }
        VECTOR_WAKE => apic::eoi(),
        // Neither the APIC's spurious interrupt nor those of the masked legacy controllers
        // are in service, so neither is acknowledged.
        VECTOR_LEGACY_FIRST..=VECTOR_SPURIOUS => (),
        VECTOR_DEVICE_FIRST.. => (hooks.interrupt)(vector),
        _ if u64::from(vector) == VECTOR_NMI => (hooks.nmi)(frame.registers.rbp, frame.rip),
        _ => (hooks.fault)(&FaultInfo {
            vector,
            error_code: frame.error_code,
            registers: frame.registers,
            rip: frame.rip,
            cs: frame.cs,
            rflags: frame.rflags,
            rsp: frame.rsp,
            ss: frame.ss,
            cr2: Cr2::read_raw(),
            cpu: cpu::index(),
        }),
    }
}
