//! Guests with disks of the node's: a file system that lasts, and what one guest must not do to others.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

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

/// A guest called alpha that is started by hand, with these disks.
fn section(disk: &str) -> String {
    format!(
        "[[guest]]\nname = \"alpha\"\nmemory = \"256 MiB\"\nkernel = \"guests/vmlinuz\"\n\
         initrd = \"guests/initramfs\"\ncommand_line = \"console=ttyS0 quiet\"\ndisk = {disk}\n"
    )
}

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
        .configured(section(disks))
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
