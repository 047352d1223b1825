//! netblk's version 2: what its sessions promise, to a client that does everything a real one never does.

#![forbid(unsafe_code)]

use std::time::Duration;

use netblk_proto::Flags;
use netblk_proto::v2::{Answer, ConnectBody, HelloReply, Op, PreSharedKey, RequestHeader, Status};
use stories::netblk::{Client, INFO, Request};
use stories::session::{Session, Stranger};
use stories::{Node, Setup};
use xtask::qemu::Protocol;

const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n";
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// An answer that would have come by now.
const SILENCE: Duration = Duration::from_millis(700);

fn served_with(name: &str, more: &str) -> (Node, u16) {
    let node = Setup::of(name).configured(format!("{SERVED}{more}")).boot().ready().with_address();
    let port = node.host_port(Protocol::Udp, 10809);
    (node, port)
}

fn served(name: &str) -> (Node, u16) {
    served_with(name, "")
}

#[test]
fn what_is_written_is_read_in_both_versions() {
    let (mut node, port) = served("sessions_write");
    let mut session = Session::open(port);
    assert_eq!((session.info.device.datagram_bytes, session.info.device.max_write_bytes), (1024, 4096));
    let long: Vec<u8> = (0..4096_u32).map(|place| (place * 7 + place / 256) as u8).collect();
    session.write(0, &long);
    session.write(8192, &long[..1024]);
    session.write(512, &[0xEE; 512]);
    assert_eq!(session.ask(Op::Flush, 0, 0, &[]).status, Status::Ok);
    let expected = [&long[..512], &[0xEE; 512], &long[1024..]].concat();
    assert_eq!(session.read(0, 4096), expected);
    assert_eq!(session.read(0, 16384)[..4096], expected);
    assert_eq!(Client::new(port).read(0, 4096), expected);
    assert_eq!(session.ask(Op::Info, 0, 0, &[]).data, session.info.to_bytes());
    let listed = node.run("netblk list");
    assert!(listed.contains("version 2") && listed.contains("copies     0"), "{listed}");
    assert_eq!(session.ask(Op::Close, 0, 0, &[]).status, Status::Ok);
    let said = session.ask(Op::Read, 0, 512, &[]);
    assert_eq!((said.status, said.authentic), (Status::StaleSession, false));
}

#[test]
fn nothing_that_is_said_to_a_stranger_is_longer_than_what_it_said() {
    let (_node, port) = served("sessions_mirror");
    let mut stranger = Stranger::new(port);
    let hello = Stranger::hello_bytes([9; 16]);
    stranger.send(&hello);
    let answer = stranger.receive(SILENCE).expect("an answer to HELLO");
    assert!(answer.len() <= hello.len());
    // A HELLO that is not padded is not answered with a challenge, nor at length.
    for bytes in [30, 66, 100, 257] {
        stranger.send(&hello[..bytes]);
        assert!(stranger.receive(SILENCE).is_none_or(|came| came.len() <= bytes), "{bytes}");
    }
    let (client_nonce, HelloReply { challenge, epoch, .. }) = stranger.hello().expect("a challenge");
    let good = ConnectBody { client_nonce, challenge, epoch, replaces: 0 };
    let connect = |body: &ConnectBody| Stranger::connect_bytes(body, &PreSharedKey::NONE);
    // Someone else's challenge, a made-up one, another epoch: a header is all they get.
    for body in [
        ConnectBody { client_nonce: [0xAA; 16], ..good },
        ConnectBody { challenge: [1; 16], ..good },
        ConnectBody { epoch: !epoch, ..good },
    ] {
        stranger.send(&connect(&body).0);
        let came = stranger.receive(SILENCE).expect("a refusal");
        assert_eq!(came.len(), 66);
        assert!(matches!(came.read(None).answer, Answer::Failed { status: Status::StaleSession, .. }));
    }
    // The challenge is for this socket's address.
    let other = Stranger::new(port);
    other.send(&connect(&good).0);
    let came = other.receive(SILENCE).expect("a refusal");
    assert!(matches!(came.read(None).answer, Answer::Failed { status: Status::StaleSession, .. }));
    let (datagram, keys) = connect(&good);
    stranger.send(&datagram);
    let came = stranger.receive(SILENCE).expect("a session");
    assert!(came.len() <= datagram.len());
    let first = came.read(Some(&keys.server_to_client)).session;
    // Once more: the same session.
    stranger.send(&datagram);
    let came = stranger.receive(SILENCE).expect("the session again");
    assert_eq!(came.read(Some(&keys.server_to_client)).session, first);
}

