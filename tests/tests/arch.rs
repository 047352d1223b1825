//! The machine layer, in a kernel of its own (`arch/smoke`), on machines of many kinds.
//!
//! Each story boots that kernel, waits until it has switched the machine off, and reads what it said.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use stories::smoke;
use xtask::{image, workspace};

const PACKAGE: &str = "arch-smoke";
const ALL_PASSED: &str = "smoke: 13 passed, 0 failed";

fn boot_directly(machine: &[&str], command_line: &str) -> Result<String> {
    let kernel = smoke::kernel(PACKAGE)?;
    let kernel = kernel.to_str().context("a path in UTF-8")?;
    smoke::boot(&[machine, &["-kernel", kernel, "-append", command_line]].concat())
}

fn passes_every_check_on(machine: &[&str]) {
    let text = boot_directly(machine, "check").unwrap();
    assert!(text.contains(ALL_PASSED), "{text}");
}

#[test]
fn one_cpu() {
    passes_every_check_on(&["-machine", "q35", "-cpu", "max", "-smp", "1", "-m", "64M"]);
}

#[test]
fn four_cpus_with_x2apic() {
    passes_every_check_on(&["-machine", "q35", "-cpu", "max,+svm", "-smp", "4", "-m", "512M"]);
}

#[test]
fn four_cpus_with_xapic() {
    passes_every_check_on(&["-machine", "q35", "-cpu", "max,-x2apic", "-smp", "4", "-m", "512M"]);
}

#[test]
fn an_old_processor_on_an_old_board() {
    passes_every_check_on(&["-machine", "pc", "-cpu", "qemu64", "-smp", "2", "-m", "256M"]);
}

#[test]
fn more_memory_than_four_gigabytes() {
    passes_every_check_on(&["-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "6G"]);
}

#[test]
fn more_cpus_than_it_uses() {
    let machine = ["-machine", "q35", "-cpu", "max", "-smp", "20", "-m", "512M"];
    let text = boot_directly(&machine, "check").unwrap();
    assert!(text.contains("smoke: 16 CPUs"), "{text}");
    assert!(text.contains(ALL_PASSED), "{text}");
}

/// The emulator hides itself, so the CPUs compare their counters as they do on hardware.
#[test]
fn cpus_that_look_like_hardware() {
    let cpu = "max,tcg-cpuid=off,hypervisor=off";
    passes_every_check_on(&["-machine", "q35", "-cpu", cpu, "-smp", "2", "-m", "512M"]);
}

/// By GRUB's Multiboot2, with a boot archive as the module.
fn boots_by_grub(name: &str, firmware: &[&str]) -> Result<()> {
    let kernel = smoke::kernel(PACKAGE)?;
    let folder = workspace::build_dir().join(format!("arch-{name}"));
    std::fs::create_dir_all(&folder)?;
    let archive = folder.join("boot.tar");
    std::fs::write(&archive, [7; 5000])?;
    let image = folder.join("smoke.iso");
    image::build(&kernel, Path::new(&archive), &image)?;
    let drive = format!("media=cdrom,readonly=on,format=raw,file={}", image.display());
    let machine = ["-machine", "q35", "-cpu", "max", "-smp", "4", "-m", "512M", "-drive", &drive];
    let text = smoke::boot(&[&machine[..], firmware].concat())?;
    ensure!(text.contains("booted by Multiboot2"), "{text}");
    ensure!(text.contains(" Archive"), "{text}");
    ensure!(text.contains(ALL_PASSED), "{text}");
    Ok(())
}

#[test]
fn grub_under_bios() {
    boots_by_grub("bios", &[]).unwrap();
}

#[test]
fn grub_under_uefi() {
    boots_by_grub("uefi", &["-bios", "/usr/share/ovmf/OVMF.fd"]).unwrap();
}

/// A fault is told, with what it was about, and the machine then switched off: no reset, no silence.
fn is_reported(what: &str, expected: &[&str]) {
    let machine = ["-machine", "q35", "-cpu", "max", "-smp", "2", "-m", "128M"];
    let text = boot_directly(&machine, what).unwrap();
    for part in expected {
        assert!(text.contains(part), "{what}: no {part:?} in:\n{text}");
    }
    assert!(!text.contains("which is wrong"), "{text}");
}

#[test]
fn a_stack_overflow_is_told_from_a_stack_of_its_own() {
    for what in ["overflow", "overflow-task"] {
        is_reported(what, &["fault: CPU 0: double fault", "a stack's guard page", "end of fault"]);
    }
}

#[test]
fn code_and_constants_cannot_be_written_through_any_mapping() {
    for what in [
        "write-text",
        "write-text-alias",
        "write-rodata",
        "write-rodata-alias",
        "write-module",
        "write-module-alias",
    ] {
        // Error code 3: a write to a page that is present.
        is_reported(what, &["page fault (vector 14, error code 0x3)", "end of fault"]);
    }
}

#[test]
fn data_cannot_be_executed() {
    // Error code 11h: an instruction fetch from a page that is present.
    is_reported("execute-data", &["page fault (vector 14, error code 0x11)", "end of fault"]);
}

#[test]
fn a_null_pointer_faults() {
    is_reported("null", &["page fault (vector 14, error code 0x2)", "address 0x8", "end of fault"]);
}

#[test]
fn a_reboot_resets_the_machine() {
    // With -no-reboot the emulator ends instead.
    is_reported("reboot", &["smoke: 2 CPUs"]);
}
