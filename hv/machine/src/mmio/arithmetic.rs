//! Results and flags of the integer instructions (APM vol. 1 sec. 3.1.4, vol. 3).

use crate::backend::AccessBytes;

const CARRY: u64 = 1 << 0;
const PARITY: u64 = 1 << 2;
const ADJUST: u64 = 1 << 4;
const ZERO: u64 = 1 << 6;
const SIGN: u64 = 1 << 7;
const OVERFLOW: u64 = 1 << 11;
const STATUS: u64 = CARRY | PARITY | ADJUST | ZERO | SIGN | OVERFLOW;

/// Two-operand operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    And,
    Or,
    Xor,
    Add,
    AddWithCarry,
    Subtract,
    SubtractWithBorrow,
}

/// The result of `left op right`, cut to the width, and the flags after it.
pub(super) fn apply(
    operation: Operation,
    left: u64,
    right: u64,
    width: AccessBytes,
    flags: u64,
) -> (u64, u64) {
    let mask = width.mask();
    let sign = mask ^ mask >> 1;
    let (left, right) = (left & mask, right & mask);
    let carry_in = flags & CARRY;
    let (result, carry, overflow, adjust) = match operation {
        Operation::And => (left & right, false, false, false),
        Operation::Or => (left | right, false, false, false),
        Operation::Xor => (left ^ right, false, false, false),
        Operation::Add | Operation::AddWithCarry => {
            let carry_in = if operation == Operation::Add { 0 } else { carry_in };
            let wide = u128::from(left) + u128::from(right) + u128::from(carry_in);
            let result = (wide as u64) & mask;
            let overflow = (left ^ result) & (right ^ result) & sign != 0;
            (result, wide > u128::from(mask), overflow, (left ^ right ^ result) & 0x10 != 0)
        }
        Operation::Subtract | Operation::SubtractWithBorrow => {
            let borrow_in = if operation == Operation::Subtract { 0 } else { carry_in };
            let result = left.wrapping_sub(right).wrapping_sub(borrow_in) & mask;
            let borrow = u128::from(left) < u128::from(right) + u128::from(borrow_in);
            let overflow = (left ^ right) & (left ^ result) & sign != 0;
            (result, borrow, overflow, (left ^ right ^ result) & 0x10 != 0)
        }
    };
    let mut after = flags & !STATUS;
    for (set, flag) in [
        (carry, CARRY),
        ((result as u8).count_ones().is_multiple_of(2), PARITY),
        (adjust, ADJUST),
        (result == 0, ZERO),
        (result & sign != 0, SIGN),
        (overflow, OVERFLOW),
    ] {
        after |= if set { flag } else { 0 };
    }
    (result, after)
}

/// INC and DEC leave the carry alone.
pub(super) fn keep_carry(before: u64, after: u64) -> u64 {
    after & !CARRY | before & CARRY
}

/// BT and its kin: the carry is the old bit, the rest stays.
pub(super) fn with_carry(flags: u64, carry: bool) -> u64 {
    flags & !CARRY | if carry { CARRY } else { 0 }
}

pub(super) fn is_zero(flags: u64) -> bool {
    flags & ZERO != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_known_sums() {
        use AccessBytes::{Four, One};
        let (result, flags) = apply(Operation::Add, 0x7f, 1, One, 0);
        assert_eq!((result, flags), (0x80, SIGN | OVERFLOW | ADJUST));
        let (result, flags) = apply(Operation::Add, 0xff, 1, One, 0);
        assert_eq!((result, flags), (0, CARRY | ZERO | PARITY | ADJUST));
        let (result, flags) = apply(Operation::Subtract, 0, 1, Four, 0);
        assert_eq!((result, flags), (0xffff_ffff, CARRY | SIGN | PARITY | ADJUST));
        let (result, flags) = apply(Operation::SubtractWithBorrow, 5, 4, Four, CARRY);
        assert_eq!((result, flags), (0, ZERO | PARITY));
        let (_, flags) = apply(Operation::And, 0xf0, 0x0f, One, STATUS);
        assert_eq!(flags, ZERO | PARITY);
    }

    /// Against the processor that the tests run on.
    #[test]
    fn additions_agree_with_wide_arithmetic() {
        for left in 0..=255u64 {
            for right in 0..=255u64 {
                let (sum, flags) = apply(Operation::Add, left, right, AccessBytes::One, 0);
                let (expected, carry) = (left as u8).overflowing_add(right as u8);
                let overflow = (left as u8 as i8).checked_add(right as u8 as i8).is_none();
                assert_eq!(sum, u64::from(expected));
                assert_eq!((flags & CARRY != 0, flags & OVERFLOW != 0), (carry, overflow));
                let (difference, flags) = apply(Operation::Subtract, left, right, AccessBytes::One, 0);
                let (expected, borrow) = (left as u8).overflowing_sub(right as u8);
                let overflow = (left as u8 as i8).checked_sub(right as u8 as i8).is_none();
                assert_eq!(difference, u64::from(expected));
                assert_eq!((flags & CARRY != 0, flags & OVERFLOW != 0), (borrow, overflow));
            }
        }
    }
}
