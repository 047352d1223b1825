//! The `\_S5` object: what to write into SLP_TYP for "soft off" (section 7.4.2).
//!
//! It is AML, but always a literal package, so looking for its encoding replaces an
//! interpreter: NameOp, the name, PackageOp, the package's length and count, and then
//! integers (section 20.2). A match in the middle of something else would have to carry all
//! of these in order; the value is then cut to the register's three bits and can at worst
//! be the wrong one.

use crate::bytes::u8_at;

const NAME_OP: u8 = 0x08;
const PACKAGE_OP: u8 = 0x12;
const ZERO_OP: u8 = 0x00;
const ONE_OP: u8 = 0x01;
const ONES_OP: u8 = 0xff;
const BYTE_PREFIX: u8 = 0x0a;
const WORD_PREFIX: u8 = 0x0b;
const DWORD_PREFIX: u8 = 0x0c;

/// SLP_TYP is three bits wide (table 4.15).
const SLEEP_TYPE_MASK: u8 = 0b111;

/// What to write into the SLP_TYP fields of the two PM1 control registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepType {
    /// For PM1a, or the sleep control register.
    pub a: u8,
    /// For PM1b.
    pub b: u8,
}

/// Finds the object in a table's AML.
pub fn find(aml: &[u8]) -> Option<SleepType> {
    let names = aml.windows(4).enumerate().filter(|(_, name)| *name == b"_S5_");
    names.map(|(at, _)| at).find_map(|at| {
        let before = aml.get(..at)?;
        // Named plainly or from the root.
        let named = before.ends_with(&[NAME_OP]) || before.ends_with(&[NAME_OP, b'\\']);
        if !named {
            return None;
        }
        package(aml.get(at + 4..)?)
    })
}

/// A package's first integer, and its second if it has one.
fn package(aml: &[u8]) -> Option<SleepType> {
    if u8_at(aml, 0)? != PACKAGE_OP {
        return None;
    }
    // PkgLength: the lead byte's top two bits count the bytes that follow it.
    let more = usize::from(u8_at(aml, 1)? >> 6);
    let elements = aml.get(2 + more..)?;
    let (count, elements) = elements.split_first()?;
    if *count == 0 {
        return None;
    }
    let (a, rest) = integer(elements)?;
    let b = if *count > 1 { integer(rest).map_or(a, |(b, _)| b) } else { a };
    Some(SleepType { a: a & SLEEP_TYPE_MASK, b: b & SLEEP_TYPE_MASK })
}

/// An integer's low byte, and what follows it.
fn integer(aml: &[u8]) -> Option<(u8, &[u8])> {
    let bytes = match u8_at(aml, 0)? {
        ZERO_OP => return Some((0, aml.get(1..)?)),
        ONE_OP => return Some((1, aml.get(1..)?)),
        ONES_OP => return Some((0xff, aml.get(1..)?)),
        BYTE_PREFIX => 1,
        WORD_PREFIX => 2,
        DWORD_PREFIX => 4,
        _ => return None,
    };
    Some((u8_at(aml, 1)?, aml.get(1 + bytes..)?))
}
