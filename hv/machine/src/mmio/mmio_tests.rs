use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;

use virtio_device::fake::VecRam;

use super::*;
use crate::apic::bus::{ApicBus, Doorbell};
use crate::backend::{Exit, Gpr};
use crate::chipset::Board;
use crate::chipset::uart::ConsoleSink;
use crate::cpu::GuestConfig;
use crate::fake::FakeVcpu;

struct Quiet;

impl Doorbell for Quiet {
    fn ring(&self, _cpu: usize) {}
}

impl ConsoleSink for Quiet {
    fn put(&mut self, _byte: u8) {}
}

const CODE: u64 = 0x1000;
const TABLES: u64 = 0x4000;

/// A CPU in 64-bit code whose first 4 GiB are mapped to themselves, with 64 KiB of RAM.
struct Rig {
    cpu: Cpu,
    vcpu: FakeVcpu,
    ram: VecRam,
    board: RefCell<Board>,
}

impl Rig {
    fn new() -> Self {
        let bus = Arc::new(ApicBus::new(1, Box::new(Quiet)));
        let board = RefCell::new(Board::new(bus.clone(), Box::new(Quiet), 0, 0));
        let config = GuestConfig { cpus: 1, tsc_hz: 1_000_000_000, unix_at_zero_ns: 0 };
        let ram = VecRam::new(64 << 10);
        let write = |address: u64, value: u64| ram.write_u64(GuestPhysAddr::new(address), value).unwrap();
        write(TABLES, (TABLES + 0x1000) | 3);
        for gigabyte in 0..4 {
            // Pages of 1 GiB.
            write(TABLES + 0x1000 + 8 * gigabyte, gigabyte << 30 | 0x83);
        }
        let mut vcpu = FakeVcpu { rip: CODE, ..FakeVcpu::default() };
        vcpu.long_mode(TABLES);
        Self { cpu: Cpu::new(0, config, bus), vcpu, ram, board }
    }

    fn run(&mut self, code: &[u8]) -> Action {
        self.vcpu.instruction = code.to_vec();
        let exit = Exit::Mmio { gpa: GuestPhysAddr::new(0), access: MmioAccess::Read };
        self.cpu.handle(&mut self.vcpu, &self.ram, &self.board, exit, 0)
    }

    /// Runs one instruction and expects it to complete.
    fn step(&mut self, code: &[u8]) {
        let before = self.vcpu.rip;
        assert_eq!(self.run(code), Action::Continue);
        assert_eq!(self.vcpu.rip, before + code.len() as u64, "{code:x?} was not carried out");
    }

    fn set(&mut self, register: Gpr, value: u64) {
        self.vcpu.gprs[register] = value;
    }

    /// The exception that the next entry carries.
    fn exception(&mut self) -> Option<Injection> {
        match self.cpu.before_entry(&mut self.vcpu, &self.board, 0) {
            crate::Next::Enter(entry) => entry.inject,
            crate::Next::Sleep { .. } => None,
        }
    }
}

const LAPIC: u64 = 0xfee0_0000;
const IOAPIC: u64 = 0xfec0_0000;

