//! The life of guests: starts, stops and resets in any order, and where they run.

#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::time::Duration;

use announce::Announcement;
use stories::program::{Program, Width};
use stories::{Node, PATIENCE, Setup};

/// The keyboard controller's command port, and its pulse on the reset line.
const KEYBOARD: u16 = 0x64;
const PULSE_RESET: u32 = 0xfe;

/// A section for a guest that is machine code of ours.
fn section(name: &str, cpus: u32, autostart: bool) -> String {
    format!(
        "[[guest]]\nname = \"{name}\"\ncpus = {cpus}\nmemory = \"32 MiB\"\nkernel = \"{name}.bin\"\nautostart = {autostart}\n"
    )
}

/// The guest's line in `hv list`.
fn line_of(node: &mut Node, name: &str) -> String {
    let listed = node.run("hv list");
    listed.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{listed}")).to_owned()
}

#[test]
fn a_guest_that_resets_for_ever_is_slowed_and_stopped_for_good() {
    let looping = Program::new().out(KEYBOARD, Width::Byte, PULSE_RESET).halt().into_kernel();
    let mut node = Setup::of("reset_loop")
        .configured(section("loop", 1, true))
        .with_file("loop.bin", looping)
        .boot()
        .ready();
    node.expect("guest loop resets again and again");
    let starts = |node: &mut Node| {
        node.transcript().lines().filter(|line| line.trim_end().ends_with("guest loop resets")).count()
    };
    let before = starts(&mut node);
    assert!(before >= 3, "{}", node.transcript());
    std::thread::sleep(Duration::from_secs(4));
    // The console is read up to the answer.
    node.run("hv list");
    let after = starts(&mut node);
    assert!(
        (2..=5).contains(&(after - before)),
        "{} resets in 4 s, each of which should wait for 1 s",
        after - before
    );
    // Wherever it is in its loop, a stop is a stop.
    for _ in 0..3 {
        let answer = node.run("hv stop loop");
        assert!(answer.contains("is stopped"), "{answer}");
        std::thread::sleep(Duration::from_millis(1500));
        assert!(line_of(&mut node, "loop").contains("stopped"));
        node.run("hv start loop");
    }
    let said = node.transcript().matches("again and again").count();
    assert_eq!(said, 1, "once is enough:\n{}", node.transcript());
}

#[test]
fn a_guest_is_stopped_while_it_starts() {
    let mut node = Setup::of("stop_starting").cpus(4).memory_mib(1024).configured_as_shipped().boot().ready();
    for _ in 0..4 {
        let answer = node.run("hv stop alpha");
        assert!(answer.contains("is stopped"), "{answer}");
        assert!(line_of(&mut node, "alpha").contains("stopped"));
        node.run("hv start alpha");
    }
    // Its address, its memory and its place are free each time, so it still boots.
    node.wait_for_guests(&["alpha"]);
}

#[test]
fn a_guest_is_ready_once_however_often_it_says_so() {
    let text = "nos: guest eager ready\n".repeat(3);
    let eager = Program::new().print(&text).print("no more\n").halt().into_kernel();
    let mut node =
        Setup::of("eager").configured(section("eager", 1, true)).with_file("eager.bin", eager).boot().ready();
    // The guest's own text may stand before it on the line.
    let announced = Announcement::GuestReady { guest: "eager", at_ms: 0 }.to_string().replace("0 ms", "");
    node.press(b"hv console eager\r");
    node.expect("no more");
    node.press(b"\x1d\r");
    node.run("hv list");
    assert_eq!(node.transcript().matches(&announced).count(), 1, "{}", node.transcript());
    // The next run is another one.
    node.run("hv stop eager");
    node.run("hv start eager");
    node.wait_for_guests(&["eager"]);
}

#[test]
fn guests_leave_a_service_its_cpu_while_there_are_others() {
    let netblk = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\ncpu = 1\n";
    let names = ["first", "second", "third"];
    let mut text = String::from(netblk);
    let mut setup = Setup::of("reserved_cpu").cpus(3);
    for name in names {
        text += &section(name, 1, false);
        setup = setup.with_file(&format!("{name}.bin"), Program::new().halt().into_kernel());
    }
    let mut node = setup.configured(text).boot().ready();
    for (name, place) in names.into_iter().zip(["on CPU 2", "on CPU 2", "on CPU 1"]) {
        node.run(&format!("hv start {name}"));
        node.wait_for("the guest's start", PATIENCE, |announcement| {
            matches!(announcement, Announcement::GuestStarted { guest, .. } if guest == name).then_some(())
        });
        let line = line_of(&mut node, name);
        assert!(line.contains(place), "{line}");
    }
    let transcript = node.transcript();
    assert!(transcript.contains("guest third shares CPU 1 with a service"), "{transcript}");
    assert!(!transcript.contains("guest second shares"), "{transcript}");
}

#[test]
fn guests_beyond_the_switchs_ports_are_refused_by_name() {
    let mut text = String::new();
    for number in 1..=300 {
        let _ = write!(
            text,
            "[[guest]]\nname = \"guest{number}\"\nmemory = \"32 MiB\"\nkernel = \"same.bin\"\nautostart = false\n"
        );
    }
    let same = Program::new().halt().into_kernel();
    let mut node = Setup::of("many_guests").configured(text).with_file("same.bin", same).boot().ready();
    let transcript = node.transcript();
    let refused = |number: u32| {
        transcript.lines().filter_map(Announcement::parse).any(|announcement| match announcement {
            Announcement::Refused { what, reason } => {
                what == format!("guest guest{number}") && reason.contains("63 guests")
            }
            _ => false,
        })
    };
    assert!(!refused(63) && refused(64) && refused(256) && refused(300), "{transcript}");
    assert!(line_of(&mut node, "guest63 ").contains("02:6e:6f:73:00:3f"));
}
