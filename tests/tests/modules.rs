//! Modules: they come, do their work, go, and leave nothing; and what is no module of this kernel does not come.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use announce::Announcement;
use modfile::Note;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use stories::netblk::{Client, READ, Request};
use stories::program::Program;
use stories::{Node, Setup};
use xtask::kernel;
use xtask::qemu::Protocol;
use xtask::workspace;

const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";
const GUEST: &str =
    "[[guest]]\nname = \"tiny\"\nmemory = \"32 MiB\"\nkernel = \"tiny.bin\"\nautostart = false\n";

/// Rounds of loading, using and unloading.
const ROUNDS: usize = 100;
/// From here on the shell's history holds the same lines at the end of every round.
const SETTLED: usize = 40;

fn tiny_guest() -> Vec<u8> {
    Program::new().print("tiny\n").spin().into_kernel()
}

/// What `rmmod` counted before the module came and after it went, by name.
fn counts(answer: &str) -> BTreeMap<String, (usize, usize)> {
    assert!(answer.contains("nothing of it is left"), "{answer}");
    let line = answer.lines().find(|line| line.trim_start().starts_with("tasks ")).unwrap_or_default();
    let counts: BTreeMap<String, (usize, usize)> = line
        .trim()
        .split(", ")
        .map(|count| {
            let mut words = count.rsplitn(3, ' ');
            let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
            let (after, before) = (number(), number());
            (words.next().expect("a name").to_owned(), (before, after))
        })
        .collect();
    for name in ["tasks", "softirqs", "interrupts", "timers", "UDP ports", "frames", "pages", "heap bytes"] {
        assert!(counts.contains_key(name), "{name} is not counted:\n{answer}");
    }
    counts
}

/// Frames that the card keeps: what it has sent it gives back when it next sends.
const SENT_FRAMES: usize = 8;

/// Nothing may be left but lines that the shell remembers, in the heap, and frames that the card has just sent.
fn expect_nothing_left(round: usize, counts: &BTreeMap<String, (usize, usize)>) {
    for (name, &(before, after)) in counts.iter().filter(|(name, _)| *name != "heap bytes") {
        let allowed = if name == "frames" { before + SENT_FRAMES } else { before };
        assert!(after <= allowed, "round {round} left {name}: {before} before, {after} after");
    }
}

/// What was counted after each round, from [`SETTLED`] on: the heap must be the same to the byte, and frames no more
/// than the card keeps. A frame that is lost in each round would be sixty.
fn expect_no_growth(rounds: &[BTreeMap<String, (usize, usize)>]) {
    for (name, allowed) in [("heap bytes", 0), ("pages", 0), ("frames", SENT_FRAMES)] {
        let after: Vec<usize> = rounds[SETTLED..].iter().map(|counts| counts[name].1).collect();
        let (least, most) = (after.iter().min().expect("rounds"), after.iter().max().expect("rounds"));
        assert!(most - least <= allowed, "{name} after each round: {after:?}");
    }
}

#[test]
fn both_modules_come_and_go() {
    let mut node = Setup::of("modules_come").boot().ready();
    let listed = node.run("lsmod");
    for name in ["netblk", "hv"] {
        assert!(listed.contains(&format!("`insmod {name}` loads it")), "{listed}");
        assert!(node.run(&format!("insmod {name}")).contains(&format!("{name} is loaded")));
        assert!(node.run("help").lines().any(|line| line.trim_start().starts_with(&format!("{name} "))));
        assert!(node.run(&format!("insmod {name}")).contains("loaded already"));
    }
    let listed = node.run("lsmod");
    assert_eq!(listed.lines().filter(|line| line.contains("KiB at 0xffffffff")).count(), 2, "{listed}");
    assert!(node.run("hv list").contains("no guest is described"));
    assert!(node.run("hv").contains("usage: hv list | start GUEST"));
    assert!(node.run("netblk list").contains("nothing is served"));
    assert!(node.run("netblk start nvme9n9 10809").contains("nvme9n9"));
    // In the opposite order: between a module's two counts, others shall be as they were.
    for name in ["hv", "netblk"] {
        expect_nothing_left(0, &counts(&node.run(&format!("rmmod {name}"))));
        assert!(node.run(&format!("{name} list")).contains(&format!("`insmod {name}` loads it")));
    }
}

