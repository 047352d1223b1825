//! Packets that take several frames, and packets of several pieces, over a cable that ends here.

use std::time::Duration;

use stories::counting::{INSTRUCTION_NS_LOG2, compare};
use stories::frames::{
    self, NODE_CONFIGURATION, NODE_MAC, STORY_IP, STORY_MAC, ipv4, ipv4_with, to_node, udp,
};
use stories::{Node, Setup};

/// The usual jumbo link.
pub const MTU: u16 = 9000;
/// A UDP payload that fills it: 20 bytes of IPv4 and 8 of UDP less.
pub const LONGEST: usize = 8972;
/// What of a payload lies in the first of the node's 2 KiB frames.
const FIRST: usize = 2048 - 42;
const ECHO_PORT: u16 = 7;
/// The port from which the story's datagrams come.
const STORY_PORT: u16 = 40_000;
const UDP: u8 = 17;
const HEADERS: usize = 42;
pub const PATIENCE: Duration = Duration::from_secs(10);

fn boot(name: &str, mtu: Option<u16>) -> Node {
    let setup = Setup::of(name).configured(NODE_CONFIGURATION).wired_to_the_story();
    let setup = match mtu {
        Some(mtu) => setup.mtu(mtu),
        None => setup,
    };
    start_echo(setup.boot().ready())
}

/// Has the node echo, once it answers at all.
pub fn start_echo(mut node: Node) -> Node {
    assert!(node.wire().resolve(), "the node answers ARP");
    let answer = node.run(&format!("udpecho {ECHO_PORT}"));
    assert!(answer.contains("is echoed"), "{answer}");
    node
}

/// A payload in which every byte tells where it lies, and whose it is.
pub fn payload(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 256 * 7 + at + number * 31) as u8).collect()
}

fn datagram(payload: &[u8]) -> Vec<u8> {
    datagram_to(ECHO_PORT, payload)
}

/// A frame with a datagram to a port of the node.
pub fn datagram_to(port: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).expect("a datagram");
    to_node(&ipv4(UDP, &udp(port, length, payload)))
}

/// The payload of an echo's answer, if this frame is one.
fn answered(frame: &[u8]) -> Option<Vec<u8>> {
    payload_from(ECHO_PORT, frame)
}

/// The payload of a datagram from a port of the node to the story, if this frame is one; all its headers must be right.
pub fn payload_from(port: u16, frame: &[u8]) -> Option<Vec<u8>> {
    let is_one = frame.len() >= HEADERS
        && frame[12..14] == [8, 0]
        && frame[23] == UDP
        && frame[34..36] == port.to_be_bytes()
        && frame[36..38] == STORY_PORT.to_be_bytes();
    if !is_one {
        return None;
    }
    assert_eq!((&frame[..6], &frame[6..12]), (&STORY_MAC[..], &NODE_MAC[..]));
    assert_eq!(frame[30..34], STORY_IP.octets());
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let length = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    assert_eq!((14 + total, 34 + length), (frame.len(), frame.len()), "lengths agree with what arrived");
    // The header with its checksum is as right as one with the checksum computed anew.
    assert_eq!(ipv4_with(&frame[14..], 0, &[0x45])[10..12], frame[24..26]);
    Some(frame[HEADERS..].to_vec())
}

/// Sends a datagram and waits for its answer.
pub fn echo(node: &mut Node, payload: &[u8]) -> Option<Vec<u8>> {
    node.wire().send(&datagram(payload));
    node.wire().receive(PATIENCE, answered)
}

/// How often the node has dropped a received packet for a reason, as `net` shows it.
fn drops(node: &mut Node, reason: &str) -> u64 {
    let text = node.run("net");
    let line = text.lines().find_map(|line| {
        let rest = line.trim().strip_prefix("dropped, received: ")?;
        rest.strip_suffix(reason)?.trim().parse().ok()
    });
    line.unwrap_or(0)
}

/// A number of the line of `mem` that begins with `what`, by its place in the line.
#[test]
fn packets_of_several_pieces_are_whole() {
    let mut node = Setup::of("packets").boot().ready();
    for _ in 0..3 {
        let answer = node.run("selftest packets");
        assert!(answer.contains("the pools have everything again"), "{answer}");
    }
}

#[test]
fn a_jumbo_datagram_comes_back_as_it_was_sent() {
    let mut node = boot("jumbo", Some(MTU));
    let net = node.run("net");
    assert!(net.contains("MTU 9000"), "{net}");
    let edges = [FIRST, FIRST + 2048, FIRST + 2 * 2048, FIRST + 3 * 2048];
    let around_edges = edges.iter().flat_map(|edge| [edge - 1, *edge, edge + 1]);
    for (number, bytes) in
        [1, 18, 1472, 1473, 4096, LONGEST - 1, LONGEST].into_iter().chain(around_edges).enumerate()
    {
        let payload = payload(number, bytes);
        let answer = echo(&mut node, &payload).unwrap_or_else(|| panic!("no answer to {bytes} bytes"));
        assert!(answer == payload, "the answer to {bytes} bytes is another");
    }
    assert!(node.wire().ping(1), "ordinary packets pass as before");
}

