//! Model-specific registers: what each reads as, and what a write to it means.
//!
//! Registers that the processor exchanges with the guest's state (SYSENTER, STAR, LSTAR, FS and
//! GS bases) never come here: the backend passes them. The rest is a table: a register that is
//! not in it does not exist, and an access earns #GP, as the CPUID that the guest was shown says.
//! Such accesses are counted with the last index, since Linux tries some registers that only
//! exist on real parts and goes on when they fail.
//!
//! AMD registers: BIOS and Kernel Developer's Guides and Processor Programming References (the
//! family 17h PPR where not said otherwise). MTRRs: SDM vol. 3 sec. 12.11. KVM's clock: Linux
//! Documentation/virt/kvm/x86/msr.rst.

/// Index numbers, named as the manuals name them.
pub mod index {
    pub const TSC: u32 = 0x10;
    pub const PLATFORM_ID: u32 = 0x17;
    pub const APIC_BASE: u32 = 0x1b;
    pub const TSC_ADJUST: u32 = 0x3b;
    pub const UPDATE_TRIGGER: u32 = 0x79;
    pub const UPDATE_SIGNATURE: u32 = 0x8b;
    pub const MTRR_CAP: u32 = 0xfe;
    pub const MCG_CAP: u32 = 0x179;
    pub const MCG_STATUS: u32 = 0x17a;
    pub const MCG_CTL: u32 = 0x17b;
    pub const MISC_ENABLE: u32 = 0x1a0;
    pub const DEBUG_CTL: u32 = 0x1d9;
    pub const LAST_BRANCH_FROM: u32 = 0x1db;
    pub const LAST_INTERRUPT_TO: u32 = 0x1de;
    pub const MTRR_PHYS_FIRST: u32 = 0x200;
    pub const MTRR_PHYS_LAST: u32 = 0x20f;
    pub const MTRR_FIX_64K: u32 = 0x250;
    pub const MTRR_FIX_16K_80000: u32 = 0x258;
    pub const MTRR_FIX_16K_A0000: u32 = 0x259;
    pub const MTRR_FIX_4K_FIRST: u32 = 0x268;
    pub const MTRR_FIX_4K_LAST: u32 = 0x26f;
    pub const PAT: u32 = 0x277;
    pub const MTRR_DEF_TYPE: u32 = 0x2ff;
    pub const TSC_DEADLINE: u32 = 0x6e0;
    pub const X2APIC_FIRST: u32 = 0x800;
    pub const X2APIC_LAST: u32 = 0x8ff;
    pub const KVM_WALL_CLOCK: u32 = 0x4b56_4d00;
    pub const KVM_SYSTEM_TIME: u32 = 0x4b56_4d01;
    pub const EFER: u32 = 0xc000_0080;
    pub const SYS_CFG: u32 = 0xc001_0010;
    pub const HARDWARE_CONFIGURATION: u32 = 0xc001_0015;
    pub const IO_RANGE_FIRST: u32 = 0xc001_0016;
    pub const TOP_MEM: u32 = 0xc001_001a;
    pub const TOP_MEM2: u32 = 0xc001_001d;
    pub const NORTH_BRIDGE_CONFIGURATION: u32 = 0xc001_001f;
    pub const INTERRUPT_PENDING: u32 = 0xc001_0055;
    pub const MMIO_CONFIGURATION_BASE: u32 = 0xc001_0058;
    pub const PSTATE_CURRENT_LIMIT: u32 = 0xc001_0061;
    pub const PATCH_LOADER: u32 = 0xc001_0020;
    pub const VM_CR: u32 = 0xc001_0114;
    pub const LOAD_STORE_CONFIGURATION: u32 = 0xc001_1020;
    pub const INSTRUCTION_CACHE_CONFIGURATION: u32 = 0xc001_1021;
    pub const DATA_CACHE_CONFIGURATION: u32 = 0xc001_1022;
    pub const DECODE_CONFIGURATION: u32 = 0xc001_1029;
    pub const BUS_UNIT_CONFIGURATION2: u32 = 0xc001_102a;
}

