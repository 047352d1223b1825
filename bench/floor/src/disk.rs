//! The disk's load: random places, a window of transfers under way, each timed.
//!
//! It works as netblk's worker does: a task of high priority on the last CPU that hands over everything there is and
//! rings one doorbell, and that polls for a little while before it sleeps; so what it reaches is what netblk could.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use alloc::{format, vec};

use kcore::block::{self, BlockIo, BlockOp, CompletionSink, Disk, IoStatus, SubmitError};
use kcore::cpu;
use kcore::dma::{DmaBuffer, DmaMemory};
use kcore::event::Event;
use kcore::shell::Trouble;
use kcore::sync::IrqSpinLock;
use kcore::task::{self, Placement, Priority};
use kcore::time;
use rings::Ring;

const MOST_WINDOW: usize = 256;
const MOST_BYTES: u32 = 4096;
const MOST_MS: u64 = 60_000;
/// How long it polls before it sleeps, with transfers under way: as long as netblk's worker.
const POLL_NS: u64 = 50_000;
/// Latencies that are kept; of those beyond only the number counts.
const MOST_LATENCIES: usize = 1 << 18;

/// What is asked of the disk.
#[derive(Clone, Copy)]
pub struct Load {
    op: BlockOp,
    bytes: u32,
    window: usize,
    duration_ms: u64,
    warm_up_ms: u64,
}

impl Load {
    /// Reads `read|write BYTES WINDOW MS [WARM_UP_MS]`.
    pub fn parse(words: &[&str]) -> Option<Self> {
        let (words, warm_up_ms) = match words {
            [words @ .., warm_up_ms] if words.len() == 4 => (words, warm_up_ms.parse().ok()?),
            words => (words, 0),
        };
        let [op, bytes, window, duration_ms] = words else { return None };
        let load = Self {
            op: match *op {
                "read" => BlockOp::Read,
                "write" => BlockOp::Write,
                _ => return None,
            },
            bytes: bytes.parse().ok()?,
            window: window.parse().ok()?,
            duration_ms: duration_ms.parse().ok()?,
            warm_up_ms,
        };
        let fits = (1..=MOST_BYTES).contains(&load.bytes)
            && (1..=MOST_WINDOW).contains(&load.window)
            && (1..=MOST_MS).contains(&load.duration_ms)
            && load.warm_up_ms <= MOST_MS;
        fits.then_some(load)
    }

    /// Loads the disk, and says in JSON what that gave.
    pub fn run(self, disk: &str) -> Result<String, Trouble> {
        let disk = block::find(disk).ok_or_else(|| format!("there is no disk {disk}; `disks` lists them"))?;
        if !self.bytes.is_multiple_of(disk.sector_bytes()) || self.bytes > disk.max_transfer_bytes() {
            return Err(format!("{} bytes are no transfer of this disk", self.bytes).into());
        }
        let transfer_sectors = self.bytes / disk.sector_bytes();
        let transfers = disk.sectors() / u64::from(transfer_sectors) / self.window as u64;
        if transfers == 0 {
            return Err("the disk is too small for this window".into());
        }
        let mut worker = Worker::new(self, disk, transfers, transfer_sectors)?;
        let outcome = Arc::new(IrqSpinLock::new(None));
        let last_cpu = cpu::count() - 1;
        let handle = task::spawn("floor disk", Placement::Cpu(last_cpu), Priority::High, {
            let outcome = outcome.clone();
            move || {
                let figures = worker.run();
                *outcome.lock() = Some(figures);
            }
        })?;
        handle.join();
        let figures = outcome.lock().take();
        figures.ok_or("the load gave nothing")?.map_err(Trouble::from)
    }
}

/// A transfer that has ended.
type Ended = (IoStatus, Option<DmaMemory>);

/// What the disk's interrupt leaves for the worker.
struct Completions {
    ring: Ring<MOST_WINDOW>,
    /// By slot. On the heap: all of them would be as much as a task's stack.
    ended: Vec<IrqSpinLock<Option<Ended>>>,
    event: Event,
}

impl CompletionSink for Completions {
    fn complete(&self, cookie: u64, status: IoStatus, memory: Option<DmaMemory>) {
        let Ok(slot) = u32::try_from(cookie) else { return };
        let Some(place) = self.ended.get(slot as usize) else { return };
        *place.lock() = Some((status, memory));
        // There is room: a slot is under way once at a time.
        let _ = self.ring.push(slot);
        self.event.signal();
    }
}

struct Worker {
    load: Load,
    disk: Arc<dyn Disk>,
    /// Places for each slot.
    transfers: u64,
    transfer_sectors: u32,
    completions: Arc<Completions>,
    started_ns: Vec<u64>,
    /// Memory of slots that are not under way.
    resting: Vec<(u32, DmaMemory)>,
    under_way: usize,
    random: u64,
    latencies_ns: Vec<u32>,
    ended: u64,
}

