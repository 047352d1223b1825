use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::RefCell;

use virtio_device::GuestPhysAddr;
use virtio_device::fake::VecRam;

use super::*;
use crate::apic::bus::Doorbell;
use crate::apic::local::register;
use crate::backend::{AccessBytes, InjectionKind, SegmentName, StringIo};
use crate::chipset::uart::ConsoleSink;
use crate::chipset::{Board, COM1_PORT};
use crate::counters::Reason;
use crate::fake::FakeVcpu;
use crate::msr::index;

struct Quiet;

impl Doorbell for Quiet {
    fn ring(&self, _cpu: usize) {}
}

impl ConsoleSink for Quiet {
    fn put(&mut self, _byte: u8) {}
}

const TSC_HZ: u64 = 2_000_000_000;

struct Rig {
    cpus: Vec<(Cpu, FakeVcpu)>,
    ram: VecRam,
    board: RefCell<Board>,
    now_ns: u64,
}

impl Rig {
    fn new(count: usize) -> Self {
        let bus = Arc::new(ApicBus::new(count, Box::new(Quiet)));
        let board = RefCell::new(Board::new(bus.clone(), Box::new(Quiet), 0, 0));
        let config = GuestConfig { cpus: count, tsc_hz: TSC_HZ, unix_at_zero_ns: 1_000_000_000_000_000_000 };
        let cpus =
            (0..count).map(|index| (Cpu::new(index, config, bus.clone()), FakeVcpu::default())).collect();
        let mut rig = Self { cpus, ram: VecRam::new(64 << 10), board, now_ns: 0 };
        let bus = rig.cpus[0].0.bus.clone();
        rig.cpus[0].0.apic.set_virtual_wire(&bus);
        rig
    }

    fn next(&mut self, cpu: usize) -> Next {
        let (cpu, vcpu) = &mut self.cpus[cpu];
        cpu.before_entry(vcpu, &self.board, self.now_ns)
    }

    fn entry(&mut self, cpu: usize) -> EntryRequest {
        match self.next(cpu) {
            Next::Enter(entry) => entry,
            Next::Sleep { until_ns } => panic!("sleeps until {until_ns:?}"),
        }
    }

    fn handle(&mut self, cpu: usize, exit: Exit) -> Action {
        let (cpu, vcpu) = &mut self.cpus[cpu];
        cpu.handle(vcpu, &self.ram, &self.board, exit, self.now_ns)
    }

    fn out(&mut self, port: u16, value: u32) -> Action {
        let direction = IoDirection::Out { value };
        self.handle(0, Exit::Io(IoExit { port, bytes: AccessBytes::One, direction, string: None, length: 1 }))
    }

    fn wrmsr(&mut self, cpu: usize, index: u32, value: u64) {
        assert_eq!(self.handle(cpu, Exit::MsrWrite { index, value, length: 2 }), Action::Continue);
    }

    fn rdmsr(&mut self, cpu: usize, index: u32) -> u64 {
        assert_eq!(self.handle(cpu, Exit::MsrRead { index, length: 2 }), Action::Continue);
        let vcpu = &self.cpus[cpu].1;
        vcpu.gprs[Gpr::RDX] << 32 | vcpu.gprs[Gpr::RAX]
    }

    fn x2apic(&mut self, cpu: usize, number: u8, value: u64) {
        self.wrmsr(cpu, index::X2APIC_FIRST + u32::from(number), value);
    }

    fn enable_x2apic(&mut self, cpu: usize) {
        let base = self.rdmsr(cpu, index::APIC_BASE);
        self.wrmsr(cpu, index::APIC_BASE, base | 1 << 10);
        self.x2apic(cpu, register::SPURIOUS_VECTOR, 0x1ff);
    }

    fn advance(&mut self, ns: u64) {
        self.now_ns += ns;
        for (_, vcpu) in &mut self.cpus {
            vcpu.tsc += ns * (TSC_HZ / 1_000_000_000);
        }
    }

