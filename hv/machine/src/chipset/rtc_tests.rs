use super::*;

/// 2026-11-30 23:05:42 UTC, a Monday.
const NOW_S: u64 = 1_796_079_942;

fn clock() -> Rtc {
    Rtc::new(NOW_S * SECOND_NS, 0)
}

fn read(rtc: &mut Rtc, index: u8, now_ns: u64) -> u8 {
    rtc.select(index);
    rtc.read(now_ns)
}

fn write(rtc: &mut Rtc, index: u8, value: u8, now_ns: u64) {
    rtc.select(index);
    rtc.write(value, now_ns);
}

fn date(rtc: &mut Rtc, now_ns: u64) -> [u8; 8] {
    [CENTURY_INDEX, 9, 8, 7, 6, 4, 2, 0].map(|index| read(rtc, index, now_ns))
}

#[test]
fn the_date_is_shown_in_decimal() {
    let mut rtc = clock();
    assert_eq!(date(&mut rtc, 0), [0x20, 0x26, 0x11, 0x30, 0x02, 0x23, 0x05, 0x42]);
    assert_eq!(date(&mut rtc, 3600 * SECOND_NS), [0x20, 0x26, 0x12, 0x01, 0x03, 0x00, 0x05, 0x42]);
}

#[test]
fn binary_and_twelve_hour_forms() {
    let mut rtc = clock();
    write(&mut rtc, REG_B, B_BINARY, 0);
    assert_eq!(date(&mut rtc, 0), [20, 26, 11, 30, 2, 0x80 | 11, 5, 42]);
    assert_eq!(read(&mut rtc, 4, 3600 * SECOND_NS), 12, "midnight is 12 a.m.");
}

#[test]
fn calendar_and_seconds_agree_across_leap_years() {
    for seconds in [0, 951_782_399, 951_782_400, 951_868_800, 1_709_164_800, 4_107_542_399, NOW_S] {
        assert_eq!(Calendar::from_unix(seconds).to_unix(), seconds);
    }
    let leap = Calendar::from_unix(951_782_400);
    assert_eq!((leap.year, leap.month, leap.day, leap.weekday), (2000, 2, 29, 3));
}

#[test]
fn a_guest_sets_its_own_time() {
    let mut rtc = clock();
    write(&mut rtc, REG_B, B_SET | B_24_HOURS, 0);
    for (index, value) in [(9, 0x00), (8, 0x02), (7, 0x29), (4, 0x12), (2, 0x00), (0, 0x00)] {
        write(&mut rtc, index, value, 5 * SECOND_NS);
    }
    assert_eq!(read(&mut rtc, 0, 60 * SECOND_NS), 0x00, "held");
    write(&mut rtc, REG_B, B_24_HOURS, 60 * SECOND_NS);
    assert_eq!(date(&mut rtc, 61 * SECOND_NS), [0x20, 0x00, 0x02, 0x29, 0x03, 0x12, 0x00, 0x01]);
}

#[test]
fn the_update_bit_rises_before_the_second_changes() {
    let mut rtc = clock();
    assert_eq!(read(&mut rtc, REG_A, SECOND_NS / 2) & A_UPDATE_IN_PROGRESS, 0);
    assert_ne!(read(&mut rtc, REG_A, SECOND_NS - 100_000) & A_UPDATE_IN_PROGRESS, 0);
    assert_eq!(read(&mut rtc, REG_A, SECOND_NS) & A_UPDATE_IN_PROGRESS, 0);
}

#[test]
fn reading_register_c_ends_the_interrupt() {
    let mut rtc = clock();
    write(&mut rtc, REG_B, B_24_HOURS | B_UPDATE_ENDED, 0);
    assert_eq!(rtc.next_edge_ns(), Some(SECOND_NS));
    rtc.service(SECOND_NS - 1);
    assert!(!rtc.line());
    rtc.service(SECOND_NS);
    assert!(rtc.line());
    assert_eq!(rtc.next_edge_ns(), None, "asks already");
    // The periodic flag rises too, whether its interrupt is enabled or not.
    assert_eq!(read(&mut rtc, REG_C, SECOND_NS), C_INTERRUPT | B_UPDATE_ENDED | B_PERIODIC);
    assert!(!rtc.line());
    assert_eq!(rtc.next_edge_ns(), Some(2 * SECOND_NS));
}

#[test]
fn the_periodic_interrupt_has_the_rate_of_register_a() {
    let mut rtc = Rtc::new(0, 0);
    write(&mut rtc, REG_A, DIVIDER_RUNNING | 0x06, 0);
    write(&mut rtc, REG_B, B_24_HOURS | B_PERIODIC, 0);
    assert_eq!(rtc.next_edge_ns(), Some(SECOND_NS / 1024));
    rtc.service(SECOND_NS / 1024);
    assert!(rtc.line());
    write(&mut rtc, REG_A, 0, SECOND_NS / 1024);
    read(&mut rtc, REG_C, SECOND_NS / 1024);
    assert_eq!(rtc.next_edge_ns(), None, "rate 0 is off");
}

#[test]
fn an_alarm_rings_at_its_time_of_day() {
    let mut rtc = clock();
    for (index, value) in [(1, 0x41), (3, 0x05), (5, 0x23)] {
        write(&mut rtc, index, value, 0);
    }
    write(&mut rtc, REG_B, B_24_HOURS | B_ALARM, 0);
    // One second ago: tomorrow.
    assert_eq!(rtc.next_edge_ns(), Some((DAY_S - 1) * SECOND_NS));
    rtc.service((DAY_S - 2) * SECOND_NS);
    assert!(!rtc.line());
    rtc.service((DAY_S - 1) * SECOND_NS);
    assert!(rtc.line());
}

#[test]
fn wildcards_ring_each_time_they_match() {
    let mut rtc = clock();
    for (index, value) in [(1, 0x30), (3, 0xff), (5, 0xff)] {
        write(&mut rtc, index, value, 0);
    }
    write(&mut rtc, REG_B, B_24_HOURS | B_ALARM, 0);
    assert_eq!(rtc.next_edge_ns(), Some(48 * SECOND_NS));
    write(&mut rtc, 1, 0x7f, 0);
    assert_eq!(rtc.next_edge_ns(), None, "no second is called so");
}

#[test]
fn memory_keeps_what_is_written_and_register_d_says_the_battery_is_good() {
    let mut rtc = clock();
    write(&mut rtc, 0x40, 0xa5, 0);
    assert_eq!(read(&mut rtc, 0xc0, 0), 0xa5, "bit 7 of the index is the NMI mask");
    write(&mut rtc, REG_D, 0, 0);
    assert_eq!(read(&mut rtc, REG_D, 0), D_VALID);
}
