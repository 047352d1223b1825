//! Time: the time-stamp counter, scaled to nanoseconds since the kernel began.
//!
//! The counter's rate comes from CPUID where it is stated, else from a few milliseconds beside a
//! timer of known rate: the ACPI timer, the HPET, or the oldest one, the PIT. Reading such a timer
//! takes a microsecond or, when a virtual machine's host is busy, much longer; so each reading is
//! bracketed by two of the counter, and of several the tightest counts.
//!
//! Counters of different CPUs may disagree. Each CPU compares its own with the first one's when it
//! starts ([`measure_offset`]), and a disagreement that the measurement can prove is corrected, so
//! that a time handed from one CPU to another never lies in the future by more than the error of
//! that measurement. On a machine whose counters agree nothing is corrected and nothing can run
//! backwards.

use super::acpi::{self, Register};
use super::addr::VirtAddr;
use super::sync::Once;
use super::{boot, cpu, paging, port};
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use firmware::acpi::Timer;

const NS_PER_SECOND: u64 = 1_000_000_000;
/// How long the counter is watched. The ACPI timer's tick of 279 ns is then 0.006 %.
const CALIBRATION_NS: u64 = 5_000_000;
const SAMPLES: u32 = 4;

/// How to turn counter ticks into nanoseconds: multiply, then shift right by 32.
#[derive(Clone, Copy)]
struct Scale {
    start_tsc: u64,
    hz: u64,
    ns_per_tick_q32: u64,
}

static SCALE: Once<Scale> = Once::new();
/// What each CPU adds to its counter to agree with CPU 0.
static OFFSETS: [AtomicI64; cpu::MAX_CPUS] = [const { AtomicI64::new(0) }; cpu::MAX_CPUS];

/// Finds the counter's rate. Once, on the first CPU, after [`acpi::init`] and [`paging::init`].
pub fn init() {
    let stated = cpu::features().tsc_hz;
    let hz = if stated != 0 { stated } else { measure() };
    // A rate of zero would stop time; a counter that does not move has no better answer.
    let hz = hz.max(1_000_000);
    let ns_per_tick_q32 = u64::try_from((u128::from(NS_PER_SECOND) << 32) / u128::from(hz));
    // The first scale stays.
    let _ = SCALE.set(Scale {
        start_tsc: boot::start_tsc(),
        hz,
        ns_per_tick_q32: ns_per_tick_q32.unwrap_or(u64::MAX),
    });
}

/// Nanoseconds since the kernel's first instruction, the same on every CPU; zero before [`init`].
#[inline]
pub fn now_ns() -> u64 {
    let Some(scale) = SCALE.get() else { return 0 };
    let offset = OFFSETS[cpu::index()].load(Ordering::Relaxed);
    let ticks = cpu::tsc().wrapping_add_signed(offset).saturating_sub(scale.start_tsc);
    #[allow(clippy::cast_possible_truncation, reason = "64 bits of nanoseconds are 584 years")]
    let ns = ((u128::from(ticks) * u128::from(scale.ns_per_tick_q32)) >> 32) as u64;
    ns
}

/// The counter's ticks a second; zero before [`init`].
pub fn tsc_hz() -> u64 {
    SCALE.get().map_or(0, |scale| scale.hz)
}

/// A timer of known rate, and how to read it.
#[derive(Clone, Copy)]
enum Reference {
    Acpi(Timer, Option<VirtAddr>),
    Hpet { counter: VirtAddr, hz: u64 },
    Pit,
}

impl Reference {
    fn choose() -> Self {
        Self::acpi_timer().or_else(Self::hpet).unwrap_or(Self::Pit)
    }

    fn acpi_timer() -> Option<Self> {
        let timer = acpi::info().timer?;
        let window = match timer.register {
            Register::Io(_) => None,
            Register::Memory(address) => Some(paging::map_mmio(address, 4).ok()?),
        };
        let reference = Self::Acpi(timer, window);
        // One that stands still is not there.
        reference.moves().then_some(reference)
    }

