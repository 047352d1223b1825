//! The object files in a library: their sections, and what those refer to.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use modfile::Kind;
use object::read::archive::ArchiveFile;
use object::{
    Object as _, ObjectSection as _, ObjectSymbol as _, RelocationFlags, RelocationTarget, SectionFlags,
    SectionKind, SymbolIndex, elf,
};

/// What a relocation or a symbol refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A section of this file, by its number among [`ObjectFile::sections`], and a byte of it.
    Here { section: usize, offset: u64 },
    /// Whatever defines this name.
    Named(String),
}

#[derive(Debug, Clone)]
pub struct Relocation {
    pub offset: u64,
    pub kind: u32,
    pub place: Place,
    pub addend: i64,
}

/// A section that is loaded.
#[derive(Debug, Clone)]
pub struct Section {
    pub kind: Kind,
    /// Empty for zeros.
    pub data: Vec<u8>,
    pub bytes: u64,
    pub align: u64,
    pub relocations: Vec<Relocation>,
    /// Functions that begin here: name, offset, length.
    pub functions: Vec<(String, u64, u64)>,
}

/// An object file as far as a link needs it.
#[derive(Debug, Clone)]
pub struct ObjectFile {
    pub sections: Vec<Section>,
    /// Names that it defines for others.
    pub globals: Vec<(String, usize, u64)>,
}

/// The object files of a Rust library.
pub fn of_library(library: &[u8]) -> Result<Vec<ObjectFile>> {
    let archive = ArchiveFile::parse(library).context("reading a library")?;
    let mut files = Vec::new();
    for member in archive.members() {
        let member = member.context("reading a library")?;
        let name = String::from_utf8_lossy(member.name()).into_owned();
        // The other member is the compiler's own, lib.rmeta.
        if name.ends_with(".o") {
            let data = member.data(library).with_context(|| format!("reading {name}"))?;
            files.push(read(data).with_context(|| format!("reading {name}"))?);
        }
    }
    Ok(files)
}

fn read(data: &[u8]) -> Result<ObjectFile> {
    let file = object::File::parse(data)?;
    let mut sections = Vec::new();
    // By the file's own numbers.
    let mut numbers = BTreeMap::new();
    for section in file.sections() {
        if let Some(kind) = kind_of(&section)? {
            numbers.insert(section.index().0, sections.len());
            let is_zeros = section.kind() == SectionKind::UninitializedData;
            sections.push(Section {
                kind,
                data: if is_zeros { Vec::new() } else { section.uncompressed_data()?.into_owned() },
                bytes: section.size(),
                align: section.align().max(1),
                relocations: Vec::new(),
                functions: Vec::new(),
            });
        }
    }
    let place_of = |index: SymbolIndex| -> Result<Place> {
        let symbol = file.symbol_by_index(index)?;
        match symbol.section_index() {
            None => Ok(Place::Named(symbol.name()?.to_owned())),
            // Weak ones may be another's, so that they go by their names, too.
            Some(_) if symbol.is_global() => Ok(Place::Named(symbol.name()?.to_owned())),
            Some(section) => {
                let section = *numbers.get(&section.0).context("a symbol in a section that is not loaded")?;
                Ok(Place::Here { section, offset: symbol.address() })
            }
        }
    };
    for section in file.sections() {
        let Some(&number) = numbers.get(&section.index().0) else { continue };
        for (offset, relocation) in section.relocations() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else {
                bail!("a relocation that is not ELF's");
            };
            let RelocationTarget::Symbol(symbol) = relocation.target() else {
                bail!("a relocation without a symbol");
            };
            let place = place_of(symbol)?;
            let addend = relocation.addend();
            sections[number].relocations.push(Relocation { offset, kind: r_type.0, place, addend });
        }
    }
    let mut globals = Vec::new();
    for symbol in file.symbols().filter(|symbol| symbol.is_definition()) {
        let Some(&number) = symbol.section_index().and_then(|section| numbers.get(&section.0)) else {
            continue;
        };
        let name = symbol.name()?.to_owned();
        if symbol.kind() == object::SymbolKind::Text {
            sections[number].functions.push((name.clone(), symbol.address(), symbol.size()));
        }
        if symbol.is_global() {
            globals.push((name, number, symbol.address()));
        }
    }
    Ok(ObjectFile { sections, globals })
}

/// What a section is to a module; `None` if it is not loaded.
fn kind_of<'d>(section: &impl object::ObjectSection<'d>) -> Result<Option<Kind>> {
    let SectionFlags::Elf { sh_flags, .. } = section.flags() else { bail!("a section that is not ELF's") };
    let has = |flag: elf::SectionFlags| sh_flags.0 & flag.0 != 0;
    if !has(elf::SHF_ALLOC) {
        return Ok(None);
    }
    let name = section.name()?;
    // Nothing unwinds: a panic ends the node.
    if name.starts_with(".eh_frame") || name.starts_with(".note") {
        return Ok(None);
    }
    // Constants with addresses in them are writable only while they are relocated.
    let is_data = has(elf::SHF_WRITE) && !name.starts_with(".data.rel.ro");
    Ok(Some(if has(elf::SHF_EXECINSTR) {
        Kind::Code
    } else if is_data {
        Kind::Data
    } else {
        Kind::Constants
    }))
}