#[test]
fn tab_completes_the_names_of_modules_and_their_commands() {
    let mut node = Setup::of("modules_tab").boot().ready();
    node.expect_prompt();
    node.press(b"insmod net\t\r");
    node.expect("netblk is loaded");
    node.expect_prompt();
    node.press(b"netblk li\t\r");
    node.expect("nothing is served");
    node.expect_prompt();
    node.press(b"rmmod n\t\r");
    node.expect("nothing of it is left");
}

#[test]
fn a_module_that_serves_stays() {
    let mut node = Setup::of("modules_busy").configured(SERVED).boot().ready().with_address();
    let mut client = Client::new(node.host_port(Protocol::Udp, 10809));
    let before = client.read(0, 1024);
    let refused = node.run("rmmod netblk");
    assert!(refused.contains("it serves on port 10809") && refused.contains("netblk stop all"), "{refused}");
    assert_eq!(client.read(0, 1024), before);
    node.run("netblk stop all");
    expect_nothing_left(0, &counts(&node.run("rmmod netblk")));
}

#[test]
fn a_module_whose_guest_runs_stays() {
    let mut node = Setup::of("modules_guest")
        .cpus(2)
        .configured(GUEST)
        .with_file("tiny.bin", tiny_guest())
        .boot()
        .ready();
    start_tiny(&mut node);
    let refused = node.run("rmmod hv");
    assert!(refused.contains("there are guests: tiny") && refused.contains("hv stop tiny"), "{refused}");
    assert!(node.run("hv list").contains("running"));
    node.run("hv stop tiny");
    expect_nothing_left(0, &counts(&node.run("rmmod hv")));
}

fn start_tiny(node: &mut Node) {
    // Not by `run`: the guest may have started before the shell has its prompt again.
    node.expect_prompt();
    node.press(b"hv start tiny\r");
    node.wait_for("the guest", Duration::from_secs(30), |announcement| {
        matches!(announcement, Announcement::GuestStarted { guest: "tiny", .. }).then_some(())
    });
}

#[test]
fn a_hundred_rounds_of_netblk_leave_nothing() {
    let mut node = Setup::of("modules_netblk").configured(SERVED).boot().ready().with_address();
    let mut client = Client::new(node.host_port(Protocol::Udp, 10809));
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        // The first time it is there since boot.
        if round > 0 {
            let answer = node.run("insmod netblk");
            assert!(answer.contains("netblk is loaded"), "round {round}: {answer}");
        }
        let offset = round as u64 * 1024;
        let data: Vec<u8> = (0..1024).map(|place| (round * 7 + place) as u8).collect();
        client.write(offset, &data);
        assert_eq!(client.read(offset, 1024), data, "round {round}");
        node.run("netblk stop all");
        let counts = counts(&node.run("rmmod netblk"));
        expect_nothing_left(round, &counts);
        all.push(counts);
    }
    expect_no_growth(&all);
}

#[test]
fn a_hundred_rounds_of_hv_leave_nothing() {
    let mut node =
        Setup::of("modules_hv").cpus(2).configured(GUEST).with_file("tiny.bin", tiny_guest()).boot().ready();
    node.run("rmmod hv");
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let answer = node.run("insmod hv");
        assert!(answer.contains("hv is loaded"), "round {round}: {answer}");
        start_tiny(&mut node);
        node.run("hv stop tiny");
        let counts = counts(&node.run("rmmod hv"));
        expect_nothing_left(round, &counts);
        all.push(counts);
    }
    expect_no_growth(&all);
}

/// The module as it was built.
fn netblk_file() -> Vec<u8> {
    workspace::enter_root().expect("the workspace");
    let built = kernel::build().expect("the kernel and its modules");
    let (_, path) = built.modules.iter().find(|(name, _)| name == "netblk").expect("the module");
    workspace::read_bytes(path).expect("the module's file")
}

