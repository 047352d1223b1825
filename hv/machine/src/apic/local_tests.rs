use alloc::boxed::Box;

use super::*;
use crate::apic::bus::Doorbell;
use crate::apic::timer::LEAST_PERIOD_NS;
use crate::time::SECOND_NS;

struct Quiet;

impl Doorbell for Quiet {
    fn ring(&self, _cpu: usize) {}
}

const TSC_HZ: u64 = 2_500_000_000;

fn at(now_ns: u64) -> Clock {
    Clock { now_ns, tsc: crate::time::scale(now_ns, TSC_HZ, SECOND_NS), tsc_hz: TSC_HZ }
}

struct Rig {
    bus: ApicBus,
    apic: LocalApic,
}

impl Rig {
    /// CPU `index` of two, software-enabled.
    fn new(index: usize) -> Self {
        let bus = ApicBus::new(2, Box::new(Quiet));
        let mut apic = LocalApic::new(index);
        apic.publish(&bus);
        let _ = apic.write_page(register::SPURIOUS_VECTOR, 0x1ff, &bus, &at(0));
        Self { bus, apic }
    }

    fn x2apic(index: usize) -> Self {
        let mut rig = Self::new(index);
        rig.apic.set_base(rig.apic.base() | base::X2APIC, &rig.bus).unwrap();
        rig
    }

    fn write(&mut self, number: u8, value: u32, now_ns: u64) -> Effect {
        self.apic.write_page(number, value, &self.bus, &at(now_ns))
    }

    fn read(&mut self, number: u8, now_ns: u64) -> u32 {
        self.apic.read_page(number, &at(now_ns))
    }

    fn collect(&mut self) {
        if let Some(mail) = self.bus.mailbox(self.apic.index).unwrap().collect() {
            self.apic.accept(&mail);
        }
    }

    fn request(&mut self, vector: u8, level_triggered: bool) {
        let destination = Destination::Index(self.apic.index);
        let message = Message { destination, mode: DeliveryMode::Fixed, vector, level_triggered };
        self.bus.send(message, None);
        self.collect();
    }

    fn take(&mut self) -> Option<u8> {
        let vector = self.apic.deliverable()?;
        self.apic.acknowledge(vector);
        Some(vector)
    }
}

#[test]
fn classes_decide_what_interrupts_what() {
    let mut rig = Rig::new(0);
    rig.request(0x41, false);
    assert_eq!(rig.take(), Some(0x41));
    rig.request(0x4f, false);
    assert_eq!(rig.take(), None, "the same class waits");
    rig.request(0x50, false);
    assert_eq!(rig.take(), Some(0x50));
    assert_eq!(rig.read(register::PROCESSOR_PRIORITY, 0), 0x50);
    let _ = rig.write(register::END_OF_INTERRUPT, 0, 0);
    assert_eq!(rig.take(), None);
    let _ = rig.write(register::END_OF_INTERRUPT, 0, 0);
    assert_eq!(rig.take(), Some(0x4f));
}

#[test]
fn the_task_priority_holds_interrupts_back() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::TASK_PRIORITY, 0x40, 0);
    rig.request(0x4f, false);
    assert_eq!(rig.take(), None);
    rig.request(0x51, false);
    assert_eq!(rig.take(), Some(0x51));
    let _ = rig.write(register::END_OF_INTERRUPT, 0, 0);
    let _ = rig.write(register::TASK_PRIORITY, 0x3f, 0);
    assert_eq!(rig.take(), Some(0x4f));
}

#[test]
fn the_end_of_a_level_is_told() {
    let mut rig = Rig::new(0);
    rig.request(0x61, true);
    rig.request(0x71, false);
    assert_eq!(rig.take(), Some(0x71));
    assert_eq!(rig.write(register::END_OF_INTERRUPT, 0, 0).level_ended, None);
    assert_eq!(rig.take(), Some(0x61));
    assert_eq!(rig.read(register::TRIGGER_MODE + 3, 0), 2);
    assert_eq!(rig.write(register::END_OF_INTERRUPT, 0, 0).level_ended, Some(0x61));
    assert_eq!(rig.write(register::END_OF_INTERRUPT, 0, 0).level_ended, None, "nothing in service");
}