/// Variable-range MTRRs, a pair each.
const VARIABLE_RANGES: usize = 8;
/// Fixed ranges supported, write-combining supported.
const MTRR_CAP: u64 = VARIABLE_RANGES as u64 | 1 << 8 | 1 << 10;
/// Enabled, fixed ranges enabled, default write-back. Memory types have no effect here: what is
/// RAM is cached and what is a device exits.
const MTRR_DEF_TYPE_RESET: u64 = 1 << 11 | 1 << 10 | 6;
const MEMORY_WRITE_BACK: u64 = 0x0606_0606_0606_0606;
/// What is always on in IA32_MISC_ENABLE: fast strings; and no branch trace, no PEBS.
const MISC_ENABLE: u64 = 1 | 1 << 11 | 1 << 12;
/// LFENCE is serializing (Linux sets this bit where it is not).
const DECODE_LFENCE_SERIALIZES: u64 = 1 << 1;
/// HWCR: the TSC counts at the P0 frequency (Linux warns where it does not).
const HWCR_TSC_INVARIANT: u64 = 1 << 24;
/// SVM is switched off and locked: VM_CR.SVMDIS and LOCK.
const VM_CR_DISABLED: u64 = 1 << 4 | 1 << 3;
/// A revision high enough that no driver looks for an update.
const MICROCODE_REVISION: u64 = 0x0100_0065;

/// EFER bits.
pub mod efer {
    pub const SYSCALL: u64 = 1 << 0;
    pub const LONG_MODE: u64 = 1 << 8;
    pub const LONG_MODE_ACTIVE: u64 = 1 << 10;
    pub const NO_EXECUTE: u64 = 1 << 11;
    pub const WRITABLE: u64 = SYSCALL | LONG_MODE | NO_EXECUTE;
}

/// The access does not exist or breaks the register's rules: #GP(0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// The registers of one CPU that are plain storage, and the rules of the constant ones.
#[derive(Clone, Debug)]
pub struct ModelSpecific {
    fixed: [u64; 11],
    variable: [u64; 2 * VARIABLE_RANGES],
    default_type: u64,
    hardware_configuration: u64,
    decode_configuration: u64,
    misc_enable: u64,
}

impl Default for ModelSpecific {
    fn default() -> Self {
        Self::new()
    }
}

/// The place of a fixed-range MTRR in the order of addresses.
fn fixed_index(index: u32) -> Option<usize> {
    match index {
        index::MTRR_FIX_64K => Some(0),
        index::MTRR_FIX_16K_80000 => Some(1),
        index::MTRR_FIX_16K_A0000 => Some(2),
        index::MTRR_FIX_4K_FIRST..=index::MTRR_FIX_4K_LAST => {
            Some(3 + (index - index::MTRR_FIX_4K_FIRST) as usize)
        }
        _ => None,
    }
}

/// Memory types 0, 1, 4, 5 and 6 exist (SDM vol. 3 table 12-8); PAT has 7 as well.
fn types_are_legal(value: u64, allows_uncached_minus: bool) -> bool {
    value
        .to_le_bytes()
        .iter()
        .all(|byte| matches!(byte, 0 | 1 | 4 | 5 | 6) || allows_uncached_minus && *byte == 7)
}

/// Whether `value` is one that IA32_PAT takes.
pub fn pat_is_legal(value: u64) -> bool {
    types_are_legal(value, true)
}

impl ModelSpecific {
    pub fn new() -> Self {
        Self {
            fixed: [MEMORY_WRITE_BACK; 11],
            variable: [0; 2 * VARIABLE_RANGES],
            default_type: MTRR_DEF_TYPE_RESET,
            hardware_configuration: HWCR_TSC_INVARIANT,
            decode_configuration: DECODE_LFENCE_SERIALIZES,
            misc_enable: MISC_ENABLE,
        }
    }

