//! The remote disk as programs use it, against a server that loses, doubles and holds back.

#![forbid(unsafe_code)]

mod support;

use std::sync::mpsc;
use std::thread;

use netblk::disk::{Disk, Request};
use netblk::pattern::Random;
use netblk::{Error, Options};
use support::{Behaviour, FakeServer, Faults, image};

const SIZE: usize = 1 << 20;

fn lossy(seed: u64) -> Behaviour {
    let faults = Faults { lost: 20, held_back: 20, ..Faults::default() };
    Behaviour { seed, faults, busy: 5, ..Behaviour::default() }
}

#[test]
fn requests_of_any_length_from_many_threads() {
    let content = image(1, SIZE);
    let server = FakeServer::start(content.clone(), lossy(1));
    let disk = Disk::open(&server.target(), &Options::default()).unwrap();
    assert_eq!((disk.info().size_bytes, disk.info().version), (SIZE as u64, 1));
    let part = SIZE / 4;
    let parts: Vec<Vec<u8>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (disk, mut mine) = (disk.clone(), content[number * part..][..part].to_vec());
                scope.spawn(move || {
                    let mut random = Random::new(number as u64);
                    for _ in 0..40 {
                        let start = random.below(part as u64 / 512) as usize * 512;
                        let bytes = (1 + random.below(60) as usize) * 512;
                        let end = part.min(start + bytes);
                        let offset = (number * part + start) as u64;
                        match random.below(4) {
                            0 => {
                                mine[start..end].fill(0);
                                let length = (end - start) as u32;
                                disk.ask(Request::WriteZeroes { offset, length, fua: false }).unwrap();
                            }
                            1 => {
                                let data = image(random.below(1 << 20), end - start);
                                mine[start..end].copy_from_slice(&data);
                                disk.ask(Request::Write { offset, data, fua: false }).unwrap();
                            }
                            2 => {
                                disk.ask(Request::Flush).unwrap();
                            }
                            _ => {
                                let length = (end - start) as u32;
                                let found = disk.ask(Request::Read { offset, length }).unwrap();
                                assert!(found == mine[start..end]);
                            }
                        }
                    }
                    mine
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    drop(disk);
    assert!(server.image() == parts.concat());
}

/// Nobody waits for an answer before the next is submitted: what overlaps is done in the order in which it was asked.
#[test]
fn what_overlaps_keeps_its_order() {
    let server = FakeServer::start(image(2, 64 << 10), lossy(2));
    let disk = Disk::open(&server.target(), &Options::default()).unwrap();
    let (sender, answers) = mpsc::channel();
    let mut expected = image(2, 64 << 10);
    let mut random = Random::new(3);
    for number in 0..200_u8 {
        let start = random.below(16) as usize * 1024;
        let sender = sender.clone();
        if number % 4 == 3 {
            let right = expected[start..start + 8192].to_vec();
            disk.submit(Request::Read { offset: start as u64, length: 8192 }, move |answer| {
                sender.send(answer.unwrap() == right).unwrap();
            });
        } else {
            expected[start..start + 4096].fill(number);
            let request = Request::Write { offset: start as u64, data: vec![number; 4096], fua: false };
            disk.submit(request, move |answer| sender.send(answer.is_ok()).unwrap());
        }
    }
    assert!((0..200).all(|_| answers.recv().unwrap()));
    assert!(server.image() == expected);
}

#[test]
fn what_is_no_request_for_this_disk_is_refused_without_asking() {
    let server = FakeServer::start(image(4, 64 << 10), Behaviour { read_only: true, ..Behaviour::default() });
    let disk = Disk::open(&server.target(), &Options::default()).unwrap();
    assert!(disk.info().read_only && !disk.info().discard);
    for request in [
        Request::Read { offset: 1, length: 512 },
        Request::Read { offset: 64 << 10, length: 512 },
        Request::Read { offset: u64::MAX - 511, length: 512 },
        Request::Write { offset: 0, data: vec![0; 512], fua: false },
        Request::Discard { offset: 0, length: 512 },
    ] {
        let error = disk.ask(request.clone()).unwrap_err();
        assert!(matches!(*error, Error::Usage(_)), "{request:?}: {error}");
    }
    assert_eq!(disk.ask(Request::Read { offset: 512, length: 0 }).unwrap(), []);
}

/// One failed sector fails its own request alone.
#[test]
fn a_failure_is_of_its_request() {
    let server = FakeServer::start(image(5, 64 << 10), Behaviour { bad: 8192..8704, ..Behaviour::default() });
    let disk = Disk::open(&server.target(), &Options::default()).unwrap();
    let (sender, answers) = mpsc::channel();
    for block in 0..16_u64 {
        let sender = sender.clone();
        disk.submit(Request::Read { offset: block * 4096, length: 4096 }, move |answer| {
            sender.send((block, answer.map(|_| ()).map_err(|error| error.to_string()))).unwrap();
        });
    }
    for (block, answer) in answers.iter().take(16) {
        assert_eq!(answer.is_err(), block == 2, "{answer:?}");
    }
}
