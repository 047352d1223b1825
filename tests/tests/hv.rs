//! Two unmodified Linux guests, and the network between them.

#![forbid(unsafe_code)]

use std::time::Duration;

use announce::Announcement;
use stories::{GUEST_PATIENCE, Node, Setup, http};
use xtask::guest;
use xtask::qemu::Protocol;
use xtask::workspace::sha256_hex;

/// The node as it is shipped, with both of its guests up.
fn with_both_guests(name: &str) -> Node {
    let mut node = Setup::of(name).cpus(4).memory_mib(1024).configured_as_shipped().boot();
    node.wait_for_guests(&["alpha", "beta"]);
    node
}

#[test]
fn both_guests_boot_to_a_shell_and_ping_each_other() {
    let mut node = with_both_guests("hv_ping");
    {
        let mut alpha = node.guest("alpha");
        assert_eq!(alpha.run("hostname").trim(), "alpha");
        let pings = alpha.run_within("ping -c 5 -w 20 beta", Duration::from_secs(40));
        assert!(pings.contains("5 packets received, 0% packet loss"), "{pings}");
    }
    let mut beta = node.guest("beta");
    assert_eq!(beta.run("hostname").trim(), "beta");
    let pings = beta.run_within("ping -c 5 -w 20 alpha", Duration::from_secs(40));
    assert!(pings.contains("5 packets received, 0% packet loss"), "{pings}");
}

#[test]
fn one_guest_fetches_a_file_from_the_other_and_it_is_whole() {
    let mut node = with_both_guests("hv_transfer");
    let expected = sha256_hex(&guest::payload());
    let mut beta = node.guest("beta");
    for round in 0..3 {
        let sum = beta.run_within(
            "wget -q -O /tmp/p http://alpha/payload.bin && sha256sum /tmp/p && rm /tmp/p",
            Duration::from_secs(60),
        );
        assert!(sum.contains(&expected), "round {round}: {sum}");
    }
}

#[test]
fn a_guest_with_two_cpus_uses_both() {
    let text = include_str!("../../nos.toml").replacen("cpus = 1", "cpus = 2", 1);
    let mut node = Setup::of("hv_two_cpus").cpus(4).memory_mib(1024).configured(text).boot();
    node.wait_for_guests(&["alpha"]);
    let mut alpha = node.guest("alpha");
    assert_eq!(alpha.run("nproc").trim(), "2");
    let sums = alpha.run_within(
        "for cpu in 0 1; do taskset -c $cpu sha256sum /bin/busybox & done; wait; echo done",
        Duration::from_secs(60),
    );
    assert!(sums.contains("done"), "{sums}");
    drop(alpha);
    let listed = node.run("hv stat alpha");
    assert!(listed.contains("CPU 1:"), "{listed}");
}

#[test]
fn alphas_page_is_reached_through_a_port_of_the_node() {
    let mut node = with_both_guests("hv_forward").with_address();
    let port = node.host_port(Protocol::Tcp, 8080);
    let (status, body) =
        http::get(port, "/").unwrap_or_else(|error| panic!("{error:#}\n{}", node.transcript()));
    assert!(status.contains("200"), "{status}");
    assert!(String::from_utf8_lossy(&body).contains("alpha, a guest of nos"));
    let (_, payload) = http::get(port, "/payload.bin").unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(sha256_hex(&payload), sha256_hex(&guest::payload()));
    // The shell is not in the way.
    assert!(node.run("uptime").contains("up"));
}

#[test]
fn a_guest_reaches_the_node() {
    let mut node = with_both_guests("hv_gateway");
    let mut alpha = node.guest("alpha");
    let pings = alpha.run_within("ping -c 3 -w 20 10.77.0.1", Duration::from_secs(40));
    assert!(pings.contains("3 packets received"), "{pings}");
}

#[test]
fn a_guest_is_stopped_and_started_again_and_the_other_does_not_notice() {
    let mut node = with_both_guests("hv_restart");
    node.run("hv stop beta");
    let listed = node.run("hv list");
    let beta = listed.lines().find(|line| line.starts_with("beta")).unwrap_or_default();
    assert!(beta.contains("stopped"), "{listed}");
    assert_eq!(node.guest("alpha").run("echo still here").trim(), "still here");
    node.run("hv start beta");
    node.wait_for_guests(&["beta"]);
    let pings = node.guest("alpha").run_within("ping -c 3 -w 20 beta", Duration::from_secs(40));
    assert!(pings.contains("3 packets received"), "{pings}");
}

#[test]
fn stat_shows_exits_by_reason() {
    let mut node = with_both_guests("hv_stat");
    node.guest("alpha").run("ping -c 2 -w 10 beta");
    let stat = node.run("hv stat alpha");
    assert!(stat.contains("entries") && stat.contains("exits"), "{stat}");
    let reasons = stat.lines().filter(|line| {
        line.trim_start().split_once("  ").is_some_and(|(count, reason)| {
            count.trim().parse::<u64>().is_ok_and(|count| count > 0) && !reason.trim().is_empty()
        })
    });
    assert!(reasons.count() >= 3, "at least I/O, HLT and interrupts:\n{stat}");
}

#[test]
fn a_guest_that_powers_off_is_off_and_its_memory_is_free() {
    let mut node = with_both_guests("hv_poweroff");
    let before = free_mib(&mut node);
    node.guest("beta").press(b"poweroff -f\r");
    let reason =
        node.wait_for("the guest's end", Duration::from_secs(30), |announcement| match announcement {
            Announcement::GuestStopped { guest: "beta", reason } => Some(reason.to_owned()),
            _ => None,
        });
    assert!(reason.contains("power"), "{reason}");
    node.press(b"\x1d\r");
    let after = free_mib(&mut node);
    assert!(after >= before + 200, "256 MiB of guest come back: {before} MiB were free, now {after} MiB are");
    // And it can be had again.
    node.run("hv start beta");
    node.wait_for_guests(&["beta"]);
}

/// What `mem` says is free, in MiB.
fn free_mib(node: &mut Node) -> u64 {
    let text = node.run("mem");
    let line = text.lines().find(|line| line.starts_with("memory")).unwrap_or_default();
    let (amount, _) = line.rsplit_once(" free").unwrap_or_else(|| panic!("{text}"));
    let mut words = amount.rsplit(' ');
    let (unit, number) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let number: f64 = number.parse().unwrap_or_else(|_| panic!("{line}"));
    match unit {
        "GiB" => (number * 1024.0) as u64,
        "MiB" => number as u64,
        _ => 0,
    }
}

#[test]
fn sleeping_in_a_guest_takes_no_longer_than_it_should() {
    let mut node = with_both_guests("hv_sleep");
    let mut alpha = node.guest("alpha");
    let timed = alpha.run_within("time sh -c 'for i in $(seq 20); do usleep 10000; done'", GUEST_PATIENCE);
    let real = timed.lines().find(|line| line.starts_with("real")).unwrap_or_default();
    let seconds: f64 = real
        .rsplit(' ')
        .next()
        .and_then(|text| text.trim().trim_end_matches('s').parse().ok())
        .unwrap_or_else(|| panic!("{timed}"));
    // 0.2 s of sleep; a timer that only fires with the node's tick, or not at all, would be far off.
    assert!((0.15..3.0).contains(&seconds), "{timed}");
}
