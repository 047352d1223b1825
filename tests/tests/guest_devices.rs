//! What guests have beside their network cards: disks of the node's, a console without exits, randomness.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use announce::Announcement;
use stories::{Node, PATIENCE, Setup};

/// Where the partitions begin, in sectors of 512 bytes, and how long each is.
const PARTITIONS: [(u64, u64); 2] = [(2048, 49_152), (53_248, 16_384)];

/// The first partition's file system is ext4, the second's too, with a file in it.
fn image(name: &str) -> PathBuf {
    xtask::workspace::enter_root().unwrap();
    let folder = xtask::workspace::target().join("stories").join(format!("{name}.images"));
    fs::create_dir_all(folder.join("files")).unwrap();
    fs::write(folder.join("files/hello"), "hello from the host\n").unwrap();
    let image = folder.join("disk.img");
    fs::write(&image, []).unwrap();
    fs::File::options().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
    let mut script = String::from("label: gpt\n");
    for (start, sectors) in PARTITIONS {
        script += &format!("start={start}, size={sectors}\n");
    }
    let mut sfdisk = Command::new("sfdisk").arg("--quiet").arg(&image).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut sfdisk.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(sfdisk.wait().unwrap().success());
    for (start, sectors) in PARTITIONS {
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-b", "1024", "-d"]).arg(folder.join("files"));
        mkfs.arg("-E").arg(format!("offset={}", start * 512)).arg(&image).arg((sectors / 2).to_string());
        let output = mkfs.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    image
}

/// What fsck says of the first partition, once the node is gone.
fn assert_sound(image: &Path) {
    let alone = image.with_extension("part1");
    let (start, sectors) = PARTITIONS[0];
    let bytes = fs::read(image).unwrap();
    fs::write(&alone, &bytes[start as usize * 512..(start + sectors) as usize * 512]).unwrap();
    // The journal is played back first, as a mount would.
    let output = Command::new("fsck.ext4").args(["-f", "-y"]).arg(&alone).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code().is_some_and(|code| code < 4), "{text}");
    assert!(!text.contains("UNEXPECTED"), "{text}");
}

/// A Linux guest that is started by hand, with this disk and more keys.
fn section(name: &str, disk: &str, more: &str) -> String {
    format!(
        "[[guest]]\nname = \"{name}\"\nmemory = \"256 MiB\"\nkernel = \"guests/vmlinuz\"\n\
         initrd = \"guests/initramfs\"\ndisk = {disk}\n{more}\n"
    )
}

const SERIAL: &str = "command_line = \"console=ttyS0 quiet\"";

fn start(node: &mut Node, name: &str) {
    node.run(&format!("hv start {name}"));
    node.wait_for_guests(&[name]);
}

#[test]
fn what_a_guest_writes_to_its_disk_lasts() {
    let image = image("guest_disk");
    let disks = "[\"nvme0n1p1\", { name = \"nvme0n1p2\", read_only = true }]";
    let mut node = Setup::of("guest_disk")
        .cpus(2)
        .memory_mib(512)
        .configured(section("alpha", disks, SERIAL))
        .disk_file(&image, "raw")
        .boot();
    start(&mut node, "alpha");
    let sum = {
        let mut alpha = node.guest("alpha");
        assert_eq!(alpha.run("cat /sys/block/vda/serial").trim(), "nvme0n1p1");
        assert_eq!(alpha.run("cat /sys/block/vda/size").trim(), PARTITIONS[0].1.to_string());
        alpha.run("mkdir -p /a /b; mount -t ext4 /dev/vda /a");
        assert_eq!(alpha.run("cat /a/hello").trim(), "hello from the host");
        alpha.run_within(
            "head -c 6000001 /dev/urandom >/a/data; sync; echo 3 >/proc/sys/vm/drop_caches",
            PATIENCE,
        );
        let sum = alpha.run_within("sha256sum </a/data", PATIENCE);
        // Direct, in all sizes, at odd offsets of the file.
        alpha.run("dd if=/a/data of=/a/copy bs=64k oflag=direct 2>/dev/null; sync; cmp /a/data /a/copy");
        alpha.run("echo 3 >/proc/sys/vm/drop_caches; cmp /a/data /a/copy; rm /a/copy; sync; fstrim /a");

        // The second is read-only, whatever the guest tries.
        assert_eq!(alpha.run("cat /sys/block/vdb/ro").trim(), "1");
        let (text, status) = alpha.try_run("dd if=/dev/zero of=/dev/vdb bs=4k count=1", PATIENCE);
        assert_ne!(status, 0, "{text}");
        alpha.run("mount -t ext4 -o ro,noload /dev/vdb /b");
        assert_eq!(alpha.run("cat /b/hello").trim(), "hello from the host");
        alpha.press(b"reboot -f\r");
        sum
    };
    node.press(b"\x1d\r");
    node.wait_for_guests(&["alpha"]);
    {
        let mut alpha = node.guest("alpha");
        alpha.run("mkdir -p /a; mount -t ext4 /dev/vda /a");
        assert_eq!(alpha.run_within("sha256sum </a/data", PATIENCE), sum);
        alpha.run("umount /a");
    }
    let stat = node.run("hv stat alpha");
    assert!(stat.contains("disk nvme0n1p1: ") && stat.contains("disk nvme0n1p2, read-only: "), "{stat}");
    node.run("hv stop alpha");
    drop(node);
    assert_sound(&image);
}