#[test]
fn a_disabled_apic_delivers_nothing_and_masks_its_table() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::LVT_LINT0, 0x700, 0);
    assert!(rig.apic.passes_external_interrupt());
    let _ = rig.write(register::SPURIOUS_VECTOR, 0xff, 0);
    assert!(!rig.apic.passes_external_interrupt());
    assert_eq!(rig.read(register::LVT_LINT0, 0), 0x1_0700);
    let _ = rig.write(register::LVT_LINT0, 0x700, 0);
    assert_eq!(rig.read(register::LVT_LINT0, 0), 0x1_0700, "cannot be unmasked now");
}

#[test]
fn vectors_below_sixteen_are_errors() {
    let mut rig = Rig::new(0);
    rig.request(0x0f, false);
    assert_eq!(rig.take(), None);
    assert_eq!(rig.read(register::ERROR_STATUS, 0), 0, "shown after a write only");
    let _ = rig.write(register::ERROR_STATUS, 0, 0);
    assert_eq!(rig.read(register::ERROR_STATUS, 0), ERROR_RECEIVE_ILLEGAL_VECTOR);
    let _ = rig.write(register::COMMAND_LOW, 1 << 18 | 0x05, 0);
    let _ = rig.write(register::ERROR_STATUS, 0, 0);
    assert_eq!(rig.read(register::ERROR_STATUS, 0), ERROR_SEND_ILLEGAL_VECTOR);
}

#[test]
fn unknown_registers_are_errors() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::LVT_ERROR, 0xfe, 0);
    assert_eq!(rig.read(0x3a, 0), 0);
    assert_eq!(rig.take(), Some(0xfe));
    let _ = rig.write(register::ERROR_STATUS, 0, 0);
    assert_eq!(rig.read(register::ERROR_STATUS, 0), ERROR_ILLEGAL_REGISTER);
}

#[test]
fn the_one_shot_timer_fires_once() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::LVT_TIMER, 0xec, 0);
    // Divide by 16.
    let _ = rig.write(register::DIVIDE_CONFIGURATION, 3, 0);
    let _ = rig.write(register::INITIAL_COUNT, 1000, 0);
    assert_eq!(rig.apic.next_edge_ns(), Some(16_000));
    assert_eq!(rig.read(register::CURRENT_COUNT, 8_000), 500);
    rig.apic.service(&at(15_999));
    assert_eq!(rig.take(), None);
    rig.apic.service(&at(16_000));
    assert_eq!(rig.take(), Some(0xec));
    assert_eq!((rig.apic.next_edge_ns(), rig.read(register::CURRENT_COUNT, 20_000)), (None, 0));
}

#[test]
fn the_periodic_timer_keeps_its_phase_and_merges_what_was_missed() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::DIVIDE_CONFIGURATION, 0xb, 0);
    let _ = rig.write(register::LVT_TIMER, 0x2_00ec, 0);
    let _ = rig.write(register::INITIAL_COUNT, 1_000_000, 0);
    rig.apic.service(&at(3_500_000));
    assert_eq!(rig.take(), Some(0xec));
    let _ = rig.write(register::END_OF_INTERRUPT, 0, 3_500_000);
    assert_eq!(rig.take(), None);
    assert_eq!(rig.apic.next_edge_ns(), Some(4_000_000));
}

#[test]
fn a_periodic_timer_leaves_time_to_run() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::DIVIDE_CONFIGURATION, 0xb, 0);
    let _ = rig.write(register::LVT_TIMER, 0x2_00ec, 0);
    let _ = rig.write(register::INITIAL_COUNT, 1, 0);
    assert_eq!(rig.apic.next_edge_ns(), Some(LEAST_PERIOD_NS));
}

