//! Where everything goes, and the relocations.

use arrayvec::ArrayVec;

use crate::elf::{self, Rela, Section, Symbol};
use crate::file::{ENTRY_NAME, ModuleFile};
use crate::{Exports, Fault};

pub(crate) const PAGE_BYTES: usize = 4096;

/// The most that a module may have of code, of constants, and of data.
const MOST_BYTES: usize = 16 << 20;

/// Relocation kinds (x86-64 supplement, table 4.9).
const R_64: u32 = 1;
const R_PC32: u32 = 2;
const R_PLT32: u32 = 4;
const R_32S: u32 = 11;

/// What a part of a module is, and so how its memory is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read and executed.
    Code,
    /// Read.
    Constants,
    /// Read and written.
    Data,
}

impl Kind {
    /// In the order in which they lie in memory.
    pub const ALL: [Kind; 3] = [Kind::Code, Kind::Constants, Kind::Data];

    fn of(section: &Section) -> Option<Kind> {
        let is_part = section.is_loaded() && section.kind != elf::SHT_NOTE;
        is_part.then_some(if section.flags & elf::SHF_EXECINSTR != 0 {
            Kind::Code
        } else if section.flags & elf::SHF_WRITE != 0 {
            Kind::Data
        } else {
            Kind::Constants
        })
    }
}

/// The address at which each [`Kind`] will run, in the order of [`Kind::ALL`].
pub type Bases = [u64; 3];

/// The memory of each [`Kind`], in the order of [`Kind::ALL`], zeroed.
pub type Memory<'m> = [&'m mut [u8]; 3];

/// A section's place.
#[derive(Clone, Copy, Debug)]
struct Place {
    kind: Kind,
    offset: usize,
    bytes: usize,
}

/// A module's layout. Everything that it imports is exported.
#[derive(Clone, Debug)]
pub struct Plan<'f, 'a> {
    file: &'f ModuleFile<'a>,
    exports: Exports<'f>,
    /// By section number.
    places: ArrayVec<Option<Place>, 32>,
    bytes: [usize; 3],
    /// Within the code.
    entry: usize,
}

impl<'a> ModuleFile<'a> {
    /// Lays the module out, and looks up what it imports.
    pub fn plan<'f>(&'f self, exports: Exports<'f>) -> Result<Plan<'f, 'a>, Fault<'a>> {
        let (places, bytes) = self.lay_out()?;
        let entry = self.entry(&places)?;
        if let Some(name) = self.imports().find(|name| exports.find(name).is_none()) {
            return Err(Fault::NotExported(name));
        }
        Ok(Plan { file: self, exports, places, bytes, entry })
    }

    fn lay_out(&self) -> Result<(ArrayVec<Option<Place>, 32>, [usize; 3]), Fault<'a>> {
        let mut bytes = [0; 3];
        let mut places = ArrayVec::new();
        for section in &self.sections {
            let place = match Kind::of(section) {
                None => None,
                Some(kind) => {
                    let end = &mut bytes[kind as usize];
                    let place = place_behind(kind, *end, section).ok_or(Fault::TooLarge("a section"))?;
                    *end = place.offset + place.bytes;
                    Some(place)
                }
            };
            places.push(place);
        }
        Ok((places, bytes))
    }

    fn entry(&self, places: &[Option<Place>]) -> Result<usize, Fault<'a>> {
        let is_entry = |symbol: &Symbol| {
            symbol.section != elf::SHN_UNDEF && self.symbol_name(symbol) == Some(ENTRY_NAME)
        };
        let symbol = self.symbols().find(is_entry).ok_or(Fault::NoEntry)?;
        let place = places.get(usize::from(symbol.section)).copied().flatten().ok_or(Fault::NoEntry)?;
        let offset = usize::try_from(symbol.value).ok().filter(|&value| value < place.bytes);
        match (place.kind, offset) {
            (Kind::Code, Some(offset)) => Ok(place.offset + offset),
            _ => Err(Fault::NoEntry),
        }
    }

    /// The function that covers byte `offset` of the code, and how far into it that is. Allocates
    /// nothing, and believes nothing: for a panic.
    pub fn function_at(&self, offset: usize) -> Option<(&'a str, usize)> {
        let (places, _) = self.lay_out().ok()?;
        let start_of = |symbol: &Symbol| {
            let place = places.get(usize::from(symbol.section)).copied().flatten()?;
            let start = place.offset.checked_add(usize::try_from(symbol.value).ok()?)?;
            (place.kind == Kind::Code && symbol.is_function()).then_some(start)
        };
        let covering = self.symbols().filter_map(|symbol| {
            let start = start_of(&symbol).filter(|&start| start <= offset)?;
            let within = offset - start;
            (within < usize::try_from(symbol.bytes).ok()?.max(1)).then_some((symbol, within))
        });
        let (symbol, within) = covering.min_by_key(|(_, within)| *within)?;
        Some((self.symbol_name(&symbol)?, within))
    }
}

