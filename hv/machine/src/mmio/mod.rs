//! Accesses to guest-physical memory where a device is, or nothing.
//!
//! The processor reports an address and leaves the instruction to us. A library decodes it
//! (iced-x86, kept small by its features); what it means is [`emulate`]'s, and where its bytes go
//! is [`memory`]'s, by the guest's own page tables. Few instructions come here: a guest in x2APIC
//! mode only programs its I/O APIC this way.
//!
//! The instruction may have been exchanged by another CPU since it faulted. Nothing that was
//! checked by the processor is therefore taken for granted: the walk checks again, and an
//! operand that turns out to be RAM is accessed as RAM.

mod arithmetic;
mod emulate;
pub(crate) mod memory;
pub(crate) mod strings;

use iced_x86::{Decoder, DecoderOptions, Instruction};
use virtio_device::{GuestPhysAddr, GuestRam};

use crate::apic::{ioapic, local};
use crate::backend::{Injection, MmioAccess, Vcpu};
use crate::chipset::BoardLock;
use crate::cpu::{Action, Cpu, StopReason};

/// Everything that an emulated instruction may touch.
pub(crate) struct Context<'a, B> {
    pub cpu: &'a mut Cpu,
    pub vcpu: &'a mut dyn Vcpu,
    pub ram: &'a dyn GuestRam,
    pub board: &'a B,
    pub now_ns: u64,
}

/// Why an instruction was not carried out (to its end).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The guest earns this exception; a page fault's address is in CR2 already.
    Fault(Injection),
    /// Nothing that a guest does to device registers.
    Unsupported,
}

/// How an instruction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done,
    /// A repeated instruction that goes on at the next entry.
    More,
}

/// Answers [`crate::backend::Exit::Mmio`].
pub(crate) fn access<B: BoardLock>(
    cpu: &mut Cpu,
    vcpu: &mut dyn Vcpu,
    ram: &dyn GuestRam,
    board: &B,
    gpa: GuestPhysAddr,
    access: MmioAccess,
    now_ns: u64,
) -> Action {
    if access == MmioAccess::Fetch {
        return Action::Stop(StopReason::FetchOutsideRam { address: gpa.as_u64() });
    }
    let bytes = vcpu.instruction();
    if bytes.as_slice().is_empty() {
        // The page went away under the instruction: let the processor find that out.
        return Action::Continue;
    }
    let mut instruction = Instruction::default();
    let bits = vcpu.code_bits().bits();
    Decoder::with_ip(bits, bytes.as_slice(), vcpu.rip(), DecoderOptions::NONE).decode_out(&mut instruction);
    let mut context = Context { cpu, vcpu, ram, board, now_ns };
    match emulate::execute(&mut context, &instruction) {
        Ok(Progress::Done) => context.vcpu.advance_rip(instruction.len() as u8),
        Ok(Progress::More) => {}
        Err(Failure::Fault(exception)) => context.cpu.raise(exception),
        Err(Failure::Unsupported) => {
            context.cpu.counters.undecoded_mmio += 1;
            context.cpu.raise(Injection::undefined_opcode());
        }
    }
    Action::Continue
}

impl<B: BoardLock> Context<'_, B> {
    /// Reads `bytes` (1, 2, 4 or 8, within one page) of a device.
    pub(crate) fn read_device(&mut self, gpa: u64, bytes: usize) -> u64 {
        if let Some(window) = self.cpu.apic.window()
            && gpa & !(local::WINDOW_BYTES - 1) == window
        {
            return self.read_words(gpa, bytes, |context, offset| {
                let clock = context.cpu.clock_now(context.vcpu, context.now_ns);
                let aligned = offset & 0xf == 0;
                if aligned { context.cpu.apic.read_page((offset >> 4) as u8, &clock) } else { 0 }
            });
        }
        if gpa & !(ioapic::WINDOW_BYTES - 1) == ioapic::BASE {
            return self.read_words(gpa, bytes, |context, offset| {
                context.board.with(|board| board.read_ioapic(offset))
            });
        }
        self.unclaimed(gpa);
        u64::MAX
    }

    /// Writes `bytes` (1, 2, 4 or 8, within one page) of a device.
    pub(crate) fn write_device(&mut self, gpa: u64, bytes: usize, value: u64) {
        let word = (value & 0xffff_ffff) as u32;
        if let Some(window) = self.cpu.apic.window()
            && gpa & !(local::WINDOW_BYTES - 1) == window
        {
            // Registers are 32 bits wide and 16 bytes apart; other writes are undefined (SDM
            // vol. 3 sec. 11.4.1) and have no effect here.
            if gpa & 0xf == 0 && bytes >= 4 {
                let clock = self.cpu.clock_now(self.vcpu, self.now_ns);
                let number = ((gpa & 0xfff) >> 4) as u8;
                let effect = self.cpu.apic.write_page(number, word, &self.cpu.bus, &clock);
                self.cpu.apply(self.vcpu, self.board, effect);
            }
            return;
        }
        if gpa & !(ioapic::WINDOW_BYTES - 1) == ioapic::BASE {
            // The index register is a byte, and may be written as one.
            if bytes >= 4 || gpa & 0xfff == 0 {
                let sender = Some(self.cpu.index);
                self.board.with(|board| board.write_ioapic(gpa & 0xfff, word, sender));
            }
            return;
        }
        self.unclaimed(gpa);
    }

    /// Puts a read together from the aligned 32-bit words that it touches.
    fn read_words(&mut self, gpa: u64, bytes: usize, mut read: impl FnMut(&mut Self, u64) -> u32) -> u64 {
        let offset = gpa & 0xfff;
        let first = offset & !3;
        let mut words = [0u8; 16];
        let mut at = first;
        while at < offset + bytes as u64 && at - first < 16 {
            let index = (at - first) as usize;
            words[index..index + 4].copy_from_slice(&read(self, at).to_le_bytes());
            at += 4;
        }
        let start = (offset - first) as usize;
        let mut value = [0; 8];
        let bytes = bytes.min(8);
        value[..bytes].copy_from_slice(&words[start..start + bytes]);
        u64::from_le_bytes(value)
    }

    fn unclaimed(&mut self, gpa: u64) {
        self.cpu.counters.unclaimed_mmio += 1;
        self.cpu.counters.last_unclaimed_mmio = gpa;
    }
}

#[cfg(test)]
#[path = "mmio_tests.rs"]
mod tests;
