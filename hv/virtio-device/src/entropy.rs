//! The entropy device (VIRTIO 1.2 section 5.4), which fills the guest's buffers with random bytes.
//!
//! Random numbers cost the node time, so a guest gets them at a rate: a bucket fills with that
//! many bytes a second up to a limit, and what is asked for beyond it waits. A buffer may be given
//! back partly filled (5.4.6.2), so a guest with a large one gets what there is.

use crate::chain::Chain;
use crate::fault::QueueFault;
use crate::features::Features;
use crate::function::{DeviceKind, DeviceModel, Function};
use crate::queue::Virtqueue;
use crate::ram::GuestRam;

/// Bytes a guest gets a second, and at once after a pause: ten times what Linux asks for to seed
/// its own generator.
pub const RATE_BYTES_A_SECOND: u64 = 16 << 10;
pub const BURST_BYTES: u64 = 4 << 10;

/// Entries of the queue.
const QUEUE_SIZE: u16 = 64;
const REQUEST_QUEUE: u16 = 0;
/// The bucket is not looked into again for less.
const LEAST_BYTES: u64 = 64;
const NS_A_SECOND: u64 = 1_000_000_000;

/// Where the random bytes come from.
pub trait Source {
    /// Eight of them, or `None` if there are none now.
    fn next(&mut self) -> Option<[u8; 8]>;
}

/// A bucket of bytes.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    bytes: u64,
    filled_ns: u64,
}

impl Bucket {
    const FULL: Self = Self { bytes: BURST_BYTES, filled_ns: 0 };

    fn fill(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        let missing = BURST_BYTES - self.bytes;
        let came = u128::from(passed_ns) * u128::from(RATE_BYTES_A_SECOND) / u128::from(NS_A_SECOND);
        if came >= u128::from(missing) {
            *self = Self { bytes: BURST_BYTES, filled_ns: now_ns };
        } else {
            let came = came as u64; // less than `missing`
            self.bytes += came;
            // What is less than a byte is counted the next time.
            self.filled_ns += came * NS_A_SECOND / RATE_BYTES_A_SECOND;
        }
    }

    /// When there will be [`LEAST_BYTES`].
    fn due_ns(&self) -> u64 {
        let missing = LEAST_BYTES.saturating_sub(self.bytes);
        self.filled_ns.saturating_add((missing * NS_A_SECOND).div_ceil(RATE_BYTES_A_SECOND))
    }
}

/// What the guest got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntropyCounters {
    pub bytes: u64,
    /// Times that a request waited for the bucket.
    pub waits: u64,
}

/// Outcome of [`EntropyFunction::fill`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Filled {
    /// The queue holds more, and no notification will come for it: call again at this time.
    pub due_ns: Option<u64>,
}

/// The model.
#[derive(Debug)]
pub struct Entropy {
    chain: Chain,
    bucket: Bucket,
    counters: EntropyCounters,
}

impl Default for Entropy {
    fn default() -> Self {
        Self::new()
    }
}

impl Entropy {
    pub fn new() -> Self {
        Self {
            chain: Chain::with_room_for(QUEUE_SIZE),
            bucket: Bucket::FULL,
            counters: EntropyCounters::default(),
        }
    }

    fn fill<R: GuestRam + ?Sized, S: Source + ?Sized>(
        &mut self,
        queue: &mut Virtqueue,
        ram: &R,
        source: &mut S,
        now_ns: u64,
    ) -> Result<(Filled, bool), QueueFault> {
        self.bucket.fill(now_ns);
        queue.suppress_notify(ram)?;
        let mut chains = 0;
        let due_ns = loop {
            if self.bucket.bytes < LEAST_BYTES {
                self.counters.waits += 1;
                break Some(self.bucket.due_ns());
            }
            if chains == QUEUE_SIZE {
                break Some(now_ns);
            }
            if !queue.pop(ram, &mut self.chain)? {
                if queue.request_notify(ram)? {
                    continue;
                }
                break None;
            }
            let mut writer = self.chain.writer();
            let most = u64::from(self.chain.writable_bytes()).min(self.bucket.bytes);
            let mut written = 0;
            while written < most {
                let Some(random) = source.next() else { break };
                let here = (most - written).min(random.len() as u64);
                writer.write(ram, &random[..here as usize])?;
                written += here;
            }
            // Also what asks for nothing costs something.
            self.bucket.bytes = self.bucket.bytes.saturating_sub(written.max(1));
            self.counters.bytes += written;
            queue.add_used(ram, self.chain.head(), written as u32)?; // at most BURST_BYTES
            chains += 1;
        };
        queue.publish_used(ram)?;
        let interrupt = queue.driver_wants_interrupt(ram)?;
        queue.settle_interrupt();
        Ok((Filled { due_ns }, interrupt))
    }
}

impl DeviceModel for Entropy {
    fn kind(&self) -> DeviceKind {
        DeviceKind::Entropy
    }

    fn features(&self) -> Features {
        Features::NONE
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    /// There is none (5.4.4).
    fn read_config(&self, _offset: u32, _into: &mut [u8]) {}

    /// The bucket stays as it is: a driver that resets the device gains nothing.
    fn stop(&mut self) {}
}

/// A virtio source of entropy on PCI.
pub type EntropyFunction = Function<Entropy>;

impl EntropyFunction {
    /// A device with INTx and `msix_vectors` MSI-X vectors.
    pub fn entropy(msix_vectors: u16) -> Self {
        Self::new(Entropy::new(), msix_vectors)
    }

    pub fn counters(&self) -> EntropyCounters {
        self.model.counters
    }

    /// Fills the guest's buffers. Call on a notification, on [`crate::Event::Started`], and at the
    /// time that the outcome names.
    pub fn fill<R: GuestRam + ?Sized, S: Source + ?Sized>(
        &mut self,
        ram: &R,
        source: &mut S,
        now_ns: u64,
    ) -> Filled {
        let Some((queue, entropy)) = self.live_queue(REQUEST_QUEUE) else { return Filled::default() };
        match entropy.fill(queue, ram, source, now_ns) {
            Ok((filled, interrupt)) => {
                if interrupt {
                    self.interrupt(REQUEST_QUEUE);
                }
                filled
            }
            Err(fault) => {
                self.fail(REQUEST_QUEUE, fault);
                Filled::default()
            }
        }
    }
}
