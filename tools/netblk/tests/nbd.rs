//! The NBD bridge before the programs that people have, and before a client that plays by no rules. The disk behind it is
//! in memory.

#![allow(clippy::unwrap_used, reason = "a test")]

mod nbd_support;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::process::Command;

use nbd_support::{Bridge, Memory, READ, Raw, WRITE, pattern, run, scratch};
use netblk::disk::Request;
use netblk::nbd::{self, wire::Style};
use proptest::collection::vec;
use proptest::prelude::*;

const MIB: usize = 1 << 20;
const SIZE: usize = 16 * MIB;

#[test]
fn nbdinfo_is_told_what_the_disk_can_do() {
    let bridge = Bridge::to(&Memory::of(SIZE, 512));
    let said = run(Command::new("nbdinfo").arg("--json").arg(bridge.uri()));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["protocol"], "newstyle-fixed");
    assert_eq!(said["structured"], true);
    let export = &said["exports"][0];
    assert_eq!(export["export-size"], SIZE);
    for able in ["can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero", "can_df"] {
        assert_eq!(export[able], true, "{able}");
    }
    assert_eq!(export["is_read_only"], false);
    // Zeros are written, not conjured.
    assert_eq!(export["can_fast_zero"], false);
    assert_eq!(
        [&export["block_size_minimum"], &export["block_size_preferred"], &export["block_size_maximum"]],
        [512, 4096, 32 << 20]
    );
    let listed = run(Command::new("nbdinfo").arg("--list").arg(bridge.uri()));
    assert!(listed.contains("export=\"disk\""), "{listed}");
}

#[test]
fn a_disk_that_cannot_discard_or_be_written_says_so() {
    let mut memory = Memory::of(SIZE, 512);
    (memory.read_only, memory.discard) = (true, false);
    let bridge = Bridge::to(&memory);
    let said = run(Command::new("nbdinfo").arg("--json").arg(bridge.uri()));
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["exports"][0]["is_read_only"], true);
    assert_eq!(said["exports"][0]["can_trim"], false);
    let mut raw = Raw::connect(&bridge, true);
    assert_eq!(raw.ask(WRITE, 0, 512, &[1; 512]).0, 1, "EPERM");
    assert_eq!(raw.ask(READ, 0, 512, &[]), (0, vec![0; 512]));
}

