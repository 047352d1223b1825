//! A small module and a small kernel's table of exports, for the tests and for the fuzz target.

use std::collections::BTreeMap;

use modfile::{ENTRY_NAME, EXPORT_BYTES, EXPORTS_HEADER_BYTES, EXPORTS_MAGIC, Identity, NOTE_NAME, Note};
use object::write::{Object, Relocation, StandardSegment, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags, SymbolKind,
    SymbolScope, elf,
};

/// The kernel's identity.
pub const THIS: Identity = [0x5a; 32];
/// Where the module is to be.
pub const BASES: [u64; 3] = [0xffff_ffff_c000_0000, 0xffff_ffff_c010_0000, 0xffff_ffff_c020_0000];

/// A table of exports as the kernel has it.
pub fn exports(names: &BTreeMap<&str, u64>) -> Vec<u8> {
    let mut table = Vec::from(EXPORTS_MAGIC);
    table.extend(THIS);
    table.extend((names.len() as u32).to_le_bytes());
    table.extend([0; 4]);
    let mut offset = EXPORTS_HEADER_BYTES + names.len() * EXPORT_BYTES;
    for (name, address) in names {
        table.extend(address.to_le_bytes());
        table.extend((offset as u32).to_le_bytes());
        table.extend((name.len() as u32).to_le_bytes());
        offset += name.len();
    }
    names.keys().for_each(|name| table.extend(name.bytes()));
    table
}

/// The exports that the module wants, and one more.
pub fn usual_exports() -> Vec<u8> {
    exports(&BTreeMap::from([("memcpy", 0xffff_ffff_8020_1000), ("print", 0xffff_ffff_8020_2000)]))
}

/// A module as a linker would make it: code that calls `print`, a constant that points at the code, a word of data that
/// points at the constant, and zeros.
pub fn module(import: &str) -> Vec<u8> {
    let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let segment = object.segment_name(StandardSegment::Data).to_vec();
    let mut section = |name: &str, kind| object.add_section(segment.clone(), name.into(), kind);
    let text = section(".text", SectionKind::Text);
    let rodata = section(".rodata", SectionKind::ReadOnlyData);
    let data = section(".data", SectionKind::Data);
    let bss = section(".bss", SectionKind::UninitializedData);
    let note = section(NOTE_NAME, SectionKind::Note);
    object.append_section_data(text, &[0xcc; 64], 16);
    object.append_section_data(rodata, &[1; 24], 8);
    object.append_section_data(data, &[2; 8], 8);
    object.append_section_bss(bss, 100, 64);
    object.append_section_data(note, &Note::bytes(&THIS), 4);
    let mut symbol = |name: &str, section, kind, value| {
        object.add_symbol(Symbol {
            name: name.into(),
            value,
            size: 16,
            kind,
            scope: SymbolScope::Dynamic,
            weak: false,
            section,
            flags: SymbolFlags::None,
        })
    };
    symbol(ENTRY_NAME, SymbolSection::Section(text), SymbolKind::Text, 16);
    symbol("helper", SymbolSection::Section(text), SymbolKind::Text, 32);
    let import = symbol(import, SymbolSection::Undefined, SymbolKind::Unknown, 0);
    let (code, constants) = (object.section_symbol(text), object.section_symbol(rodata));
    for (section, offset, symbol, addend, r_type) in [
        (text, 20, import, -4, elf::R_X86_64_PLT32),
        (text, 28, constants, 4, elf::R_X86_64_PC32),
        (text, 36, constants, 8, elf::R_X86_64_32S),
        (rodata, 8, code, 32, elf::R_X86_64_64),
        (data, 0, constants, 8, elf::R_X86_64_64),
    ] {
        let flags = RelocationFlags::Elf { r_type };
        object.add_relocation(section, Relocation { offset, symbol, addend, flags }).unwrap();
    }
    sealed(object.write().unwrap())
}

/// Where the digest lies, by the note's beginning: the headers may be wrong.
fn digest_offset(file: &[u8]) -> Option<usize> {
    let beginning = &Note::bytes(&THIS)[..16];
    let note = file.windows(beginning.len()).position(|window| window == beginning)?;
    Some(note + Note::DIGEST_OFFSET).filter(|at| at + 32 <= file.len())
}

/// Makes the digest right again.
pub fn sealed(mut file: Vec<u8>) -> Vec<u8> {
    if let Some(at) = digest_offset(&file) {
        let digest = Note::digest(&file, at).unwrap();
        file[at..at + 32].copy_from_slice(&digest);
    }
    file
}
