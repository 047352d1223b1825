//! What netblk is to reach, and whether it does.

use crate::qemu::Nic;

use super::cases::{Case, Service};
use super::results::Results;

/// How many times nbd-server's requests a second, by window.
const TIMES: [(u32, f64); 3] = [(1, 3.0), (16, 6.0), (64, 8.0)];
/// The most of nbd-server's p99.
const P99_SHARE: f64 = 1.0 / 3.0;
/// The least of what the node itself allows: the lower of its bare echo and its own disk.
const FLOOR_SHARE: f64 = 0.8;

/// One case's goals.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    pub case: Case,
    /// netblk's requests a second in nbd-server's, and how many times are wanted.
    pub times: f64,
    pub times_wanted: f64,
    /// netblk's p99 as a part of nbd-server's.
    pub p99_share: f64,
    /// netblk's requests a second as a part of what the node allows, if that was measured.
    pub floor_share: Option<f64>,
}

impl Verdict {
    pub fn is_fast(&self) -> bool {
        self.times >= self.times_wanted
    }

    pub fn is_even(&self) -> bool {
        self.p99_share <= P99_SHARE
    }

    pub fn is_near_the_floor(&self) -> Option<bool> {
        self.floor_share.map(|share| share >= FLOOR_SHARE)
    }
}

/// Every case that has what its goals need.
pub fn verdicts(results: &Results, nic: Nic) -> Vec<Verdict> {
    Case::all().filter_map(|case| verdict(results, nic, case)).collect()
}

fn verdict(results: &Results, nic: Nic, case: Case) -> Option<Verdict> {
    let netblk = results.cell(nic, Service::Netblk, case)?;
    let peer = results.cell(nic, Service::NbdServer, case)?;
    let (_, times_wanted) = TIMES.into_iter().find(|(window, _)| *window == case.window)?;
    Some(Verdict {
        case,
        times: netblk.per_second.median / peer.per_second.median,
        times_wanted,
        p99_share: netblk.p99_us / peer.p99_us,
        floor_share: floor(results, nic, case).map(|floor| netblk.per_second.median / floor),
    })
}

/// What this node allows: its echo with this card, or its disk, whichever is lower. The disk does not depend on the
/// card, so it may have been measured with another.
fn floor(results: &Results, nic: Nic, case: Case) -> Option<f64> {
    let echo = results.cell(nic, Service::NodeEcho, case)?;
    let disk = results.nics().into_iter().find_map(|nic| results.cell(nic, Service::NodeDisk, case))?;
    Some(echo.per_second.median.min(disk.per_second.median))
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{SLOW, made_up};
    use super::*;

    #[test]
    fn goals_are_met_and_missed() {
        let verdicts = verdicts(&made_up(), Nic::Virtio);
        assert_eq!(verdicts.len(), 9);
        for verdict in verdicts {
            let is_slow = verdict.case == SLOW;
            assert_eq!(verdict.is_fast(), !is_slow, "{verdict:?}");
            assert_eq!(verdict.is_even(), !is_slow, "{verdict:?}");
            assert_eq!(verdict.is_near_the_floor(), Some(!is_slow), "{verdict:?}");
        }
    }

    #[test]
    fn without_floors_the_other_goals_are_still_judged() {
        let mut results = made_up();
        results.measurements.retain(|one| one.service != Service::NodeDisk);
        let verdicts = verdicts(&results, Nic::Virtio);
        assert!(verdicts.len() == 9 && verdicts.iter().all(|one| one.is_near_the_floor().is_none()));
    }
}
