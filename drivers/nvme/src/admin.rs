//! The admin queue: commands about the controller, one at a time, for tasks that wait.

use alloc::boxed::Box;
use alloc::sync::{Arc, Weak};
use core::fmt;

use arrayvec::ArrayVec;
use kcore::dma::DmaBuffer;
use kcore::event::Event;
use kcore::irq::{self, Interrupt, IrqError};
use kcore::memory::OutOfMemory;
use kcore::mutex::Mutex;
use kcore::sync::{IrqSpinLock, Once};
use kcore::time;
use nvme_protocol::register::admin_queue_attributes;
use nvme_protocol::{Awaited, Class, Cns, Command, Completion, IDENTIFY_BYTES, Planned, Status, Violation};
use watchdog::COMMAND_DEADLINE_NS;

use crate::Guard;
use crate::queue::{BATCH, NotQueued, Queue};
use crate::registers::{ReadyError, Registers};

/// Few commands are ever under way; a page holds 64 entries.
const ENTRIES: u16 = 32;

/// Why an admin command brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminError {
    Status(Status),
    TimedOut,
    /// An earlier command was never answered, or the controller is being reset.
    NotTaken,
    Violation(Violation),
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminError::Status(status) => status.fmt(f),
            AdminError::TimedOut => f.write_str("no answer in time"),
            AdminError::NotTaken => f.write_str("the controller takes no commands"),
            AdminError::Violation(violation) => write!(f, "it sent {violation}"),
        }
    }
}

/// The admin queue with the page that identify data comes into.
pub struct Admin {
    /// Each command carries the number of its question.
    queue: Queue<u64>,
    /// Written by the controller; read only by copying out.
    page: DmaBuffer,
    /// Held over a command and its answer: there is one page and one place for an answer.
    turn: Mutex<()>,
    awaited: IrqSpinLock<Awaited<Result<Completion, Violation>>>,
    /// Signalled under the lock of `awaited`, so that no signal outlives its question.
    answered: Event,
    guard: Arc<Guard>,
    interrupt: Once<Interrupt>,
}

impl Admin {
    pub fn new(registers: Arc<Registers>, guard: Arc<Guard>) -> Result<Arc<Admin>, OutOfMemory> {
        Ok(Arc::new(Admin {
            queue: Queue::new(registers, 0, ENTRIES, 0, false)?,
            page: DmaBuffer::new(IDENTIFY_BYTES, "NVMe identify data")?,
            turn: Mutex::new(()),
            awaited: IrqSpinLock::new(Awaited::new()),
            answered: Event::new(),
            guard,
            interrupt: Once::new(),
        }))
    }

    /// Takes an interrupt vector on `cpu` for the queue.
    pub fn connect(self: &Arc<Self>, name: &str, cpu: usize) -> Result<&Interrupt, IrqError> {
        let weak: Weak<Admin> = Arc::downgrade(self);
        let interrupt = irq::allocate(
            name,
            cpu,
            Arc::new(move || {
                if let Some(admin) = weak.upgrade() {
                    admin.on_interrupt();
                }
            }),
        )?;
        let _ = self.interrupt.set(interrupt);
        self.interrupt.get().ok_or(IrqError::NoVector)
    }

    /// Enables the controller with this queue, empty.
    pub fn enable(&self, registers: &Registers) -> Result<(), ReadyError> {
        self.queue.reopen();
        let attributes = admin_queue_attributes(self.queue.entries());
        registers.enable(attributes, self.queue.submission_phys(), self.queue.completion_phys())
    }

    /// Forgets all commands; the controller has been stopped.
    pub fn close(&self) {
        self.queue.close();
        while self.queue.take_back().is_some() {}
        let _awaited = self.awaited.lock();
        self.answered.signal();
    }

    /// Sends `command` and waits for its answer. Tasks only.
    pub fn execute(&self, command: Command) -> Result<Completion, AdminError> {
        let _turn = self.turn.lock();
        self.execute_in_turn(command)
    }

    /// Sends IDENTIFY and copies the data out.
    pub fn identify(&self, what: Cns, namespace: u32) -> Result<Box<[u8; IDENTIFY_BYTES]>, AdminError> {
        let _turn = self.turn.lock();
        self.execute_in_turn(Command::identify(what, namespace, self.page.phys().as_u64()))?;
        let mut copy = Box::new([0; IDENTIFY_BYTES]);
        self.page.copy_out(0, &mut copy[..]);
        Ok(copy)
    }

    fn execute_in_turn(&self, command: Command) -> Result<Completion, AdminError> {
        let now_ns = time::now_ns();
        let number = {
            let mut awaited = self.awaited.lock();
            self.answered.try_take();
            awaited.ask()
        };
        // One that timed out may still write into the page.
        if self.queue.outstanding() > 0 {
            return Err(AdminError::NotTaken);
        }
        self.queue
            .submit(Class::Synchronous, &Planned::alone(command), number, now_ns)
            .map_err(|(NotQueued::Full(_) | NotQueued::Closed(_))| AdminError::NotTaken)?;
        self.queue.kick();
        let in_time = self.answered.wait_until(now_ns + COMMAND_DEADLINE_NS);
        match self.awaited.lock().take() {
            Some(Ok(completion)) if completion.status.is_success() => Ok(completion),
            Some(Ok(completion)) => Err(AdminError::Status(completion.status)),
            Some(Err(violation)) => Err(AdminError::Violation(violation)),
            None if in_time => Err(AdminError::NotTaken),
            None => Err(AdminError::TimedOut),
        }
    }

    fn on_interrupt(&self) {
        let mut batch = ArrayVec::<_, BATCH>::new();
        let taken = self.queue.take(&mut batch);
        let mut awaited = self.awaited.lock();
        for accepted in batch {
            if awaited.answer(accepted.payload, Ok(accepted.completion)) {
                self.answered.signal();
            }
        }
        if let Some(violation) = taken.violation {
            awaited.answer_latest(Err(violation));
            self.answered.signal();
            drop(awaited);
            self.guard.report(violation);
        }
    }
}