    /// RDMSR of a register that neither the backend nor another device owns.
    pub fn read(&self, index: u32, is_amd: bool) -> Result<u64, Refused> {
        if let Some(fixed) = fixed_index(index) {
            return Ok(self.fixed[fixed]);
        }
        Ok(match index {
            index::MTRR_CAP => MTRR_CAP,
            index::MTRR_DEF_TYPE => self.default_type,
            index::MTRR_PHYS_FIRST..=index::MTRR_PHYS_LAST => {
                self.variable[(index - index::MTRR_PHYS_FIRST) as usize]
            }
            index::UPDATE_SIGNATURE if is_amd => MICROCODE_REVISION,
            index::UPDATE_SIGNATURE => MICROCODE_REVISION << 32,
            // No machine-check banks, no counters, no last branch.
            index::PLATFORM_ID | index::MCG_CAP | index::MCG_STATUS | index::MCG_CTL => 0,
            index::DEBUG_CTL | index::LAST_BRANCH_FROM..=index::LAST_INTERRUPT_TO => 0,
            index::MISC_ENABLE => self.misc_enable,
            _ if !is_amd => return Err(Refused),
            index::SYS_CFG => 0,
            index::HARDWARE_CONFIGURATION => self.hardware_configuration,
            index::IO_RANGE_FIRST..=index::TOP_MEM2 => 0,
            index::NORTH_BRIDGE_CONFIGURATION | index::INTERRUPT_PENDING => 0,
            index::MMIO_CONFIGURATION_BASE | index::PSTATE_CURRENT_LIMIT => 0,
            index::VM_CR => VM_CR_DISABLED,
            index::LOAD_STORE_CONFIGURATION
            | index::INSTRUCTION_CACHE_CONFIGURATION
            | index::DATA_CACHE_CONFIGURATION
            | index::BUS_UNIT_CONFIGURATION2 => 0,
            index::DECODE_CONFIGURATION => self.decode_configuration,
            _ => return Err(Refused),
        })
    }

    /// WRMSR. What has no effect on a virtual CPU is taken and forgotten, but only where
    /// software legitimately writes it.
    pub fn write(&mut self, index: u32, value: u64, is_amd: bool) -> Result<(), Refused> {
        if let Some(fixed) = fixed_index(index) {
            if !types_are_legal(value, false) {
                return Err(Refused);
            }
            self.fixed[fixed] = value;
            return Ok(());
        }
        match index {
            index::MTRR_DEF_TYPE => {
                if value & !0xcff != 0 || !types_are_legal(value & 0xff, false) {
                    return Err(Refused);
                }
                self.default_type = value;
            }
            index::MTRR_PHYS_FIRST..=index::MTRR_PHYS_LAST => {
                let is_mask = index & 1 != 0;
                let legal =
                    if is_mask { value & 0x7ff == 0 } else { matches!(value & 0xfff, 0 | 1 | 4 | 5 | 6) };
                if !legal || value >> 52 != 0 {
                    return Err(Refused);
                }
                self.variable[(index - index::MTRR_PHYS_FIRST) as usize] = value;
            }
            // Writing zero before reading the revision is the documented way to ask.
            index::UPDATE_SIGNATURE if value == 0 => {}
            // An update is accepted and changes nothing: the revision stays.
            index::UPDATE_TRIGGER | index::PATCH_LOADER => {}
            index::MCG_STATUS if value == 0 => {}
            index::DEBUG_CTL if value == 0 => {}
            index::MISC_ENABLE => self.misc_enable = value,
            _ if !is_amd => return Err(Refused),
            index::HARDWARE_CONFIGURATION => {
                // Only what Linux sets: ignore FERR, disable monitor in user mode, and IRPerf.
                self.hardware_configuration = value & 0x4100_0750 | HWCR_TSC_INVARIANT;
            }
            index::DECODE_CONFIGURATION => {
                self.decode_configuration = value | DECODE_LFENCE_SERIALIZES;
            }
            index::SYS_CFG
            | index::NORTH_BRIDGE_CONFIGURATION
            | index::INTERRUPT_PENDING
            | index::LOAD_STORE_CONFIGURATION
            | index::INSTRUCTION_CACHE_CONFIGURATION
            | index::DATA_CACHE_CONFIGURATION
            | index::BUS_UNIT_CONFIGURATION2 => {}
            _ => return Err(Refused),
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "msr_tests.rs"]
mod tests;
