//! A few quantities, each taken several times: as JSON, as a table, and as bars.

use anyhow::{Context as _, Result};
use plotters::prelude::*;
use serde::Serialize;

use super::figures_file;
use super::statistics::Spread;
use crate::workspace;

/// What a measurement gave.
#[derive(Debug, Serialize)]
pub struct Report {
    pub name: &'static str,
    pub what: &'static str,
    pub unit: &'static str,
    pub machine: String,
    pub series: Vec<Series>,
}

/// One quantity, every time it was taken.
#[derive(Debug, Serialize)]
pub struct Series {
    pub label: String,
    pub values: Vec<f64>,
}

impl Series {
    /// Not one value: nothing that is a number.
    fn spread(&self) -> Spread {
        let nothing = Spread { median: f64::NAN, least: f64::NAN, most: f64::NAN, count: 0 };
        Spread::of(self.values.iter().copied()).unwrap_or(nothing)
    }
}

pub fn write(report: &Report) -> Result<()> {
    let json = serde_json::to_string_pretty(report).context("writing the figures")?;
    let text = markdown(report);
    let svg = plot(report).context("drawing the plot")?;
    let markdown_file = figures_file(&format!("{}.md", report.name));
    workspace::write_if_changed(&markdown_file.with_extension("json"), format!("{json}\n").as_bytes())?;
    workspace::write_if_changed(&markdown_file, text.as_bytes())?;
    workspace::write_if_changed(&markdown_file.with_extension("svg"), svg.as_bytes())?;
    println!("{text}\n{}, .json, .svg", markdown_file.display());
    Ok(())
}

fn markdown(report: &Report) -> String {
    let mut text = format!("# {}: {}\n\n{}\n\n", report.name, report.what, report.machine);
    text.push_str(&format!("| | median, {0} | least | most | runs |\n|---|---|---|---|---|\n", report.unit));
    for one in &report.series {
        let Spread { median, least, most, count } = one.spread();
        text.push_str(&format!("| {} | {median:.0} | {least:.0} | {most:.0} | {count} |\n", one.label));
    }
    text
}

/// A bar for each quantity, at its median, with a line from the least to the most.
fn plot(report: &Report) -> Result<String> {
    let mut svg = String::new();
    let bars = report.series.len();
    let top = report.series.iter().map(|one| one.spread().most).fold(1.0, f64::max) * 1.1;
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
            let spread = one.spread();
            let corners =
                [(SegmentValue::Exact(place), 0.0), (SegmentValue::Exact(place + 1), spread.median)];
            let mut bar = Rectangle::new(corners, RGBColor(70, 110, 160).filled());
            bar.set_margin(0, 0, 20, 20);
            chart.draw_series([bar])?;
            let centre = SegmentValue::CenterOf(place);
            chart.draw_series([PathElement::new(
                [(centre.clone(), spread.least), (centre, spread.most)],
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
