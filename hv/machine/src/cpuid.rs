//! What a guest learns from CPUID (APM vol. 3 appendix E; SDM vol. 2, CPUID).
//!
//! Every leaf is made from the host's by an *allow* list: a feature that a later processor adds
//! stays hidden until somebody has thought about what it needs here. Hidden on purpose:
//! virtualization itself, MONITOR/MWAIT, performance counters, machine check, RDTSCP and RDPID
//! (TSC_AUX is not switched), protection keys and AVX-512 (their state is not), 57-bit addresses
//! (a fifth level of page walk for nothing), supervisor XSAVE, and what needs speculation-control
//! MSRs.
//!
//! # What makes a guest's boot quick
//!
//! A kernel that does not know the frequency of its time-stamp counter measures it against the
//! 8254 by polling ports. An exit costs tens of microseconds in an emulator; Linux's quick
//! calibration then fails its own plausibility test and falls back to loops of 50 ms, and its
//! local APIC timer is measured once more. So the frequency is *told*, in every form there is:
//! - leaf 0x15 (Linux reads it on Intel's CPUs only),
//! - leaf 0x4000_0010 (the convention that VMware began: kHz of TSC and of the APIC's bus),
//! - the paravirtual clock of KVM: a second hypervisor signature at 0x4000_0100, a documented
//!   interface (Linux Documentation/virt/kvm/x86/cpuid.rst and msr.rst), of which this machine
//!   offers the clock, "no I/O delays" and the promise that the clock is stable over CPUs.
//!
//! The same signature lets Linux use the x2APIC without interrupt remapping: an EOI or a timer
//! write is then one MSR exit, without decoding an instruction. With the TSC-deadline timer and
//! ARAT it needs neither the PIT nor any measurement. Invariant TSC and TSC_ADJUST make it trust
//! the counter without a watchdog, which would else wake an idle guest twice a second.
//!
//! # Our own leaves
//!
//! 0x4000_0000: EAX the last leaf (0x4000_0010), EBX:ECX:EDX the signature "nos node hv ".
//! 0x4000_0001: EAX the interface version, 1. 0x4000_0010: EAX kHz of the TSC, EBX kHz of the
//! local APIC timer's clock.

use crate::apic::timer::BUS_HZ;
use crate::time::SECOND_NS;

/// Bits of leaf 1 ECX that pass from the host.
mod leaf1_ecx {
    pub const X2APIC: u32 = 1 << 21;
    pub const TSC_DEADLINE: u32 = 1 << 24;
    pub const XSAVE: u32 = 1 << 26;
    pub const OSXSAVE: u32 = 1 << 27;
    pub const HYPERVISOR: u32 = 1 << 31;
    /// SSE3 0, PCLMULQDQ 1, SSSE3 9, CMPXCHG16B 13, PCID 17, SSE4.1 19, SSE4.2 20, MOVBE 22,
    /// POPCNT 23, AES 25, RDRAND 30.
    pub const PASSED: u32 =
        1 | 1 << 1 | 1 << 9 | 1 << 13 | 1 << 17 | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 23 | 1 << 25 | 1 << 30;
    /// FMA 12, AVX 28, F16C 29: with XCR0.AVX only.
    pub const AVX: u32 = 1 << 12 | 1 << 28 | 1 << 29;
}

mod leaf1_edx {
    pub const APIC: u32 = 1 << 9;
    pub const MTRR: u32 = 1 << 12;
    pub const HYPERTHREADING: u32 = 1 << 28;
    /// FPU 0, VME 1, DE 2, PSE 3, TSC 4, MSR 5, PAE 6, CMPXCHG8B 8, SEP 11, PGE 13, CMOV 15,
    /// PAT 16, PSE-36 17, CLFLUSH 19, MMX 23, FXSR 24, SSE 25, SSE2 26.
    pub const PASSED: u32 = 0x7f
        | 1 << 8
        | 1 << 11
        | 1 << 13
        | 1 << 15
        | 1 << 16
        | 1 << 17
        | 1 << 19
        | 1 << 23
        | 1 << 24
        | 1 << 25
        | 1 << 26;
}

