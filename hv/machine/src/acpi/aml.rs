//! An assembler for the little AML that the machine's DSDT needs (ACPI 6.4 ch. 20).
//!
//! Terms are byte vectors, built from the inside out, because a package's length stands before
//! its contents.

use alloc::vec::Vec;

/// A finished term.
pub type Term = Vec<u8>;

/// PkgLength (sec. 20.2.4) and what follows it; the length counts its own bytes.
fn with_length(opcode: &[u8], contents: &[u8]) -> Term {
    let mut term = opcode.to_vec();
    let bytes = contents.len();
    // One byte holds up to 63; two, three and four hold 12, 20 and 28 bits.
    if bytes < 0x3f {
        term.push(bytes as u8 + 1);
    } else {
        let extra = if bytes + 2 < 1 << 12 {
            1
        } else if bytes + 3 < 1 << 20 {
            2
        } else {
            3
        };
        let total = bytes + extra + 1;
        term.push((extra << 6) as u8 | (total & 0xf) as u8);
        for index in 0..extra {
            term.push((total >> (4 + 8 * index) & 0xff) as u8);
        }
    }
    term.extend_from_slice(contents);
    term
}

fn concat(parts: &[Term]) -> Term {
    parts.concat()
}

/// A name of up to four characters, padded; a leading backslash names the root.
pub fn name_string(name: &str) -> Term {
    let (root, segment) = match name.strip_prefix('\\') {
        Some(rest) => (true, rest),
        None => (false, name),
    };
    let mut term = Vec::new();
    if root {
        term.push(b'\\');
    }
    let mut padded = *b"____";
    for (place, character) in padded.iter_mut().zip(segment.bytes()) {
        *place = character;
    }
    term.extend_from_slice(&padded);
    term
}

pub fn integer(value: u32) -> Term {
    let bytes = value.to_le_bytes();
    match value {
        0 => [0x00].to_vec(),
        1 => [0x01].to_vec(),
        2..=0xff => [0x0a, bytes[0]].to_vec(),
        0x100..=0xffff => [0x0b, bytes[0], bytes[1]].to_vec(),
        _ => [0x0c, bytes[0], bytes[1], bytes[2], bytes[3]].to_vec(),
    }
}

/// "PNP0A03" and its like, compressed to 32 bits (sec. 19.3.4).
pub fn eisa_id(id: &[u8; 7]) -> Term {
    let letter = |at: usize| u32::from(id[at].wrapping_sub(b'@') & 0x1f);
    let digit = |at: usize| char::from(id[at]).to_digit(16).unwrap_or(0);
    let number = digit(3) << 12 | digit(4) << 8 | digit(5) << 4 | digit(6);
    let packed = (letter(0) << 10 | letter(1) << 5 | letter(2)) << 16 | number;
    let bytes = packed.to_be_bytes();
    [0x0c, bytes[0], bytes[1], bytes[2], bytes[3]].to_vec()
}

pub fn scope(name: &str, contents: &[Term]) -> Term {
    with_length(&[0x10], &[name_string(name), concat(contents)].concat())
}

pub fn device(name: &str, contents: &[Term]) -> Term {
    with_length(&[0x5b, 0x82], &[name_string(name), concat(contents)].concat())
}

/// Name (name, value).
pub fn name(name: &str, value: Term) -> Term {
    [[0x08].to_vec(), name_string(name), value].concat()
}

pub fn package(elements: &[Term]) -> Term {
    let mut contents = [elements.len() as u8].to_vec();
    contents.extend(concat(elements));
    with_length(&[0x12], &contents)
}

pub fn buffer(bytes: &[u8]) -> Term {
    with_length(&[0x11], &[integer(bytes.len() as u32), bytes.to_vec()].concat())
}

pub fn method(name: &str, arguments: u8, statements: &[Term]) -> Term {
    with_length(&[0x14], &[name_string(name), [arguments & 7].to_vec(), concat(statements)].concat())
}

