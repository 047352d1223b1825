//! A node's disk as NBD: images in and out with the programs that people have, and a Linux kernel that mounts it, while the link
//! and the service come and go.

#![forbid(unsafe_code)]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use stories::proxy::Random;
use stories::{Node, Setup};
use xtask::qemu::Protocol;
use xtask::{cpio, guest, linux_modules, run, workspace};

const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";

/// Longer than a client's first few retransmissions, and shorter than a story.
const OUTAGE: Duration = Duration::from_secs(5);

/// A Linux kernel under emulation, on a machine that does other things.
const LINUX_PATIENCE: &str = "240";

fn succeed(command: &mut Command) -> String {
    run::output(command).unwrap_or_else(|error| panic!("{error:#}"))
}

/// The host's client, as people build it.
fn client_program() -> PathBuf {
    succeed(Command::new("cargo").args(["build", "--quiet", "--package", "netblk"]));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    target.join("debug/netblk")
}

/// The bridge, as a program of its own. It is killed with this value, unless it was ended.
struct Bridge {
    program: Child,
    said: BufReader<ChildStderr>,
    uri: String,
}

impl Bridge {
    fn to(node: &Node, folder: &Path) -> Bridge {
        let server = format!("127.0.0.1:{}", node.host_port(Protocol::Udp, 10809));
        let socket = folder.join("nbd.sock");
        let mut program = Command::new(client_program())
            .args(["nbd", &server, "--listen", &format!("unix:{}", socket.display())])
            .stderr(Stdio::piped())
            .spawn()
            .expect("starting the bridge");
        let mut said = BufReader::new(program.stderr.take().expect("a pipe"));
        let mut line = String::new();
        said.read_line(&mut line).expect("the bridge says where it listens");
        assert!(line.contains("nbd.sock"), "{line}");
        Bridge { program, said, uri: format!("nbd+unix:///disk?socket={}", socket.display()) }
    }

