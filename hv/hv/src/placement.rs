//! Which host CPUs a guest gets.
//!
//! Whole ones as long as there are any, then the least laden. Two CPUs of one guest never
//! share one: they would spin for each other's locks. A CPU that a service of the node
//! works on counts as laden, and among equals it comes last: a worker that polls leaves
//! a guest beside it half of the CPU, and the guest makes the service late.

use alloc::vec::Vec;
use core::ops::Range;

use kcore::cpu::{self, MAX_CPUS};

/// What runs on each host CPU.
#[derive(Debug)]
pub struct Placement {
    guest_cpus: [usize; MAX_CPUS],
}

impl Placement {
    pub const fn new() -> Placement {
        Placement { guest_cpus: [0; MAX_CPUS] }
    }

    /// Takes `count` of the CPUs `allowed`, or none if there are not so many.
    pub fn take(&mut self, count: usize, allowed: Range<usize>) -> Option<Vec<usize>> {
        let mut cpus: Vec<usize> = allowed.collect();
        if count > cpus.len() {
            return None;
        }
        cpus.sort_by_key(|&cpu| {
            let services = cpu::reservations(cpu);
            (self.guest_cpus[cpu] + services, services > 0)
        });
        cpus.truncate(count);
        for &cpu in &cpus {
            self.guest_cpus[cpu] += 1;
        }
        Some(cpus)
    }

    /// Gives back what [`Placement::take`] gave.
    pub fn release(&mut self, cpus: &[usize]) {
        for &cpu in cpus {
            self.guest_cpus[cpu] -= 1;
        }
    }
}
