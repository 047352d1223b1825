//! The 8254 programmable interval timer (Intel 8254 data sheet, order 231164-005).
//!
//! Three 16-bit counters at 1.193182 MHz: channel 0 makes interrupt 0, channel 1 once refreshed
//! memory, channel 2 drives the loudspeaker and is what a kernel measures its other clocks
//! against. Nothing ticks: each counter remembers when it was loaded and computes count and
//! output from the time it is asked at, so a calibration loop sees the true frequency however
//! long its exits take.
//!
//! One departure, in the guest's favour: edges that a guest could not take in time merge, as on
//! the real part, but channel 0's line is then *held* up to the next edge instead of falling in
//! the middle of a mode 3 period. A guest taken out late would otherwise find that its request
//! came and went between two exits, which no real CPU would have missed.

use crate::time::{SECOND_NS, scale, scale_up};

/// The counters' clock: a third of the 3.579545 MHz colour carrier.
pub const FREQUENCY_HZ: u64 = 1_193_182;

/// Bits 5:4 of the control word: which bytes of the count are transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Low,
    High,
    LowThenHigh,
}

/// Modes 0 to 5 (data sheet, "Mode Definitions"); 6 and 7 are 2 and 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    InterruptOnTerminalCount = 0,
    RetriggerableOneShot = 1,
    RateGenerator = 2,
    SquareWave = 3,
    SoftwareStrobe = 4,
    HardwareStrobe = 5,
}

impl Mode {
    fn from_control(control: u8) -> Self {
        match (control >> 1) & 7 {
            0 => Mode::InterruptOnTerminalCount,
            1 => Mode::RetriggerableOneShot,
            2 | 6 => Mode::RateGenerator,
            3 | 7 => Mode::SquareWave,
            4 => Mode::SoftwareStrobe,
            _ => Mode::HardwareStrobe,
        }
    }

    fn is_periodic(self) -> bool {
        matches!(self, Mode::RateGenerator | Mode::SquareWave)
    }

    /// Counting starts at the gate's rising edge, not at the loading of the count.
    fn needs_trigger(self) -> bool {
        matches!(self, Mode::RetriggerableOneShot | Mode::HardwareStrobe)
    }
}

/// Whether a counter moves, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Motion {
    /// No count loaded since the control word, or not triggered yet.
    Idle,
    /// Loaded or triggered at this time.
    Since { start_ns: u64 },
    /// The gate stopped it after so many ticks.
    Paused { ticks: u64 },
}

/// One counter.
#[derive(Clone, Debug)]
struct Counter {
    mode: Mode,
    access: Access,
    binary_coded_decimal: bool,
    /// Ticks from load to terminal count: 1 to 65,536 (10,000 in decimal).
    reload: u64,
    /// Written while a period runs: the new count, and the tick at which it takes over (the
    /// period's end, modes 2 and 3).
    next_reload: Option<(u64, u64)>,
    motion: Motion,
    gate: bool,
    /// The low byte of a two-byte write, waiting for the high one.
    low_byte: Option<u8>,
    /// The next byte read is the high one.
    high_byte_next: bool,
    latched_count: Option<u16>,
    latched_status: Option<u8>,
    /// Rising edges of OUT since the load that were reported already.
    edges_taken: u64,
    /// An edge of before the load that was not reported yet.
    edge_carried: bool,
}

impl Counter {
    fn new() -> Self {
        Self {
            mode: Mode::InterruptOnTerminalCount,
            access: Access::LowThenHigh,
            binary_coded_decimal: false,
            reload: 0x1_0000,
            next_reload: None,
            motion: Motion::Idle,
            gate: true,
            low_byte: None,
            high_byte_next: false,
            latched_count: None,
            latched_status: None,
            edges_taken: 0,
            edge_carried: false,
        }
    }

    fn modulus(&self) -> u64 {
        if self.binary_coded_decimal { 10_000 } else { 0x1_0000 }
    }

    /// Ticks since the load; `None` while nothing was counted.
    fn ticks(&self, now_ns: u64) -> Option<u64> {
        match self.motion {
            Motion::Idle => None,
            Motion::Since { start_ns } => {
                Some(scale(now_ns.saturating_sub(start_ns), FREQUENCY_HZ, SECOND_NS))
            }
            Motion::Paused { ticks } => Some(ticks),
        }
    }

