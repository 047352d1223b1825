//! A node's disk as NBD: images in and out with the programs that people have, and a Linux kernel that mounts it, while the link
//! and the service come and go.

#![forbid(unsafe_code)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

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

/// Something is away for a while in the middle of what a program does; it must wait for that.
fn with_an_outage(program: &mut Command, node: &mut Node, away: fn(&mut Node), back: fn(&mut Node)) {
    let mut child = program.spawn().expect("starting a program");
    away(node);
    thread::sleep(OUTAGE);
    assert!(child.try_wait().expect("its state").is_none(), "{program:?} did not wait");
    back(node);
    let status = child.wait().expect("its end");
    assert!(status.success(), "{program:?}: {status}");
}

fn unplug(node: &mut Node) {
    node.monitor("set_link uplink off");
}

fn plug(node: &mut Node) {
    node.monitor("set_link uplink on");
}

fn stop(node: &mut Node) {
    node.run("netblk stop 10809");
}

fn start(node: &mut Node) {
    node.run("netblk start nvme0n1 10809");
}

/// Plugged out, and another service by the time it is plugged in.
fn restart_and_plug(node: &mut Node) {
    stop(node);
    start(node);
    plug(node);
}

#[test]
fn an_image_is_copied_in_and_out_while_the_link_and_the_service_go() {
    const BYTES: usize = 32 << 20;
    let (mut node, folder) = served("nbd_convert", BYTES as u64);
    let bridge = Bridge::to(&node, &folder);
    let (image, back) = (folder.join("image"), folder.join("back"));
    let mut random = Random::new(1);
    let content: Vec<u8> = (0..BYTES / 8).flat_map(|_| random.number().to_be_bytes()).collect();
    std::fs::write(&image, &content).expect("an image");
    std::fs::File::create(&back).and_then(|file| file.set_len(BYTES as u64)).expect("room");

    with_an_outage(&mut convert(&image.display().to_string(), &bridge.uri), &mut node, unplug, plug);
    with_an_outage(&mut convert(&bridge.uri, &back.display().to_string()), &mut node, stop, start);
    assert!(std::fs::read(&back).expect("back") == content, "what came out is not what went in");
    let said = bridge.end();
    assert!(said.contains("written"), "{said}");
    assert!(std::fs::read(node.disk()).expect("the disk's image") == content, "what is on the disk");
}

/// What Linux does: the file system is mounted, gets a tree of files (the kernel's modules that are in its memory) in each of
/// several rounds, is unmounted and mounted again, and the sums of all files are compared. It waits to be told before
/// each round.
const INIT: &str = r#"#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
finish() { echo "story: $1"; poweroff -f; }
mount -t ext4 /dev/vda /mnt || finish "no mount"
for copy in 1 2 3; do
    echo "story: ready for $copy"
    read -r told
    began=$(cut -d. -f1 /proc/uptime)
    mkdir -p "/mnt/tree/$copy" && cp -r /modules /bin/busybox /init "/mnt/tree/$copy" || finish "no copy"
    sync
    ended=$(cut -d. -f1 /proc/uptime)
    echo "story: copied $copy in $((ended - began)) s"
done
rm -r /mnt/tree/2
sync
(cd /mnt && find . -type f -exec sha256sum {} + | sort) >/before
umount /mnt || finish "no umount"
mount -t ext4 /dev/vda /mnt || finish "no second mount"
(cd /mnt && find . -type f -exec sha256sum {} + | sort) >/after
files=$(wc -l </before)
umount /mnt
cmp /before /after && [ "$files" -gt 12 ] && finish "all $files files are the same"
finish "the files differ"
"#;

/// A Linux on a machine of its own, at whose serial line the story sits.
struct Linux {
    machine: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    said: String,
}

impl Linux {
    fn expect(&mut self, text: &str) -> String {
        loop {
            let line = self.lines.next().and_then(Result::ok);
            let line = line.unwrap_or_else(|| panic!("Linux never said \"{text}\":\n{}", self.said));
            self.said.push_str(&line);
            self.said.push('\n');
            if line.contains(text) {
                return line;
            }
        }
    }

    fn tell(&mut self, text: &str) {
        self.machine.stdin.as_mut().expect("a pipe").write_all(text.as_bytes()).expect("a serial line");
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        if self.machine.try_wait().is_ok_and(|ended| ended.is_none()) {
            // `timeout` hands it on to the emulator.
            let _ = Command::new("kill").arg(self.machine.id().to_string()).status();
            let _ = self.machine.wait();
        }
    }
}

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
    let mut machine = Command::new("timeout")
        .args(["--kill-after=5", LINUX_PATIENCE, xtask::qemu::PROGRAM])
        .args(["-M", "q35", "-m", "256", "-display", "none", "-no-reboot", "-nodefaults", "-serial", "stdio"])
        .args(["-append", "console=ttyS0 quiet panic=-1 tsc=reliable"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(&initrd)
        .args(["-drive", &format!("if=virtio,format=raw,cache=none,discard=unmap,file={}", bridge.uri)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starting Linux");
    let lines = BufReader::new(machine.stdout.take().expect("a pipe")).lines();
    let mut linux = Linux { machine, lines, said: String::new() };

    let mut round = |node: &mut Node, number: u32, away: fn(&mut Node), back: fn(&mut Node)| {
        linux.expect(&format!("story: ready for {number}"));
        away(node);
        linux.tell("go\n");
        thread::sleep(OUTAGE);
        back(node);
        let copied = linux.expect(&format!("story: copied {number} in "));
        let seconds = copied.split_whitespace().rev().nth(1).and_then(|word| word.parse::<u64>().ok());
        // Its clock is cut to whole seconds at both ends.
        assert!(seconds.is_some_and(|seconds| seconds + 1 >= OUTAGE.as_secs()), "without a disk: {copied}");
    };
    round(&mut node, 1, unplug, plug);
    round(&mut node, 2, stop, start);
    round(&mut node, 3, unplug, restart_and_plug);
    linux.expect("files are the same");
    assert!(!linux.said.contains("I/O error"), "{}", linux.said);
    assert!(linux.machine.wait().expect("its end").success());
    bridge.end();
    // The disk itself, without a node or a bridge.
    succeed(Command::new("/usr/sbin/e2fsck").args(["-f", "-n"]).arg(node.disk()));
}
