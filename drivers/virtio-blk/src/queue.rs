//! A queue of the device: what is outstanding in it, its interrupt, and how transfers end.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arrayvec::ArrayVec;
use kcore::block::{CompletionSink, DiskStats, IoStatus};
use kcore::dma::{DmaBuffer, DmaMemory};
use kcore::irq::{self, Interrupt, IrqError};
use kcore::memory::OutOfMemory;
use kcore::sync::{IrqSpinLock, Once};
use kcore::time;
use virtio_driver::blk::{Operation, Planned, Status};
use virtio_driver::{Class, Ended, NoSlot, QueueFault, RequestLayout, RequestQueue, Segment};
use virtio_pci::{Doorbell, QueueMemory, Registers};

use crate::Guard;

/// Completions taken by one interrupt.
const BATCH: usize = 32;

/// Slots kept for the synchronous path in every queue.
const RESERVED_SLOTS: u16 = 8;

/// A transfer that the device has.
pub struct Outstanding {
    pub operation: Operation,
    pub first_block: u64,
    pub blocks: u32,
    /// A flush is to follow before the transfer is complete.
    pub flush_behind: bool,
    pub memory: Option<DmaMemory>,
    pub sink: Arc<dyn CompletionSink>,
    pub cookie: u64,
}

/// Why a transfer was not queued; it comes back.
pub enum NotQueued {
    /// No slot of that class is free.
    Full(Outstanding),
    /// The device is not taking requests.
    Closed(Outstanding),
}

/// What becomes of the memory of transfers that end with their device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The device cannot reach it any more.
    GivenBack,
    /// Nothing says that the device will not write to it.
    Lost,
}

/// A transfer that the device could not do, for the log.
pub struct Failure {
    operation: Operation,
    first_block: u64,
    blocks: u32,
    status: Status,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { first_block, blocks, status, .. } = self;
        let doing = match self.operation {
            Operation::Flush => return write!(f, "flushing: {status}"),
            Operation::Read => "reading",
            Operation::Write => "writing",
            Operation::Discard => "discarding",
            Operation::WriteZeroes => "zeroing",
        };
        write!(f, "{doing} {blocks} sectors at {first_block}: {status}")
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
    doorbells: AtomicU64,
    interrupts: AtomicU64,
    /// Requests the device has answered, well or not: the sign that it is alive.
    answered: AtomicU64,
}

struct Inner {
    requests: RequestQueue<QueueMemory, Outstanding>,
    /// `None` while the device is not known to be in order. Under the same lock as the indices, so
    /// that nothing slips into a queue that is being emptied.
    doorbell: Option<Doorbell>,
    /// Flushes of a device without a cache: done, and waiting for the interrupt handler to say so.
    /// Never more than it has room for.
    done: Vec<Outstanding>,
}

/// See the module.
pub struct Queue {
    registers: Arc<Registers>,
    guard: Arc<Guard>,
    layout: RequestLayout,
    phys: u64,
    /// Taken by tasks that submit and by the interrupt; no other lock under it.
    inner: IrqSpinLock<Inner>,
    counters: Counters,
    /// The first failure since the guard last wrote one to the log.
    failure: IrqSpinLock<Option<Failure>>,
    interrupt: Once<Interrupt>,
}

impl Queue {
    pub fn new(
        registers: Arc<Registers>,
        guard: Arc<Guard>,
        layout: RequestLayout,
        event_index: bool,
    ) -> Result<Arc<Queue>, OutOfMemory> {
        let memory = DmaBuffer::new(layout.bytes(), "a virtio block queue")?;
        let phys = memory.phys().as_u64();
        let requests = RequestQueue::new(QueueMemory(memory), layout, event_index, RESERVED_SLOTS);
        let done = Vec::with_capacity(usize::from(layout.slots()));
        Ok(Arc::new(Queue {
            registers,
            guard,
            layout,
            phys,
            inner: IrqSpinLock::new(Inner { requests, doorbell: None, done }),
            counters: Counters::default(),
            failure: IrqSpinLock::new(None),
            interrupt: Once::new(),
        }))
    }