    /// Takes over a count that was written for "after this period" once the period has ended.
    fn catch_up(&mut self, now_ns: u64) {
        let (Some((reload, boundary_tick)), Motion::Since { start_ns }) = (self.next_reload, self.motion)
        else {
            return;
        };
        if self.ticks(now_ns).is_some_and(|ticks| ticks >= boundary_tick) {
            self.edge_carried |= self.edges_taken < boundary_tick / self.reload;
            self.edges_taken = 0;
            self.reload = reload;
            self.next_reload = None;
            let since_start_ns = scale_up(boundary_tick, SECOND_NS, FREQUENCY_HZ);
            self.motion = Motion::Since { start_ns: start_ns.saturating_add(since_start_ns) };
        }
    }

    fn write_control(&mut self, control: u8) {
        let gate = self.gate;
        *self = Self {
            access: match (control >> 4) & 3 {
                1 => Access::Low,
                2 => Access::High,
                _ => Access::LowThenHigh,
            },
            mode: Mode::from_control(control),
            binary_coded_decimal: control & 1 != 0,
            gate,
            ..Self::new()
        };
    }

    fn write_data(&mut self, value: u8, now_ns: u64) {
        let count = match (self.access, self.low_byte) {
            (Access::Low, _) => u16::from(value),
            (Access::High, _) => u16::from(value) << 8,
            (Access::LowThenHigh, None) => {
                self.low_byte = Some(value);
                if self.mode == Mode::InterruptOnTerminalCount {
                    // "Writing the first byte disables counting."
                    self.motion = Motion::Idle;
                }
                return;
            }
            (Access::LowThenHigh, Some(low)) => {
                self.low_byte = None;
                u16::from_le_bytes([low, value])
            }
        };
        self.load(count, now_ns);
    }

    fn load(&mut self, count: u16, now_ns: u64) {
        let count = if self.binary_coded_decimal { from_decimal(count) } else { u64::from(count) };
        // 0 stands for the largest count.
        let mut reload = if count == 0 { self.modulus() } else { count };
        if self.mode == Mode::RateGenerator || self.mode == Mode::SquareWave {
            // "A count of 1 is illegal in mode 2" (and useless in mode 3).
            reload = reload.max(2);
        }
        self.catch_up(now_ns);
        if let (true, Some(ticks)) = (self.mode.is_periodic(), self.ticks(now_ns)) {
            self.next_reload = Some((reload, (ticks / self.reload + 1) * self.reload));
            return;
        }
        self.reload = reload;
        self.edges_taken = 0;
        if self.mode.needs_trigger() {
            // Counting goes on as it was; the count is taken at the next trigger.
            return;
        }
        self.motion =
            if self.gate { Motion::Since { start_ns: now_ns } } else { Motion::Paused { ticks: 0 } };
    }

    fn set_gate(&mut self, gate: bool, now_ns: u64) {
        if gate == self.gate {
            return;
        }
        self.catch_up(now_ns);
        let ticks = self.ticks(now_ns);
        self.gate = gate;
        match (self.mode, gate) {
            // Rising: trigger, or begin a fresh period.
            (Mode::RetriggerableOneShot | Mode::HardwareStrobe, true) => {
                self.motion = Motion::Since { start_ns: now_ns };
                self.edges_taken = 0;
            }
            (Mode::RateGenerator | Mode::SquareWave, true) if ticks.is_some() => {
                if let Some((reload, _)) = self.next_reload.take() {
                    self.reload = reload;
                }
                self.motion = Motion::Since { start_ns: now_ns };
                self.edges_taken = 0;
            }
            // Level: counting is suspended and goes on where it was.
            (Mode::InterruptOnTerminalCount | Mode::SoftwareStrobe, true) => {
                if let Some(ticks) = ticks {
                    let counted_ns = scale_up(ticks, SECOND_NS, FREQUENCY_HZ);
                    self.motion = Motion::Since { start_ns: now_ns.saturating_sub(counted_ns) };
                }
            }
            (Mode::RetriggerableOneShot | Mode::HardwareStrobe, false) => {}
            (_, false) => {
                if let Some(ticks) = ticks {
                    self.motion = Motion::Paused { ticks };
                }
            }
            _ => {}
        }
    }

