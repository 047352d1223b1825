//! The I/O APIC (Intel 82093AA data sheet, order 290566-001), with the end-of-interrupt register
//! of its successors (version 0x20).
//!
//! - An edge on a masked pin is lost: "edge-sensitive interrupts signaled on a masked interrupt
//!   pin are ignored" (sec. 3.2.4, Interrupt Mask). A level on a masked pin is seen at unmasking,
//!   since it is still there.
//! - A level-triggered pin sends once, sets Remote IRR, and sends again at the end of interrupt
//!   if the line is still asserted. A line that falls in between is not taken back: the message
//!   has left.
//! - A message that no local APIC takes (all are switched off, say while a kernel hands over to
//!   another) sets no Remote IRR, or the pin would be dead for ever; it is offered again.
//! - Pins are driven by *assertion*, so the polarity bit is kept and has no effect: our devices
//!   have no electrical level that a guest could describe wrongly.

use super::{DeliveryMode, Destination, Message};

/// Guest-physical address of the register window.
pub const BASE: u64 = 0xfec0_0000;
/// Size of the window that decodes.
pub const WINDOW_BYTES: u64 = 0x1000;
/// Pins, as on the PIIX3's.
pub const PINS: usize = 24;

const VERSION: u32 = 0x20;
const REG_SELECT: u64 = 0x00;
const REG_WINDOW: u64 = 0x10;
const REG_END_OF_INTERRUPT: u64 = 0x40;
const INDEX_ID: u8 = 0x00;
const INDEX_VERSION: u8 = 0x01;
const INDEX_ARBITRATION: u8 = 0x02;
const INDEX_REDIRECTION: u8 = 0x10;

const ENTRY_LOGICAL: u64 = 1 << 11;
const ENTRY_REMOTE_IRR: u64 = 1 << 14;
const ENTRY_LEVEL: u64 = 1 << 15;
const ENTRY_MASKED: u64 = 1 << 16;
/// Delivery status (bit 12) is never busy here; Remote IRR is the chip's.
const ENTRY_READ_ONLY: u64 = 1 << 12 | ENTRY_REMOTE_IRR;
const ENTRY_BITS: u64 = 0xff00_0000_0001_ffff;

/// Takes a message to the local APICs; false if none of them accepted it.
pub type Send<'a> = &'a mut dyn FnMut(Message) -> bool;

/// The chip. Methods that can cause a message hand it to `send`.
#[derive(Clone, Debug)]
pub struct IoApic {
    select: u8,
    id: u8,
    entries: [u64; PINS],
    lines: u32,
    /// Level-triggered pins whose message nobody took.
    refused: u32,
}

impl Default for IoApic {
    fn default() -> Self {
        Self::new()
    }
}

impl IoApic {
    pub fn new() -> Self {
        Self { select: 0, id: 0, entries: [ENTRY_MASKED; PINS], lines: 0, refused: 0 }
    }

    fn message(entry: u64) -> Option<Message> {
        let low = (entry & 0xffff_ffff) as u32;
        let id = (entry >> 56) as u32;
        Some(Message {
            destination: match (entry & ENTRY_LOGICAL != 0, id) {
                (true, id) => Destination::Logical(id),
                (false, 0xff) => Destination::All,
                (false, id) => Destination::Physical(id),
            },
            mode: DeliveryMode::from_bits(low)?,
            vector: (low & 0xff) as u8,
            level_triggered: entry & ENTRY_LEVEL != 0,
        })
    }

    /// Sends for a level-triggered pin that is asserted, open, and not being served.
    fn send_level(&mut self, pin: usize, send: Send) {
        let entry = self.entries[pin];
        let asserted = self.lines & (1 << pin) != 0;
        if asserted && entry & ENTRY_LEVEL != 0 && entry & (ENTRY_MASKED | ENTRY_REMOTE_IRR) == 0 {
            let Some(message) = Self::message(entry) else { return };
            self.refused &= !(1 << pin);
            if !send(message) {
                self.refused |= 1 << pin;
            } else if matches!(message.mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority) {
                self.entries[pin] |= ENTRY_REMOTE_IRR;
            }
        }
    }