#[test]
fn registers_are_read_and_written() {
    let mut rig = Rig::new();
    rig.set(Gpr::RBX, LAPIC);
    // mov eax, [rbx+0x30]
    rig.step(&[0x8b, 0x43, 0x30]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x0005_0014);
    // mov dword [rbx+0xf0], 0x1ff
    rig.step(&[0xc7, 0x83, 0xf0, 0, 0, 0, 0xff, 1, 0, 0]);
    // mov r9d, [rbx+0xf0]
    rig.step(&[0x44, 0x8b, 0x8b, 0xf0, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::from_encoding(9)], 0x1ff);
    // movzx edx, byte [rbx+0xf1]
    rig.step(&[0x0f, 0xb6, 0x93, 0xf1, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RDX], 1);
    // mov ah, [rbx+0xf0]
    rig.set(Gpr::RAX, 0x1122_3344_5566_7788);
    rig.step(&[0x8a, 0xa3, 0xf0, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x1122_3344_5566_ff88);
    // movsxd rcx, dword [rbx+0xe0]: the destination format is all ones.
    rig.step(&[0x48, 0x63, 0x8b, 0xe0, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RCX], u64::MAX);
    // mov eax, moffs64 of the version register
    rig.step(&[0xa1, 0x30, 0, 0xe0, 0xfe, 0, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x0005_0014);
}

#[test]
fn the_io_apic_is_programmed_through_its_window() {
    let mut rig = Rig::new();
    rig.set(Gpr::RDI, IOAPIC);
    rig.set(Gpr::RAX, 0x10 + 2 * 4);
    // mov [rdi], eax; mov dword [rdi+0x10], 0x34; mov ecx, [rdi+0x10]
    rig.step(&[0x89, 0x07]);
    rig.step(&[0xc7, 0x47, 0x10, 0x34, 0, 0, 0]);
    rig.step(&[0x8b, 0x4f, 0x10]);
    assert_eq!(rig.vcpu.gprs[Gpr::RCX], 0x34);
    assert!(rig.board.borrow().ioapic.is_open(4));
    // mov [rdi], al writes the index as a byte.
    rig.set(Gpr::RAX, 1);
    rig.step(&[0x88, 0x07]);
    rig.step(&[0x8b, 0x4f, 0x10]);
    assert_eq!(rig.vcpu.gprs[Gpr::RCX], 0x0017_0020);
}

#[test]
fn read_modify_write_and_comparison_set_flags() {
    let mut rig = Rig::new();
    rig.set(Gpr::RBX, LAPIC);
    // or dword [rbx+0xf0], 0x100
    rig.step(&[0x81, 0x8b, 0xf0, 0, 0, 0, 0, 1, 0, 0]);
    assert_eq!(rig.vcpu.rflags & 0x40, 0);
    // cmp dword [rbx+0xf0], 0x1ff
    rig.step(&[0x81, 0xbb, 0xf0, 0, 0, 0, 0xff, 1, 0, 0]);
    assert_ne!(rig.vcpu.rflags & 0x40, 0, "equal");
    // and dword [rbx+0xf0], 0xff; test dword [rbx+0xf0], 0x100
    rig.step(&[0x81, 0xa3, 0xf0, 0, 0, 0, 0xff, 0, 0, 0]);
    rig.step(&[0xf7, 0x83, 0xf0, 0, 0, 0, 0, 1, 0, 0]);
    assert_ne!(rig.vcpu.rflags & 0x40, 0);
    // bts dword [rbx+0xf0], 8; then xchg with ecx
    rig.step(&[0x0f, 0xba, 0xab, 0xf0, 0, 0, 0, 8]);
    assert_eq!(rig.vcpu.rflags & 1, 0);
    rig.set(Gpr::RCX, 0x1fe);
    rig.step(&[0x87, 0x8b, 0xf0, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RCX], 0x1ff);
    // inc, not, neg, cmpxchg that succeeds
    rig.step(&[0xff, 0x83, 0xf0, 0, 0, 0]);
    rig.set(Gpr::RAX, 0x1ff);
    rig.set(Gpr::RDX, 0x1f0);
    rig.step(&[0xf0, 0x0f, 0xb1, 0x93, 0xf0, 0, 0, 0]);
    rig.step(&[0x8b, 0x83, 0xf0, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x1f0);
}

#[test]
fn string_moves_go_in_portions() {
    let mut rig = Rig::new();
    rig.set(Gpr::RSI, LAPIC + 0x30);
    rig.set(Gpr::RDI, 0x2000);
    rig.set(Gpr::RCX, 300);
    // rep movsd: the first portion does not complete it.
    assert_eq!(rig.run(&[0xf3, 0xa5]), Action::Continue);
    assert_eq!((rig.vcpu.rip, rig.vcpu.gprs[Gpr::RCX]), (CODE, 300 - 256));
    rig.step(&[0xf3, 0xa5]);
    assert_eq!(rig.vcpu.gprs[Gpr::RCX], 0);
    assert_eq!(rig.vcpu.gprs[Gpr::RDI], 0x2000 + 1200);
    assert_eq!(rig.ram.read_u32(GuestPhysAddr::new(0x2000)), Ok(0x0005_0014));
    // std; stosd downwards into nothing, then lodsd.
    rig.vcpu.rflags |= 1 << 10;
    rig.set(Gpr::RDI, 0xd000_0008);
    rig.set(Gpr::RCX, 2);
    rig.step(&[0xf3, 0xab]);
    assert_eq!(rig.vcpu.gprs[Gpr::RDI], 0xd000_0000);
    assert_eq!(rig.cpu.counters().unclaimed_mmio, 2);
    rig.set(Gpr::RSI, 0xd000_0000);
    rig.step(&[0xad]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0xffff_ffff);
}

#[test]
fn an_access_across_pages_reaches_both_sides() {
    let mut rig = Rig::new();
    rig.ram.write(GuestPhysAddr::new(0xfffe), &[0x11, 0x22]).unwrap();
    rig.set(Gpr::RBX, 0xfffe);
    // mov eax, [rbx]: two bytes of RAM, two where nothing is.
    rig.step(&[0x8b, 0x03]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0xffff_2211);
    // mov [rbx], ecx writes what is RAM.
    rig.set(Gpr::RCX, 0x5566_7788);
    rig.step(&[0x89, 0x0b]);
    assert_eq!(rig.ram.read_u16(GuestPhysAddr::new(0xfffe)), Ok(0x7788));
}

#[test]
fn faults_of_the_walk_are_the_guests() {
    let mut rig = Rig::new();
    rig.set(Gpr::RBX, 1 << 40);
    assert_eq!(rig.run(&[0x8b, 0x03]), Action::Continue);
    assert_eq!(rig.vcpu.rip, CODE, "not carried out");
    assert_eq!(rig.exception(), Some(Injection::page_fault(0)));
    assert_eq!(rig.vcpu.system.cr2, 1 << 40);
    // A table that is not RAM.
    rig.vcpu.system.cr3 = 0x10_0000_0000;
    assert_eq!(rig.run(&[0x8b, 0x03]), Action::Continue);
    assert_eq!(rig.exception(), Some(Injection::general_protection()));
}

#[test]
fn what_nobody_does_to_devices_is_refused() {
    let mut rig = Rig::new();
    rig.set(Gpr::RBX, LAPIC);
    // movups xmm0, [rbx]; push [rbx]; call [rbx]; an undefined opcode; a cut-off instruction
    for code in [&[0x0f, 0x10, 0x03][..], &[0xff, 0x33], &[0xff, 0x13], &[0x0f, 0x0b], &[0x8b]] {
        assert_eq!(rig.run(code), Action::Continue);
        assert_eq!(rig.exception(), Some(Injection::undefined_opcode()), "{code:x?}");
    }
    assert_eq!(rig.cpu.counters().undecoded_mmio, 5);
    assert_eq!(rig.run(&[]), Action::Continue);
    assert_eq!(rig.exception(), None, "no bytes: the processor looks again");
    let exit = Exit::Mmio { gpa: GuestPhysAddr::new(0xd000_0000), access: MmioAccess::Fetch };
    let action = rig.cpu.handle(&mut rig.vcpu, &rig.ram, &rig.board, exit, 0);
    assert_eq!(action, Action::Stop(StopReason::FetchOutsideRam { address: 0xd000_0000 }));
}

#[test]
fn segments_and_address_sizes_count() {
    let mut rig = Rig::new();
    rig.vcpu.system.gs.base = LAPIC;
    // mov eax, gs:[0x30]
    rig.step(&[0x65, 0x8b, 0x04, 0x25, 0x30, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x0005_0014);
    // mov eax, [ebx+0x30] with rubbish above 32 bits
    rig.set(Gpr::RBX, 0xdead_0000_fee0_0000);
    rig.step(&[0x67, 0x8b, 0x43, 0x30]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x0005_0014);
    // mov eax, [rip+displacement]
    rig.vcpu.rip = LAPIC - 0x1000;
    let displacement = (LAPIC + 0x30 - (rig.vcpu.rip + 6)) as u32;
    let code: Vec<u8> = [&[0x8b, 0x05][..], &displacement.to_le_bytes()].concat();
    rig.set(Gpr::RAX, 0);
    rig.step(&code);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x0005_0014);
}

#[test]
fn accesses_of_odd_shapes_read_what_the_words_hold() {
    let mut rig = Rig::new();
    rig.set(Gpr::RBX, LAPIC);
    // mov rax, [rbx+0x30]: the word behind a register is reserved.
    rig.step(&[0x48, 0x8b, 0x43, 0x30]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x0005_0014);
    // mov eax, [rbx+0x32] straddles into the reserved word.
    rig.step(&[0x8b, 0x43, 0x32]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0x0005);
    // mov byte [rbx+0x80], 1 has no effect.
    rig.step(&[0xc6, 0x83, 0x80, 0, 0, 0, 0x10]);
    rig.step(&[0x8b, 0x83, 0x80, 0, 0, 0]);
    assert_eq!(rig.vcpu.gprs[Gpr::RAX], 0);
}
