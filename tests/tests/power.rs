//! The power goes in the middle of writing, and what was promised to be on the disk is there.
//!
//! The disk is a qcow2 image: QEMU keeps its tables in a cache of its own, which dies with it, so a write that was answered but not
//! flushed can be lost, as on a disk with a volatile cache. A node that forgot a flush, or answered one too early, would be seen; and
//! that such writes do get lost here is checked too.

#![forbid(unsafe_code)]

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use stories::netblk::{Client, FLUSH, FUA, Request};
use stories::proxy::Random;
use stories::{Node, Setup};
use xtask::qemu::Protocol;

const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";

const SECTOR_BYTES: usize = 512;
const WRITE_BYTES: usize = 1024;
/// Places that are written, each in a cluster of its own, and many: a first write changes the image's tables, later ones do not.
const PLACES: u64 = 1 << 16;
const CLUSTER_BYTES: u64 = 4096;
const PLACE_BYTES: u64 = 2 * CLUSTER_BYTES;
/// Writes under way at once.
const WINDOW: u64 = 16;
/// Rounds of a window of plain writes up to one that is made durable.
const PLAIN_ROUNDS: u64 = 8;

/// No answer for so long: the node is gone.
const SILENCE: Duration = Duration::from_secs(2);

/// What a sector holds: its place, which write of that place it comes from, and the same again in every byte that follows.
fn sector(place: u64, generation: u64) -> Vec<u8> {
    let mut random = Random::new(place << 32 | generation);
    let mut bytes = [place.to_be_bytes(), generation.to_be_bytes()].concat();
    while bytes.len() < SECTOR_BYTES {
        bytes.extend(random.number().to_be_bytes());
    }
    bytes
}

/// The generation of a sector; 0 for one that was never written. `None`: it is not whole, or another place's.
fn generation(place: u64, bytes: &[u8]) -> Option<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(0);
    }
    let generation = u64::from_be_bytes(bytes[8..16].try_into().expect("eight bytes"));
    (bytes == sector(place, generation)).then_some(generation)
}

/// What a place may hold after the power is back.
#[derive(Debug, Clone, Copy, Default)]
struct Promise {
    /// The newest generation that was sent.
    sent: u64,
    /// The newest that was answered.
    answered: u64,
    /// The newest that was answered with FUA, or answered before a FLUSH that was answered too.
    durable: u64,
}

/// Writes for as long as there are answers. Says once when it is well under way: after `rounds` rounds, and one behind the
/// last that was made durable, so that there is something to lose.
fn write_until_silence(
    client: &mut Client,
    promises: &mut HashMap<u64, Promise>,
    random: &mut Random,
    rounds: u64,
    under_way: &Sender<()>,
) {
    let mut told = false;
    for round in 0.. {
        if !told && round >= rounds && round % PLAIN_ROUNDS == 1 {
            told = true;
            under_way.send(()).expect("somebody who cuts the power");
        }
        let force = round % (2 * PLAIN_ROUNDS) == 2 * PLAIN_ROUNDS - 1;
        // Never two writes under way to one place.
        let mut places = HashSet::new();
        while (places.len() as u64) < WINDOW {
            places.insert(random.below(PLACES));
        }
        for &place in &places {
            let promise = promises.entry(place).or_default();
            promise.sent += 1;
            let data = [sector(place, promise.sent), sector(place, promise.sent)].concat();
            let flags = if force { FUA } else { 0 };
            let request = Request { cookie: place, flags, ..Request::write(place * PLACE_BYTES, &data) };
            client.send(&request.bytes());
        }
        let mut missing = places;
        while !missing.is_empty() {
            let Some(reply) = client.receive(SILENCE) else { return };
            assert_eq!(reply.status, 0, "{reply:x?}");
            if missing.remove(&reply.cookie) {
                let promise = promises.entry(reply.cookie).or_default();
                promise.answered = promise.sent;
                if force {
                    promise.durable = promise.sent;
                }
            }
        }
        if round % (2 * PLAIN_ROUNDS) == PLAIN_ROUNDS - 1 {
            client.send(&Request { cookie: u64::MAX, ..Request::new(FLUSH, 0, 0) }.bytes());
            let Some(reply) = client.receive(SILENCE) else { return };
            assert_eq!((reply.cookie, reply.status), (u64::MAX, 0));
            promises.values_mut().for_each(|promise| promise.durable = promise.answered);
        }
    }
}

fn image(name: &str) -> PathBuf {
    let path = Path::new("target/stories").join(format!("{name}.qcow2"));
    xtask::workspace::enter_root().expect("the workspace");
    std::fs::create_dir_all("target/stories").expect("a folder");
    let size = (PLACES * PLACE_BYTES).to_string();
    let clusters = format!("cluster_size={CLUSTER_BYTES}");
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-o", &clusters])
        .arg(&path)
        .arg(size)
        .status();
    assert!(made.is_ok_and(|status| status.success()), "making {}", path.display());
    path
}

fn boot(name: &str, disk: &Path) -> (Node, Client) {
    let node = Setup::of(name).configured(SERVED).disk_file(disk, "qcow2").boot().ready().with_address();
    let client = Client::new(node.host_port(Protocol::Udp, 10809));
    (node, client)
}

#[test]
fn what_was_flushed_is_there_after_a_power_cut() {
    let (name, disk) = ("power_cut", image("power_cut"));
    let mut random = Random::new(0x9e3d_11c7);
    let (mut cuts, mut forgotten, mut kept) = (0, 0, 0);
    let mut promises = HashMap::new();
    while cuts < 3 {
        let (node, mut client) = boot(name, &disk);
        let rounds = 10 + random.below(100);
        let (sender, under_way) = mpsc::channel();
        let writer = thread::spawn({
            let (mut promises, mut random) = (promises, Random::new(random.number()));
            move || {
                write_until_silence(&mut client, &mut promises, &mut random, rounds, &sender);
                promises
            }
        });
        under_way.recv_timeout(stories::PATIENCE).expect("a writer that gets on");
        node.cut_the_power();
        cuts += 1;
        promises = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));

        let (_node, mut client) = boot(name, &disk);
        for (&place, promise) in &mut promises {
            let data = client.read(place * PLACE_BYTES, WRITE_BYTES as u32);
            let mut found = u64::MAX;
            for half in data.chunks_exact(SECTOR_BYTES) {
                let generation = generation(place, half)
                    .unwrap_or_else(|| panic!("cut {cuts}: place {place} holds what was never written"));
                assert!(
                    (promise.durable..=promise.sent).contains(&generation),
                    "cut {cuts}: place {place} holds write {generation}, and was promised {promise:?}"
                );
                found = found.min(generation);
            }
            forgotten += u32::from(found < promise.answered);
            kept += u32::from(promise.durable > 0);
            // Whatever it holds now, it keeps: the next round begins here.
            *promise = Promise { sent: promise.sent, answered: found, durable: found };
        }
    }
    println!("{cuts} cuts: {kept} durable places kept, {forgotten} writes forgotten that were only answered");
    assert!(kept > 100, "hardly anything was made durable: {kept}");
    assert!(forgotten > 0, "this disk forgets nothing, so nothing was shown");
}