#[test]
fn an_old_write_that_comes_late_does_not_overwrite_a_newer_one() {
    let (mut node, port) = served("sessions_replay");
    let mut session = Session::open(port);
    let old = session.request(Op::Write, 4096, 512);
    session.send_request(&old, &[1; 512]);
    assert_eq!(session.reply_to(&old).status, Status::Ok);
    session.write(4096, &[2; 512]);
    // The network had a copy of the old one all the time.
    for _ in 0..20 {
        session.send_request(&old, &[1; 512]);
        let said = session.reply_to(&old);
        assert_eq!((said.status, said.sequence, said.authentic), (Status::Ok, old.sequence, true));
    }
    assert_eq!(session.read(4096, 512), [2; 512]);
    // So long ago that its record is gone.
    for _ in 0..256 {
        session.write(8192, &[3; 512]);
    }
    session.send_request(&old, &[1; 512]);
    assert_eq!(session.reply_to(&old).status, Status::TooOld);
    assert_eq!(session.read(4096, 512), [2; 512]);
    let listed = node.run("netblk list");
    assert!(listed.contains("20 duplicates"), "{listed}");
}

#[test]
fn a_failed_answer_is_recorded_and_a_refusal_is_not() {
    let (_node, port) = served("sessions_record");
    let mut session = Session::open(port);
    let wrong = session.request(Op::Write, 1 << 40, 512);
    session.send_request(&wrong, &[1; 512]);
    assert_eq!(session.reply_to(&wrong).status, Status::OutOfRange);
    // Its number is free: nothing was carried out.
    let right = RequestHeader { offset: 0, ..wrong };
    session.send_request(&right, &[5; 512]);
    assert_eq!(session.reply_to(&right).status, Status::Ok);
    assert_eq!(session.read(0, 512), [5; 512]);
}

#[test]
fn what_is_forged_changes_nothing() {
    let (mut node, port) = served("sessions_forged");
    let mut session = Session::open(port);
    session.write(0, &[7; 512]);
    let header = session.request(Op::Write, 0, 512);
    let good = session.datagrams(&header, &[8; 512]).remove(0);
    // Every field, and the length. (Another version is answered in version 1, for it needs no session.)
    for at in (0..66).filter(|&at| at != 4) {
        let mut forged = good.clone();
        forged[at] ^= 1;
        session.send(&forged);
    }
    session.send(&good[..good.len() - 1]);
    while let Some(said) = session.receive(SILENCE) {
        assert!(!said.authentic || said.status != Status::Ok, "{said:x?}");
    }
    // The server's own words, sent back; and the right words from another port.
    let (body, mut to_server) = ([], RequestHeader { sequence: 0, ..header });
    to_server.op = Op::Flush;
    to_server.length = 0;
    session.send(&to_server.seal(Some(&session.keys.server_to_client), &body));
    assert!(session.receive(SILENCE).is_none());
    let elsewhere = Stranger::new(port);
    elsewhere.send(&good);
    let came = elsewhere.receive(SILENCE).expect("an answer without a tag");
    assert_eq!(came.len(), 66);
    let reply = came.read(Some(&session.keys.server_to_client));
    assert!(!reply.authentic && matches!(reply.answer, Answer::Failed { status: Status::StaleSession, .. }));
    assert_eq!(session.read(0, 512), [7; 512]);
    // The real one still counts: the forged ones took neither its number nor the session.
    session.send(&good);
    assert_eq!(session.reply_to(&header).status, Status::Ok);
    assert_eq!(session.read(0, 512), [8; 512]);
    let listed = node.run("netblk list");
    assert!(listed.contains("wrong tag"), "{listed}");
}

