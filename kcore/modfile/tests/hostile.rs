//! Files that lie: whatever a module's file says, digest and all, the answer is a fault or a module within the memory
//! that it was given, and never a panic.

mod common;

use std::collections::BTreeMap;

use common::{BASES, THIS, exports, module, sealed, usual_exports};
use modfile::{ENTRY_NAME, Exports, Fault, Kind, ModuleFile};
use proptest::prelude::*;

/// Everything that a kernel does with a file. The memory is exactly as much as the plan asks for.
fn load<'a>(file: &'a [u8], table: &[u8]) -> Result<(u64, [Vec<u8>; 3]), Fault<'a>> {
    let exports = Exports::check(table).expect("a kernel's own table");
    let module = ModuleFile::check(file, exports.identity())?;
    for offset in [0, 16, 40, 1 << 20, usize::MAX] {
        let _ = module.function_at(offset);
    }
    let plan = module.plan(exports)?;
    let mut memory = Kind::ALL.map(|kind| vec![0; plan.bytes(kind)]);
    let entry = plan.place(&BASES, &mut memory.each_mut().map(Vec::as_mut_slice))?;
    Ok((entry, memory))
}

#[test]
fn a_module_is_placed_and_relocated() {
    let file = module("print");
    let (entry, [code, constants, data]) = load(&file, &usual_exports()).unwrap();
    assert_eq!(entry, BASES[0] + 16);
    let word = |bytes: &[u8], at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let long = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let distance = |to: u64, from: u64| i32::try_from(to.wrapping_sub(from).cast_signed()).unwrap();
    assert_eq!(word(&code, 20), distance(0xffff_ffff_8020_2000 - 4, BASES[0] + 20));
    assert_eq!(word(&code, 28), distance(BASES[1] + 4, BASES[0] + 28));
    assert_eq!(word(&code, 36), (BASES[1] + 8) as u32 as i32);
    assert_eq!(long(&constants, 8), BASES[0] + 32);
    assert_eq!(long(&data, 0), BASES[1] + 8);
    assert!(data.len() >= 64 + 100 && data[64..].iter().all(|&byte| byte == 0));
    let module = ModuleFile::check(&file, &THIS).unwrap();
    assert_eq!(module.function_at(16), Some((ENTRY_NAME, 0)));
    assert_eq!(module.function_at(40), Some(("helper", 8)));
    assert_eq!(module.function_at(60), None);
    assert_eq!(module.imports().collect::<Vec<_>>(), ["print"]);
}

#[test]
fn what_is_wrong_is_named() {
    let table = usual_exports();
    let good = module("print");
    let unexported = module("system");
    assert_eq!(load(&unexported, &table), Err(Fault::NotExported("system")));
    let mut flipped = good.clone();
    let last = flipped.len() - 1;
    flipped[last] ^= 1;
    assert_eq!(load(&flipped, &table), Err(Fault::Damaged));
    let other = ModuleFile::check(&good, &[1; 32]).map(|_| ());
    assert_eq!(other, Err(Fault::OtherKernel { built_for: THIS, this: [1; 32] }));
    assert!(matches!(load(&good[..good.len() - 1], &table), Err(Fault::CutOff { .. })));
    assert_eq!(load(b"\x7fELF", &table), Err(Fault::NotAModule));
    // A loaded section that may be written and executed: sh_flags of the code.
    let headers = usize::try_from(u64::from_le_bytes(good[40..48].try_into().unwrap())).unwrap();
    let mut writable = good.clone();
    writable[headers + 64 + 8] |= 1;
    assert_eq!(load(&sealed(writable), &table), Err(Fault::WritableCode));
}

#[test]
fn far_targets_overflow() {
    let table = exports(&BTreeMap::from([("print", 0x4000_0000_0000)]));
    assert_eq!(load(&module("print"), &table), Err(Fault::RelocationOverflow { number: 0 }));
}

#[test]
fn a_table_that_is_none_offers_nothing() {
    assert!(Exports::check(&[]).is_err());
    let table = usual_exports();
    for length in 0..table.len() {
        assert!(Exports::check(&table[..length]).is_err(), "{length} bytes");
    }
    assert_eq!(Exports::check(&table).unwrap().find("print"), Some(0xffff_ffff_8020_2000));
    assert_eq!(Exports::check(&table).unwrap().find("prin"), None);
}

proptest! {
    /// Numbers changed anywhere, the digest made right again.
    #[test]
    fn a_lie_is_a_fault_or_a_module(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = module("print");
        for (place, value) in changes {
            let place = place.index(file.len());
            file[place] = value;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        let file = sealed(file);
        let _ = load(&file, &usual_exports());
    }

    /// The numbers that lie most easily: those of headers, symbols and relocations, with values at the edges.
    #[test]
    fn a_lie_at_an_edge_is_a_fault_or_a_module(
        place in any::<prop::sample::Index>(),
        value in prop::sample::select(vec![0, 1, 0x7f, 0xff, 0xfff, 1 << 31, u64::MAX >> 1, u64::MAX - 7, u64::MAX]),
        width in prop::sample::select(vec![2_usize, 4, 8]),
    ) {
        let mut file = module("print");
        let place = place.index(file.len() / width) * width;
        if let Some(room) = file.get_mut(place..place + width) {
            room.copy_from_slice(&value.to_le_bytes()[..width]);
        }
        let file = sealed(file);
        let _ = load(&file, &usual_exports());
    }

    #[test]
    fn noise_is_no_module(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(load(&noise, &usual_exports()).is_err());
        let _ = Exports::check(&noise).map(|exports| exports.find("print"));
    }

    /// Without a new digest, any change at all is found.
    #[test]
    fn no_damage_goes_unseen(place in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let mut file = module("print");
        let place = place.index(file.len());
        file[place] ^= 1 << bit;
        prop_assert!(load(&file, &usual_exports()).is_err());
    }
}
