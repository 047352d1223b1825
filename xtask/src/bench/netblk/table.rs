//! The figures as Markdown.

use std::fmt::Write as _;

use crate::bench::statistics::Spread;
use crate::qemu::Nic;

use super::cases::{Case, Pattern, Service, WINDOWS};
use super::goals::{self, Verdict};
use super::node::Traffic;
use super::results::{Cell, Results, nic_label};

/// Everything, goals first.
pub fn markdown(results: &Results) -> String {
    let mut text = String::new();
    // Writing into a String cannot fail, here and below.
    let _ = writeln!(text, "{}.\n", results.machine);
    for condition in &results.conditions {
        let _ = writeln!(text, "- {condition}");
    }
    let _ = writeln!(
        text,
        "- {} rounds; each figure measured for {} s after {} s of warm-up; medians, in brackets the least and the most",
        results.runs, results.timing.seconds, results.timing.warm_up
    );
    for nic in results.nics() {
        if let Some((others, waiting)) = results.disturbance(nic) {
            let _ = writeln!(
                text,
                "- {}: other programs used {} of the host's CPUs meanwhile, the machine that waited {}",
                nic_label(nic),
                spread(others, 2),
                spread(waiting, 2)
            );
        }
    }
    for nic in results.nics() {
        goals_of(results, nic, &mut text);
        for pattern in Pattern::ALL {
            services_of(results, nic, pattern, &mut text);
        }
        traffic_of(results, nic, &mut text);
    }
    fairness(results, &mut text);
    text
}

fn goals_of(results: &Results, nic: Nic, text: &mut String) {
    let verdicts = goals::verdicts(results, nic);
    let met = |is_met: bool| if is_met { "met" } else { "**missed**" };
    let _ = writeln!(text, "\n## {}: netblk and its goals\n", nic_label(nic));
    let _ = writeln!(
        text,
        "| | | window | times nbd-server | p99 / nbd-server's | of the node's floor | of echo and disk at once | in sequence |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|---|---|");
    for verdict in &verdicts {
        let Verdict { service, case, times, times_wanted, p99_share, floor_share, .. } = verdict;
        let floor = match (floor_share, verdict.is_near_the_floor()) {
            (Some(share), Some(near)) => format!("{:.0} % of 80 %: {}", share * 100.0, met(near)),
            _ => "not measured".to_owned(),
        };
        let percent =
            |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.0} %", share * 100.0));
        let (both, sequence) = (percent(verdict.both_share), percent(verdict.sequence_share));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {times:.1} of {times_wanted:.0}: {} | {p99_share:.2} of 0.33: {} | {floor} | {both} | {sequence} |",
            service.label(),
            case.pattern.label(),
            case.window,
            met(verdict.is_fast()),
            met(verdict.is_even()),
        );
    }
}

fn services_of(results: &Results, nic: Nic, pattern: Pattern, text: &mut String) {
    let _ = writeln!(text, "\n## {}: {}\n", nic_label(nic), pattern.label());
    let _ = writeln!(
        text,
        "Requests a second; p50 / p99 in microseconds; CPUs of the host that the machine used.\n"
    );
    let _ = writeln!(text, "| | window {} | window {} | window {} |", WINDOWS[0], WINDOWS[1], WINDOWS[2]);
    let _ = writeln!(text, "|---|---|---|---|");
    for service in Service::of(nic) {
        let cells: Vec<String> = WINDOWS
            .iter()
            .map(|window| results.cell(nic, *service, Case { pattern, window: *window }))
            .map(|cell| cell.map_or("".to_owned(), |cell| cell_text(&cell)))
            .collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            let _ = writeln!(text, "| {} | {} |", service.label(), cells.join(" | "));
        }
    }
}

