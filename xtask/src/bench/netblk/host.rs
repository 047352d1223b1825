//! What else the host did while something was measured.
//!
//! Two emulated CPUs and the generator share the host's; whatever else runs takes from them. So every figure has beside
//! it how much of the host the measured machine used, the machine that waited, and everybody else.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;

/// The unit of the times in /proc (proc(5), USER_HZ).
const TICKS_PER_SECOND: f64 = 100.0;

/// A moment.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    at: Instant,
    busy_seconds: f64,
    measured_seconds: f64,
    waiting_seconds: f64,
}

/// CPUs that were busy, on the average, between two moments.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Load {
    /// Of the machine that was measured.
    pub machine_cpus: f64,
    /// Of the machine that was not.
    pub waiting_machine_cpus: f64,
    pub generator_cpus: f64,
    pub others_cpus: f64,
}

impl Sample {
    pub fn take(measured: u32, waiting: u32) -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        Ok(Self {
            at: Instant::now(),
            busy_seconds: busy_ticks(&stat).context("understanding /proc/stat")? / TICKS_PER_SECOND,
            measured_seconds: process_seconds(measured)?,
            waiting_seconds: process_seconds(waiting)?,
        })
    }

    /// From this moment to a later one.
    pub fn until(&self, later: &Self, generator_cpu_seconds: f64) -> Load {
        let seconds = (later.at - self.at).as_secs_f64().max(1e-3);
        let machine_cpus = (later.measured_seconds - self.measured_seconds) / seconds;
        let waiting_machine_cpus = (later.waiting_seconds - self.waiting_seconds) / seconds;
        let generator_cpus = generator_cpu_seconds / seconds;
        let busy = (later.busy_seconds - self.busy_seconds) / seconds;
        let others_cpus = (busy - machine_cpus - waiting_machine_cpus - generator_cpus).max(0.0);
        Load { machine_cpus, waiting_machine_cpus, generator_cpus, others_cpus }
    }
}

/// Everything of the first line but the times of doing nothing, the fourth and the fifth.
fn busy_ticks(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let times: Vec<f64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // The last two are parts of the first two: guests' time.
    let counted = times.get(..8)?;
    Some(counted.iter().enumerate().filter(|(place, _)| !matches!(place, 3 | 4)).map(|(_, time)| time).sum())
}

/// Waits until a machine has nothing left to do of its start, for that would be measured with whatever comes first.
pub fn settle(pid: u32) -> Result<()> {
    const LOOK: Duration = Duration::from_millis(500);
    const QUIET_SECONDS: f64 = 0.025;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut before = process_seconds(pid)?;
    let mut quiet = 0;
    while quiet < 2 && Instant::now() < deadline {
        thread::sleep(LOOK);
        let now = process_seconds(pid)?;
        quiet = if now - before <= QUIET_SECONDS { quiet + 1 } else { 0 };
        before = now;
    }
    Ok(())
}

fn process_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("looking at process {pid}"))?;
    process_ticks(&stat).map(|ticks| ticks / TICKS_PER_SECOND).context("understanding /proc/PID/stat")
}

/// User and system time, fields 14 and 15; the second field is a name that may hold anything.
fn process_ticks(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_understood() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 1000 8 16 32 7 7\ncpu0 1\n"), Some(63.0));
        assert_eq!(busy_ticks("nothing"), None);
        assert_eq!(process_ticks("12 (a) b) S 1 2 3 4 5 6 7 8 9 10 70 5 0 0"), Some(75.0));
        assert_eq!(process_ticks("12 (a"), None);
        let own = std::process::id();
        let sample = Sample::take(own, own).unwrap();
        assert!(sample.busy_seconds > 0.0);
    }
}
