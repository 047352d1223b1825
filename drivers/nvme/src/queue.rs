//! A queue pair in memory: rings, lists and doorbells around the pure bookkeeping.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arrayvec::ArrayVec;
use kcore::dma::DmaBuffer;
use kcore::memory::OutOfMemory;
use kcore::sync::IrqSpinLock;
use nvme_protocol::{
    ATTACHMENT_BYTES, Accepted, Attachment, COMPLETION_BYTES, Class, Command, Full, Planned, QueuePair,
    SUBMISSION_BYTES, Violation,
};

use crate::registers::Registers;

/// Completions taken by one interrupt, and acknowledged with one doorbell.
pub const BATCH: usize = 32;

/// What one round of taking completions left behind.
pub struct Taken {
    /// More than a batch was there.
    pub more: bool,
    /// The controller contradicted itself; nothing more comes from this queue.
    pub violation: Option<Violation>,
}

/// Why a command was not queued; the payload comes back.
#[derive(Debug)]
pub enum NotQueued<T> {
    /// No identifier of that class is free.
    Full(T),
    /// The controller is not taking commands.
    Closed(T),
}

struct Inner<T> {
    pair: QueuePair<T>,
    /// Closed while the controller is not known to be in order. Under the same lock as the
    /// indices, so that nothing slips into a queue that is being emptied.
    open: bool,
}

/// A queue pair of a controller. `T` is what is kept for each outstanding command.
pub struct Queue<T> {
    registers: Arc<Registers>,
    submission: DmaBuffer,
    completion: DmaBuffer,
    /// Room for one attachment per identifier, for queues whose commands have any.
    attachments: Option<DmaBuffer>,
    submission_doorbell: usize,
    completion_doorbell: usize,
    entries: u16,
    /// Taken by tasks that submit and by the completion interrupt; no other lock under it.
    inner: IrqSpinLock<Inner<T>>,
    doorbells: AtomicU64,
}

impl<T> Queue<T> {
    /// Queue `number`, closed. The window must hold its doorbells.
    pub fn new(
        registers: Arc<Registers>,
        number: u16,
        entries: u16,
        reserved: u16,
        with_attachments: bool,
    ) -> Result<Queue<T>, OutOfMemory> {
        let pair = QueuePair::new(number, entries, reserved).map_err(|_| OutOfMemory {
            what: "an NVMe queue's identifiers",
            bytes: usize::from(entries) * size_of::<T>(),
        })?;
        let entries = pair.entries();
        let count = usize::from(entries);
        let capabilities = registers.capabilities();
        Ok(Queue {
            submission: DmaBuffer::new(count * SUBMISSION_BYTES, "an NVMe submission queue")?,
            completion: DmaBuffer::new(count * COMPLETION_BYTES, "an NVMe completion queue")?,
            attachments: match with_attachments {
                true => Some(DmaBuffer::new(count * ATTACHMENT_BYTES, "an NVMe queue's lists")?),
                false => None,
            },
            submission_doorbell: capabilities.submission_doorbell(number),
            completion_doorbell: capabilities.completion_doorbell(number),
            entries,
            registers,
            inner: IrqSpinLock::new(Inner { pair, open: false }),
            doorbells: AtomicU64::new(0),
        })
    }

    pub fn entries(&self) -> u16 {
        self.entries
    }

    /// Where the submission queue lies, for the controller.
    pub fn submission_phys(&self) -> u64 {
        self.submission.phys().as_u64()
    }

    /// Where the completion queue lies, for the controller.
    pub fn completion_phys(&self) -> u64 {
        self.completion.phys().as_u64()
    }

    /// Submission doorbells rung.
    pub fn doorbells(&self) -> u64 {
        self.doorbells.load(Relaxed)
    }

    /// Writes a command into the queue; the controller learns of it with [`Queue::kick`].
    pub fn submit(
        &self,
        class: Class,
        planned: &Planned,
        payload: T,
        now_ns: u64,
    ) -> Result<(), NotQueued<T>> {
        let mut inner = self.inner.lock();
        if !inner.open {
            return Err(NotQueued::Closed(payload));
        }
        let submission =
            inner.pair.submit(class, payload, now_ns).map_err(|Full(payload)| NotQueued::Full(payload))?;
        let command = self.attach(planned, submission.index);
        let base = usize::from(submission.place) * SUBMISSION_BYTES;
        let dwords = command.with_identifier(submission.identifier);
        for (place, pair) in dwords.as_chunks::<2>().0.iter().enumerate() {
            self.submission.write_u64(base + 8 * place, u64::from(pair[0]) | u64::from(pair[1]) << 32);
        }
        Ok(())
    }

    /// Writes what the command needs beside its entry.
    fn attach(&self, planned: &Planned, index: u16) -> Command {
        let (attachment, command) = (&planned.attachment, planned.command);
        let Some(room) = self.attachments.as_ref().filter(|_| *attachment != Attachment::None) else {
            return command;
        };
        let base = usize::from(index) * ATTACHMENT_BYTES;
        attachment.write(|place, word| room.write_u64(base + 8 * place, word));
        command.with_attachment(attachment, room.phys().as_u64() + base as u64)
    }

    /// Tells the controller of everything queued since the last time: one doorbell, or none.
    pub fn kick(&self) {
        let mut inner = self.inner.lock();
        if !inner.open {
            return;
        }
        if let Some(tail) = inner.pair.announce_tail() {
            self.registers.ring(self.submission_doorbell, tail);
            self.doorbells.fetch_add(1, Relaxed);
        }
    }

    /// Takes up to a batch of completions and acknowledges them with one doorbell.
    pub fn take(&self, batch: &mut ArrayVec<Accepted<T>, BATCH>) -> Taken {
        let mut inner = self.inner.lock();
        let mut taken = Taken { more: false, violation: None };
        if !inner.open {
            return taken;
        }
        loop {
            let base = usize::from(inner.pair.completion_place()) * COMPLETION_BYTES;
            // The phase tag is in the last dword; the acquire orders the others behind it.
            let last = self.completion.load_acquire_u32(base + 12);
            if !inner.pair.is_new(last) {
                break;
            }
            if batch.is_full() {
                taken.more = true;
                break;
            }
            let dwords = [self.completion.read_u32(base), 0, self.completion.read_u32(base + 8), last];
            match inner.pair.accept(dwords) {
                Ok(accepted) => batch.push(accepted),
                Err(violation) => {
                    taken.violation = Some(violation);
                    break;
                }
            }
        }
        if let Some(head) = inner.pair.announce_completion_head() {
            self.registers.ring(self.completion_doorbell, head);
        }
        taken
    }

    /// When the oldest outstanding command was submitted.
    pub fn oldest_ns(&self) -> Option<u64> {
        self.inner.lock().pair.oldest_ns()
    }

    /// Commands outstanding.
    pub fn outstanding(&self) -> u16 {
        self.inner.lock().pair.outstanding()
    }

    /// From now on nothing is queued, rung or taken.
    pub fn close(&self) {
        self.inner.lock().open = false;
    }

    /// Takes back any outstanding command. Only once the controller cannot reach memory any more.
    pub fn take_back(&self) -> Option<T> {
        self.inner.lock().pair.take_any()
    }

    /// Empty rings for a controller that is about to be enabled; then the queue is open.
    pub fn reopen(&self) {
        let mut inner = self.inner.lock();
        for place in 0..usize::from(self.entries) * COMPLETION_BYTES / 8 {
            self.completion.write_u64(8 * place, 0);
        }
        inner.pair.restart();
        inner.open = true;
    }
}
