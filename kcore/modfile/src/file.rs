//! The file: its headers, its note, its sections.

use arrayvec::ArrayVec;
use sha2::{Digest as _, Sha256};

use crate::bytes::{piece, text_at};
use crate::elf::{self, Header, Rela, Section, Symbol};
use crate::{Fault, Identity};

/// The section that holds the [`Note`].
pub const NOTE_NAME: &str = ".note.nos";

/// The function with which a module begins.
pub const ENTRY_NAME: &str = "nos_module";

/// Sections a module may have; `cargo xtask` makes about ten.
const MOST_SECTIONS: usize = 32;

/// What a module says about itself: the descriptor of an ELF note (gABI, "Note Section") whose owner is
/// "nos" and whose type is 1.
///
/// ```text
///    0  u32 4, u32 64, u32 1, "nos\0"
///   16  the identity of the kernel that it was built against, 32 bytes
///   48  SHA-256 of the file, with these 32 bytes taken as zeros
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Note;

impl Note {
    /// Bytes of the section.
    pub const BYTES: usize = 80;
    /// Where the digest lies in it.
    pub const DIGEST_OFFSET: usize = 48;
    const IDENTITY_OFFSET: usize = 16;
    const BEGINNING: [u8; 16] = [4, 0, 0, 0, 64, 0, 0, 0, 1, 0, 0, 0, b'n', b'o', b's', 0];

    /// The section's bytes, without the digest yet.
    pub fn bytes(identity: &Identity) -> [u8; Note::BYTES] {
        let mut note = [0; Note::BYTES];
        note[..Note::BEGINNING.len()].copy_from_slice(&Note::BEGINNING);
        note[Note::IDENTITY_OFFSET..Note::DIGEST_OFFSET].copy_from_slice(identity);
        note
    }

    /// The digest of a file whose digest lies at `digest_offset`. `None` if it does not lie in it.
    pub fn digest(file: &[u8], digest_offset: usize) -> Option<[u8; 32]> {
        let before = file.get(..digest_offset)?;
        let behind = file.get(digest_offset.checked_add(32)?..)?;
        let mut sha = Sha256::new();
        sha.update(before);
        sha.update([0; 32]);
        sha.update(behind);
        Some(sha.finalize().into())
    }
}

/// A file whose headers lead nowhere outside it, which is whole, and whose sections are such as a module
/// has. Its relocations have not been looked at.
#[derive(Clone, Debug)]
pub struct ModuleFile<'a> {
    file: &'a [u8],
    pub(crate) sections: ArrayVec<Section, MOST_SECTIONS>,
    symbols: &'a [u8],
    names: &'a [u8],
    built_for: Identity,
}

impl<'a> ModuleFile<'a> {
    /// Checks a file that was built for the kernel `this`.
    pub fn check(file: &'a [u8], this: &Identity) -> Result<ModuleFile<'a>, Fault<'a>> {
        let cut_off = |what| Fault::CutOff { what, bytes: file.len() };
        if !file.starts_with(&elf::IDENT) {
            return Err(Fault::NotAModule);
        }
        let header = Header::read(file).filter(|_| file.len() >= elf::HEADER_BYTES);
        let header = header.ok_or(cut_off("the header"))?;
        if header.file_type != elf::TYPE_RELOCATABLE || header.machine != elf::MACHINE_X86_64 {
            return Err(Fault::NotAModule);
        }
        let sections = read_sections(file, &header)?;
        let section_names =
            contents(file, sections.get(usize::from(header.names))).ok_or(cut_off("the sections' names"))?;
        for section in &sections {
            if section.kind != elf::SHT_NOBITS && contents(file, Some(section)).is_none() {
                return Err(cut_off("a section"));
            }
        }

        let is_note = |section: &&Section| {
            section.kind == elf::SHT_NOTE && name_of(section_names, section) == Some(NOTE_NAME)
        };
        let note =
            sections.iter().find(is_note).ok_or(Fault::Malformed("no note of the kernel it is for"))?;
        let bytes = contents(file, Some(note)).ok_or(cut_off("the note"))?;
        let bytes: &[u8; Note::BYTES] =
            bytes.try_into().map_err(|_| Fault::Malformed("its note's length"))?;
        if !bytes.starts_with(&Note::BEGINNING) {
            return Err(Fault::Malformed("its note"));
        }
        let built_for: Identity =
            *bytes[Note::IDENTITY_OFFSET..].first_chunk().ok_or(Fault::Malformed("its note"))?;
        if built_for != *this {
            return Err(Fault::OtherKernel { built_for, this: *this });
        }
        let digest_offset =
            usize::try_from(note.offset).ok().and_then(|at| at.checked_add(Note::DIGEST_OFFSET));
        let digest = digest_offset.and_then(|at| Note::digest(file, at)).ok_or(cut_off("the note"))?;
        if digest != bytes[Note::DIGEST_OFFSET..] {
            return Err(Fault::Damaged);
        }

        let mut tables = sections.iter().filter(|section| section.kind == elf::SHT_SYMTAB);
        let table = tables.next().ok_or(Fault::Malformed("no symbols"))?;
        if tables.next().is_some() || table.entry_bytes != elf::SYMBOL_BYTES as u64 {
            return Err(Fault::Malformed("its symbols"));
        }
        let symbols = contents(file, Some(table)).ok_or(cut_off("the symbols"))?;
        let names = usize::try_from(table.link).ok().and_then(|link| contents(file, sections.get(link)));
        let names = names.ok_or(Fault::Malformed("no names of its symbols"))?;
        check_loaded(&sections)?;
        Ok(ModuleFile { file, sections, symbols, names, built_for })
    }