    /// IA-PC HPET 1.0a section 2.3: capabilities at 0 (period in femtoseconds in the upper half),
    /// configuration at 10h (bit 0 lets it run), the counter at F0h.
    fn hpet() -> Option<Self> {
        const COUNTER: usize = 0xf0;
        const CONFIGURATION: usize = 0x10;
        const FEMTOSECONDS: u64 = 1_000_000_000_000_000;
        /// The longest period that the specification allows.
        const MAX_PERIOD: u64 = 100_000_000;

        let base = paging::map_mmio(acpi::info().hpet?, 0x400).ok()?;
        // SAFETY: the window covers the HPET's registers, which are aligned 64-bit words. Letting
        // the counter run raises no interrupt: the comparators are left alone.
        let capabilities = unsafe {
            let configuration = (base + CONFIGURATION).as_mut_ptr::<u64>();
            configuration.write_volatile(configuration.read_volatile() | 1);
            base.as_ptr::<u64>().read_volatile()
        };
        let period = capabilities >> 32;
        if !(1..=MAX_PERIOD).contains(&period) {
            return None;
        }
        let reference = Self::Hpet { counter: base + COUNTER, hz: FEMTOSECONDS / period };
        reference.moves().then_some(reference)
    }

    fn hz(self) -> u64 {
        match self {
            Self::Acpi(..) => Timer::HZ,
            Self::Hpet { hz, .. } => hz,
            Self::Pit => pit::HZ,
        }
    }

    /// Ticks from `start` to `end`, counting up, with one wrap at most.
    fn elapsed(self, start: u64, end: u64) -> u64 {
        let mask = match self {
            Self::Acpi(timer, _) => (1 << timer.bits) - 1,
            // The lower half, since some HPETs have no more.
            Self::Hpet { .. } => u32::MAX.into(),
            Self::Pit => u16::MAX.into(),
        };
        end.wrapping_sub(start) & mask
    }

    fn read(self) -> u64 {
        match self {
            Self::Acpi(Timer { register: Register::Io(number), .. }, _) => {
                // SAFETY: the ACPI timer's register; reading it has no effect.
                unsafe { port::read32(number) }.into()
            }
            Self::Acpi(_, window) => window.map_or(0, |at| {
                // SAFETY: a window of four bytes on the register.
                unsafe { at.as_ptr::<u32>().read_volatile() }.into()
            }),
            // SAFETY: inside the window on the HPET's registers, aligned.
            Self::Hpet { counter, .. } => unsafe { counter.as_ptr::<u32>().read_volatile() }.into(),
            Self::Pit => pit::read(),
        }
    }

    fn moves(self) -> bool {
        let start = self.read();
        (0..1000).any(|_| self.read() != start)
    }

    /// One reading, and the counter's value at that moment.
    fn sample(self) -> (u64, u64) {
        let mut best = None;
        for _ in 0..SAMPLES {
            let before = cpu::tsc();
            let reading = self.read();
            let after = cpu::tsc();
            let width = after.wrapping_sub(before);
            if best.is_none_or(|(narrowest, _, _)| width < narrowest) {
                best = Some((width, reading, before.midpoint(after)));
            }
        }
        best.map_or((0, 0), |(_, reading, tsc)| (reading, tsc))
    }
}

/// The counter's rate by comparison.
fn measure() -> u64 {
    let reference = Reference::choose();
    if let Reference::Pit = reference {
        pit::start();
    }
    let wanted = reference.hz() * CALIBRATION_NS / NS_PER_SECOND;
    let (start, start_tsc) = reference.sample();
    // Bounded, should the reference stop: no counter does 2^34 ticks in the time wanted.
    let mut waited = 0;
    while reference.elapsed(start, reference.read()) < wanted && waited < 1u64 << 34 {
        waited = cpu::tsc().wrapping_sub(start_tsc);
        cpu::pause();
    }
    let (end, end_tsc) = reference.sample();
    let elapsed = u128::from(reference.elapsed(start, end).max(1));
    let hz = u128::from(end_tsc.wrapping_sub(start_tsc)) * u128::from(reference.hz()) / elapsed;
    u64::try_from(hz).unwrap_or(u64::MAX)
}