/// How much of the node's memory is free, in MiB.
fn free_mib(node: &mut Node) -> f64 {
    let text = node.run("mem");
    let line = text.lines().find(|line| line.starts_with("memory")).unwrap_or_default();
    let (amount, _) = line.rsplit_once(" free").unwrap_or_else(|| panic!("{text}"));
    let mut words = amount.rsplit(' ');
    let (unit, number) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    number.parse::<f64>().unwrap() * if unit == "GiB" { 1024.0 } else { 1.0 }
}

#[test]
fn a_guest_is_stopped_while_its_disk_works_and_the_disk_is_free_again() {
    let mut node = Setup::of("guest_disk_stop")
        .cpus(4)
        .memory_mib(768)
        .disk_bytes(64 << 20)
        .configured(section("alpha", "\"nvme0n1\"", &format!("cpus = 2\n{SERIAL}")))
        .boot();
    start(&mut node, "alpha");
    {
        let mut alpha = node.guest("alpha");
        // A queue for each CPU.
        assert_eq!(alpha.run("ls /sys/block/vda/mq | wc -l").trim(), "2");
        // Through the driver's own reset, and all of it from both CPUs at once.
        alpha.run(
            "echo virtio1 >/sys/bus/virtio/drivers/virtio_blk/unbind; ls /sys/block | grep -c vda || true",
        );
        alpha.run("echo virtio1 >/sys/bus/virtio/drivers/virtio_blk/bind; [ -b /dev/vda ]");
        alpha.run_within(
            "for cpu in 0 1; do taskset -c $cpu dd if=/dev/urandom of=/dev/vda bs=256k count=8 seek=$((cpu * 8)) \
             oflag=direct 2>/dev/null & done; wait; blkdiscard -o 4096 -l 8192 /dev/vda",
            PATIENCE,
        );
        alpha.run("dd if=/dev/zero of=/zeroes bs=4k count=2 2>/dev/null; blkdiscard -z -o 1M -l 8192 /dev/vda 2>/dev/null || true");
        alpha.press(b"while true; do dd if=/dev/vda of=/dev/null bs=1M iflag=direct; done 2>/dev/null &\r");
        alpha.press(
            b"while true; do dd if=/dev/zero of=/dev/vda bs=1M count=16 oflag=direct; done 2>/dev/null &\r",
        );
    }
    let before = free_mib(&mut node);
    let stop = |node: &mut Node| {
        let answer = node.run("hv stop alpha");
        assert!(answer.contains("is stopped"), "{answer}");
        let free = free_mib(node);
        assert!(free > before + 200.0, "{before} MiB were free, now {free}");
    };
    stop(&mut node);
    start(&mut node, "alpha");
    // The guest's own reset in the middle of it all.
    let mut alpha = node.guest("alpha");
    alpha.press(b"dd if=/dev/vda of=/dev/null bs=1M iflag=direct &\r");
    alpha.press(b"dd if=/dev/zero of=/dev/vda bs=64k oflag=direct &\r");
    alpha.press(b"reboot -f\r");
    drop(alpha);
    node.wait_for_guests(&["alpha"]);
    stop(&mut node);
}