#[test]
fn a_write_in_parts_is_written_when_all_are_there() {
    let (mut node, port) = served("sessions_parts");
    let mut session = Session::open(port);
    let data: Vec<u8> = (0..4096_u32).map(|place| (place / 16) as u8).collect();
    let header = session.request(Op::Write, 16384, 4096);
    let parts = session.datagrams(&header, &data);
    for number in [3, 0, 3, 1, 0] {
        session.send(&parts[number]);
    }
    assert_eq!(session.receive(SILENCE), None, "an answer before the last part came");
    assert_eq!(session.read(16384, 4096), vec![0; 4096]);
    session.send(&parts[2]);
    assert_eq!(session.reply_to(&header).status, Status::Ok);
    assert_eq!(session.read(16384, 4096), data);
    // A part of what is written is answered from the record.
    session.send(&parts[1]);
    assert_eq!(session.reply_to(&header).status, Status::Ok);
    // Parts that contradict each other.
    let header = session.request(Op::Write, 0, 4096);
    session.send(&session.datagrams(&header, &[1; 4096])[0]);
    let other = RequestHeader { offset: 4096, ..header };
    session.send(&session.datagrams(&other, &[1; 4096])[1]);
    assert_eq!(session.reply_to(&header).status, Status::BadRequest);
    // Writes that never become whole are given up, and hold nothing for ever.
    for place in 0..100 {
        let header = session.request(Op::Write, place * 4096, 4096);
        session.send(&session.datagrams(&header, &[1; 4096])[0]);
    }
    session.write(0, &[4; 4096]);
    assert_eq!(session.read(0, 4096), [4; 4096]);
    assert_eq!(session.ask(Op::Close, 0, 0, &[]).status, Status::Ok);
    let listed = node.run("netblk list");
    assert!(listed.contains("parts missing") && listed.contains(" 0 of 512 datagrams busy"), "{listed}");
}

#[test]
fn sectors_of_4_kib_are_read_and_written_without_a_copy() {
    let setup = Setup::of("sessions_4k").sector_bytes(4096).configured(SERVED);
    let mut node = setup.boot().ready().with_address();
    let mut session = Session::open(node.host_port(Protocol::Udp, 10809));
    let device = session.info.device;
    assert_eq!((device.sector_bytes, device.datagram_bytes, device.max_write_bytes), (4096, 1024, 4096));
    let sector = |number: u64| -> Vec<u8> { (0..4096_u64).map(|at| (at / 8 + number * 3) as u8).collect() };
    for number in 0..16 {
        session.write(number * 4096, &sector(number));
    }
    for number in (0..16).step_by(4) {
        let four: Vec<u8> = (number..number + 4).flat_map(sector).collect();
        assert_eq!(session.read(number * 4096, 16384), four);
    }
    assert_eq!(session.ask(Op::Read, 0, 1024, &[]).status, Status::BadRequest);
    let listed = node.run("netblk list");
    assert!(listed.contains("copies     0"), "{listed}");
    let image = std::fs::read(node.disk()).expect("the disk's image");
    assert_eq!(image[4096..8192], sector(1));
}

/// Eight datagrams of 512 bytes are more pieces than go to a disk at once.
#[test]
fn what_cannot_be_written_from_where_it_came_is_copied_once_and_counted() {
    let setup = Setup::of("sessions_copy").sector_bytes(4096).configured(format!("{SERVED}mtu = 700\n"));
    let mut node = setup.boot().ready().with_address();
    let mut session = Session::open(node.host_port(Protocol::Udp, 10809));
    assert_eq!((session.info.device.datagram_bytes, session.info.device.max_write_bytes), (512, 4096));
    let data: Vec<u8> = (0..4096_u32).map(|at| (at / 3) as u8).collect();
    session.write(8192, &data);
    assert_eq!(session.read(8192, 4096), data);
    let listed = node.run("netblk list");
    assert!(listed.contains("copies     1 of 4096 bytes"), "{listed}");
}

