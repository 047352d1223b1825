//! The Multiboot2 information structure (Multiboot2 2.0 section 3.6).
//!
//! The `multiboot2` crate checks the chain of tags. It asserts where a tag contradicts its
//! own type, which a working loader does not produce; what the tags say is checked here.

use super::{BootError, EarlyMemory, Handed, Protocol, ascii_prefix};
use crate::x86_64::addr::{PhysAddr, PhysRange, phys_to_virt};
use crate::x86_64::sync::Once;
use firmware::PhysicalMemory;
use firmware::bytes::u32_at;
use firmware::memory::{MemoryKind, MemoryMapBuilder};
use multiboot2::{BootInformation, MaybeDynSized, MemoryArea};

/// Size of an ACPI 2.0 root pointer (ACPI 6.5 section 5.2.5.3).
const RSDP_BYTES: usize = 36;

/// The loader hands over a copy of the ACPI root pointer inside its own structure, which is
/// in memory that will be reused; so it is copied once more, to where it has an address.
static RSDP_COPY: Once<[u8; RSDP_BYTES]> = Once::new();

pub fn read(start: PhysAddr, builder: &mut MemoryMapBuilder) -> Result<Handed, BootError> {
    // The first word is the total size.
    let total = EarlyMemory
        .slice(start, 8)
        .and_then(|header| u32_at(header, 0))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or(BootError::BadMultibootInformation)?;
    if EarlyMemory.slice(start, total).is_none() {
        return Err(BootError::BadMultibootInformation);
    }
    // SAFETY: the whole structure is readable, as just checked, and nobody writes it.
    let info = unsafe { BootInformation::load(phys_to_virt(start).cast_const().cast()) }
        .map_err(|_| BootError::BadMultibootInformation)?;

    let map = info.memory_map_tag().ok_or(BootError::NoMemoryMap)?;
    if map.entry_size() as usize != size_of::<MemoryArea>() {
        return Err(BootError::NoMemoryMap);
    }
    for area in map.memory_areas() {
        let kind = MemoryKind::from_e820(u32::from(area.typ()));
        builder.add(area.start_address(), area.size(), kind);
    }

    let archive = info.module_tags().next().and_then(|module| {
        let bytes = module.end_address().checked_sub(module.start_address())?;
        let range = PhysRange::new(PhysAddr(module.start_address().into()), bytes.into())?;
        (bytes > 0 && EarlyMemory.slice(range.start, bytes as usize).is_some()).then_some(range)
    });
    let command_line = info.command_line_tag().and_then(|tag| tag.cmdline().ok()).unwrap_or("");
    Ok(Handed {
        protocol: Protocol::Multiboot2,
        archive,
        rsdp: copy_rsdp(&info),
        command_line: ascii_prefix(command_line.as_bytes()),
    })
}

fn copy_rsdp(info: &BootInformation<'_>) -> Option<PhysAddr> {
    let newer = info.rsdp_v2_tag().map(MaybeDynSized::payload);
    let tag = newer.or_else(|| info.rsdp_v1_tag().map(MaybeDynSized::payload))?;
    let mut copy = [0; RSDP_BYTES];
    let bytes = tag.len().min(RSDP_BYTES);
    copy.get_mut(..bytes)?.copy_from_slice(tag.get(..bytes)?);
    let stored = RSDP_COPY.set(copy)?;
    crate::x86_64::addr::virt_to_phys(stored.as_ptr())
}
