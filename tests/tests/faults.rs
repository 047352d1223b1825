//! Verified writes through a network that cannot be trusted, and over restarts and power cuts: nothing is lost, nothing is mixed.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use netblk::Options;
use netblk::disk::{Disk, Request};
use netblk::engine::Protocol;
use stories::proxy::{Damage, Proxy, Random, Weather};
use stories::{Node, Setup};
use xtask::qemu;

const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";

const SECTOR_BYTES: usize = 512;
/// The part of the disk that is written: small, so that places are written again and again.
const SECTORS: u64 = 512;
/// The longest request, in sectors.
const LONGEST: u64 = 24;

/// What a sector holds after its `generation`th write.
fn sector(place: u64, generation: u32) -> Vec<u8> {
    if generation == 0 {
        return vec![0; SECTOR_BYTES];
    }
    let mut random = Random::new(place << 32 | u64::from(generation));
    std::iter::repeat_with(|| random.number().to_be_bytes()).flatten().take(SECTOR_BYTES).collect()
}

fn bytes_of(first: u64, generations: &[u32]) -> Vec<u8> {
    (first..).zip(generations).flat_map(|(place, &generation)| sector(place, generation)).collect()
}

/// A disk and what must be on it.
struct Checked {
    disk: Disk,
    generations: Vec<u32>,
    random: Random,
    newest: u32,
}

impl Checked {
    fn new(disk: Disk, seed: u64) -> Checked {
        Checked { disk, generations: vec![0; SECTORS as usize], random: Random::new(seed), newest: 0 }
    }

    /// Random requests, many under way at once; every READ is compared with what was asked to be written before it. The disk keeps
    /// the order of what overlaps, so the model may run ahead of the answers.
    fn requests(&mut self, count: u32) {
        let gate = Arc::new((Mutex::new(0_u32), Condvar::new()));
        let wrong = Arc::new(AtomicU64::new(0));
        for _ in 0..count {
            let first = self.random.below(SECTORS - LONGEST);
            let sectors = 1 + self.random.below(LONGEST);
            let (offset, length) = (first * SECTOR_BYTES as u64, (sectors * SECTOR_BYTES as u64) as u32);
            let range = first as usize..(first + sectors) as usize;
            let fua = self.random.below(8) == 0;
            let (request, right) = match self.random.below(16) {
                0..8 => {
                    self.newest += 1;
                    self.generations[range].fill(self.newest);
                    let data =
                        (first..first + sectors).flat_map(|place| sector(place, self.newest)).collect();
                    (Request::Write { offset, data, fua }, None)
                }
                8 => {
                    self.generations[range].fill(0);
                    (Request::WriteZeroes { offset, length, fua }, None)
                }
                9 => (Request::Flush, None),
                _ => (Request::Read { offset, length }, Some((first, self.generations[range].to_vec()))),
            };
            let mut under_way = gate.0.lock().expect("the gate");
            while *under_way >= 32 {
                under_way = gate.1.wait(under_way).expect("the gate");
            }
            *under_way += 1;
            drop(under_way);
            let (gate, wrong) = (gate.clone(), wrong.clone());
            self.disk.submit(request, move |answer| {
                let good = match (answer, right) {
                    (Ok(data), Some((first, generations))) => data == bytes_of(first, &generations),
                    (Ok(_), None) => true,
                    (Err(error), _) => {
                        eprintln!("a request failed: {error}");
                        false
                    }
                };
                wrong.fetch_add(u64::from(!good), Relaxed);
                *gate.0.lock().expect("the gate") -= 1;
                gate.1.notify_all();
            });
        }
        let mut under_way = gate.0.lock().expect("the gate");
        while *under_way > 0 {
            under_way = gate.1.wait(under_way).expect("the gate");
        }
        assert_eq!(wrong.load(Relaxed), 0, "requests that failed or brought wrong data");
    }

    /// Everything once more, piece by piece.
    fn check(&self) {
        for first in (0..SECTORS).step_by(32) {
            let length = 32 * SECTOR_BYTES as u32;
            let found = self.disk.ask(Request::Read { offset: first * SECTOR_BYTES as u64, length });
            let found = found.unwrap_or_else(|error| panic!("reading at {first}: {error}"));
            let right = bytes_of(first, &self.generations[first as usize..][..32]);
            assert!(found == right, "sectors {first}.. are not what was written last");
        }
    }
}

