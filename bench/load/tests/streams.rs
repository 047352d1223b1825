//! The initiators against servers that are a few lines long: what is on the wire is understood by both, whatever
//! pieces TCP makes of it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use load::nbd::Nbd;
use load::nvme_tcp::NvmeTcp;
use load::{Operation, Plan, Protocol, run};

const RANGE_BYTES: u64 = 1 << 20;

fn plan(operation: Operation) -> Plan {
    Plan {
        operation,
        bytes: 1024,
        window: 8,
        warm_up: Duration::from_millis(5),
        duration: Duration::from_millis(200),
        range_bytes: RANGE_BYTES,
        seed: 3,
    }
}

fn listen(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            std::thread::spawn(move || serve(connection.unwrap()));
        }
    });
    address
}

fn read<const N: usize>(stream: &mut TcpStream) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// In two pieces, so that headers arrive cut.
fn send(stream: &mut TcpStream, bytes: &[u8]) -> Option<()> {
    let (first, second) = bytes.split_at(bytes.len().min(5));
    stream.write_all(first).ok()?;
    stream.write_all(second).ok()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// An export "data" of [`RANGE_BYTES`]; any other name is refused.
fn nbd(mut stream: TcpStream) {
    let stream = &mut stream;
    stream.set_nodelay(true).unwrap();
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x01").unwrap();
    assert_eq!(read::<4>(stream), Some([0, 0, 0, 1]));
    let option: [u8; 20] = read(stream).unwrap();
    assert_eq!((&option[..8], u32_at(&option, 8)), (&b"IHAVEOPT"[..], 7));
    let mut name = vec![0; u32_at(&option, 16) as usize];
    stream.read_exact(&mut name).unwrap();
    assert_eq!(read::<2>(stream), Some([0, 0]));
    let answer = |kind: u32, body: &[u8]| {
        let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
        for field in [7, kind, body.len() as u32] {
            bytes.extend_from_slice(&field.to_be_bytes());
        }
        bytes.extend_from_slice(body);
        bytes
    };
    if name != b"data" {
        stream.write_all(&answer(0x8000_0006, b"no such export")).unwrap();
        return;
    }
    let mut export = vec![0, 0];
    export.extend_from_slice(&RANGE_BYTES.to_be_bytes());
    export.extend_from_slice(&[0, 1]);
    stream.write_all(&answer(3, &export)).unwrap();
    stream.write_all(&answer(1, &[])).unwrap();
    while let Some(request) = read::<28>(stream) {
        assert_eq!(u32_at(&request, 0), 0x2560_9513);
        let offset = u64::from_be_bytes(request[16..24].try_into().unwrap());
        assert!(offset + 1024 <= RANGE_BYTES && u32_at(&request, 24) == 1024);
        let mut reply = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
        reply.extend_from_slice(&request[8..16]);
        match request[7] {
            0 => reply.resize(16 + 1024, 0),
            1 => assert!(read::<1024>(stream).is_some()),
            other => panic!("command {other}"),
        }
        if send(stream, &reply).is_none() {
            return;
        }
    }
}

#[test]
fn nbd_reads_and_writes() {
    let address = listen(nbd);
    for operation in [Operation::Read, Operation::Write] {
        let plan = plan(operation);
        let mut client = Nbd::connect(address, "data", &plan).unwrap();
        let report = run(&mut client, &plan).unwrap();
        assert!(report.requests > 20, "{report:?}");
    }
}

#[test]
fn an_export_that_does_not_exist_is_said_to_be_refused() {
    let address = listen(nbd);
    let error = Nbd::connect(address, "other", &plan(Operation::Read)).err().unwrap();
    assert!(format!("{error:#}").contains("no such export"), "{error:#}");
}

#[test]
fn an_export_that_is_too_small_is_an_error() {
    let address = listen(nbd);
    let plan = Plan { range_bytes: RANGE_BYTES + 1, ..plan(Operation::Read) };
    assert!(Nbd::connect(address, "data", &plan).is_err());
}

/// A completion.
fn completion(identifier: [u8; 2], result: u8) -> Vec<u8> {
    let mut pdu = vec![5, 0, 24, 0, 24, 0, 0, 0, result];
    pdu.resize(20, 0);
    pdu.extend_from_slice(&identifier);
    pdu.extend_from_slice(&[0, 0]);
    pdu
}

fn data(identifier: [u8; 2], bytes: &[u8]) -> Vec<u8> {
    let mut pdu = vec![7, 4, 24, 24];
    pdu.extend_from_slice(&(24 + bytes.len() as u32).to_le_bytes());
    pdu.extend_from_slice(&identifier);
    pdu.resize(24, 0);
    pdu.extend_from_slice(bytes);
    pdu
}

/// One namespace of [`RANGE_BYTES`] in blocks of 512 bytes, on a controller that the host has to enable.
fn nvme(mut stream: TcpStream) {
    let stream = &mut stream;
    stream.set_nodelay(true).unwrap();
    let request: [u8; 128] = read(stream).unwrap();
    assert_eq!(request[..8], [0, 0, 128, 0, 128, 0, 0, 0]);
    let mut response = [0; 128];
    response[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
    stream.write_all(&response).unwrap();
    let mut enabled = false;
    while let Some(capsule) = read::<72>(stream) {
        assert_eq!(capsule[..3], [4, 0, 72]);
        let length = u32::from_le_bytes(capsule[4..8].try_into().unwrap()) as usize;
        let mut body = vec![0; length - 72];
        stream.read_exact(&mut body).unwrap();
        let command = &capsule[8..];
        let identifier = [command[2], command[3]];
        let answer = match (command[0], command[4]) {
            (0x7f, 1) => {
                assert!(body.len() == 1024 && body[256..].starts_with(b"nqn.test\0"));
                // The second queue's belongs to the first one's controller.
                let first_queue = command[42] == 0;
                assert_eq!(body[16..18], if first_queue { [0xff, 0xff] } else { [5, 0] });
                completion(identifier, 5)
            }
            (0x7f, 0) => {
                enabled = command[44] == 0x14 && command[48] & 1 == 1;
                completion(identifier, 0)
            }
            (0x7f, 4) => completion(identifier, u8::from(enabled)),
            (6, 1) => {
                let mut namespace = vec![0; 4096];
                namespace[..8].copy_from_slice(&(RANGE_BYTES / 512).to_le_bytes());
                namespace[130] = 9;
                [data(identifier, &namespace), completion(identifier, 0)].concat()
            }
            (2, 1) => [data(identifier, &[0; 1024]), completion(identifier, 0)].concat(),
            (1, 1) => {
                assert_eq!(body.len(), 1024);
                completion(identifier, 0)
            }
            other => panic!("command {other:?}"),
        };
        if send(stream, &answer).is_none() {
            return;
        }
    }
}

#[test]
fn nvme_over_tcp_reads_and_writes() {
    let address = listen(nvme);
    for operation in [Operation::Read, Operation::Write] {
        let plan = plan(operation);
        let mut client = NvmeTcp::connect(address, "nqn.test", &plan).unwrap();
        let report = run(&mut client, &plan).unwrap();
        assert!(report.requests > 20, "{report:?}");
    }
}

#[test]
fn a_server_that_closes_in_the_middle_is_an_error() {
    let address = listen(|mut stream| {
        let _ = read::<128>(&mut stream);
    });
    assert!(NvmeTcp::connect(address, "nqn.test", &plan(Operation::Read)).is_err());
    // And while requests are under way.
    struct Closed(Nbd);
    impl Protocol for Closed {
        fn request(&mut self, slot: usize, offset: u64) -> anyhow::Result<()> {
            self.0.request(slot, offset)
        }
        fn send(&mut self) -> anyhow::Result<bool> {
            self.0.send()
        }
        fn receive(&mut self, answered: &mut Vec<usize>) -> anyhow::Result<()> {
            rustix::net::shutdown(self.0.socket(), rustix::net::Shutdown::Both)?;
            self.0.receive(answered)
        }
        fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
            self.0.socket()
        }
        fn ask_again(&mut self, slot: usize) -> anyhow::Result<()> {
            self.0.ask_again(slot)
        }
    }
    let plan = plan(Operation::Read);
    let mut client = Closed(Nbd::connect(listen(nbd), "data", &plan).unwrap());
    assert!(run(&mut client, &plan).is_err());
}
