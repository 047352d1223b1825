use alloc::vec;
use virtio_device::fake::VecRam;

use super::*;

fn bytes(ram: &VecRam, address: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    ram.read(GuestPhysAddr::new(address), &mut bytes).unwrap();
    bytes
}

fn table_at(ram: &VecRam, address: u64) -> Vec<u8> {
    let length = ram.read_u32(GuestPhysAddr::new(address + 4)).unwrap() as usize;
    bytes(ram, address, length)
}

fn is_summed(bytes: &[u8]) -> bool {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// All tables that the root pointer leads to.
fn tables(cpus: usize) -> Vec<Vec<u8>> {
    let ram = VecRam::new(1 << 20);
    let root = install(&ram, &AcpiConfig { cpus }).unwrap();
    let rsdp = bytes(&ram, root, 36);
    assert!(is_summed(&rsdp[..20]) && is_summed(&rsdp));
    let xsdt_address = u64::from_le_bytes(rsdp[24..32].try_into().unwrap());
    let xsdt = table_at(&ram, xsdt_address);
    let mut tables: Vec<_> = xsdt[36..]
        .chunks(8)
        .map(|address| table_at(&ram, u64::from_le_bytes(address.try_into().unwrap())))
        .collect();
    let dsdt = u64::from_le_bytes(tables[0][140..148].try_into().unwrap());
    tables.push(table_at(&ram, dsdt));
    tables.push(xsdt);
    tables
}

#[test]
fn tables_are_found_and_summed() {
    let tables = tables(4);
    let signatures: Vec<_> = tables.iter().map(|table| &table[0..4]).collect();
    assert_eq!(signatures, [b"FACP", b"APIC", b"DSDT", b"XSDT"]);
    assert!(tables.iter().all(|table| is_summed(table)));
    assert_eq!(tables[0].len(), 276);
}

#[test]
fn every_cpu_has_its_local_apic() {
    for cpus in [1, 4, MAX_CPUS] {
        let madt = &tables(cpus)[1];
        let (mut at, mut found) = (44, Vec::new());
        while at < madt.len() {
            if madt[at] == 0 {
                found.push(madt[at + 3]);
            }
            at += usize::from(madt[at + 1]);
        }
        assert_eq!(at, madt.len(), "entries fill the table");
        assert_eq!(found, (0..cpus as u8).collect::<Vec<_>>());
    }
}

#[test]
fn all_tables_lie_in_their_place() {
    let ram = VecRam::new(1 << 20);
    install(&ram, &AcpiConfig { cpus: MAX_CPUS }).unwrap();
    let last = (ACPI_TABLES_ADDRESS..1 << 20)
        .rev()
        .find(|address| ram.read_u8(GuestPhysAddr::new(*address)) != Ok(0))
        .unwrap();
    assert!(last < crate::memory_map::ACPI_TABLES_END - 4096, "room to spare");
    // A guest without memory there is refused.
    assert!(install(&VecRam::new(0xe_0000), &AcpiConfig { cpus: 1 }).is_err());
}

/// `NOS_TEST_DSDT=/tmp/dsdt.aml cargo test -p machine` leaves the table for a disassembler.
#[test]
fn the_dsdt_can_be_looked_at() {
    extern crate std;
    let dsdt = dsdt();
    assert_eq!(dsdt.len(), u32::from_le_bytes(dsdt[4..8].try_into().unwrap()) as usize);
    if let Some(path) = std::env::var_os("NOS_TEST_DSDT") {
        std::fs::write(path, &dsdt).unwrap();
    }
}