    fn open_pic(&mut self) {
        for (port, value) in [
            (0x20, 0x11),
            (0x21, 0x30),
            (0x21, 4),
            (0x21, 1),
            (0xa0, 0x11),
            (0xa1, 0x38),
            (0xa1, 2),
            (0xa1, 1),
        ] {
            assert_eq!(self.out(port, value), Action::Continue);
        }
    }

    fn interrupts_on(&mut self, cpu: usize, on: bool) {
        self.cpus[cpu].1.enable_interrupts(on);
    }
}

#[test]
fn what_the_guest_cannot_take_is_announced_with_the_entry() {
    let mut rig = Rig::new(1);
    rig.open_pic();
    assert_eq!(rig.out(COM1_PORT + 1, 1), Action::Continue);
    rig.board.borrow_mut().push_console_input(b"x");
    assert_eq!(rig.entry(0), EntryRequest { inject: None, more_pending: true, deadline_ns: None });
    rig.interrupts_on(0, true);
    rig.cpus[0].1.shadow = true;
    assert_eq!(rig.entry(0), EntryRequest { inject: None, more_pending: true, deadline_ns: None });
    rig.cpus[0].1.shadow = false;
    let entry = rig.entry(0);
    assert_eq!(entry.inject, Some(Injection::interrupt(0x34)));
    assert!(!entry.more_pending);
    assert_eq!(rig.cpus[0].0.counters().pending_toggles, 0);
}

#[test]
fn a_second_interrupt_waits_behind_the_first() {
    let mut rig = Rig::new(1);
    rig.enable_x2apic(0);
    rig.interrupts_on(0, true);
    rig.x2apic(0, register::SELF_IPI, 0x51);
    rig.x2apic(0, register::SELF_IPI, 0x61);
    let entry = rig.entry(0);
    assert_eq!(
        (entry.inject, entry.more_pending),
        (Some(Injection::interrupt(0x61)), false),
        "0x51 is lower"
    );
    rig.x2apic(0, register::SELF_IPI, 0x71);
    rig.x2apic(0, register::END_OF_INTERRUPT, 0);
    let entry = rig.entry(0);
    assert_eq!((entry.inject, entry.more_pending), (Some(Injection::interrupt(0x71)), false));
    rig.x2apic(0, register::END_OF_INTERRUPT, 0);
    assert_eq!(rig.entry(0).inject, Some(Injection::interrupt(0x51)));
}

#[test]
fn the_deadline_travels_with_the_entry_and_ends_a_halt() {
    let mut rig = Rig::new(1);
    rig.enable_x2apic(0);
    rig.interrupts_on(0, true);
    rig.x2apic(0, register::LVT_TIMER, 0x4_00ec);
    rig.wrmsr(0, index::TSC_DEADLINE, 2_000_000);
    assert_eq!(rig.entry(0).deadline_ns, Some(1_000_000));
    assert_eq!(rig.handle(0, Exit::Hlt { length: 1 }), Action::Continue);
    assert_eq!(rig.next(0), Next::Sleep { until_ns: Some(1_000_000) });
    assert!(rig.cpus[0].0.is_halted());
    rig.advance(999_999);
    assert_eq!(rig.next(0), Next::Sleep { until_ns: Some(1_000_000) });
    rig.advance(1);
    let entry = rig.entry(0);
    assert_eq!(
        entry,
        EntryRequest { inject: Some(Injection::interrupt(0xec)), more_pending: false, deadline_ns: None }
    );
    assert!(!rig.cpus[0].0.is_halted());
}

#[test]
fn an_interrupt_between_check_and_halt_is_not_slept_over() {
    let mut rig = Rig::new(1);
    rig.enable_x2apic(0);
    rig.interrupts_on(0, true);
    assert!(rig.entry(0).inject.is_none());
    rig.x2apic(0, register::SELF_IPI, 0x51);
    assert_eq!(rig.handle(0, Exit::Hlt { length: 1 }), Action::Continue);
    assert_eq!(rig.entry(0).inject, Some(Injection::interrupt(0x51)));
}

