//! A small machine's tables, built here, read back, and then damaged.

use super::*;
use crate::bytes::fake::FakeMemory;
use proptest::prelude::*;

const BASE: u64 = 0xe_0000;
const SIZE: usize = 0x2_0000;
const RSDP: u64 = BASE + 0x40;
const XSDT: u64 = BASE + 0x100;
const MADT: u64 = BASE + 0x200;
const FADT: u64 = BASE + 0x400;
const DSDT: u64 = BASE + 0x600;
const HPET: u64 = BASE + 0x800;
const MCFG: u64 = BASE + 0x900;
const RSDT: u64 = BASE + 0xa00;

fn fix_checksum(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[at] = sum.wrapping_neg();
}

fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = signature.to_vec();
    bytes.extend(u32::to_le_bytes((table::HEADER_BYTES + body.len()) as u32));
    bytes.resize(table::HEADER_BYTES, 0);
    bytes.extend(body);
    fix_checksum(&mut bytes, 9);
    bytes
}

fn madt() -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(u32::to_le_bytes(0xfee0_0000));
    body.extend(u32::to_le_bytes(1));
    for (id, flags) in [(0, 1), (1, 1), (2, 0), (1, 1), (255, 1)] {
        body.extend([0, 8, id, id, flags, 0, 0, 0]);
    }
    body.extend([9, 16, 0, 0, 0x2c, 1, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0]);
    body.extend([1, 12, 8, 0, 0, 0, 0xc0, 0xfe, 0, 0, 0, 0]);
    body.extend([2, 10, 0, 0, 2, 0, 0, 0, 0, 0]);
    body.extend([2, 10, 0, 9, 9, 0, 0, 0, 0b1111, 0]);
    body.extend([4, 6, 255, 0, 0, 1]);
    table(b"APIC", &body)
}

fn fadt() -> Vec<u8> {
    let mut bytes = vec![0; 276];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(40, &u32::to_le_bytes(DSDT as u32));
    put(48, &u32::to_le_bytes(0xb2));
    put(52, &[2]);
    put(64, &u32::to_le_bytes(0x604));
    put(76, &u32::to_le_bytes(0x608));
    put(112, &u32::to_le_bytes(1 << 10 | 1 << 8));
    put(116, &[1, 8, 0, 1, 0xf9, 0x0c, 0, 0, 0, 0, 0, 0]);
    put(128, &[0x0f]);
    put(208, &[1, 32, 0, 3, 0x08, 0x06, 0, 0, 0, 0, 0, 0]);
    table(b"FACP", &bytes[table::HEADER_BYTES..])
}

fn dsdt() -> Vec<u8> {
    let mut body = b"\x10\x20_SB_ and _S5_ in a string, then ".to_vec();
    body.extend(b"\x08_S5_\x12\x06\x04\x0a\x05\x01\x00\x00");
    table(b"DSDT", &body)
}

