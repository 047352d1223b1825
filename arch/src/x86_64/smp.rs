use super::paging::FrameSource;
/// Number started (not counting this one). `entry` runs with interrupts off, on a guarded stack, with GDT, IDT, APIC, gs set.
pub fn start_others(entry: fn(cpu: usize) -> !, alloc: FrameSource) -> usize { todo!() }
