//! Any exit, any register, any memory, in any order: the machine must answer without panicking,
//! without looping, and with entries that keep their promises.
//!
//! [`one_input`] turns bytes into a run of two guest CPUs. It is compiled for tests, which run it
//! over pseudo-random inputs at each build, and for the fuzzer (`--cfg fuzzing`), which looks for
//! inputs of its own. What is checked, beside that nothing panics:
//! - an interrupt goes in only where the guest accepts one, and an NMI likewise;
//! - timers never owe an edge for ever: after one look at the present, the next deadline lies in
//!   the future;
//! - RIP moves by at most an instruction;
//! - a refused MSR access or a fault leaves RIP where it was.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::{AtomicBool, Ordering};

use virtio_device::fake::VecRam;
use virtio_device::registers::Region;
use virtio_device::{GuestPhysAddr, GuestRam};

use crate::apic::bus::{ApicBus, Doorbell};
use crate::backend::{
    AccessBytes, Exit, Gpr, Injection, InjectionKind, InvalidState, IoDirection, IoExit, MmioAccess, Segment,
    SegmentAttributes, SegmentName, StringIo, Vcpu,
};
use crate::chipset::Board;
use crate::chipset::uart::ConsoleSink;
use crate::fake::FakeVcpu;
use crate::pci::{Endpoint, Identity};
use crate::{Action, Cpu, GuestConfig, Next};

/// Small enough to be cleared for each input, large enough for page tables.
const RAM_BYTES: usize = 16 << 10;
const CPUS: usize = 2;
const TSC_HZ: u64 = 2_445_404_000;

struct Quiet;

impl Doorbell for Quiet {
    fn ring(&self, _cpu: usize) {}
}

impl ConsoleSink for Quiet {
    fn put(&mut self, _byte: u8) {}
}

/// A device whose interrupt follows what is written to it.
struct Toggle(Arc<AtomicBool>);

impl Endpoint for Toggle {
    fn read(&mut self, _region: Region, offset: u32, bytes: u8) -> u64 {
        u64::from(offset) << bytes
    }

    fn write(&mut self, _region: Region, _offset: u32, _bytes: u8, value: u64) {
        self.0.store(value & 1 != 0, Ordering::Relaxed);
    }

    fn interrupt_line(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The input, taken from the front; zeros when it has ended.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn number(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, index| number | u64::from(self.byte()) << (8 * index))
    }

    /// A value of interesting size: small, 32 bits, near the devices, or anything.
    fn value(&mut self) -> u64 {
        match self.byte() % 8 {
            0 => self.number(1),
            1 => self.number(2),
            2 => self.number(4),
            3 => 0xfee0_0000 | self.number(2) & 0xfff,
            4 => 0xfec0_0000 | self.number(1),
            5 => u64::MAX - self.number(1),
            _ => self.number(8),
        }
    }

    fn one_in(&mut self, times: u8) -> bool {
        self.byte().is_multiple_of(times)
    }

    fn choice<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}

const SEGMENTS: [SegmentName; 6] =
    [SegmentName::Es, SegmentName::Cs, SegmentName::Ss, SegmentName::Ds, SegmentName::Fs, SegmentName::Gs];
const WIDTHS: [AccessBytes; 3] = [AccessBytes::One, AccessBytes::Two, AccessBytes::Four];
/// Ports that something decodes, with one that nothing does.
const PORTS: [u16; 32] = [
    0x20, 0x21, 0xa0, 0xa1, 0x40, 0x41, 0x42, 0x43, 0x61, 0x64, 0x70, 0x71, 0x80, 0x92, 0x3f8, 0x3f9, 0x3fa,
    0x3fb, 0x3fc, 0x3fd, 0x4d0, 0x4d1, 0x600, 0x602, 0x604, 0x608, 0xcf8, 0xcf9, 0xcfc, 0xc200, 0xc300,
    0xffff,
];
const MSRS: [u32; 20] = [
    0x10,
    0x1b,
    0x3b,
    0x8b,
    0xfe,
    0x1a0,
    0x200,
    0x201,
    0x250,
    0x277,
    0x2ff,
    0x6e0,
    0x4b56_4d00,
    0x4b56_4d01,
    0xc000_0080,
    0xc001_0015,
    0xc001_1029,
    0xc001_0114,
    0x17,
    0xffff_ffff,
];

