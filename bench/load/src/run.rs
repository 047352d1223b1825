//! The loop: keeps a window of requests under way and times each.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::plan::{Places, Plan};

/// A service, as the loop sees it. A slot is the place of one request in the window; it is used again when its request
/// is answered.
pub trait Protocol {
    /// Writes a request for a slot into what is to be sent.
    fn request(&mut self, slot: usize, offset: u64) -> Result<()>;

    /// Sends what is to be sent, as far as the socket takes it now; whether that was all.
    fn send(&mut self) -> Result<bool>;

    /// Takes what has come without waiting, and adds the slots whose requests are answered.
    fn receive(&mut self, answered: &mut Vec<usize>) -> Result<()>;

    /// What the loop waits on.
    fn socket(&self) -> BorrowedFd<'_>;

    /// A slot's request was not answered for [`PATIENCE`]: asks again, if the protocol's network may lose. What cannot
    /// be lost and does not come is an error.
    fn ask_again(&mut self, slot: usize) -> Result<()>;

    /// How often the server had no room for a request, which was then made again.
    fn turned_away(&self) -> u64 {
        0
    }
}

/// How long an answer may take before the request is asked again. Long beside any latency that is measured: what was
/// lost shows as a lost request in the report, not as a better percentile.
pub const PATIENCE: Duration = Duration::from_millis(500);

/// Latencies are told apart up to this.
const LONGEST_NS: u64 = 60_000_000_000;

/// What came of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Answered in the measured time.
    pub requests: u64,
    pub per_second: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
    /// Requests that were asked again, warm-up included.
    pub asked_again: u64,
    /// How often the server had no room, warm-up included.
    pub turned_away: u64,
    /// CPU time of this program until now.
    pub cpu_seconds: f64,
}

struct Slot {
    started: Instant,
    asked: Instant,
}

/// Carries a plan out.
pub fn run(protocol: &mut dyn Protocol, plan: &Plan) -> Result<Report> {
    let mut places = Places::new(plan).context("the range is too small for this window")?;
    let mut latencies = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3).context("making a histogram")?;
    let begin = Instant::now();
    let measured = begin + plan.warm_up..begin + plan.warm_up + plan.duration;
    let mut slots = Vec::with_capacity(plan.window);
    for slot in 0..plan.window {
        protocol.request(slot, places.next(slot))?;
        slots.push(Slot { started: begin, asked: begin });
    }
    let mut asked_again = 0;
    let mut look_for_losses = begin + PATIENCE;
    let mut answered = Vec::new();
    loop {
        let all_sent = protocol.send()?;
        wait(protocol.socket(), !all_sent)?;
        protocol.receive(&mut answered)?;
        let now = Instant::now();
        if now >= measured.end {
            break;
        }
        for slot in answered.drain(..) {
            let place = slots.get_mut(slot).context("an answer to a slot that does not exist")?;
            if measured.contains(&now) {
                latencies.saturating_record(nanoseconds(now - place.started));
            }
            *place = Slot { started: now, asked: now };
            protocol.request(slot, places.next(slot))?;
        }
        if now >= look_for_losses {
            look_for_losses = now + PATIENCE / 8;
            for (slot, place) in slots.iter_mut().enumerate() {
                if now - place.asked >= PATIENCE {
                    place.asked = now;
                    asked_again += 1;
                    protocol.ask_again(slot)?;
                }
            }
        }
    }
    ensure!(!latencies.is_empty(), "no request was answered in {:?}", plan.duration);
    // Nothing measured here lasts 2^53 ns.
    let microseconds = |ns: u64| ns as f64 / 1000.0;
    let quantile = |quantile| microseconds(latencies.value_at_quantile(quantile));
    Ok(Report {
        requests: latencies.len(),
        per_second: latencies.len() as f64 / plan.duration.as_secs_f64(),
        mean_us: latencies.mean() / 1000.0,
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p999_us: quantile(0.999),
        max_us: microseconds(latencies.max()),
        asked_again,
        turned_away: protocol.turned_away(),
        cpu_seconds: cpu_seconds()?,
    })
}

fn cpu_seconds() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).context("asking for the CPU time")?;
    let total = usage.user_time() + usage.system_time();
    Ok(Duration::from_micros(total.num_microseconds().unsigned_abs()).as_secs_f64())
}

/// Until something has come, or (if something waits) can be sent; not longer than losses may stay unseen.
fn wait(socket: BorrowedFd<'_>, something_waits: bool) -> Result<()> {
    const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    let mut wanted = PollFlags::IN;
    wanted.set(PollFlags::OUT, something_waits);
    match poll(&mut [PollFd::new(&socket, wanted)], Some(&TICK)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error).context("waiting for answers"),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