fn machine() -> FakeMemory {
    let mut memory = FakeMemory::new(BASE, SIZE);
    let mut xsdt = Vec::new();
    let mut rsdt = Vec::new();
    for address in [MADT, FADT, HPET, MCFG] {
        xsdt.extend(u64::to_le_bytes(address));
        rsdt.extend(u32::to_le_bytes(address as u32));
    }
    let mut hpet = u32::to_le_bytes(0x8086_a201).to_vec();
    hpet.extend([0, 64, 0, 0, 0, 0, 0xd0, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut mcfg = vec![0; 8];
    mcfg.extend([0, 0, 0, 0xb0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0]);
    mcfg.extend([0, 0, 0, 0xb0, 0, 0, 0, 0, 0, 0, 9, 3, 0, 0, 0, 0]);

    memory.put(XSDT, &table(b"XSDT", &xsdt));
    memory.put(RSDT, &table(b"RSDT", &rsdt));
    memory.put(MADT, &madt());
    memory.put(FADT, &fadt());
    memory.put(DSDT, &dsdt());
    memory.put(HPET, &table(b"HPET", &hpet));
    memory.put(MCFG, &table(b"MCFG", &mcfg));

    let mut rsdp = b"RSD PTR \0NOSNOS\x02".to_vec();
    rsdp.extend(u32::to_le_bytes(RSDT as u32));
    rsdp.extend(u32::to_le_bytes(36));
    rsdp.extend(u64::to_le_bytes(XSDT));
    rsdp.extend([0; 4]);
    fix_checksum(&mut rsdp[..20], 8);
    fix_checksum(&mut rsdp, 32);
    memory.put(RSDP, &rsdp);
    memory
}

fn assert_is_the_machine(info: &AcpiInfo) {
    assert_eq!(info.cpus.as_slice(), [0, 1, 0x12c]);
    assert_eq!(info.local_apic, Some(PhysAddr(0xfee0_0000)));
    assert!(info.has_legacy_pics);
    let io_apic = IoApic { id: 8, address: PhysAddr(0xfec0_0000), gsi_base: 0 };
    assert_eq!(info.io_apics.as_slice(), [io_apic]);
    let (high, low) = (Polarity::ActiveHigh, Polarity::ActiveLow);
    let timer = InterruptOverride { irq: 0, gsi: 2, polarity: high, trigger: Trigger::Edge };
    let sci = InterruptOverride { irq: 9, gsi: 9, polarity: low, trigger: Trigger::Level };
    assert_eq!(info.overrides.as_slice(), [timer, sci]);
    assert_eq!(info.timer, Some(Timer { register: Register::Io(0x608), bits: 32 }));
    assert_eq!(info.hpet, Some(PhysAddr(0xfed0_0000)));
    let ecam = EcamRegion { base: PhysAddr(0xb000_0000), segment: 0, first_bus: 0, last_bus: 255 };
    assert_eq!(info.ecam.as_slice(), [ecam]);
    assert_eq!(
        info.power,
        PowerControl {
            soft_off: Some(SleepType { a: 5, b: 1 }),
            pm1a_control: Some(Register::Io(0x604)),
            pm1b_control: None,
            sleep_control: None,
            acpi_enable: Some((0xb2, 2)),
            reset: Some(Reset { register: Register::Io(0xcf9), value: 0x0f }),
        }
    );
    assert!(info.rejected.is_empty());
}

#[test]
fn a_small_machine() {
    let memory = machine();
    assert_is_the_machine(&read(&memory, Some(PhysAddr(RSDP))).unwrap());
}

#[test]
fn the_root_pointer_is_found_in_the_bios_area() {
    assert_is_the_machine(&read(&machine(), None).unwrap());
    let mut nothing = machine();
    nothing.put(RSDP, b"RSD");
    nothing.put(RSDP + 3, b"-");
    assert_eq!(read(&nothing, None).unwrap_err(), AcpiError::NoRootPointer);
    assert_eq!(read(&nothing, Some(PhysAddr(RSDP))).unwrap_err(), AcpiError::BadRootPointer);
}

#[test]
fn a_damaged_xsdt_falls_back_to_the_rsdt() {
    let mut memory = machine();
    memory.put(XSDT + 40, &[0xee]);
    assert_is_the_machine(&read(&memory, Some(PhysAddr(RSDP))).unwrap());
    memory.put(RSDT + 36, &[0xee]);
    assert_eq!(read(&memory, Some(PhysAddr(RSDP))).unwrap_err(), AcpiError::BadRootTable);
}

#[test]
fn a_damaged_table_is_left_out_and_named() {
    let mut memory = machine();
    memory.put(MADT + 50, &[0xee]);
    memory.put(DSDT + 40, &[0xee]);
    let info = read(&memory, Some(PhysAddr(RSDP))).unwrap();
    assert!(info.cpus.is_empty());
    assert_eq!(info.power.soft_off, None);
    assert_eq!(info.hpet, Some(PhysAddr(0xfed0_0000)));
    assert_eq!(info.rejected.as_slice(), [*b"APIC", *b"DSDT"]);
}

#[test]
fn soft_off_is_found_in_every_encoding() {
    let find = |aml: &[u8]| sleep::find(aml);
    let both = |a, b| Some(SleepType { a, b });
    assert_eq!(find(b"\x08_S5_\x12\x08\x04\x0a\x07\x0a\x06\x00\x00"), both(7, 6));
    assert_eq!(find(b"\x08\\_S5_\x12\x06\x04\x00\x00\x00\x00"), both(0, 0));
    assert_eq!(find(b"\x08_S5_\x12\x43\x00\x02\x0b\x05\x00\x01\x00"), both(5, 1));
    assert_eq!(find(b"\x08_S5_\x12\x04\x01\x0c\x03\x00\x00\x00\x00"), both(3, 3));
    assert_eq!(find(b"\x08_S5_\x12\x02\x00"), None);
    assert_eq!(find(b"x_S5_\x12\x06\x04\x00\x00\x00\x00"), None);
    assert_eq!(find(b"\x08_S5_"), None);
    assert_eq!(find(b"_S5_"), None);
}

/// Repairs the checksum of the table at `start`, so that damage reaches what is behind it.
fn repair(memory: &mut FakeMemory, start: u64) {
    let offset = (start - BASE) as usize;
    let Some(length) = u32_at(&memory.bytes, offset + 4) else { return };
    let end = offset + length as usize;
    if let Some(bytes) = memory.bytes.get_mut(offset..end)
        && bytes.len() >= table::HEADER_BYTES
    {
        fix_checksum(bytes, 9);
    }
}

proptest! {
    #[test]
    fn garbage_never_panics(
        noise in prop::collection::vec((0usize..0xc00, any::<u8>()), 0..200),
        rsdp in prop_oneof![3 => Just(Some(RSDP)), 1 => any::<Option<u64>>()],
    ) {
        let mut memory = machine();
        for (at, byte) in noise {
            // The root pointer is left alone in most runs, so that the rest is reached.
            if at >= 0x100 || rsdp != Some(RSDP) {
                memory.bytes[at] = byte;
            }
        }
        for start in [XSDT, MADT, FADT, DSDT, HPET, MCFG, RSDT] {
            repair(&mut memory, start);
        }
        if let Ok(info) = read(&memory, rsdp.map(PhysAddr)) {
            for region in &info.ecam {
                prop_assert!(region.first_bus <= region.last_bus);
            }
        }
    }

    #[test]
    fn any_madt_gives_each_cpu_once(body in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut memory = machine();
        memory.put(BASE + 0x1000, &table(b"APIC", &body));
        memory.put(XSDT + 36, &u64::to_le_bytes(BASE + 0x1000));
        repair(&mut memory, XSDT);
        let info = read(&memory, Some(PhysAddr(RSDP))).unwrap();
        for (index, id) in info.cpus.iter().enumerate() {
            prop_assert!(!info.cpus[..index].contains(id));
        }
    }

    #[test]
    fn any_aml_is_searched_without_a_panic(aml in prop::collection::vec(any::<u8>(), 0..64)) {
        sleep::find(&aml);
        let mut named = b"\x08_S5_\x12".to_vec();
        named.extend(&aml);
        if let Some(found) = sleep::find(&named) {
            prop_assert!(found.a < 8 && found.b < 8);
        }
    }
}
