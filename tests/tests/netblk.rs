//! The disk over UDP: every operation, every status, and every way to ask for it wrongly.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use stories::netblk::{Client, FLUSH, FUA, HEADER_BYTES, INFO, READ, Request, WRITE};
use stories::{Node, Setup};
use xtask::qemu::Protocol;

const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";
const SERVED_READ_ONLY: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\nread_only = true\n";

const OK: u16 = 0;
const BAD_REQUEST: u16 = 1;
const OUT_OF_RANGE: u16 = 2;
const READ_ONLY: u16 = 5;

/// An answer that would have come by now.
const SILENCE: Duration = Duration::from_secs(1);

fn served(setup: Setup) -> (Node, Client) {
    let node = setup.boot().ready().with_address();
    let port = node.host_port(Protocol::Udp, 10809);
    let client = Client::new(port);
    (node, client)
}

/// Bytes that say where they belong.
fn pattern(offset: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|place| ((offset + place) * 31 + (offset + place) / 251) as u8).collect()
}

#[test]
fn info_describes_the_disk() {
    let (_node, mut client) = served(Setup::of("netblk_info").configured(SERVED));
    let info = client.info();
    assert_eq!(info.size_bytes, 64 << 20);
    assert_eq!(info.sector_bytes, 512);
    // Two sectors fit behind 58 bytes of headers at MTU 1500.
    assert_eq!(info.datagram_bytes, 1024);
    assert_eq!(info.max_write_bytes, 1024);
    assert_eq!(info.max_read_bytes, 16 * 1024);
    assert!(info.slots >= 16 && !info.read_only);
}

#[test]
fn what_is_written_is_read() {
    let (node, mut client) = served(Setup::of("netblk_write").configured(SERVED));
    let info = client.info();
    // The first and the last sectors, and some between, with and without FUA.
    let places = [0, 512, 4096, 1_000_448, info.size_bytes - 1024];
    for (number, offset) in places.into_iter().enumerate() {
        let mut request = Request::write(offset, &pattern(offset, 1024));
        request.flags = if number % 2 == 0 { 0 } else { FUA };
        let reply = client.ask(request);
        assert_eq!((reply.status, reply.op, reply.offset), (OK, WRITE | 0x80, offset));
        assert!(reply.data.is_empty());
    }
    for offset in places {
        // 512 was overwritten in part by nothing later; 0 was, by 512.
        let expected =
            if offset == 0 { [pattern(0, 512), pattern(512, 512)].concat() } else { pattern(offset, 1024) };
        assert_eq!(client.read(offset, 1024), expected, "at {offset}");
    }
    assert_eq!(client.ask(Request::new(FLUSH, 0, 0)).status, OK);
    // The image on the host has it too.
    let image = std::fs::read(node.disk()).expect("the disk's image");
    assert_eq!(image[4096..5120], pattern(4096, 1024));
}

#[test]
fn a_long_read_comes_datagram_by_datagram() {
    let (_node, mut client) = served(Setup::of("netblk_long").configured(SERVED));
    for place in 0..16 {
        client.write(place * 1024, &pattern(place * 1024, 1024));
    }
    let replies = client.ask_all(Request::new(READ, 0, 16 * 1024));
    assert_eq!(replies.len(), 16);
    let offsets: HashSet<u64> = replies.iter().map(|reply| reply.offset).collect();
    assert_eq!(offsets.len(), 16);
    assert!(replies.iter().all(|reply| reply.length == 1024 && reply.data.len() == 1024));
    assert_eq!(client.read(0, 16 * 1024), pattern(0, 16 * 1024));
    // An odd number of sectors: the last datagram carries one.
    assert_eq!(client.read(512, 3 * 512), pattern(512, 3 * 512));
}

#[test]
fn many_requests_at_once_are_all_answered() {
    let (_node, mut client) = served(Setup::of("netblk_many").cpus(4).configured(SERVED));
    let slots = u64::from(client.info().slots.min(64));
    for round in 0..20 {
        let requests: Vec<Request> = (0..slots)
            .map(|number| {
                let offset = (round * slots + number) * 1024;
                Request { cookie: offset, ..Request::write(offset, &pattern(offset, 1024)) }
            })
            .collect();
        let mut missing: HashSet<u64> = requests.iter().map(|request| request.cookie).collect();
        requests.iter().for_each(|request| client.send(&request.bytes()));
        while !missing.is_empty() {
            match client.receive(SILENCE) {
                Some(reply) if reply.status == OK => {
                    missing.remove(&reply.cookie);
                }
                // Busy, or lost on the way: what a client does is ask again.
                Some(_) => {}
                None => {
                    let again = requests.iter().filter(|request| missing.contains(&request.cookie));
                    again.for_each(|request| client.send(&request.bytes()));
                }
            }
        }
    }
    for place in (0..20 * slots).step_by(7) {
        assert_eq!(client.read(place * 1024, 1024), pattern(place * 1024, 1024));
    }
}