/// Where its note lies.
fn note_of(file: &[u8]) -> usize {
    let beginning = &Note::bytes(&[0; 32])[..16];
    file.windows(beginning.len()).position(|window| window == beginning).expect("the note")
}

/// Makes the digest right again: what a liar would do.
fn sealed(mut file: Vec<u8>) -> Vec<u8> {
    let at = note_of(&file) + Note::DIGEST_OFFSET;
    let digest = Note::digest(&file, at).expect("a digest");
    file[at..at + digest.len()].copy_from_slice(&digest);
    file
}

/// The place of the first relocation of the code: `sh_offset` of the section of type RELA whose target is section 1.
fn first_relocation(file: &[u8]) -> usize {
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let table = u64_at(40) as usize;
    let sections = usize::from(u16::from_le_bytes([file[60], file[61]]));
    let section = (0..sections)
        .map(|number| table + number * 64)
        .find(|&at| u32_at(at + 4) == 4 && u32_at(at + 44) == 1)
        .expect("relocations of the code");
    u64_at(section + 24) as usize
}

/// Where a function's code lies in the file.
fn code_of(file: &[u8], function: &str) -> usize {
    let parsed = object::File::parse(file).expect("an object");
    let symbol = parsed.symbols().find(|symbol| symbol.name() == Ok(function)).expect("the function");
    let code = parsed.section_by_name(".text").and_then(|section| section.file_range()).expect("the code");
    usize::try_from(code.0 + symbol.address()).expect("a place in the file")
}

#[test]
fn a_panic_in_a_module_names_its_functions() {
    let mut file = netblk_file();
    // UD2, an instruction that is none, behind the two that make the frame by which a caller is found.
    let at = code_of(&file, "netblk_server::service::stop_all") + 4;
    assert_eq!(file[at - 4..at], [0x55, 0x48, 0x89, 0xe5], "push rbp; mov rbp, rsp");
    file[at..at + 2].copy_from_slice(&[0x0f, 0x0b]);
    let mut node = Setup::of("modules_panic").with_module("netblk", sealed(file)).boot().ready();
    assert!(node.run("insmod netblk").contains("netblk is loaded"));
    node.press(b"netblk stop all\r");
    let story = node.expect("nos: panic on CPU 0 in task init");
    assert!(story.contains("invalid opcode"), "{story}");
    node.expect("[netblk] netblk_server::service::stop_all+0x4");
    // Whoever called it, by a return address into the module, and the kernel below.
    node.expect("[netblk] ");
    node.expect(" kernel::shell::run");
    node.expect("nos: stopped by a panic");
}

#[test]
fn what_is_no_module_of_this_kernel_does_not_come() {
    let good = netblk_file();
    let mut other_kernel = good.clone();
    other_kernel[note_of(&good) + 16] ^= 1;
    let mut flipped = good.clone();
    flipped[first_relocation(&good)] ^= 0x10;
    let mut far_away = good.clone();
    // The place to relocate: its highest byte.
    far_away[first_relocation(&good) + 7] ^= 0x40;
    let mut strange = good.clone();
    // The kind: R_X86_64_TPOFF64.
    strange[first_relocation(&good) + 8] = 18;
    let mut unexported = good.clone();
    let name = b"memcpy\0";
    let at = good.windows(name.len()).position(|window| window == name).expect("an import");
    unexported[at..at + 6].copy_from_slice(b"system");
    let mut node = Setup::of("modules_refused")
        .with_module("other", sealed(other_kernel))
        .with_module("cut", good[..good.len() * 3 / 4].to_vec())
        .with_module("flipped", flipped)
        .with_module("far", sealed(far_away))
        .with_module("strange", sealed(strange))
        .with_module("unexported", sealed(unexported))
        .with_module("text", b"This is not a module.".to_vec())
        .with_module("empty", Vec::new())
        .boot()
        .ready();
    for (name, reason) in [
        ("other", "it was built against the kernel"),
        ("cut", "it is cut off"),
        ("flipped", "it is damaged"),
        ("far", "outside its section"),
        ("strange", "is of kind 18"),
        ("unexported", "it wants system, which this kernel does not export"),
        ("text", "it is no module"),
        ("empty", "it is no module"),
    ] {
        let answer = node.run(&format!("insmod {name}"));
        assert!(answer.contains(reason), "{name}:\n{answer}");
        assert!(!node.run("lsmod").lines().any(|line| line.starts_with(name) && line.contains("KiB")));
    }
    // And the node is as it was.
    assert!(node.run("insmod netblk").contains("netblk is loaded"));
    expect_nothing_left(0, &counts(&node.run("rmmod netblk")));
}

