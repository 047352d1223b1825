//! What every network card has to do, on each kind that there is.

use std::collections::HashSet;
use std::time::Duration;

use stories::frames::{NODE_CONFIGURATION, NODE_MAC, ethernet};
use stories::netblk::Client;
use stories::{Node, Setup, http};
use xtask::guest;
use xtask::qemu::{Nic, Protocol};
use xtask::workspace::sha256_hex;

use crate::jumbo::{LONGEST, echo, payload, start_echo};

/// The same stories on each card.
macro_rules! on_each_card {
    ($($story:ident,)*) => {
        mod virtio {
            $(#[test]
            fn $story() {
                super::$story(super::Nic::Virtio);
            })*
        }
        mod igb {
            $(#[test]
            fn $story() {
                super::$story(super::Nic::Igb);
            })*
        }
    };
}

on_each_card! {
    the_network_gives_an_address_and_the_gateway_answers,
    a_disk_is_served,
    datagrams_of_every_length_come_back,
    a_flood_of_frames_of_every_length_is_survived,
    a_cable_that_is_pulled_out_and_put_in_again,
    a_card_that_is_restarted_goes_on,
    a_guest_is_reached_and_reaches_out,
}

fn setup(story: &str, nic: Nic) -> Setup {
    let card = match nic {
        Nic::Virtio => "virtio",
        Nic::Igb => "igb",
    };
    Setup::of(&format!("card_{story}_{card}")).nic(nic)
}

/// A node whose cable ends in the story and that echoes.
fn wired(story: &str, nic: Nic) -> Node {
    start_echo(setup(story, nic).configured(NODE_CONFIGURATION).wired_to_the_story().boot().ready())
}

/// A number of the lines that `net` shows of the first card, by the word in front of it or behind it.
fn card_counter(node: &mut Node, line_begins: &str, word_behind: &str) -> u64 {
    let text = node.run("net");
    let line = text.lines().find(|line| line.trim_start().starts_with(line_begins));
    let number = line.and_then(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = words.iter().position(|word| word.starts_with(word_behind))?;
        words.get(place.checked_sub(1)?)?.parse().ok()
    });
    number.unwrap_or_else(|| panic!("no {word_behind} behind {line_begins} in:\n{text}"))
}

fn the_network_gives_an_address_and_the_gateway_answers(nic: Nic) {
    let mut node = setup("address", nic).boot().ready().with_address();
    let answers = node.run("ping 10.0.2.2 5");
    assert!(answers.contains("5 of 5 answered"), "{answers}");
    let kind = if nic == Nic::Igb { "82576 at" } else { "virtio-net at" };
    assert!(node.transcript().contains(&format!("eth0: {kind}")), "{}", node.transcript());
}

fn a_disk_is_served(nic: Nic) {
    const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";
    let node = setup("disk", nic).configured(SERVED).boot().ready().with_address();
    let mut client = Client::new(node.host_port(Protocol::Udp, 10809));
    assert_eq!(client.info().size_bytes, 64 << 20);
    let bytes_at = |offset: u64| payload(offset as usize / 1024, 1024);
    for offset in (0..512 * 1024).step_by(1024) {
        client.write(offset, &bytes_at(offset));
    }
    for offset in (0..512 * 1024).step_by(16 * 1024) {
        let expected: Vec<u8> = (0..16).flat_map(|part| bytes_at(offset + part * 1024)).collect();
        assert!(client.read(offset, 16 * 1024) == expected, "at {offset}");
    }
}

/// From an empty one, which the wire pads, to the longest: each length once, several under way.
fn datagrams_of_every_length_come_back(nic: Nic) {
    let mut node = wired("lengths", nic);
    let before = node.free_frames();
    for bytes in 0..=1472 {
        let sent = payload(bytes, bytes);
        let answer = echo(&mut node, &sent).unwrap_or_else(|| panic!("no answer to {bytes} bytes"));
        assert!(answer == sent, "the answer to {bytes} bytes is another");
    }
    let after = node.free_frames();
    // The card holds the last few that it was sent, or was told to receive into.
    assert!(before.abs_diff(after) <= 64, "{before} frames were free, now {after}");
}

