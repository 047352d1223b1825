use super::*;

/// The time at which so many ticks have passed.
fn at(ticks: u64) -> u64 {
    scale_up(ticks, SECOND_NS, FREQUENCY_HZ)
}

fn program(pit: &mut Pit, channel: u16, control: u8, count: u16, now_ns: u64) {
    pit.write(0x43, control, now_ns);
    let [low, high] = count.to_le_bytes();
    pit.write(0x40 + channel, low, now_ns);
    pit.write(0x40 + channel, high, now_ns);
}

fn read_count(pit: &mut Pit, channel: u16, now_ns: u64) -> u16 {
    let low = pit.read(0x40 + channel, now_ns);
    u16::from_le_bytes([low, pit.read(0x40 + channel, now_ns)])
}

#[test]
fn a_fresh_timer_asks_for_nothing() {
    let mut pit = Pit::new();
    assert_eq!(pit.next_edge_ns(), None);
    assert_eq!(pit.take_line(SECOND_NS), Line::Unchanged);
}

#[test]
fn mode_2_makes_an_edge_each_period() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 0x34, 11_932, 0);
    assert_eq!(pit.next_edge_ns(), Some(at(11_932)));
    assert_eq!(pit.take_line(at(11_932) - 1000), Line::Unchanged);
    assert_eq!(pit.take_line(at(11_932)), Line::Pulse);
    assert_eq!(pit.take_line(at(11_932)), Line::Unchanged);
    assert_eq!(pit.next_edge_ns(), Some(at(2 * 11_932)));
    assert_eq!(pit.take_line(at(5 * 11_932)), Line::Pulse, "missed edges merge");
    assert_eq!(pit.next_edge_ns(), Some(at(6 * 11_932)));
}

#[test]
fn an_edge_is_due_exactly_when_promised() {
    for count in [2, 3, 1000, 65_535, 0] {
        for control in [0x30, 0x34, 0x36, 0x38] {
            let mut pit = Pit::new();
            program(&mut pit, 0, control, count, 12_345);
            let edge = pit.next_edge_ns().unwrap();
            assert_ne!(pit.take_line(edge - 1), Line::Pulse, "{control:#x} {count}");
            assert_eq!(pit.take_line(edge), Line::Pulse, "{control:#x} {count}");
        }
    }
}

#[test]
fn mode_0_is_one_shot_and_lowers_the_line_when_set_again() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 0x30, 1000, 0);
    assert_eq!(pit.take_line(at(1000)), Line::Pulse);
    assert_eq!(pit.next_edge_ns(), None);
    program(&mut pit, 0, 0x30, 1000, at(2000));
    assert_eq!(pit.take_line(at(2001)), Line::Low);
    assert_eq!(pit.take_line(at(3001)), Line::Pulse);
}

#[test]
fn mode_4_strobes_one_clock_after_the_terminal_count() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 0x38, 100, 0);
    assert_eq!(pit.next_edge_ns(), Some(at(101)));
    assert_eq!(pit.take_line(at(101)), Line::Pulse);
    assert_eq!(pit.next_edge_ns(), None);
}

#[test]
fn linux_stops_the_timer_by_mode_0_with_the_longest_count() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 0x34, 4773, 0);
    program(&mut pit, 0, 0x30, 0, at(10_000));
    assert_eq!(pit.take_line(at(10_001)), Line::Unchanged);
    assert_eq!(pit.next_edge_ns(), Some(at(10_000) + at(65_536)));
}

#[test]
fn channel_2_counts_down_with_its_gate_in_guest_time() {
    // Linux's quick_pit_calibrate: mode 0, count 0xffff, gate on, speaker off.
    let mut pit = Pit::new();
    pit.write_speaker(0x01, 0);
    program(&mut pit, 2, 0xb0, 0xffff, 0);
    let count = read_count(&mut pit, 2, at(256));
    assert_eq!(count, 0xffff - 256);
    assert_eq!(pit.read_speaker(at(65_534)) & 0x20, 0);
    assert_eq!(pit.read_speaker(at(65_535)) & 0x20, 0x20);
}

