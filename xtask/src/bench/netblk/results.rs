//! Everything that was measured, and its medians.

use serde::{Serialize, Serializer};

use crate::bench::statistics::Spread;
use crate::qemu::Nic;

use super::cases::{Case, Service, Timing};
use super::generator::Figures;
use super::host::Load;
use super::linux::Linux;
use super::node::{Node, Traffic};

/// One measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Measurement {
    #[serde(serialize_with = "nic_by_name")]
    pub nic: Nic,
    pub service: Service,
    #[serde(flatten)]
    pub case: Case,
    pub run: u32,
    #[serde(flatten)]
    pub figures: Figures,
    #[serde(flatten)]
    pub load: Load,
    /// Of netblk.
    pub traffic: Option<Traffic>,
}

/// The generator beside fio, on nbd-server.
#[derive(Debug, Serialize)]
pub struct Fairness {
    #[serde(flatten)]
    pub case: Case,
    pub generator: Vec<Figures>,
    pub fio: Vec<Figures>,
}

#[derive(Debug, Serialize)]
pub struct Results {
    pub machine: String,
    /// What else a figure cannot be read without, a line each.
    pub conditions: Vec<String>,
    pub runs: u32,
    pub timing: Timing,
    pub measurements: Vec<Measurement>,
    pub fairness: Option<Vec<Fairness>>,
}

/// Medians of all takes of one case of one service.
#[derive(Debug, Clone, Copy)]
pub struct Cell {
    pub per_second: Spread,
    pub p50_us: f64,
    pub p99_us: f64,
    pub machine_cpus: f64,
    pub asked_again: u64,
    pub turned_away: u64,
}

impl Results {
    pub fn new(machine: String, runs: u32, timing: Timing) -> Self {
        Self { machine, conditions: Vec::new(), runs, timing, measurements: Vec::new(), fairness: None }
    }

    /// Notes what the two machines are.
    pub fn conditions(&mut self, nic: Nic, node: &Node, linux: &Linux) {
        self.conditions.push(format!(
            "{}: each machine with {} CPUs, {} MiB and an NVMe disk of its own, on {}",
            nic_label(nic),
            super::CPUS,
            super::MEMORY_MIB,
            linux.link.what()
        ));
        self.conditions.push(format!(
            "Linux's: {}; it says \"{}\"",
            linux.root.versions.join(", "),
            linux.greeting.trim()
        ));
        if !node.has_floors {
            self.conditions.push("the node has no commands for its floors".to_owned());
        }
    }

    /// The cards that were measured with, in order.
    pub fn nics(&self) -> Vec<Nic> {
        let mut nics = Vec::new();
        for measurement in &self.measurements {
            if !nics.contains(&measurement.nic) {
                nics.push(measurement.nic);
            }
        }
        nics
    }

    pub fn cell(&self, nic: Nic, service: Service, case: Case) -> Option<Cell> {
        let takes: Vec<&Measurement> = self
            .measurements
            .iter()
            .filter(|one| one.nic == nic && one.service == service && one.case == case)
            .collect();
        let median =
            |of: fn(&Measurement) -> f64| Spread::of(takes.iter().map(|one| of(one))).map(|it| it.median);
        Some(Cell {
            per_second: Spread::of(takes.iter().map(|one| one.figures.per_second))?,
            p50_us: median(|one| one.figures.p50_us)?,
            p99_us: median(|one| one.figures.p99_us)?,
            machine_cpus: median(|one| one.load.machine_cpus)?,
            asked_again: takes.iter().map(|one| one.figures.asked_again).sum(),
            turned_away: takes.iter().map(|one| one.figures.turned_away).sum(),
        })
    }

