//! Guests of our own (`hv/test-guests`) that try their machine one thing at a time, on the real backend.

#![forbid(unsafe_code)]

use announce::Announcement;
use stories::{GUEST_PATIENCE, Node, Setup};
use xtask::test_guest;

/// How many checks `hv/test-guests/checks.S` has.
const CHECKS: usize = 26;

/// Starts the guest and gives why it ended and what it said.
fn verdict(node: &mut Node, guest: &str) -> (String, String) {
    node.run(&format!("hv start {guest}"));
    let reason =
        node.wait_for("the end of the test guest", GUEST_PATIENCE, |announcement| match announcement {
            Announcement::GuestStopped { guest: stopped, reason } if stopped == guest => {
                Some(reason.to_owned())
            }
            _ => None,
        });
    let before = node.transcript().len();
    node.press(format!("hv console {guest}\r").as_bytes());
    node.expect(" failed");
    // What is behind the last line is on its way with it.
    node.press(b"\x1d\r");
    node.expect_prompt();
    (reason, node.transcript()[before..].to_owned())
}

fn guest(name: &str, cpus: u32) -> String {
    format!(
        "[[guest]]\nname = \"{name}\"\ncpus = {cpus}\nmemory = \"32 MiB\"\nkernel = \"guests/{name}\"\n\
         command_line = \"\"\n"
    )
}

#[test]
fn every_device_timer_and_ipi_does_what_its_guest_expects() {
    xtask::workspace::enter_root().unwrap();
    // No guest runs on the first CPU.
    let mut node = Setup::of("hv_test")
        .cpus(3)
        .memory_mib(256)
        .without_disk()
        .configured(guest("machine", 2) + &guest("broken", 1))
        .with_file("guests/machine", test_guest::image("machine", &[]).unwrap())
        .with_file("guests/broken", test_guest::image("machine", &["MUST_FAIL"]).unwrap())
        .boot()
        .ready();

    // A check that must fail does, and the guest's status says how many did.
    let (reason, said) = verdict(&mut node, "broken");
    assert!(said.contains("hv-test: FAILED: one and one is three: saw 0x00000002, not 0x00000003"), "{said}");
    assert_eq!(reason, "exited with status 1", "{said}");

    let (reason, said) = verdict(&mut node, "machine");
    let failed: Vec<&str> = said.lines().filter(|line| line.contains("hv-test: FAILED")).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{said}");
    let passed = said.lines().filter(|line| line.trim().starts_with("hv-test: ok: ")).count();
    assert_eq!(passed, CHECKS, "{said}");
    assert!(said.contains(&format!("hv-test: {CHECKS:#010x} passed, 0x00000000 failed")), "{said}");
    assert_eq!(reason, "exited with status 0", "{said}");
    assert!(node.run("hv list").contains("exited with status 0"));
}

/// No comparison: that needs Linux beside it. The figures are for whoever changes the exit path.
#[test]
fn what_an_exit_costs_is_told() {
    /// As `hv/test-guests/costs.S` has them.
    const LOOPS: f64 = 4000.0;
    const TICKS_PER_US: f64 = 3.579_545;
    xtask::workspace::enter_root().unwrap();
    let mut node = Setup::of("hv_test_costs")
        .cpus(3)
        .memory_mib(256)
        .without_disk()
        .configured(guest("costs", 2))
        .with_file("guests/costs", test_guest::image("machine", &["MEASURE"]).unwrap())
        .boot()
        .ready();
    let (reason, said) = verdict(&mut node, "costs");
    assert_eq!(reason, "exited with status 0", "{said}");
    let costs: Vec<(&str, f64)> = said
        .lines()
        .filter_map(|line| {
            let (name, ticks) = line.trim().strip_prefix("hv-test: ok: ")?.split_once(": ticks 0x")?;
            Some((name, f64::from(u32::from_str_radix(ticks, 16).ok()?) / TICKS_PER_US / LOOPS))
        })
        .filter(|(name, _)| !name.starts_with('('))
        .collect();
    for (name, us) in &costs {
        println!("{name}: {us:.2} us");
    }
    assert_eq!(costs.len(), 7, "{said}");
    let nothing = costs[0].1;
    assert!(costs[1..].iter().all(|(_, us)| *us > nothing), "an exit for nothing: {costs:?}");
}