/// Asks two services for everything at once, correctly and not, until told to stop; returns how many answers came.
fn load(port: u16, burst: u64, stop: &AtomicBool) -> u64 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(("127.0.0.1", port)).expect("a peer");
    socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket that does not wait for ever");
    let (mut number, mut answers, mut datagram) = (0_u64, 0, [0; 2048]);
    while !stop.load(Relaxed) {
        for _ in 0..burst {
            number += 1;
            let offset = number % 512 * 1024;
            let mut request = match number % 15 {
                0 | 3 | 6 | 9 | 12 => Request::write(offset, &[number as u8; 1024]),
                5 | 10 => Request::new(READ, offset, 16 << 10),
                _ => Request::new(READ, offset, 1024),
            };
            request.cookie = number;
            if number.is_multiple_of(17) {
                request.magic = 7;
            }
            let _ = socket.send(&request.bytes());
        }
        while socket.recv(&mut datagram).is_ok() {
            answers += 1;
        }
    }
    answers
}

#[test]
fn a_service_comes_and_goes_under_load() {
    const SERVED_TWICE: &str =
        "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n[[netblk]]\ndisk = \"nvme0n1\"\nport = 10810\n";
    /// In every order that a person at the shell could think of.
    const STEPS: [&[&str]; 5] = [
        &["netblk stop 10809", "netblk start nvme0n1 10809 cpu=0 poll=1000000"],
        &["net restart eth0"],
        &[
            "netblk stop all",
            "rmmod netblk",
            "insmod netblk",
            "netblk start nvme0n1 10810 poll=0",
            "netblk start nvme0n1 10809",
        ],
        &["netblk stop 10810", "netblk list", "netblk start nvme0n1 10810 cpu=0"],
        &[
            "net restart eth0",
            "netblk stop all",
            "netblk start nvme0n1 10809 cpu=0",
            "netblk start nvme0n1 10810 cpu=1",
        ],
    ];
    let mut node = Setup::of("modules_under_load").configured(SERVED_TWICE).boot().ready().with_address();
    let before = node.free_frames();
    let ports = [10809, 10810].map(|port| node.host_port(Protocol::Udp, port));
    let stop = AtomicBool::new(false);
    let answers: u64 = std::thread::scope(|scope| {
        let clients: Vec<_> = [1, 4, 16, 64]
            .into_iter()
            .zip(ports.into_iter().cycle())
            .map(|(burst, port)| {
                let stop = &stop;
                scope.spawn(move || load(port, burst, stop))
            })
            .collect();
        for step in STEPS.iter().cycle().take(20) {
            step.iter().for_each(|command| drop(node.run(command)));
            std::thread::sleep(Duration::from_millis(100));
        }
        stop.store(true, Relaxed);
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    });
    assert!(answers > 1000, "{answers} answers");
    for port in ports {
        let mut client = Client::new(port);
        client.write(0, &[9; 1024]);
        assert_eq!(client.read(0, 1024), [9; 1024]);
    }
    let stopped = node.run("netblk stop all");
    let clean = |line: &&str| line.starts_with("nvme0n1 on port") && line.contains(" 0 slots in use");
    assert_eq!(stopped.lines().filter(clean).count(), 2, "{stopped}");
    let gone = node.run("rmmod netblk");
    assert!(gone.contains("nothing of it is left"), "{gone}");
    let after = node.free_frames();
    assert!(before.abs_diff(after) <= 64, "{before} frames were free, now {after}");
}
