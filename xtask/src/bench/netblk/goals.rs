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
    /// Which version of netblk.
    pub service: Service,
    pub case: Case,
    /// netblk's requests a second in nbd-server's, and how many times are wanted.
    pub times: f64,
    pub times_wanted: f64,
    /// netblk's p99 as a part of nbd-server's.
    pub p99_share: f64,
    /// netblk's requests a second as a part of what the node allows, if that was measured.
    pub floor_share: Option<f64>,
    /// The same of what echo and disk reach at the same time, each for itself: no goal of its own, but a service that needs both for every
    /// request has no more of the machine than that.
    pub both_share: Option<f64>,
    /// The same of what it would allow if a request did its echo and its transfer one after the other and nothing else:
    /// no goal, but with one request under way it is what there is to be had.
    pub sequence_share: Option<f64>,
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
    let services = [Service::Netblk, Service::Netblk2];
    let all = services.into_iter().flat_map(|service| Case::all().map(move |case| (service, case)));
    all.filter_map(|(service, case)| verdict(results, nic, service, case)).collect()
}

fn verdict(results: &Results, nic: Nic, service: Service, case: Case) -> Option<Verdict> {
    let netblk = results.cell(nic, service, case)?;
    let peer = results.cell(nic, Service::NbdServer, case)?;
    let floors = floors(results, nic, case);
    let share_of =
        |of: fn(f64, f64) -> f64| floors.map(|(echo, disk)| netblk.per_second.median / of(echo, disk));
    let (_, times_wanted) = TIMES.into_iter().find(|(window, _)| *window == case.window)?;
    Some(Verdict {
        service,
        case,
        times: netblk.per_second.median / peer.per_second.median,
        times_wanted,
        p99_share: netblk.p99_us / peer.p99_us,
        floor_share: share_of(f64::min),
        both_share: results
            .cell(nic, Service::NodeBoth, case)
            .map(|both| netblk.per_second.median / both.per_second.median),
        sequence_share: share_of(|echo, disk| 1.0 / (1.0 / echo + 1.0 / disk)),
    })
}

/// What this node allows: its echo with this card, and its disk. The disk does not depend on the card, so it may have
/// been measured with another.
fn floors(results: &Results, nic: Nic, case: Case) -> Option<(f64, f64)> {
    let echo = results.cell(nic, Service::NodeEcho, case)?;
    let disk = results.nics().into_iter().find_map(|nic| results.cell(nic, Service::NodeDisk, case))?;
    Some((echo.per_second.median, disk.per_second.median))
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
            // An echo of 1/11 ms and a transfer of 1/20 ms are 31/220 ms.
            let sequence_share = if is_slow { 0.28 } else { 1.41 };
            let both_share = if is_slow { 0.25 } else { 1.25 };
            assert!((verdict.both_share.unwrap() - both_share).abs() < 0.01, "{verdict:?}");
            assert!((verdict.sequence_share.unwrap() - sequence_share).abs() < 0.01, "{verdict:?}");
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
