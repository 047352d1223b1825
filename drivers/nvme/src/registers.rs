//! The controller's register window.

use core::fmt;
use core::sync::atomic::{Ordering, fence};

use kcore::mmio::Mmio;
use kcore::{task, time};
use nvme_protocol::register::{Capabilities, ControllerStatus, Shutdown, configuration, offset};

/// Why a controller did not become what it was told to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyError {
    /// Its registers read as ones: the slot is empty.
    Gone,
    /// It reports a fatal error.
    Fatal,
    /// It did not follow within the time it named itself.
    TimedOut,
}

impl fmt::Display for ReadyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadyError::Gone => "its registers do not answer",
            ReadyError::Fatal => "it reports a fatal error",
            ReadyError::TimedOut => "it did not follow within the time that it named",
        })
    }
}

/// The mapped registers and what CAP said when they were mapped.
#[derive(Debug)]
pub struct Registers {
    window: Mmio,
    capabilities: Capabilities,
}

/// Waits between two looks at CSTS grow up to this.
const LONGEST_WAIT_NS: u64 = 20_000_000;
/// Some controllers name no time at all for CC.EN; no honest one needs less than this.
const SHORTEST_TIMEOUT_NS: u64 = 500_000_000;

impl Registers {
    /// The window must hold the registers in front of the doorbells.
    pub fn new(window: Mmio) -> Option<Registers> {
        if window.len_bytes() < offset::DOORBELLS {
            return None;
        }
        let capabilities = Capabilities::new(read_pair(&window, offset::CAP));
        Some(Registers { window, capabilities })
    }

    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    pub fn len_bytes(&self) -> usize {
        self.window.len_bytes()
    }

    pub fn status(&self) -> ControllerStatus {
        ControllerStatus::new(self.window.read32(offset::CSTS))
    }

    /// Rings a doorbell. Whatever was written to memory before is seen by the controller.
    pub fn ring(&self, doorbell: usize, value: u16) {
        fence(Ordering::Release);
        self.window.write32(doorbell, u32::from(value));
    }

    /// Sets the admin queues and enables the controller (NVMe sec 3.5.1). Sleeps.
    pub fn enable(&self, attributes: u32, submission: u64, completion: u64) -> Result<(), ReadyError> {
        self.window.write32(offset::AQA, attributes);
        write_pair(&self.window, offset::ASQ, submission);
        write_pair(&self.window, offset::ACQ, completion);
        fence(Ordering::Release);
        self.window.write32(offset::CC, configuration::ENABLED);
        self.wait(|status| status.is_ready())
    }

    /// Disables the controller: it forgets its queues and its commands. Sleeps.
    pub fn disable(&self) -> Result<(), ReadyError> {
        if self.status().is_gone() {
            return Err(ReadyError::Gone);
        }
        self.window.write32(offset::CC, configuration::DISABLED);
        // A fatal controller is reset by this very write, so its complaint does not count here.
        match self.wait(|status| !status.is_ready()) {
            Err(ReadyError::Fatal) if !self.status().is_ready() => Ok(()),
            result => result,
        }
    }

    /// Has the controller write out its cache and park (NVMe sec 3.6.1). Sleeps.
    pub fn shut_down(&self) -> Result<(), ReadyError> {
        self.window.write32(offset::CC, configuration::SHUT_DOWN);
        self.wait(|status| status.shutdown() == Shutdown::Complete)
    }

    /// CSTS changes without an interrupt, so this looks again and again, less and less often. It
    /// is the one wait in the driver that has nothing to be woken by.
    fn wait(&self, reached: impl Fn(ControllerStatus) -> bool) -> Result<(), ReadyError> {
        let timeout_ns = self.capabilities.ready_timeout_ns().max(SHORTEST_TIMEOUT_NS);
        let deadline_ns = time::now_ns() + timeout_ns;
        let mut wait_ns = 100_000;
        loop {
            let status = self.status();
            if status.is_gone() {
                return Err(ReadyError::Gone);
            }
            if reached(status) {
                return Ok(());
            }
            if status.is_fatal() {
                return Err(ReadyError::Fatal);
            }
            if time::now_ns() >= deadline_ns {
                return Err(ReadyError::TimedOut);
            }
            task::sleep_ns(wait_ns);
            wait_ns = (wait_ns * 2).min(LONGEST_WAIT_NS);
        }
    }
}

/// 64-bit registers are read and written as two aligned dwords, low first, which every controller
/// must take (NVMe sec 3.1.1) and every bridge passes on whole.
fn read_pair(window: &Mmio, offset: usize) -> u64 {
    u64::from(window.read32(offset)) | u64::from(window.read32(offset + 4)) << 32
}

fn write_pair(window: &Mmio, offset: usize, value: u64) {
    window.write32(offset, value as u32);
    window.write32(offset + 4, (value >> 32) as u32);
}