/// The 8254's channel 2, which is wired to no interrupt (Intel 8254 data sheet; the gate is bit 0
/// of port 61h).
mod pit {
    use crate::x86_64::port::{read8, write8};

    pub const HZ: u64 = 1_193_182;
    const CHANNEL_2: u16 = 0x42;
    const COMMAND: u16 = 0x43;
    const GATE: u16 = 0x61;
    /// Channel 2, low byte then high byte, mode 0, binary.
    const ONE_COUNT_DOWN: u8 = 0b1011_0000;
    const LATCH_CHANNEL_2: u8 = 0b1000_0000;

    /// Starts a count down from the top; 55 ms until it wraps.
    pub fn start() {
        // SAFETY: channel 2 drives the speaker alone, whose output (bit 1) is switched off.
        unsafe {
            write8(GATE, (read8(GATE) & !0b10) | 0b01);
            write8(COMMAND, ONE_COUNT_DOWN);
            write8(CHANNEL_2, 0xff);
            write8(CHANNEL_2, 0xff);
        }
    }

    /// The count, turned so that it counts up.
    pub fn read() -> u64 {
        // SAFETY: latches and reads channel 2's count; nothing else uses the PIT.
        let count = unsafe {
            write8(COMMAND, LATCH_CHANNEL_2);
            u16::from_le_bytes([read8(CHANNEL_2), read8(CHANNEL_2)])
        };
        (u16::MAX - count).into()
    }
}

/// A question from a starting CPU to the first one: "what does your counter say?". Numbered, so
/// that an answer cannot be taken for another's.
static QUESTION: AtomicU64 = AtomicU64::new(0);
static ANSWER: AtomicU64 = AtomicU64::new(0);
static ANSWER_TSC: AtomicU64 = AtomicU64::new(0);

/// Rounds of the comparison, and a round trip (in ticks) that is short enough to stop at.
const ROUNDS: u64 = 8;
const SHORT_ROUND_TRIP: u64 = 10_000;

/// Run by the first CPU in the loop in which it waits for another to start.
pub(super) fn answer_offset_question() {
    let question = QUESTION.load(Ordering::Acquire);
    if question != ANSWER.load(Ordering::Relaxed) {
        ANSWER_TSC.store(cpu::tsc(), Ordering::Relaxed);
        ANSWER.store(question, Ordering::Release);
    }
}

/// Run by a starting CPU: compares its counter with the first one's, and keeps the difference if
/// it is one that the time of the exchange cannot explain.
pub(super) fn measure_offset(cpu: usize) {
    // The shortest round trip, and the difference it showed.
    let mut best: Option<(u64, i64)> = None;
    for _ in 0..ROUNDS {
        let question = QUESTION.load(Ordering::Relaxed).wrapping_add(1);
        let asked = cpu::tsc();
        QUESTION.store(question, Ordering::Release);
        while ANSWER.load(Ordering::Acquire) != question {
            cpu::pause();
        }
        let answered = cpu::tsc();
        let round_trip = answered.wrapping_sub(asked);
        let here = asked.wrapping_add(round_trip / 2);
        let difference = ANSWER_TSC.load(Ordering::Relaxed).wrapping_sub(here).cast_signed();
        if best.is_none_or(|(shortest, _)| round_trip < shortest) {
            best = Some((round_trip, difference));
        }
        if round_trip < SHORT_ROUND_TRIP {
            break;
        }
    }
    if let Some((round_trip, difference)) = best
        && difference.unsigned_abs() > round_trip / 2
    {
        OFFSETS[cpu].store(difference, Ordering::Relaxed);
    }
}

/// What `cpu` adds to its time-stamp counter to agree with CPU 0; zero on a sound machine.
pub fn tsc_offset(cpu: usize) -> i64 {
    OFFSETS.get(cpu).map_or(0, |offset| offset.load(Ordering::Relaxed))
}