fn options(protocol: Protocol) -> Options {
    Options {
        window: 32,
        protocol,
        patience: Duration::from_secs(120),
        busy_patience: Duration::from_secs(120),
        ..Options::default()
    }
}

fn served(setup: Setup) -> Node {
    setup.configured(SERVED).boot().ready().with_address()
}

fn port(node: &Node) -> u16 {
    node.host_port(qemu::Protocol::Udp, 10809)
}

fn open(proxy: &Proxy, protocol: Protocol) -> Disk {
    let disk = Disk::open(&format!("127.0.0.1:{}", proxy.port()), &options(protocol));
    disk.unwrap_or_else(|error| panic!("{error}"))
}

/// Random requests through a proxy in this weather, for so many requests.
fn through(name: &str, protocol: Protocol, weather: Weather, requests: u32) -> Damage {
    let node = served(Setup::of(name));
    let proxy = Proxy::to(port(&node), 0x6e6f_7301);
    let mut checked = Checked::new(open(&proxy, protocol), 0x51ab);
    proxy.set(weather);
    let started = Instant::now();
    checked.requests(requests);
    let damage = proxy.damage();
    proxy.set(Weather::FAIR);
    checked.check();
    println!("{name}: {requests} requests in {:.1?}, {damage:?}", started.elapsed());
    damage
}

/// Version 1 can stand losses, and doubles that come at once. A delayed double of an old WRITE would overwrite a newer
/// one: that is what version 2 is for.
#[test]
fn version_1_through_losses() {
    let weather = Weather { lost: 30, doubled: 30, ..Weather::FAIR };
    let damage = through("faults_version_1", Protocol::One, weather, 3000);
    assert!(damage.lost > 100 && damage.doubled > 100, "{damage:?}");
}

#[test]
fn version_2_through_everything() {
    let weather = Weather {
        lost: 20,
        doubled: 30,
        delayed: 30,
        damaged: 10,
        // The header; behind it are data, which only the link's own checks protect.
        damaged_bytes: 66,
        late: Duration::from_millis(300),
    };
    let damage = through("faults_version_2", Protocol::Two, weather, 3000);
    assert!(
        damage.lost > 100 && damage.doubled > 100 && damage.delayed > 100 && damage.damaged > 50,
        "{damage:?}"
    );
}

/// The link is dead, for a minute too, and the service is stopped and started: nobody who uses the disk sees an error.
#[test]
fn a_dead_link_and_a_restarted_service_are_no_errors() {
    let mut node = served(Setup::of("faults_restart"));
    let proxy = Proxy::to(port(&node), 3);
    let mut checked = Checked::new(open(&proxy, Protocol::Auto), 4);
    assert_eq!(checked.disk.info().version, 2);
    for seconds in [3, 61] {
        std::thread::scope(|scope| {
            let working = scope.spawn(|| checked.requests(1500));
            proxy.set(Weather::DEAD);
            std::thread::sleep(Duration::from_secs(seconds));
            proxy.set(Weather::FAIR);
            node.run("netblk stop 10809");
            node.run("netblk start nvme0n1 10809");
            working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
    }
    checked.check();
}

fn image(name: &str) -> PathBuf {
    let path = Path::new("target/stories").join(format!("{name}.qcow2"));
    xtask::workspace::enter_root().expect("the workspace");
    std::fs::create_dir_all("target/stories").expect("a folder");
    let clusters = ["create", "-q", "-f", "qcow2", "-o", "cluster_size=512"];
    let made = Command::new("qemu-img").args(clusters).arg(&path).arg("16M").status();
    assert!(made.is_ok_and(|status| status.success()), "making {}", path.display());
    path
}

/// The node's power is cut while a client writes, and comes back: the disk has forgotten what was not flushed, and the client has not.
#[test]
fn a_power_cut_loses_nothing_that_the_client_was_told() {
    let name = "faults_power";
    let disk = image(name);
    let boot = || served(Setup::of(name).disk_file(&disk, "qcow2"));
    let mut node = boot();
    let proxy = Proxy::to(port(&node), 5);
    let mut checked = Checked::new(open(&proxy, Protocol::Two), 6);
    for _ in 0..3 {
        node = std::thread::scope(|scope| {
            let working = scope.spawn(|| checked.requests(1500));
            std::thread::sleep(Duration::from_millis(300));
            node.cut_the_power();
            let node = boot();
            proxy.lead_to(port(&node));
            working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            node
        });
    }
    checked.check();
    drop(node);
}
