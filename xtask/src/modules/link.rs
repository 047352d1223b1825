//! The link of a module: everything reachable from its entry, in one relocatable object.
//!
//! A linker's `-r` would do most of it, but not all: lld refuses to collect garbage in a relocatable
//! link, and a module that is all of its libraries would want names that nobody else needs. rustup's
//! toolchain has no linker of its own on the path besides. What is to be done is little, since Rust's
//! objects for this target know seven relocation kinds and no common, thread-local or indirect symbols:
//! follow relocations, lay live sections side by side, resolve what stays within one section.
//!
//! References by way of a global offset table are for objects that may be far away; here nothing is,
//! but the instruction loads an address from memory all the same, so that the module has the words
//! that it loads among its constants.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use anyhow::{Context as _, Result, bail};
use modfile::{ENTRY_NAME, Identity, Kind, NOTE_NAME, Note};
use object::write::{Object, Relocation, SectionId, StandardSegment, Symbol, SymbolId, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, Object as _, ObjectSection as _, RelocationFlags, SectionKind,
    SymbolFlags, SymbolKind, SymbolScope, elf,
};

use super::object_file::{self, ObjectFile, Place};

/// A linked module.
#[derive(Debug)]
pub struct Linked {
    pub file: Vec<u8>,
    /// The names that it wants of the kernel.
    pub imports: BTreeSet<String>,
}

/// One of the input's sections: which object's, and which of its.
type Piece = (usize, usize);

/// A word that holds an address.
const WORD_BYTES: u64 = 8;

/// Links the libraries that are the module's own.
pub fn link(libraries: &[Vec<u8>], identity: &Identity) -> Result<Linked> {
    let mut objects = Vec::new();
    for library in libraries {
        objects.extend(object_file::of_library(library)?);
    }
    link_objects(objects, identity)
}

fn link_objects(objects: Vec<ObjectFile>, identity: &Identity) -> Result<Linked> {
    let input = Input::new(objects);
    let live = input.live()?;
    let mut output = Output::new(identity);
    output.lay_out(&input, &live);
    for &piece in &live {
        output.emit(&input, piece)?;
    }
    output.finish(&input, &live)
}

struct Input {
    objects: Vec<ObjectFile>,
    globals: BTreeMap<String, (Piece, u64)>,
}

/// Where a reference leads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Inside { piece: Piece, offset: u64 },
    Kernel(String),
}

impl Input {
    fn new(objects: Vec<ObjectFile>) -> Input {
        let mut globals = BTreeMap::new();
        for (number, object) in objects.iter().enumerate() {
            for (name, section, offset) in &object.globals {
                // The first definition, as for any linker.
                globals.entry(name.clone()).or_insert(((number, *section), *offset));
            }
        }
        Input { objects, globals }
    }

    fn section(&self, (object, section): Piece) -> &object_file::Section {
        &self.objects[object].sections[section]
    }

    fn target(&self, object: usize, place: &Place) -> Target {
        match place {
            Place::Here { section, offset } => Target::Inside { piece: (object, *section), offset: *offset },
            Place::Named(name) => match self.globals.get(name) {
                Some(&(piece, offset)) => Target::Inside { piece, offset },
                None => Target::Kernel(name.clone()),
            },
        }
    }

    /// The sections that can be reached from the entry, in the order of the input.
    fn live(&self) -> Result<BTreeSet<Piece>> {
        let &(entry, _) =
            self.globals.get(ENTRY_NAME).with_context(|| format!("nothing defines {ENTRY_NAME}"))?;
        let mut live = BTreeSet::from([entry]);
        let mut open = VecDeque::from([entry]);
        while let Some(piece) = open.pop_front() {
            for relocation in &self.section(piece).relocations {
                if let Target::Inside { piece, .. } = self.target(piece.0, &relocation.place)
                    && live.insert(piece)
                {
                    open.push_back(piece);
                }
            }
        }
        Ok(live)
    }
}

/// A section of the output.
struct Part {
    section: SectionId,
    symbol: SymbolId,
    data: Vec<u8>,
    bytes: u64,
    align: u64,
}

struct Output {
    object: Object<'static>,
    /// Code, constants, data, zeros.
    parts: [Part; 4],
    /// Which part, and where in it.
    places: BTreeMap<Piece, (usize, u64)>,
    imports: BTreeMap<String, SymbolId>,
    /// Words among the constants that hold addresses.
    words: BTreeMap<Target, u64>,
}

