//! Which host CPUs a guest gets.
//!
//! Whole ones as long as there are any, then the least laden. Two CPUs of one guest never
//! share one: they would spin for each other's locks. A CPU that a service of the node
//! works on counts as laden, and among equals it comes last: a worker that polls leaves
//! a guest beside it half of the CPU, and the guest makes the service late.

use alloc::vec::Vec;
use core::ops::Range;

use kcore::cpu::MAX_CPUS;

/// What runs on each host CPU.
#[derive(Debug)]
pub struct Placement {
    guest_cpus: [usize; MAX_CPUS],
    services: [usize; MAX_CPUS],
}

impl Placement {
    pub const fn new() -> Placement {
        Placement { guest_cpus: [0; MAX_CPUS], services: [0; MAX_CPUS] }
    }

    /// A service works on this CPU.
    pub fn reserve(&mut self, cpu: usize) {
        if let Some(services) = self.services.get_mut(cpu) {
            *services += 1;
        }
    }

    pub fn is_reserved(&self, cpu: usize) -> bool {
        self.services[cpu] > 0
    }

    /// Takes `count` of the CPUs `allowed`, or none if there are not so many.
    pub fn take(&mut self, count: usize, allowed: Range<usize>) -> Option<Vec<usize>> {
        let mut cpus: Vec<usize> = allowed.collect();
        if count > cpus.len() {
            return None;
        }
        cpus.sort_by_key(|&cpu| (self.guest_cpus[cpu] + self.services[cpu], self.is_reserved(cpu)));
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
