//! RDMSR and WRMSR of one CPU: whom a register belongs to.

use virtio_device::GuestRam;

use crate::backend::Vcpu;
use crate::chipset::BoardLock;
use crate::cpu::Cpu;
use crate::cpuid::is_amd;
use crate::msr::{Refused, efer, index, pat_is_legal};

const CR0_PAGING: u64 = 1 << 31;

impl Cpu {
    pub(crate) fn read_msr(&mut self, vcpu: &dyn Vcpu, msr: u32, now_ns: u64) -> Result<u64, Refused> {
        let clock = self.clock_now(vcpu, now_ns);
        Ok(match msr {
            index::TSC => clock.tsc,
            index::TSC_ADJUST => self.tsc_adjust,
            index::APIC_BASE => self.apic.base(),
            index::TSC_DEADLINE => {
                self.apic.service(&clock);
                self.apic.tsc_deadline()
            }
            index::X2APIC_FIRST..=index::X2APIC_LAST => {
                let number = (msr - index::X2APIC_FIRST) as u8;
                return self.apic.read_msr(number, &clock).map_err(|_| Refused);
            }
            index::EFER => vcpu.efer(),
            index::PAT => vcpu.system().pat,
            index::KVM_WALL_CLOCK => self.clock.wall_clock(),
            index::KVM_SYSTEM_TIME => self.clock.system_time(),
            _ => return self.msrs.read(msr, is_amd(&|leaf, subleaf| vcpu.host_cpuid(leaf, subleaf))),
        })
    }

    pub(crate) fn write_msr<B: BoardLock>(
        &mut self,
        vcpu: &mut dyn Vcpu,
        ram: &dyn GuestRam,
        board: &B,
        msr: u32,
        value: u64,
        now_ns: u64,
    ) -> Result<(), Refused> {
        let clock = self.clock_now(vcpu, now_ns);
        match msr {
            index::X2APIC_FIRST..=index::X2APIC_LAST => {
                let number = (msr - index::X2APIC_FIRST) as u8;
                let effect = self.apic.write_msr(number, value, &self.bus, &clock).map_err(|_| Refused)?;
                self.apply(vcpu, board, effect);
            }
            index::TSC_DEADLINE => self.apic.set_tsc_deadline(value, &clock),
            // SDM vol. 3 sec. 18.17.3: a write of the counter moves the adjustment along, and
            // a write of the adjustment moves the counter.
            index::TSC => {
                self.tsc_adjust = self.tsc_adjust.wrapping_add(value.wrapping_sub(clock.tsc));
                self.set_tsc(vcpu, value, now_ns);
            }
            index::TSC_ADJUST => {
                let moved = value.wrapping_sub(self.tsc_adjust);
                self.tsc_adjust = value;
                self.set_tsc(vcpu, clock.tsc.wrapping_add(moved), now_ns);
            }
            index::APIC_BASE => {
                self.apic.set_base(value, &self.bus).map_err(|_| Refused)?;
                vcpu.set_task_priority(self.apic.task_priority() >> 4);
            }
            index::EFER => {
                let changes_mode = (value ^ vcpu.efer()) & efer::LONG_MODE != 0;
                if value & !(efer::WRITABLE | efer::LONG_MODE_ACTIVE) != 0
                    || changes_mode && vcpu.paging().cr0 & CR0_PAGING != 0
                {
                    return Err(Refused);
                }
                vcpu.set_efer(value & efer::WRITABLE);
            }
            index::PAT => {
                if !pat_is_legal(value) {
                    return Err(Refused);
                }
                vcpu.set_pat(value);
            }
            index::KVM_SYSTEM_TIME => self
                .clock
                .set_system_time(value, ram, self.tsc_adjust, self.config.tsc_hz)
                .map_err(|_| Refused)?,
            index::KVM_WALL_CLOCK => {
                let unix_ns = self.config.unix_at_zero_ns.saturating_add(now_ns);
                let ticks = clock.tsc.wrapping_sub(self.tsc_adjust);
                self.clock
                    .set_wall_clock(value, ram, unix_ns, ticks, self.config.tsc_hz)
                    .map_err(|_| Refused)?;
            }
            _ => {
                let amd = is_amd(&|leaf, subleaf| vcpu.host_cpuid(leaf, subleaf));
                self.msrs.write(msr, value, amd)?;
            }
        }
        Ok(())
    }

    fn set_tsc(&mut self, vcpu: &mut dyn Vcpu, value: u64, now_ns: u64) {
        vcpu.set_tsc(value);
        let clock = self.clock_now(vcpu, now_ns);
        self.apic.tsc_changed(&clock);
    }

    /// Carries out what a local APIC write asks for beyond the local APIC.
    pub(crate) fn apply<B: BoardLock>(
        &mut self,
        vcpu: &mut dyn Vcpu,
        board: &B,
        effect: crate::apic::local::Effect,
    ) {
        if let Some(vector) = effect.level_ended {
            let sender = Some(self.index);
            board.with(|board| board.end_of_interrupt(vector, sender));
        }
        vcpu.set_task_priority(self.apic.task_priority() >> 4);
    }
}