    /// Takes an interrupt vector on `cpu` for the queue.
    pub fn connect(self: &Arc<Self>, name: &str, cpu: usize) -> Result<&Interrupt, IrqError> {
        let weak: Weak<Queue> = Arc::downgrade(self);
        let handler = move || {
            if let Some(queue) = weak.upgrade() {
                queue.on_interrupt();
            }
        };
        let interrupt = irq::allocate(name, cpu, Arc::new(handler))?;
        let _ = self.interrupt.set(interrupt);
        self.interrupt.get().ok_or(IrqError::NoVector)
    }

    pub fn layout(&self) -> &RequestLayout {
        &self.layout
    }

    /// Where the queue's memory lies, for the device.
    pub fn phys(&self) -> u64 {
        self.phys
    }

    /// Queues a planned transfer; the device learns of it with [`Queue::kick`].
    pub fn submit(
        &self,
        class: Class,
        planned: &Planned,
        segments: &[Segment],
        transfer: Outstanding,
    ) -> Result<(), NotQueued> {
        let mut inner = self.inner.lock();
        if inner.doorbell.is_none() {
            return Err(NotQueued::Closed(transfer));
        }
        let segments = segments.iter().copied();
        let pushed = inner.requests.push(class, planned, segments, transfer, time::now_ns());
        drop(inner);
        pushed.map_err(|NoSlot(transfer)| NotQueued::Full(transfer))?;
        self.guard.watch();
        Ok(())
    }

    /// Ends a transfer for which the device need do nothing, from interrupt context as any other.
    pub fn submit_done(&self, transfer: Outstanding) -> Result<(), NotQueued> {
        let mut inner = self.inner.lock();
        if inner.doorbell.is_none() {
            return Err(NotQueued::Closed(transfer));
        }
        if inner.done.len() == inner.done.capacity() {
            return Err(NotQueued::Full(transfer));
        }
        inner.done.push(transfer);
        drop(inner);
        self.raise();
        Ok(())
    }

    /// Tells the device of everything queued since the last time: one doorbell, or none.
    pub fn kick(&self) {
        self.announce(&mut self.inner.lock());
    }

    fn announce(&self, inner: &mut Inner) {
        if let Some(doorbell) = inner.doorbell
            && inner.requests.announce()
        {
            self.registers.ring(doorbell);
            self.counters.doorbells.fetch_add(1, Relaxed);
        }
    }

    fn raise(&self) {
        if let Some(interrupt) = self.interrupt.get() {
            interrupt.raise();
        }
    }

    fn on_interrupt(&self) {
        self.counters.interrupts.fetch_add(1, Relaxed);
        let mut batch = ArrayVec::<Ended<Outstanding>, BATCH>::new();
        let mut done = ArrayVec::<Outstanding, BATCH>::new();
        let (more, fault) = self.take(&mut batch, &mut done);
        for Ended { token, status } in batch {
            match status {
                Status::Ok => self.end(token, IoStatus::Ok),
                failed => {
                    self.note_failure(&token, failed);
                    self.end(token, IoStatus::DeviceError { code: failed.code().into() });
                }
            }
        }
        for transfer in done {
            self.end(transfer, IoStatus::Ok);
        }
        if let Some(fault) = fault {
            self.guard.report(fault);
        }
        if more {
            self.raise();
        }
    }

    /// Takes up to a batch. Whether there is more, and how the device contradicted itself.
    fn take(
        &self,
        batch: &mut ArrayVec<Ended<Outstanding>, BATCH>,
        done: &mut ArrayVec<Outstanding, BATCH>,
    ) -> (bool, Option<QueueFault>) {
        let mut inner = self.inner.lock();
        if inner.doorbell.is_none() {
            return (false, None);
        }
        let ready = inner.done.len().min(BATCH);
        done.extend(inner.done.drain(..ready));
        let mut answered = 0;
        let mut fault = None;
        while !batch.is_full() {
            match inner.requests.take() {
                Ok(Some(ended)) => {
                    answered += 1;
                    if let Some(ended) = flush_behind(&mut inner.requests, ended) {
                        batch.push(ended);
                    }
                }
                Ok(None) => break,
                Err(found) => {
                    fault = Some(found);
                    break;
                }
            }
        }
        self.counters.answered.fetch_add(answered, Relaxed);
        // Flushes that follow their writes.
        self.announce(&mut inner);
        let more = fault.is_none() && (batch.is_full() || inner.requests.arm_interrupt());
        (more || !inner.done.is_empty(), fault)
    }

