//! Bad input: what the configuration, the network, the disk and the guests may do without taking the node with them.

#![forbid(unsafe_code)]

use std::time::Duration;

use announce::Announcement;
use stories::frames::{self, NODE_CONFIGURATION, ipv4, ipv4_with, to_node, udp};
use stories::netblk::{Client, READ, Request};
use stories::program::{Program, Rings, notify, virtio_net_with_queue};
use stories::{Node, PATIENCE, Setup};
use xtask::qemu::Protocol;

const IO_ERROR: u16 = 3;
const UDP: u8 = 17;

/// The next refusal that the node announces: what, and why.
fn refusal(node: &mut Node) -> (String, String) {
    node.wait_for("a refusal", PATIENCE, |announcement| match announcement {
        Announcement::Refused { what, reason } => Some((what.to_owned(), reason.to_owned())),
        _ => None,
    })
}

/// Why a guest ended.
fn end_of(node: &mut Node, name: &str) -> String {
    node.wait_for(&format!("the end of {name}"), PATIENCE, |announcement| match announcement {
        Announcement::GuestStopped { guest, reason } if guest == name => Some(reason.to_owned()),
        _ => None,
    })
}

/// A section for a guest that is machine code of ours.
fn guest_section(name: &str, memory: &str) -> String {
    format!(
        "[[guest]]\nname = \"{name}\"\nmemory = \"{memory}\"\nkernel = \"{name}.bin\"\nautostart = true\n"
    )
}

#[test]
fn a_malformed_configuration_is_reported_by_line_and_the_shell_comes() {
    let text = "[node]\nname = \"lab\"\n\n[[guest]]\nname = \"alpha\"\nmemory = \"lots\"\nkernel = \"k\"\n[[netblk]]\ndisk = = 3\n";
    let mut node = Setup::of("bad_toml").configured(text).boot();
    let size = node.expect("nos.toml line 6");
    assert!(size.contains("expected a size") && size.contains("guest alpha is left out"), "{size}");
    let syntax = node.expect("nos.toml line 9");
    assert!(syntax.contains("expected"), "{syntax}");
    let mut node = node.ready();
    assert!(node.run("uptime").contains("up"));
}

