//! The console device (VIRTIO 1.2 section 5.3): one port, which a Linux guest calls hvc0.
//!
//! Bytes go from the guest's buffers to a caller's line and back. The guest never waits for a
//! reader: what it sends is taken at once. Input is only taken from the line when there is a
//! buffer of the guest's for it, so none is lost however late the driver comes.
//!
//! Work is bounded by bytes, not only by chains: a chain may name the same gigabyte many times.

use crate::chain::Chain;
use crate::fault::QueueFault;
use crate::features::Features;
use crate::function::{DeviceKind, DeviceModel, Function};
use crate::queue::Virtqueue;
use crate::ram::GuestRam;

/// Queue numbers of the first port (5.3.2).
pub const RECEIVE_QUEUE: u16 = 0;
pub const TRANSMIT_QUEUE: u16 = 1;

/// Entries of each queue.
const QUEUE_SIZE: u16 = 64;
/// What is taken of one chain; the rest is dropped and counted. Linux sends 32 KiB at most, and a
/// console's past is no longer than this.
const MOST_CHAIN_BYTES: usize = 64 << 10;
/// What is moved in one call; then everybody else has a turn.
const MOST_CALL_BYTES: usize = 64 << 10;
/// Bytes moved at once, on the caller's stack.
const CHUNK_BYTES: usize = 512;
/// struct virtio_console_config (5.3.4): columns, rows, ports, emergency write.
const CONFIG_BYTES: usize = 12;

/// The other end of the line.
pub trait Line {
    /// Takes what the guest wrote. Must not block.
    fn put(&mut self, bytes: &[u8]);

    /// Whether there is something to read.
    fn has_input(&self) -> bool;

    /// Moves input to `into`, and tells how much: nothing only if there is none.
    fn take(&mut self, into: &mut [u8]) -> usize;
}

/// What went through the port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConsoleCounters {
    pub sent_bytes: u64,
    /// Of chains longer than a console's past.
    pub dropped_bytes: u64,
    pub received_bytes: u64,
    /// Times that input found no buffer of the guest's.
    pub starved: u64,
}

/// Outcome of [`ConsoleFunction::transmit`] and [`ConsoleFunction::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Moved {
    /// There is more, and no notification will come for it: call again, next round.
    pub more: bool,
}

/// The model.
#[derive(Debug)]
pub struct Console {
    chain: Chain,
    counters: ConsoleCounters,
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

impl Console {
    /// Bytes of device configuration, for the machine.
    pub const CONFIG_BYTES: u32 = CONFIG_BYTES as u32;

    pub fn new() -> Self {
        Self { chain: Chain::with_room_for(QUEUE_SIZE), counters: ConsoleCounters::default() }
    }

    fn transmit<R: GuestRam + ?Sized, L: Line + ?Sized>(
        &mut self,
        queue: &mut Virtqueue,
        ram: &R,
        line: &mut L,
    ) -> Result<(Moved, bool), QueueFault> {
        queue.suppress_notify(ram)?;
        let (mut chains, mut moved_bytes) = (0, 0);
        let spent = |chains, moved_bytes| chains >= QUEUE_SIZE || moved_bytes >= MOST_CALL_BYTES;
        while !spent(chains, moved_bytes) && queue.pop(ram, &mut self.chain)? {
            let sent_bytes = self.chain.readable_bytes() as usize;
            let mut left = sent_bytes.min(MOST_CHAIN_BYTES);
            self.counters.sent_bytes += left as u64;
            self.counters.dropped_bytes += (sent_bytes - left) as u64;
            moved_bytes += left;
            let mut reader = self.chain.reader();
            let mut chunk = [0; CHUNK_BYTES];
            while left > 0 {
                let here = left.min(CHUNK_BYTES);
                let read = reader.read(ram, &mut chunk[..here])?;
                line.put(&chunk[..read]);
                left -= here;
            }
            queue.add_used(ram, self.chain.head(), 0)?;
            chains += 1;
        }
        let interrupt = publish(queue, ram)?;
        let more = spent(chains, moved_bytes) || queue.request_notify(ram)?;
        Ok((Moved { more }, interrupt))
    }

