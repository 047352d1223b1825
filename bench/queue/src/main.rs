//! `queue-bench RUNS`: the figures of both queues, as JSON.

#![forbid(unsafe_code)]

use anyhow::{Context as _, Result};
use queue_bench::measure::{CASES, Figures, measure_ours, measure_theirs};

fn main() -> Result<()> {
    let runs: u32 = match std::env::args().nth(1) {
        Some(runs) => runs.parse().context("the number of runs")?,
        None => 5,
    };
    let mut figures = Vec::new();
    for case in &CASES {
        let mut one = Figures { case: case.name.to_owned(), ours_ns: Vec::new(), theirs_ns: Vec::new() };
        // In turns, so that what disturbs the machine for a while disturbs both.
        for _ in 0..runs {
            one.ours_ns.push(measure_ours(case)?);
            one.theirs_ns.push(measure_theirs(case)?);
        }
        figures.push(one);
    }
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}