/// Frames to the node, to everyone and to others, of every length, with nothing sensible in them.
fn a_flood_of_frames_of_every_length_is_survived(nic: Nic) {
    let mut node = wired("flood", nic);
    let before = node.free_frames();
    let received = card_counter(&mut node, "received", "frames");
    let targets = [NODE_MAC, [0xff; 6], [2, 0, 0, 0, 0, 1], [1, 0, 0x5e, 0, 0, 1]];
    for bytes in 0..1500 {
        for target in targets {
            node.wire().send(&ethernet(
                target,
                [0x0800, 0x0806, 0x86dd, 60][bytes % 4],
                &payload(bytes, bytes),
            ));
        }
        // Cut off in the middle of the Ethernet header, too.
        node.wire().send(&ethernet(NODE_MAC, 0, &[])[..1 + bytes % 13]);
    }
    // Longer than any packet of the link, up to more than the longest of any.
    for bytes in (1501..12_000).step_by(7) {
        node.wire().send(&ethernet(NODE_MAC, 0x0800, &payload(bytes, bytes)));
    }
    let sent = payload(1, 1000);
    assert!(echo(&mut node, &sent).is_some_and(|answer| answer == sent), "the node is silent");
    assert!(node.wire().ping(1));
    assert!(card_counter(&mut node, "received", "frames") > received + 1500, "they did arrive");
    let after = node.free_frames();
    assert!(before.abs_diff(after) <= 64, "{before} frames were free, now {after}");
    assert!(!node.transcript().contains("reset ("), "the card was not at fault");
}

fn a_cable_that_is_pulled_out_and_put_in_again(nic: Nic) {
    let mut node = setup("cable", nic).boot().ready().with_address();
    for _ in 0..3 {
        node.monitor("set_link uplink off");
        node.expect("eth0: link down");
        node.monitor("set_link uplink on");
        node.expect("eth0: link up");
        let answers = node.run("ping 10.0.2.2 5");
        assert!(!answers.contains("\n0 of 5 answered"), "{answers}");
    }
    // Faster than anyone looks: what counts is how it ends.
    for _ in 0..20 {
        node.monitor("set_link uplink off");
        node.monitor("set_link uplink on");
    }
    let answers = node.run_within("ping 10.0.2.2 10", Duration::from_secs(60));
    assert!(!answers.contains("\n0 of 10 answered"), "{answers}");
}

fn a_card_that_is_restarted_goes_on(nic: Nic) {
    let mut node = wired("restart", nic);
    let before = node.free_frames();
    for round in 0..5 {
        // With packets in both rings.
        let sent: Vec<Vec<u8>> = (0..8).map(|number| payload(number, 100 + round)).collect();
        for payload in &sent {
            node.wire().send(&ethernet(NODE_MAC, 0x0800, payload));
        }
        // The log's lines come before the next prompt, or behind it.
        if !node.run("net restart eth0").contains("eth0: running again") {
            node.expect("eth0: running again");
        }
        let lost_and_asked_again = (0..50).any(|_| {
            let answer = echo(&mut node, &sent[0]);
            answer.is_some_and(|answer| answer == sent[0])
        });
        assert!(lost_and_asked_again, "round {round}: the node is silent");
    }
    let after = node.free_frames();
    assert!(before.abs_diff(after) <= 64, "{before} frames were free, now {after}");
    assert!(node.run("net restart eth7").contains("no card eth7"));
}

fn a_guest_is_reached_and_reaches_out(nic: Nic) {
    let mut node = setup("guest", nic).cpus(4).memory_mib(1024).configured_as_shipped().boot();
    node.wait_for_guests(&["alpha"]);
    let mut node = node.with_address();
    let port = node.host_port(Protocol::Tcp, 8080);
    let (status, page) =
        http::get(port, "/payload.bin").unwrap_or_else(|error| panic!("{error:#}\n{}", node.transcript()));
    assert!(status.contains("200"), "{status}");
    assert_eq!(sha256_hex(&page), sha256_hex(&guest::payload()));
    let mut alpha = node.guest("alpha");
    let pings = alpha.run_within("ping -c 5 -w 20 10.0.2.2", Duration::from_secs(40));
    assert!(pings.contains("5 packets received"), "{pings}");
}

/// An igb card does not say what its link carries: the configuration does.
#[test]
fn an_igb_card_has_jumbo_packets_where_it_is_told() {
    let configuration = format!("{NODE_CONFIGURATION}mtu = 9000\n");
    let setup = setup("jumbo", Nic::Igb).configured(configuration).wired_to_the_story();
    let mut node = start_echo(setup.boot().ready());
    let net = node.run("net");
    assert!(net.contains("MTU 9000"), "{net}");
    // Around the ends of the 2 KiB frames, and from one to six pieces.
    let first = 2048 - 42;
    let mut lengths: HashSet<usize> = (0..4)
        .flat_map(|frame| {
            let edge = first + frame * 2048;
            [edge - 1, edge, edge + 1]
        })
        .collect();
    lengths.extend([1, 18, 1472, 1473, 4096, LONGEST - 1, LONGEST]);
    for round in 0..20 {
        for bytes in &lengths {
            let sent = payload(round, *bytes);
            let answer = echo(&mut node, &sent).unwrap_or_else(|| panic!("no answer to {bytes} bytes"));
            assert!(answer == sent, "the answer to {bytes} bytes is another");
        }
    }
    assert!(node.wire().ping(1));
    // Longer than the link: the card drops it, or the node.
    node.wire().send(&ethernet(NODE_MAC, 0x0800, &[0; 12_000]));
    assert!(echo(&mut node, b"still there").is_some_and(|answer| answer == b"still there"));
}