#[test]
fn a_session_that_asks_for_everything_leaves_room_for_another() {
    let (mut node, port) = served("sessions_greedy");
    let (mut greedy, mut modest) = (Session::open(port), Session::open(port));
    for _ in 0..20 {
        // More than there is room for, and nobody reads the answers.
        for _ in 0..64 {
            let header = greedy.request(Op::Read, 0, 16384);
            greedy.send_request(&header, &[]);
        }
        for place in 0..5 {
            let said = modest.ask(Op::Write, place * 1024, 1024, &[place as u8; 1024]);
            assert_eq!(said.status, Status::Ok, "{}", node.run("netblk list"));
        }
    }
    let listed = node.run("netblk list");
    let replies = listed.lines().find(|line| line.contains("replies")).expect("a line about replies");
    assert!(replies.contains(" busy"), "the greedy one was never told to wait:\n{listed}");
}

#[test]
fn a_restarted_server_knows_nothing_of_the_sessions_before() {
    let (mut node, port) = served("sessions_restart");
    let mut session = Session::open(port);
    session.write(0, &[1; 512]);
    node.run("netblk stop 10809");
    node.run("netblk start nvme0n1 10809");
    let said = session.ask(Op::Write, 0, 512, &[9; 512]);
    assert_eq!((said.status, said.authentic), (Status::StaleSession, false));
    let epoch = session.info.epoch;
    let old = session.session;
    let mut session =
        session.into_stranger().connect_instead_of(old, &PreSharedKey::NONE).expect("a session");
    assert_ne!(session.info.epoch, epoch);
    assert_eq!(session.read(0, 512), [1; 512]);
}

#[test]
fn a_replaced_session_is_over() {
    let (_node, port) = served("sessions_replaced");
    let mut old = Session::open(port);
    old.write(0, &[1; 512]);
    let late = old.request(Op::Write, 0, 512);
    let mut new =
        Stranger::new(port).connect_instead_of(old.session, &PreSharedKey::NONE).expect("a session");
    new.write(0, &[2; 512]);
    old.send_request(&late, &[1; 512]);
    assert_eq!(old.reply_to(&late).status, Status::StaleSession);
    assert_eq!(new.read(0, 512), [2; 512]);
    // A new nonce from the same port does not, without the number, as long as the session is used.
    let refused = new.into_stranger().connect(&PreSharedKey::NONE).err();
    assert_eq!(refused, Some(Status::StaleSession));
}

#[test]
fn sessions_of_one_address_are_bounded_and_older_ones_live_on() {
    let (mut node, port) = served("sessions_flood");
    let mut first = Session::open(port);
    let mut others: Vec<Session> = (1..16).map(|_| Session::open(port)).collect();
    for _ in 0..50 {
        assert_eq!(Stranger::new(port).connect(&PreSharedKey::NONE).err(), Some(Status::Refused));
    }
    first.write(0, &[1; 512]);
    for other in &mut others {
        assert_eq!(other.read(0, 512), [1; 512]);
    }
    let listed = node.run("netblk list");
    assert_eq!(listed.matches("version 2").count(), 16, "{listed}");
    assert_eq!(others.remove(0).ask(Op::Close, 0, 0, &[]).status, Status::Ok);
    assert!(Stranger::new(port).connect(&PreSharedKey::NONE).is_ok());
}

#[test]
fn a_key_opens_and_its_absence_does_not() {
    let (mut node, port) = served_with("sessions_key", &format!("key = \"{KEY}\"\n"));
    let secret = PreSharedKey::from_hex(KEY).unwrap();
    let mut session = Stranger::new(port).connect(&secret).expect("a session");
    assert!(session.info.capabilities.key_in_use);
    session.write(0, &[1; 512]);
    for wrong in [PreSharedKey::NONE, PreSharedKey::new([1; 32])] {
        assert_eq!(Stranger::new(port).connect(&wrong).err(), Some(Status::Refused));
    }
    let (_, hello) = Stranger::new(port).hello().expect("a challenge");
    assert!(hello.key_needed);
    // Version 1 cannot know a key.
    let client = Client::new(port);
    client.send(&Request::new(INFO, 0, 0).bytes());
    assert_eq!(client.receive(SILENCE), None);
    let shown = format!("{}{}", node.run("netblk list"), node.transcript()).to_lowercase();
    assert!(shown.contains("with a key") && !shown.contains(&KEY[..8]), "{shown}");
}