    /// SIGTERM, and what it said.
    fn end(mut self) -> String {
        succeed(Command::new("kill").arg(self.program.id().to_string()));
        let said = std::io::read_to_string(&mut self.said).expect("what it said");
        assert!(self.program.wait().expect("its end").success(), "{said}");
        said
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn served(name: &str, bytes: u64) -> (Node, PathBuf) {
    let node = Setup::of(name).configured(SERVED).disk_bytes(bytes).boot().ready().with_address();
    (node, workspace::target().join("stories").join(name))
}

fn convert(from: &str, to: &str) -> Command {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-n", "-f", "raw", "-O", "raw", from, to]);
    command
}

/// Runs while `program` does, which must take longer than what is done meanwhile begins.
fn meanwhile(program: &mut Command, disturb: impl FnOnce()) -> Duration {
    let started = Instant::now();
    let mut child = program.spawn().expect("starting a program");
    disturb();
    let status = child.wait().expect("its end");
    assert!(status.success(), "{program:?}: {status}");
    started.elapsed()
}

#[test]
fn an_image_is_copied_in_and_out_while_the_link_and_the_service_go() {
    const BYTES: usize = 16 << 20;
    let (mut node, folder) = served("nbd_convert", BYTES as u64);
    let bridge = Bridge::to(&node, &folder);
    let (image, back) = (folder.join("image"), folder.join("back"));
    let mut random = Random::new(1);
    let content: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.number().to_be_bytes()).collect();
    std::fs::write(&image, &content).expect("an image");
    std::fs::File::create(&back).and_then(|file| file.set_len(BYTES as u64)).expect("room");

    let taken = meanwhile(&mut convert(&image.display().to_string(), &bridge.uri), || {
        node.monitor("set_link uplink off");
        thread::sleep(OUTAGE);
        node.monitor("set_link uplink on");
    });
    assert!(taken >= OUTAGE, "the link was gone in the middle: {taken:?}");

    let taken = meanwhile(&mut convert(&bridge.uri, &back.display().to_string()), || {
        node.run("netblk stop 10809");
        thread::sleep(OUTAGE);
        node.run("netblk start nvme0n1 10809");
    });
    assert!(taken >= OUTAGE, "the service was gone in the middle: {taken:?}");
    assert!(std::fs::read(&back).expect("back") == content, "what came out is not what went in");
    let said = bridge.end();
    assert!(said.contains("written"), "{said}");
    assert!(std::fs::read(node.disk()).expect("the disk's image") == content, "what is on the disk");
}

/// What Linux does: the file system is mounted, gets a tree of files (the kernel's modules that are in its memory, many
/// times over), is unmounted and mounted again, and the sums of all files are compared.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
finish() { echo "story: $1"; poweroff -f; }
mount -t ext4 /dev/vda /mnt || finish "no mount"
for copy in 1 2 3 4; do
    mkdir -p "/mnt/tree/$copy" && cp -r /modules /bin/busybox /init "/mnt/tree/$copy" || finish "no copy"
done
rm -r /mnt/tree/2
sync
(cd /mnt && find . -type f -exec sha256sum {} + | sort) >/before
umount /mnt || finish "no umount"
mount -t ext4 /dev/vda /mnt || finish "no second mount"
(cd /mnt && find . -type f -exec sha256sum {} + | sort) >/after
files=$(wc -l </before)
umount /mnt
cmp /before /after && [ "$files" -gt 20 ] && finish "all files are the same"
finish "the files differ"
"#;

/// The memory file system that Linux starts from.
fn initramfs() -> (PathBuf, Vec<u8>) {
    let unpacked = guest::unpack().unwrap_or_else(|error| panic!("{error:#}"));
    let mut archive = cpio::Archive::default();
    for directory in ["bin", "dev", "proc", "mnt", "modules"] {
        archive.directory(directory);
    }
    archive.character_device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, &std::fs::read(&unpacked.busybox).expect("BusyBox"));
    archive.symlink("bin/sh", "busybox");
    archive.file("init", 0o755, INIT.as_bytes());
    let modules =
        linux_modules::in_order(&unpacked.modules, &["virtio_pci", "virtio_blk", "crc32c_generic", "ext4"])
            .unwrap_or_else(|error| panic!("{error:#}"));
    let mut order = String::new();
    for (name, module) in modules {
        archive.file(&format!("modules/{name}.ko"), 0o644, &module);
        order.push_str(&format!("{name}\n"));
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    (unpacked.kernel, archive.finish())
}

#[test]
fn linux_mounts_it_and_files_survive_a_dead_link_and_a_restart() {
    const BYTES: u64 = 64 << 20;
    let (mut node, folder) = served("nbd_mount", BYTES);
    let bridge = Bridge::to(&node, &folder);
    let image = folder.join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(BYTES)).expect("an empty image");
    succeed(Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-F"]).arg(&image));
    succeed(&mut convert(&image.display().to_string(), &bridge.uri));

    let (kernel, memory) = initramfs();
    let initrd = folder.join("initramfs");
    std::fs::write(&initrd, memory).expect("the initramfs");
    let serial = folder.join("linux.log");
    let mut linux = Command::new("timeout");
    linux
        .args(["--kill-after=5", LINUX_PATIENCE, xtask::qemu::PROGRAM])
        .args(["-M", "q35", "-m", "256", "-display", "none", "-no-reboot", "-nodefaults"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(&initrd)
        .args(["-append", "console=ttyS0 quiet panic=-1 tsc=reliable"])
        .arg("-serial")
        .arg(format!("file:{}", serial.display()))
        .args(["-drive", &format!("if=virtio,format=raw,cache=none,discard=unmap,file={}", bridge.uri)]);
    meanwhile(&mut linux, || {
        for _ in 0..3 {
            thread::sleep(OUTAGE);
            node.monitor("set_link uplink off");
            thread::sleep(OUTAGE);
            node.monitor("set_link uplink on");
            node.run("netblk stop 10809");
            node.run("netblk start nvme0n1 10809");
        }
    });
    let said = std::fs::read_to_string(&serial).expect("what Linux said");
    assert!(said.contains("story: all files are the same"), "{said}");
    assert!(!said.contains("I/O error"), "{said}");
    bridge.end();
    // The disk itself, without a node or a bridge.
    succeed(Command::new("/usr/sbin/e2fsck").args(["-f", "-n"]).arg(node.disk()));
}