const CODE: usize = 0;
const CONSTANTS: usize = 1;
const DATA: usize = 2;
const ZEROS: usize = 3;

impl Output {
    fn new(identity: &Identity) -> Output {
        let mut object = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        let segment = object.segment_name(StandardSegment::Data).to_vec();
        let parts = [
            (".text", SectionKind::Text),
            (".rodata", SectionKind::ReadOnlyData),
            (".data", SectionKind::Data),
            (".bss", SectionKind::UninitializedData),
        ]
        .map(|(name, kind)| {
            let section = object.add_section(segment.clone(), name.into(), kind);
            let symbol = object.section_symbol(section);
            Part { section, symbol, data: Vec::new(), bytes: 0, align: 16 }
        });
        let note = object.add_section(segment, NOTE_NAME.into(), SectionKind::Note);
        object.append_section_data(note, &Note::bytes(identity), 4);
        Output { object, parts, places: BTreeMap::new(), imports: BTreeMap::new(), words: BTreeMap::new() }
    }

    /// Gives each live section its place.
    fn lay_out(&mut self, input: &Input, live: &BTreeSet<Piece>) {
        for &piece in live {
            let section = input.section(piece);
            let number = match section.kind {
                Kind::Code => CODE,
                Kind::Constants => CONSTANTS,
                Kind::Data if section.data.is_empty() => ZEROS,
                Kind::Data => DATA,
            };
            let part = &mut self.parts[number];
            let offset = part.bytes.next_multiple_of(section.align);
            part.bytes = offset + section.bytes;
            part.align = part.align.max(section.align);
            self.places.insert(piece, (number, offset));
            if number != ZEROS {
                // Between functions there is what traps.
                let filler = if number == CODE { 0xcc } else { 0 };
                part.data.resize(offset as usize, filler);
                part.data.extend(&section.data);
            }
        }
        let constants = &mut self.parts[CONSTANTS];
        constants.bytes = constants.bytes.next_multiple_of(WORD_BYTES);
        constants.data.resize(constants.bytes as usize, 0);
    }

    /// The symbol of a target, and what to add to it.
    fn symbol(&mut self, target: &Target) -> (SymbolId, u64) {
        match target {
            Target::Inside { piece, offset } => {
                let (part, place) = self.places[piece];
                (self.parts[part].symbol, place + offset)
            }
            Target::Kernel(name) => {
                let object = &mut self.object;
                let symbol = *self.imports.entry(name.clone()).or_insert_with(|| {
                    object.add_symbol(Symbol {
                        name: name.clone().into_bytes(),
                        value: 0,
                        size: 0,
                        kind: SymbolKind::Unknown,
                        scope: SymbolScope::Unknown,
                        weak: false,
                        section: SymbolSection::Undefined,
                        flags: SymbolFlags::None,
                    })
                });
                (symbol, 0)
            }
        }
    }

    /// The place among the constants of a word that holds the address of `target`.
    fn word(&mut self, target: Target) -> Result<u64> {
        if let Some(&place) = self.words.get(&target) {
            return Ok(place);
        }
        let constants = &mut self.parts[CONSTANTS];
        let place = constants.bytes;
        constants.bytes += WORD_BYTES;
        constants.data.resize(constants.bytes as usize, 0);
        let (symbol, add) = self.symbol(&target);
        self.relocation(CONSTANTS, place, symbol, elf::R_X86_64_64, i64::try_from(add)?)?;
        self.words.insert(target, place);
        Ok(place)
    }

    fn relocation(
        &mut self,
        part: usize,
        offset: u64,
        symbol: SymbolId,
        kind: elf::RelocationType,
        addend: i64,
    ) -> Result<()> {
        let flags = RelocationFlags::Elf { r_type: kind };
        let section = self.parts[part].section;
        Ok(self.object.add_relocation(section, Relocation { offset, symbol, addend, flags })?)
    }

