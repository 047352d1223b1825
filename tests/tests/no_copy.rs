//! No instruction of the CPU touches a byte of data, shown by counting instructions.
//!
//! The machine runs on a clock that counts (`-icount`): an instruction takes a fixed time, and a CPU that halts takes none, so
//! the time that a CPU was awake is the number of instructions that it executed, interrupt handlers and idle loop included. If
//! any of them ran over the data, a request of twice the length would take more of them.
//!
//! Each instruction takes so long here that what the node does by time alone (a worker polls for 50 us before it sleeps) is a
//! few dozen instructions and does not depend on how fast the host's disk is.

#![forbid(unsafe_code)]

use stories::counting::{INSTRUCTION_NS_LOG2, compare};
use stories::netblk::{Client, INFO, READ, Request};
use stories::{Node, Setup};
use xtask::qemu::Protocol;

/// The lengths that are compared, in bytes.
const SHORT: u32 = 512;
const LONG: u32 = 1024;

/// Eight bytes an instruction is the least that a CPU without vector registers, as the kernel uses it, can look at them with.
const LEAST_FOR_A_LOOK: f64 = (LONG - SHORT) as f64 / 8.0;

/// Twice, so that one port can be given up while the other answers.
const SERVED: &str = "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\npoll_us = 0\n[[netblk]]\ndisk = \"nvme0n1\"\nport = 10810\npoll_us = 0\n";

fn counting(name: &str) -> (Node, Client) {
    let setup = Setup::of(name).configured(SERVED).cpus(1).counting_instructions(INSTRUCTION_NS_LOG2);
    let node = setup.boot().ready().with_address();
    let client = Client::new(node.host_port(Protocol::Udp, 10810));
    (node, client)
}

#[test]
fn a_request_takes_the_same_instructions_whatever_its_length() {
    let (mut node, mut client) = counting("no_copy");
    let mut judge = |what: &str, request: &mut dyn FnMut(u32, u32)| {
        let (short, more) = compare(&mut node, [SHORT, LONG], |_, number, length| request(number, length));
        println!("{what}: {short:.0} instructions for {SHORT} bytes, {more:+.1} for {LONG}");
        assert!(
            more.abs() < 0.75 * LEAST_FOR_A_LOOK,
            "{what}: {SHORT} bytes more are {more:+.1} instructions more, of {short:.0}"
        );
    };
    // Separate places for the lengths would be separate places of the disk's image: the same for both.
    let place = |number: u32| u64::from(number) * u64::from(LONG);
    judge("READ", &mut |number, length| {
        let reply = client.ask(Request::new(READ, place(number), length));
        assert_eq!((reply.status, reply.data.len()), (0, length as usize));
    });
    let data = vec![0x5a; LONG as usize];
    judge("WRITE", &mut |number, length| client.write(place(number), &data[..length as usize]));
}

/// The test above can fail: datagrams to a port that nobody has are read by the CPU, for their checksum, and that is seen.
#[test]
fn what_the_cpu_reads_is_seen() {
    let (mut node, mut client) = counting("no_copy_control");
    node.run("netblk stop 10809");
    let nobody = Client::new(node.host_port(Protocol::Udp, 10809));
    let data = vec![0x5a; LONG as usize];
    let (short, more) = compare(&mut node, [SHORT, LONG], |_, _, length| {
        nobody.send(&data[..length as usize]);
        // A round trip behind it, so that it is not lost in a flood.
        client.ask(Request::new(INFO, 0, 0));
    });
    println!("an unwanted datagram: {short:.0} instructions for {SHORT} bytes, {more:+.1} for {LONG}");
    assert!(more > LEAST_FOR_A_LOOK, "{SHORT} bytes more are {more:+.1} instructions more, of {short:.0}");
}
