use super::*;

#[test]
fn unknown_registers_are_refused_both_ways() {
    let mut msrs = ModelSpecific::new();
    for index in [0, 0x2, 0x345, 0xc001_0299, 0xdead_beef, u32::MAX] {
        assert_eq!(msrs.read(index, true), Err(Refused), "{index:#x}");
        assert_eq!(msrs.write(index, 0, true), Err(Refused), "{index:#x}");
    }
}

#[test]
fn amds_registers_are_amds() {
    let msrs = ModelSpecific::new();
    for index in [index::SYS_CFG, index::HARDWARE_CONFIGURATION, index::VM_CR, index::DECODE_CONFIGURATION] {
        assert!(msrs.read(index, true).is_ok());
        assert_eq!(msrs.read(index, false), Err(Refused));
    }
    assert_eq!(msrs.read(index::VM_CR, true), Ok(0x18), "SVM is off and stays off");
}

#[test]
fn memory_types_are_checked_and_kept() {
    let mut msrs = ModelSpecific::new();
    assert_eq!(msrs.read(index::MTRR_CAP, true), Ok(0x508));
    assert_eq!(msrs.read(index::MTRR_FIX_4K_LAST, true), Ok(0x0606_0606_0606_0606));
    msrs.write(index::MTRR_FIX_64K, 0x0606_0606_0606_0600, true).unwrap();
    assert_eq!(msrs.read(index::MTRR_FIX_64K, true), Ok(0x0606_0606_0606_0600));
    assert_eq!(msrs.write(index::MTRR_FIX_64K, 2, true), Err(Refused));
    assert_eq!(msrs.write(index::MTRR_DEF_TYPE, 3, true), Err(Refused));
    assert_eq!(msrs.write(index::MTRR_DEF_TYPE, 1 << 9, true), Err(Refused));
    msrs.write(index::MTRR_PHYS_FIRST, 0xc000_0000, true).unwrap();
    msrs.write(index::MTRR_PHYS_FIRST + 1, 0xf_c000_0800, true).unwrap();
    assert_eq!(msrs.read(index::MTRR_PHYS_FIRST + 1, true), Ok(0xf_c000_0800));
    assert_eq!(msrs.write(index::MTRR_PHYS_FIRST, 0xc000_0002, true), Err(Refused));
    assert_eq!(msrs.write(index::MTRR_PHYS_FIRST + 1, 0x100, true), Err(Refused));
    assert_eq!(msrs.read(index::MTRR_PHYS_LAST + 1, true), Err(Refused));
    assert!(pat_is_legal(0x0007_0406_0007_0406) && !pat_is_legal(2));
}

#[test]
fn what_linux_sets_on_amd_is_taken() {
    let mut msrs = ModelSpecific::new();
    msrs.write(index::DECODE_CONFIGURATION, 0, true).unwrap();
    assert_eq!(msrs.read(index::DECODE_CONFIGURATION, true), Ok(2), "LFENCE stays serializing");
    msrs.write(index::HARDWARE_CONFIGURATION, 1 << 6 | 1 << 8, true).unwrap();
    let hwcr = msrs.read(index::HARDWARE_CONFIGURATION, true).unwrap();
    assert_eq!((hwcr & 1 << 8, hwcr & 1 << 24), (1 << 8, 1 << 24));
    msrs.write(index::UPDATE_SIGNATURE, 0, true).unwrap();
    assert_eq!(msrs.read(index::UPDATE_SIGNATURE, true), Ok(MICROCODE_REVISION));
    assert_eq!(msrs.write(index::UPDATE_SIGNATURE, 1, true), Err(Refused));
    assert_eq!(msrs.write(index::MTRR_CAP, 0, true), Err(Refused));
}