mod leaf7 {
    pub const TSC_ADJUST: u32 = 1 << 1;
    /// FSGSBASE 0, BMI1 3, SMEP 7, BMI2 8, ERMS 9, INVPCID 10, RDSEED 18, ADX 19, SMAP 20,
    /// CLFLUSHOPT 23, CLWB 24, SHA 29.
    pub const EBX: u32 = 1
        | 1 << 3
        | 1 << 7
        | 1 << 8
        | 1 << 9
        | 1 << 10
        | 1 << 18
        | 1 << 19
        | 1 << 20
        | 1 << 23
        | 1 << 24
        | 1 << 29;
    /// AVX2: with XCR0.AVX only.
    pub const EBX_AVX: u32 = 1 << 5;
    /// UMIP 2.
    pub const ECX: u32 = 1 << 2;
    /// VAES 9, VPCLMULQDQ 10: with XCR0.AVX only.
    pub const ECX_AVX: u32 = 1 << 9 | 1 << 10;
    /// Fast short REP MOV 4.
    pub const EDX: u32 = 1 << 4;
}

mod extended1 {
    /// LAHF 0, LZCNT 5, SSE4A 6, misaligned SSE 7, PREFETCHW 8.
    pub const ECX: u32 = 1 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8;
    /// CmpLegacy: the logical processors of leaf 1 are cores.
    pub const CORES: u32 = 1 << 1;
    /// SYSCALL 11, NX 20, MMX extensions 22, 1 GiB pages 26, long mode 29.
    pub const EDX: u32 = 1 << 11 | 1 << 20 | 1 << 22 | 1 << 26 | 1 << 29;
}

/// Leaf 0xD: XSAVEOPT 0, XSAVEC 1, XGETBV with ECX 1 2.
const XSAVE_EXTENSIONS: u32 = 0x7;
/// x87, SSE and AVX state: what guests may enable.
pub const XCR0_OFFERED: u64 = 0x7;
const XCR0_AVX: u64 = 1 << 2;

/// ARAT: the local APIC timer runs in every idle state.
const ALWAYS_RUNNING_APIC_TIMER: u32 = 1 << 2;
const INVARIANT_TSC: u32 = 1 << 8;
const CR4_OSXSAVE: u64 = 1 << 18;

/// First leaf of our own signature.
pub const HYPERVISOR_BASE: u32 = 0x4000_0000;
const HYPERVISOR_LAST: u32 = 0x4000_0010;
const SIGNATURE: &[u8; 12] = b"nos node hv ";
/// First leaf of the KVM-compatible interface.
pub const KVM_BASE: u32 = 0x4000_0100;
const KVM_SIGNATURE: &[u8; 12] = b"KVMKVMKVM\0\0\0";
/// "No I/O delay" 1, clock by the MSRs 0x4b564d00 and 01 3, clock stable over CPUs 24.
const KVM_FEATURES: u32 = 1 << 1 | 1 << 3 | 1 << 24;

/// The last basic leaf on a CPU with XSAVE. 0x15 tells the frequency.
const LAST_BASIC: u32 = 0x15;
const LAST_EXTENDED: u32 = 0x8000_0008;

/// What the answer depends on besides the host.
#[derive(Clone, Copy, Debug)]
pub struct CpuidContext {
    /// Virtual CPUs of the guest, 1 to 255.
    pub cpus: u32,
    /// The CPU that asks; its local APIC's identifier.
    pub apic_id: u32,
    pub tsc_hz: u64,
    /// The guest's CR4, for OSXSAVE.
    pub cr4: u64,
    pub xcr0: u64,
    /// XCR0 bits whose state the backend switches.
    pub supported_xcr0: u64,
}

/// The four answer registers: EAX, EBX, ECX, EDX.
pub type Leaf = [u32; 4];

/// Reads the host's CPUID.
pub type HostCpuid<'a> = &'a dyn Fn(u32, u32) -> Leaf;

impl CpuidContext {
    /// XCR0 bits that this guest may set.
    pub fn offered_xcr0(&self) -> u64 {
        self.supported_xcr0 & XCR0_OFFERED
    }