#[test]
fn jumbo_packets_leave_no_frame_behind() {
    const PACKETS: usize = 2000;
    /// As many as the card may receive while nobody looks.
    const WINDOW: usize = 8;
    let mut node = boot("jumbo_many", Some(MTU));
    assert!(echo(&mut node, b"the ring is full once it has been used").is_some());
    let before = node.free_frames();
    let mut lost = 0;
    for first in (0..PACKETS).step_by(WINDOW) {
        let sent: Vec<Vec<u8>> = (first..first + WINDOW)
            .map(|number| payload(number, 1 + number * 2_654_435_761 % LONGEST))
            .collect();
        for payload in &sent {
            node.wire().send(&datagram(payload));
        }
        for payload in &sent {
            match node.wire().receive(PATIENCE, answered) {
                Some(answer) => {
                    assert!(answer == *payload, "an answer of {} bytes is another", payload.len())
                }
                None => lost += 1,
            }
        }
    }
    assert_eq!(lost, 0, "of {PACKETS} packets");
    assert_eq!(node.free_frames(), before);
    let answer = node.run("udpecho off");
    assert!(answer.contains(&format!("{} datagrams sent back, 0 dropped", PACKETS + 1)), "{answer}");
}

#[test]
fn jumbo_packets_for_nobody_are_dropped_by_name() {
    const TOO_LONG: &str = "too long";
    const LYING: &str = "lying length";
    let mut node = boot("jumbo_drops", Some(MTU));
    let text = payload(0, 4000);
    let right = ipv4(UDP, &udp(ECHO_PORT, 4008, &text));
    let cases = [
        ("TCP", TOO_LONG, ipv4(6, &text)),
        ("ICMP", TOO_LONG, ipv4(1, &text)),
        ("a port that nobody has", TOO_LONG, ipv4(UDP, &udp(9, 4008, &text))),
        ("a port that nobody has, in one frame", TOO_LONG, ipv4(UDP, &udp(9, 1708, &text[..1700]))),
        ("an IP length that is too short", LYING, ipv4_with(&right, 2, &3000_u16.to_be_bytes())),
        ("an IP length that ends in the first frame", LYING, ipv4_with(&right, 2, &100_u16.to_be_bytes())),
        ("an IP length that is too long", LYING, ipv4_with(&right, 2, &5000_u16.to_be_bytes())),
        ("a UDP length that is too short", LYING, ipv4(UDP, &udp(ECHO_PORT, 4007, &text))),
        ("a UDP length that is too long", LYING, ipv4(UDP, &udp(ECHO_PORT, 4009, &text))),
        ("a fragment", "fragment", ipv4_with(&right, 6, &[0x20, 0])),
    ];
    for (what, reason, packet) in &cases {
        let before = drops(&mut node, reason);
        node.wire().send(&to_node(packet));
        assert!(node.wire().ping(1), "the node is silent after {what}");
        assert_eq!(drops(&mut node, reason), before + 1, "{what}: {}", node.run("net"));
    }
    // It arrives, for the card has room for whole frames, and is more than may be sent.
    node.wire().send(&datagram(&payload(0, LONGEST + 1)));
    assert!(echo(&mut node, b"still there").is_some_and(|answer| answer == b"still there"));
    let net = node.run("net");
    assert!(net.lines().any(|line| line.contains("sent") && line.contains("; 1 dropped")), "{net}");
}

/// As `no_copy` shows of netblk: if an instruction looked at the data, eight bytes each at best, more data would be more
/// instructions. The lengths take the same number of frames, since each frame has its price.
#[test]
fn no_instruction_touches_the_data_of_a_jumbo_packet() {
    const SHORT: u32 = FIRST as u32 + 1;
    const LONG: u32 = FIRST as u32 + 2048;
    let least_for_a_look = f64::from(LONG - SHORT) / 8.0;
    let setup = Setup::of("jumbo_counted").configured(NODE_CONFIGURATION).wired_to_the_story().mtu(MTU);
    let setup = setup.cpus(1).counting_instructions(INSTRUCTION_NS_LOG2);
    let mut node = start_echo(setup.boot().ready());
    let (short, more) = compare(&mut node, [SHORT, LONG], |node, number, length| {
        let payload = payload(number as usize, length as usize);
        assert!(echo(node, &payload).is_some_and(|answer| answer == payload));
    });
    println!("an echo: {short:.0} instructions for {SHORT} bytes, {more:+.1} for {LONG}");
    assert!(more.abs() < least_for_a_look / 2.0, "{more:+.1} instructions more, of {short:.0}");
}

#[test]
fn an_ordinary_card_has_no_jumbo_packets() {
    let mut node = boot("no_jumbo", None);
    assert!(node.run("net").contains("MTU 1500"));
    let most = payload(1, 1472);
    assert!(echo(&mut node, &most).is_some_and(|answer| answer == most));
    node.wire().send(&datagram(&payload(2, 4000)));
    assert!(echo(&mut node, b"after").is_some_and(|answer| answer == b"after"), "the long one is gone");
    node.wire().send(&frames::ethernet(NODE_MAC, 0x0800, &[0; 9000]));
    assert!(node.wire().ping(1));
}