/// The section's place behind `end`, within the limit.
fn place_behind(kind: Kind, end: usize, section: &Section) -> Option<Place> {
    let offset = end.checked_next_multiple_of(usize::try_from(section.align.max(1)).ok()?)?;
    let bytes = usize::try_from(section.bytes).ok()?;
    (offset.checked_add(bytes)? <= MOST_BYTES).then_some(Place { kind, offset, bytes })
}

impl<'a> Plan<'_, 'a> {
    /// How much memory the module's `kind` takes.
    pub fn bytes(&self, kind: Kind) -> usize {
        self.bytes[kind as usize]
    }

    /// Writes the module into `memory`, which will be seen at `bases`, and gives the address of its
    /// entry. Memory that is too short is [`Fault::TooLarge`].
    pub fn place(&self, bases: &Bases, memory: &mut Memory<'_>) -> Result<u64, Fault<'a>> {
        for (index, place) in self.places.iter().enumerate() {
            let Some(place) = place else { continue };
            let contents = self.file.contents(index);
            let room = memory[place.kind as usize]
                .get_mut(place.offset..place.offset + place.bytes)
                .ok_or(Fault::TooLarge("its memory"))?;
            // Zeros have no contents in the file.
            if !contents.is_empty() {
                room.copy_from_slice(contents);
            }
        }
        for (index, section) in self.file.sections.iter().enumerate() {
            if section.kind == elf::SHT_RELA {
                let target = usize::try_from(section.info).ok();
                let target = target.and_then(|info| self.places.get(info).copied().flatten());
                let target = target.ok_or(Fault::Malformed("relocations of what is not loaded"))?;
                for (number, rela) in self.file.relocations(index).enumerate() {
                    self.relocate(number, &rela, target, bases, memory)?;
                }
            }
        }
        Ok(bases[Kind::Code as usize].wrapping_add(self.entry as u64))
    }

    fn relocate(
        &self,
        number: usize,
        rela: &Rela,
        target: Place,
        bases: &Bases,
        memory: &mut Memory<'_>,
    ) -> Result<(), Fault<'a>> {
        let value = self.symbol_address(number, rela, bases)?.wrapping_add_signed(rela.addend);
        let offset = usize::try_from(rela.offset).ok().filter(|&offset| offset <= target.bytes);
        let misplaced = Fault::RelocationPlace { number, offset: rela.offset };
        let offset = offset.ok_or(misplaced)?;
        let address = bases[target.kind as usize].wrapping_add((target.offset + offset) as u64);
        let overflow = Fault::RelocationOverflow { number };
        let narrow: Option<i32> = match rela.kind {
            R_64 => None,
            R_PC32 | R_PLT32 => {
                let distance = value.wrapping_sub(address).cast_signed();
                Some(i32::try_from(distance).map_err(|_| overflow)?)
            }
            R_32S => Some(i32::try_from(value.cast_signed()).map_err(|_| overflow)?),
            kind => return Err(Fault::RelocationKind { number, kind }),
        };
        let section = memory[target.kind as usize]
            .get_mut(target.offset..target.offset + target.bytes)
            .and_then(|section| section.get_mut(offset..))
            .ok_or(misplaced)?;
        match narrow {
            Some(narrow) => *section.first_chunk_mut().ok_or(misplaced)? = narrow.to_le_bytes(),
            None => *section.first_chunk_mut().ok_or(misplaced)? = value.to_le_bytes(),
        }
        Ok(())
    }

    fn symbol_address(&self, number: usize, rela: &Rela, bases: &Bases) -> Result<u64, Fault<'a>> {
        let missing = Fault::RelocationSymbol { number, symbol: rela.symbol };
        let symbol = self.file.symbol(rela.symbol).ok_or(missing)?;
        if symbol.section == elf::SHN_UNDEF {
            let name = self.file.symbol_name(&symbol).filter(|name| !name.is_empty()).ok_or(missing)?;
            return self.exports.find(name).ok_or(Fault::NotExported(name));
        }
        let place = self.places.get(usize::from(symbol.section)).copied().flatten().ok_or(missing)?;
        // One past the end is where an empty slice may begin.
        let value =
            usize::try_from(symbol.value).ok().filter(|&value| value <= place.bytes).ok_or(missing)?;
        Ok(bases[place.kind as usize].wrapping_add((place.offset + value) as u64))
    }
}
