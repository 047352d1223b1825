//! `cargo xtask bench`: what is measured, how, and where the figures go.
//!
//! Every measurement writes three files under `target/bench/`: Markdown for people, JSON for programs, and a plot. The
//! figures are of this machine and this emulator, and say so.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use plotters::prelude::*;
use serde::Serialize;

use crate::node::Folder;
use crate::qemu;
use crate::requirements;
use crate::run;
use crate::up::{self, Options};
use crate::workspace;

/// What a measurement gave.
#[derive(Debug, Serialize)]
struct Report {
    name: &'static str,
    what: &'static str,
    unit: &'static str,
    machine: String,
    series: Vec<Series>,
}

/// One quantity, every time it was taken.
#[derive(Debug, Serialize)]
struct Series {
    label: String,
    values: Vec<f64>,
}

impl Series {
    fn sorted(&self) -> Vec<f64> {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        values
    }

    fn median(&self) -> f64 {
        let values = self.sorted();
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn least(&self) -> f64 {
        self.sorted().first().copied().unwrap_or(f64::NAN)
    }

    fn most(&self) -> f64 {
        self.sorted().last().copied().unwrap_or(f64::NAN)
    }
}

struct Bench {
    name: &'static str,
    what: &'static str,
    measure: fn(u32) -> Result<Report>,
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "boot",
        what: "from the emulator's start to the shell, and to each guest's",
        measure: boot,
    },
    Bench {
        name: "netblk",
        what: "reads and writes a second of the disk over UDP, by window",
        measure: netblk,
    },
];

pub fn measure(names: &[String], runs: u32) -> Result<()> {
    if names.is_empty() {
        for bench in BENCHES {
            println!("{:<10} {}", bench.name, bench.what);
        }
        return Ok(());
    }
    for name in names {
        let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
            bail!("no bench {name}; `cargo xtask bench` lists them");
        };
        let report = (bench.measure)(runs)?;
        write(&report)?;
    }
    Ok(())
}

/// What a figure cannot be read without.
fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("an unknown processor", |(_, model)| model);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (major, minor) = requirements::qemu_version().unwrap_or((0, 0));
    let accelerator = if qemu::kvm_is_usable() { "KVM" } else { "TCG" };
    format!("{cpus} CPUs of {model}; QEMU {major}.{minor} with {accelerator}")
}

fn boot(runs: u32) -> Result<Report> {
    let folder = Folder::new("bench")?;
    let _lock = folder.lock()?;
    let mut series = vec![Series { label: "shell".to_owned(), values: Vec::new() }];
    for run in 1..=runs {
        eprintln!("boot {run} of {runs}");
        let (node, endpoints) = up::boot(&Options::plain(&folder.name), &folder)?;
        drop(node);
        // Exact: no boot takes 2^53 ms.
        series[0].values.push(endpoints.boot.shell_ms as f64);
        for (guest, ms) in &endpoints.boot.guests_ms {
            let label = format!("guest {guest}");
            if !series.iter().any(|one| one.label == label) {
                series.push(Series { label: label.clone(), values: Vec::new() });
            }
            if let Some(one) = series.iter_mut().find(|one| one.label == label) {
                one.values.push(*ms as f64);
            }
        }
    }
    let what = "time from the emulator's start, with the default configuration";
    Ok(Report { name: "boot", what, unit: "ms", machine: machine(), series })
}

/// The windows that are measured: one request at a time, and more under way at once.
const WINDOWS: [u32; 4] = [1, 4, 16, 64];

fn netblk(runs: u32) -> Result<Report> {
    let folder = Folder::new("bench")?;
    let _lock = folder.lock()?;
    // Without guests: they would share the emulator's processors with what is measured.
    let configuration = folder.file("bench.toml");
    workspace::write_if_changed(&configuration, b"[[netblk]]\ndisk = \"nvme0n1\"\nport = 10809\n")?;
    let (_node, endpoints) =
        up::boot(&Options { config: configuration, ..Options::plain(&folder.name) }, &folder)?;
    let service = endpoints.netblk.first().context("the node serves no disk")?;
    let server = format!("{}:{}", service.address, service.port);
    let mut series = Vec::new();
    for (label, option) in [("reads", None), ("writes", Some("--destructive-writes"))] {
        for window in WINDOWS {
            let mut values = Vec::new();
            for run in 1..=runs {
                eprintln!("{label}, window {window}: run {run} of {runs}");
                let mut command = Command::new("cargo");
                command.args(["run", "--release", "--quiet", "--package", "netblk", "--", "bench", &server]);
                command.args(["--json", "--quiet", "--seconds", "3", "--window", &window.to_string()]);
                command.args(option);
                values.push(requests_per_second(&run::output(&mut command)?)?);
            }
            series.push(Series { label: format!("{label}, {window}"), values });
        }
    }
    let what = "random 1 KiB requests a second over UDP, by window";
    Ok(Report { name: "netblk", what, unit: "1/s", machine: machine(), series })
}

