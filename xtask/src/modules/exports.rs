//! The kernel's table of exports, as an object file.
//!
//! What stands in it and where is `modfile::Exports`'s; the addresses are relocations that the kernel's
//! linker resolves, and that have it keep what they name.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use modfile::{EXPORT_BYTES, EXPORTS_HEADER_BYTES, EXPORTS_MAGIC, Identity};
use object::write::{Object, Relocation, StandardSegment, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};

/// The section's name, which kernel.ld keeps.
const SECTION: &[u8] = b".nos.exports";

/// Makes the object.
pub fn object(identity: &Identity, names: &BTreeSet<String>) -> Result<Vec<u8>> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let segment = object.segment_name(StandardSegment::Data).to_vec();
    let section = object.add_section(segment, SECTION.to_vec(), SectionKind::ReadOnlyData);
    object.append_section_data(section, &table(identity, names)?, 8);
    for (index, name) in names.iter().enumerate() {
        let symbol = object.add_symbol(Symbol {
            name: name.clone().into_bytes(),
            value: 0,
            size: 0,
            kind: SymbolKind::Unknown,
            scope: SymbolScope::Unknown,
            weak: false,
            section: SymbolSection::Undefined,
            flags: SymbolFlags::None,
        });
        let relocation = Relocation {
            offset: (EXPORTS_HEADER_BYTES + index * EXPORT_BYTES) as u64,
            symbol,
            addend: 0,
            flags: RelocationFlags::Elf { r_type: elf::R_X86_64_64 },
        };
        object.add_relocation(section, relocation).context("naming an export")?;
    }
    object.write().context("writing the table of exports")
}

/// The table with zeros for addresses. The set is sorted by bytes, as the table has to be.
fn table(identity: &Identity, names: &BTreeSet<String>) -> Result<Vec<u8>> {
    let mut table = Vec::new();
    table.extend(EXPORTS_MAGIC);
    table.extend(identity);
    table.extend(u32::try_from(names.len())?.to_le_bytes());
    table.extend(0_u32.to_le_bytes());
    let mut name_offset = EXPORTS_HEADER_BYTES + names.len() * EXPORT_BYTES;
    for name in names {
        table.extend(0_u64.to_le_bytes());
        table.extend(u32::try_from(name_offset)?.to_le_bytes());
        table.extend(u32::try_from(name.len())?.to_le_bytes());
        name_offset += name.len();
    }
    for name in names {
        table.extend(name.as_bytes());
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _};

    use super::*;

    #[test]
    fn the_table_is_what_the_node_reads() {
        let names: BTreeSet<String> = ["memcpy", "_ZN5alloc", "a"].map(str::to_owned).into();
        let identity = [7; 32];
        let file = object(&identity, &names).unwrap();
        let file = object::File::parse(file.as_slice()).unwrap();
        let section = file.section_by_name(".nos.exports").unwrap();
        assert_eq!(section.relocations().count(), names.len());
        let exports = modfile::Exports::check(section.data().unwrap()).unwrap();
        assert_eq!((exports.identity(), exports.count()), (&identity, 3));
        assert!(names.iter().all(|name| exports.find(name) == Some(0)));
        assert_eq!(exports.find("b"), None);
    }
}