/// What a request takes of disk and card.
fn traffic_of(results: &Results, nic: Nic, text: &mut String) {
    let _ = writeln!(text, "\n## {}: doorbells and interrupts a request\n", nic_label(nic));
    let _ = writeln!(
        text,
        "As `netblk list` counts them: disk doorbells / disk interrupts / card doorbells / card interrupts.\n"
    );
    let _ = writeln!(text, "| | | window {} | window {} | window {} |", WINDOWS[0], WINDOWS[1], WINDOWS[2]);
    let _ = writeln!(text, "|---|---|---|---|---|");
    for service in [Service::Netblk, Service::Netblk2] {
        for pattern in Pattern::ALL {
            let of = |window| results.traffic(nic, service, Case { pattern, window });
            let cells: Vec<String> = WINDOWS
                .iter()
                .filter_map(|window| of(*window))
                .map(|Traffic { disk_doorbells, disk_interrupts, card_doorbells, card_interrupts }| {
                    format!("{disk_doorbells:.2} / {disk_interrupts:.2} / {card_doorbells:.2} / {card_interrupts:.2}")
                })
                .collect();
            if !cells.is_empty() {
                let _ =
                    writeln!(text, "| {} | {} | {} |", service.label(), pattern.label(), cells.join(" | "));
            }
        }
    }
}

fn cell_text(cell: &Cell) -> String {
    let mut text = format!(
        "{}; {:.0} / {:.0}; {:.1}",
        spread(cell.per_second, 0),
        cell.p50_us,
        cell.p99_us,
        cell.machine_cpus
    );
    if cell.asked_again > 0 {
        let _ = write!(text, "; {} asked again", cell.asked_again);
    }
    if cell.turned_away > 0 {
        let _ = write!(text, "; {} times busy", cell.turned_away);
    }
    text
}

fn spread(spread: Spread, digits: usize) -> String {
    let Spread { median, least, most, .. } = spread;
    format!("{median:.digits$} [{least:.digits$}-{most:.digits$}]")
}

fn fairness(results: &Results, text: &mut String) {
    let Some(fairness) = &results.fairness else { return };
    let _ = writeln!(text, "\n## Whether the generator is fair\n");
    let _ = writeln!(
        text,
        "nbd-server, {}, by this generator and by fio's NBD engine (libnbd), in turn.\n",
        Pattern::Read1K.label()
    );
    let _ = writeln!(text, "| window | generator | fio |");
    let _ = writeln!(text, "|---|---|---|");
    for one in fairness {
        let side = |figures: &[super::generator::Figures]| {
            let of = |of: fn(&super::generator::Figures) -> f64| Spread::of(figures.iter().map(of));
            let per_second = of(|figures| figures.per_second).map(|it| spread(it, 0)).unwrap_or_default();
            let p50 = of(|figures| figures.p50_us).map_or(f64::NAN, |it| it.median);
            let p99 = of(|figures| figures.p99_us).map_or(f64::NAN, |it| it.median);
            format!("{per_second}; {p50:.0} / {p99:.0}")
        };
        let _ = writeln!(text, "| {} | {} | {} |", one.case.window, side(&one.generator), side(&one.fio));
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::made_up;
    use super::*;

    #[test]
    fn every_goal_and_every_service_has_its_row() {
        let text = markdown(&made_up());
        assert!(
            text.contains(
                "| random reads of 1 KiB | 1 | 10.0 of 3: met | 0.10 of 0.33: met | 91 % of 80 %: met | 125 % | 141 % |"
            ),
            "{text}"
        );
        assert!(text.contains("| netblk | random reads of 4 KiB | 64 | 2.0 of 8: **missed** | 0.90 of 0.33: **missed** | 18 % of 80 %: **missed** | 25 % | 28 % |"), "{text}");
        assert!(text.contains("| netblk | 10001 [10000-10002]; 50 / 100; 1.5 |"), "{text}");
        assert!(!text.contains("qemu-nbd"), "{text}");
        let each = "0.25 / 0.50 / 0.75 / 1.00";
        assert!(
            text.contains(&format!("| netblk | random writes of 1 KiB | {each} | {each} | {each} |")),
            "{text}"
        );
    }
}