    fn has_avx(&self) -> bool {
        self.offered_xcr0() & XCR0_AVX != 0
    }

    /// Bits of an APIC identifier that number the CPUs of the one package.
    fn identifier_bits(&self) -> u32 {
        self.cpus.max(1).next_power_of_two().trailing_zeros()
    }

    /// The answer to CPUID with EAX = `leaf`, ECX = `subleaf`.
    pub fn answer(&self, leaf: u32, subleaf: u32, host: HostCpuid) -> Leaf {
        match leaf {
            0..0x4000_0000 => self.basic(leaf, subleaf, host),
            0x4000_0000..0x5000_0000 => self.hypervisor(leaf),
            0x8000_0000..0x9000_0000 => self.extended(leaf, host),
            _ => [0; 4],
        }
    }

    fn basic(&self, leaf: u32, subleaf: u32, host: HostCpuid) -> Leaf {
        match leaf {
            0 => {
                let [_, ebx, ecx, edx] = host(0, 0);
                [LAST_BASIC, ebx, ecx, edx]
            }
            1 => self.features(host),
            // Caches, Intel's way: as on the host, shared by nobody, one package.
            2 => host(2, 0),
            4 => {
                let [eax, ebx, ecx, edx] = host(4, subleaf);
                [eax & 0x3fff, ebx, ecx, edx]
            }
            6 => [ALWAYS_RUNNING_APIC_TIMER, 0, 0, 0],
            7 if subleaf == 0 => self.structured_features(host),
            0xb => self.topology(subleaf),
            0xd => self.extended_state(subleaf, host),
            // TSC = crystal * EBX / EAX; the crystal is the local APIC timer's clock.
            0x15 => [1_000_000, self.tsc_khz(), (BUS_HZ & 0xffff_ffff) as u32, 0],
            _ => [0; 4],
        }
    }

    fn tsc_khz(&self) -> u32 {
        u32::try_from(self.tsc_hz / 1000).unwrap_or(u32::MAX)
    }

    fn features(&self, host: HostCpuid) -> Leaf {
        let [eax, ebx, ecx, edx] = host(1, 0);
        let several = self.cpus > 1;
        // CLFLUSH line size is the host's; logical processors and identifier are ours.
        let ebx = ebx & 0xff00 | self.cpus.min(0xff) << 16 | (self.apic_id & 0xff) << 24;
        let mut allowed = leaf1_ecx::PASSED;
        if self.offered_xcr0() != 0 {
            allowed |= leaf1_ecx::XSAVE;
        }
        if self.has_avx() {
            allowed |= leaf1_ecx::AVX;
        }
        let mut ecx = ecx & allowed;
        if ecx & leaf1_ecx::XSAVE != 0 && self.cr4 & CR4_OSXSAVE != 0 {
            ecx |= leaf1_ecx::OSXSAVE;
        }
        ecx |= leaf1_ecx::X2APIC | leaf1_ecx::TSC_DEADLINE | leaf1_ecx::HYPERVISOR;
        let mut edx = edx & leaf1_edx::PASSED | leaf1_edx::APIC | leaf1_edx::MTRR;
        if several {
            edx |= leaf1_edx::HYPERTHREADING;
        }
        [eax, ebx, ecx, edx]
    }

    fn structured_features(&self, host: HostCpuid) -> Leaf {
        let [_, ebx, ecx, edx] = host(7, 0);
        let (mut allowed_ebx, mut allowed_ecx) = (leaf7::EBX, leaf7::ECX);
        if self.has_avx() {
            allowed_ebx |= leaf7::EBX_AVX;
            allowed_ecx |= leaf7::ECX_AVX;
        }
        [0, ebx & allowed_ebx | leaf7::TSC_ADJUST, ecx & allowed_ecx, edx & leaf7::EDX]
    }

    /// Extended topology: one thread a core, all cores in one package.
    fn topology(&self, subleaf: u32) -> Leaf {
        match subleaf {
            0 => [0, 1, 1 << 8, self.apic_id],
            1 => [self.identifier_bits(), self.cpus, 2 << 8 | 1, self.apic_id],
            _ => [0, 0, subleaf & 0xff, self.apic_id],
        }
    }