impl Worker {
    fn new(load: Load, disk: Arc<dyn Disk>, transfers: u64, transfer_sectors: u32) -> Result<Self, Trouble> {
        let bytes = load.bytes as usize;
        let mut resting = Vec::with_capacity(load.window);
        for slot in 0..load.window {
            let buffer = DmaBuffer::new(bytes, "the floor's disk load")?;
            let memory =
                DmaMemory::from_buffer(buffer, 0, bytes).map_err(|_| "a buffer that does not fit")?;
            // At most MOST_WINDOW.
            resting.push((slot as u32, memory));
        }
        let completions = Completions {
            ring: Ring::new(),
            ended: (0..load.window).map(|_| IrqSpinLock::new(None)).collect(),
            event: Event::new(),
        };
        Ok(Self {
            load,
            disk,
            transfers,
            transfer_sectors,
            completions: Arc::new(completions),
            started_ns: vec![0; load.window],
            resting,
            under_way: 0,
            random: 1,
            latencies_ns: Vec::with_capacity(MOST_LATENCIES),
            ended: 0,
        })
    }

    fn run(&mut self) -> Result<String, Box<str>> {
        let measured_from_ns = time::now_ns() + self.load.warm_up_ms * 1_000_000;
        let measured_to_ns = measured_from_ns + self.load.duration_ms * 1_000_000;
        let mut outcome = Ok(());
        let mut last_work_ns = time::now_ns();
        loop {
            let ended = outcome.is_err() || time::now_ns() >= measured_to_ns;
            if ended && self.under_way == 0 {
                break;
            }
            let worked = self.take(measured_from_ns..measured_to_ns, &mut outcome);
            if !ended && outcome.is_ok() {
                outcome = self.submit();
            }
            let now_ns = time::now_ns();
            if worked {
                last_work_ns = now_ns;
            }
            if worked || now_ns - last_work_ns < POLL_NS {
                task::yield_now();
            } else {
                self.completions.event.wait();
                last_work_ns = time::now_ns();
            }
        }
        outcome.map(|()| self.figures())
    }

    /// Takes what has ended. Whether there was something.
    fn take(&mut self, measured_ns: core::ops::Range<u64>, outcome: &mut Result<(), Box<str>>) -> bool {
        let mut taken = false;
        while let Some(slot) = self.completions.ring.pop() {
            taken = true;
            self.under_way -= 1;
            let ended = self.completions.ended.get(slot as usize).and_then(|place| place.lock().take());
            let Some((status, Some(memory))) = ended else { continue };
            if status != IoStatus::Ok {
                *outcome = Err(format!("{status}").into());
            }
            let now_ns = time::now_ns();
            if measured_ns.contains(&now_ns) {
                self.ended += 1;
                if self.latencies_ns.len() < MOST_LATENCIES {
                    let started_ns = self.started_ns.get(slot as usize).copied().unwrap_or(now_ns);
                    self.latencies_ns.push(u32::try_from(now_ns - started_ns).unwrap_or(u32::MAX));
                }
            }
            self.resting.push((slot, memory));
        }
        taken
    }

    /// Puts every slot that rests under way, with one doorbell.
    fn submit(&mut self) -> Result<(), Box<str>> {
        let mut submitted = 0;
        while let Some((slot, memory)) = self.resting.pop() {
            let place = self.below(self.transfers) * self.load.window as u64 + u64::from(slot);
            if let Some(started_ns) = self.started_ns.get_mut(slot as usize) {
                *started_ns = time::now_ns();
            }
            let io = BlockIo {
                op: self.load.op,
                first_sector: place * u64::from(self.transfer_sectors),
                sectors: self.transfer_sectors,
                force_unit_access: false,
                memory: Some(memory),
                sink: self.completions.clone(),
                cookie: slot.into(),
            };
            match self.disk.submit(io) {
                Ok(()) => submitted += 1,
                Err(rejected) => {
                    self.resting.extend(rejected.io.memory.map(|memory| (slot, memory)));
                    if rejected.error != SubmitError::Busy || self.under_way + submitted == 0 {
                        return Err(format!("{:?}", rejected.error).into());
                    }
                    break;
                }
            }
        }
        if submitted > 0 {
            self.under_way += submitted;
            self.disk.kick();
        }
        Ok(())
    }

    /// A random number below `bound`, by SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    /// generators, OOPSLA 2014).
    fn below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        // Below `bound`, which is a u64.
        ((u128::from(z) * u128::from(bound)) >> 64) as u64
    }

    fn figures(&mut self) -> String {
        self.latencies_ns.sort_unstable();
        let microseconds = |percent: usize| {
            let place = self.latencies_ns.len() * percent / 100;
            let ns = self.latencies_ns.get(place).or(self.latencies_ns.last()).copied().unwrap_or(0);
            format!("{}.{:03}", ns / 1000, ns % 1000)
        };
        format!(
            "{{\"per_second\":{},\"p50_us\":{},\"p99_us\":{}}}",
            self.ended * 1000 / self.load.duration_ms,
            microseconds(50),
            microseconds(99)
        )
    }
}