#[test]
fn a_halt_with_interrupts_off_waits_for_an_nmi() {
    let mut rig = Rig::new(2);
    rig.enable_x2apic(0);
    rig.x2apic(0, register::SELF_IPI, 0x51);
    assert_eq!(rig.handle(0, Exit::Hlt { length: 1 }), Action::Continue);
    assert_eq!(rig.next(0), Next::Sleep { until_ns: None });
    rig.enable_x2apic(1);
    rig.x2apic(1, register::COMMAND_LOW, 0x400);
    let entry = rig.entry(0);
    assert_eq!((entry.inject, entry.more_pending), (Some(Injection::nmi()), true));
}

#[test]
fn a_fault_goes_in_before_interrupts() {
    let mut rig = Rig::new(1);
    rig.enable_x2apic(0);
    rig.interrupts_on(0, true);
    rig.x2apic(0, register::SELF_IPI, 0x51);
    let rip = rig.cpus[0].1.rip;
    assert_eq!(rig.handle(0, Exit::MsrRead { index: 0x1234, length: 2 }), Action::Continue);
    assert_eq!(rig.cpus[0].1.rip, rip, "the instruction faulted");
    let entry = rig.entry(0);
    assert_eq!((entry.inject, entry.more_pending), (Some(Injection::general_protection()), true));
    let counters = rig.cpus[0].0.counters();
    assert_eq!((counters.unknown_msr_reads, counters.last_unknown_msr), (1, 0x1234));
    assert_eq!(rig.entry(0).inject, Some(Injection::interrupt(0x51)));
}

#[test]
fn other_cpus_start_by_init_and_start_up() {
    let mut rig = Rig::new(2);
    rig.enable_x2apic(0);
    assert_eq!(rig.next(1), Next::Sleep { until_ns: None });
    rig.x2apic(0, register::COMMAND_LOW, 1 << 32 | 0xc500);
    assert_eq!(rig.next(1), Next::Sleep { until_ns: None });
    rig.x2apic(0, register::COMMAND_LOW, 1 << 32 | 0x069a);
    assert!(matches!(rig.next(1), Next::Enter(_)));
    let vcpu = &rig.cpus[1].1;
    assert_eq!((vcpu.system.cs.selector, vcpu.system.cs.base, vcpu.rip), (0x9a00, 0x9a000, 0));
    // A second start-up IPI, which the protocol sends, changes nothing.
    rig.cpus[1].1.rip = 0x10;
    rig.x2apic(0, register::COMMAND_LOW, 1 << 32 | 0x069a);
    assert!(matches!(rig.next(1), Next::Enter(_)));
    assert_eq!(rig.cpus[1].1.rip, 0x10);
    // IPIs between running CPUs, and INIT puts it back to waiting.
    rig.enable_x2apic(1);
    rig.interrupts_on(1, true);
    rig.x2apic(0, register::COMMAND_LOW, 1 << 32 | 0x00fd);
    assert_eq!(rig.entry(1).inject, Some(Injection::interrupt(0xfd)));
    rig.x2apic(0, register::COMMAND_LOW, 1 << 32 | 0x0500);
    assert_eq!(rig.next(1), Next::Sleep { until_ns: None });
}

#[test]
fn power_and_stops_end_the_loop() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.out(0x64, 0xfe), Action::Reset);
    assert_eq!(rig.out(0x605, 0x34), Action::PowerOff);
    assert_eq!(rig.handle(0, Exit::Shutdown), Action::Stop(StopReason::TripleFault));
    let reason = InvalidState::EmulatorSavedHostState;
    assert_eq!(rig.handle(0, Exit::Invalid { reason }), Action::Stop(StopReason::State(reason)));
    let other = Exit::Other { code: 5, info1: 6, info2: 7 };
    assert_eq!(rig.handle(0, other), Action::Stop(StopReason::UnknownExit { code: 5, info1: 6, info2: 7 }));
    assert_eq!(rig.cpus[0].0.counters().exits[Reason::Fatal as usize], 3);
    assert_eq!(rig.handle(0, Exit::HostInterrupt), Action::HostWork);
    assert_eq!(rig.handle(0, Exit::Pause { length: 2 }), Action::Yield);
}

