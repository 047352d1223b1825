//! Random reads, writes, or both for a while, and how long each took.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use netblk_proto::v2::Op;

use crate::client::{Client, Job};
use crate::engine::{Landed, Request, Stats};
use crate::error::Error;
use crate::pattern::{self, Random};
use crate::transfer::{check_range, check_writable};

/// Requests before this are not counted: the first ones find cold caches and an open window.
const WARM_UP: Duration = Duration::from_millis(500);

/// Latencies are told apart up to this; nothing that is still asked for takes longer.
const LONGEST: Duration = Duration::from_secs(600);

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How many of 100 requests are writes. Any but 0 destroys what the range holds.
    pub write_percent: u32,
    /// Write through the disk's cache.
    pub fua: bool,
    /// Bytes of a request, whole sectors.
    pub block_bytes: u32,
    /// Requests under way.
    pub window: u32,
    /// How long, the warm-up not counted.
    pub duration: Duration,
    /// The range, whole sectors.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// Which places, in which order.
    pub seed: u64,
}

impl Plan {
    /// One word for it.
    pub const fn op(&self) -> &'static str {
        match self.write_percent {
            0 => "read",
            1..100 => "mix",
            _ => "write",
        }
    }

    /// What it measures, for people.
    pub fn what(&self) -> String {
        match self.write_percent {
            0 => "random reads".to_owned(),
            share @ 1..100 => format!("random reads and {share} % writes"),
            _ => "random writes".to_owned(),
        }
    }
}

/// How long requests took, from the first transmission to the last answer.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// None so far.
    ///
    /// # Errors
    /// None that the bounds, which are constant, do not bring; the histogram's maker knows them only at run time.
    pub fn new() -> Result<Self, Error> {
        Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3)
            .map(Self)
            .map_err(|error| Error::Usage(error.to_string()))
    }

    /// One request.
    pub fn record(&mut self, latency_ns: u64) {
        self.0.saturating_record(latency_ns);
    }

    /// Whether there was no request.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many requests there were.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// The mean.
    pub fn mean(&self) -> Duration {
        Duration::from_nanos(self.0.mean() as u64)
    }

    /// This share of the requests was at most so long under way.
    pub fn at(&self, quantile: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_quantile(quantile))
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.0.max())
    }

    /// Percentiles and their latencies, in finer and finer steps towards 100: as far as there are requests beyond.
    pub fn curve(&self) -> Vec<(f64, Duration)> {
        // Twenty steps for each nine: 0, 10.9, ... 90, ... 99, ...
        (0..)
            .map(|step| f64::powf(10.0, -f64::from(step) / 20.0))
            .take_while(|&beyond| beyond * self.len() as f64 >= 1.0)
            .map(|beyond| (100.0 * (1.0 - beyond), self.at(1.0 - beyond)))
            .collect()
    }
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// The measured time.
    pub elapsed: Duration,
    /// The reads that landed in the measured time.
    pub reads: Latencies,
    /// The writes.
    pub writes: Latencies,
    /// Datagrams of this run, warm-up included.
    pub stats: Stats,
}

impl Report {
    /// Requests that landed.
    pub fn requests(&self) -> u64 {
        self.reads.len() + self.writes.len()
    }

    /// Requests a second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests() as f64 / self.elapsed.as_secs_f64()
    }

    /// Reads and writes together.
    pub fn all(&self) -> Latencies {
        let mut all = self.reads.0.clone();
        all += &self.writes.0;
        Latencies(all)
    }
}

struct Bench<'a> {
    plan: &'a Plan,
    blocks: u64,
    random: Random,
    busy_blocks: HashSet<u64>,
    measure_from_ns: u64,
    end_ns: u64,
    reads: Latencies,
    writes: Latencies,
    progress: &'a dyn Fn(Duration),
}