    /// Offers again what nobody took.
    pub fn retry(&mut self, send: Send) {
        let refused = core::mem::take(&mut self.refused);
        for pin in (0..PINS).filter(|pin| refused & 1 << pin != 0) {
            self.send_level(pin, send);
        }
    }

    /// Drives a pin.
    pub fn set_line(&mut self, pin: u8, asserted: bool, send: Send) {
        let pin = usize::from(pin);
        let Some(&entry) = self.entries.get(pin) else { return };
        let bit = 1u32 << pin;
        let rose = asserted && self.lines & bit == 0;
        if asserted {
            self.lines |= bit;
        } else {
            self.lines &= !bit;
        }
        if entry & ENTRY_LEVEL != 0 {
            self.send_level(pin, send);
        } else if rose
            && entry & ENTRY_MASKED == 0
            && let Some(message) = Self::message(entry)
        {
            send(message);
        }
    }

    /// A local APIC ended the service of a level-triggered vector.
    pub fn end_of_interrupt(&mut self, vector: u8, send: Send) {
        for pin in 0..PINS {
            let entry = self.entries[pin];
            if entry & 0xff == u64::from(vector) && entry & ENTRY_REMOTE_IRR != 0 {
                self.entries[pin] &= !ENTRY_REMOTE_IRR;
                self.send_level(pin, send);
            }
        }
    }

    /// Whether an edge on this pin would reach anyone.
    pub fn is_open(&self, pin: u8) -> bool {
        self.entries.get(usize::from(pin)).is_some_and(|entry| entry & ENTRY_MASKED == 0)
    }

    /// A read of 32 bits at `offset` of the window.
    pub fn read(&self, offset: u64) -> u32 {
        match offset {
            REG_SELECT => u32::from(self.select),
            REG_WINDOW => self.read_register(self.select),
            _ => 0,
        }
    }

    fn read_register(&self, index: u8) -> u32 {
        match index {
            INDEX_ID | INDEX_ARBITRATION => u32::from(self.id) << 24,
            INDEX_VERSION => VERSION | (PINS as u32 - 1) << 16,
            _ => {
                let half = usize::from(index.wrapping_sub(INDEX_REDIRECTION));
                let Some(&entry) = self.entries.get(half / 2) else { return 0 };
                if half % 2 == 0 { (entry & 0xffff_ffff) as u32 } else { (entry >> 32) as u32 }
            }
        }
    }

    pub fn write(&mut self, offset: u64, value: u32, send: Send) {
        match offset {
            REG_SELECT => self.select = (value & 0xff) as u8,
            REG_WINDOW => self.write_register(self.select, value, send),
            REG_END_OF_INTERRUPT => self.end_of_interrupt((value & 0xff) as u8, send),
            _ => {}
        }
    }

    fn write_register(&mut self, index: u8, value: u32, send: Send) {
        if index == INDEX_ID {
            self.id = (value >> 24 & 0xf) as u8;
            return;
        }
        let half = usize::from(index.wrapping_sub(INDEX_REDIRECTION));
        let pin = half / 2;
        let Some(entry) = self.entries.get_mut(pin) else { return };
        let merged = if half % 2 == 0 {
            *entry & !0xffff_ffff | u64::from(value)
        } else {
            *entry & 0xffff_ffff | u64::from(value) << 32
        };
        *entry = merged & ENTRY_BITS & !ENTRY_READ_ONLY | *entry & ENTRY_REMOTE_IRR;
        if *entry & ENTRY_LEVEL == 0 {
            // Switching a stuck pin to edge and back is how drivers of the older chip end it.
            *entry &= !ENTRY_REMOTE_IRR;
        }
        self.send_level(pin, send);
    }
}

#[cfg(test)]
#[path = "ioapic_tests.rs"]
mod tests;
