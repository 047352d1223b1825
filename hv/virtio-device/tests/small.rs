//! The console and the source of entropy.

use std::collections::VecDeque;

use proptest::prelude::*;
use virtio_device::console::{self, ConsoleFunction, Line};
use virtio_device::entropy::{BURST_BYTES, EntropyFunction, RATE_BYTES_A_SECOND, Source};
use virtio_device::fake::VecRam;
use virtio_device::fake::driver::{Buffer, DriverQueue, bring_up};
use virtio_device::{Features, GuestRam, Region};

const SIZE: u16 = 8;
const RAM_BYTES: usize = 0x4_0000;
const DATA: u64 = 0x1_0000;
const ALL: Features = Features::from_bits(u64::MAX);

#[derive(Default)]
struct Terminal {
    typed: VecDeque<u8>,
    shown: Vec<u8>,
}

impl Line for Terminal {
    fn put(&mut self, bytes: &[u8]) {
        self.shown.extend_from_slice(bytes);
    }

    fn has_input(&self) -> bool {
        !self.typed.is_empty()
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(self.typed.len());
        for (place, byte) in into.iter_mut().zip(self.typed.drain(..count)) {
            *place = byte;
        }
        count
    }
}

struct Port {
    ram: VecRam,
    receive: DriverQueue,
    transmit: DriverQueue,
    function: ConsoleFunction,
    terminal: Terminal,
}

fn port() -> Port {
    let ram = VecRam::new(RAM_BYTES);
    let receive = DriverQueue::at(0.into(), SIZE, true);
    let transmit = DriverQueue::at(0x1000.into(), SIZE, true);
    let mut function = ConsoleFunction::console(0);
    bring_up(&mut function, &ram, ALL, &[&receive, &transmit]);
    assert!(function.is_live());
    Port { ram, receive, transmit, function, terminal: Terminal::default() }
}

fn buffer(address: u64, bytes: u32, writable: bool) -> Buffer {
    Buffer { address: address.into(), bytes, writable }
}

#[test]
fn what_the_guest_sends_is_shown_and_what_is_typed_waits_for_a_buffer() {
    let mut port = port();
    port.ram.write(DATA.into(), b"hello, world").unwrap();
    port.transmit.offer(&port.ram, &[buffer(DATA, 7, false), buffer(DATA + 7, 5, false)]).unwrap();
    assert!(!port.function.transmit(&port.ram, &mut port.terminal).more);
    assert_eq!(port.terminal.shown, b"hello, world");
    assert_eq!(port.transmit.take_used(&port.ram).map(|(_, bytes)| bytes), Some(0));

    port.terminal.typed.extend(b"typed ahead");
    assert!(!port.function.receive(&port.ram, &mut port.terminal).more);
    assert_eq!(port.terminal.typed.len(), 11, "nothing is taken that nobody has room for");
    port.receive.offer(&port.ram, &[buffer(DATA, 4, true)]).unwrap();
    assert!(port.receive.must_notify(&port.ram, 1), "the device has asked for it");
    assert!(!port.function.receive(&port.ram, &mut port.terminal).more);
    assert_eq!(port.receive.take_used(&port.ram).map(|(_, bytes)| bytes), Some(4));
    assert_eq!(port.terminal.typed, b"d ahead");
    assert_ne!(port.function.read(Region::Isr, 0, 1) & 1, 0);
    port.receive.offer(&port.ram, &[buffer(DATA, 100, true)]).unwrap();
    let _ = port.function.receive(&port.ram, &mut port.terminal);
    assert_eq!(port.receive.take_used(&port.ram).map(|(_, bytes)| bytes), Some(7));
    assert_eq!(port.function.counters().received_bytes, 11);
}

#[test]
fn a_chain_that_names_much_memory_costs_little() {
    let mut port = port();
    // Eight times the same 256 KiB, and eight chains of it: 16 MiB are sent, 64 KiB a call taken.
    let large = [buffer(0, RAM_BYTES as u32, false)];
    for _ in 0..SIZE {
        port.transmit.offer(&port.ram, &large).unwrap();
    }
    let mut calls = 0;
    loop {
        calls += 1;
        let moved = port.function.transmit(&port.ram, &mut port.terminal);
        assert!(port.terminal.shown.len() <= 64 << 10);
        port.terminal.shown.clear();
        if !moved.more {
            break;
        }
    }
    assert!(calls >= SIZE, "{calls}");
    let counters = port.function.counters();
    assert_eq!(counters.sent_bytes, u64::from(SIZE) * (64 << 10));
    assert_eq!(counters.dropped_bytes, u64::from(SIZE) * (RAM_BYTES as u64 - (64 << 10)));
}