    /// The counting element as a read would see it.
    fn count(&self, now_ns: u64) -> u16 {
        let Some(ticks) = self.ticks(now_ns) else { return self.encode(self.reload) };
        let remaining = match self.mode {
            Mode::RateGenerator => self.reload - ticks % self.reload,
            Mode::SquareWave => {
                // Decremented by two, once through for each half of the period.
                let phase = ticks % self.reload;
                let high_ticks = self.reload.div_ceil(2);
                let within_half = if phase < high_ticks { phase } else { phase - high_ticks };
                (self.reload & !1).saturating_sub(2 * within_half)
            }
            _ => {
                // Past zero the counter wraps and goes on.
                let modulus = self.modulus();
                (self.reload % modulus + modulus - ticks % modulus) % modulus
            }
        };
        self.encode(remaining)
    }

    fn encode(&self, count: u64) -> u16 {
        let count = count % self.modulus();
        if self.binary_coded_decimal { to_decimal(count) } else { (count & 0xffff) as u16 }
    }

    /// The level of OUT.
    fn output(&self, now_ns: u64) -> bool {
        let Some(ticks) = self.ticks(now_ns) else {
            return self.mode != Mode::InterruptOnTerminalCount;
        };
        match self.mode {
            Mode::InterruptOnTerminalCount | Mode::RetriggerableOneShot => ticks >= self.reload,
            Mode::RateGenerator => !self.gate || ticks % self.reload != self.reload - 1,
            Mode::SquareWave => !self.gate || ticks % self.reload < self.reload.div_ceil(2),
            Mode::SoftwareStrobe | Mode::HardwareStrobe => ticks != self.reload,
        }
    }

    /// Rising edges of OUT within so many ticks of the load.
    fn edges(&self, ticks: u64) -> u64 {
        match self.mode {
            Mode::InterruptOnTerminalCount | Mode::RetriggerableOneShot => u64::from(ticks >= self.reload),
            Mode::RateGenerator | Mode::SquareWave => ticks / self.reload,
            // One clock low after the terminal count, then up again.
            Mode::SoftwareStrobe | Mode::HardwareStrobe => u64::from(ticks > self.reload),
        }
    }

    /// Whether OUT rose since the last call.
    fn take_edge(&mut self, now_ns: u64) -> bool {
        self.catch_up(now_ns);
        let edges = self.ticks(now_ns).map_or(0, |ticks| self.edges(ticks));
        let rose = edges > self.edges_taken || self.edge_carried;
        self.edges_taken = self.edges_taken.max(edges);
        self.edge_carried = false;
        rose
    }

    /// When OUT rises next.
    fn next_edge_ns(&self) -> Option<u64> {
        let Motion::Since { start_ns } = self.motion else { return None };
        if self.edge_carried {
            return Some(start_ns);
        }
        let tick = match self.mode {
            Mode::RateGenerator | Mode::SquareWave => self.reload.checked_mul(self.edges_taken + 1)?,
            _ if self.edges_taken != 0 => return None,
            Mode::InterruptOnTerminalCount | Mode::RetriggerableOneShot => self.reload,
            Mode::SoftwareStrobe | Mode::HardwareStrobe => self.reload + 1,
        };
        Some(start_ns.saturating_add(scale_up(tick, SECOND_NS, FREQUENCY_HZ)))
    }

    fn latch_count(&mut self, now_ns: u64) {
        self.catch_up(now_ns);
        // "If a counter is latched and not yet read, a second latch is ignored."
        if self.latched_count.is_none() {
            self.latched_count = Some(self.count(now_ns));
        }
    }

    /// Read-back: OUT, null count, and the low six bits of the control word.
    fn latch_status(&mut self, now_ns: u64) {
        self.catch_up(now_ns);
        if self.latched_status.is_some() {
            return;
        }
        let access = match self.access {
            Access::Low => 0x10,
            Access::High => 0x20,
            Access::LowThenHigh => 0x30,
        };
        let null_count = self.motion == Motion::Idle || self.next_reload.is_some();
        self.latched_status = Some(
            u8::from(self.output(now_ns)) << 7
                | u8::from(null_count) << 6
                | access
                | (self.mode as u8) << 1
                | u8::from(self.binary_coded_decimal),
        );
    }

