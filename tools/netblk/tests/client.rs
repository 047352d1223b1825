//! The client against a fake server, over a network that misbehaves.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use netblk::engine::Protocol;
use netblk::{Client, Error, Options, transfer, verify};
use netblk_proto::v2::{Op, Status};
use support::{Behaviour, FakeServer, Faults, image};

const NO_PROGRESS: &dyn Fn(u64) = &|_| {};

fn connect(server: &FakeServer, options: &Options) -> Client {
    Client::connect(&server.target(), options, Arc::default()).unwrap()
}

fn lossy(seed: u64) -> Behaviour {
    let faults = Faults { lost: 50, doubled: 30, held_back: 50, damaged: 30, noise: 20, data_damaged: 0 };
    Behaviour { seed, faults, busy: 10, ..Behaviour::default() }
}

/// Persistent enough for any seed.
fn patient() -> Options {
    Options { max_tries: 20, ..Options::default() }
}

#[test]
fn info_is_what_the_server_says() {
    let server = FakeServer::start(image(1, 1 << 20), Behaviour::default());
    let info = connect(&server, &Options::default()).info();
    assert_eq!((info.size_bytes, info.sector_bytes, info.datagram_bytes), (1 << 20, 512, 1024));
    assert_eq!((info.name.as_str(), info.model.as_str()), ("fake0", "A disk in a test"));
}

#[test]
fn any_range_of_bytes_is_read() {
    let content = image(2, 256 << 10);
    let server = FakeServer::start(content.clone(), Behaviour::default());
    let mut client = connect(&server, &Options::default());
    for (offset, length) in [(0, 256 << 10), (0, 1), (511, 2), (1000, 100_000), (262_143, 1), (4096, 0)] {
        let mut found = Vec::new();
        transfer::read_to(&mut client, offset, length, &mut found, NO_PROGRESS).unwrap();
        assert!(found == content[offset as usize..(offset + length) as usize], "{length} at {offset}");
    }
    let error = transfer::read_to(&mut client, 1, 256 << 10, &mut Vec::new(), NO_PROGRESS).unwrap_err();
    assert!(matches!(error, Error::Usage(_)));
}

#[test]
fn a_write_keeps_what_stands_around_it() {
    let before = image(3, 128 << 10);
    let server = FakeServer::start(before.clone(), Behaviour::default());
    let mut client = connect(&server, &Options::default());
    let new = image(4, 50_001);
    let written =
        transfer::write_from(&mut client, 512 * 7, &mut new.as_slice(), false, NO_PROGRESS).unwrap();
    assert_eq!(written, 50_001);
    let mut expected = before;
    expected[512 * 7..512 * 7 + 50_001].copy_from_slice(&new);
    assert!(server.image() == expected);
    assert!(server.seen().unflushed_writes > 0);
    client.flush().unwrap();
    assert_eq!(server.seen().unflushed_writes, 0);
    assert_eq!(server.seen().fua_writes, 0);
    transfer::write_from(&mut client, 0, &mut &new[..1024], true, NO_PROGRESS).unwrap();
    assert_eq!(server.seen().fua_writes, 1);
}

#[test]
fn what_does_not_fit_is_refused_before_it_does_harm() {
    let server = FakeServer::start(image(5, 64 << 10), Behaviour::default());
    let options = Options { protocol: Protocol::One, ..Options::default() };
    let mut client = connect(&server, &options);
    let long = vec![0; 65 << 10];
    let error = transfer::write_from(&mut client, 0, &mut long.as_slice(), false, NO_PROGRESS).unwrap_err();
    assert!(matches!(error, Error::Usage(_)), "{error}");
    let error = transfer::write_from(&mut client, 100, &mut &long[..512], false, NO_PROGRESS).unwrap_err();
    assert!(error.to_string().contains("whole sectors"), "{error}");
    assert_eq!(server.seen().refused, 0, "the client itself must know better");
}

#[test]
fn reads_and_writes_come_through_loss_doubling_reordering_and_damage() {
    for seed in 0..4 {
        let content = image(seed, 512 << 10);
        let server = FakeServer::start(content.clone(), lossy(seed));
        let mut client = connect(&server, &patient());
        let mut found = Vec::new();
        transfer::read_to(&mut client, 0, content.len() as u64, &mut found, NO_PROGRESS).unwrap();
        assert!(found == content, "seed {seed}: what was read differs");
        let new = image(seed + 100, 256 << 10);
        transfer::write_from(&mut client, 128 << 10, &mut new.as_slice(), false, NO_PROGRESS).unwrap();
        client.flush().unwrap();
        assert!(server.image()[128 << 10..384 << 10] == new, "seed {seed}: what was written differs");
        let stats = client.stats();
        assert!(stats.repeated > 0 && stats.ignored > 0, "seed {seed}: nothing went wrong? {stats:?}");
    }
}

#[test]
fn verify_through_loss_leaves_the_old_content() {
    let content = image(6, 256 << 10);
    let server = FakeServer::start(content.clone(), lossy(6));
    let mut client = connect(&server, &patient());
    let plan = verify::Plan { offset: 4096, length: 128 << 10, seed: 99, overwrite: false };
    verify::verify(&mut client, &plan, NO_PROGRESS).unwrap();
    assert!(server.image() == content);
    let overwriting = verify::Plan { overwrite: true, ..plan };
    verify::verify(&mut client, &overwriting, NO_PROGRESS).unwrap();
    let mut expected = content;
    netblk::pattern::fill(99, 4096, &mut expected[4096..4096 + (128 << 10)]);
    assert!(server.image() == expected);
}

