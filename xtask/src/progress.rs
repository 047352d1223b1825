//! What the person sees while something takes long.
//!
//! On a terminal a step is a spinner with the last thing that happened, and becomes one line when it is done; into a
//! file or a CI log it is two plain lines. All of it goes to standard error: standard output is for results.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// One step of a command.
pub struct Step {
    name: String,
    started: Instant,
    bar: Option<ProgressBar>,
    ended: bool,
}

impl Step {
    pub fn begin(name: impl Into<String>) -> Self {
        let name = name.into();
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg:.dim}") {
                bar.set_style(style);
            }
            bar.set_prefix(name.clone());
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        if bar.is_none() {
            eprintln!("- {name} ...");
        }
        Step { name, started: Instant::now(), bar, ended: false }
    }

    /// The last thing that happened: shown on a terminal only, where it can be overwritten.
    pub fn note(&self, note: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(note.chars().filter(|letter| !letter.is_control()).take(200).collect::<String>());
        }
    }

    /// Something that is worth a line of its own.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("  {line}")),
            None => eprintln!("  {line}"),
        }
    }

    pub fn done(mut self, result: impl AsRef<str>) {
        self.ended = true;
        self.end("done", result.as_ref());
    }

    fn end(&self, word: &str, result: &str) {
        let seconds = self.started.elapsed().as_secs_f64();
        let time = if seconds >= 0.5 { format!(" ({seconds:.1} s)") } else { String::new() };
        let colon = if result.is_empty() { "" } else { ": " };
        let line = format!("{word}: {}{colon}{result}{time}", self.name);
        match &self.bar {
            Some(bar) => {
                bar.finish_and_clear();
                eprintln!("{line}");
            }
            None => eprintln!("  {line}"),
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.ended {
            self.end("FAILED", "");
        }
    }
}