#[test]
fn bad_requests_of_every_kind_are_answered_as_bad() {
    let (mut node, mut client) = served(Setup::of("netblk_bad").configured(SERVED));
    let read = Request::new(READ, 0, 1024);
    let cases = [
        ("another version", Request { version: 2, ..read.clone() }, BAD_REQUEST),
        ("an op that does not exist", Request { op: 9, ..read.clone() }, BAD_REQUEST),
        ("op 0", Request { op: 0, ..read.clone() }, BAD_REQUEST),
        ("unknown flags", Request { flags: 0x8000, ..read.clone() }, BAD_REQUEST),
        ("a read of nothing", Request { length: 0, ..read.clone() }, BAD_REQUEST),
        ("half a sector", Request { length: 256, ..read.clone() }, BAD_REQUEST),
        ("an offset inside a sector", Request { offset: 100, ..read.clone() }, BAD_REQUEST),
        ("a read that is too long", Request { length: 17 * 1024, ..read.clone() }, BAD_REQUEST),
        ("the longest length there is", Request { length: 0xffff_fe00, ..read.clone() }, BAD_REQUEST),
        ("data behind a read", Request { data: vec![0; 512], ..read.clone() }, BAD_REQUEST),
        ("a write without its data", Request::new(WRITE, 0, 1024), BAD_REQUEST),
        (
            "a write with too little data",
            Request { length: 1024, ..Request::write(0, &[1; 512]) },
            BAD_REQUEST,
        ),
        ("a write with too much data", Request { length: 512, ..Request::write(0, &[1; 1024]) }, BAD_REQUEST),
        ("a read behind the end", Request { offset: 64 << 20, ..read.clone() }, OUT_OF_RANGE),
        ("a read across the end", Request { offset: (64 << 20) - 512, ..read.clone() }, OUT_OF_RANGE),
        ("a range that overflows", Request { offset: u64::MAX - 511, ..read.clone() }, OUT_OF_RANGE),
        ("a write behind the end", Request::write(1 << 40, &[1; 512]), OUT_OF_RANGE),
    ];
    for (what, request, status) in cases {
        let op = request.op;
        // A bad request asks for no bytes that will come: one reply, whatever its op.
        let reply = client.ask(request);
        assert_eq!(reply.status, status, "{what}: {reply:x?}");
        assert_eq!(reply.op, op | 0x80, "{what}");
        assert!(reply.data.is_empty(), "{what}");
    }
    // A datagram that is cut in the middle of its header is answered; its missing fields are zero.
    let whole = Request::new(READ, 0, 1024).bytes();
    client.send(&whole[..20]);
    let reply = client.receive(SILENCE).expect("an answer to a header that is cut off");
    assert_eq!(reply.status, BAD_REQUEST);
    // Nothing of it has reached the disk, and the service lives.
    assert_eq!(client.read(0, 1024), vec![0; 1024]);
    assert!(node.run("netblk list").contains("10809"));
}

#[test]
fn what_is_not_netblk_is_dropped_in_silence() {
    let (mut node, mut client) = served(Setup::of("netblk_silence").configured(SERVED));
    let request = Request::new(INFO, 0, 0);
    let mut dropped = 0;
    for bytes in [
        Vec::new(),
        b"NBL".to_vec(),
        b"NBLK\x01".to_vec(),
        b"GET / HTTP/1.0\r\n\r\n".to_vec(),
        Request { magic: 0x4e42_4c4c, ..request.clone() }.bytes(),
        // A reply: two servers must not answer each other.
        Request { op: INFO | 0x80, ..request.clone() }.bytes(),
        vec![0; HEADER_BYTES],
    ] {
        client.send(&bytes);
        dropped += 1;
    }
    assert_eq!(client.receive(SILENCE), None, "an answer to what was no request");
    assert_eq!(client.info().sector_bytes, 512);
    let listed = node.run("netblk list");
    assert!(
        listed.contains(&format!("{dropped}")) || listed.contains("dropped"),
        "the drops are counted:\n{listed}"
    );
}

#[test]
fn a_read_only_service_refuses_writes_alone() {
    let (_node, mut client) = served(Setup::of("netblk_ro").configured(SERVED_READ_ONLY));
    assert!(client.info().read_only);
    assert_eq!(client.ask(Request::write(0, &[1; 512])).status, READ_ONLY);
    assert_eq!(client.read(0, 512), vec![0; 512]);
    assert_eq!(client.ask(Request::new(FLUSH, 0, 0)).status, OK);
}

#[test]
fn sectors_that_fit_no_datagram_are_for_version_2() {
    let (_node, mut client) = served(Setup::of("netblk_4k").sector_bytes(4096).configured(SERVED));
    for request in [Request::new(INFO, 0, 0), Request::new(READ, 0, 4096), Request::write(0, &[1; 1024])] {
        assert_eq!(client.ask(request).status, BAD_REQUEST);
    }
}

