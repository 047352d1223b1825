//! The records of ELF64 that a module is made of (System V gABI, chapter 4).

use crate::bytes::{u16_at, u32_at, u64_at};

pub const HEADER_BYTES: usize = 64;
pub const SECTION_BYTES: usize = 64;
pub const SYMBOL_BYTES: usize = 24;
pub const RELA_BYTES: usize = 24;

/// Class 64 bits, little-endian, version 1 (e_ident, figure 4-4).
pub const IDENT: [u8; 7] = [0x7f, b'E', b'L', b'F', 2, 1, 1];
/// ET_REL.
pub const TYPE_RELOCATABLE: u16 = 1;
/// EM_X86_64.
pub const MACHINE_X86_64: u16 = 62;

pub const SHT_PROGBITS: u32 = 1;
pub const SHT_SYMTAB: u32 = 2;
pub const SHT_RELA: u32 = 4;
pub const SHT_NOBITS: u32 = 8;
pub const SHT_NOTE: u32 = 7;
pub const SHF_WRITE: u64 = 1;
pub const SHF_ALLOC: u64 = 2;
pub const SHF_EXECINSTR: u64 = 4;
/// SHF_TLS.
pub const SHF_TLS: u64 = 0x400;

pub const SHN_UNDEF: u16 = 0;
pub const STT_FUNC: u8 = 2;

/// The header (figure 4-3), as far as a relocatable object needs it.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub file_type: u16,
    pub machine: u16,
    pub sections_offset: u64,
    pub section_bytes: u16,
    pub sections: u16,
    pub names: u16,
}

impl Header {
    pub fn read(file: &[u8]) -> Option<Header> {
        Some(Header {
            file_type: u16_at(file, 16)?,
            machine: u16_at(file, 18)?,
            sections_offset: u64_at(file, 40)?,
            section_bytes: u16_at(file, 58)?,
            sections: u16_at(file, 60)?,
            names: u16_at(file, 62)?,
        })
    }
}

/// A section's header (figure 4-8).
#[derive(Clone, Copy, Debug, Default)]
pub struct Section {
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub offset: u64,
    pub bytes: u64,
    pub link: u32,
    pub info: u32,
    pub align: u64,
    pub entry_bytes: u64,
}

impl Section {
    pub fn read(record: &[u8]) -> Option<Section> {
        Some(Section {
            name: u32_at(record, 0)?,
            kind: u32_at(record, 4)?,
            flags: u64_at(record, 8)?,
            offset: u64_at(record, 24)?,
            bytes: u64_at(record, 32)?,
            link: u32_at(record, 40)?,
            info: u32_at(record, 44)?,
            align: u64_at(record, 48)?,
            entry_bytes: u64_at(record, 56)?,
        })
    }

    pub fn is_loaded(&self) -> bool {
        self.flags & SHF_ALLOC != 0
    }
}

/// A symbol (figure 4-15).
#[derive(Clone, Copy, Debug)]
pub struct Symbol {
    pub name: u32,
    pub info: u8,
    pub section: u16,
    pub value: u64,
    pub bytes: u64,
}

impl Symbol {
    pub fn read(record: &[u8]) -> Option<Symbol> {
        Some(Symbol {
            name: u32_at(record, 0)?,
            info: *record.get(4)?,
            section: u16_at(record, 6)?,
            value: u64_at(record, 8)?,
            bytes: u64_at(record, 16)?,
        })
    }

    pub fn is_function(&self) -> bool {
        self.info & 0xf == STT_FUNC
    }
}

/// A relocation with its addend (figure 4-21).
#[derive(Clone, Copy, Debug)]
pub struct Rela {
    pub offset: u64,
    pub kind: u32,
    pub symbol: u32,
    pub addend: i64,
}

impl Rela {
    pub fn read(record: &[u8]) -> Option<Rela> {
        Some(Rela {
            offset: u64_at(record, 0)?,
            kind: u32_at(record, 8)?,
            symbol: u32_at(record, 12)?,
            addend: u64_at(record, 16)?.cast_signed(),
        })
    }
}