    fn read_data(&mut self, now_ns: u64) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        self.catch_up(now_ns);
        let [low, high] = self.latched_count.unwrap_or_else(|| self.count(now_ns)).to_le_bytes();
        let (value, is_last) = match self.access {
            Access::Low => (low, true),
            Access::High => (high, true),
            Access::LowThenHigh => {
                let is_high = self.high_byte_next;
                self.high_byte_next = !is_high;
                (if is_high { high } else { low }, is_high)
            }
        };
        if is_last {
            self.latched_count = None;
        }
        value
    }
}

fn from_decimal(value: u16) -> u64 {
    (0..4).rev().fold(0, |number, digit| number * 10 + u64::from((value >> (4 * digit)) & 0xf))
}

fn to_decimal(number: u64) -> u16 {
    let digits = [1, 10, 100, 1000].map(|power| (number / power % 10) as u16);
    digits[0] | digits[1] << 4 | digits[2] << 8 | digits[3] << 12
}

/// What interrupt line 0 must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    Unchanged,
    /// A rising edge, whatever the level was.
    Pulse,
    Low,
}

/// The chip, with port 0x61 around it.
#[derive(Clone, Debug)]
pub struct Pit {
    counters: [Counter; 3],
    /// Bits 1:0 of port 0x61: channel 2's gate, and the loudspeaker's.
    speaker_control: u8,
    line_is_low: bool,
}

impl Default for Pit {
    fn default() -> Self {
        Self::new()
    }
}

impl Pit {
    pub fn new() -> Self {
        let mut counters = [Counter::new(), Counter::new(), Counter::new()];
        counters[2].gate = false;
        Self { counters, speaker_control: 0, line_is_low: true }
    }

    /// Ports 0x40 to 0x43.
    pub fn read(&mut self, port: u16, now_ns: u64) -> u8 {
        match self.counters.get_mut(usize::from(port & 3)) {
            Some(counter) => counter.read_data(now_ns),
            // The control word cannot be read; the bus floats.
            None => 0xff,
        }
    }

    pub fn write(&mut self, port: u16, value: u8, now_ns: u64) {
        if let Some(counter) = self.counters.get_mut(usize::from(port & 3)) {
            counter.write_data(value, now_ns);
            return;
        }
        match (value >> 6, (value >> 4) & 3) {
            (3, _) => self.read_back(value, now_ns),
            (channel, 0) => self.counters[usize::from(channel)].latch_count(now_ns),
            (channel, _) => self.counters[usize::from(channel)].write_control(value),
        }
    }

    /// Bits 3:1 choose counters; bits 5 and 4, low, ask for count and status.
    fn read_back(&mut self, command: u8, now_ns: u64) {
        for (channel, counter) in self.counters.iter_mut().enumerate() {
            if command & (2 << channel) == 0 {
                continue;
            }
            if command & 0x20 == 0 {
                counter.latch_count(now_ns);
            }
            if command & 0x10 == 0 {
                counter.latch_status(now_ns);
            }
        }
    }

    /// Port 0x61 (82371AB data sheet, NMI Status and Control): channel 2's output in bit 5; bit 4
    /// toggles with each refresh, every 15.09 us, and old code waits by it.
    pub fn read_speaker(&mut self, now_ns: u64) -> u8 {
        const REFRESH_NS: u64 = 15_085;
        self.counters[2].catch_up(now_ns);
        self.speaker_control
            | u8::from(now_ns / REFRESH_NS % 2 == 1) << 4
            | u8::from(self.counters[2].output(now_ns)) << 5
    }

    pub fn write_speaker(&mut self, value: u8, now_ns: u64) {
        self.speaker_control = value & 3;
        self.counters[2].set_gate(value & 1 != 0, now_ns);
    }

    /// What channel 0 did to its interrupt line since the last call.
    pub fn take_line(&mut self, now_ns: u64) -> Line {
        let counter = &mut self.counters[0];
        if counter.take_edge(now_ns) {
            self.line_is_low = false;
            Line::Pulse
        } else if !self.line_is_low
            && counter.mode == Mode::InterruptOnTerminalCount
            && !counter.output(now_ns)
        {
            self.line_is_low = true;
            Line::Low
        } else {
            Line::Unchanged
        }
    }

    /// When channel 0 next asks for an interrupt.
    pub fn next_edge_ns(&self) -> Option<u64> {
        self.counters[0].next_edge_ns()
    }
}

#[cfg(test)]
#[path = "pit_tests.rs"]
mod tests;
