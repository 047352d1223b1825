//! Disks of every kind: NVMe and virtio-blk, sectors of 512 and 4096 bytes, whole and in partitions, and what becomes of
//! requests when a disk fails, hangs or fills up.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use netblk_proto::v2::{Op, Status};
use stories::netblk::{Client, FLUSH, FUA, READ, Request};
use stories::session::Session;
use stories::{Node, Setup};
use xtask::qemu::{DiskEvent, DiskFault, DiskModel, Protocol};

/// Statuses of replies.
const OK: u16 = 0;
const IO_ERROR: u16 = 3;

fn served(setup: Setup, disk: &str) -> (Node, Client) {
    let configuration = format!("[[netblk]]\ndisk = \"{disk}\"\nport = 10809\n");
    let node = setup.configured(configuration).boot().ready().with_address();
    let client = Client::new(node.host_port(Protocol::Udp, 10809));
    (node, client)
}

/// Both models, with the name of the first disk of each.
const MODELS: [(DiskModel, &str); 2] = [(DiskModel::Nvme, "nvme0n1"), (DiskModel::Virtio, "vda")];

/// Bytes that say where they belong.
fn pattern(offset: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|place| ((offset + place) * 37 + (offset + place) / 241) as u8).collect()
}

#[test]
fn every_way_of_writing_works_on_every_disk() {
    let mut node = Setup::of("disks_check")
        .one_more_disk(DiskModel::Nvme, 4096, 32 << 20)
        .one_more_disk(DiskModel::Virtio, 512, 32 << 20)
        .one_more_disk(DiskModel::Virtio, 4096, 32 << 20)
        .boot()
        .ready();
    for disk in ["nvme0n1", "nvme1n1", "vda", "vdb"] {
        let sectors = if matches!(disk, "nvme0n1" | "vda") { 512 } else { 4096 };
        let info = node.run(&format!("disk info {disk}"));
        assert!(info.contains(&format!("sectors of {sectors} bytes")), "{info}");
        let answer = node.run(&format!("disk check {disk} 1000 64 --yes"));
        assert!(answer.contains(&format!("{disk}: all well")), "{answer}");
        // From one piece to six; a sector of 4 KiB does not fit into two frames.
        assert!(
            answer.contains("written from 3 pieces: well") && answer.contains("written from 6 pieces: well")
        );
        assert_eq!(answer.contains("written from 2 pieces: well"), sectors == 512, "{answer}");
        assert!(answer.contains("zeroed: well") && answer.contains("discarded: reads as"), "{answer}");
        // The last sectors of the disk, with an odd number of them.
        let last = (if disk == "nvme0n1" { 64_u64 << 20 } else { 32 << 20 }) / sectors - 7;
        let answer = node.run(&format!("disk check {disk} {last} 7 --yes"));
        assert!(answer.contains("all well"), "{answer}");
    }
    let disks = node.run("disks");
    assert!(!disks.contains(" 0 reads") && disks.matches(" 0 errors").count() == 4, "{disks}");
}

#[test]
fn nobody_zeroes_a_disk_by_mistake() {
    let mut node = Setup::of("disks_mistake").disk_model(DiskModel::Virtio).boot().ready();
    node.run("disk check vda 0 8 --yes");
    for command in [
        "disk zero vda 0 8",
        "disk discard vda 0 8",
        "disk check vda 0 8",
        "disk zero vda 0 8 --yes --yes",
        "disk zero vda 0 8 yes",
        "disk zero vda --yes",
    ] {
        let answer = node.run(command);
        assert!(answer.contains("--yes behind it") || answer.contains("usage: disk"), "{command}: {answer}");
    }
    // Beyond the end, and where there is none.
    assert!(node.run("disk zero vda 131072 1 --yes").contains("vda has sectors 0 to 131071"));
    assert!(node.run("disk zero vda 18446744073709551615 2 --yes").contains("has sectors"));
    assert!(node.run("disk zero vdb 0 1 --yes").contains("there is no disk vdb"));
    assert!(!node.run("disks").contains("2 writes of zeroes, 2 "));
}

