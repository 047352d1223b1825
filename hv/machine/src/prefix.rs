//! Lengths of the few instructions whose interception a processor reports without
//! saying how long they are.
//!
//! SVM without NRIP save (emulators, early processors) leaves the hypervisor to find
//! the next instruction. Each of these has a fixed opcode, but the architecture lets
//! any number of prefixes stand before it (APM vol. 3 sec. 1.2), and Linux pads
//! instructions that way (`ds wrmsr`), so the fixed length alone would be wrong.

use crate::backend::{CodeBits, Gpr, SegmentName};

/// What stands before an opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefixes {
    /// Bytes of prefixes, REX among them.
    pub count: usize,
    /// The REX byte if the last prefix is one, else 0.
    pub rex: u8,
    pub segment: Option<SegmentName>,
    /// 0x67.
    pub address_size: bool,
    /// 0xf2 or 0xf3.
    pub repeat: bool,
}

impl Prefixes {
    /// Reads the prefixes at the front of `bytes`.
    pub fn scan(bytes: &[u8], code: CodeBits) -> Prefixes {
        let mut found = Prefixes::default();
        for &byte in bytes {
            match byte {
                0x26 => found.segment = Some(SegmentName::Es),
                0x2e => found.segment = Some(SegmentName::Cs),
                0x36 => found.segment = Some(SegmentName::Ss),
                0x3e => found.segment = Some(SegmentName::Ds),
                0x64 => found.segment = Some(SegmentName::Fs),
                0x65 => found.segment = Some(SegmentName::Gs),
                0x67 => found.address_size = true,
                0xf2 | 0xf3 => found.repeat = true,
                0x66 | 0xf0 => {}
                0x40..=0x4f if code == CodeBits::SixtyFour => {
                    found.rex = byte;
                    found.count += 1;
                    continue;
                }
                _ => break,
            }
            // A REX byte counts only right before the opcode.
            found.rex = 0;
            found.count += 1;
        }
        found
    }
}

/// The length of the instruction at the front of `bytes` if it is `opcode` behind any
/// prefixes.
pub fn length_of(bytes: &[u8], code: CodeBits, opcode: &[u8]) -> Option<u8> {
    let prefixes = Prefixes::scan(bytes, code);
    let rest = bytes.get(prefixes.count..)?;
    rest.starts_with(opcode).then(|| (prefixes.count + opcode.len()) as u8)
}

/// The source register and the length of a MOV to CR8 (0F 22 /r with REX.R, or with
/// the LOCK prefix outside 64-bit code: APM vol. 3, "MOV CRn"); `None` if it is
/// another instruction.
pub fn move_to_cr8(bytes: &[u8], code: CodeBits) -> Option<(Gpr, u8)> {
    let prefixes = Prefixes::scan(bytes, code);
    let &[0x0f, 0x22, modrm] = bytes.get(prefixes.count..prefixes.count + 3)? else { return None };
    let source = (modrm & 7) | (prefixes.rex & 1) << 3;
    Some((Gpr::from_encoding(source), (prefixes.count + 3) as u8))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WRMSR: &[u8] = &[0x0f, 0x30];

    #[test]
    fn prefixes_count() {
        assert_eq!(length_of(&[0x0f, 0x30, 0x90], CodeBits::SixtyFour, WRMSR), Some(2));
        assert_eq!(length_of(&[0x3e, 0x0f, 0x30], CodeBits::SixtyFour, WRMSR), Some(3));
        assert_eq!(length_of(&[0x66, 0x48, 0x0f, 0x30], CodeBits::SixtyFour, WRMSR), Some(4));
        // 0x48 is DEC EAX outside 64-bit code.
        assert_eq!(length_of(&[0x48, 0x0f, 0x30], CodeBits::ThirtyTwo, WRMSR), None);
        assert_eq!(length_of(&[0x0f], CodeBits::SixtyFour, WRMSR), None);
        assert_eq!(length_of(&[], CodeBits::SixtyFour, WRMSR), None);
    }

    #[test]
    fn a_rex_byte_before_another_prefix_is_void() {
        let prefixes = Prefixes::scan(&[0x48, 0x65, 0x6e], CodeBits::SixtyFour);
        assert_eq!(prefixes.count, 2);
        assert_eq!(prefixes.rex, 0);
        assert_eq!(prefixes.segment, Some(SegmentName::Gs));
    }

    #[test]
    fn cr8_writes() {
        // mov cr8, rax; mov cr8, r10
        assert_eq!(move_to_cr8(&[0x44, 0x0f, 0x22, 0xc0], CodeBits::SixtyFour), Some((Gpr::RAX, 4)));
        assert_eq!(
            move_to_cr8(&[0x45, 0x0f, 0x22, 0xc2], CodeBits::SixtyFour),
            Some((Gpr::from_encoding(10), 4))
        );
        assert_eq!(move_to_cr8(&[0x44, 0x0f, 0x20, 0xc0], CodeBits::SixtyFour), None);
        assert_eq!(move_to_cr8(&[0x44, 0x0f], CodeBits::SixtyFour), None);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
            for code in [CodeBits::Sixteen, CodeBits::ThirtyTwo, CodeBits::SixtyFour] {
                let prefixes = Prefixes::scan(&bytes, code);
                prop_assert!(prefixes.count <= bytes.len());
                if let Some(length) = length_of(&bytes, code, WRMSR) {
                    prop_assert!(usize::from(length) <= bytes.len());
                }
                let _ = move_to_cr8(&bytes, code);
            }
        }
    }
}