#[test]
fn verify_finds_damaged_data_and_puts_the_old_content_back() {
    let content = image(7, 64 << 10);
    let faults = Faults { data_damaged: 100, ..Faults::default() };
    let server = FakeServer::start(content.clone(), Behaviour { faults, ..Behaviour::default() });
    let mut client = connect(&server, &Options::default());
    let plan = verify::Plan { offset: 0, length: 64 << 10, seed: 1, overwrite: true };
    let error = verify::verify(&mut client, &plan, NO_PROGRESS).unwrap_err();
    let Error::Mismatch(mismatch) = &error else { panic!("{error}") };
    assert!(mismatch.sectors > 0 && mismatch.expected[0] == mismatch.found[0] ^ 0x10);
    assert_eq!(error.exit_code(), 1);
}

#[test]
fn large_sectors_and_datagrams() {
    let content = image(8, 1 << 20);
    let behaviour = Behaviour { sector_bytes: 4096, mtu: 9000, ..lossy(8) };
    let server = FakeServer::start(content.clone(), behaviour);
    let mut client = connect(&server, &patient());
    assert_eq!(client.info().max_read_bytes, 16 * 4096);
    let mut found = Vec::new();
    transfer::read_to(&mut client, 5000, 900_000, &mut found, NO_PROGRESS).unwrap();
    assert!(found == content[5000..905_000]);
    transfer::write_from(&mut client, 8192, &mut &found[..10_000], false, NO_PROGRESS).unwrap();
    assert!(server.image()[8192..18_192] == content[5000..15_000]);
}

#[test]
fn an_io_error_names_the_place() {
    let behaviour = Behaviour { bad: 20_000..20_001, ..Behaviour::default() };
    let server = FakeServer::start(image(9, 64 << 10), behaviour);
    let mut client = connect(&server, &Options::default());
    let error = transfer::read_to(&mut client, 0, 64 << 10, &mut Vec::new(), NO_PROGRESS).unwrap_err();
    let Error::Refused { op: Op::Read, offset, length, status: Status::IoError } = error else {
        panic!("{error}")
    };
    assert!((offset..offset + u64::from(length)).contains(&20_000));
    assert_eq!(error.exit_code(), 4);
    // The client is as good as before.
    transfer::read_to(&mut client, 32 << 10, 1024, &mut Vec::new(), NO_PROGRESS).unwrap();
}

#[test]
fn a_read_only_disk_is_not_written() {
    let behaviour = Behaviour { read_only: true, ..Behaviour::default() };
    let server = FakeServer::start(image(10, 64 << 10), behaviour);
    let mut client = connect(&server, &Options::default());
    let error = transfer::write_from(&mut client, 0, &mut &[0; 512][..], false, NO_PROGRESS).unwrap_err();
    assert!(error.to_string().contains("read-only"));
    assert_eq!(server.seen().requests[2], 0);
}

#[test]
fn a_server_that_falls_silent_is_given_up() {
    let server = FakeServer::start(image(11, 64 << 10), Behaviour { mute: true, ..Behaviour::default() });
    let mut client = connect(&server, &Options { max_tries: 3, ..Options::default() });
    let error = client.flush().unwrap_err();
    assert!(matches!(error, Error::NoAnswer { op: Op::Flush, tries: 3, refused: false, .. }), "{error}");
    assert!(error.to_string().contains(&server.target()));
    assert_eq!(error.exit_code(), 3);
}

#[test]
fn a_busy_server_is_waited_for_but_not_for_ever() {
    let busy = |busy| Behaviour { busy, ..Behaviour::default() };
    let content = image(12, 128 << 10);
    let server = FakeServer::start(content.clone(), busy(300));
    let mut client = connect(&server, &Options::default());
    let mut found = Vec::new();
    transfer::read_to(&mut client, 0, 128 << 10, &mut found, NO_PROGRESS).unwrap();
    assert!(found == content && client.stats().busy > 0);

    let server = FakeServer::start(content, busy(1000));
    let options = Options { busy_patience: Duration::from_millis(200), ..Options::default() };
    let mut client = connect(&server, &options);
    let error = transfer::read_to(&mut client, 0, 1024, &mut Vec::new(), NO_PROGRESS).unwrap_err();
    assert!(matches!(error, Error::StillBusy { .. }), "{error}");
}

#[test]
fn nobody_listening_is_known_soon() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = std::time::Instant::now();
    let error = Client::connect(&format!("127.0.0.1:{port}"), &Options::default(), Arc::default())
        .err()
        .expect("nobody listens");
    assert!(matches!(error, Error::NoAnswer { refused: true, .. }), "{error}");
    assert!(error.to_string().contains("nobody listens"));
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn an_interruption_ends_a_run_and_verify_still_cleans_up() {
    let content = image(13, 256 << 10);
    let server = FakeServer::start(content.clone(), Behaviour::default());
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut client = Client::connect(&server.target(), &Options::default(), interrupted.clone()).unwrap();
    let plan = verify::Plan { offset: 0, length: 256 << 10, seed: 5, overwrite: false };
    // In the middle of writing the pattern.
    let moved = std::cell::Cell::new(0);
    let error = verify::verify(&mut client, &plan, &|bytes| {
        moved.set(moved.get() + bytes);
        if moved.get() == (256 << 10) + (100 << 10) {
            interrupted.store(true, Ordering::Relaxed);
        }
    })
    .unwrap_err();
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(server.image() == content);
}
