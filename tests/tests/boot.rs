//! The node boots: by every loader, with few CPUs and many, and its shell answers.

#![forbid(unsafe_code)]

use std::time::Duration;

use announce::Announcement;
use stories::{Loader, Node, Setup};

/// The commands that the shell has to have.
const COMMANDS: [&str; 19] = [
    "help", "ps", "cpu", "uptime", "dmesg", "mem", "pci", "irqstat", "disks", "disk", "net", "ping",
    "udpecho", "lsmod", "insmod", "rmmod", "poweroff", "reboot", "selftest",
];

fn boots_with_cpus(name: &str, cpus: u32) {
    let mut node = Setup::of(name).cpus(cpus).boot().ready();
    let listed = node.run("cpu");
    let rows =
        listed.lines().filter(|line| line.trim_start().starts_with(|letter: char| letter.is_ascii_digit()));
    assert_eq!(rows.count(), cpus as usize, "one row for each CPU:\n{listed}");
}

#[test]
fn one_cpu_is_enough() {
    boots_with_cpus("one_cpu", 1);
}

#[test]
fn two_cpus_are_used() {
    boots_with_cpus("two_cpus", 2);
}

#[test]
fn four_cpus_are_used() {
    boots_with_cpus("four_cpus", 4);
}

#[test]
fn sixteen_cpus_are_used() {
    boots_with_cpus("sixteen_cpus", 16);
}

fn boots_by(name: &str, loader: Loader, word: &str) {
    let mut node = Setup::of(name).loaded_by(loader).configured("[node]\nname = \"lab\"\n").boot();
    let line = node.expect_within("booted by", Duration::from_secs(90));
    assert!(line.contains(word), "{line}");
    let mut node = node.ready();
    assert!(node.run("uptime").contains("up"));
}

#[test]
fn grub_boots_it_by_bios() {
    boots_by("grub_bios", Loader::GrubByBios, "Multiboot2");
}

#[test]
fn grub_boots_it_by_uefi() {
    boots_by("grub_uefi", Loader::GrubByUefi, "Multiboot2");
}

#[test]
fn qemu_boots_it_by_pvh_and_the_timers_pass_their_test() {
    let mut node = Setup::of("pvh").boot();
    let line = node.expect("booted by");
    assert!(line.contains("Pvh"), "{line}");
    node.expect("timer self-test passed on 2 CPUs");
    node.wait_until_ready();
}

/// The control of the self-test: timers that serve sleepers at ticks only, as a periodic timer would, must fail it. The
/// panic that follows tells where every CPU was, by name.
#[test]
fn timers_that_serve_ticks_only_fail_the_boot_and_every_cpu_tells_where_it_was() {
    let mut node = Setup::of("ticks_only").told("timer=tick").boot();
    node.expect("nos: panic on CPU");
    node.expect("timer self-test failed: a sleep of 1 ms takes");
    node.expect("first_task+0x");
    node.expect("CPU 1, task idle/1:");
    node.expect("idle_loop+0x");
    node.expect("nos: stopped by a panic");
}

#[test]
fn help_names_every_command() {
    let mut node = Setup::of("help").boot().ready();
    let help = node.run("help");
    for command in COMMANDS {
        assert!(
            help.lines().any(|line| line.trim_start().starts_with(command)),
            "{command} is not in\n{help}"
        );
    }
}

#[test]
fn every_command_that_only_looks_answers() {
    let mut node = Setup::of("commands").boot().ready().with_address();
    for (command, expected) in [
        ("ps", "idle/1"),
        ("cpu", ""),
        ("uptime", "up"),
        ("dmesg", "timer self-test passed"),
        ("mem", "free"),
        ("pci", "8086:"),
        ("irqstat", "CPU 0"),
        ("disks", "nvme0n1"),
        ("net", "10.0.2.15/24"),
        ("lsmod", "netblk"),
    ] {
        let answer = node.run(command);
        assert!(!answer.trim().is_empty(), "{command} says nothing");
        assert!(answer.contains(expected), "{command} does not say {expected:?}:\n{answer}");
    }
}

