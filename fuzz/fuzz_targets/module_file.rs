//! A module's file, as somebody might have written it who knows how digests and identities are made.
//!
//! The input is what to change in a small module, since noise is found out at the first byte; or the whole file. The
//! digest is put right. Then the file is loaded as a kernel would, into memory of exactly the length that its plan asks for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use modfile::{Exports, Kind, ModuleFile};

#[path = "../../kcore/modfile/tests/common/mod.rs"]
mod common;

fuzz_target!(|input: (Vec<(u16, u64, u8)>, Option<u16>, Vec<u8>)| {
    let (changes, cut, whole) = input;
    let mut file = if whole.is_empty() { common::module("print") } else { whole };
    for (place, value, bytes) in changes {
        let place = usize::from(place) % file.len();
        for (to, from) in file[place..].iter_mut().zip(value.to_le_bytes()).take(usize::from(bytes % 9)) {
            *to = from;
        }
    }
    if let Some(cut) = cut {
        file.truncate(usize::from(cut) % file.len());
    }
    // The table of exports, too, may come from anywhere.
    let _ = Exports::check(&file).map(|exports| exports.find("print"));
    let file = common::sealed(file);
    let table = common::usual_exports();
    let exports = Exports::check(&table).expect("a kernel's own table");
    let Ok(module) = ModuleFile::check(&file, exports.identity()) else { return };
    for offset in [0, 16, file.len(), usize::MAX] {
        let _ = module.function_at(offset);
    }
    let Ok(plan) = module.plan(exports) else { return };
    let mut memory = Kind::ALL.map(|kind| vec![0; plan.bytes(kind)]);
    let _ = plan.place(&common::BASES, &mut memory.each_mut().map(Vec::as_mut_slice));
});
