//! The descriptor tables: a GDT and a TSS for each CPU, one IDT for all.
//!
//! The TSS exists for its interrupt stacks. NMI, double fault and machine check arrive at
//! any moment, a stack overflow's double fault with no usable stack at all, so each has a
//! stack of its own on every CPU (AMD APM vol. 2 section 8.9.4).

use crate::x86_64::addr::VirtAddr;
use crate::x86_64::cpu::MAX_CPUS;
use core::cell::UnsafeCell;
use x86_64::PrivilegeLevel;
use x86_64::instructions::tables::{lidt, load_tss};
use x86_64::registers::segmentation::{CS, DS, ES, FS, GS, SS, Segment, SegmentSelector};
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

const VECTOR_NMI: usize = 2;
const VECTOR_DOUBLE_FAULT: usize = 8;
const VECTOR_MACHINE_CHECK: usize = 18;

/// The tops of one CPU's interrupt stacks.
#[derive(Clone, Copy, Debug)]
pub struct IstStacks {
    /// For NMI.
    pub nmi: VirtAddr,
    /// For #DF.
    pub double_fault: VirtAddr,
    /// For #MC.
    pub machine_check: VirtAddr,
}

/// A static that only its owning CPU writes, once, before it uses it.
struct OwnedByCpu<T>(UnsafeCell<T>);

// SAFETY: see `load`: element N is touched by CPU N alone, and by the hardware after that.
unsafe impl<T> Sync for OwnedByCpu<T> {}

struct CpuTables {
    gdt: GlobalDescriptorTable,
    tss: TaskStateSegment,
}

static CPU_TABLES: [OwnedByCpu<CpuTables>; MAX_CPUS] = [const {
    OwnedByCpu(UnsafeCell::new(CpuTables { gdt: GlobalDescriptorTable::new(), tss: TaskStateSegment::new() }))
}; MAX_CPUS];

/// One interrupt gate (AMD APM vol. 2 section 4.8.4).
#[derive(Clone, Copy)]
#[repr(C)]
struct Gate {
    offset_0_15: u16,
    selector: u16,
    ist: u8,
    kind: u8,
    offset_16_31: u16,
    offset_32_63: u32,
    reserved: u32,
}

impl Gate {
    /// Present, DPL 0, 64-bit interrupt gate: the CPU clears IF on entry.
    const INTERRUPT: u8 = 0x8e;

    const ABSENT: Self =
        Self { offset_0_15: 0, selector: 0, ist: 0, kind: 0, offset_16_31: 0, offset_32_63: 0, reserved: 0 };

    #[allow(clippy::cast_possible_truncation, reason = "the address is cut into its parts")]
    fn new(stub: u64, selector: SegmentSelector, ist: u8) -> Self {
        Self {
            offset_0_15: stub as u16,
            selector: selector.0,
            ist,
            kind: Self::INTERRUPT,
            offset_16_31: (stub >> 16) as u16,
            offset_32_63: (stub >> 32) as u32,
            reserved: 0,
        }
    }
}

#[repr(C, align(4096))]
struct InterruptTable([Gate; 256]);

static INTERRUPT_TABLE: OwnedByCpu<InterruptTable> =
    OwnedByCpu(UnsafeCell::new(InterruptTable([Gate::ABSENT; 256])));

unsafe extern "C" {
    /// 256 entries of 16 bytes, in stubs.s.
    static trap_stubs: [[u8; 16]; 256];
}

const CODE_SELECTOR: SegmentSelector = SegmentSelector::new(1, PrivilegeLevel::Ring0);

/// Builds and loads this CPU's GDT and TSS, and loads the IDT, which CPU 0 builds.
///
/// # Safety
/// Called once on CPU number `cpu`, and by nobody else for that number. CPU 0 comes first.
/// The stacks are mapped, 16-byte aligned and used for nothing else.
pub unsafe fn load(cpu: usize, stacks: &IstStacks) {
    // SAFETY: by this function's contract nobody else has a reference to this element.
    let tables: &'static mut CpuTables = unsafe { &mut *CPU_TABLES[cpu].0.get() };
    let top = |stack: VirtAddr| x86_64::VirtAddr::new(stack.as_u64());
    // Slot N is IST number N + 1.
    tables.tss.interrupt_stack_table[0] = top(stacks.nmi);
    tables.tss.interrupt_stack_table[1] = top(stacks.double_fault);
    tables.tss.interrupt_stack_table[2] = top(stacks.machine_check);

    let code = tables.gdt.append(Descriptor::kernel_code_segment());
    let data = tables.gdt.append(Descriptor::kernel_data_segment());
    let tss = tables.gdt.append(Descriptor::tss_segment(&tables.tss));
    debug_assert_eq!(code, CODE_SELECTOR);
    tables.gdt.load();
    // SAFETY: the selectors are those just made in the loaded table: a 64-bit code segment, a
    // data segment and an unused TSS. GS's base is set afterwards, by cpu::init.
    unsafe {
        CS::set_reg(code);
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        FS::set_reg(SegmentSelector::NULL);
        GS::set_reg(SegmentSelector::NULL);
        load_tss(tss);
    }

    let table = INTERRUPT_TABLE.0.get();
    if cpu == 0 {
        // SAFETY: CPU 0 comes here once, first and alone, so the table is not in use.
        fill(unsafe { &mut *table });
    }
    let limit = u16::try_from(size_of::<InterruptTable>() - 1).unwrap_or(u16::MAX);
    let base = x86_64::VirtAddr::from_ptr(table);
    // SAFETY: the table is static, filled, and its gates lead to the stubs.
    unsafe { lidt(&DescriptorTablePointer { limit, base }) };
}

fn fill(table: &mut InterruptTable) {
    let stubs = (&raw const trap_stubs).expose_provenance() as u64;
    for (vector, gate) in table.0.iter_mut().enumerate() {
        let ist = match vector {
            VECTOR_NMI => 1,
            VECTOR_DOUBLE_FAULT => 2,
            VECTOR_MACHINE_CHECK => 3,
            _ => 0,
        };
        *gate = Gate::new(stubs + 16 * vector as u64, CODE_SELECTOR, ist);
    }
}