    fn receive<R: GuestRam + ?Sized, L: Line + ?Sized>(
        &mut self,
        queue: &mut Virtqueue,
        ram: &R,
        line: &mut L,
    ) -> Result<(Moved, bool), QueueFault> {
        let (mut chains, mut starved) = (0, false);
        while chains < QUEUE_SIZE && line.has_input() {
            if !queue.pop(ram, &mut self.chain)? {
                // Wanted only now: a driver that refills in time need never exit for it.
                starved = !queue.request_notify(ram)?;
                if starved {
                    self.counters.starved += 1;
                    break;
                }
                continue;
            }
            let mut writer = self.chain.writer();
            let mut left = (self.chain.writable_bytes() as usize).min(MOST_CHAIN_BYTES);
            let mut written_bytes = 0;
            let mut chunk = [0; CHUNK_BYTES];
            while left > 0 {
                let here = left.min(CHUNK_BYTES);
                let taken = line.take(&mut chunk[..here]).min(here);
                if taken == 0 {
                    break;
                }
                writer.write(ram, &chunk[..taken])?;
                written_bytes += taken;
                left -= taken;
            }
            self.counters.received_bytes += written_bytes as u64;
            // At most MOST_CHAIN_BYTES.
            queue.add_used(ram, self.chain.head(), written_bytes as u32)?;
            chains += 1;
        }
        let interrupt = publish(queue, ram)?;
        Ok((Moved { more: !starved && line.has_input() }, interrupt))
    }
}

/// Shows the driver what was used. Whether it wants to be interrupted for it.
fn publish<R: GuestRam + ?Sized>(queue: &mut Virtqueue, ram: &R) -> Result<bool, QueueFault> {
    queue.publish_used(ram)?;
    let interrupt = queue.driver_wants_interrupt(ram)?;
    queue.settle_interrupt();
    Ok(interrupt)
}

impl DeviceModel for Console {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Console
    }

    /// None: the terminal's size is not known, and there is one port.
    fn features(&self) -> Features {
        Features::NONE
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE, QUEUE_SIZE]
    }

    /// Every field belongs to a feature that is not offered; they read as zero.
    fn read_config(&self, _offset: u32, _into: &mut [u8]) {}

    fn stop(&mut self) {}
}

/// A virtio console on PCI.
pub type ConsoleFunction = Function<Console>;

impl ConsoleFunction {
    /// A console with INTx and `msix_vectors` MSI-X vectors.
    pub fn console(msix_vectors: u16) -> Self {
        Self::new(Console::new(), msix_vectors)
    }

    pub fn counters(&self) -> ConsoleCounters {
        self.model.counters
    }

    /// Takes what the guest has to say. Call on a notification of [`TRANSMIT_QUEUE`], on
    /// [`crate::Event::Started`], and again while there is `more`.
    pub fn transmit<R: GuestRam + ?Sized, L: Line + ?Sized>(&mut self, ram: &R, line: &mut L) -> Moved {
        let work = |console: &mut Console, queue: &mut Virtqueue| console.transmit(queue, ram, line);
        self.with_queue(TRANSMIT_QUEUE, work)
    }

    /// Gives the guest input. Call when the line has some, on a notification of [`RECEIVE_QUEUE`],
    /// on [`crate::Event::Started`], and again while there is `more`.
    pub fn receive<R: GuestRam + ?Sized, L: Line + ?Sized>(&mut self, ram: &R, line: &mut L) -> Moved {
        let work = |console: &mut Console, queue: &mut Virtqueue| console.receive(queue, ram, line);
        self.with_queue(RECEIVE_QUEUE, work)
    }

    fn with_queue(
        &mut self,
        index: u16,
        work: impl FnOnce(&mut Console, &mut Virtqueue) -> Result<(Moved, bool), QueueFault>,
    ) -> Moved {
        let Some((queue, console)) = self.live_queue(index) else { return Moved::default() };
        match work(console, queue) {
            Ok((moved, interrupt)) => {
                if interrupt {
                    self.interrupt(index);
                }
                moved
            }
            Err(fault) => {
                self.fail(index, fault);
                Moved::default()
            }
        }
    }
}
