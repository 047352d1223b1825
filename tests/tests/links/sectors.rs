//! Sectors of 4 KiB in jumbo packets: a WRITE arrives in three frames, a READ leaves out of a page.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use stories::counting::{INSTRUCTION_NS_LOG2, compare};
use stories::frames::NODE_CONFIGURATION;
use stories::netblk::{FLUSH, INFO, READ, Reply, Request};
use stories::{Node, Setup};

use crate::jumbo::{MTU, PATIENCE, datagram_to, payload, payload_from};

const PORT: u16 = 10809;
const SECTOR: usize = 4096;
const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\nmtu = 9000\npoll_us = 0\n";

fn boot(name: &str) -> Node {
    let configuration = format!("{NODE_CONFIGURATION}{SERVED}");
    let setup = Setup::of(name).configured(configuration).sector_bytes(SECTOR as u32);
    let mut node = setup.wired_to_the_story().mtu(MTU).boot().ready();
    assert!(node.wire().resolve(), "the node answers ARP");
    node
}

/// Sends a request and waits for `count` replies.
fn ask(node: &mut Node, request: &Request, count: usize) -> Vec<Reply> {
    node.wire().send(&datagram_to(PORT, &request.bytes()));
    let receive = |node: &mut Node| {
        let datagram = node.wire().receive(PATIENCE, |frame| payload_from(PORT, frame));
        Reply::read(&datagram.unwrap_or_else(|| panic!("no reply to {:?}", (request.op, request.offset))))
    };
    (0..count).map(|_| receive(node)).collect()
}

fn write(node: &mut Node, offset: usize, data: &[u8]) {
    let replies = ask(node, &Request::write(offset as u64, data), 1);
    assert_eq!((replies[0].status, replies[0].data.len()), (0, 0), "WRITE at {offset}");
}

#[test]
fn sectors_of_4_kib_are_written_and_read_in_one_datagram_each() {
    const SECTORS: usize = 40;
    /// The most that a READ may ask: 16 datagrams.
    const AT_ONCE: usize = 16;
    let mut node = boot("sectors");
    let info = ask(&mut node, &Request::new(INFO, 0, 0), 1).remove(0);
    assert_eq!(info.status, 0);
    // The body's fields sector_bytes and datagram_bytes.
    assert_eq!(info.data[8..12], 4096_u32.to_be_bytes());
    assert_eq!(info.data[20..24], 4096_u32.to_be_bytes());

    let content = payload(3, SECTORS * SECTOR);
    for (number, sector) in content.chunks(SECTOR).enumerate() {
        write(&mut node, number * SECTOR, sector);
    }
    assert_eq!(ask(&mut node, &Request::new(FLUSH, 0, 0), 1)[0].status, 0);
    let mut on_disk = vec![0; content.len()];
    File::open(node.disk()).and_then(|disk| disk.read_exact_at(&mut on_disk, 0)).expect("the disk's image");
    assert!(on_disk == content, "what was acknowledged is on the disk");

    let mut read = vec![0; content.len()];
    for first in (0..SECTORS).step_by(AT_ONCE) {
        let count = AT_ONCE.min(SECTORS - first);
        let request = Request::new(READ, (first * SECTOR) as u64, (count * SECTOR) as u32);
        for reply in ask(&mut node, &request, count) {
            assert_eq!((reply.status, reply.data.len()), (0, SECTOR));
            let offset = usize::try_from(reply.offset).expect("an offset");
            read[offset..offset + SECTOR].copy_from_slice(&reply.data);
        }
    }
    assert!(read == content, "what was written is read");

    // A jumbo WRITE that does not bring what it announces is refused, and leaves its sector alone.
    let mut lying = Request::write(0, &[0xee; SECTOR - 512]);
    lying.length = SECTOR as u32;
    assert_eq!(ask(&mut node, &lying, 1)[0].status, 1);
    let again = ask(&mut node, &Request::new(READ, 0, SECTOR as u32), 1).remove(0);
    assert!(again.data == content[..SECTOR]);

    let listed = node.run("netblk list");
    assert!(listed.contains("copies     0 of 0 bytes"), "nothing was copied: {listed}");
    node.run(&format!("netblk stop {PORT}"));
    let packets = node.run("selftest packets");
    assert!(packets.contains("the pools have everything again"), "{packets}");
    let memory = node.run("mem");
    let pages = memory.lines().find(|line| line.starts_with("pages")).unwrap_or_else(|| panic!("{memory}"));
    assert!(pages.contains("512 of 512 free") && pages.contains("0 wanted in vain"), "{pages}");
}

/// As `no_copy` shows of datagrams that fit a frame: no instruction touches the data of those that do not. A READ leaves out of
/// a page; a WRITE arrives in two frames, whatever its length is here, since each frame has its price.
#[test]
fn no_instruction_touches_the_data_of_a_page() {
    let configuration = format!("{NODE_CONFIGURATION}{SERVED}");
    let setup = Setup::of("sectors_counted").configured(configuration).wired_to_the_story().mtu(MTU);
    let mut node = setup.cpus(1).counting_instructions(INSTRUCTION_NS_LOG2).boot().ready();
    assert!(node.wire().resolve(), "the node answers ARP");
    let mut judge = |what: &str, lengths: [u32; 2], request: &dyn Fn(&mut Node, usize, usize)| {
        let (short, more) = compare(&mut node, lengths, |node, number, length| {
            request(node, number as usize * SECTOR, length as usize);
        });
        let [least, most] = lengths;
        println!("{what}: {short:.0} instructions for {least} bytes, {more:+.1} for {most}");
        let for_a_look = f64::from(most - least) / 8.0;
        assert!(more.abs() < for_a_look / 2.0, "{what}: {more:+.1} instructions more, of {short:.0}");
    };
    judge("READ", [2048, 4096], &|node, offset, length| {
        let reply = ask(node, &Request::new(READ, offset as u64, length as u32), 1).remove(0);
        assert_eq!((reply.status, reply.data.len()), (0, length));
    });
    judge("WRITE", [2048, 3584], &|node, offset, length| write(node, offset, &vec![0x5a; length]));
    assert!(node.run("netblk list").contains("copies     0 of 0 bytes"));
}
