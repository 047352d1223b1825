//! Latencies as a drawing (SVG): a curve for each measurement, and requests a second by window.
//!
//! The curve's horizontal axis is the percentile, stretched so that each further nine (90, 99, 99.9) has
//! as much room: a disk is judged by its slowest requests, and a histogram hides them. Both axes of latency and of
//! windows are logarithmic.

use std::error::Error;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::bench::{Latencies, Plan, Report};

const WIDTH: u32 = 960;
const CURVES_HEIGHT: u32 = 540;
const WINDOWS_HEIGHT: u32 = 320;
const TITLE_HEIGHT: u32 = 34;
const FONT: &str = "sans-serif";

/// Colours that most people can tell apart (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// One curve.
struct Curve<'a> {
    label: String,
    latencies: &'a Latencies,
}

/// The measurements with one block size: requests a second by window.
struct Series {
    label: String,
    points: Vec<(f64, f64)>,
}

/// Draws measurements under a title.
///
/// # Errors
/// If there is nothing to draw, or the drawing's maker fails.
pub fn draw(title: &str, runs: &[(Plan, Report)]) -> Result<String, Box<dyn Error>> {
    let curves = curves(runs);
    if curves.is_empty() {
        return Err("no request was answered".into());
    }
    let series = series(runs);
    // A point is no line: one window alone is in the curve's label.
    let has_windows = series.iter().any(|one| one.points.len() > 1);
    let height = TITLE_HEIGHT + CURVES_HEIGHT + if has_windows { WINDOWS_HEIGHT } else { 0 };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let (head, body) = area.split_vertically(TITLE_HEIGHT);
        head.draw(&Text::new(title.to_owned(), (16, 12), (FONT, 18)))?;
        let (above, below) = body.split_vertically(CURVES_HEIGHT);
        draw_curves(&above, &curves)?;
        if has_windows {
            draw_windows(&below, &series)?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn curves(runs: &[(Plan, Report)]) -> Vec<Curve<'_>> {
    let mut curves = Vec::new();
    for (plan, report) in runs {
        for (op, latencies) in [("reads", &report.reads), ("writes", &report.writes)] {
            if !latencies.is_empty() {
                let per_second = latencies.len() as f64 / report.elapsed.as_secs_f64();
                let Plan { block_bytes, window, .. } = plan;
                let label = format!("{block_bytes} B {op}, window {window}: {per_second:.0}/s");
                curves.push(Curve { label, latencies });
            }
        }
    }
    curves
}

fn series(runs: &[(Plan, Report)]) -> Vec<Series> {
    let mut series: Vec<Series> = Vec::new();
    for (plan, report) in runs {
        let label = format!("{} of {} B", plan.what(), plan.block_bytes);
        let point = (f64::from(plan.window), report.requests_per_second());
        match series.iter_mut().find(|one| one.label == label) {
            Some(one) => one.points.push(point),
            None => series.push(Series { label, points: vec![point] }),
        }
    }
    for one in &mut series {
        one.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    series
}

fn colour(place: usize) -> RGBColor {
    COLOURS[place % COLOURS.len()]
}

/// How many nines a percentile has: 0 for 0, 1 for 90, 2 for 99.
fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).max(f64::MIN_POSITIVE).log10()
}

/// The percentile with so many nines, as it is written.
fn percentile_label(nines: &f64) -> String {
    match nines.round() as usize {
        _ if (nines - nines.round()).abs() > 1e-6 => String::new(),
        0 => "0 %".to_owned(),
        1 => "90 %".to_owned(),
        2 => "99 %".to_owned(),
        more => format!("99.{} %", "9".repeat(more - 2)),
    }
}