#[test]
fn a_command_that_cannot_be_done_says_what_to_do() {
    let mut node = Setup::of("advice").boot().ready();
    for (command, advice) in [
        ("frobnicate", "`help` lists them"),
        ("ps now", "usage: ps"),
        ("hv list", "`insmod hv` loads it"),
        ("insmod", "usage: insmod NAME"),
        ("insmod nothing", "it has: netblk, hv"),
        ("rmmod hv", "`lsmod` lists what is"),
        ("ping", "usage: ping ADDRESS"),
        ("ping somewhere", "IPv4 address such as"),
        ("netblk start nvme0n1 10809", "`insmod netblk` loads it"),
        ("poweroff please", "usage: poweroff"),
    ] {
        let answer = node.run(command);
        assert!(answer.contains(advice), "{command} does not advise {advice:?}:\n{answer}");
    }
}

#[test]
fn lines_are_edited_completed_and_recalled() {
    let mut node = Setup::of("editing").boot().ready();
    node.expect_prompt();
    // "uptme", back two, the missing letter.
    node.press(b"uptme\x1b[D\x1b[Di\r");
    node.expect("up ");
    node.expect_prompt();
    // The arrow brings the line back.
    node.press(b"\x1b[A\r");
    node.expect("up ");
    node.expect_prompt();
    node.press(b"upt\t\r");
    node.expect("up ");
    node.expect_prompt();
    // A line that is given up is not run.
    node.press(b"poweroff\x03");
    node.expect_prompt();
    assert!(node.run("uptime").contains("up"));
}

#[test]
fn it_finds_its_address_and_its_gateway_answers() {
    let mut node = Setup::of("address").boot();
    let address = node.wait_for("the address", Duration::from_secs(30), |announcement| match announcement {
        Announcement::Address { nic: "eth0", address } => Some(address.to_owned()),
        _ => None,
    });
    assert_eq!(address, "10.0.2.15/24");
    let answer = node.run("ping 10.0.2.2 3");
    assert!(answer.contains("3 of 3 answered"), "{answer}");
}

#[test]
fn poweroff_turns_the_machine_off() {
    let mut node = Setup::of("poweroff").boot().ready();
    node.expect_prompt();
    node.press(b"poweroff\r");
    node.wait_for("the last line", Duration::from_secs(20), |announcement| {
        (announcement == Announcement::PowerOff).then_some(())
    });
    node.expect_off();
}

#[test]
fn reboot_starts_it_again() {
    let mut node = Setup::of("reboot").boot().ready();
    node.expect_prompt();
    node.press(b"reboot\r");
    node.wait_for("the shell after the reboot", Duration::from_secs(60), |announcement| {
        matches!(announcement, Announcement::ShellReady { .. }).then_some(())
    });
    node.wait_until_ready();
    assert!(node.run("uptime").contains("00:00:"), "the clock begins again");
}

#[test]
fn without_guests_64_mib_are_enough() {
    let mut node = Setup::of("small").memory_mib(64).boot().ready();
    assert!(node.run("mem").contains("free"));
    assert!(node.run("disks").contains("nvme0n1"));
}

#[test]
fn it_does_without_a_disk() {
    let mut node = Setup::of("diskless").without_disk().boot().ready();
    let answer = node.run("disks");
    assert!(answer.contains("no disk was found"), "{answer}");
}

/// How often each CPU has taken its timer's interrupt.
fn timer_interrupts(node: &mut Node) -> Vec<u64> {
    let table = node.run("irqstat");
    let row =
        table.lines().find(|line| line.contains("timer")).unwrap_or_else(|| panic!("no timer in\n{table}"));
    row.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect()
}

#[test]
fn an_idle_node_is_idle() {
    let mut node = Setup::of("idle").cpus(4).boot().ready().with_address();
    let before = timer_interrupts(&mut node);
    // The story itself is the only thing that happens on the node; this is the time it is given to be idle in.
    std::thread::sleep(Duration::from_secs(3));
    let after = timer_interrupts(&mut node);
    assert_eq!(before.len(), 4);
    for (cpu, (before, after)) in before.iter().zip(&after).enumerate() {
        // A 100 Hz tick would be 300.
        assert!(after - before < 60, "CPU {cpu} took {} timer interrupts in 3 s", after - before);
    }
}

#[test]
fn wake_ups_across_cpus_are_not_late() {
    let mut node = Setup::of("wake").cpus(4).boot().ready();
    let answer = node.run_within("selftest wake 2000", Duration::from_secs(120));
    assert!(answer.contains("0 wake-ups late"), "{answer}");
}
