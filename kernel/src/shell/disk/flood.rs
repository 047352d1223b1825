//! More reads at once than a disk's queue holds: every one must come back, once, with its memory.

use alloc::sync::Arc;
use alloc::vec::Vec;

use kcore::block::{BlockIo, BlockOp, CompletionSink, Disk, IoStatus, SubmitError};
use kcore::dma::{DmaBuffer, DmaMemory};
use kcore::event::Event;
use kcore::sync::IrqSpinLock;
use kcore::time;

use super::Trouble;

/// Most transfers of one flood.
pub const MOST: u64 = 1_000_000;
/// Buffers: more than a queue has places.
const BUFFERS: usize = 1024;

#[derive(Default)]
pub struct Outcome {
    pub done: u64,
    pub failed: u64,
    /// Came back with another transfer's memory, or none.
    pub wrong_memory: u64,
    pub busy: u64,
    pub most_at_once: u64,
    pub last_error: Option<IoStatus>,
    pub ns: u64,
}

/// What came back and was not looked at yet.
struct Ends {
    ends: IrqSpinLock<Vec<(u64, IoStatus, Option<DmaMemory>)>>,
    came: Event,
}

impl CompletionSink for Ends {
    fn complete(&self, cookie: u64, status: IoStatus, memory: Option<DmaMemory>) {
        // There is room for all that are under way: a push does not allocate.
        self.ends.lock().push((cookie, status, memory));
        self.came.signal();
    }
}

/// Reads the disk's sectors one by one, round and round, as many at once as it takes.
pub fn run(disk: &Arc<dyn Disk>, transfers: u64) -> Result<Outcome, Trouble> {
    let sector_bytes = disk.sector_bytes() as usize;
    let mut idle = Vec::with_capacity(BUFFERS);
    for _ in 0..BUFFERS.min(usize::try_from(transfers)?) {
        idle.push(DmaBuffer::new(sector_bytes, "a flood of reads")?);
    }
    let room = idle.len();
    let sink = Arc::new(Ends { ends: IrqSpinLock::new(Vec::with_capacity(room)), came: Event::new() });
    let mut came = Vec::with_capacity(room);
    // By the transfer's number below the number of buffers: where its memory lies.
    let mut expected: Vec<u64> = alloc::vec![0; room];
    let mut free: Vec<usize> = (0..room).collect();
    let mut outcome = Outcome::default();
    let start_ns = time::now_ns();
    let (mut submitted, mut under_way) = (0, 0_u64);
    while outcome.done + outcome.failed < transfers {
        let mut busy = false;
        while submitted < transfers && !busy {
            let (Some(buffer), Some(place)) = (idle.pop(), free.pop()) else { break };
            expected[place] = buffer.phys().as_u64();
            let whole = DmaMemory::from_buffer(buffer, 0, sector_bytes);
            let memory = whole.map_err(|_| "a buffer is shorter than a sector")?;
            let io = BlockIo {
                op: BlockOp::Read,
                first_sector: submitted % disk.sectors(),
                sectors: 1,
                force_unit_access: false,
                memory: Some(memory),
                sink: sink.clone(),
                cookie: place as u64,
            };
            match disk.submit(io) {
                Ok(()) => {
                    submitted += 1;
                    under_way += 1;
                }
                Err(rejected) => {
                    idle.extend(rejected.io.memory.and_then(DmaMemory::into_buffer));
                    free.push(place);
                    match rejected.error {
                        SubmitError::Busy => busy = true,
                        // What cannot be submitted counts as what was and failed.
                        _ => {
                            submitted += 1;
                            outcome.failed += 1;
                            outcome.last_error = Some(IoStatus::Gone);
                        }
                    }
                }
            }
        }
        outcome.busy += u64::from(busy);
        outcome.most_at_once = outcome.most_at_once.max(under_way);
        disk.kick();
        match under_way {
            // The disk is being reset.
            0 if busy => kcore::task::sleep_ns(10_000_000),
            0 => {}
            _ => sink.came.wait(),
        }
        core::mem::swap(&mut *sink.ends.lock(), &mut came);
        for (cookie, status, memory) in came.drain(..) {
            under_way -= 1;
            match status {
                IoStatus::Ok => outcome.done += 1,
                error => {
                    outcome.failed += 1;
                    outcome.last_error = Some(error);
                }
            }
            let place = cookie as usize;
            let own = memory.and_then(DmaMemory::into_buffer);
            let phys = own.as_ref().map(|buffer| buffer.phys().as_u64());
            if expected.get(place).copied() != phys {
                outcome.wrong_memory += 1;
            }
            free.push(place);
            idle.extend(own);
        }
    }
    outcome.ns = time::now_ns() - start_ns;
    Ok(outcome)
}