#[test]
fn the_counter_and_its_adjustment_move_together() {
    let mut rig = Rig::new(1);
    rig.advance(500);
    assert_eq!(rig.rdmsr(0, index::TSC), 1000);
    rig.wrmsr(0, index::TSC_ADJUST, 5000);
    assert_eq!(rig.rdmsr(0, index::TSC), 6000);
    rig.wrmsr(0, index::TSC, 100);
    assert_eq!(rig.rdmsr(0, index::TSC_ADJUST), 100u64.wrapping_sub(1000));
    rig.wrmsr(0, index::TSC_ADJUST, 0);
    assert_eq!(rig.rdmsr(0, index::TSC), 1000);
}

#[test]
fn efer_takes_its_own_bits_only() {
    let mut rig = Rig::new(1);
    rig.wrmsr(0, index::EFER, 0x901);
    assert_eq!(rig.rdmsr(0, index::EFER), 0x901);
    for wrong in [1 << 12, 1 << 14, 1 << 63] {
        rig.wrmsr(0, index::EFER, wrong);
        assert_eq!(rig.entry(0).inject, Some(Injection::general_protection()), "{wrong:#x}");
    }
    rig.cpus[0].1.system.cr0 |= 1 << 31;
    rig.wrmsr(0, index::EFER, 0x801);
    assert_eq!(rig.entry(0).inject, Some(Injection::general_protection()), "LME with paging on");
    rig.wrmsr(0, index::PAT, 0x0303_0303_0303_0303);
    assert_eq!(rig.entry(0).inject, Some(Injection::general_protection()));
}

#[test]
fn the_paravirtual_clock_is_written_where_the_guest_says() {
    let mut rig = Rig::new(1);
    rig.wrmsr(0, index::KVM_SYSTEM_TIME, 0x2001);
    assert_eq!(rig.ram.read_u8(GuestPhysAddr::new(0x2000 + 29)), Ok(1));
    assert_eq!(rig.rdmsr(0, index::KVM_SYSTEM_TIME), 0x2001);
    rig.wrmsr(0, index::KVM_WALL_CLOCK, 0x3000);
    assert_eq!(rig.ram.read_u32(GuestPhysAddr::new(0x3004)), Ok(1_000_000_000));
    rig.wrmsr(0, index::KVM_SYSTEM_TIME, 0xffff_0001);
    assert_eq!(rig.entry(0).inject, Some(Injection::general_protection()));
}

#[test]
fn cpuid_answers_in_four_cleared_registers() {
    let mut rig = Rig::new(1);
    rig.cpus[0].1.gprs[Gpr::RAX] = 0xffff_ffff_4000_0000;
    rig.cpus[0].1.gprs[Gpr::RBX] = u64::MAX;
    assert_eq!(rig.handle(0, Exit::Cpuid { length: 2 }), Action::Continue);
    let vcpu = &rig.cpus[0].1;
    assert_eq!(vcpu.gprs[Gpr::RAX], 0x4000_0010);
    assert_eq!(vcpu.gprs[Gpr::RBX], u64::from(u32::from_le_bytes(*b"nos ")));
    assert_eq!(vcpu.rip, 2);
}

#[test]
fn xcr0_and_task_priority_are_checked() {
    let mut rig = Rig::new(1);
    let xsetbv = |index, value| Exit::Xsetbv { index, value, length: 3 };
    assert_eq!(rig.handle(0, xsetbv(0, 7)), Action::Continue);
    assert_eq!(rig.cpus[0].1.xcr0, 7);
    for (index, value) in [(1, 7), (0, 0), (0, 5), (0, 0xe7), (0, u64::MAX)] {
        assert_eq!(rig.handle(0, xsetbv(index, value)), Action::Continue);
        assert_eq!(rig.entry(0).inject, Some(Injection::general_protection()));
    }
    assert_eq!(rig.handle(0, Exit::TaskPriority { value: 5, length: 4 }), Action::Continue);
    assert_eq!((rig.cpus[0].1.task_priority, rig.cpus[0].0.apic.task_priority()), (5, 0x50));
    assert_eq!(rig.handle(0, Exit::TaskPriority { value: 16, length: 4 }), Action::Continue);
    assert_eq!(rig.entry(0).inject, Some(Injection::general_protection()));
}