#[test]
fn nobody_else_has_a_guests_disk() {
    let image = image("guest_disk_claim");
    let text = section("alpha", "\"nvme0n1p1\"", SERIAL)
        + &section("beta", "{ name = \"nvme0n1\", read_only = true }", SERIAL)
        + &section("gamma", "{ name = \"nvme0n1p2\", read_only = true }", SERIAL)
        + &section("lost", "\"nvme7n1\"", SERIAL);
    let mut node = Setup::of("guest_disk_claim")
        .cpus(2)
        .memory_mib(768)
        .configured(text)
        .disk_file(&image, "raw")
        .boot();
    start(&mut node, "alpha");
    node.run("insmod netblk");
    // A partition and the disk that it is on are the same sectors.
    for (command, why) in [
        ("netblk start nvme0n1 10900", "guest alpha uses nvme0n1"),
        ("netblk start nvme0n1p1 10900 ro", "guest alpha uses nvme0n1p1"),
    ] {
        let answer = node.run(command);
        assert!(answer.contains(why), "{answer}");
    }
    for (guest, why) in [("beta", "guest alpha uses nvme0n1"), ("lost", "there is no disk nvme7n1")] {
        node.run(&format!("hv start {guest}"));
        let stopped = node.wait_for("the guest's end", PATIENCE, |announcement| match announcement {
            Announcement::GuestStopped { guest: other, reason } if other == guest => Some(reason.to_owned()),
            _ => None,
        });
        assert!(stopped.contains(why), "{stopped}");
    }
    // What all of them only read may be shared, and what a service has is not a guest's.
    assert!(node.run("netblk start nvme0n1p2 10901 ro").contains("serving"));
    start(&mut node, "gamma");
    node.run("hv stop gamma");
    node.run("netblk stop 10901");
    node.run("hv stop alpha");
    assert!(node.run("netblk start nvme0n1p1 10900").contains("serving"));
    node.run("hv start alpha");
    node.expect("netblk uses nvme0n1p1");
}

#[test]
fn a_guest_talks_by_its_virtio_console_and_draws_randomness() {
    let text = section("alpha", "[]", "command_line = \"console=ttyS0 console=hvc0 quiet\"");
    let mut node = Setup::of("guest_console").cpus(2).memory_mib(512).configured(text).boot();
    start(&mut node, "alpha");
    let mut alpha = node.guest("alpha");
    assert_eq!(alpha.run("tty").trim(), "/dev/hvc0");
    // Long lines both ways, and more than a screen.
    let word = "0123456789abcdef".repeat(40);
    assert_eq!(alpha.run(&format!("echo {word}")).trim(), word);
    let numbers = alpha.run("seq 2000");
    assert_eq!(numbers.split_whitespace().count(), 2000, "{numbers}");
    assert_eq!(numbers.split_whitespace().last(), Some("2000"));
    // What is written to the UART is seen, too.
    assert!(alpha.run("echo by the UART >/dev/ttyS0; sleep 1").contains("by the UART"));

    let current = alpha.run("cat /sys/class/misc/hw_random/rng_*; ls /modules; lsmod");
    assert!(current.contains("virtio_rng.0"), "{current}");
    let draw = "head -c 512 /dev/hwrng >/draw; wc -c </draw; sha256sum </draw";
    let (first, second) = (alpha.run(draw), alpha.run(draw));
    assert!(first.contains("512") && first != second, "{first} {second}");
    let took = alpha.run(
        "s=$(date +%s); dd if=/dev/hwrng of=/dev/null bs=1k count=64 2>/dev/null; echo $(($(date +%s) - s))",
    );
    let seconds: u64 = took.trim().parse().unwrap_or_else(|_| panic!("{took}"));
    assert!((3..20).contains(&seconds), "64 KiB at 16 KiB a second took {seconds} s");
}
