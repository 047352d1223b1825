//! Answers that leave together, over a card that cuts up UDP: a tap, for QEMU's other networks do not.

use std::net::UdpSocket;
use std::time::Duration;

use stories::netblk::{INFO, READ, Reply, Request};
use stories::{Node, Setup};
use xtask::link::Link;
use xtask::qemu::Protocol;

const PORT: u16 = 10809;
const PATIENCE: Duration = Duration::from_secs(10);
/// A link of these tests' own.
const LINK: u8 = 8;

/// Bytes that say where they belong.
fn pattern(offset: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|place| ((offset + place) * 31 + (offset + place) / 509) as u8).collect()
}

fn ask(socket: &UdpSocket, request: &Request) -> Reply {
    socket.send(&request.bytes()).expect("a request");
    receive(socket)
}

fn receive(socket: &UdpSocket) -> Reply {
    let mut datagram = [0; 2048];
    let bytes = socket.recv(&mut datagram).expect("an answer");
    Reply::read(&datagram[..bytes])
}

/// Frames that the node has sent, as `net` shows them.
fn frames_sent(node: &mut Node) -> u64 {
    let text = node.run("net");
    let words = text.lines().find_map(|line| line.trim().strip_prefix("sent")).unwrap_or_default();
    words.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

/// Reads of 16 KiB leave in sixteen datagrams each, and several answers at once. They arrive whole, each with its own place,
/// whoever cuts them up: this host's socket takes them one by one.
#[test]
fn answers_in_trains_arrive_one_by_one() {
    const READS: u64 = 16;
    const BYTES: u32 = 16 << 10;
    const ROUNDS: u64 = 3;
    // Without root the link is QEMU's user-mode network, whose card cuts nothing up; the answers must come all the same.
    let link = Link::new(LINK, &[(Protocol::Udp, PORT)]).expect("a link");
    let address = link.machine_address().unwrap_or_else(|| "dhcp".to_owned());
    let configuration =
        format!("[node]\naddress = \"{address}\"\n[[netblk]]\ndisk = \"nvme0n1\"\nport = {PORT}\n");
    let mut node = Setup::of("trains").configured(configuration).linked(&link).boot().ready().with_address();
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    socket.connect(link.reach(Protocol::Udp, PORT)).expect("a peer");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket that does not wait for ever");
    assert_eq!(ask(&socket, &Request::new(INFO, 0, 0)).status, 0);
    let all = READS * u64::from(BYTES);
    for offset in (0..all).step_by(1024) {
        assert_eq!(ask(&socket, &Request::write(offset, &pattern(offset, 1024))).status, 0);
    }

    let (frames, packets) = (frames_sent(&mut node), link.packets_sent());
    let mut back = vec![0; all as usize];
    for round in 0..ROUNDS {
        // One by one, two, and four at once: no more than a socket holds.
        for group in (0..READS).collect::<Vec<_>>().chunks(1 << round) {
            for number in group {
                let mut request = Request::new(READ, number * u64::from(BYTES), BYTES);
                request.cookie = *number;
                socket.send(&request.bytes()).expect("a request");
            }
            for _ in 0..group.len() * BYTES as usize / 1024 {
                let reply = receive(&socket);
                assert_eq!((reply.status, reply.data.len()), (0, 1024));
                back[reply.offset as usize..][..1024].copy_from_slice(&reply.data);
            }
        }
        assert!(back == pattern(0, all as usize), "round {round}");
        back.fill(0);
    }
    let sent = frames_sent(&mut node) - frames;
    assert!(sent >= ROUNDS * all / 1024, "{sent} datagrams");
    if let Some(before) = packets {
        let packets = link.packets_sent().expect("a tap") - before;
        assert!(packets < sent / 4, "{sent} datagrams in {packets} packets");
    }
}