#[test]
fn a_port_that_nobody_drives_takes_nothing() {
    let mut function = ConsoleFunction::console(0);
    let mut terminal = Terminal::default();
    terminal.typed.extend(b"early");
    let ram = VecRam::new(64);
    assert!(!function.receive(&ram, &mut terminal).more && !function.transmit(&ram, &mut terminal).more);
    assert_eq!(terminal.typed.len(), 5);
    assert_eq!((0..12).map(|at| function.read(Region::Device, at, 1)).max(), Some(0));
    assert_eq!((console::RECEIVE_QUEUE, console::TRANSMIT_QUEUE), (0, 1));
}

/// Numbers that are told apart, until there are no more.
struct Counting(u64);

impl Source for Counting {
    fn next(&mut self) -> Option<[u8; 8]> {
        self.0 = self.0.checked_sub(1)?;
        Some([1; 8])
    }
}

struct Drinker {
    ram: VecRam,
    queue: DriverQueue,
    function: EntropyFunction,
    source: Counting,
}

fn drinker() -> Drinker {
    let ram = VecRam::new(RAM_BYTES);
    let queue = DriverQueue::at(0.into(), SIZE, true);
    let mut function = EntropyFunction::entropy(0);
    bring_up(&mut function, &ram, ALL, &[&queue]);
    Drinker { ram, queue, function, source: Counting(u64::MAX) }
}

#[test]
fn buffers_are_filled_to_the_byte() {
    let mut drinker = drinker();
    drinker.queue.offer(&drinker.ram, &[buffer(DATA, 3, true), buffer(DATA + 16, 10, true)]).unwrap();
    assert_eq!(drinker.function.fill(&drinker.ram, &mut drinker.source, 1).due_ns, None);
    assert_eq!(drinker.queue.take_used(&drinker.ram).map(|(_, bytes)| bytes), Some(13));
    let mut bytes = [0; 27];
    drinker.ram.read(DATA.into(), &mut bytes).unwrap();
    assert_eq!(bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 13);
    assert_eq!((bytes[2], bytes[3], bytes[25], bytes[26]), (1, 0, 1, 0));
}

#[test]
fn a_source_that_runs_dry_gives_back_what_there_was() {
    let mut drinker = drinker();
    drinker.source = Counting(2);
    drinker.queue.offer(&drinker.ram, &[buffer(DATA, 64, true)]).unwrap();
    let _ = drinker.function.fill(&drinker.ram, &mut drinker.source, 1);
    assert_eq!(drinker.queue.take_used(&drinker.ram).map(|(_, bytes)| bytes), Some(16));
}

proptest! {
    /// A guest that always asks for more, at any times: it gets what the rate and the burst allow,
    /// nearly, and its requests are never forgotten.
    #[test]
    fn a_guest_gets_random_bytes_at_its_rate(
        length in 1u32..10_000,
        gaps in proptest::collection::vec(0u64..400_000_000, 1..100),
    ) {
        let mut drinker = drinker();
        let begin_ns = 5_000_000_000;
        let (mut now_ns, mut got) = (begin_ns, 0);
        for gap_ns in gaps {
            while drinker.queue.offer(&drinker.ram, &[buffer(DATA, length, true)]).is_some() {}
            let filled = drinker.function.fill(&drinker.ram, &mut drinker.source, now_ns);
            while let Some((_, bytes)) = drinker.queue.take_used(&drinker.ram) {
                got += u64::from(bytes);
            }
            prop_assert!(drinker.function.is_live());
            let allowed = BURST_BYTES + (now_ns - begin_ns) * RATE_BYTES_A_SECOND / 1_000_000_000;
            prop_assert!(got <= allowed + 1, "{} of {}", got, allowed);
            now_ns = match filled.due_ns {
                // It comes back when it said.
                Some(due_ns) => {
                    prop_assert!(due_ns <= now_ns + 10_000_000, "it sleeps for long");
                    due_ns.max(now_ns) + gap_ns % 1_000_000
                }
                None => now_ns + gap_ns,
            };
        }
    }
}
