//! The figures as plots: one for each card, requests a second above and p99 below, a column for each pattern.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::qemu::Nic;

use super::cases::{Case, Pattern, Service, WINDOWS};
use super::results::{Cell, Results, nic_label};

const SIZE: (u32, u32) = (1200, 760);
const LEGEND_HEIGHT: u32 = 40;
const FONT: &str = "sans-serif";

/// Names of files, and what is in them.
pub fn all(results: &Results) -> Result<Vec<(String, String)>> {
    results
        .nics()
        .into_iter()
        .map(|nic| Ok((format!("netblk-{}.svg", nic_label(nic)), draw(results, nic)?)))
        .collect()
}

/// What is compared with what, and its colour: the node's in blue, Linux's in warm colours, the floors pale.
const fn colour(service: Service) -> RGBColor {
    match service {
        Service::Netblk => RGBColor(31, 86, 160),
        Service::Netblk2 => RGBColor(70, 135, 210),
        Service::NodeEcho => RGBColor(125, 170, 220),
        Service::NodeDisk => RGBColor(185, 212, 240),
        Service::NodeBoth => RGBColor(170, 190, 215),
        Service::NbdServer => RGBColor(190, 60, 40),
        Service::QemuNbd => RGBColor(220, 130, 50),
        Service::Nvmet => RGBColor(150, 100, 60),
        Service::LinuxEcho => RGBColor(235, 190, 150),
        Service::LinuxDisk => RGBColor(245, 220, 195),
    }
}

/// A quantity that has a row of charts.
struct Quantity {
    what: &'static str,
    height: fn(&Cell) -> f64,
    spread: fn(&Cell) -> Option<(f64, f64)>,
    is_logarithmic: bool,
}

const QUANTITIES: [Quantity; 2] = [
    Quantity {
        what: "requests a second",
        height: |cell| cell.per_second.median,
        spread: |cell| Some((cell.per_second.least, cell.per_second.most)),
        is_logarithmic: false,
    },
    Quantity {
        what: "p99, microseconds",
        height: |cell| cell.p99_us,
        spread: |_| None,
        is_logarithmic: true,
    },
];

fn draw(results: &Results, nic: Nic) -> Result<String> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (legend, charts) = area.split_vertically(LEGEND_HEIGHT);
        draw_legend(&legend, nic)?;
        let cells = charts.split_evenly((QUANTITIES.len(), Pattern::ALL.len()));
        let places = QUANTITIES.iter().flat_map(|quantity| Pattern::ALL.map(|pattern| (quantity, pattern)));
        for (area, (quantity, pattern)) in cells.iter().zip(places) {
            draw_chart(area, results, nic, quantity, pattern)?;
        }
        area.present()?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn draw_legend(area: &Area<'_>, nic: Nic) -> Result<()> {
    let services = Service::of(nic);
    let (width, _) = area.dim_in_pixel();
    let step = i32::try_from(width)? / i32::try_from(services.len() + 1)?;
    area.draw(&Text::new(nic_label(nic), (16, 14), (FONT, 18)))?;
    for (place, service) in (1..).zip(services) {
        let x = place * step;
        area.draw(&Rectangle::new([(x, 14), (x + 14, 28)], colour(*service).filled()))?;
        area.draw(&Text::new(service.label(), (x + 20, 16), (FONT, 13)))?;
    }
    Ok(())
}

/// Bars in a group for each window: the group's number, and the service's place in it.
fn draw_chart(
    area: &Area<'_>,
    results: &Results,
    nic: Nic,
    quantity: &Quantity,
    pattern: Pattern,
) -> Result<()> {
    let services = Service::of(nic);
    let mut bars = Vec::new();
    for (group, window) in WINDOWS.iter().enumerate() {
        for (place, service) in services.iter().enumerate() {
            if let Some(cell) = results.cell(nic, *service, Case { pattern, window: *window }) {
                let (height, range) = ((quantity.height)(&cell), (quantity.spread)(&cell));
                // Three groups of at most nine.
                let width = 0.8 / services.len() as f64;
                let left = group as f64 - 0.4 + place as f64 * width;
                bars.push(Bar { left, width, height, range, colour: colour(*service) });
            }
        }
    }
    let top = bars.iter().map(|bar| bar.range.map_or(bar.height, |range| range.1)).fold(1.0, f64::max) * 1.1;
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(format!("{}: {}", pattern.label(), quantity.what), (FONT, 15))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(56);
    // A group's bars lie around its number, where its name stands.
    let groups = -0.5..WINDOWS.len() as f64 - 0.5;
    let window_name = |x: &f64| {
        let window = WINDOWS.get(*x as usize).filter(|_| *x >= 0.0 && x.fract() == 0.0);
        window.map_or(String::new(), |window| format!("window {window}"))
    };
    let whole = |y: &f64| format!("{y:.0}");
    if quantity.is_logarithmic {
        let bottom = bars.iter().map(|bar| bar.height).fold(top, f64::min) / 2.0;
        let mut chart = builder.build_cartesian_2d(groups, (bottom..top).log_scale())?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(4)
            .x_label_formatter(&window_name)
            .y_label_formatter(&whole)
            .draw()?;
        for bar in &bars {
            chart.draw_series([bar.body(bottom)])?;
        }
    } else {
        let mut chart = builder.build_cartesian_2d(groups, 0.0..top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(4)
            .x_label_formatter(&window_name)
            .y_label_formatter(&whole)
            .draw()?;
        for bar in &bars {
            chart.draw_series([bar.body(0.0)])?;
            chart.draw_series(bar.spread())?;
        }
    }
    Ok(())
}

struct Bar {
    left: f64,
    width: f64,
    height: f64,
    range: Option<(f64, f64)>,
    colour: RGBColor,
}

impl Bar {
    fn body(&self, bottom: f64) -> Rectangle<(f64, f64)> {
        let corners = [(self.left, bottom), (self.left + self.width * 0.9, self.height)];
        Rectangle::new(corners, self.colour.filled())
    }

    /// A line from the least to the most.
    fn spread(&self) -> Option<PathElement<(f64, f64)>> {
        let (least, most) = self.range?;
        let middle = self.left + self.width * 0.45;
        Some(PathElement::new([(middle, least), (middle, most)], BLACK))
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::made_up;
    use super::*;

    #[test]
    fn a_plot_has_a_bar_for_each_figure() {
        let plots = all(&made_up()).unwrap();
        let [(name, svg)] = plots.as_slice() else { panic!("{} plots", plots.len()) };
        assert_eq!(name, "netblk-virtio-net.svg");
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        // Nine cases, twice, and the legend.
        assert_eq!(svg.matches("#1F56A0").count(), 19);
    }
}
