use super::addr::{PhysAddr, VirtAddr};
use super::boot::BootInfo;
/// Gives one free page frame; its contents do not matter.
pub type FrameSource = fn() -> Option<PhysAddr>;
pub type FrameSink = fn(PhysAddr);
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError { OutOfFrames, OutOfAddressSpace, BadRange, IsRam, NotReady }
/// `alloc` is kept for the page tables of later mappings. Its frames must lie below 4 GiB until this returns.
pub fn init(boot: &'static BootInfo, alloc: FrameSource) -> Result<(), MapError> { todo!() }
/// Uncached, RW+NX, for good. Any alignment.
pub fn map_mmio(start: PhysAddr, bytes: usize) -> Result<VirtAddr, MapError> { todo!() }
#[derive(Debug)]
pub struct Stack { bottom: VirtAddr, top: VirtAddr }
impl Stack {
    pub fn top(&self) -> *mut u8 { self.top.as_mut_ptr() }
    pub fn bottom(&self) -> VirtAddr { self.bottom }
    pub fn len_bytes(&self) -> usize { todo!() }
}
/// At most 124 KiB (31 pages), with an unmapped page below.
pub fn alloc_stack(bytes: usize, alloc: FrameSource) -> Result<Stack, MapError> { todo!() }
/// Unmaps on every CPU, then hands the frames back. Task context, no IrqSpinLock held.
pub fn free_stack(stack: Stack, free: FrameSink) { todo!() }
/// Whether `address` lies in the guard page of a stack.
pub fn is_guard_page(address: VirtAddr) -> bool { let _ = address; false }
pub fn is_mapped_ram(_a: VirtAddr) -> bool { false }
pub fn is_active() -> bool { false }