#[test]
fn the_deadline_is_the_guests_own_counter() {
    let mut rig = Rig::new(0);
    rig.apic.set_tsc_deadline(1000, &at(0));
    assert_eq!(rig.apic.tsc_deadline(), 0, "ignored in one-shot mode");
    let _ = rig.write(register::LVT_TIMER, 0x4_00ec, 0);
    rig.apic.set_tsc_deadline(TSC_HZ, &at(0));
    assert_eq!(rig.apic.next_edge_ns(), Some(SECOND_NS));
    // Half a second in, the guest sets its counter a quarter ahead.
    let mut moved = at(SECOND_NS / 2);
    moved.tsc += TSC_HZ / 4;
    rig.apic.tsc_changed(&moved);
    assert_eq!(rig.apic.next_edge_ns(), Some(SECOND_NS / 4 * 3));
    let mut due = at(SECOND_NS / 4 * 3);
    due.tsc = TSC_HZ - 1;
    rig.apic.service(&due);
    assert_eq!(rig.take(), None, "not before the counter says so");
    assert!(rig.apic.next_edge_ns().unwrap() > due.now_ns, "and aimed again");
    due.tsc = TSC_HZ;
    rig.apic.service(&due);
    assert_eq!((rig.take(), rig.apic.tsc_deadline()), (Some(0xec), 0));
}

#[test]
fn a_deadline_in_the_past_fires_at_once_and_zero_disarms() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::LVT_TIMER, 0x4_00ec, 0);
    rig.apic.set_tsc_deadline(1, &at(SECOND_NS));
    rig.apic.service(&at(SECOND_NS));
    assert_eq!(rig.take(), Some(0xec));
    rig.apic.set_tsc_deadline(u64::MAX, &at(SECOND_NS));
    rig.apic.set_tsc_deadline(0, &at(SECOND_NS));
    assert_eq!(rig.apic.next_edge_ns(), None);
}

#[test]
fn a_masked_timer_needs_no_exit() {
    let mut rig = Rig::new(0);
    let _ = rig.write(register::INITIAL_COUNT, 1000, 0);
    let _ = rig.write(register::LVT_TIMER, 0x1_00ec, 0);
    assert_eq!(rig.apic.next_edge_ns(), None);
    let _ = rig.write(register::LVT_TIMER, 0xec, 10_000);
    assert_eq!(rig.take(), None, "it ran out while masked");
}

#[test]
fn ipis_reach_the_other_and_oneself() {
    let mut rig = Rig::new(0);
    let other = rig.bus.mailbox(1).unwrap();
    other.publish(Address { enabled: true, ..other.address() });
    let _ = rig.write(register::COMMAND_HIGH, 1 << 24, 0);
    let _ = rig.write(register::COMMAND_LOW, 0x45, 0);
    assert_eq!(rig.bus.mailbox(1).unwrap().collect().unwrap().requests[1], 1 << 5);
    let _ = rig.write(register::COMMAND_LOW, 1 << 18 | 0x46, 0);
    rig.collect();
    assert_eq!(rig.take(), Some(0x46));
    // INIT, its de-assertion, then a start-up IPI, to all others.
    let _ = rig.write(register::COMMAND_LOW, 0xc_0000 | 0xc500, 0);
    let _ = rig.write(register::COMMAND_LOW, 0xc_0000 | 0x8500, 0);
    let _ = rig.write(register::COMMAND_LOW, 0xc_0000 | 0x069a, 0);
    let mail = rig.bus.mailbox(1).unwrap().collect().unwrap();
    assert_eq!((mail.init, mail.start_up), (true, Some(0x9a)));
    assert_eq!(rig.bus.mailbox(0).unwrap().collect(), None);
}

