//! KVM's paravirtual clock (Linux Documentation/virt/kvm/x86/msr.rst): a page of the guest's own
//! from which it computes the time out of its TSC, without an exit.
//!
//! The line from TSC to time is the same for all CPUs of a guest and for ever: time 0 is where
//! the guest's counter, less what the guest itself added to it, was 0. That is what makes the
//! "stable" promise true: two CPUs that read at the same moment get the same time, because they
//! use the same two numbers and not two measurements.

use virtio_device::{GuestPhysAddr, GuestRam, OutOfRange};

use crate::time::{SECOND_NS, scale};

/// Bit 0 of the system-time register: keep the structure filled.
const ENABLE: u64 = 1;
/// Flag of the structure: the time is monotonic over all CPUs.
const FLAG_STABLE: u8 = 1;

/// How TSC ticks become nanoseconds: `(ticks << shift) * multiplier >> 32` (a negative shift is
/// to the right).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rate {
    multiplier: u32,
    shift: i8,
}

impl Rate {
    /// The multiplier gets its highest bit set, for the best precision.
    fn of(tsc_hz: u64) -> Self {
        let (mut shift, mut shifted_hz) = (0i8, u128::from(tsc_hz.max(1)));
        while shifted_hz > 2 * u128::from(SECOND_NS) {
            shifted_hz >>= 1;
            shift -= 1;
        }
        while shifted_hz <= u128::from(SECOND_NS) {
            shifted_hz <<= 1;
            shift += 1;
        }
        // From the whole frequency, not the shifted one, which lost bits.
        let numerator = u128::from(SECOND_NS) << 64;
        let exact = numerator / u128::from(tsc_hz.max(1));
        let scaled = exact >> (32 + i32::from(shift)).clamp(0, 127);
        Self { multiplier: u32::try_from(scaled).unwrap_or(u32::MAX), shift }
    }
}

/// The clock's registers for one CPU.
#[derive(Clone, Debug)]
pub struct ParavirtualClock {
    system_time: u64,
    wall_clock: u64,
    version: u32,
}

impl Default for ParavirtualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ParavirtualClock {
    pub fn new() -> Self {
        Self { system_time: 0, wall_clock: 0, version: 0 }
    }

    pub fn system_time(&self) -> u64 {
        self.system_time
    }

    pub fn wall_clock(&self) -> u64 {
        self.wall_clock
    }

    /// A write of the system-time register: fills the structure that it points to. `tsc_origin`
    /// is the counter's reading at time 0.
    pub fn set_system_time(
        &mut self,
        value: u64,
        ram: &dyn GuestRam,
        tsc_origin: u64,
        tsc_hz: u64,
    ) -> Result<(), OutOfRange> {
        if value & ENABLE != 0 {
            // An odd version means "being written".
            self.version = self.version.wrapping_add(2);
            let rate = Rate::of(tsc_hz);
            let mut page = [0; 32];
            page[0..4].copy_from_slice(&self.version.to_le_bytes());
            page[8..16].copy_from_slice(&tsc_origin.to_le_bytes());
            // Bytes 16 to 23: the time at that reading, which is 0.
            page[24..28].copy_from_slice(&rate.multiplier.to_le_bytes());
            page[28] = rate.shift.to_le_bytes()[0];
            page[29] = FLAG_STABLE;
            let address = GuestPhysAddr::new(value & !ENABLE);
            ram.write_u32(address, self.version.wrapping_sub(1))?;
            ram.write(address.checked_add(4).unwrap_or(address), &page[4..])?;
            ram.write_u32(address, self.version)?;
        }
        self.system_time = value;
        Ok(())
    }

    /// A write of the wall-clock register: the date at which the time was 0.
    pub fn set_wall_clock(
        &mut self,
        value: u64,
        ram: &dyn GuestRam,
        unix_ns: u64,
        ticks_since_origin: u64,
        tsc_hz: u64,
    ) -> Result<(), OutOfRange> {
        let time_ns = scale(ticks_since_origin, SECOND_NS, tsc_hz);
        let origin_ns = unix_ns.saturating_sub(time_ns);
        let mut page = [0; 12];
        page[0..4].copy_from_slice(&2u32.to_le_bytes());
        page[4..8].copy_from_slice(&((origin_ns / SECOND_NS) as u32).to_le_bytes());
        page[8..12].copy_from_slice(&((origin_ns % SECOND_NS) as u32).to_le_bytes());
        ram.write(GuestPhysAddr::new(value), &page)?;
        self.wall_clock = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use virtio_device::fake::VecRam;

    /// What the guest computes (Linux, arch/x86/include/asm/pvclock.h).
    fn guest_time_ns(ram: &VecRam, address: u64, tsc: u64) -> u64 {
        let field = |offset: u64| ram.read_u64(GuestPhysAddr::new(address + offset)).unwrap();
        let shift = ((field(24) >> 32) & 0xff) as u8 as i8;
        let ticks = tsc - field(8);
        let shifted = if shift < 0 { ticks >> -shift } else { ticks << shift };
        field(16) + ((u128::from(shifted) * u128::from(field(24) & 0xffff_ffff)) >> 32) as u64
    }

    #[test]
    fn the_guest_computes_our_time() {
        let ram = VecRam::new(4096);
        for tsc_hz in [100_000_000, 999_999_999, 1_000_000_000, 2_445_404_321, 4_000_000_000, 9_000_000_000] {
            let mut clock = ParavirtualClock::new();
            clock.set_system_time(0x101, &ram, 1000, tsc_hz).unwrap();
            for seconds in [1, 60, 86_400] {
                let time_ns = guest_time_ns(&ram, 0x100, 1000 + tsc_hz * seconds);
                let error_ns = time_ns.abs_diff(seconds * SECOND_NS);
                assert!(error_ns <= seconds + 1, "{tsc_hz} Hz: {error_ns} ns after {seconds} s");
            }
        }
    }

    #[test]
    fn linux_derives_the_frequency_from_the_rate() {
        // pvclock_tsc_khz: (1000000 << 32) / multiplier, shifted back.
        for tsc_khz in [1_000_000u64, 2_445_404, 3_999_999] {
            let rate = Rate::of(tsc_khz * 1000);
            let khz = (1_000_000u64 << 32) / u64::from(rate.multiplier);
            let khz = if rate.shift < 0 { khz << -rate.shift } else { khz >> rate.shift };
            assert!(khz.abs_diff(tsc_khz) <= 4, "{khz} for {tsc_khz}");
        }
    }

    #[test]
    fn a_page_that_is_not_ram_is_refused() {
        let ram = VecRam::new(4096);
        let mut clock = ParavirtualClock::new();
        assert!(clock.set_system_time(0xfff1, &ram, 0, SECOND_NS).is_err());
        assert!(clock.set_system_time(u64::MAX, &ram, 0, SECOND_NS).is_err());
        assert!(clock.set_wall_clock(4090, &ram, 0, 0, SECOND_NS).is_err());
        assert_eq!(clock.system_time(), 0);
        clock.set_system_time(0x10_0000, &ram, 0, SECOND_NS).unwrap();
    }
}