    /// The identity of the kernel that it was built against.
    pub fn built_for(&self) -> &Identity {
        &self.built_for
    }

    /// The bytes of section `index`; none for one that has no bytes in the file.
    pub(crate) fn contents(&self, index: usize) -> &'a [u8] {
        contents(self.file, self.sections.get(index)).unwrap_or(&[])
    }

    pub(crate) fn symbol(&self, index: u32) -> Option<Symbol> {
        let start = usize::try_from(index).ok()?.checked_mul(elf::SYMBOL_BYTES)?;
        Symbol::read(self.symbols.get(start..)?.get(..elf::SYMBOL_BYTES)?)
    }

    pub(crate) fn symbols(&self) -> impl Iterator<Item = Symbol> + '_ {
        self.symbols.chunks_exact(elf::SYMBOL_BYTES).filter_map(Symbol::read)
    }

    pub(crate) fn symbol_name(&self, symbol: &Symbol) -> Option<&'a str> {
        text_at(self.names, usize::try_from(symbol.name).ok()?)
    }

    /// The relocations of section `index`, which applies to the section that its `info` names.
    pub(crate) fn relocations(&self, index: usize) -> impl Iterator<Item = Rela> + 'a {
        self.contents(index).chunks_exact(elf::RELA_BYTES).filter_map(Rela::read)
    }

    /// The names that it wants of the kernel.
    pub fn imports(&self) -> impl Iterator<Item = &'a str> + '_ {
        self.symbols()
            .filter(|symbol| symbol.section == elf::SHN_UNDEF && symbol.name != 0)
            .filter_map(|symbol| self.symbol_name(&symbol))
    }
}

fn contents<'a>(file: &'a [u8], section: Option<&Section>) -> Option<&'a [u8]> {
    let section = section?;
    if section.kind == elf::SHT_NOBITS { Some(&[]) } else { piece(file, section.offset, section.bytes) }
}

fn name_of<'a>(names: &'a [u8], section: &Section) -> Option<&'a str> {
    text_at(names, usize::try_from(section.name).ok()?)
}

fn read_sections<'a>(file: &'a [u8], header: &Header) -> Result<ArrayVec<Section, MOST_SECTIONS>, Fault<'a>> {
    if usize::from(header.section_bytes) != elf::SECTION_BYTES {
        return Err(Fault::Malformed("the length of a section's header"));
    }
    if usize::from(header.sections) > MOST_SECTIONS {
        return Err(Fault::TooLarge("its sections are too many"));
    }
    let bytes = u64::from(header.sections) * elf::SECTION_BYTES as u64;
    let table = piece(file, header.sections_offset, bytes)
        .ok_or(Fault::CutOff { what: "the table of sections", bytes: file.len() })?;
    Ok(table.chunks_exact(elf::SECTION_BYTES).filter_map(Section::read).collect())
}

/// What is loaded must be plain: bytes or zeros, not writable and executable at once, aligned to no more
/// than a page, and relocated by one section of relocations at most.
fn check_loaded<'a>(sections: &[Section]) -> Result<(), Fault<'a>> {
    for section in sections.iter().filter(|section| section.is_loaded()) {
        if section.kind == elf::SHT_NOTE {
            continue;
        }
        if !matches!(section.kind, elf::SHT_PROGBITS | elf::SHT_NOBITS) {
            return Err(Fault::Malformed("a loaded section's kind"));
        }
        if section.flags & elf::SHF_WRITE != 0 && section.flags & elf::SHF_EXECINSTR != 0 {
            return Err(Fault::WritableCode);
        }
        if section.flags & elf::SHF_TLS != 0 {
            return Err(Fault::Malformed("a section for each thread"));
        }
        let align = section.align.max(1);
        if !align.is_power_of_two() || align > crate::plan::PAGE_BYTES as u64 {
            return Err(Fault::Malformed("a section's alignment"));
        }
        if section.kind == elf::SHT_NOBITS && section.flags & elf::SHF_WRITE == 0 {
            return Err(Fault::Malformed("zeros that nobody can write"));
        }
    }
    for (index, section) in sections.iter().enumerate().filter(|(_, section)| section.kind == elf::SHT_RELA) {
        let whole = section.bytes.is_multiple_of(elf::RELA_BYTES as u64);
        if section.entry_bytes != elf::RELA_BYTES as u64 || !whole {
            return Err(Fault::Malformed("the length of a relocation"));
        }
        let target = usize::try_from(section.info).ok().and_then(|info| sections.get(info));
        if !target.is_some_and(|target| target.is_loaded() && target.kind == elf::SHT_PROGBITS) {
            return Err(Fault::Malformed("relocations of what is not loaded"));
        }
        let again =
            sections[..index].iter().any(|other| other.kind == elf::SHT_RELA && other.info == section.info);
        if again {
            return Err(Fault::Malformed("a section that is relocated twice"));
        }
    }
    Ok(())
}