/// The client's figure.
fn requests_per_second(json: &str) -> Result<f64> {
    let value: serde_json::Value =
        serde_json::from_str(json).context("understanding the client's figures")?;
    value["iops"].as_f64().with_context(|| format!("no iops in {value}"))
}

fn write(report: &Report) -> Result<()> {
    let folder = workspace::target().join("bench");
    let file = |end: &str| -> PathBuf { folder.join(format!("{}.{end}", report.name)) };
    let json = serde_json::to_string_pretty(report).context("writing the figures")?;
    workspace::write_if_changed(&file("json"), format!("{json}\n").as_bytes())?;
    let text = markdown(report);
    workspace::write_if_changed(&file("md"), text.as_bytes())?;
    let svg = plot(report).context("drawing the plot")?;
    workspace::write_if_changed(&file("svg"), svg.as_bytes())?;
    println!("{text}\n{}, .json, .svg", file("md").display());
    Ok(())
}

fn markdown(report: &Report) -> String {
    let mut text = format!("# {}: {}\n\n{}\n\n", report.name, report.what, report.machine);
    text.push_str(&format!("| | median, {0} | least | most | runs |\n|---|---|---|---|---|\n", report.unit));
    for one in &report.series {
        text.push_str(&format!(
            "| {} | {:.0} | {:.0} | {:.0} | {} |\n",
            one.label,
            one.median(),
            one.least(),
            one.most(),
            one.values.len()
        ));
    }
    text
}

/// A bar for each quantity, at its median, with a line from the least to the most.
fn plot(report: &Report) -> Result<String> {
    let mut svg = String::new();
    let bars = report.series.len();
    let top = report.series.iter().map(Series::most).fold(1.0, f64::max) * 1.1;
    {
        let area = SVGBackend::with_string(&mut svg, (720, 400)).into_drawing_area();
        area.fill(&WHITE)?;
        let end = u32::try_from(bars).unwrap_or(u32::MAX);
        let mut chart = ChartBuilder::on(&area)
            .caption(format!("{}, {}", report.what, report.unit), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(30)
            .y_label_area_size(60)
            .build_cartesian_2d((0..end).into_segmented(), 0.0..top)?;
        let labels: Vec<&str> = report.series.iter().map(|one| one.label.as_str()).collect();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(bars)
            .x_label_formatter(&|place| match place {
                SegmentValue::CenterOf(place) | SegmentValue::Exact(place) => {
                    labels.get(*place as usize).map_or(String::new(), |label| (*label).to_owned())
                }
                SegmentValue::Last => String::new(),
            })
            .draw()?;
        for (place, one) in (0..end).zip(&report.series) {
            let corners = [(SegmentValue::Exact(place), 0.0), (SegmentValue::Exact(place + 1), one.median())];
            let mut bar = Rectangle::new(corners, RGBColor(70, 110, 160).filled());
            bar.set_margin(0, 0, 20, 20);
            chart.draw_series([bar])?;
            let centre = SegmentValue::CenterOf(place);
            chart.draw_series([PathElement::new(
                [(centre.clone(), one.least()), (centre, one.most())],
                BLACK,
            )])?;
        }
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let series = vec![
            Series { label: "shell".into(), values: vec![700.0, 650.0, 900.0] },
            Series { label: "guest alpha".into(), values: vec![4000.0] },
        ];
        Report { name: "boot", what: "time", unit: "ms", machine: "a machine".into(), series }
    }

    #[test]
    fn the_table_has_a_row_for_each_quantity() {
        let text = markdown(&report());
        assert!(text.contains("| shell | 700 | 650 | 900 | 3 |"), "{text}");
        assert!(text.contains("| guest alpha | 4000 | 4000 | 4000 | 1 |"), "{text}");
    }

    #[test]
    fn the_plot_is_an_svg_with_a_bar_each() {
        let svg = plot(&report()).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.matches("#466EA0").count() >= 2, "{svg}");
    }
}