    /// Medians of what a request took of the devices.
    pub fn traffic(&self, nic: Nic, service: Service, case: Case) -> Option<Traffic> {
        let takes = || {
            let of_case = self.measurements.iter().filter(|one| one.nic == nic && one.service == service);
            of_case.filter(|one| one.case == case).filter_map(|one| one.traffic)
        };
        let median = |of: fn(&Traffic) -> f64| Spread::of(takes().map(|one| of(&one))).map(|it| it.median);
        Some(Traffic {
            disk_doorbells: median(|one| one.disk_doorbells)?,
            disk_interrupts: median(|one| one.disk_interrupts)?,
            card_doorbells: median(|one| one.card_doorbells)?,
            card_interrupts: median(|one| one.card_interrupts)?,
        })
    }

    /// CPUs that programs which have nothing to do with the bench used, and those that the waiting machine used.
    pub fn disturbance(&self, nic: Nic) -> Option<(Spread, Spread)> {
        let of = |of: fn(&Load) -> f64| {
            Spread::of(self.measurements.iter().filter(|one| one.nic == nic).map(|one| of(&one.load)))
        };
        Some((of(|load| load.others_cpus)?, of(|load| load.waiting_machine_cpus)?))
    }
}

pub const fn nic_label(nic: Nic) -> &'static str {
    match nic {
        Nic::Virtio => "virtio-net",
        Nic::Igb => "igb",
    }
}

fn nic_by_name<S: Serializer>(nic: &Nic, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(nic_label(*nic))
}

#[cfg(test)]
pub mod tests {
    use super::super::cases::Pattern;
    use super::*;

    /// Made-up results: netblk ten times as fast as nbd-server but for one case.
    pub fn made_up() -> Results {
        let mut results = Results::new("a machine".into(), 3, Timing::QUICK);
        for case in Case::all() {
            for run in 0..3 {
                for (service, per_second, p99_us) in [
                    (Service::Netblk, 10_000.0, 100.0),
                    (Service::NbdServer, 1_000.0, 1_000.0),
                    (Service::NodeEcho, 11_000.0, 90.0),
                    (Service::NodeDisk, 20_000.0, 50.0),
                    (Service::NodeBoth, 8_000.0, 80.0),
                ] {
                    let slow = case == SLOW && service == Service::Netblk;
                    let figures = Figures {
                        per_second: if slow { 2_000.0 } else { per_second } + f64::from(run),
                        p50_us: p99_us / 2.0,
                        p99_us: if slow { 900.0 } else { p99_us },
                        asked_again: 0,
                        turned_away: 0,
                        cpu_seconds: 0.1,
                    };
                    let load = Load {
                        machine_cpus: 1.5,
                        waiting_machine_cpus: 0.01,
                        generator_cpus: 0.2,
                        others_cpus: 0.3,
                    };
                    results.measurements.push(Measurement {
                        nic: Nic::Virtio,
                        service,
                        case,
                        run,
                        figures,
                        load,
                        traffic: (service == Service::Netblk).then_some(Traffic {
                            disk_doorbells: 0.25,
                            disk_interrupts: 0.5,
                            card_doorbells: 0.75,
                            card_interrupts: 1.0,
                        }),
                    });
                }
            }
        }
        results
    }

    /// The case in which the made-up netblk misses every goal.
    pub const SLOW: Case = Case { pattern: Pattern::Read4K, window: 64 };

    #[test]
    fn a_cell_is_the_medians_of_its_takes() {
        let results = made_up();
        let case = Case { pattern: Pattern::Read1K, window: 16 };
        let cell = results.cell(Nic::Virtio, Service::Netblk, case).unwrap();
        assert_eq!(cell.per_second, Spread { median: 10_001.0, least: 10_000.0, most: 10_002.0, count: 3 });
        assert_eq!((cell.p50_us, cell.p99_us), (50.0, 100.0));
        assert!(results.cell(Nic::Igb, Service::Netblk, case).is_none());
        assert_eq!(results.nics(), [Nic::Virtio]);
        let json = serde_json::to_value(&results).unwrap();
        assert_eq!(json["measurements"][0]["service"], "netblk");
        assert_eq!(json["measurements"][0]["nic"], "virtio-net");
        assert_eq!(json["measurements"][0]["pattern"], "read1_k");
    }
}
