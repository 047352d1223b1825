//! The ACPI tables of a guest (ACPI 6.4 ch. 5): RSDP, XSDT, FADT, FACS, MADT, DSDT.
//!
//! Why ACPI and not an MP table: Debian's cloud kernels are built without support for MP tables
//! (CONFIG_X86_MPPARSE), so only a MADT gets them an I/O APIC and more than one CPU; power-off,
//! the power button and a reset that needs no keyboard controller come with it. Why the full
//! hardware model and not "hardware-reduced": that one makes a kernel forget the 8259 and the
//! 8254, and this machine must also start kernels that need them.
//!
//! The DSDT declares what cannot be found by probing: the PCI host bridge with its windows and
//! interrupt routes, COM1, the clock. There are no processor objects: without idle states to
//! describe they would only make the kernel load a driver to halt as it does anyway.

pub mod aml;

use alloc::vec::Vec;
use virtio_device::{GuestPhysAddr, GuestRam, OutOfRange};

use crate::apic::{ioapic, local};
use crate::chipset::power;
use crate::chipset::{COM1_LINE, COM1_PORT, RTC_LINE, TIMER_LINE, TIMER_PIN, rtc};
use crate::memory_map::{ACPI_TABLES_ADDRESS, DEVICE_WINDOW_END, DEVICE_WINDOW_START};
use crate::pci;
use aml::{Term, resource};

/// What eight-bit APIC identifiers can number, the I/O APIC's and the broadcast left out.
pub const MAX_CPUS: usize = 254;

const OEM_ID: &[u8; 6] = b"NOSNOD";
const OEM_TABLE_ID: &[u8; 8] = b"NOSGUEST";
const CREATOR_ID: &[u8; 4] = b"NOS ";

/// What the tables depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcpiConfig {
    pub cpus: usize,
}

/// A byte that makes the sum of all zero.
fn checksum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte))
}

/// A system description table: its header (sec. 5.2.6) around `body`.
fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let length = 36 + body.len() as u32;
    let mut table = signature.to_vec();
    table.extend_from_slice(&length.to_le_bytes());
    table.extend_from_slice(&[revision, 0]);
    table.extend_from_slice(OEM_ID);
    table.extend_from_slice(OEM_TABLE_ID);
    table.extend_from_slice(&1u32.to_le_bytes());
    table.extend_from_slice(CREATOR_ID);
    table.extend_from_slice(&1u32.to_le_bytes());
    table.extend_from_slice(body);
    table[9] = checksum(&table);
    table
}

/// A generic address (sec. 5.2.3.2) in I/O space.
fn port_address(port: u16, bytes: u8) -> [u8; 12] {
    let [low, high] = port.to_le_bytes();
    let access_size = match bytes {
        1 => 1,
        2 => 2,
        _ => 3,
    };
    [1, bytes * 8, 0, access_size, low, high, 0, 0, 0, 0, 0, 0]
}

