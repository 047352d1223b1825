//! Small arithmetic of registers: partial writes, start-up state.

use crate::backend::{AccessBytes, Segment, SystemState};

/// A register after `value` of a width was written to it: 32-bit results clear the upper half,
/// narrower ones leave the rest (APM vol. 1 sec. 3.1.2).
pub fn merge(old: u64, value: u64, bytes: AccessBytes) -> u64 {
    let mask = bytes.mask();
    match bytes {
        AccessBytes::Four | AccessBytes::Eight => value & mask,
        AccessBytes::One | AccessBytes::Two => old & !mask | value & mask,
    }
}

/// The state in which a start-up IPI with `vector` starts a CPU.
pub fn start_up(vector: u8) -> SystemState {
    let reset = SystemState::RESET;
    SystemState {
        cs: Segment { selector: u16::from(vector) << 8, base: u64::from(vector) << 12, ..reset.cs },
        ..reset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_writes_follow_the_architecture() {
        let old = 0x1122_3344_5566_7788;
        assert_eq!(merge(old, 0xaabb, AccessBytes::One), 0x1122_3344_5566_77bb);
        assert_eq!(merge(old, 0xaabb, AccessBytes::Two), 0x1122_3344_5566_aabb);
        assert_eq!(merge(old, 0xaabb, AccessBytes::Four), 0xaabb);
        assert_eq!(merge(old, 0xaabb, AccessBytes::Eight), 0xaabb);
    }
}
