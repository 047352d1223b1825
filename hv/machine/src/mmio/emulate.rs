//! What a decoded instruction does: the moves and integer operations that compilers emit for
//! device registers, and string moves. Anything else is refused.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use super::arithmetic::{self, Operation, apply};
use super::{Context, Failure, Progress, strings};
use crate::backend::{AccessBytes, CodeBits, Gpr, SegmentName};
use crate::chipset::BoardLock;
use crate::registers::merge;

/// A general-purpose register, or the part of one that an operand names.
#[derive(Clone, Copy)]
struct Part {
    gpr: Gpr,
    width: AccessBytes,
    /// AH, CH, DH or BH.
    high_byte: bool,
}

pub(super) fn width_of(bytes: usize) -> Option<AccessBytes> {
    Some(match bytes {
        1 => AccessBytes::One,
        2 => AccessBytes::Two,
        4 => AccessBytes::Four,
        8 => AccessBytes::Eight,
        _ => return None,
    })
}

fn part_of(register: Register) -> Option<Part> {
    if !register.is_gpr() {
        return None;
    }
    // The 64-bit names stand in encoding order.
    let number = (register.full_register() as usize).checked_sub(Register::RAX as usize)?;
    Some(Part {
        gpr: Gpr::from_encoding(number as u8),
        width: width_of(register.size())?,
        high_byte: matches!(register, Register::AH | Register::CH | Register::DH | Register::BH),
    })
}

pub(super) fn segment_of(register: Register) -> SegmentName {
    match register {
        Register::ES => SegmentName::Es,
        Register::CS => SegmentName::Cs,
        Register::SS => SegmentName::Ss,
        Register::FS => SegmentName::Fs,
        Register::GS => SegmentName::Gs,
        _ => SegmentName::Ds,
    }
}

impl<B: BoardLock> Context<'_, B> {
    fn read_part(&self, part: Part) -> u64 {
        let value = self.vcpu.gpr(part.gpr);
        let value = if part.high_byte { value >> 8 } else { value };
        value & part.width.mask()
    }

    fn write_part(&mut self, part: Part, value: u64) {
        let old = self.vcpu.gpr(part.gpr);
        let new =
            if part.high_byte { old & !0xff00 | (value & 0xff) << 8 } else { merge(old, value, part.width) };
        self.vcpu.set_gpr(part.gpr, new);
    }

    /// The linear address of the memory operand.
    fn operand_address(&self, instruction: &Instruction, operand: u32) -> Result<u64, Failure> {
        let address = instruction.virtual_address(operand, 0, |register, _, _| {
            if register.is_segment_register() {
                // `linear` knows which bases count in which mode; asked for offset 0.
                return Some(self.linear(segment_of(register), 0));
            }
            let value = self.vcpu.gpr(part_of(register)?.gpr);
            Some(match register.size() {
                2 => value & 0xffff,
                4 => value & 0xffff_ffff,
                _ => value,
            })
        });
        let address = address.ok_or(Failure::Unsupported)?;
        let wraps = self.vcpu.code_bits() != CodeBits::SixtyFour;
        Ok(if wraps { address & 0xffff_ffff } else { address })
    }

    /// The value of operand `operand`, whose width in memory is `width`.
    fn load(&mut self, instruction: &Instruction, operand: u32, width: AccessBytes) -> Result<u64, Failure> {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let part = part_of(instruction.op_register(operand)).ok_or(Failure::Unsupported)?;
                Ok(self.read_part(part))
            }
            OpKind::Memory => {
                let address = self.operand_address(instruction, operand)?;
                self.read_linear(address, width.count())
            }
            _ => instruction.try_immediate(operand).map_err(|_| Failure::Unsupported),
        }
    }

    fn store(
        &mut self,
        instruction: &Instruction,
        operand: u32,
        width: AccessBytes,
        value: u64,
    ) -> Result<(), Failure> {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let part = part_of(instruction.op_register(operand)).ok_or(Failure::Unsupported)?;
                self.write_part(part, value);
                Ok(())
            }
            OpKind::Memory => {
                let address = self.operand_address(instruction, operand)?;
                self.write_linear(address, width.count(), value)
            }
            _ => Err(Failure::Unsupported),
        }
    }
}

/// Sign-extends a value of `width`.
fn sign_extend(value: u64, width: AccessBytes) -> u64 {
    let shift = 64 - 8 * width.count() as u32;
    ((value << shift).cast_signed() >> shift).cast_unsigned()
}

