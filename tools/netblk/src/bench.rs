//! Random reads or writes for a while, and how long each took.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use netblk_proto::Info;

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
    /// Writes instead of reads: destroys what the range holds.
    pub writes: bool,
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

/// What came of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// Requests that landed in the measured time.
    pub requests: u64,
    /// The measured time.
    pub elapsed: Duration,
    /// From the first transmission to the last answer.
    pub mean: Duration,
    /// Half of the requests were at most this long under way.
    pub p50: Duration,
    /// 99 of 100.
    pub p99: Duration,
    /// All.
    pub max: Duration,
    /// Datagrams, warm-up included.
    pub stats: Stats,
}

impl Report {
    /// Requests a second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }
}

struct Bench<'a> {
    plan: &'a Plan,
    blocks: u64,
    random: Random,
    busy_blocks: HashSet<u64>,
    measure_from_ns: u64,
    end_ns: u64,
    latencies: Histogram<u64>,
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
        if !self.plan.writes {
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
            self.latencies.saturating_record(landed.latency_ns);
        }
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// [`Error::Usage`] if the plan does not fit the device; or the server's or the network's.
pub fn bench(client: &mut Client, plan: &Plan, progress: &dyn Fn(Duration)) -> Result<Report, Error> {
    let info = client.info();
    check(&info, plan)?;
    client.set_window(plan.window);
    let latencies = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, 3)
        .map_err(|error| Error::Usage(error.to_string()))?;
    let mut bench = Bench {
        plan,
        blocks: plan.length / u64::from(plan.block_bytes),
        random: Random::new(plan.seed),
        busy_blocks: HashSet::new(),
        measure_from_ns: 0,
        end_ns: 0,
        latencies,
        progress,
    };
    client.run(&mut bench)?;
    let latencies = &bench.latencies;
    Ok(Report {
        requests: latencies.len(),
        elapsed: plan.duration,
        mean: Duration::from_nanos(latencies.mean() as u64),
        p50: Duration::from_nanos(latencies.value_at_quantile(0.5)),
        p99: Duration::from_nanos(latencies.value_at_quantile(0.99)),
        max: Duration::from_nanos(latencies.max()),
        stats: client.stats(),
    })
}

fn check(info: &Info, plan: &Plan) -> Result<(), Error> {
    check_range(info, plan.offset, plan.length)?;
    let limit = if plan.writes { info.max_write_bytes } else { info.max_read_bytes };
    if plan.block_bytes == 0
        || !plan.block_bytes.is_multiple_of(info.sector_bytes)
        || plan.block_bytes > limit
    {
        return Err(Error::Usage(format!(
            "--block {} must be whole sectors of {} bytes, and at most {limit}",
            plan.block_bytes, info.sector_bytes
        )));
    }
    if plan.writes {
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
