//! The test vectors of docs/netblk-protocol.md: the document's own text is read, and must be what the
//! crate says. A second implementer can trust either.

use netblk_proto::Flags;
use netblk_proto::v2::{
    ConnectBody, HelloBody, HelloReply, Op, PreSharedKey, ReplyHeader, RequestHeader, SessionKeys, Status,
};

/// The bytes of the block that follows the line `name:` in the document.
fn vector(name: &str) -> Vec<u8> {
    let document = std::fs::read_to_string("../../docs/netblk-protocol.md").expect("the document");
    let start = format!("    {name}:\n");
    let (_, rest) = document.split_once(&start).unwrap_or_else(|| panic!("no vector {name}"));
    let digits: String = rest
        .lines()
        .take_while(|line| line.starts_with("      "))
        .flat_map(str::chars)
        .filter(|character| !character.is_whitespace())
        .collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
}

#[track_caller]
fn same(name: &str, bytes: &[u8]) {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(vector(name) == bytes, "{name} is {hex}");
}

const NONCE: [u8; 16] = *b"client's number!";
const CHALLENGE: [u8; 16] = *b"server's number!";
const EPOCH: u64 = 0x0102_0304_0506_0708;
const SESSION: u64 = 0x1112_1314_1516_1718;

fn keys() -> SessionKeys {
    let secret = PreSharedKey::new(core::array::from_fn(|index| index as u8));
    SessionKeys::derive(&secret, &NONCE, &CHALLENGE, EPOCH)
}

#[test]
fn hello_and_its_reply() {
    let body = HelloBody { client_nonce: NONCE }.to_bytes();
    let header = RequestHeader::new(Op::Hello, 0, 1, 0, 0).seal(None, &body);
    same("HELLO", &[&header[..], &body].concat());
    let body = HelloReply { challenge: CHALLENGE, epoch: EPOCH, key_needed: true }.to_bytes();
    let header = ReplyHeader::new(Op::Hello, 0, 1, 0, 32, Status::Ok).seal(None, 32, &body);
    same("reply to HELLO", &[&header[..], &body].concat());
}

#[test]
fn connect_covers_its_body() {
    let body =
        ConnectBody { client_nonce: NONCE, challenge: CHALLENGE, epoch: EPOCH, replaces: 0 }.to_bytes();
    let header = RequestHeader::new(Op::Connect, 0, 2, 0, 0).seal(Some(&keys().client_to_server), &body);
    same("CONNECT", &[&header[..], &body].concat());
}

#[test]
fn a_write_and_its_reply() {
    // The data is no part of the tag; only its length is.
    let header = RequestHeader {
        flags: Flags::FUA,
        sequence: 1,
        ..RequestHeader::new(Op::Write, SESSION, 3, 4096, 512)
    };
    same("WRITE, header", &header.seal(Some(&keys().client_to_server), &[0; 512]));
    let header = ReplyHeader::new(Op::Write, SESSION, 3, 4096, 512, Status::Ok).numbered(1);
    same("reply to WRITE", &header.seal(Some(&keys().server_to_client), 0, &[]));
}

#[test]
fn a_read_and_the_second_of_its_two_replies() {
    let header = RequestHeader::new(Op::Read, SESSION, 4, 8192, 2048);
    same("READ", &header.seal(Some(&keys().client_to_server), &[]));
    let header = ReplyHeader::new(Op::Read, SESSION, 4, 9216, 1024, Status::Ok).in_parts(1, 2);
    same("reply to READ, header", &header.seal(Some(&keys().server_to_client), 1024, &[]));
}

#[test]
fn an_unknown_session_is_told_so_without_a_tag() {
    let header = ReplyHeader::new(Op::Read, SESSION, 4, 8192, 2048, Status::StaleSession);
    same("reply to READ in an unknown session", &header.seal(None, 0, &[]));
}
