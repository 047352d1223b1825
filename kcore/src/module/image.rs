//! A module in memory.
//!
//! Each module has a slot of the module area: code, constants and data in this order, each in pages of
//! its own and with an unmapped page behind. What a panic needs to name a function of the module stands
//! beside the slot.

use alloc::boxed::Box;
use core::ops::Range;
use core::slice;

use arch::addr::VirtAddr;
use arch::paging::{MODULE_AREA, Protection};
use arrayvec::{ArrayString, ArrayVec};
use modfile::{Bases, Exports, Fault, Kind, ModuleFile, Plan};

use super::LoadError;
use crate::memory::{PAGE_BYTES, PageRun};
use crate::sync::IrqSpinLock;

/// Modules there can be at once.
pub const MOST_MODULES: usize = 16;
const SLOT_BYTES: usize = (MODULE_AREA.end - MODULE_AREA.start) as usize / MOST_MODULES;

/// The longest name of a module.
const MOST_NAME_BYTES: usize = 32;

/// What is known of a slot's module for the sake of a backtrace.
struct Record {
    name: ArrayString<MOST_NAME_BYTES>,
    file: ModuleFile<'static>,
}

static SLOTS: [IrqSpinLock<Option<Box<Record>>>; MOST_MODULES] =
    [const { IrqSpinLock::new(None) }; MOST_MODULES];

/// The addresses of slot `slot`.
fn addresses(slot: usize) -> Range<usize> {
    let start = MODULE_AREA.start as usize + slot * SLOT_BYTES;
    start..start + SLOT_BYTES
}

/// The slot in which `address` lies.
fn slot_of(address: u64) -> Option<usize> {
    MODULE_AREA.contains(&address).then(|| (address - MODULE_AREA.start) as usize / SLOT_BYTES)
}

/// One part of a module, mapped.
struct Part {
    at: VirtAddr,
    frames: PageRun,
}

/// A module's slot, taken.
struct Slot(usize);

impl Slot {
    fn take(record: Record) -> Result<Slot, LoadError> {
        let mut record = Some(Box::new(record));
        for (index, slot) in SLOTS.iter().enumerate() {
            let mut slot = slot.lock();
            if slot.is_none() {
                *slot = record.take();
                return Ok(Slot(index));
            }
        }
        Err(LoadError::TooMany)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let record = SLOTS[self.0].lock().take();
        drop(record);
    }
}

/// A module's memory: placed, relocated, mapped and protected. Its drop takes it away, so whoever
/// drops it knows that nobody is in it.
pub struct Image {
    parts: ArrayVec<Part, 3>,
    slot: Slot,
    entry: VirtAddr,
}

impl Image {
    /// Brings a file into memory.
    pub fn new(name: &str, file: &'static [u8], exports: Exports<'_>) -> Result<Image, LoadError> {
        let file = ModuleFile::check(file, exports.identity())?;
        let name = ArrayString::from(name).map_err(|_| LoadError::LongName)?;
        let slot = Slot::take(Record { name, file: file.clone() })?;
        let plan = file.plan(exports).map_err(own)?;
        let mut parts = take_memory(&plan, &addresses(slot.0))?;
        let entry = VirtAddr::new(place(&plan, &mut parts)?);
        let mut image = Image { parts: ArrayVec::new(), slot, entry };
        for (kind, part) in Kind::ALL.into_iter().zip(parts) {
            let Some(part) = part else { continue };
            let protection = match kind {
                Kind::Code => Protection::Code,
                Kind::Constants => Protection::Constants,
                Kind::Data => Protection::Data,
            };
            // SAFETY: the frames are `part`'s alone and were written for the last time above; those of
            // code hold what the module's file, which is this kernel's own by its identity and whole by
            // its digest, has as code.
            unsafe { arch::paging::map_module(part.at, physical(&part.frames), protection) }
                .map_err(LoadError::Map)?;
            image.parts.push(part);
        }
        Ok(image)
    }

    /// Where the module lies: its code, its constants (and with them the tables of its traits' methods)
    /// and its data.
    pub fn addresses(&self) -> Range<usize> {
        addresses(self.slot.0)
    }

    /// Pages that it takes.
    pub fn pages(&self) -> usize {
        self.parts.iter().map(|part| part.frames.pages()).sum()
    }

    /// The function with which it begins.
    pub fn entry(&self) -> super::Entry {
        // SAFETY: the address is that of the symbol `nos_module` in mapped code. The file was built
        // together with this kernel, as its identity says, and there `module!` alone defines a symbol of
        // that name, as a function of this very type.
        unsafe { core::mem::transmute::<*const (), super::Entry>(self.entry.as_ptr()) }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        for part in self.parts.drain(..) {
            // SAFETY: whoever drops an image knows that nobody is in it (see the type); the frames are
            // those that were mapped, and are given back only after this.
            unsafe { arch::paging::unmap_module(part.at, physical(&part.frames)) };
        }
    }
}

fn physical(frames: &PageRun) -> arch::addr::PhysRange {
    let start = frames.phys();
    arch::addr::PhysRange { start, bytes: frames.len_bytes() as u64 }
}

/// Memory for each part that has any bytes, and where in the slot it will be.
fn take_memory(plan: &Plan<'_, 'static>, slot: &Range<usize>) -> Result<[Option<Part>; 3], LoadError> {
    let mut at = slot.start;
    let mut parts = [const { None }; 3];
    for (kind, part) in Kind::ALL.into_iter().zip(&mut parts) {
        let pages = plan.bytes(kind).div_ceil(PAGE_BYTES);
        if pages > 0 {
            let end = at + (pages + 1) * PAGE_BYTES;
            if end > slot.end {
                return Err(LoadError::TooLarge);
            }
            let frames = PageRun::new(pages, 1, "a module").map_err(LoadError::Memory)?;
            *part = Some(Part { at: VirtAddr::new(at as u64), frames });
            at = end;
        }
    }
    Ok(parts)
}

/// Writes the module into its memory. The address of its entry.
fn place(plan: &Plan<'_, 'static>, parts: &mut [Option<Part>; 3]) -> Result<u64, LoadError> {
    let bases: Bases = parts.each_ref().map(|part| part.as_ref().map_or(0, |part| part.at.as_u64()));
    let mut memory = parts.each_mut().map(|part| -> &mut [u8] {
        match part {
            // SAFETY: the run was just taken, zeroed, and nobody else knows it; the reference ends with
            // this function, before the frames are mapped anywhere else.
            Some(part) => unsafe { slice::from_raw_parts_mut(part.frames.as_ptr(), part.frames.len_bytes()) },
            None => &mut [],
        }
    });
    plan.place(&bases, &mut memory).map_err(own)
}

/// The fault of a file that stays: the boot archive's.
fn own(fault: Fault<'static>) -> LoadError {
    LoadError::File(fault)
}

/// Tells `show` the module in which `address` lies, the function, and the distance into it. For a
/// panic: waits for no lock, allocates nothing. Whether there is such a function.
pub(crate) fn function_at(address: u64, show: impl FnOnce(&str, &str, u64)) -> bool {
    let found = || {
        let slot = slot_of(address)?;
        let record = SLOTS[slot].try_lock()?;
        let record = record.as_ref()?;
        let offset = usize::try_from(address).ok()?.checked_sub(addresses(slot).start)?;
        let (function, within) = record.file.function_at(offset)?;
        show(&record.name, function, within as u64);
        Some(())
    };
    found().is_some()
}
