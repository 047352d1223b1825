//! An I/O queue: what is outstanding in it, its completion interrupt, and how transfers end.

use alloc::sync::{Arc, Weak};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arrayvec::ArrayVec;
use kcore::block::{CompletionSink, DiskStats, IoStatus};
use kcore::dma::DmaMemory;
use kcore::irq::{self, Interrupt, IrqError};
use kcore::memory::OutOfMemory;
use kcore::sync::{IrqSpinLock, Once};
use nvme_protocol::{Class, Operation, Planned, Status};

use crate::Guard;
use crate::queue::{BATCH, NotQueued, Queue};
use crate::registers::Registers;

/// Identifiers kept for the synchronous path in every queue.
pub const RESERVED_IDENTIFIERS: u16 = 8;

/// Namespaces of one controller that become disks.
pub const MAX_DISKS: usize = 16;

/// A transfer that the controller has.
pub struct Outstanding {
    pub operation: Operation,
    /// Which of the controller's disks, below [`MAX_DISKS`].
    pub disk: usize,
    pub first_sector: u64,
    pub sectors: u32,
    pub memory: Option<DmaMemory>,
    pub sink: Arc<dyn CompletionSink>,
    pub cookie: u64,
}

/// What becomes of the memory of transfers that end with their controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The controller cannot reach it any more.
    GivenBack,
    /// Nothing says that the controller will not write to it.
    Lost,
}

/// A transfer that the controller refused or could not do, for the log.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    pub disk: usize,
    operation: Operation,
    first_sector: u64,
    sectors: u32,
    status: Status,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { first_sector, sectors, status, .. } = self;
        match self.operation {
            Operation::Read => write!(f, "reading {sectors} sectors at {first_sector}: {status}"),
            Operation::Write => write!(f, "writing {sectors} sectors at {first_sector}: {status}"),
            Operation::Flush => write!(f, "flushing: {status}"),
            Operation::Discard => write!(f, "discarding {sectors} sectors at {first_sector}: {status}"),
            Operation::WriteZeroes => write!(f, "zeroing {sectors} sectors at {first_sector}: {status}"),
        }
    }
}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    write_zeroes: AtomicU64,
    errors: AtomicU64,
}

/// See the module.
pub struct IoQueue {
    queue: Queue<Outstanding>,
    guard: Arc<Guard>,
    counters: [Counters; MAX_DISKS],
    /// Commands the controller has answered, well or not: the sign that it is alive.
    answered: AtomicU64,
    interrupts: AtomicU64,
    /// The first failure since the guard last wrote one to the log.
    failure: IrqSpinLock<Option<Failure>>,
    interrupt: Once<Interrupt>,
}

impl IoQueue {
    pub fn new(
        registers: Arc<Registers>,
        guard: Arc<Guard>,
        number: u16,
        entries: u16,
    ) -> Result<Arc<IoQueue>, OutOfMemory> {
        Ok(Arc::new(IoQueue {
            queue: Queue::new(registers, number, entries, RESERVED_IDENTIFIERS, true)?,
            guard,
            counters: Default::default(),
            answered: AtomicU64::new(0),
            interrupts: AtomicU64::new(0),
            failure: IrqSpinLock::new(None),
            interrupt: Once::new(),
        }))
    }

    /// Takes an interrupt vector on `cpu` for the queue.
    pub fn connect(self: &Arc<Self>, name: &str, cpu: usize) -> Result<&Interrupt, IrqError> {
        let weak: Weak<IoQueue> = Arc::downgrade(self);
        let interrupt = irq::allocate(
            name,
            cpu,
            Arc::new(move || {
                if let Some(queue) = weak.upgrade() {
                    queue.on_interrupt();
                }
            }),
        )?;
        let _ = self.interrupt.set(interrupt);
        self.interrupt.get().ok_or(IrqError::NoVector)
    }

    pub fn rings(&self) -> &Queue<Outstanding> {
        &self.queue
    }

    /// Queues a planned transfer.
    pub fn submit(
        &self,
        class: Class,
        planned: &Planned,
        outstanding: Outstanding,
        now_ns: u64,
    ) -> Result<(), NotQueued<Outstanding>> {
        self.queue.submit(class, planned, outstanding, now_ns)?;
        self.guard.watch();
        Ok(())
    }

    fn on_interrupt(&self) {
        self.interrupts.fetch_add(1, Relaxed);
        let mut batch = ArrayVec::<_, BATCH>::new();
        let taken = self.queue.take(&mut batch);
        self.answered.fetch_add(batch.len() as u64, Relaxed);
        for accepted in batch {
            let status = accepted.completion.status;
            if status.is_success() {
                self.end(accepted.payload, IoStatus::Ok);
            } else {
                self.note_failure(&accepted.payload, status);
                self.end(accepted.payload, IoStatus::DeviceError { code: status.code() });
            }
        }
        if let Some(violation) = taken.violation {
            self.guard.report(violation);
        }
        if let (true, Some(interrupt)) = (taken.more, self.interrupt.get()) {
            interrupt.raise();
        }
    }

    /// Ends every outstanding transfer of a controller that was stopped. With `Lost` memory their
    /// owners learn how it ended, and that is all they get.
    pub fn end_all(&self, status: IoStatus, memory: Memory) -> usize {
        let mut ended = 0;
        while let Some(mut outstanding) = self.queue.take_back() {
            if memory == Memory::Lost {
                // Never freed: whoever got it next might find the controller writing there.
                core::mem::forget(outstanding.memory.take());
            }
            self.end(outstanding, status);
            ended += 1;
        }
        ended
    }

    fn end(&self, outstanding: Outstanding, status: IoStatus) {
        if let Some(counters) = self.counters.get(outstanding.disk) {
            let counter = match outstanding.operation {
                _ if status != IoStatus::Ok => &counters.errors,
                Operation::Read => &counters.reads,
                Operation::Write => &counters.writes,
                Operation::Flush => &counters.flushes,
                Operation::Discard => &counters.discards,
                Operation::WriteZeroes => &counters.write_zeroes,
            };
            counter.fetch_add(1, Relaxed);
        }
        outstanding.sink.complete(outstanding.cookie, status, outstanding.memory);
    }

    /// Keeps the failure for the guard, which writes it to the log: a console line takes longer
    /// than an interrupt may, and a disk that fails everything must not fill the log.
    fn note_failure(&self, outstanding: &Outstanding, status: Status) {
        let Outstanding { operation, disk, first_sector, sectors, .. } = *outstanding;
        let mut failure = self.failure.lock();
        if failure.is_none() {
            *failure = Some(Failure { disk, operation, first_sector, sectors, status });
            self.guard.wake();
        }
    }

    pub fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().take()
    }

    /// Commands the controller has answered since it was started.
    pub fn answered(&self) -> u64 {
        self.answered.load(Relaxed)
    }

    /// Adds this queue's share to the counters of a disk. Doorbells and interrupts are the
    /// queue's, whichever disk they were for.
    pub fn add_to(&self, disk: usize, stats: &mut DiskStats) {
        if let Some(counters) = self.counters.get(disk) {
            stats.reads += counters.reads.load(Relaxed);
            stats.writes += counters.writes.load(Relaxed);
            stats.flushes += counters.flushes.load(Relaxed);
            stats.discards += counters.discards.load(Relaxed);
            stats.write_zeroes += counters.write_zeroes.load(Relaxed);
            stats.errors += counters.errors.load(Relaxed);
        }
        stats.doorbells += self.queue.doorbells();
        stats.interrupts += self.interrupts.load(Relaxed);
    }
}
