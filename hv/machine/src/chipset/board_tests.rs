use alloc::vec::Vec;
use std::sync::Mutex;

extern crate std;

use super::*;
use crate::apic::bus::{Address, Doorbell};
use crate::time::SECOND_NS;

struct Quiet;

impl Doorbell for Quiet {
    fn ring(&self, _cpu: usize) {}
}

#[derive(Clone, Default)]
struct Screen(Arc<Mutex<Vec<u8>>>);

impl ConsoleSink for Screen {
    fn put(&mut self, byte: u8) {
        self.0.lock().unwrap().push(byte);
    }
}

fn board() -> (Board, Arc<ApicBus>, Screen) {
    let bus = Arc::new(ApicBus::new(1, Box::new(Quiet)));
    let address = Address { id: 0, logical: 0, cluster_model: false, x2apic: false, enabled: true };
    bus.mailbox(0).unwrap().publish(address);
    let screen = Screen::default();
    (Board::new(bus.clone(), Box::new(screen.clone()), 0, 0), bus, screen)
}

/// Opens the 8259 pair as Linux does, all lines unmasked.
fn open_pic(board: &mut Board) {
    for (port, value) in
        [(0x20, 0x11), (0x21, 0x30), (0x21, 4), (0x21, 1), (0xa0, 0x11), (0xa1, 0x38), (0xa1, 2), (0xa1, 1)]
    {
        assert_eq!(board.write_port(port, 1, value, 0, 0), None);
    }
}

fn open_pin(board: &mut Board, pin: u8, low: u32) {
    board.write_ioapic(0, u32::from(0x10 + 2 * pin), Some(0));
    board.write_ioapic(0x10, low, Some(0));
}

#[test]
fn the_timer_reaches_both_controllers() {
    let (mut board, bus, _) = board();
    assert_eq!(board.next_edge_ns(0), None);
    for (port, value) in [(0x43, 0x34), (0x40, 0x9c), (0x40, 0x2e)] {
        board.write_port(port, 1, value, 0, 0);
    }
    assert_eq!(board.next_edge_ns(0), None, "nobody would hear it");
    open_pic(&mut board);
    open_pin(&mut board, TIMER_PIN, 0x31);
    let edge = board.next_edge_ns(0).unwrap();
    assert!((10_000_000..10_001_000).contains(&edge), "{edge}");
    board.service(edge, Some(0));
    assert!(bus.mailbox(0).unwrap().external_interrupt());
    assert_eq!(board.acknowledge_external_interrupt(Some(0)), Some(0x30));
    assert!(!bus.mailbox(0).unwrap().external_interrupt());
    assert_eq!(bus.mailbox(0).unwrap().collect().unwrap().requests[0], 1 << 0x31);
}

#[test]
fn a_timer_too_fast_leaves_the_guest_time_to_run() {
    let (mut board, ..) = board();
    open_pic(&mut board);
    for (port, value) in [(0x43, 0x34), (0x40, 2), (0x40, 0)] {
        board.write_port(port, 1, value, 0, 0);
    }
    assert_eq!(board.next_edge_ns(1000), Some(1000 + LEAST_RUN_NS));
}

#[test]
fn the_console_speaks_and_listens() {
    let (mut board, bus, screen) = board();
    open_pic(&mut board);
    for byte in b"ok" {
        board.write_port(COM1_PORT, 1, u32::from(*byte), 0, 0);
    }
    assert_eq!(*screen.0.lock().unwrap(), b"ok");
    board.write_port(COM1_PORT + 1, 1, 1, 0, 0);
    assert_eq!(board.push_console_input(b"x"), 1);
    assert!(bus.mailbox(0).unwrap().external_interrupt());
    assert_eq!(board.acknowledge_external_interrupt(Some(0)), Some(0x34));
    assert_eq!(board.read_port(COM1_PORT, 1, 0, 0), u32::from(b'x'));
}

