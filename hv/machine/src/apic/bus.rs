//! The way of an interrupt from a device or CPU to another CPU.
//!
//! A guest CPU's local APIC is plain state of the task that runs it. Others drop what they have
//! into that CPU's mailbox, all of it atomic, and ring its doorbell; the task empties the mailbox
//! before each entry. A sender never waits and never takes a lock, so a device may post from
//! wherever its work is done.
//!
//! Order matters once: the sender first writes what it has, then `has_mail`, then rings. The
//! owner clears `has_mail` before it collects. Whatever is posted after that sets it again, so
//! nothing is lost between collecting and halting, provided the doorbell itself is latched.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::{DeliveryMode, Destination, Message};

const EVENT_NMI: u32 = 1 << 8;
const EVENT_INIT: u32 = 1 << 9;
/// A start-up IPI, whose vector stands in bits 7:0.
const EVENT_START_UP: u32 = 1 << 10;

const FORMAT_CLUSTER: u32 = 1 << 0;
const FORMAT_X2APIC: u32 = 1 << 1;
const FORMAT_ENABLED: u32 = 1 << 2;

/// Wakes or kicks a guest CPU.
pub trait Doorbell: Send + Sync {
    /// Makes CPU `cpu` look at its mailbox soon: takes it out of the guest, or out of its sleep.
    /// Latched: a ring before the sleep ends the sleep. May be called from any context.
    fn ring(&self, cpu: usize);
}

/// How other CPUs reach this one by identifier; its local APIC publishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub id: u32,
    /// LDR as its mode has it: bits 31:24 in xAPIC mode, all 32 in x2APIC mode.
    pub logical: u32,
    /// DFR names the cluster model (xAPIC mode only).
    pub cluster_model: bool,
    pub x2apic: bool,
    /// Software-enabled: takes fixed interrupts.
    pub enabled: bool,
}

/// What came for one CPU.
#[derive(Debug, Default)]
pub struct Mailbox {
    has_mail: AtomicBool,
    /// Vectors asked for.
    requests: [AtomicU64; 4],
    /// Which of them came level-triggered.
    levels: [AtomicU64; 4],
    events: AtomicU32,
    /// The 8259 pair's INTR output; wired to the first CPU's LINT0 alone.
    external: AtomicBool,
    id: AtomicU32,
    logical: AtomicU32,
    format: AtomicU32,
}

/// What [`Mailbox::collect`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mail {
    pub requests: [u64; 4],
    pub levels: [u64; 4],
    pub nmi: bool,
    pub init: bool,
    pub start_up: Option<u8>,
}

impl Mailbox {
    fn post(&self, vector: u8, level_triggered: bool) {
        let (word, bit) = (usize::from(vector >> 6), 1 << (vector & 63));
        if level_triggered {
            self.levels[word].fetch_or(bit, Ordering::Relaxed);
        } else {
            self.levels[word].fetch_and(!bit, Ordering::Relaxed);
        }
        self.requests[word].fetch_or(bit, Ordering::Relaxed);
        self.has_mail.store(true, Ordering::Release);
    }

    fn post_event(&self, event: u32) {
        self.events.fetch_or(event, Ordering::Relaxed);
        self.has_mail.store(true, Ordering::Release);
    }

    /// A start-up IPI's vector replaces that of one not taken yet.
    fn post_start_up(&self, vector: u8) {
        let set = |events: u32| Some(events & !0xff | EVENT_START_UP | u32::from(vector));
        let _ = self.events.fetch_update(Ordering::Relaxed, Ordering::Relaxed, set);
        self.has_mail.store(true, Ordering::Release);
    }

    /// Takes everything that was posted. `None`, cheaply, when nothing was.
    pub fn collect(&self) -> Option<Mail> {
        if !self.has_mail.load(Ordering::Relaxed) || !self.has_mail.swap(false, Ordering::Acquire) {
            return None;
        }
        let mut mail = Mail::default();
        for word in 0..4 {
            mail.requests[word] = self.requests[word].swap(0, Ordering::Acquire);
            mail.levels[word] = self.levels[word].load(Ordering::Relaxed);
        }
        let events = self.events.swap(0, Ordering::Acquire);
        mail.nmi = events & EVENT_NMI != 0;
        mail.init = events & EVENT_INIT != 0;
        mail.start_up = (events & EVENT_START_UP != 0).then_some((events & 0xff) as u8);
        Some(mail)
    }

    pub fn external_interrupt(&self) -> bool {
        self.external.load(Ordering::Acquire)
    }

    /// Called by the owner's local APIC whenever one of these changes.
    pub fn publish(&self, address: Address) {
        let mut format = 0;
        for (set, bit) in [
            (address.cluster_model, FORMAT_CLUSTER),
            (address.x2apic, FORMAT_X2APIC),
            (address.enabled, FORMAT_ENABLED),
        ] {
            format |= if set { bit } else { 0 };
        }
        self.id.store(address.id, Ordering::Relaxed);
        self.logical.store(address.logical, Ordering::Relaxed);
        self.format.store(format, Ordering::Release);
    }