#[test]
fn a_stopped_service_leaves_nothing() {
    let (mut node, mut client) = served(Setup::of("netblk_stop").configured(SERVED));
    client.write(0, &pattern(0, 1024));
    let before = node.run("ps");
    for round in 0..5 {
        let answer = node.run("netblk stop 10809");
        assert!(!answer.contains("usage"), "{answer}");
        client.send(&Request::new(INFO, 0, 0).bytes());
        assert_eq!(client.receive(SILENCE), None, "round {round}: a stopped service answers");
        assert!(!node.run("netblk list").contains("10809"), "round {round}");
        // Its frames, its disk and its port are free: it starts again on the same port.
        node.run("netblk start nvme0n1 10809");
        assert_eq!(client.info().sector_bytes, 512, "round {round}");
    }
    assert_eq!(client.read(0, 1024), pattern(0, 1024));
    node.run("netblk stop all");
    let after = node.run("ps");
    let workers = |tasks: &str| tasks.lines().filter(|line| line.contains("netblk")).count();
    assert!(workers(&before) >= 1, "{before}");
    assert_eq!(workers(&after), 0, "{after}");
}

#[test]
fn a_service_is_started_by_hand_with_its_options() {
    let mut node = Setup::of("netblk_hand")
        .configured("[[forward]]\nport = 1\nguest = \"nobody\"\nguest_port = 1\n")
        .boot();
    node.wait_until_ready();
    node.run("insmod netblk");
    node.run("netblk start nvme0n1 10809 ro poll=1000 cpu=1");
    let listed = node.run("netblk list");
    assert!(listed.contains("nvme0n1") && listed.contains("10809") && listed.contains("ro"), "{listed}");
    let again = node.run("netblk start nvme0n1 10809");
    assert!(again.contains("10809"), "a taken port is named: {again}");
    let wrong = node.run("netblk start nvme0n1 99999");
    assert!(wrong.contains("99999"), "{wrong}");
}

/// Runs a program to its end, which must be a good one, and returns what it prints.
fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}:\n{text}\n{errors}", output.status);
    text
}

/// The host's client, as people build it.
fn client_program() -> PathBuf {
    succeed(Command::new("cargo").args(["build", "--quiet", "--package", "netblk"]));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("debug/netblk")
}

/// A file system is made by the host's own tools, written to the node's disk by the client, read back, and checked by
/// the host's own tools again.
fn a_file_system_survives(name: &str, make: &[&str], check: &[&str]) {
    let setup = Setup::of(name).cpus(4).configured(SERVED).disk_bytes(32 << 20);
    let (mut node, _client) = served(setup);
    let server = format!("127.0.0.1:{}", node.host_port(Protocol::Udp, 10809));
    let folder = Path::new("target/stories").join(name);
    let (image, back) = (folder.join("image"), folder.join("back"));
    std::fs::File::create(&image).and_then(|file| file.set_len(32 << 20)).expect("an empty image");
    succeed(Command::new(make[0]).args(&make[1..]).arg(&image));
    let netblk = client_program();
    succeed(Command::new(&netblk).args(["write", "--quiet", &server]).arg(&image));
    succeed(Command::new(&netblk).args(["read", "--quiet", &server]).arg(&back));
    let (written, read) = (std::fs::read(&image).expect("image"), std::fs::read(&back).expect("back"));
    assert!(written == read, "what is read is not what was written");
    succeed(Command::new(check[0]).args(&check[1..]).arg(&back));
    assert!(node.run("disks").contains(" 0 errors"));
}

#[test]
fn an_ext4_image_is_written_read_back_and_passes_fsck() {
    a_file_system_survives(
        "netblk_ext4",
        &["/usr/sbin/mkfs.ext4", "-q", "-F"],
        &["/usr/sbin/e2fsck", "-f", "-n"],
    );
}

#[test]
fn a_fat_image_is_written_read_back_and_passes_fsck() {
    a_file_system_survives("netblk_fat", &["/usr/sbin/mkfs.fat"], &["/usr/sbin/fsck.fat", "-n"]);
}

#[test]
fn the_client_informs_verifies_and_says_why_it_fails() {
    let (node, _client) = served(Setup::of("netblk_client").cpus(4).configured(SERVED));
    let server = format!("127.0.0.1:{}", node.host_port(Protocol::Udp, 10809));
    let netblk = client_program();
    let info = succeed(Command::new(&netblk).args(["info", "--json", &server]));
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert!(info.to_string().contains("67108864"), "the size of the disk is in {info}");
    succeed(Command::new(&netblk).args(["verify", "--quiet", "--length", "4M", &server]));
    // Behind the end of the disk: the server refuses, and the exit code says so.
    let refused = Command::new(&netblk)
        .args(["read", "--quiet", "--offset", "1G", "--length", "512", &server, "/dev/null"])
        .output()
        .expect("starting the client");
    assert!(!refused.status.success() && !refused.stderr.is_empty(), "{refused:?}");
}