/// Carries out one instruction.
pub(super) fn execute<B: BoardLock>(
    context: &mut Context<B>,
    instruction: &Instruction,
) -> Result<Progress, Failure> {
    if instruction.code() == Code::INVALID {
        return Err(Failure::Unsupported);
    }
    if instruction.is_string_instruction() {
        return strings::execute(context, instruction);
    }
    let width = width_of(instruction.memory_size().size()).ok_or(Failure::Unsupported)?;
    match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Movnti | Mnemonic::Movzx => {
            let value = context.load(instruction, 1, width)?;
            context.store(instruction, 0, width, value)?;
        }
        Mnemonic::Movsx | Mnemonic::Movsxd => {
            let value = context.load(instruction, 1, width)?;
            context.store(instruction, 0, width, sign_extend(value, width))?;
        }
        Mnemonic::Cmp => compare(context, instruction, Operation::Subtract, width)?,
        Mnemonic::Test => compare(context, instruction, Operation::And, width)?,
        Mnemonic::And => modify(context, instruction, Operation::And, width)?,
        Mnemonic::Or => modify(context, instruction, Operation::Or, width)?,
        Mnemonic::Xor => modify(context, instruction, Operation::Xor, width)?,
        Mnemonic::Add => modify(context, instruction, Operation::Add, width)?,
        Mnemonic::Adc => modify(context, instruction, Operation::AddWithCarry, width)?,
        Mnemonic::Sub => modify(context, instruction, Operation::Subtract, width)?,
        Mnemonic::Sbb => modify(context, instruction, Operation::SubtractWithBorrow, width)?,
        Mnemonic::Inc => step(context, instruction, Operation::Add, width)?,
        Mnemonic::Dec => step(context, instruction, Operation::Subtract, width)?,
        Mnemonic::Not => {
            let value = context.load(instruction, 0, width)?;
            context.store(instruction, 0, width, !value)?;
        }
        Mnemonic::Neg => {
            let value = context.load(instruction, 0, width)?;
            let (result, flags) = apply(Operation::Subtract, 0, value, width, context.vcpu.rflags());
            context.store(instruction, 0, width, result)?;
            context.vcpu.set_rflags(flags);
        }
        Mnemonic::Xchg => {
            let (first, second) =
                (context.load(instruction, 0, width)?, context.load(instruction, 1, width)?);
            // Memory first: it may fault, and then the register must be as it was.
            let memory = if instruction.op0_kind() == OpKind::Memory { 0 } else { 1 };
            let (to_memory, to_register) = if memory == 0 { (second, first) } else { (first, second) };
            context.store(instruction, memory, width, to_memory)?;
            context.store(instruction, 1 - memory, width, to_register)?;
        }
        Mnemonic::Cmpxchg => compare_exchange(context, instruction, width)?,
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc => {
            bit(context, instruction, width)?;
        }
        _ => return Err(Failure::Unsupported),
    }
    Ok(Progress::Done)
}

fn compare<B: BoardLock>(
    context: &mut Context<B>,
    instruction: &Instruction,
    operation: Operation,
    width: AccessBytes,
) -> Result<(), Failure> {
    let (left, right) = (context.load(instruction, 0, width)?, context.load(instruction, 1, width)?);
    let (_, flags) = apply(operation, left, right, width, context.vcpu.rflags());
    context.vcpu.set_rflags(flags);
    Ok(())
}

fn modify<B: BoardLock>(
    context: &mut Context<B>,
    instruction: &Instruction,
    operation: Operation,
    width: AccessBytes,
) -> Result<(), Failure> {
    let (left, right) = (context.load(instruction, 0, width)?, context.load(instruction, 1, width)?);
    let (result, flags) = apply(operation, left, right, width, context.vcpu.rflags());
    context.store(instruction, 0, width, result)?;
    context.vcpu.set_rflags(flags);
    Ok(())
}

/// INC and DEC.
fn step<B: BoardLock>(
    context: &mut Context<B>,
    instruction: &Instruction,
    operation: Operation,
    width: AccessBytes,
) -> Result<(), Failure> {
    let value = context.load(instruction, 0, width)?;
    let before = context.vcpu.rflags();
    let (result, after) = apply(operation, value, 1, width, before);
    context.store(instruction, 0, width, result)?;
    context.vcpu.set_rflags(arithmetic::keep_carry(before, after));
    Ok(())
}

fn compare_exchange<B: BoardLock>(
    context: &mut Context<B>,
    instruction: &Instruction,
    width: AccessBytes,
) -> Result<(), Failure> {
    let found = context.load(instruction, 0, width)?;
    let rax = context.vcpu.gpr(Gpr::RAX);
    let (_, flags) = apply(Operation::Subtract, rax, found, width, context.vcpu.rflags());
    if arithmetic::is_zero(flags) {
        let new = context.load(instruction, 1, width)?;
        context.store(instruction, 0, width, new)?;
    } else {
        // The old value is written back (APM vol. 3, CMPXCHG), so that it faults either way.
        context.store(instruction, 0, width, found)?;
        context.vcpu.set_gpr(Gpr::RAX, merge(rax, found, width));
    }
    context.vcpu.set_rflags(flags);
    Ok(())
}

/// BT, BTS, BTR, BTC with an immediate. With a register the bit may lie far from the operand,
/// and nobody addresses device registers so.
fn bit<B: BoardLock>(
    context: &mut Context<B>,
    instruction: &Instruction,
    width: AccessBytes,
) -> Result<(), Failure> {
    if instruction.op1_kind() != OpKind::Immediate8 {
        return Err(Failure::Unsupported);
    }
    let bit = 1u64 << (u32::from(instruction.immediate8()) % (8 * width.count() as u32));
    let value = context.load(instruction, 0, width)?;
    let changed = match instruction.mnemonic() {
        Mnemonic::Bts => value | bit,
        Mnemonic::Btr => value & !bit,
        Mnemonic::Btc => value ^ bit,
        _ => value,
    };
    if instruction.mnemonic() != Mnemonic::Bt {
        context.store(instruction, 0, width, changed)?;
    }
    let flags = arithmetic::with_carry(context.vcpu.rflags(), value & bit != 0);
    context.vcpu.set_rflags(flags);
    Ok(())
}