    /// The relocations of one section.
    fn emit(&mut self, input: &Input, piece: Piece) -> Result<()> {
        let (part, start) = self.places[&piece];
        for relocation in &input.section(piece).relocations {
            let offset = start + relocation.offset;
            let target = input.target(piece.0, &relocation.place);
            let addend = relocation.addend;
            match elf::RelocationType(relocation.kind) {
                kind @ (elf::R_X86_64_64 | elf::R_X86_64_32S) => {
                    let (symbol, add) = self.symbol(&target);
                    self.relocation(part, offset, symbol, kind, i64::try_from(add)? + addend)?;
                }
                elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 => self.distance(part, offset, &target, addend)?,
                elf::R_X86_64_GOTPCREL | elf::R_X86_64_GOTPCRELX | elf::R_X86_64_REX_GOTPCRELX => {
                    let word = self.word(target)?;
                    let symbol = self.parts[CONSTANTS].symbol;
                    self.relocation(part, offset, symbol, elf::R_X86_64_PC32, i64::try_from(word)? + addend)?;
                }
                kind => bail!("a relocation of kind {}, which modules do not have", kind.0),
            }
        }
        Ok(())
    }

    /// A distance: known now within one part, the loader's business otherwise.
    fn distance(&mut self, part: usize, offset: u64, target: &Target, addend: i64) -> Result<()> {
        if let Target::Inside { piece, offset: within } = target
            && let (same, place) = self.places[piece]
            && same == part
        {
            let distance = i64::try_from(place + within)? + addend - i64::try_from(offset)?;
            let bytes = i32::try_from(distance).context("a module of more than 2 GiB")?.to_le_bytes();
            let at = usize::try_from(offset)?;
            self.parts[part].data[at..at + bytes.len()].copy_from_slice(&bytes);
            return Ok(());
        }
        let (symbol, add) = self.symbol(target);
        self.relocation(part, offset, symbol, elf::R_X86_64_PC32, i64::try_from(add)? + addend)
    }

    /// The symbols and the file.
    fn finish(mut self, input: &Input, live: &BTreeSet<Piece>) -> Result<Linked> {
        for &piece in live {
            let (part, place) = self.places[&piece];
            for (name, offset, bytes) in &input.section(piece).functions {
                let is_entry = name == ENTRY_NAME;
                // Read by people alone: the alternate form leaves the hash out.
                let shown =
                    if is_entry { name.clone() } else { format!("{:#}", rustc_demangle::demangle(name)) };
                self.object.add_symbol(Symbol {
                    name: shown.into_bytes(),
                    value: place + offset,
                    size: *bytes,
                    kind: SymbolKind::Text,
                    scope: if is_entry { SymbolScope::Dynamic } else { SymbolScope::Compilation },
                    weak: false,
                    section: SymbolSection::Section(self.parts[part].section),
                    flags: SymbolFlags::None,
                });
            }
        }
        for (number, part) in self.parts.iter_mut().enumerate() {
            if number == ZEROS {
                self.object.append_section_bss(part.section, part.bytes, part.align);
            } else {
                self.object.set_section_data(part.section, core::mem::take(&mut part.data), part.align);
            }
        }
        let mut file = self.object.write().context("writing a module")?;
        seal(&mut file)?;
        Ok(Linked { file, imports: self.imports.into_keys().collect() })
    }
}

