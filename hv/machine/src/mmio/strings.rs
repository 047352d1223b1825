//! MOVS, STOS and LODS on device memory, alone and repeated.
//!
//! A repeated instruction is carried out for a bounded number of elements at a time; between
//! two portions RCX, RSI and RDI say how far it is, and interrupts are taken, as on a processor.

use iced_x86::{Instruction, Mnemonic, OpKind};

use super::emulate::{segment_of, width_of};
use super::{Context, Failure, Progress};
use crate::backend::{AccessBytes, Gpr, SegmentName};
use crate::chipset::BoardLock;
use crate::registers::merge;

/// Elements of one portion.
pub(crate) const PORTION: u64 = 256;
const DIRECTION: u64 = 1 << 10;

/// Width of the index registers, from the kind of a string operand.
fn address_width(kind: OpKind) -> Option<AccessBytes> {
    Some(match kind {
        OpKind::MemorySegSI | OpKind::MemoryESDI => AccessBytes::Two,
        OpKind::MemorySegESI | OpKind::MemoryESEDI => AccessBytes::Four,
        OpKind::MemorySegRSI | OpKind::MemoryESRDI => AccessBytes::Eight,
        _ => return None,
    })
}

impl<B: BoardLock> Context<'_, B> {
    /// How many elements are left to do: RCX if repeated, else one.
    pub(crate) fn repetitions(&self, repeat: bool, address: AccessBytes) -> u64 {
        if repeat { self.vcpu.gpr(Gpr::RCX) & address.mask() } else { 1 }
    }

    /// An element is done: counts RCX down.
    pub(crate) fn count_down(&mut self, repeat: bool, address: AccessBytes) {
        if repeat {
            let rcx = self.vcpu.gpr(Gpr::RCX);
            self.vcpu.set_gpr(Gpr::RCX, merge(rcx, rcx.wrapping_sub(1), address));
        }
    }

    /// Moves an index register one element on, up or down by the direction flag.
    pub(crate) fn step_index(&mut self, register: Gpr, bytes: usize, address: AccessBytes) {
        let old = self.vcpu.gpr(register);
        let down = self.vcpu.rflags() & DIRECTION != 0;
        let step = bytes as u64;
        let new = if down { old.wrapping_sub(step) } else { old.wrapping_add(step) };
        self.vcpu.set_gpr(register, merge(old, new, address));
    }

    /// The linear address that an index register names.
    pub(crate) fn index_linear(&self, segment: SegmentName, register: Gpr, address: AccessBytes) -> u64 {
        self.linear(segment, self.vcpu.gpr(register) & address.mask())
    }
}

pub(super) fn execute<B: BoardLock>(
    context: &mut Context<B>,
    instruction: &Instruction,
) -> Result<Progress, Failure> {
    let width = width_of(instruction.memory_size().size()).ok_or(Failure::Unsupported)?;
    let kinds = [instruction.op0_kind(), instruction.op1_kind()];
    let address = kinds.into_iter().find_map(address_width).ok_or(Failure::Unsupported)?;
    let source = segment_of(instruction.memory_segment());
    let repeat = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let bytes = width.count();

    let total = context.repetitions(repeat, address);
    for _ in 0..total.min(PORTION) {
        match instruction.mnemonic() {
            Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq => {
                let from = context.index_linear(source, Gpr::RSI, address);
                let to = context.index_linear(SegmentName::Es, Gpr::RDI, address);
                let value = context.read_linear(from, bytes)?;
                context.write_linear(to, bytes, value)?;
                context.step_index(Gpr::RSI, bytes, address);
                context.step_index(Gpr::RDI, bytes, address);
            }
            Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => {
                let to = context.index_linear(SegmentName::Es, Gpr::RDI, address);
                context.write_linear(to, bytes, context.vcpu.gpr(Gpr::RAX))?;
                context.step_index(Gpr::RDI, bytes, address);
            }
            Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq => {
                let from = context.index_linear(source, Gpr::RSI, address);
                let value = context.read_linear(from, bytes)?;
                let rax = context.vcpu.gpr(Gpr::RAX);
                context.vcpu.set_gpr(Gpr::RAX, merge(rax, value, width));
                context.step_index(Gpr::RSI, bytes, address);
            }
            _ => return Err(Failure::Unsupported),
        }
        context.count_down(repeat, address);
    }
    Ok(if total > PORTION { Progress::More } else { Progress::Done })
}