fn exit(input: &mut Input) -> Exit {
    let length = input.byte() % 15 + 1;
    match input.byte() % 20 {
        0..=4 => {
            let port = if input.one_in(4) { input.number(2) as u16 } else { input.choice(&PORTS) };
            let bytes = input.choice(&WIDTHS);
            let direction = if input.one_in(2) {
                IoDirection::In
            } else {
                IoDirection::Out { value: (input.value() & bytes.mask()) as u32 }
            };
            let string = input.one_in(8).then(|| StringIo {
                repeat: input.one_in(2),
                address_bytes: input.choice(&[AccessBytes::Two, AccessBytes::Four, AccessBytes::Eight]),
                segment: input.choice(&SEGMENTS),
            });
            Exit::Io(IoExit { port, bytes, direction, string, length })
        }
        5 => Exit::Cpuid { length },
        6 | 7 => Exit::MsrRead { index: msr(input), length },
        8 | 9 => Exit::MsrWrite { index: msr(input), value: input.value(), length },
        10 => Exit::Hlt { length },
        11 | 12 => {
            let access =
                input.choice(&[MmioAccess::Read, MmioAccess::Write, MmioAccess::Read, MmioAccess::Fetch]);
            Exit::Mmio { gpa: GuestPhysAddr::new(input.value()), access }
        }
        13 => Exit::Xsetbv { index: u32::from(input.byte() & 1), value: input.value(), length },
        14 => Exit::TaskPriority { value: input.value(), length },
        15 => Exit::Hypercall { length },
        16 => Exit::Refused { answer: Injection::undefined_opcode() },
        17 => Exit::InterruptWindow,
        18 => input.choice(&[Exit::HostInterrupt, Exit::Pause { length }, Exit::CacheFlush { length }]),
        _ => input.choice(&[
            Exit::Reflected { vector: 1 },
            Exit::Shutdown,
            Exit::Invalid { reason: InvalidState::EntryRefused },
            Exit::Other { code: u64::MAX, info1: 0, info2: 0 },
        ]),
    }
}

fn msr(input: &mut Input) -> u32 {
    match input.byte() % 4 {
        0 => input.number(4) as u32,
        1 => 0x800 | u32::from(input.byte() & 0x3f),
        _ => input.choice(&MSRS),
    }
}

fn change_registers(input: &mut Input, vcpu: &mut FakeVcpu) {
    match input.byte() % 10 {
        0..=2 => vcpu.gprs[Gpr::from_encoding(input.byte())] = input.value(),
        3 => vcpu.rflags = input.value() | 2,
        4 => {
            let count = usize::from(input.byte() % 16);
            vcpu.instruction = (0..count).map(|_| input.byte()).collect();
        }
        5 => {
            let segment = Segment {
                selector: input.number(2) as u16,
                attributes: SegmentAttributes(input.number(2) as u16),
                limit_bytes: input.number(4) as u32,
                base: input.value(),
            };
            match input.byte() % 6 {
                0 => vcpu.system.es = segment,
                1 => vcpu.system.cs = segment,
                2 => vcpu.system.ss = segment,
                3 => vcpu.system.ds = segment,
                4 => vcpu.system.fs = segment,
                _ => vcpu.system.gs = segment,
            }
        }
        6 => vcpu.long_mode(input.number(2) & 0x3000),
        7 => {
            vcpu.system.cr0 = input.value();
            vcpu.system.cr3 = input.value();
            vcpu.system.cr4 = input.value();
            vcpu.system.efer = input.value();
            vcpu.privilege_level = input.byte() & 3;
        }
        8 => {
            vcpu.shadow = input.byte() & 1 != 0;
            vcpu.nmi_in_service = input.byte() & 1 != 0;
        }
        _ => vcpu.rip = input.value(),
    }
}

/// What an entry promises.
fn check_entry(cpu: &mut Cpu, vcpu: &mut FakeVcpu, board: &RefCell<Board>, now_ns: u64) {
    let (takes_interrupt, takes_nmi) = (vcpu.accepts_interrupt(), vcpu.accepts_nmi());
    match cpu.before_entry(vcpu, board, now_ns) {
        Next::Enter(entry) => match entry.inject.map(|injection| injection.kind) {
            // A start-up IPI may have changed what is accepted; then nothing is injected.
            Some(InjectionKind::ExternalInterrupt) => assert!(takes_interrupt),
            Some(InjectionKind::Nmi) => assert!(takes_nmi),
            Some(InjectionKind::Exception { .. }) | None => {}
        },
        Next::Sleep { .. } => {}
    }
    let deadline_ns = match cpu.before_entry(vcpu, board, now_ns) {
        Next::Enter(entry) => entry.deadline_ns,
        Next::Sleep { until_ns } => until_ns,
    };
    assert!(deadline_ns.is_none_or(|deadline_ns| deadline_ns > now_ns), "a timer owes an edge for ever");
}