fn string(port: u16, input: bool, repeat: bool) -> Exit {
    let direction = if input { IoDirection::In } else { IoDirection::Out { value: 0 } };
    let string = StringIo { repeat, address_bytes: AccessBytes::Four, segment: SegmentName::Ds };
    Exit::Io(IoExit { port, bytes: AccessBytes::One, direction, string: Some(string), length: 2 })
}

#[test]
fn string_output_comes_from_memory_in_portions() {
    let mut rig = Rig::new(1);
    rig.cpus[0].1.gprs[Gpr::RSI] = 0x1000;
    rig.cpus[0].1.gprs[Gpr::RCX] = 300;
    assert_eq!(rig.handle(0, string(0x80, false, true)), Action::Continue);
    assert_eq!((rig.cpus[0].1.rip, rig.cpus[0].1.gprs[Gpr::RCX]), (0, 44));
    assert_eq!(rig.handle(0, string(0x80, false, true)), Action::Continue);
    let vcpu = &rig.cpus[0].1;
    assert_eq!((vcpu.rip, vcpu.gprs[Gpr::RCX], vcpu.gprs[Gpr::RSI]), (2, 0, 0x1000 + 300));
    // None to do: only the instruction is passed over.
    assert_eq!(rig.handle(0, string(0x80, false, true)), Action::Continue);
    assert_eq!(rig.cpus[0].1.rip, 4);
}

#[test]
fn string_input_takes_nothing_out_of_a_device_before_its_memory_is_there() {
    let mut rig = Rig::new(1);
    rig.board.borrow_mut().push_console_input(b"ab");
    rig.cpus[0].1.long_mode(0x4000);
    rig.cpus[0].1.gprs[Gpr::RDI] = 0x1000;
    assert_eq!(rig.handle(0, string(COM1_PORT, true, false)), Action::Continue);
    let inject = rig.entry(0).inject;
    assert!(matches!(
        inject,
        Some(Injection { vector: 14, kind: InjectionKind::Exception { error: Some(2) } })
    ));
    assert_eq!(rig.cpus[0].1.system.cr2, 0x1000);
    assert_eq!(rig.board.borrow().uart.queued_input_bytes(), 2);
    // With paging off it goes through, backwards.
    rig.cpus[0].1.system = crate::backend::SystemState::RESET;
    rig.cpus[0].1.rflags |= 1 << 10;
    rig.cpus[0].1.gprs[Gpr::RCX] = 2;
    assert_eq!(rig.handle(0, string(COM1_PORT, true, true)), Action::Continue);
    assert_eq!(rig.ram.read_u16(GuestPhysAddr::new(0xfff)), Ok(u16::from_le_bytes(*b"ba")));
}

#[test]
fn a_reset_in_the_middle_of_a_string_ends_it() {
    let mut rig = Rig::new(1);
    rig.ram.write_u8(GuestPhysAddr::new(0x1001), 0xfe).unwrap();
    rig.cpus[0].1.gprs[Gpr::RSI] = 0x1000;
    rig.cpus[0].1.gprs[Gpr::RCX] = 10;
    assert_eq!(rig.handle(0, string(0x64, false, true)), Action::Reset);
}

#[test]
fn hypercalls_are_not_implemented_and_say_so() {
    let mut rig = Rig::new(1);
    assert_eq!(rig.handle(0, Exit::Hypercall { length: 3 }), Action::Continue);
    assert_eq!(rig.cpus[0].1.gprs[Gpr::RAX] as i64, -1000);
}

#[test]
fn a_loaded_kernel_starts_as_the_protocol_says() {
    let mut rig = Rig::new(1);
    let start = StartState {
        system: crate::backend::SystemState::RESET,
        rip: 0x100_0200,
        gprs: [(Gpr::RSI, 0x7000), (Gpr::RSP, 0x8000)],
    };
    let (cpu, vcpu) = &mut rig.cpus[0];
    vcpu.tsc = 77;
    cpu.start(vcpu, &start);
    assert_eq!((vcpu.rip, vcpu.gprs[Gpr::RSI], vcpu.rflags, vcpu.tsc), (0x100_0200, 0x7000, 2, 77));
    assert_eq!(rig.entry(0), EntryRequest::default());
}