#[test]
fn a_configuration_of_noise_gives_the_defaults_and_the_shell() {
    let noise: Vec<u8> =
        (0..4000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut node = Setup::of("noise_toml").configured(noise).boot();
    node.expect("nos.toml line ");
    assert!(node.ready().run("uptime").contains("up"));
}

#[test]
fn a_guest_without_its_kernel_is_refused_alone() {
    let text = format!("{}{}", guest_section("absent", "32 MiB"), guest_section("present", "32 MiB"));
    let present = Program::new().print("here I am\n").halt().into_kernel();
    let mut node = Setup::of("missing_kernel").configured(text).with_file("present.bin", present).boot();
    let (what, reason) = refusal(&mut node);
    assert_eq!(what, "guest absent");
    assert!(reason.contains("absent.bin"), "{reason}");
    let mut node = node.ready();
    let listed = node.run("hv list");
    assert!(listed.contains("present"), "{listed}");
}

#[test]
fn a_kernel_that_is_none_is_refused_by_what_is_wrong_with_it() {
    let text = guest_section("text", "32 MiB");
    let mut node = Setup::of("no_kernel")
        .configured(text)
        .with_file("text.bin", b"This is not a kernel. ".repeat(200))
        .boot();
    let reason = end_of(&mut node, "text");
    assert!(reason.contains("bzImage"), "{reason}");
    assert!(node.run("hv list").contains("bzImage"));
}

#[test]
fn a_guest_that_is_larger_than_the_machine_is_refused_and_nothing_panics() {
    let text = guest_section("giant", "64 GiB");
    let kernel = Program::new().halt().into_kernel();
    let mut node = Setup::of("giant").memory_mib(256).configured(text).with_file("giant.bin", kernel).boot();
    let reason = end_of(&mut node, "giant");
    assert!(reason.contains("memory"), "{reason}");
    // What it had of it was given back, and the second time is like the first.
    node.run("hv start giant");
    let again = end_of(&mut node, "giant");
    assert!(again.contains("memory"), "{again}");
    assert!(node.run("mem").contains("free"));
}

#[test]
fn a_triple_fault_ends_its_guest_alone() {
    let text = format!("{}{}", guest_section("faulty", "32 MiB"), guest_section("busy", "32 MiB"));
    let faulty = Program::new().print("now\n").triple_fault().into_kernel();
    let busy = Program::new().spin().into_kernel();
    let mut node = Setup::of("triple_fault")
        .cpus(4)
        .configured(text)
        .with_file("faulty.bin", faulty)
        .with_file("busy.bin", busy)
        .boot();
    let reason = end_of(&mut node, "faulty");
    assert!(reason.contains("triple fault"), "{reason}");
    // Guests start side by side: the other one may still be on its way.
    let started = std::time::Instant::now();
    let mut listed = node.run("hv list");
    while listed.contains("starting") && started.elapsed() < stories::PATIENCE {
        listed = node.run("hv list");
    }
    let state =
        |name: &str| listed.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(state("faulty").contains("triple fault"), "{listed}");
    assert!(state("busy").contains("running"), "{listed}");
    // A guest that computes without an exit of its own is still stopped when it is told to.
    node.run("hv stop busy");
    assert!(!node.run("hv list").contains("running"));
}

#[test]
fn a_guest_that_jumps_out_of_its_memory_ends_alone() {
    let kernel = Program::new().jump(0x4000_0000).into_kernel();
    let mut node = Setup::of("wild_jump")
        .configured(guest_section("wild", "32 MiB"))
        .with_file("wild.bin", kernel)
        .boot();
    let reason = end_of(&mut node, "wild");
    assert!(reason.contains("0x40000000") || reason.contains("triple fault"), "{reason}");
    assert!(node.run("uptime").contains("up"));
}

/// Rings that lie in the guest's memory, above its code.
const RINGS: Rings = Rings { size: 16, descriptors: 0x0180_0000, available: 0x0180_1000, used: 0x0180_2000 };
/// The first function of the guest's bus, and the queues of its card (VIRTIO 1.2 section 5.1.2).
const CARD: u32 = 1;
const TRANSMIT: u32 = 1;

/// Boots a guest with `program` and a card, and waits until the node has said `why` about it.
fn nonsense_is_named(name: &str, program: Program, why: &str) {
    let section = format!("{}address = \"10.77.0.9\"\n", guest_section("liar", "64 MiB"));
    let kernel = program.print("done\n").halt().into_kernel();
    let mut node = Setup::of(name).configured(section).with_file("liar.bin", kernel).boot();
    let line = node.expect(why);
    assert!(line.contains("liar"), "the guest is named: {line}");
    // The node, its shell and its switch live on.
    assert!(node.run("uptime").contains("up"));
    assert!(node.run("hv list").contains("liar"));
    node.run("hv stop liar");
    assert!(node.run("hv start liar").contains("liar"));
}

#[test]
fn rings_outside_the_guests_memory_stop_its_card_by_name() {
    let rings = Rings { descriptors: 0xffff_f000_0000_0000, ..RINGS };
    let program = notify(virtio_net_with_queue(CARD, TRANSMIT, rings), CARD, TRANSMIT);
    nonsense_is_named("rings_outside", program, "descriptor table");
}

#[test]
fn a_chain_that_bites_its_tail_stops_its_card_by_name() {
    let program = virtio_net_with_queue(CARD, TRANSMIT, RINGS)
        // A descriptor: address, length, flags (1: there is a next one) and the next, which is itself.
        .store(0x0180_0000, 0x0190_0000)
        .store(0x0180_0004, 0)
        .store(0x0180_0008, 64)
        .store(0x0180_000c, 0x0000_0001)
        // The available ring: flags, index 1, descriptor 0.
        .store(0x0180_1000, 1 << 16)
        .store(0x0180_1004, 0);
    nonsense_is_named("loop", notify(program, CARD, TRANSMIT), "is a loop");
}

#[test]
fn an_index_from_nowhere_stops_its_card_by_name() {
    let program = virtio_net_with_queue(CARD, TRANSMIT, RINGS).store(0x0180_1000, 0x4321 << 16);
    nonsense_is_named("wild_index", notify(program, CARD, TRANSMIT), "available");
}

#[test]
fn frames_that_lie_are_dropped_and_counted() {
    let mut node = Setup::of("frames").configured(NODE_CONFIGURATION).wired_to_the_story().boot().ready();
    assert!(node.wire().resolve(), "the node answers ARP");
    assert!(node.wire().ping(1), "the node answers a ping");
    let right = ipv4(UDP, &udp(9, 8 + 16, &[7; 16]));
    let lies = [
        ("shorter than an Ethernet header", vec![0x52; 9]),
        ("an Ethernet header alone", to_node(&[])),
        ("half an IP header", to_node(&right[..10])),
        ("IP version 7", to_node(&ipv4_with(&right, 0, &[0x75]))),
        ("an IP header of 8 bytes", to_node(&ipv4_with(&right, 0, &[0x42]))),
        ("an IP header longer than the packet", to_node(&ipv4_with(&right, 0, &[0x4f]))),
        ("more bytes than the frame has", to_node(&ipv4_with(&right, 2, &[0x05, 0xdc]))),
        ("fewer bytes than the header", to_node(&ipv4_with(&right, 2, &[0, 10]))),
        ("a wrong header checksum", {
            let mut packet = right.clone();
            packet[10] ^= 0x55;
            to_node(&packet)
        }),
        ("a UDP length beyond the packet", to_node(&ipv4(UDP, &udp(9, 60_000, &[7; 16])))),
        ("a UDP length below its header", to_node(&ipv4(UDP, &udp(9, 3, &[7; 16])))),
        ("a UDP header that is cut off", to_node(&ipv4(UDP, &[1, 2, 3]))),
        ("ARP that is cut off", frames::ethernet(frames::NODE_MAC, 0x0806, &[0, 1, 8, 0])),
        ("a fragment of nothing", to_node(&ipv4_with(&right, 6, &[0x3f, 0xff]))),
        ("longer than a frame may be", to_node(&[0; 1900])),
        ("much longer than a frame may be", to_node(&[0; 9000])),
    ];
    let before = dropped(&mut node);
    for round in 0..10 {
        for (what, frame) in &lies {
            node.wire().send(frame);
            assert!(round > 0 || node.wire().ping(100), "the node is silent after {what}");
        }
    }
    assert!(node.wire().ping(2), "the node answers after all of it");
    let after = dropped(&mut node);
    // Not every lie reaches the node's own checks: QEMU's card keeps some away. Most do.
    assert!(after >= before + 80, "160 lies, {} counted:\n{}", after - before, node.run("net"));
    assert!(node.run("mem").contains("free"));
}

/// Every number of dropped or bad frames that `net` shows, added up.
fn dropped(node: &mut Node) -> u64 {
    let text = node.run("net");
    let mut sum = 0;
    for line in text.lines() {
        if let Some(rest) = line.trim().strip_prefix("dropped, received: ") {
            sum += rest.split(' ').next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
        } else if line.contains("received") {
            let words: Vec<&str> = line.split([' ', ',', ';']).filter(|word| !word.is_empty()).collect();
            for pair in words.windows(2) {
                if matches!(pair[1], "dropped" | "bad") {
                    sum += pair[0].parse::<u64>().unwrap_or(0);
                }
            }
        }
    }
    sum
}

const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";

fn served(setup: Setup) -> (Node, Client) {
    let node = setup.configured(SERVED).boot().ready().with_address();
    let client = Client::new(node.host_port(Protocol::Udp, 10809));
    (node, client)
}

#[test]
fn a_command_that_the_disk_fails_is_status_3_and_a_line_in_the_log() {
    let (mut node, mut client) = served(Setup::of("disk_fails").failing_to_read(2048).failing_to_write(4096));
    let reply = client.ask(Request::new(READ, 2048 * 512, 512));
    assert_eq!((reply.status, reply.data.len()), (IO_ERROR, 0));
    let reply = client.ask(Request::write(4096 * 512, &[1; 512]));
    assert_eq!(reply.status, IO_ERROR);
    // The sectors beside them are as good as before.
    client.write(2049 * 512, &[7; 512]);
    assert_eq!(client.read(2049 * 512, 512), vec![7; 512]);
    let log = node.run("dmesg");
    assert!(log.lines().any(|line| line.contains("nvme0n1") && line.contains("error")), "{log}");
    assert!(node.run("disks").contains("2 errors"));
}

#[test]
fn a_disk_that_vanishes_is_status_3_and_not_a_hang() {
    let (mut node, mut client) = served(Setup::of("disk_gone"));
    client.write(0, &[7; 1024]);
    node.monitor("drive_del disk0");
    let reply = client.ask(Request::new(READ, 0, 1024));
    assert_eq!(reply.status, IO_ERROR);
    assert_eq!(client.ask(Request::write(0, &[1; 512])).status, IO_ERROR);
    assert!(node.run("uptime").contains("up"));
    node.run("netblk stop all");
    assert!(node.run("disks").contains("errors"));
}

#[test]
fn a_disk_that_does_not_answer_is_status_3_in_the_end() {
    let (mut node, mut client) = served(Setup::of("disk_hangs"));
    client.write(0, &[7; 1024]);
    // One byte a second: the first read is let through, the next would take a quarter of an hour.
    node.monitor("block_set_io_throttle nvme0 0 1 0 0 0 0");
    client.read(0, 1024);
    client.send(&Request { cookie: 77, ..Request::new(READ, 1024, 1024) }.bytes());
    // The node's own time limit for a command decides; the shell must not wait for it.
    assert!(node.run("uptime").contains("up"));
    let reply = client.receive(Duration::from_secs(90)).expect("an answer although the disk gives none");
    assert_eq!((reply.cookie, reply.status), (77, IO_ERROR));
    let log = node.run("dmesg");
    assert!(log.contains("a command was not answered in time"), "{log}");
}