    pub fn address(&self) -> Address {
        let format = self.format.load(Ordering::Acquire);
        Address {
            id: self.id.load(Ordering::Relaxed),
            logical: self.logical.load(Ordering::Relaxed),
            cluster_model: format & FORMAT_CLUSTER != 0,
            x2apic: format & FORMAT_X2APIC != 0,
            enabled: format & FORMAT_ENABLED != 0,
        }
    }
}

impl Address {
    /// SDM vol. 3 sec. 11.6.2.2 and 11.12.10.
    fn matches_logical(&self, destination: u32) -> bool {
        if self.x2apic {
            return destination >> 16 == self.logical >> 16 && destination & self.logical & 0xffff != 0;
        }
        let (own, wanted) = (self.logical >> 24, destination & 0xff);
        if self.cluster_model {
            let same_cluster = wanted >> 4 == own >> 4 || wanted >> 4 == 0xf;
            same_cluster && wanted & own & 0xf != 0
        } else {
            wanted & own != 0
        }
    }
}

/// All mailboxes of one guest.
pub struct ApicBus {
    mailboxes: Box<[Mailbox]>,
    doorbell: Box<dyn Doorbell>,
    /// Where the search for the next lowest-priority target begins.
    rotation: AtomicUsize,
}

impl ApicBus {
    pub fn new(cpus: usize, doorbell: Box<dyn Doorbell>) -> Self {
        let mailboxes: Box<[Mailbox]> = (0..cpus).map(|_| Mailbox::default()).collect();
        for (index, mailbox) in mailboxes.iter().enumerate() {
            mailbox.id.store(index as u32, Ordering::Relaxed);
        }
        Self { mailboxes, doorbell, rotation: AtomicUsize::new(0) }
    }

    pub fn cpus(&self) -> usize {
        self.mailboxes.len()
    }

    pub fn mailbox(&self, cpu: usize) -> Option<&Mailbox> {
        self.mailboxes.get(cpu)
    }

    fn is_target(&self, cpu: usize, destination: Destination) -> bool {
        let Some(mailbox) = self.mailboxes.get(cpu) else { return false };
        match destination {
            Destination::Physical(id) => mailbox.address().id == id,
            Destination::Logical(wanted) => mailbox.address().matches_logical(wanted),
            Destination::All => true,
            Destination::AllBut(index) => cpu != index,
            Destination::Index(index) => cpu == index,
        }
    }

    /// Delivers a message. `sender` is the CPU whose own task calls, if one does: it looks at its
    /// mailbox before it enters the guest anyway, so its own doorbell stays quiet. False if no CPU
    /// took the message.
    pub fn send(&self, message: Message, sender: Option<usize>) -> bool {
        let cpus = self.cpus();
        if message.mode == DeliveryMode::LowestPriority {
            // Any one of the targets will do; take turns.
            let first = self.rotation.fetch_add(1, Ordering::Relaxed) % cpus.max(1);
            let enabled = |&cpu: &usize| {
                self.is_target(cpu, message.destination) && self.mailboxes[cpu].address().enabled
            };
            let target = (first..cpus).chain(0..first).find(enabled);
            return target.is_some_and(|cpu| self.post(cpu, message, sender));
        }
        let targets = (0..cpus).filter(|&cpu| self.is_target(cpu, message.destination));
        // All of them, not just the first that takes it.
        targets.filter(|&cpu| self.post(cpu, message, sender)).count() != 0
    }

    fn post(&self, cpu: usize, message: Message, sender: Option<usize>) -> bool {
        let Some(mailbox) = self.mailboxes.get(cpu) else { return false };
        match message.mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                if !mailbox.address().enabled {
                    return false;
                }
                mailbox.post(message.vector, message.level_triggered);
            }
            DeliveryMode::Nmi => mailbox.post_event(EVENT_NMI),
            DeliveryMode::Init => mailbox.post_event(EVENT_INIT),
            DeliveryMode::StartUp => mailbox.post_start_up(message.vector),
            // There is no system management mode here, and the 8259's output has a wire.
            DeliveryMode::SystemManagement | DeliveryMode::ExternalInterrupt => return false,
        }
        if sender != Some(cpu) {
            self.doorbell.ring(cpu);
        }
        true
    }

    /// The 8259 pair's output changed, or may have.
    pub fn set_external_interrupt(&self, asserted: bool, sender: Option<usize>) {
        let Some(first) = self.mailboxes.first() else { return };
        if first.external.load(Ordering::Relaxed) == asserted {
            return;
        }
        first.external.store(asserted, Ordering::Release);
        if asserted && sender != Some(0) {
            self.doorbell.ring(0);
        }
    }

    /// Wakes the CPU that does the devices' work, unless it is the one that calls: a timer of
    /// the board was programmed and its next edge may be nearer than what it waits for.
    pub fn ring_device_cpu_unless(&self, sender: Option<usize>) {
        if sender != Some(0) {
            self.doorbell.ring(0);
        }
    }
}

#[cfg(test)]
#[path = "bus_tests.rs"]
mod tests;