#[test]
fn images_are_converted_in_compared_and_converted_out() {
    for sector_bytes in [512, 4096] {
        let memory = Memory::of(SIZE, sector_bytes);
        let bridge = Bridge::to(&memory);
        let folder = scratch(&format!("convert{sector_bytes}"));
        let (image, back) = (folder.join("image"), folder.join("back"));
        let mut content = pattern(SIZE);
        // A hole in the middle: what writes zeros is used too.
        content[MIB..6 * MIB].fill(0);
        std::fs::write(&image, &content).unwrap();
        let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "16"];
        run(Command::new("qemu-img").args(convert).arg(&image).arg(bridge.uri()));
        assert!(memory.content() == content, "what was converted in");
        run(Command::new("qemu-img")
            .args(["compare", "-f", "raw", "-F", "raw"])
            .arg(&image)
            .arg(bridge.uri()));
        run(Command::new("qemu-img")
            .args(["convert", "-f", "raw", "-O", "raw"])
            .arg(bridge.uri())
            .arg(&back));
        assert!(std::fs::read(&back).unwrap() == content, "what was converted out");
        run(Command::new("qemu-img").args(["info", "-f", "raw"]).arg(bridge.uri()));
        run(Command::new("qemu-img").args(["map", "-f", "raw", "--output=json"]).arg(bridge.uri()));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn nbdcopy_uses_several_connections() {
    let memory = Memory::of(SIZE, 512);
    let bridge = Bridge::to(&memory);
    let folder = scratch("nbdcopy");
    let (image, back) = (folder.join("image"), folder.join("back"));
    std::fs::write(&image, pattern(SIZE)).unwrap();
    run(Command::new("nbdcopy").args(["--connections=4", "--flush"]).arg(&image).arg(bridge.uri()));
    run(Command::new("nbdcopy").args(["--connections=4"]).arg(bridge.uri()).arg(&back));
    assert!(std::fs::read(&back).unwrap() == pattern(SIZE));
    assert!(bridge.ended_with(|line| line.contains("written")).len() >= 4);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn qemu_io_discards_zeroes_and_forces() {
    let memory = Memory::of(SIZE, 512);
    let bridge = Bridge::to(&memory);
    let told = run(Command::new("qemu-io")
        .args(["-f", "raw", "-d", "unmap"])
        .args(["-c", "write -P 0x5a 0 1M", "-c", "write -f -P 0x11 64k 4k", "-c", "write -z 128k 64k"])
        .args(["-c", "write -z -u 256k 64k", "-c", "discard 512k 64k", "-c", "flush"])
        .args(["-c", "read -P 0x5a 0 64k", "-c", "read -P 0x11 64k 4k", "-c", "read -P 0 128k 64k"])
        .args(["-c", "read -P 0 512k 64k"])
        .arg(bridge.uri()));
    assert!(!told.contains("failed") && !told.contains("error"), "{told}");
    let asked = memory.asked();
    assert!(asked.iter().any(|request| matches!(request, Request::Write { fua: true, .. })));
    assert!(asked.iter().any(|request| matches!(request, Request::WriteZeroes { .. })));
    assert!(asked.contains(&Request::Discard { offset: 512 << 10, length: 64 << 10 }));
    assert!(asked.contains(&Request::Flush));
}

#[test]
fn fio_verifies_what_it_wrote_at_random() {
    let bridge = Bridge::to(&Memory::of(SIZE, 512));
    run(Command::new("fio")
        .args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--bs=4k", "--iodepth=32", "--size=8M"])
        .args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--numjobs=1"])
        .arg(format!("--uri={}", bridge.uri()))
        .current_dir(std::env::temp_dir()));
}

#[test]
fn answers_come_as_the_disk_has_them() {
    let memory = Memory::of(SIZE, 512);
    let bridge = Bridge::to(&memory);
    for structured in [false, true] {
        let mut raw = Raw::connect(&bridge, structured);
        // The disk answers two at a time, the later one first.
        memory.hold_back(2);
        raw.send(READ, 0, 7, 0, 512, &[]);
        raw.send(READ, 0, 8, 512, 1024, &[]);
        assert_eq!(raw.reply(READ, 1024).0, 8);
        assert_eq!(raw.reply(READ, 512).0, 7);
        memory.hold_back(0);
    }
}

#[test]
fn what_cannot_be_is_refused_and_the_connection_goes_on() {
    const INVALID: u32 = 22;
    const NO_SPACE: u32 = 28;
    let bridge = Bridge::to(&Memory::of(SIZE, 512));
    for structured in [false, true] {
        let mut raw = Raw::connect(&bridge, structured);
        let size = SIZE as u64;
        assert_eq!(raw.ask(READ, 1, 512, &[]).0, INVALID, "inside a sector");
        assert_eq!(raw.ask(READ, 0, 100, &[]).0, INVALID, "half a sector");
        assert_eq!(raw.ask(READ, 0, 0, &[]).0, INVALID, "nothing");
        assert_eq!(raw.ask(READ, size, 512, &[]).0, INVALID, "behind the end");
        assert_eq!(raw.ask(READ, u64::MAX - 511, 512, &[]).0, INVALID, "around the end of numbers");
        assert_eq!(raw.ask(READ, 0, !511_u32, &[]).0, INVALID, "more than was offered");
        assert_eq!(raw.ask(WRITE, size - 512, 1024, &[1; 1024]).0, NO_SPACE, "over the end");
        assert_eq!(raw.ask(WRITE, 7, 3, &[1; 3]).0, INVALID, "unaligned, and its data are skipped");
        assert_eq!(raw.ask(99, 0, 512, &[]).0, INVALID, "no such command");
        raw.send(6, 1 << 4, 5, 0, 512, &[]);
        assert_eq!(raw.reply(6, 0), (5, INVALID, Vec::new()), "FAST_ZERO was not offered");
        assert_eq!(raw.ask(WRITE, 0, 512, &[7; 512]).0, 0);
        assert_eq!(raw.ask(READ, 0, 512, &[]), (0, vec![7; 512]));
    }
}

#[test]
fn a_client_may_go_in_the_middle_of_anything() {
    let memory = Memory::of(SIZE, 512);
    let bridge = Bridge::to(&memory);
    let whole = Raw::bytes(WRITE, 0, 1, 0, 512, &[9; 512]);
    for cut in [1, 27, 28, 29, 500, whole.len() - 1] {
        let mut raw = Raw::connect(&bridge, true);
        raw.stream.write_all(&whole[..cut]).unwrap();
        drop(raw);
    }
    // Without waiting for the answers.
    let mut raw = Raw::connect(&bridge, true);
    for number in 0..64 {
        raw.send(READ, 0, number, 0, MIB as u32, &[]);
    }
    drop(raw);
    // What was asked before is done, whoever waits for it.
    let mut raw = Raw::connect(&bridge, false);
    raw.send(WRITE, 0, 1, 512, 512, &[3; 512]);
    raw.stream.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    raw.stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest.len(), 16, "the answer, then the end");
    assert_eq!(memory.content()[..1024], [vec![0; 512], vec![3; 512]].concat());
}

#[test]
fn noise_is_cut_off_and_others_are_served() {
    let bridge = Bridge::to(&Memory::of(SIZE, 512));
    let mut noise = bridge.connect();
    noise.write_all(&[0xff; 4096]).unwrap();
    // Closed, or reset because not everything was read: both are an end.
    let _ = noise.read_to_end(&mut Vec::new());
    let mut raw = Raw::connect(&bridge, true);
    raw.stream.write_all(&[0xaa; 28]).unwrap();
    let mut rest = Vec::new();
    let _ = raw.stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    let mut long = Raw::connect(&bridge, true);
    long.stream.write_all(&Raw::bytes(WRITE, 0, 1, 0, !511_u32, &[])).unwrap();
    let _ = long.stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
    assert_eq!(Raw::connect(&bridge, true).ask(READ, 0, 512, &[]).0, 0);
}

#[test]
fn the_end_waits_for_what_was_asked() {
    let memory = Memory::of(SIZE, 512);
    let bridge = Bridge::to(&memory);
    memory.hold_back(2);
    let mut raw = Raw::connect(&bridge, false);
    raw.send(WRITE, 0, 1, 0, 512, &[4; 512]);
    memory.wait_until_asked(1);
    let ending = bridge.end();
    memory.hold_back(0);
    assert_eq!(raw.reply(WRITE, 0), (1, 0, Vec::new()));
    ending.join().unwrap();
    assert_eq!(memory.content()[..512], [4; 512]);
}

/// A connection on which everything has been said already.
struct Said(std::io::Cursor<Vec<u8>>);

impl Read for Said {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A message that begins as it must, with anything behind.
fn nearly(magic: &'static [u8], numbers: std::ops::Range<u8>) -> impl Strategy<Value = Vec<u8>> {
    (numbers, any::<u64>(), 0..SIZE as u64 / 256, 0_u32..64, vec(any::<u8>(), 0..64)).prop_map(
        move |(number, cookie, place, length, data)| {
            if magic.len() == 8 {
                let length = (data.len() as u32).to_be_bytes();
                return [magic, &[0, 0, 0, number], &length, &data].concat();
            }
            let (offset, length) = ((place * 256).to_be_bytes(), (length * 128).to_be_bytes());
            [magic, &[0, 0, 0, number], &cookie.to_be_bytes(), &offset, &length, &data].concat()
        },
    )
}

proptest! {
    #[test]
    fn any_conversation_comes_to_an_end(
        flags in 0_u32..5,
        options in vec(nearly(b"IHAVEOPT", 0..10), 0..6),
        requests in vec(nearly(&[0x25, 0x60, 0x95, 0x13], 0..8), 0..8),
        noise: Vec<u8>,
    ) {
        let memory = Memory::of(MIB, 512);
        let export = memory.export();
        let conversation = [&flags.to_be_bytes()[..], &options.concat(), &noise].concat();
        let _ = nbd::negotiate(&mut Said(std::io::Cursor::new(conversation)), &export);
        for style in [Style::Simple, Style::Structured] {
            let conversation = [requests.concat(), noise.clone()].concat();
            let _ = nbd::serve(&mut conversation.as_slice(), std::io::sink(), &export, style);
        }
        // What reached the disk is what a disk can do.
        for request in memory.asked() {
            if let Request::Read { offset, length }
                | Request::Discard { offset, length }
                | Request::WriteZeroes { offset, length, .. } = request
            {
                prop_assert!(length > 0 && length % 512 == 0 && offset % 512 == 0);
                prop_assert!(offset + u64::from(length) <= MIB as u64);
            }
        }
    }
}