#[test]
fn a_closed_gate_suspends_mode_0() {
    let mut pit = Pit::new();
    program(&mut pit, 2, 0xb0, 1000, 0);
    assert_eq!(read_count(&mut pit, 2, at(500)), 1000);
    pit.write_speaker(0x01, at(500));
    assert_eq!(read_count(&mut pit, 2, at(600)), 900);
    pit.write_speaker(0x00, at(600));
    assert_eq!(read_count(&mut pit, 2, at(5000)), 900);
    pit.write_speaker(0x01, at(5000));
    assert_eq!(read_count(&mut pit, 2, at(5100) + 1), 800);
}

#[test]
fn the_gate_triggers_mode_1() {
    let mut pit = Pit::new();
    program(&mut pit, 2, 0xb2, 100, 0);
    assert_eq!(pit.read_speaker(at(500)) & 0x20, 0x20, "OUT is high until triggered");
    pit.write_speaker(0x01, at(500));
    assert_eq!(pit.read_speaker(at(500) + 10) & 0x20, 0);
    assert_eq!(pit.read_speaker(at(601)) & 0x20, 0x20);
}

#[test]
fn a_new_count_in_mode_2_waits_for_the_period_to_end() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 0x34, 1000, 0);
    pit.write(0x40, 0x64, at(500));
    pit.write(0x40, 0x00, at(500));
    assert_eq!(pit.next_edge_ns(), Some(at(1000)));
    assert_eq!(pit.take_line(at(1000)), Line::Pulse);
    assert_eq!(pit.take_line(at(1099)), Line::Unchanged);
    assert_eq!(pit.take_line(at(1101)), Line::Pulse);
}

#[test]
fn mode_3_spends_half_of_each_period_high_and_counts_by_two() {
    let mut pit = Pit::new();
    program(&mut pit, 2, 0xb6, 1000, 0);
    pit.write_speaker(0x01, 0);
    assert_eq!(pit.read_speaker(at(499)) & 0x20, 0x20);
    assert_eq!(pit.read_speaker(at(501)) & 0x20, 0);
    assert_eq!(read_count(&mut pit, 2, at(100)), 800);
    assert_eq!(read_count(&mut pit, 2, at(600)), 800);
}

#[test]
fn a_latched_count_stands_still_until_it_is_read() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 0x34, 10_000, 0);
    pit.write(0x43, 0x00, at(1000));
    pit.write(0x43, 0x00, at(2000));
    assert_eq!(read_count(&mut pit, 0, at(5000)), 9000);
    assert_eq!(read_count(&mut pit, 0, at(5000)), 5000);
}

#[test]
fn read_back_gives_status_then_count() {
    let mut pit = Pit::new();
    program(&mut pit, 0, 0x34, 10_000, 0);
    pit.write(0x43, 0xc2, at(1000));
    assert_eq!(pit.read(0x40, at(1000)), 0x80 | 0x34);
    assert_eq!(read_count(&mut pit, 0, at(3000)), 9000);
    pit.write(0x43, 0x30, at(3000));
    pit.write(0x43, 0xe2, at(3000));
    assert_eq!(pit.read(0x40, at(3000)), 0x40 | 0x30, "no count loaded, OUT low");
}

#[test]
fn decimal_counters_wrap_at_ten_thousand() {
    let mut pit = Pit::new();
    pit.write_speaker(0x01, 0);
    program(&mut pit, 2, 0xb1, 0x0100, 0);
    assert_eq!(read_count(&mut pit, 2, at(1)), 0x0099);
    assert_eq!(read_count(&mut pit, 2, at(101)), 0x9999);
}

#[test]
fn one_byte_access_sets_the_other_byte_to_zero() {
    let mut pit = Pit::new();
    pit.write(0x43, 0x24, 0);
    pit.write(0x40, 0x10, 0);
    assert_eq!(pit.next_edge_ns(), Some(at(0x1000)));
}

#[test]
fn the_refresh_bit_toggles() {
    let mut pit = Pit::new();
    assert_ne!(pit.read_speaker(1000) & 0x10, pit.read_speaker(17_000) & 0x10);
}
