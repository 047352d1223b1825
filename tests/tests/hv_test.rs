//! Guests of our own (`hv/test-guests`) that try their machine one thing at a time, on the real backend.

#![forbid(unsafe_code)]

use announce::Announcement;
use stories::{GUEST_PATIENCE, Node, Setup};

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

fn node(name: &str, kernel: Vec<u8>, cpus: u32) -> Node {
    let text = format!(
        "[[guest]]\nname = \"test\"\ncpus = {cpus}\nmemory = \"32 MiB\"\nkernel = \"guests/test\"\n\
         command_line = \"\"\n"
    );
    // No guest runs on the first CPU.
    Setup::of(name)
        .cpus(cpus + 1)
        .memory_mib(256)
        .without_disk()
        .configured(text)
        .with_file("guests/test", kernel)
        .boot()
        .ready()
}

#[test]
fn every_device_timer_and_ipi_does_what_its_guest_expects() {
    xtask::workspace::enter_root().unwrap();
    let mut node = node("hv_test", xtask::test_guest::image("machine").unwrap(), 2);
    let (reason, said) = verdict(&mut node, "test");
    let failed: Vec<&str> = said.lines().filter(|line| line.contains("hv-test: FAILED")).collect();
    assert!(failed.is_empty(), "{failed:#?}\n{said}");
    assert!(said.contains("hv-test: 0x0000001a passed, 0x00000000 failed"), "{said}");
    assert_eq!(reason, "exited with status 0", "{said}");
    assert!(node.run("hv list").contains("exited with status 0"));
}
