use alloc::vec;
use alloc::vec::Vec;

use super::*;

const LEVEL: u32 = 1 << 15;
const MASKED: u32 = 1 << 16;

struct Rig {
    ioapic: IoApic,
    sent: Vec<Message>,
    /// Whether local APICs take messages.
    accepts: bool,
}

impl Rig {
    fn new() -> Self {
        Self { ioapic: IoApic::new(), sent: Vec::new(), accepts: true }
    }

    fn program(&mut self, pin: u8, low: u32, high: u32) {
        for (index, value) in [(0x11 + 2 * pin, high), (0x10 + 2 * pin, low)] {
            self.write(0x00, u32::from(index));
            self.write(0x10, value);
        }
    }

    fn write(&mut self, offset: u64, value: u32) {
        let (sent, accepts) = (&mut self.sent, self.accepts);
        self.ioapic.write(offset, value, &mut |message| {
            sent.push(message);
            accepts
        });
    }

    fn line(&mut self, pin: u8, asserted: bool) {
        let (sent, accepts) = (&mut self.sent, self.accepts);
        self.ioapic.set_line(pin, asserted, &mut |message| {
            sent.push(message);
            accepts
        });
    }

    fn end(&mut self, vector: u8) {
        let sent = &mut self.sent;
        self.ioapic.end_of_interrupt(vector, &mut |message| {
            sent.push(message);
            true
        });
    }

    fn entry_low(&mut self, pin: u8) -> u32 {
        self.write(0x00, 0x10 + 2 * u32::from(pin));
        self.ioapic.read(0x10)
    }

    fn vectors(&mut self) -> Vec<u8> {
        self.sent.drain(..).map(|message| message.vector).collect()
    }
}

#[test]
fn a_fresh_chip_has_everything_masked() {
    let mut rig = Rig::new();
    assert_eq!(rig.entry_low(0), MASKED);
    rig.write(0x00, 0x01);
    assert_eq!(rig.ioapic.read(0x10), 0x0017_0020);
    rig.line(4, true);
    assert!(rig.sent.is_empty());
}

#[test]
fn an_edge_is_one_message() {
    let mut rig = Rig::new();
    rig.program(4, 0x34, 1 << 24);
    rig.line(4, true);
    rig.line(4, true);
    assert_eq!(
        rig.sent,
        [Message {
            destination: Destination::Physical(1),
            mode: DeliveryMode::Fixed,
            vector: 0x34,
            level_triggered: false
        }]
    );
    rig.line(4, false);
    rig.line(4, true);
    assert_eq!(rig.sent.len(), 2);
}

#[test]
fn an_edge_on_a_masked_pin_is_lost() {
    let mut rig = Rig::new();
    rig.program(4, 0x34 | MASKED, 0);
    rig.line(4, true);
    rig.program(4, 0x34, 0);
    assert!(rig.sent.is_empty());
}

#[test]
fn a_level_is_sent_at_unmasking_and_again_at_each_end() {
    let mut rig = Rig::new();
    rig.program(10, 0x3a | LEVEL | MASKED, 0);
    rig.line(10, true);
    assert!(rig.sent.is_empty());
    rig.program(10, 0x3a | LEVEL, 0);
    assert_eq!(rig.vectors(), [0x3a]);
    assert_ne!(rig.entry_low(10) & 1 << 14, 0, "Remote IRR");
    rig.line(10, true);
    assert!(rig.sent.is_empty(), "not before the end");
    rig.end(0x3a);
    assert_eq!(rig.vectors(), [0x3a]);
    rig.line(10, false);
    rig.end(0x3a);
    assert!(rig.sent.is_empty());
    assert_eq!(rig.entry_low(10) & 1 << 14, 0);
}

#[test]
fn masking_between_message_and_end_keeps_the_request() {
    let mut rig = Rig::new();
    rig.program(10, 0x3a | LEVEL, 0);
    rig.line(10, true);
    rig.vectors();
    rig.program(10, 0x3a | LEVEL | MASKED, 0);
    rig.end(0x3a);
    assert!(rig.sent.is_empty());
    rig.program(10, 0x3a | LEVEL, 0);
    assert_eq!(rig.vectors(), [0x3a]);
}

#[test]
fn the_end_register_and_the_edge_trick_end_a_service() {
    let mut rig = Rig::new();
    rig.program(10, 0x3a | LEVEL, 0);
    rig.line(10, true);
    rig.line(10, false);
    rig.vectors();
    rig.write(0x40, 0x3a);
    assert_eq!(rig.entry_low(10) & 1 << 14, 0);
    rig.line(10, true);
    rig.line(10, false);
    rig.program(10, 0x3a | MASKED, 0);
    assert_eq!(rig.entry_low(10) & 1 << 14, 0);
}

#[test]
fn a_level_that_nobody_takes_is_offered_again() {
    let mut rig = Rig::new();
    rig.program(10, 0x3a | LEVEL, 0);
    rig.accepts = false;
    rig.line(10, true);
    assert_eq!(rig.vectors(), [0x3a]);
    assert_eq!(rig.entry_low(10) & 1 << 14, 0);
    let sent = &mut rig.sent;
    rig.ioapic.retry(&mut |message| {
        sent.push(message);
        true
    });
    assert_eq!(rig.vectors(), [0x3a]);
    assert_ne!(rig.entry_low(10) & 1 << 14, 0);
    rig.ioapic.retry(&mut |_| panic!("nothing is left"));
}

#[test]
fn logical_and_broadcast_destinations() {
    let mut rig = Rig::new();
    rig.program(1, 0x31 | 1 << 11 | 1 << 8, 0x03 << 24);
    rig.program(3, 0x33, 0xff << 24);
    rig.line(1, true);
    rig.line(3, true);
    assert_eq!(rig.sent[0].destination, Destination::Logical(3));
    assert_eq!(rig.sent[0].mode, DeliveryMode::LowestPriority);
    assert_eq!(rig.sent[1].destination, Destination::All);
}

#[test]
fn what_is_not_there_reads_zero_and_ignores_writes() {
    let mut rig = Rig::new();
    rig.write(0x00, 0xff);
    rig.write(0x10, u32::MAX);
    assert_eq!(rig.ioapic.read(0x10), 0);
    assert_eq!(rig.ioapic.read(0x24), 0);
    rig.write(0x00, 0x40);
    rig.write(0x10, u32::MAX);
    assert_eq!(rig.ioapic.read(0x10), 0);
    rig.line(200, true);
    assert_eq!(rig.vectors(), vec![0u8; 0]);
}