#[test]
fn x2apic_is_entered_and_left_by_the_book() {
    let mut rig = Rig::new(1);
    let xapic = rig.apic.base();
    assert_eq!(rig.apic.window(), Some(DEFAULT_BASE));
    assert_eq!(rig.apic.read_msr(register::ID, &at(0)), Err(Fault));
    rig.apic.set_base(xapic | base::X2APIC, &rig.bus).unwrap();
    assert_eq!(rig.apic.window(), None);
    assert_eq!(rig.apic.read_msr(register::ID, &at(0)), Ok(1));
    assert_eq!(rig.apic.read_msr(register::LOGICAL_DESTINATION, &at(0)), Ok(2));
    assert_eq!(rig.apic.set_base(xapic, &rig.bus), Err(Fault), "not straight back");
    rig.apic.set_base(xapic & !base::ENABLE, &rig.bus).unwrap();
    assert_eq!(rig.apic.set_base(xapic | base::X2APIC, &rig.bus), Err(Fault), "not from off");
    rig.apic.set_base(xapic, &rig.bus).unwrap();
    for wrong in [xapic | 1, xapic ^ base::BOOTSTRAP, xapic ^ 0x1000, xapic & !base::ENABLE | base::X2APIC] {
        assert_eq!(rig.apic.set_base(wrong, &rig.bus), Err(Fault), "{wrong:#x}");
    }
}

#[test]
fn x2apic_faults_where_xapic_ignores() {
    let mut rig = Rig::x2apic(0);
    let mut write = |number, value| rig.apic.write_msr(number, value, &rig.bus, &at(0)).is_ok();
    for (number, value, taken) in [
        (register::TASK_PRIORITY, 0x20, true),
        (register::TASK_PRIORITY, 0x100, false),
        (register::END_OF_INTERRUPT, 0, true),
        (register::END_OF_INTERRUPT, 1, false),
        (register::SPURIOUS_VECTOR, 0x1ff, true),
        (register::SPURIOUS_VECTOR, 0x1000, false),
        (register::LVT_TIMER, 0x4_00ec, true),
        (register::LVT_TIMER, 0x100_0000, false),
        (register::COMMAND_LOW, 0xffff_ffff_0000_0045, true),
        (register::COMMAND_LOW, 1 << 13, false),
        (register::COMMAND_HIGH, 0, false),
        (register::ID, 0, false),
        (register::DESTINATION_FORMAT, 0, false),
        (register::SELF_IPI, 0x45, true),
        (register::SELF_IPI, 0x145, false),
        (register::INITIAL_COUNT, 1 << 32, false),
        (register::REQUEST, 0, false),
        (0xff, 0, false),
    ] {
        assert_eq!(write(number, value), taken, "{number:#x} {value:#x}");
    }
    let mut read = |number| rig.apic.read_msr(number, &at(0)).is_ok();
    assert!(read(register::VERSION) && read(register::COMMAND_LOW));
    assert!(!read(register::COMMAND_HIGH) && !read(register::END_OF_INTERRUPT) && !read(0xff));
}

#[test]
fn the_self_ipi_arrives() {
    let mut rig = Rig::x2apic(0);
    let _ = rig.apic.write_msr(register::SELF_IPI, 0x99, &rig.bus, &at(0)).unwrap();
    rig.collect();
    assert_eq!(rig.take(), Some(0x99));
}

#[test]
fn firmware_leaves_the_virtual_wire() {
    let mut rig = Rig::new(0);
    assert!(!rig.apic.passes_external_interrupt());
    rig.apic.set_virtual_wire(&rig.bus);
    assert!(rig.apic.passes_external_interrupt());
    rig.apic.set_base(rig.apic.base() & !base::ENABLE, &rig.bus).unwrap();
    assert!(rig.apic.passes_external_interrupt(), "switched off, the wire goes straight through");
}

#[test]
fn init_keeps_identifier_and_mode_only() {
    let mut rig = Rig::x2apic(1);
    rig.request(0x55, false);
    rig.apic.initialize(&rig.bus);
    assert!(rig.apic.is_x2apic());
    assert_eq!(rig.apic.deliverable(), None);
    assert!(!rig.bus.mailbox(1).unwrap().address().enabled);
}