    fn end(&self, transfer: Outstanding, status: IoStatus) {
        let counters = &self.counters;
        let counter = match transfer.operation {
            _ if status != IoStatus::Ok => &counters.errors,
            Operation::Read => &counters.reads,
            Operation::Write => &counters.writes,
            Operation::Flush => &counters.flushes,
            Operation::Discard => &counters.discards,
            Operation::WriteZeroes => &counters.write_zeroes,
        };
        counter.fetch_add(1, Relaxed);
        transfer.sink.complete(transfer.cookie, status, transfer.memory);
    }

    /// Keeps the failure for the guard, which writes it to the log: a console line takes longer
    /// than an interrupt may, and a disk that fails everything must not fill the log.
    fn note_failure(&self, transfer: &Outstanding, status: Status) {
        let Outstanding { operation, first_block, blocks, .. } = *transfer;
        let mut failure = self.failure.lock();
        if failure.is_none() {
            *failure = Some(Failure { operation, first_block, blocks, status });
            self.guard.wake();
        }
    }

    pub fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().take()
    }

    pub fn answered(&self) -> u64 {
        self.counters.answered.load(Relaxed)
    }

    pub fn oldest_ns(&self) -> Option<u64> {
        self.inner.lock().requests.oldest_ns()
    }

    /// From now on nothing is queued, rung or taken.
    pub fn close(&self) {
        self.inner.lock().doorbell = None;
    }

    /// Empty rings, as the device finds them when it is set up.
    pub fn restart(&self) {
        self.inner.lock().requests.restart();
    }

    /// The device has the queue: transfers may come.
    pub fn open(&self, doorbell: Doorbell) {
        let mut inner = self.inner.lock();
        inner.doorbell = Some(doorbell);
        // Nothing has been asked yet, so nothing can be there.
        let _ = inner.requests.arm_interrupt();
    }

    /// Ends every outstanding transfer of a device that was stopped. With `Lost` memory their owners
    /// learn how it ended, and that is all they get.
    pub fn end_all(&self, status: IoStatus, memory: Memory) -> usize {
        let mut ended = 0;
        loop {
            let mut inner = self.inner.lock();
            let next = inner.requests.take_any();
            let next = next.or_else(|| inner.done.pop());
            drop(inner);
            let Some(mut transfer) = next else { return ended };
            if memory == Memory::Lost {
                // Never freed: whoever got it next might find the device writing there.
                core::mem::forget(transfer.memory.take());
            }
            self.end(transfer, status);
            ended += 1;
        }
    }

    /// Adds this queue's share to the counters of the disk.
    pub fn add_to(&self, stats: &mut DiskStats) {
        let counters = &self.counters;
        stats.reads += counters.reads.load(Relaxed);
        stats.writes += counters.writes.load(Relaxed);
        stats.flushes += counters.flushes.load(Relaxed);
        stats.discards += counters.discards.load(Relaxed);
        stats.write_zeroes += counters.write_zeroes.load(Relaxed);
        stats.errors += counters.errors.load(Relaxed);
        stats.doorbells += counters.doorbells.load(Relaxed);
        stats.interrupts += counters.interrupts.load(Relaxed);
    }
}

/// Sends the flush behind a write that was forced to be durable and went well. What ended for good
/// comes back.
fn flush_behind(
    requests: &mut RequestQueue<QueueMemory, Outstanding>,
    ended: Ended<Outstanding>,
) -> Option<Ended<Outstanding>> {
    if ended.status != Status::Ok || !ended.token.flush_behind {
        return Some(ended);
    }
    let flush = Outstanding { flush_behind: false, ..ended.token };
    // The write's own slot is free, so there is one.
    let pushed =
        requests.push(Class::Synchronous, &Planned::FLUSH, core::iter::empty(), flush, time::now_ns());
    pushed.err().map(|NoSlot(token)| Ended { token, status: Status::IoError })
}
