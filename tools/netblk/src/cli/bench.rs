//! `netblk bench`: every block size with every window, as text, JSON and a plot.

use std::time::Duration;

use indicatif::ProgressStyle;
use netblk::bench::{self, Latencies, Plan, Report};
use netblk::size::show_size;
use netblk::{Client, Error, client, plot};
use serde_json::{Value, json};

use super::arguments::Bench;
use super::{bar, show};

/// Runs all measurements.
///
/// # Errors
/// The first that a measurement gives, or that a result cannot be written.
pub fn run(client: &mut Client, arguments: &Bench) -> Result<(), Error> {
    let plans = plans(client, arguments)?;
    // A wrong one should be seen before the first has taken its time.
    for plan in &plans {
        bench::check(client, plan)?;
    }
    let mut runs = Vec::new();
    for plan in plans {
        let report = measure(client, arguments, &plan)?;
        runs.push((plan, report));
    }
    if let Some(path) = &arguments.svg {
        let title = format!(
            "netblk bench {}: {}, protocol version {}",
            arguments.common.access.target,
            client.info().name.as_str(),
            client.version()
        );
        let svg = plot::draw(&title, &runs).map_err(|error| Error::Usage(format!("the plot: {error}")))?;
        std::fs::write(path, svg).map_err(Error::local(format!("writing {}", path.display())))?;
    }
    let mut values: Vec<Value> = runs.iter().map(|(plan, report)| value(client, plan, report)).collect();
    let value = if values.len() == 1 { values.remove(0) } else { json!({ "runs": values }) };
    let texts: Vec<String> = runs.iter().map(|(plan, report)| text(plan, report)).collect();
    show(&arguments.common, &value, &texts.join("\n"))
}

fn plans(client: &Client, arguments: &Bench) -> Result<Vec<Plan>, Error> {
    let Bench { seconds, offset, length, destructive_writes, write_share, fua, seed, .. } = arguments;
    let duration = Duration::try_from_secs_f64(*seconds)
        .ok()
        .filter(|duration| (0.1..=86400.0).contains(&duration.as_secs_f64()))
        .ok_or_else(|| Error::Usage(format!("--seconds {seconds} must be from 0.1 to 86400")))?;
    let seed = seed.unwrap_or_else(client::random_seed);
    let left = client.info().size_bytes.saturating_sub(*offset);
    let windows = match arguments.sweep.as_slice() {
        [] => vec![arguments.common.access.window],
        sweep => sweep.to_vec(),
    };
    let mut plans = Vec::new();
    for &block in &arguments.block {
        let block_bytes = u32::try_from(block)
            .map_err(|_| Error::Usage(format!("--block {block} is more than a request can ask")))?;
        plans.extend(windows.iter().map(|&window| Plan {
            write_percent: if *destructive_writes { *write_share } else { 0 },
            fua: *fua,
            block_bytes,
            window,
            duration,
            offset: *offset,
            length: length.unwrap_or(left),
            seed,
        }));
    }
    Ok(plans)
}

fn measure(client: &mut Client, arguments: &Bench, plan: &Plan) -> Result<Report, Error> {
    let bar = bar(&arguments.common, &plan.what(), 100);
    bar.set_style(
        ProgressStyle::with_template("{msg} [{wide_bar}] {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    let report = bench::bench(client, plan, &|elapsed| {
        bar.set_position((100.0 * elapsed.as_secs_f64() / plan.duration.as_secs_f64()) as u64);
    })?;
    bar.finish_and_clear();
    Ok(report)
}

fn us(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

/// One run, as docs/netblk.md describes it.
fn value(client: &Client, plan: &Plan, report: &Report) -> Value {
    let all = report.all();
    let per_second = report.requests_per_second();
    let mut value = json!({
        "op": plan.op(),
        "write_percent": plan.write_percent,
        "fua": plan.fua,
        "protocol": client.version(),
        "block_bytes": plan.block_bytes,
        "window": plan.window,
        "seconds": report.elapsed.as_secs_f64(),
        "requests": report.requests(),
        "iops": per_second,
        "bytes_per_second": per_second * f64::from(plan.block_bytes),
        "datagrams": report.stats.sent,
        "repeated": report.stats.repeated,
        "busy": report.stats.busy,
        "ignored": report.stats.ignored,
        "sessions": report.stats.sessions,
        "seed": plan.seed,
    });
    if let (Some(object), Value::Object(latencies)) = (value.as_object_mut(), latencies_value(&all)) {
        object.extend(latencies);
        for (name, latencies) in [("reads", &report.reads), ("writes", &report.writes)] {
            if !latencies.is_empty() {
                object.insert(name.to_owned(), latencies_value(latencies));
            }
        }
    }
    value
}

fn latencies_value(latencies: &Latencies) -> Value {
    let at = |quantile| us(latencies.at(quantile));
    let curve: Vec<Value> =
        latencies.curve().into_iter().map(|(percentile, latency)| json!([percentile, us(latency)])).collect();
    json!({
        "mean_us": us(latencies.mean()),
        "p50_us": at(0.5),
        "p90_us": at(0.9),
        "p99_us": at(0.99),
        "p999_us": at(0.999),
        "max_us": us(latencies.max()),
        "percentiles_us": curve,
    })
}

fn text(plan: &Plan, report: &Report) -> String {
    let all = report.all();
    let per_second = report.requests_per_second();
    let stats = &report.stats;
    let mut lines = format!(
        "{} of {} bytes, window {}: {per_second:.0} a second ({}/s)",
        plan.what(),
        plan.block_bytes,
        plan.window,
        show_size((per_second * f64::from(plan.block_bytes)) as u64),
    );
    let rows: &[(&str, &Latencies)] = if report.reads.is_empty() || report.writes.is_empty() {
        &[("latency", &all)]
    } else {
        &[("reads  ", &report.reads), ("writes ", &report.writes)]
    };
    for (name, latencies) in rows {
        let at = |quantile| us(latencies.at(quantile));
        lines += &format!(
            "\n  {name}  mean {:.0} us, p50 {:.0} us, p90 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us",
            us(latencies.mean()),
            at(0.5),
            at(0.9),
            at(0.99),
            at(0.999),
            us(latencies.max()),
        );
    }
    lines
        + &format!(
            "\n  network  {} datagrams sent, {} repeated, {} answers \"busy\", {} ignored",
            stats.sent, stats.repeated, stats.busy, stats.ignored
        )
}