    /// Leaf 0xD, consistent with XCR0: sizes are computed from the components offered, since the
    /// host's own count components that the guest never sees.
    fn extended_state(&self, subleaf: u32, host: HostCpuid) -> Leaf {
        let offered = self.offered_xcr0();
        if offered == 0 {
            return [0; 4];
        }
        let size_of = |enabled: u64| {
            (2..62).filter(|bit| enabled & (1 << bit) != 0).fold(576, |end: u32, bit| {
                let [bytes, offset, ..] = host(0xd, bit);
                end.max(offset.saturating_add(bytes))
            })
        };
        match subleaf {
            0 => [
                (offered & 0xffff_ffff) as u32,
                size_of(self.xcr0 & offered),
                size_of(offered),
                (offered >> 32) as u32,
            ],
            1 => {
                // The compacted size; components follow each other (none here needs alignment).
                let compact = (2..62)
                    .filter(|bit| self.xcr0 & offered & (1 << bit) != 0)
                    .fold(576, |end: u32, bit| end.saturating_add(host(0xd, bit)[0]));
                [host(0xd, 1)[0] & XSAVE_EXTENSIONS, compact, 0, 0]
            }
            2..62 if offered & (1 << subleaf) != 0 => host(0xd, subleaf),
            _ => [0; 4],
        }
    }

    fn extended(&self, leaf: u32, host: HostCpuid) -> Leaf {
        match leaf {
            0x8000_0000 => {
                let [_, ebx, ecx, edx] = host(leaf, 0);
                [LAST_EXTENDED, ebx, ecx, edx]
            }
            0x8000_0001 => {
                let [eax, ebx, ecx, edx] = host(leaf, 0);
                let cores = if self.cpus > 1 { extended1::CORES } else { 0 };
                // Bits 24:0 repeat leaf 1 on AMD's processors.
                let repeated = if is_amd(host) { edx & leaf1_edx::PASSED & 0x0183_f3ff } else { 0 };
                let apic = if is_amd(host) { leaf1_edx::APIC | leaf1_edx::MTRR } else { 0 };
                [eax, ebx, ecx & extended1::ECX | cores, edx & extended1::EDX | repeated | apic]
            }
            // Brand string, first-level and second-level caches.
            0x8000_0002..=0x8000_0006 => host(leaf, 0),
            0x8000_0007 => [0, 0, 0, INVARIANT_TSC],
            0x8000_0008 => {
                let [eax, ebx, ..] = host(leaf, 0);
                // Physical and linear address bits. CLZERO 0, XSAVE of error pointers 2.
                let size = (self.cpus.clamp(1, 256) - 1) | (self.identifier_bits() << 12);
                [eax & 0xff | 48 << 8, ebx & 0x5, size, 0]
            }
            _ => [0; 4],
        }
    }

    fn hypervisor(&self, leaf: u32) -> Leaf {
        match leaf {
            HYPERVISOR_BASE => signature(HYPERVISOR_LAST, SIGNATURE),
            0x4000_0001 => [1, 0, 0, 0],
            HYPERVISOR_LAST => [self.tsc_khz(), (BUS_HZ / (SECOND_NS / 1_000_000)) as u32, 0, 0],
            KVM_BASE => signature(KVM_BASE + 1, KVM_SIGNATURE),
            0x4000_0101 => [KVM_FEATURES, 0, 0, 0],
            _ => [0; 4],
        }
    }
}

fn signature(last_leaf: u32, text: &[u8; 12]) -> Leaf {
    let part = |at: usize| u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]);
    [last_leaf, part(0), part(4), part(8)]
}

/// Whether the processor answers as AMD's (or Hygon's) do.
pub fn is_amd(host: HostCpuid) -> bool {
    let [_, ebx, ..] = host(0, 0);
    ebx == u32::from_le_bytes(*b"Auth") || ebx == u32::from_le_bytes(*b"Hygo")
}

#[cfg(test)]
#[path = "cpuid_tests.rs"]
mod tests;