impl Job for Bench<'_> {
    fn next(&mut self, now_ns: u64) -> Result<Option<Request>, Error> {
        if self.measure_from_ns == 0 {
            self.measure_from_ns = now_ns + WARM_UP.as_nanos() as u64;
            self.end_ns = self.measure_from_ns + self.plan.duration.as_nanos() as u64;
        }
        if now_ns >= self.end_ns {
            return Ok(None);
        }
        // Two requests of which one writes where the other reads or writes are never under way
        // together: the protocol's rule for clients.
        let block = loop {
            let block = self.random.below(self.blocks);
            if self.busy_blocks.insert(block) {
                break block;
            }
        };
        let offset = self.plan.offset + block * u64::from(self.plan.block_bytes);
        if self.random.below(100) >= u64::from(self.plan.write_percent) {
            return Ok(Some(Request::Read { offset, length: self.plan.block_bytes }));
        }
        let mut data = vec![0; self.plan.block_bytes as usize];
        pattern::fill(self.plan.seed, offset, &mut data);
        Ok(Some(Request::Write { offset, data: Arc::new(data), fua: self.plan.fua }))
    }

    fn landed(&mut self, landed: &Landed, now_ns: u64) -> Result<(), Error> {
        let block = (landed.offset - self.plan.offset) / u64::from(self.plan.block_bytes);
        self.busy_blocks.remove(&block);
        (self.progress)(Duration::from_nanos(now_ns.saturating_sub(self.measure_from_ns)));
        if (self.measure_from_ns..self.end_ns).contains(&now_ns) {
            let latencies = if landed.op == Op::Read { &mut self.reads } else { &mut self.writes };
            latencies.record(landed.latency_ns);
        }
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// [`Error::Usage`] if the plan does not fit the device; or the server's or the network's.
pub fn bench(client: &mut Client, plan: &Plan, progress: &dyn Fn(Duration)) -> Result<Report, Error> {
    check(client, plan)?;
    client.set_window(plan.window);
    let before = client.stats();
    let mut bench = Bench {
        plan,
        blocks: plan.length / u64::from(plan.block_bytes),
        random: Random::new(plan.seed),
        busy_blocks: HashSet::new(),
        measure_from_ns: 0,
        end_ns: 0,
        reads: Latencies::new()?,
        writes: Latencies::new()?,
        progress,
    };
    client.run(&mut bench)?;
    let stats = client.stats().since(&before);
    Ok(Report { elapsed: plan.duration, reads: bench.reads, writes: bench.writes, stats })
}

/// Whether a plan fits the device.
///
/// # Errors
/// [`Error::Usage`] says what does not.
pub fn check(client: &Client, plan: &Plan) -> Result<(), Error> {
    let info = &client.info();
    check_range(info, plan.offset, plan.length)?;
    let limit = match plan.write_percent {
        0 => info.max_read_bytes,
        1..100 => info.max_read_bytes.min(info.max_write_bytes),
        _ => info.max_write_bytes,
    };
    if plan.block_bytes == 0
        || !plan.block_bytes.is_multiple_of(info.sector_bytes)
        || plan.block_bytes > limit
    {
        return Err(Error::Usage(format!(
            "--block {} must be whole sectors of {} bytes, and at most {limit}",
            plan.block_bytes, info.sector_bytes
        )));
    }
    if plan.write_percent > 0 {
        check_writable(info)?;
    }
    let blocks = plan.length / u64::from(plan.block_bytes);
    if blocks < 2 * u64::from(plan.window) {
        return Err(Error::Usage(format!(
            "a range of {blocks} blocks is too small for a window of {}: twice as many blocks are needed",
            plan.window
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_ends_where_the_requests_do() {
        let mut latencies = Latencies::new().unwrap();
        assert!(latencies.curve().is_empty());
        for number in 1..=1000 {
            latencies.record(number * 1000);
        }
        let curve = latencies.curve();
        // Twenty steps for each of three nines, and the beginning.
        assert_eq!(curve.len(), 61);
        assert!(curve.is_sorted());
        let (percentile, latency) = curve[20];
        assert!((percentile - 90.0).abs() < 1e-9 && (890..910).contains(&latency.as_micros()));
        assert!((curve[60].0 - 99.9).abs() < 1e-9);
    }
}