fn draw_curves(area: &Area<'_>, curves: &[Curve<'_>]) -> Drawn {
    let points: Vec<Vec<(f64, f64)>> = curves
        .iter()
        .map(|curve| {
            let points = curve.latencies.curve();
            points.into_iter().map(|(percentile, one)| (nines(percentile), one.as_secs_f64() * 1e6)).collect()
        })
        .collect();
    let all = || points.iter().flatten();
    let right = all().map(|point| point.0).fold(1.0, f64::max);
    let least = all().map(|point| point.1).fold(f64::INFINITY, f64::min).max(0.1);
    let most = all().map(|point| point.1).fold(least, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption("Latency by percentile", (FONT, 16))
        .margin(12)
        .margin_right(30)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..right, (least / 1.3..most * 1.3).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(right as usize + 1)
        .x_label_formatter(&percentile_label)
        .y_label_formatter(&|latency| format!("{latency:.0}"))
        .x_desc("requests that took at most so long, percent (each mark: one nine more)")
        .y_desc("latency, microseconds")
        .axis_desc_style((FONT, 14))
        .light_line_style(RGBColor(240, 240, 240))
        .draw()?;
    for (place, (curve, points)) in curves.iter().zip(points).enumerate() {
        let style = colour(place).stroke_width(2);
        chart
            .draw_series(LineSeries::new(points, style))?
            .label(curve.label.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

fn draw_windows(area: &Area<'_>, series: &[Series]) -> Drawn {
    let all = || series.iter().flat_map(|one| &one.points);
    let right = all().map(|point| point.0).fold(2.0, f64::max);
    let left = all().map(|point| point.0).fold(right, f64::min);
    let top = all().map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption("Requests a second by window", (FONT, 16))
        .margin(12)
        .margin_right(30)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d((left / 1.1..right * 1.1).log_scale().base(2.0), 0.0..top)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|window| format!("{window:.0}"))
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .x_desc("requests under way at once")
        .y_desc("requests a second")
        .axis_desc_style((FONT, 14))
        .light_line_style(RGBColor(240, 240, 240))
        .draw()?;
    for (place, one) in series.iter().enumerate() {
        let style = colour(place).stroke_width(2);
        chart
            .draw_series(LineSeries::new(one.points.iter().copied(), style).point_size(4))?
            .label(one.label.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font((FONT, 13))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::Stats;

    fn run(window: u32, write_percent: u32) -> (Plan, Report) {
        let plan = Plan {
            write_percent,
            fua: false,
            block_bytes: 1024,
            window,
            duration: Duration::from_secs(1),
            offset: 0,
            length: 1 << 30,
            seed: 1,
        };
        let mut reads = Latencies::new().unwrap();
        let mut writes = Latencies::new().unwrap();
        for number in 0..10_000_u64 {
            let latency_ns = 150_000 + number * number * u64::from(window);
            let is_write = number % 100 < u64::from(write_percent);
            if is_write { writes.record(latency_ns) } else { reads.record(latency_ns) }
        }
        (plan, Report { elapsed: Duration::from_secs(1), reads, writes, stats: Stats::default() })
    }

    #[test]
    fn every_measurement_has_its_curve_and_both_axes_say_what_they_are() {
        let svg = draw("a title", &[run(1, 0), run(16, 30), run(64, 100)]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["a title", "latency, microseconds", "percent", "99.9 %", "window 64", "7000/s"] {
            assert!(svg.contains(text), "{text}");
        }
        // Reads, reads and writes, writes. Three kinds with a window each make no second drawing.
        assert_eq!(curves(&[run(1, 0), run(16, 30), run(64, 100)]).len(), 4);
        assert!(!draw("one", &[run(1, 0)]).unwrap().contains("requests under way"));
        let two = draw("two", &[run(1, 0), run(4, 0)]).unwrap();
        assert!(two.contains("requests under way") && two.contains("requests a second"));
    }

    #[test]
    fn nothing_cannot_be_drawn() {
        let (plan, mut report) = run(1, 0);
        report.reads = Latencies::new().unwrap();
        assert!(draw("nothing", &[(plan, report)]).is_err());
    }

    #[test]
    fn percentiles_are_written_with_their_nines() {
        for (percentile, label) in [(0.0, "0 %"), (90.0, "90 %"), (99.0, "99 %"), (99.99, "99.99 %")] {
            assert_eq!(percentile_label(&nines(percentile)), label);
        }
        assert_eq!(percentile_label(&0.5), "");
    }
}