/// The fixed description (sec. 5.2.9).
fn fadt(facs: u64, dsdt: u64) -> Vec<u8> {
    const BYTES: usize = 276;
    const HEADER: usize = 36;
    /// WBINVD works, C1 works, no sleep button, no RTC wake status, 32-bit timer, reset register,
    /// no screen or keyboard.
    const FLAGS: u32 = 1 | 1 << 2 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 12;
    /// There are ISA devices; no keyboard controller; no VGA; no PCIe power management.
    const BOOT_ARCHITECTURE: u16 = 1 | 1 << 2 | 1 << 4;
    /// Larger than the longest that counts as "supported".
    const NO_C2_LATENCY: u16 = 0xffff;

    let mut body = [0; BYTES - HEADER];
    let mut set = |offset: usize, bytes: &[u8]| {
        body[offset - HEADER..offset - HEADER + bytes.len()].copy_from_slice(bytes);
    };
    set(36, &(facs as u32).to_le_bytes());
    set(40, &(dsdt as u32).to_le_bytes());
    set(46, &u16::from(power::SCI_LINE).to_le_bytes());
    set(56, &u32::from(power::PM1_EVENT_PORT).to_le_bytes());
    set(64, &u32::from(power::PM1_CONTROL_PORT).to_le_bytes());
    set(76, &u32::from(power::TIMER_PORT).to_le_bytes());
    set(88, &[power::PM1_EVENT_BYTES, power::PM1_CONTROL_BYTES, 0, power::TIMER_BYTES]);
    set(96, &NO_C2_LATENCY.to_le_bytes());
    set(98, &NO_C2_LATENCY.to_le_bytes());
    set(108, &[rtc::CENTURY_INDEX]);
    set(109, &BOOT_ARCHITECTURE.to_le_bytes());
    set(112, &FLAGS.to_le_bytes());
    set(116, &port_address(power::RESET_CONTROL_PORT, 1));
    set(128, &[power::RESET_CONTROL_VALUE]);
    // Minor version 4 of 6.4.
    set(131, &[4]);
    set(140, &dsdt.to_le_bytes());
    set(148, &port_address(power::PM1_EVENT_PORT, power::PM1_EVENT_BYTES));
    set(172, &port_address(power::PM1_CONTROL_PORT, power::PM1_CONTROL_BYTES));
    set(208, &port_address(power::TIMER_PORT, power::TIMER_BYTES));
    set(268, OEM_TABLE_ID);
    table(b"FACP", 6, &body)
}

/// The firmware control structure (sec. 5.2.10): 64 bytes that say nothing.
fn facs() -> Vec<u8> {
    let mut facs = [0; 64];
    facs[0..4].copy_from_slice(b"FACS");
    facs[4..8].copy_from_slice(&64u32.to_le_bytes());
    facs[32] = 2;
    facs.to_vec()
}

/// The interrupt controllers (sec. 5.2.12).
fn madt(cpus: usize) -> Vec<u8> {
    const HAS_8259: u32 = 1;
    const ENABLED: u32 = 1;
    /// Active high and level-triggered, in the flags of an override.
    const LEVEL_HIGH: u16 = 0x000d;
    const ALL_PROCESSORS: u8 = 0xff;

    let mut body = (local::DEFAULT_BASE as u32).to_le_bytes().to_vec();
    body.extend_from_slice(&HAS_8259.to_le_bytes());
    for cpu in 0..cpus {
        body.extend_from_slice(&[0, 8, cpu as u8, cpu as u8]);
        body.extend_from_slice(&ENABLED.to_le_bytes());
    }
    // The I/O APIC's identifier follows the CPUs'.
    body.extend_from_slice(&[1, 12, cpus as u8, 0]);
    body.extend_from_slice(&(ioapic::BASE as u32).to_le_bytes());
    body.extend_from_slice(&0u32.to_le_bytes());
    for (line, pin, flags) in [(TIMER_LINE, TIMER_PIN, 0), (power::SCI_LINE, power::SCI_LINE, LEVEL_HIGH)] {
        body.extend_from_slice(&[2, 10, 0, line]);
        body.extend_from_slice(&u32::from(pin).to_le_bytes());
        body.extend_from_slice(&flags.to_le_bytes());
    }
    // NMI is on LINT1 of every CPU.
    body.extend_from_slice(&[4, 6, ALL_PROCESSORS, 0, 0, 1]);
    table(b"APIC", 5, &body)
}

/// One direction of interrupt routing: INTA of every slot (sec. 6.2.13).
fn routes(target: fn(usize) -> u8) -> Term {
    let route = |slot: usize| {
        let address = (slot as u32) << 16 | 0xffff;
        aml::package(&[
            aml::integer(address),
            aml::integer(0),
            aml::integer(0),
            aml::integer(u32::from(target(slot))),
        ])
    };
    aml::package(&(1..pci::SLOTS).map(route).collect::<Vec<_>>())
}