/// Writes the digest of the file into it.
fn seal(file: &mut [u8]) -> Result<()> {
    let parsed = object::File::parse(&*file).context("reading the module again")?;
    let note = parsed.section_by_name(NOTE_NAME).and_then(|section| section.file_range());
    let at = usize::try_from(note.context("the module has lost its note")?.0)? + Note::DIGEST_OFFSET;
    let digest = Note::digest(file, at).context("the note lies outside the module")?;
    file[at..at + digest.len()].copy_from_slice(&digest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use modfile::{Exports, ModuleFile};

    use super::super::exports;
    use super::super::object_file::{Relocation, Section};
    use super::*;

    const IDENTITY: Identity = [3; 32];
    const BASES: [u64; 3] = [0xffff_ffff_c000_0000, 0xffff_ffff_c001_0000, 0xffff_ffff_c002_0000];

    fn section(kind: Kind, bytes: usize, relocations: Vec<Relocation>) -> Section {
        let functions =
            if kind == Kind::Code { vec![("some_function".to_owned(), 0, 8)] } else { Vec::new() };
        Section { kind, data: vec![0x90; bytes], bytes: bytes as u64, align: 8, relocations, functions }
    }

    fn relocation(offset: u64, kind: elf::RelocationType, place: Place, addend: i64) -> Relocation {
        Relocation { offset, kind: kind.0, place, addend }
    }

    fn named(name: &str) -> Place {
        Place::Named(name.to_owned())
    }

    /// The entry calls a function of another object and one of the kernel, and loads an address by way of a table;
    /// what nobody calls wants a name that the kernel must not need to have.
    fn objects() -> Vec<ObjectFile> {
        let mut entry = section(
            Kind::Code,
            32,
            vec![
                relocation(4, elf::R_X86_64_PLT32, named("helper"), -4),
                relocation(12, elf::R_X86_64_PLT32, named("memcpy"), -4),
                relocation(20, elf::R_X86_64_GOTPCREL, named("THE_LOG"), -4),
                relocation(24, elf::R_X86_64_32S, Place::Here { section: 1, offset: 0 }, 2),
            ],
        );
        entry.functions = vec![(ENTRY_NAME.to_owned(), 0, 32)];
        let constants = section(Kind::Constants, 16, Vec::new());
        let unused = section(Kind::Code, 8, vec![relocation(0, elf::R_X86_64_PLT32, named("unwanted"), -4)]);
        let first = ObjectFile {
            sections: vec![entry, constants, unused],
            globals: vec![(ENTRY_NAME.to_owned(), 0, 0), ("nobody_calls_it".to_owned(), 2, 0)],
        };
        let helper = section(Kind::Code, 8, Vec::new());
        let second = ObjectFile { sections: vec![helper], globals: vec![("helper".to_owned(), 0, 4)] };
        vec![first, second]
    }

    #[test]
    fn what_is_linked_is_what_the_node_loads() {
        let linked = link_objects(objects(), &IDENTITY).unwrap();
        assert_eq!(linked.imports, BTreeSet::from(["THE_LOG", "memcpy"].map(str::to_owned)));
        let exports = exports::object(&IDENTITY, &linked.imports).unwrap();
        let exports = object::File::parse(exports.as_slice()).unwrap();
        let table = exports.section_by_name(".nos.exports").unwrap().data().unwrap().to_vec();
        // As the kernel's linker would leave it: here, everything is at the image's first address.
        let mut table = table;
        for record in table[modfile::EXPORTS_HEADER_BYTES..].chunks_mut(modfile::EXPORT_BYTES).take(2) {
            record[..8].copy_from_slice(&0xffff_ffff_8000_0000_u64.to_le_bytes());
        }
        let exports = Exports::check(&table).unwrap();
        let module = ModuleFile::check(&linked.file, &IDENTITY).unwrap();
        let plan = module.plan(exports).unwrap();
        let mut memory = Kind::ALL.map(|kind| vec![0; plan.bytes(kind)]);
        let entry = plan.place(&BASES, &mut memory.each_mut().map(Vec::as_mut_slice)).unwrap();
        assert_eq!(entry, BASES[0]);
        let [code, constants, _] = memory;
        // 32 bytes of the entry, 8 of the helper; what nobody calls is not there.
        assert_eq!(code.len(), 40);
        let word = |at: usize| i32::from_le_bytes(code[at..at + 4].try_into().unwrap());
        assert_eq!(word(4), 32 + 4 - 4 - 4, "the call of the helper");
        assert_eq!(word(12), -0x4000_0000 - 12 - 4, "the call of the kernel");
        let word_address = (BASES[0] + 20 + 4).wrapping_add_signed(i64::from(word(20)));
        let at = usize::try_from(word_address - BASES[1]).unwrap();
        assert_eq!(
            constants[at..at + 8],
            0xffff_ffff_8000_0000_u64.to_le_bytes(),
            "the word with the address"
        );
        assert_eq!(word(24), (BASES[1] + 2) as u32 as i32, "the address of the constants");
        assert_eq!(module.function_at(3), Some((ENTRY_NAME, 3)));
        assert_eq!(module.function_at(33), Some(("some_function", 1)));
    }

    #[test]
    fn a_relocation_that_no_module_has_is_refused() {
        let mut objects = objects();
        objects[0].sections[0].relocations.push(relocation(0, elf::R_X86_64_TPOFF32, named("x"), 0));
        assert!(link_objects(objects, &IDENTITY).unwrap_err().to_string().contains("of kind 23"));
        assert!(link_objects(Vec::new(), &IDENTITY).unwrap_err().to_string().contains(ENTRY_NAME));
    }
}
