//! No instruction of the CPU touches a byte of data, shown by counting instructions.
//!
//! The machine runs on a clock that counts (`-icount`): an instruction takes a fixed time, and a CPU that halts takes none, so
//! the time that a CPU was awake is the number of instructions that it executed, interrupt handlers and idle loop included. If
//! any of them ran over the data, a request of twice the length would take more of them.
//!
//! Each instruction takes so long here that what the node does by time alone (a worker polls for 50 us before it sleeps) is a
//! few dozen instructions and does not depend on how fast the host's disk is.

#![forbid(unsafe_code)]

use stories::netblk::{Client, INFO, READ, Request};
use stories::{Node, Setup};
use xtask::qemu::Protocol;

/// 64 ns an instruction: the 50 us are 800 instructions, and the emulator executes no more than 16 million a second.
const INSTRUCTION_NS_LOG2: u32 = 6;

/// Requests of one length in a row; before and behind a row the figures are read from the shell.
const ROW: u32 = 200;
/// Rows of each length, in turns, so that whatever drifts meets all of them.
const ROUNDS: usize = 24;

/// The lengths that are compared, in bytes.
const SHORT: u32 = 512;
const LONG: u32 = 1024;

/// Eight bytes an instruction is the least that a CPU without vector registers, as the kernel uses it, can look at them with.
const LEAST_FOR_A_LOOK: f64 = (LONG - SHORT) as f64 / 8.0;

/// Twice, so that one port can be given up while the other answers.
const SERVED: &str =
    "[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n[[netblk]]\ndisk = \"nvme0n1\"\nport = 10810\n";

fn counting(name: &str) -> (Node, Client) {
    let setup = Setup::of(name).configured(SERVED).cpus(1).counting_instructions(INSTRUCTION_NS_LOG2);
    let node = setup.boot().ready().with_address();
    let client = Client::new(node.host_port(Protocol::Udp, 10810));
    (node, client)
}

/// Instructions executed since the boot.
fn instructions(node: &mut Node) -> f64 {
    let text = node.run("cpu");
    let line = text.lines().last().expect("a line for the only CPU");
    let awake_us: f64 = line.split_whitespace().nth(2).and_then(|word| word.parse().ok()).expect("AWAKE");
    awake_us * 1000.0 / f64::from(1_u32 << INSTRUCTION_NS_LOG2)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Instructions for a request of the short length, and how many more the long one takes. `request` carries out one, by its
/// number in the row and its length.
fn compare(node: &mut Node, mut request: impl FnMut(u32, u32)) -> (f64, f64) {
    let mut cost = |length: u32| {
        let start = instructions(node);
        let before = instructions(node);
        (0..ROW).for_each(|number| request(number, length));
        // What it takes to read the figures is in the first difference, and in the second.
        (instructions(node) - before - (before - start)) / f64::from(ROW)
    };
    let pairs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (cost(SHORT), cost(LONG))).collect();
    let short = median(pairs.iter().map(|(short, _)| *short).collect());
    (short, median(pairs.iter().map(|(_, long)| *long).collect()) - short)
}

#[test]
fn a_request_takes_the_same_instructions_whatever_its_length() {
    let (mut node, mut client) = counting("no_copy");
    let mut judge = |what: &str, request: &mut dyn FnMut(u32, u32)| {
        let (short, more) = compare(&mut node, request);
        println!("{what}: {short:.0} instructions for {SHORT} bytes, {more:+.1} for {LONG}");
        assert!(
            more.abs() < LEAST_FOR_A_LOOK / 2.0,
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
    let (short, more) = compare(&mut node, |_, length| {
        nobody.send(&data[..length as usize]);
        // A round trip behind it, so that it is not lost in a flood.
        client.ask(Request::new(INFO, 0, 0));
    });
    println!("an unwanted datagram: {short:.0} instructions for {SHORT} bytes, {more:+.1} for {LONG}");
    assert!(more > LEAST_FOR_A_LOOK, "{SHORT} bytes more are {more:+.1} instructions more, of {short:.0}");
}