/// Store (argument 0, name).
pub fn store_argument(target: &str) -> Term {
    [[0x70, 0x68].to_vec(), name_string(target)].concat()
}

/// If (name) { ... }
pub fn if_set(condition: &str, statements: &[Term]) -> Term {
    with_length(&[0xa0], &[name_string(condition), concat(statements)].concat())
}

pub fn return_value(value: Term) -> Term {
    [[0xa4].to_vec(), value].concat()
}

/// Resource descriptors (sec. 6.4), to be put together by [`resources`].
pub mod resource {
    use super::Term;

    /// A fixed run of ports.
    pub fn ports(first: u16, count: u8) -> Term {
        let [low, high] = first.to_le_bytes();
        [0x47, 0x01, low, high, low, high, 0x01, count].to_vec()
    }

    /// An edge-triggered ISA interrupt.
    pub fn interrupt(line: u8) -> Term {
        let [low, high] = (1u16 << line).to_le_bytes();
        [0x22, low, high].to_vec()
    }

    fn word_space(kind: u8, kind_flags: u8, first: u16, last: u16) -> Term {
        // Producer, both ends fixed.
        let mut term = [0x88, 0x0d, 0x00, kind, 0x0c, kind_flags].to_vec();
        let length = (last - first).wrapping_add(1);
        for field in [0, first, last, 0, length] {
            term.extend_from_slice(&field.to_le_bytes());
        }
        term
    }

    pub fn bus_numbers(first: u16, last: u16) -> Term {
        word_space(2, 0, first, last)
    }

    /// Ports that a bridge forwards; not all 65,536 at once, whose length a word cannot say.
    pub fn port_window(first: u16, last: u16) -> Term {
        word_space(1, 3, first, last)
    }

    /// Memory below 4 GiB that a bridge forwards: read-write, not cacheable.
    pub fn memory_window(first: u32, last: u32) -> Term {
        let mut term = [0x87, 0x17, 0x00, 0x00, 0x0c, 0x01].to_vec();
        for field in [0, first, last, 0, (last - first).wrapping_add(1)] {
            term.extend_from_slice(&field.to_le_bytes());
        }
        term
    }
}

/// ResourceTemplate.
pub fn resources(descriptors: &[Term]) -> Term {
    let mut bytes = concat(descriptors);
    // End tag; checksum 0 means "not computed".
    bytes.extend_from_slice(&[0x79, 0x00]);
    buffer(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_themselves() {
        assert_eq!(with_length(&[0x10], &[0; 10])[..2], [0x10, 11]);
        let long = with_length(&[0x10], &[0; 0x3f]);
        assert_eq!(long[1..3], [0x41, 0x04]);
        assert_eq!(long.len(), 0x41 + 1);
        let longer = with_length(&[0x10], &[0; 5000]);
        assert_eq!(longer[1] >> 6, 2);
        let total = usize::from(longer[1] & 0xf) | usize::from(longer[2]) << 4 | usize::from(longer[3]) << 12;
        assert_eq!(total, longer.len() - 1);
    }

    #[test]
    fn identifiers_are_compressed() {
        assert_eq!(eisa_id(b"PNP0A03"), [0x0c, 0x41, 0xd0, 0x0a, 0x03]);
        assert_eq!(eisa_id(b"PNP0501"), [0x0c, 0x41, 0xd0, 0x05, 0x01]);
    }

    #[test]
    fn integers_take_the_shortest_form() {
        assert_eq!(integer(0), [0]);
        assert_eq!(integer(5), [0x0a, 5]);
        assert_eq!(integer(0x1234), [0x0b, 0x34, 0x12]);
        assert_eq!(integer(0x1_0000), [0x0c, 0, 0, 1, 0]);
    }

    #[test]
    fn names_are_padded() {
        assert_eq!(name_string("\\_S5"), b"\\_S5_");
        assert_eq!(name_string("_SB"), b"_SB_");
    }
}