#[test]
fn a_request_withdrawn_before_the_acknowledge_is_no_interrupt() {
    let (mut board, bus, _) = board();
    open_pic(&mut board);
    board.write_port(COM1_PORT + 1, 1, 1, 0, 0);
    board.push_console_input(b"x");
    board.read_port(COM1_PORT, 1, 0, 0);
    assert!(!bus.mailbox(0).unwrap().external_interrupt());
    assert_eq!(board.acknowledge_external_interrupt(Some(0)), None);
}

#[test]
fn ports_that_nobody_decodes_float() {
    let (mut board, ..) = board();
    assert_eq!(board.read_port(0x1f0, 4, 0, 0), u32::MAX);
    assert_eq!(board.read_port(0x2f8, 1, 0, 0), 0xff);
    assert_eq!(board.write_port(0x1f0, 2, 0, 0, 0), None);
    let counters = board.port_counters();
    assert_eq!((counters.floating_reads, counters.ignored_writes, counters.last_port), (5, 2, 0x1f1));
    board.write_port(0x80, 1, 0, 0, 0);
    assert_eq!(board.port_counters().ignored_writes, 2, "the delay port is not worth counting");
}

#[test]
fn wide_accesses_to_narrow_devices_are_split() {
    let (mut board, ..) = board();
    open_pic(&mut board);
    board.write_port(0x20, 2, 0xa50b, 0, 0);
    assert_eq!(board.read_port(0x21, 1, 0, 0), 0xa5);
    assert_eq!(board.read_port(power::TIMER_PORT, 4, SECOND_NS, 0), 3_579_545);
    // The last port wraps to the first.
    assert_eq!(board.read_port(0xffff, 4, 0, 0), u32::MAX);
}

#[test]
fn power_requests_come_out() {
    let (mut board, ..) = board();
    assert_eq!(board.write_port(0x64, 1, 0xfe, 0, 0), Some(PowerRequest::Reset));
    assert_eq!(board.write_port(0xcf9, 1, 0x06, 0, 0), Some(PowerRequest::Reset));
    assert_eq!(board.write_port(0xf4, 1, 0x21, 0, 0), Some(PowerRequest::Exit(0x21)));
    assert_eq!(
        board.write_port(0xf4, 4, 0x0102_0304, 0, 0),
        Some(PowerRequest::Exit(4)),
        "the port's own byte"
    );
    assert_eq!(board.write_port(0x604, 2, 0x3400, 0, 0), Some(PowerRequest::PowerOff));
    assert_eq!(board.read_port(0x64, 1, 0, 0) & 2, 0, "never busy, or a reboot waits a second");
}

#[test]
fn the_power_button_is_a_level_on_line_9() {
    let (mut board, bus, _) = board();
    open_pin(&mut board, 9, 0x39 | 1 << 15);
    board.write_port(0x602, 2, 1 << 8, 0, 0);
    board.press_power_button();
    assert_eq!(bus.mailbox(0).unwrap().collect().unwrap().levels[0], 1 << 0x39);
    board.end_of_interrupt(0x39, Some(0));
    assert!(bus.mailbox(0).unwrap().collect().is_some(), "still pressed");
    board.write_port(0x600, 2, 1 << 8, 0, 0);
    board.end_of_interrupt(0x39, Some(0));
    assert_eq!(bus.mailbox(0).unwrap().collect(), None);
}

#[test]
fn type_one_configuration_access_is_recognised_as_linux_tests_it() {
    let (mut board, ..) = board();
    board.write_port(0xcfb, 1, 1, 0, 0);
    board.write_port(0xcf8, 4, 0x8000_0000, 0, 0);
    assert_eq!(board.read_port(0xcf8, 4, 0, 0), 0x8000_0000);
    assert_eq!(board.read_port(0xcfc, 2, 0, 0), 0x8086);
    assert_eq!(board.read_port(0xcfe, 2, 0, 0), 0x0d57);
    assert_eq!(board.read_port(0xcff, 4, 0, 0) & 0xff, 0xff, "past the window: bytes, not configuration");
}