#[test]
fn a_read_only_virtio_disk_is_read_and_nothing_else() {
    let setup = Setup::of("disks_read_only").disk_model(DiskModel::Virtio).disk_read_only();
    let (mut node, mut client) = served(setup, "vda");
    let info = client.info();
    assert!(info.read_only);
    assert_eq!(client.read(0, 1024), vec![0; 1024]);
    assert!(node.run("disk zero vda 0 1 --yes").contains("read-only"));
    assert!(node.run("disk discard vda 0 1 --yes").contains("read-only"));
}

#[test]
fn virtio_disks_are_served_as_nvme_is() {
    for (model, disk) in MODELS {
        let (mut node, mut client) =
            served(Setup::of(&format!("disks_served_{disk}")).disk_model(model), disk);
        let info = client.info();
        assert_eq!((info.size_bytes, info.sector_bytes, info.read_only), (64 << 20, 512, false));
        for (number, offset) in [0, 512, 4096, 1_000_448, info.size_bytes - 1024].into_iter().enumerate() {
            let mut request = Request::write(offset, &pattern(offset, 1024));
            request.flags = if number % 2 == 0 { 0 } else { FUA };
            assert_eq!(client.ask(request).status, OK);
            assert_eq!(client.read(offset, 1024), pattern(offset, 1024), "{disk} at {offset}");
        }
        assert_eq!(client.ask(Request::new(FLUSH, 0, 0)).status, OK);
        // 16 KiB in one request, over what was written and what was not.
        let long = client.read(0, 16 * 1024);
        assert_eq!(long[4096..5120], pattern(4096, 1024));
        assert!(long[6144..].iter().all(|byte| *byte == 0));
        // On the host the bytes lie where they were sent.
        let image = fs::read(node.disk()).unwrap();
        assert_eq!(image[4096..5120], pattern(4096, 1024));
        // Forced writes on virtio-blk are writes with a flush behind them, which are one transfer.
        let disks = node.run("disks");
        assert!(disks.contains("5 writes, 1 flushes, 0 errors"), "{disks}");
    }
}

