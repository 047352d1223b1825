use super::*;

/// As Linux programs the pair: vectors 0x30.., 8086 mode, all lines open.
fn initialized() -> PicPair {
    let mut pic = PicPair::new();
    for (port, value) in [(0x20, 0x11), (0x21, 0x30), (0x21, 0x04), (0x21, 0x01)] {
        pic.write(port, value);
    }
    for (port, value) in [(0xa0, 0x11), (0xa1, 0x38), (0xa1, 0x02), (0xa1, 0x01)] {
        pic.write(port, value);
    }
    pic
}

#[test]
fn an_edge_is_delivered_once() {
    let mut pic = initialized();
    pic.set_line(4, true);
    assert!(pic.asserted());
    assert_eq!(pic.acknowledge(), 0x34);
    pic.write(0x20, 0x20);
    assert!(!pic.asserted(), "the line is still high, but it made no new edge");
    pic.set_line(4, false);
    pic.set_line(4, true);
    assert_eq!(pic.acknowledge(), 0x34);
}

#[test]
fn a_request_waits_behind_its_mask() {
    let mut pic = initialized();
    pic.write(0x21, 0x10);
    pic.set_line(4, true);
    assert!(!pic.asserted());
    assert_eq!(pic.read(0x20), 0x10, "IRR shows it");
    pic.write(0x21, 0x00);
    assert!(pic.asserted());
    assert_eq!(pic.acknowledge(), 0x34);
}

#[test]
fn a_line_that_falls_takes_its_request_along() {
    let mut pic = initialized();
    pic.set_line(4, true);
    pic.set_line(4, false);
    assert!(!pic.asserted());
    // The CPU may have begun its acknowledge already: the answer is the spurious interrupt.
    assert_eq!(pic.acknowledge(), 0x37);
    pic.write(0x20, 0x0b);
    assert_eq!(pic.read(0x20), 0, "a spurious interrupt is not in service");
}

#[test]
fn a_spurious_slave_leaves_the_cascade_in_service() {
    let mut pic = initialized();
    pic.set_line(10, true);
    // The slave's request goes after the master latched it but before the slave answers. The
    // pair is wired without delay, so play the moment on the parts.
    pic.slave.set_line(2, false);
    assert_eq!(pic.acknowledge(), 0x3f);
    pic.write(0x20, 0x0b);
    pic.write(0xa0, 0x0b);
    assert_eq!((pic.read(0x20), pic.read(0xa0)), (0x04, 0x00));
}

#[test]
fn a_level_asks_until_it_is_served() {
    let mut pic = initialized();
    pic.write_trigger_modes(0x4d1, 0x04);
    pic.set_line(10, true);
    assert_eq!(pic.acknowledge(), 0x3a);
    assert!(!pic.asserted(), "in service");
    pic.write(0xa0, 0x62);
    pic.write(0x20, 0x62);
    assert!(pic.asserted(), "still high: asks again");
    assert_eq!(pic.acknowledge(), 0x3a);
    pic.set_line(10, false);
    pic.write(0xa0, 0x20);
    pic.write(0x20, 0x20);
    assert!(!pic.asserted());
}

#[test]
fn a_level_masked_and_dropped_leaves_nothing_behind() {
    let mut pic = initialized();
    pic.write_trigger_modes(0x4d1, 0x04);
    pic.write(0xa1, 0x04);
    pic.set_line(10, true);
    pic.set_line(10, false);
    pic.write(0xa1, 0x00);
    assert!(!pic.asserted());
}

#[test]
fn better_inputs_interrupt_worse_ones_only() {
    let mut pic = initialized();
    pic.set_line(4, true);
    assert_eq!(pic.acknowledge(), 0x34);
    pic.set_line(5, true);
    assert!(!pic.asserted());
    pic.set_line(1, true);
    assert_eq!(pic.acknowledge(), 0x31);
    pic.write(0x20, 0x20);
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x35);
}

#[test]
fn the_slave_ranks_with_the_cascade() {
    let mut pic = initialized();
    pic.set_line(3, true);
    pic.set_line(15, true);
    assert_eq!(pic.acknowledge(), 0x3f);
    assert!(!pic.asserted(), "line 3 ranks below the cascade");
    pic.write(0xa0, 0x20);
    pic.write(0x20, 0x20);
    assert_eq!(pic.acknowledge(), 0x33);
}

#[test]
fn rotation_moves_the_lowest_priority() {
    let mut pic = initialized();
    pic.set_line(0, true);
    pic.set_line(1, true);
    assert_eq!(pic.acknowledge(), 0x30);
    pic.write(0x20, 0xa0);
    pic.set_line(0, false);
    pic.set_line(0, true);
    assert_eq!(pic.acknowledge(), 0x31, "input 0 was rotated to the end");
    pic.write(0x20, 0x20);
    pic.write(0x20, 0xc7);
    assert_eq!(pic.acknowledge(), 0x30);
}

#[test]
fn automatic_end_of_interrupt_keeps_nothing_in_service() {
    let mut pic = initialized();
    for (port, value) in [(0x20, 0x11), (0x21, 0x30), (0x21, 0x04), (0x21, 0x03)] {
        pic.write(port, value);
    }
    pic.set_line(4, true);
    assert_eq!(pic.acknowledge(), 0x34);
    pic.set_line(5, true);
    assert_eq!(pic.acknowledge(), 0x35);
    pic.write(0x20, 0x0b);
    assert_eq!(pic.read(0x20), 0);
}

#[test]
fn special_mask_mode_lets_worse_inputs_in() {
    let mut pic = initialized();
    pic.set_line(3, true);
    assert_eq!(pic.acknowledge(), 0x33);
    pic.set_line(6, true);
    assert!(!pic.asserted());
    pic.write(0x20, 0x68);
    pic.write(0x21, 0x08);
    assert_eq!(pic.acknowledge(), 0x36);
}

#[test]
fn a_poll_acknowledges() {
    let mut pic = initialized();
    pic.write(0x20, 0x0c);
    assert_eq!(pic.read(0x20), 0x00);
    pic.set_line(6, true);
    pic.write(0x20, 0x0c);
    assert_eq!(pic.read(0x20), 0x86);
    assert!(!pic.asserted());
    assert_eq!(pic.read(0x20), 0, "back to IRR, whose edge was taken");
}

#[test]
fn initialization_forgets_edges_but_not_levels() {
    let mut pic = initialized();
    pic.write_trigger_modes(0x4d0, 0x20);
    pic.set_line(4, true);
    pic.set_line(5, true);
    for (port, value) in [(0x20, 0x11), (0x21, 0x40), (0x21, 0x04), (0x21, 0x01)] {
        pic.write(port, value);
    }
    assert_eq!(pic.acknowledge(), 0x45);
    pic.write(0x20, 0x20);
    pic.set_line(5, false);
    assert!(!pic.asserted(), "line 4 must make a new edge");
}

#[test]
fn trigger_modes_of_the_fixed_lines_stay_edge() {
    let mut pic = PicPair::new();
    pic.write_trigger_modes(0x4d0, 0xff);
    pic.write_trigger_modes(0x4d1, 0xff);
    assert_eq!((pic.read_trigger_modes(0x4d0), pic.read_trigger_modes(0x4d1)), (0xf8, 0xde));
}

#[test]
fn the_mask_register_reads_back() {
    let mut pic = initialized();
    pic.write(0x21, 0xfb);
    pic.write(0xa1, 0xff);
    assert_eq!((pic.read(0x21), pic.read(0xa1)), (0xfb, 0xff));
}
