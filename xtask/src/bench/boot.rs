//! From the emulator's start to the shell, and to each guest's.

use anyhow::Result;

use crate::node::Folder;
use crate::up::{self, Options};

use super::machine;
use super::report::{Report, Series};

pub fn measure(runs: u32) -> Result<Report> {
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