#[test]
fn sectors_of_4_kib_are_served_on_virtio_without_a_copy() {
    let setup = Setup::of("disks_4k_virtio").disk_model(DiskModel::Virtio).sector_bytes(4096);
    let (mut node, _client) = served(setup, "vda");
    let mut session = Session::open(node.host_port(Protocol::Udp, 10809));
    assert_eq!(session.info.device.sector_bytes, 4096);
    for number in 0..16_u64 {
        session.write(number * 4096, &pattern(number * 4096, 4096));
    }
    assert_eq!(session.ask(Op::Flush, 0, 0, &[]).status, Status::Ok);
    for number in (0..16_u64).step_by(4) {
        assert_eq!(session.read(number * 4096, 16384), pattern(number * 4096, 16384));
    }
    assert_eq!(session.ask(Op::WriteZeroes, 4096, 8192, &[]).status, Status::Ok);
    assert_eq!(session.read(4096, 12288), [vec![0; 8192], pattern(12288, 4096)].concat());
    assert_eq!(session.ask(Op::Discard, 0, 4096, &[]).status, Status::Ok);
    let listed = node.run("netblk list");
    assert!(listed.contains("copies     0"), "{listed}");
    assert!(node.run("disks").contains("1 discards, 1 writes of zeroes"));
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// An image with a GPT of two partitions of 16 MiB.
fn partitioned(name: &str) -> PathBuf {
    xtask::workspace::enter_root().unwrap();
    let folder = xtask::workspace::target().join("stories").join(format!("{name}.images"));
    fs::create_dir_all(&folder).unwrap();
    let image = folder.join("disk.img");
    fs::write(&image, []).unwrap();
    fs::File::options().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
    let script = "label: gpt\nstart=2048, size=32768, name=first\nstart=40960, size=32768, name=second\n";
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.arg("--quiet").arg(&image).stdin(std::process::Stdio::piped());
    let mut child = sfdisk.spawn().expect("sfdisk");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    image
}

#[test]
fn partitions_keep_their_bounds() {
    for (model, disk, partition) in
        [(DiskModel::Nvme, "nvme0n1", "nvme0n1p2"), (DiskModel::Virtio, "vda", "vda2")]
    {
        let name = format!("disks_partitions_{disk}");
        let image = partitioned(&name);
        let setup = Setup::of(&name).disk_model(model).disk_file(&image, "raw");
        let (mut node, mut client) = served(setup, partition);
        let info = client.info();
        assert_eq!(info.size_bytes, 16 << 20);
        client.write(0, &pattern(0, 1024));
        client.write(info.size_bytes - 512, &pattern(9, 512));
        assert_ne!(client.ask(Request::new(READ, info.size_bytes, 512)).status, OK);
        let refused = node.run(&format!("disk zero {partition} 32768 1 --yes"));
        assert!(refused.contains("has sectors 0 to 32767"), "{refused}");
        // Zeroes and discards too are the partition's own: what lies beside it stays.
        node.run(&format!("disk check {disk} 40952 8 --yes"));
        let answer = node.run(&format!("disk check {partition} 2 6 --yes"));
        assert!(answer.contains("all well"), "{answer}");
        assert_eq!(client.read(0, 1024), pattern(0, 1024));
        client.ask(Request::new(FLUSH, 0, 0));
        let bytes = fs::read(&image).unwrap();
        let start = 40960 * 512;
        assert_eq!(bytes[start..start + 1024], pattern(0, 1024));
        assert_eq!(bytes[start + (16 << 20) - 512..start + (16 << 20)], pattern(9, 512));
        assert!(bytes[start + (16 << 20)..start + (17 << 20)].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_file_system_survives_on_virtio() {
    let name = "disks_ext4";
    let (_node, mut client) = served(Setup::of(name).disk_model(DiskModel::Virtio), "vda");
    let folder = xtask::workspace::target().join("stories").join(name);
    let (made, read) = (folder.join("made.img"), folder.join("read.img"));
    fs::File::create(&made).unwrap().set_len(8 << 20).unwrap();
    succeed(Command::new("mkfs.ext4").args(["-q", "-F", "-d", "tests/tests"]).arg(&made));
    let image = fs::read(&made).unwrap();
    for (number, block) in image.chunks(1024).enumerate() {
        let offset = number as u64 * 1024;
        if block.iter().any(|byte| *byte != 0) {
            client.write(offset, block);
        }
    }
    assert_eq!(client.ask(Request::new(FLUSH, 0, 0)).status, OK);
    let back: Vec<u8> =
        (0..image.len() as u64).step_by(16 << 10).flat_map(|offset| client.read(offset, 16 << 10)).collect();
    assert!(back == image, "the image reads as something else");
    fs::write(&read, back).unwrap();
    succeed(Command::new("fsck.ext4").args(["-f", "-n"]).arg(&read));
}

#[test]
fn a_queue_that_fills_loses_nothing() {
    let mut node = Setup::of("disks_flood").one_more_disk(DiskModel::Virtio, 512, 32 << 20).boot().ready();
    // NVMe: 511 places of which 8 are kept; virtio: 256 of which 8.
    for (disk, room) in [("nvme0n1", 503), ("vda", 248)] {
        let answer = node.run(&format!("disk flood {disk} 20000"));
        assert!(answer.contains("20000 done, 0 failed, 0 with wrong memory"), "{answer}");
        let at_once: u64 = number_before(&answer, " at once");
        assert!(at_once >= room / 2, "{answer}");
        let busy: u64 = number_before(&answer, " refused as busy");
        assert!(busy > 0, "the queue never filled: {answer}");
    }
}

fn number_before(text: &str, words: &str) -> u64 {
    let before = text.split(words).next().unwrap_or_default();
    let digits = before.rsplit(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or_else(|_| panic!("no number before {words:?} in {text:?}"))
}

fn fault(event: DiskEvent, once: bool) -> DiskFault {
    DiskFault { event, sector: (event != DiskEvent::Flush).then_some(2048), once }
}

#[test]
fn an_error_that_comes_once_is_reported_once() {
    for (model, disk) in MODELS {
        let setup = Setup::of(&format!("disks_once_{disk}"))
            .disk_model(model)
            .with_fault(fault(DiskEvent::Read, true))
            .with_fault(fault(DiskEvent::Write, true))
            .with_fault(fault(DiskEvent::Flush, true));
        let (mut node, mut client) = served(setup, disk);
        let (offset, request) = (2048 * 512, Request::write(2048 * 512, &pattern(1, 512)));
        assert_eq!(client.ask(request.clone()).status, IO_ERROR, "{disk}: the first write");
        assert_eq!(client.ask(request).status, OK, "{disk}: the second write");
        assert_eq!(client.ask(Request::new(READ, offset, 512)).status, IO_ERROR, "{disk}: the first read");
        assert_eq!(client.read(offset, 512), pattern(1, 512));
        assert_eq!(client.ask(Request::new(FLUSH, 0, 0)).status, IO_ERROR, "{disk}: the first flush");
        assert_eq!(client.ask(Request::new(FLUSH, 0, 0)).status, OK, "{disk}: the second flush");
        let disks = node.run("disks");
        assert!(disks.contains("3 errors"), "{disks}");
        assert!(node.run("dmesg").contains(&format!("{disk}: writing 1 sectors at 2048")));
    }
}

#[test]
fn a_disk_that_cannot_flush_makes_no_promise() {
    for (model, disk) in MODELS {
        let setup = Setup::of(&format!("disks_flush_{disk}"))
            .disk_model(model)
            .with_fault(fault(DiskEvent::Flush, false));
        let (mut node, mut client) = served(setup, disk);
        client.write(0, &pattern(0, 1024));
        for _ in 0..3 {
            assert_eq!(client.ask(Request::new(FLUSH, 0, 0)).status, IO_ERROR, "{disk}");
        }
        // On virtio-blk a forced write is a write and a flush: without the flush it has failed, though the data is there.
        // QEMU's NVMe makes a forced write durable behind the place where the faults are.
        let forced = Request { flags: FUA, ..Request::write(4096, &pattern(4096, 512)) };
        let (status, errors) = if model == DiskModel::Virtio { (IO_ERROR, 4) } else { (OK, 3) };
        assert_eq!(client.ask(forced).status, status, "{disk}");
        assert_eq!(client.read(4096, 512), pattern(4096, 512));
        assert_eq!(client.read(0, 1024), pattern(0, 1024));
        assert!(node.run("disks").contains(&format!("{errors} errors")));
    }
}

/// From now on the disk takes an hour for a sector: QEMU's throttle, a byte a second.
fn hang(node: &mut Node) {
    node.monitor("block_set_io_throttle disk0 0 1 0 0 0 0");
}

fn let_go(node: &mut Node) {
    node.monitor("block_set_io_throttle disk0 0 0 0 0 0 0");
}

#[test]
fn a_disk_that_hangs_is_reset_and_serves_again() {
    for (model, disk) in MODELS {
        let (mut node, mut client) = served(Setup::of(&format!("disks_hang_{disk}")).disk_model(model), disk);
        client.write(0, &pattern(0, 1024));
        hang(&mut node);
        // The first is let through; the others would take a quarter of an hour each.
        client.read(0, 1024);
        for cookie in 0..8 {
            client.send(
                &Request { cookie: 100 + cookie, ..Request::new(READ, 1024 * (1 + cookie), 1024) }.bytes(),
            );
        }
        let mut cookies = Vec::new();
        while cookies.len() < 8 {
            let reply =
                client.receive(Duration::from_secs(90)).expect("an answer although the disk gives none");
            assert_eq!(reply.status, IO_ERROR, "{disk}");
            cookies.push(reply.cookie);
        }
        cookies.sort_unstable();
        assert_eq!(cookies, (100..108).collect::<Vec<_>>(), "{disk}: each once");
        let_go(&mut node);
        node.expect_within("in use again after a reset", Duration::from_secs(60));
        assert_eq!(client.read(0, 1024), pattern(0, 1024));
        client.write(8192, &pattern(8192, 1024));
        assert_eq!(client.read(8192, 1024), pattern(8192, 1024));
        // The whole queue is usable again.
        let answer = node.run_within(&format!("disk flood {disk} 5000"), Duration::from_secs(60));
        assert!(answer.contains("5000 done, 0 failed, 0 with wrong memory"), "{answer}");
    }
}

#[test]
fn a_full_queue_is_answered_when_the_disk_hangs() {
    for ((model, disk), transfers) in MODELS.into_iter().zip([520, 260]) {
        let mut node = Setup::of(&format!("disks_full_{disk}")).disk_model(model).boot().ready();
        hang(&mut node);
        // More than the queue holds. Those under way end with the reset; those behind them find the disk as it is then.
        let flood = node.run_within(&format!("disk flood {disk} {transfers}"), Duration::from_secs(120));
        assert!(flood.contains("0 with wrong memory"), "{flood}");
        let line = flood.lines().find(|line| line.contains(" done, ")).expect("the flood's outcome");
        let (done, failed) = (number_before(line, " done"), number_before(line, " failed"));
        assert_eq!(done + failed, transfers, "{flood}");
        assert!(failed >= 200, "{flood}");
        let_go(&mut node);
        let answer = node.run_within(&format!("disk flood {disk} 20000"), Duration::from_secs(60));
        assert!(answer.contains("20000 done, 0 failed, 0 with wrong memory"), "{answer}");
    }
}

/// Doorbells and interrupts a request, as `netblk list` shows them since it was last asked, with so many requests under way:
/// the disk's and the card's, in turn.
fn traffic(node: &mut Node, client: &mut Client, window: u64) -> [f64; 4] {
    const REQUESTS: u64 = 512;
    node.run("netblk list");
    for first in (0..REQUESTS).step_by(window as usize) {
        for number in first..first + window {
            let mut request = Request::new(READ, number % 64 * 1024, 1024);
            request.cookie = number;
            client.send(&request.bytes());
        }
        for _ in 0..window {
            client.receive(Duration::from_secs(10)).expect("an answer to every request");
        }
    }
    let listed = node.run("netblk list");
    let line = listed.lines().find(|line| line.trim().starts_with("recently")).expect("what there was since");
    assert!(line.contains(&format!("{REQUESTS} requests;")), "{line}");
    let words: Vec<&str> = line.split_whitespace().collect();
    let figures =
        words.windows(2).filter(|pair| pair[1].starts_with("doorbells") || pair[1].starts_with("interrupts"));
    let figures: Vec<f64> = figures.map(|pair| pair[0].parse().expect("a number")).collect();
    figures.try_into().unwrap_or_else(|_| panic!("four figures: {line}"))
}

/// From a partition, whose doorbells are its disk's.
#[test]
fn doorbells_and_interrupts_a_request_are_shown_for_every_window() {
    const NAME: &str = "disks_traffic";
    let setup = Setup::of(NAME).disk_file(&partitioned(NAME), "raw");
    let (mut node, mut client) = served(setup, "nvme0n1p1");
    let of = [1, 16, 64].map(|window| traffic(&mut node, &mut client, window));
    for figures in of {
        // Every request is with the disk and with the card, which are told so once and may say so once; the card
        // need not, while it is polled.
        assert!(figures.iter().all(|&count| count <= 1.1), "{of:?}");
    }
    let [alone, _, many] = of;
    assert!(alone[0] > 0.9, "a doorbell for each that comes alone: {of:?}");
    assert!(many.iter().all(|&count| count < 0.5), "with 64 under way they share: {of:?}");
}