fn answer(
    cpu: &mut Cpu,
    vcpu: &mut FakeVcpu,
    ram: &VecRam,
    board: &RefCell<Board>,
    exit: Exit,
    now_ns: u64,
) -> Action {
    let (rip, long) = (vcpu.rip, vcpu.code_bits() == crate::backend::CodeBits::SixtyFour);
    let action = cpu.handle(vcpu, ram, board, exit, now_ns);
    let moved = vcpu.rip.wrapping_sub(rip);
    let moved = if long { moved } else { moved & 0xffff_ffff };
    assert!(moved <= 15, "RIP moved by {moved}");
    action
}

/// One run, from one input.
pub fn one_input(data: &[u8]) {
    let mut input = Input(data);
    let bus = Arc::new(ApicBus::new(CPUS, Box::new(Quiet)));
    let level = Arc::new(AtomicBool::new(false));
    let mut now_ns = 1_000_000;
    let mut board = Board::new(bus.clone(), Box::new(Quiet), input.number(8), now_ns);
    let identity = Identity { virtio_type: 1, config_bytes: 64, queues: 3 };
    assert!(board.pci.add(identity, Box::new(Toggle(level.clone()))).is_ok());
    let board = RefCell::new(board);
    let ram = VecRam::new(RAM_BYTES);
    let config = GuestConfig { cpus: CPUS, tsc_hz: TSC_HZ, unix_at_zero_ns: input.number(8) };
    let mut cpus: Vec<_> =
        (0..CPUS).map(|index| (Cpu::new(index, config, bus.clone()), FakeVcpu::default())).collect();
    while !input.0.is_empty() {
        let index = usize::from(input.byte()) % CPUS;
        let (cpu, vcpu) = &mut cpus[index];
        match input.byte() % 16 {
            0..=7 => {
                let exit = exit(&mut input);
                let _ = answer(cpu, vcpu, &ram, &board, exit, now_ns);
            }
            8..=10 => change_registers(&mut input, vcpu),
            11 => {
                let (address, value) = (GuestPhysAddr::new(input.number(2) & 0x3fff), input.value());
                let _ = ram.write_u64(address, value);
            }
            12 | 13 => check_entry(cpu, vcpu, &board, now_ns),
            14 => {
                let step_ns = input.value() >> (input.byte() % 64);
                now_ns = now_ns.saturating_add(step_ns).min(u64::MAX / 4);
                let tsc = crate::time::scale(step_ns, TSC_HZ, 1_000_000_000);
                cpus.iter_mut().for_each(|(_, vcpu)| vcpu.tsc = vcpu.tsc.wrapping_add(tsc));
            }
            _ => match input.byte() % 3 {
                0 => level.store(input.byte() & 1 != 0, Ordering::Relaxed),
                1 => drop(board.borrow_mut().push_console_input(&[input.byte()])),
                _ => board.borrow_mut().press_power_button(),
            },
        }
    }
    for (cpu, vcpu) in &mut cpus {
        check_entry(cpu, vcpu, &board, now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generator that needs no crate and gives the same inputs everywhere (xorshift64*).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }
    }

    fn run(inputs: u64, seed: u64) {
        let mut random = Random(seed | 1);
        let mut data = Vec::new();
        for _ in 0..inputs {
            let bytes = random.next() as usize % 400;
            data.clear();
            data.extend((0..bytes).map(|_| (random.next() >> 32) as u8));
            one_input(&data);
        }
    }

    /// About 20 steps an input. `cargo xtask fuzz machine` sets the number of cases, and then the
    /// inputs are new ones each time.
    #[test]
    fn nothing_shakes_the_machine() {
        use core::hash::{BuildHasher, Hasher};
        extern crate std;
        let cases = std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse::<u64>().ok());
        let (inputs, seed) = match cases {
            Some(cases) => (cases.saturating_mul(10), std::hash::RandomState::new().build_hasher().finish()),
            None => (5_000, 0x6e6f_735f_6876),
        };
        std::println!("seed {seed:#x}");
        run(inputs, seed);
    }
}