#[test]
fn who_is_not_allowed_gets_nothing() {
    let (mut node, port) = served_with("sessions_allow", "allow = \"192.0.2.0/24\"\n");
    let client = Client::new(port);
    client.send(&Request::new(INFO, 0, 0).bytes());
    assert_eq!(client.receive(SILENCE), None);
    assert_eq!(Stranger::new(port).hello().err(), Some(Status::Refused));
    let listed = node.run("netblk list");
    assert!(listed.contains("not allowed") && listed.contains("192.0.2.0/24"), "{listed}");
}

#[test]
fn with_a_key_version_1_is_for_those_that_are_named() {
    // QEMU's user network.
    let (mut node, port) =
        served_with("sessions_both", &format!("allow = \"10.0.0.0/8\"\nkey = \"{KEY}\"\n"));
    assert_eq!(Client::new(port).info().sector_bytes, 512);
    assert!(Stranger::new(port).connect(&PreSharedKey::from_hex(KEY).unwrap()).is_ok());
    assert_eq!(Stranger::new(port).connect(&PreSharedKey::NONE).err(), Some(Status::Refused));
    assert!(!node.run("netblk list").contains(&KEY[..8]));
    node.run("netblk stop 10809");
    let wrong = node.run("netblk start nvme0n1 10809 key=c0ffee");
    assert!(wrong.contains("64 hexadecimal digits"), "{wrong}");
    node.run("netblk start nvme0n1 10809 allow=192.0.2.1");
    assert_eq!(Stranger::new(port).hello().err(), Some(Status::Refused));
}

#[test]
fn discard_and_write_zeroes_where_the_disk_has_them() {
    let (_node, port) = served("sessions_trim");
    let mut session = Session::open(port);
    let info = session.info;
    assert!(info.capabilities.write_zeroes && info.capabilities.discard, "{info:?}");
    session.write(4096, &[1; 4096]);
    session.write(8192, &[2; 4096]);
    let zeroes = session.request(Op::WriteZeroes, 4096, 4096);
    session.send_request(&RequestHeader { flags: Flags::FUA, ..zeroes }, &[]);
    assert_eq!(session.reply_to(&zeroes).status, Status::Ok);
    assert_eq!(session.read(4096, 8192), [[0; 4096], [2; 4096]].concat());
    session.write(4096, &[3; 4096]);
    // Late, and once only.
    session.send_request(&RequestHeader { flags: Flags::FUA, ..zeroes }, &[]);
    assert_eq!(session.reply_to(&zeroes).status, Status::Ok);
    assert_eq!(session.read(4096, 4096), [3; 4096]);
    let discard = session.ask(Op::Discard, 4096, 4096, &[]);
    assert_eq!(discard.status, Status::Ok);
    let long = session.ask(Op::Discard, 0, info.max_discard_bytes, &[]);
    assert_eq!(long.status, Status::Ok);
    let behind = session.ask(Op::WriteZeroes, 64 << 20, 512, &[]);
    assert_eq!(behind.status, Status::OutOfRange);
}

#[test]
fn a_read_only_service_refuses_every_change() {
    let (_node, port) = served_with("sessions_ro", "read_only = true\n");
    let mut session = Session::open(port);
    assert!(session.info.device.read_only);
    for (op, data) in [(Op::Write, &[1; 512][..]), (Op::Discard, &[]), (Op::WriteZeroes, &[])] {
        assert_eq!(session.ask(op, 0, 512, data).status, Status::ReadOnly, "{op}");
    }
    assert_eq!(session.read(0, 512), [0; 512]);
}