fn host_bridge() -> Term {
    let windows = [
        resource::bus_numbers(0, 0),
        resource::ports(0xcf8, 8),
        resource::port_window(0x0000, 0x0cf7),
        resource::port_window(0x0d00, 0xffff),
        resource::memory_window(DEVICE_WINDOW_START as u32, DEVICE_WINDOW_END as u32 - 1),
    ];
    aml::device(
        "PCI0",
        &[
            aml::name("_HID", aml::eisa_id(b"PNP0A03")),
            aml::name("_UID", aml::integer(0)),
            aml::name("_BBN", aml::integer(0)),
            aml::name("_CRS", aml::resources(&windows)),
            aml::name("RAPC", routes(pci::interrupt_pin)),
            aml::name("RPIC", routes(pci::isa_line)),
            aml::method(
                "_PRT",
                0,
                &[
                    aml::if_set("PICF", &[aml::return_value(aml::name_string("RAPC"))]),
                    aml::return_value(aml::name_string("RPIC")),
                ],
            ),
        ],
    )
}

fn isa_device(name: &str, id: &[u8; 7], first_port: u16, ports: u8, line: u8) -> Term {
    aml::device(
        name,
        &[
            aml::name("_HID", aml::eisa_id(id)),
            aml::name("_UID", aml::integer(1)),
            aml::name("_STA", aml::integer(0xf)),
            aml::name(
                "_CRS",
                aml::resources(&[resource::ports(first_port, ports), resource::interrupt(line)]),
            ),
        ],
    )
}

fn dsdt() -> Vec<u8> {
    let sleep =
        [power::SLEEP_TYPE_S5, power::SLEEP_TYPE_S5, 0, 0].map(|value| aml::integer(u32::from(value)));
    let terms = [
        // Which interrupt controller the system uses: it calls _PIC with 1 for the I/O APIC.
        aml::name("\\PICF", aml::integer(0)),
        aml::method("\\_PIC", 1, &[aml::store_argument("PICF")]),
        aml::name("\\_S5", aml::package(&sleep)),
        aml::scope(
            "\\_SB",
            &[
                host_bridge(),
                isa_device("COM1", b"PNP0501", COM1_PORT, 8, COM1_LINE),
                isa_device("RTC", b"PNP0B00", 0x70, 2, RTC_LINE),
            ],
        ),
    ];
    table(b"DSDT", 2, &terms.concat())
}

/// The root pointer (sec. 5.2.5.3), with the checksums of both revisions.
fn rsdp(xsdt: u64) -> Vec<u8> {
    let mut rsdp = b"RSD PTR ".to_vec();
    rsdp.push(0);
    rsdp.extend_from_slice(OEM_ID);
    rsdp.push(2);
    rsdp.extend_from_slice(&0u32.to_le_bytes());
    rsdp[8] = checksum(&rsdp);
    rsdp.extend_from_slice(&36u32.to_le_bytes());
    rsdp.extend_from_slice(&xsdt.to_le_bytes());
    rsdp.extend_from_slice(&[0; 4]);
    rsdp[32] = checksum(&rsdp);
    rsdp
}

/// Writes the tables into the guest's memory; returns the address of the root pointer, which is
/// also where a search finds it (16-byte aligned, between 0xE0000 and 1 MiB).
pub fn install(ram: &dyn GuestRam, config: &AcpiConfig) -> Result<u64, OutOfRange> {
    let root = ACPI_TABLES_ADDRESS;
    let mut next = root + 64;
    let mut place = |bytes: &[u8]| {
        let address = next;
        next = (next + bytes.len() as u64).next_multiple_of(64);
        ram.write(GuestPhysAddr::new(address), bytes).map(|()| address)
    };
    let facs = place(&facs())?;
    let dsdt = place(&dsdt())?;
    let fadt = place(&fadt(facs, dsdt))?;
    let madt = place(&madt(config.cpus))?;
    let entries: Vec<u8> = [fadt, madt].iter().flat_map(|address| address.to_le_bytes()).collect();
    let xsdt = place(&table(b"XSDT", 1, &entries))?;
    ram.write(GuestPhysAddr::new(root), &rsdp(xsdt))?;
    Ok(root)
}

#[cfg(test)]
#[path = "acpi_tests.rs"]
mod tests;
