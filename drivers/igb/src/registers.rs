//! The card's registers, and the steps that bring it up.
//!
//! The order is the datasheets' (82576 sec 4.5 and 4.6): interrupts off, reset, interrupts off again,
//! the link, receiving, transmitting, interrupts on.

use core::sync::atomic::{Ordering, fence};

use igb_protocol::{Link, moderation, register, station_address};
use kcore::frame::FRAME_BYTES;
use kcore::mmio::{MapError, Mmio};
use kcore::pci::{PciDevice, PciError};
use kcore::time::now_ns;

use crate::device::{ORDINARY_MTU, StartError};
use crate::memory::{FrameReceiveRing, FrameTransmitRing};
use crate::phy;

/// Vectors, in the card's masks and in its MSI-X table. Transmission has one of its own, so that it can
/// be masked: the card is asked about sent packets only while others wait for their places.
pub(crate) const RECEIVE_VECTOR: u8 = 0;
pub(crate) const TRANSMIT_VECTOR: u8 = 1;
pub(crate) const OTHER_VECTOR: u8 = 2;
pub(crate) const VECTORS: u16 = 3;

/// How long the bus may take to fall silent. The datasheets have software give up after it too.
const SILENCE_LIMIT_NS: u64 = 80_000_000;
/// Nothing is read or written for so long after a reset was asked for (82576 sec 4.2).
const RESET_PAUSE_NS: u64 = 1_000_000;
/// How long a reset may take then.
const RESET_LIMIT_NS: u64 = 10_000_000;
/// How long a card may take to load its memory after that, and a queue to begin.
const LOAD_LIMIT_NS: u64 = 10_000_000;

/// Ethernet header, VLAN tag and checksum: what a packet has beside its payload.
const FRAMING_BYTES: u32 = 14 + 4 + 4;

const DATA_PATH: u32 = register::vector::bit(RECEIVE_VECTOR) | register::vector::bit(TRANSMIT_VECTOR);
const USED_VECTORS: u32 = DATA_PATH | register::vector::bit(OTHER_VECTOR);
const CAUSES: u32 = register::cause::LINK_CHANGED | register::cause::FATAL | register::cause::DMA_OUT_OF_SYNC;

pub(crate) struct Registers(Mmio);

/// Spins until `done`, or for `limit_ns`: what a card does by itself in microseconds, and tells by no
/// interrupt.
pub(crate) fn wait_for(limit_ns: u64, mut done: impl FnMut() -> bool) -> bool {
    let end_ns = now_ns() + limit_ns;
    while !done() {
        if now_ns() > end_ns {
            return false;
        }
        core::hint::spin_loop();
    }
    true
}

impl Registers {
    /// Maps them.
    pub fn map(function: &PciDevice) -> Result<Registers, PciError> {
        let window = function.bar(0).ok_or(PciError::NoSuchBar(0))?;
        if window.bytes < register::WINDOW_BYTES {
            return Err(PciError::Map(MapError::OutOfRange));
        }
        function.map_bar_part(0, 0, register::WINDOW_BYTES).map(Registers)
    }

    pub fn read(&self, offset: usize) -> u32 {
        self.0.read32(offset)
    }

    pub fn write(&self, offset: usize, value: u32) {
        self.0.write32(offset, value);
    }

    fn change(&self, offset: usize, set: u32, clear: u32) {
        self.write(offset, self.read(offset) & !clear | set);
    }

    /// Writes a tail register: descriptors that were written before are the card's from here on.
    pub fn ring(&self, tail_register: usize, tail: u16) {
        fence(Ordering::Release);
        self.write(tail_register, tail.into());
    }

    /// Lets a vector interrupt, at once if it has a cause.
    pub fn unmask(&self, vector: u8) {
        self.write(register::VECTOR_MASK_SET, register::vector::bit(vector));
    }

    pub fn mask(&self, vector: u8) {
        self.write(register::VECTOR_MASK_CLEAR, register::vector::bit(vector));
    }

    /// What happened beside the queues since the last look.
    pub fn take_causes(&self) -> u32 {
        self.read(register::CAUSES)
    }

    pub fn link(&self) -> Link {
        Link::of(self.read(register::STATUS))
    }

    /// Resets the card. `true`: it said so. Whether it did or not, call this with its bus mastering off
    /// before any of its memory is used again.
    #[must_use]
    pub fn reset(&self) -> bool {
        use register::{control, memory_control, status};
        self.silence();
        self.change(register::CONTROL, control::MASTER_DISABLE, 0);
        let is_silent = || self.read(register::STATUS) & status::MASTER_ENABLED == 0;
        // A card that does not fall silent is reset all the same.
        let _ = wait_for(SILENCE_LIMIT_NS, is_silent);
        self.change(register::CONTROL, control::RESET, 0);
        wait_for(RESET_PAUSE_NS, || false);
        let was_reset = wait_for(RESET_LIMIT_NS, || self.read(register::CONTROL) & control::RESET == 0);
        // Some models never say it; the address is checked in any case.
        let has_loaded = || self.read(register::MEMORY_CONTROL) & memory_control::AUTO_READ_DONE != 0;
        let _ = wait_for(LOAD_LIMIT_NS, has_loaded);
        self.silence();
        was_reset
    }

    /// No interrupts, and none pending.
    fn silence(&self) {
        self.write(register::VECTOR_MASK_CLEAR, register::ALL_VECTORS);
        self.write(register::CAUSE_MASK_CLEAR, u32::MAX);
        let _cleared_by_reading = self.take_causes();
    }

    /// The card's address.
    pub fn mac(&self) -> Result<[u8; 6], StartError> {
        let low = self.read(register::RECEIVE_ADDRESS_LOW);
        let high = self.read(register::RECEIVE_ADDRESS_HIGH);
        station_address(low, high).ok_or(StartError::NoAddress)
    }

    /// Has the link come up by negotiation.
    pub fn start_link(&self) -> Result<(), StartError> {
        use register::{control, control_extended};
        if self.read(register::CONTROL_EXTENDED) & control_extended::LINK_MODE != 0 {
            return Err(StartError::NotCopper);
        }
        self.change(register::CONTROL_EXTENDED, control_extended::DRIVER_LOADED, 0);
        let forced = control::FORCE_SPEED | control::FORCE_DUPLEX | control::VLAN_MODE;
        self.change(
            register::CONTROL,
            control::SET_LINK_UP | control::FULL_DUPLEX,
            forced | control::MASTER_DISABLE,
        );
        phy::start_link(self)
    }

    /// Tells the card where the receive ring lies and what is a packet. Nothing is received before the
    /// ring's tail is written.
    pub fn start_receiving(&self, ring: &FrameReceiveRing, mtu: u16) -> Result<(), StartError> {
        use register::{receive_control, receive_queue as queue};
        for index in 0..register::MULTICAST_TABLE_LENGTH {
            self.write(register::MULTICAST_TABLE + 4 * index, 0);
        }
        self.write(register::RECEIVE_CHECKSUM, 0);
        self.write(register::LONGEST_PACKET, FRAMING_BYTES + u32::from(mtu));
        self.place(queue::BASE_LOW, queue::BASE_HIGH, ring.memory().device_address());
        self.write(queue::BYTES, ring.size().bytes() as u32);
        self.write(queue::SPLIT, queue::one_buffer(FRAME_BYTES as u32));
        self.write(queue::HEAD, 0);
        self.write(queue::TAIL, 0);
        self.enable_queue(queue::CONTROL, 8, 8)?;
        let long = if mtu > ORDINARY_MTU { receive_control::LONG_PACKETS } else { 0 };
        self.write(
            register::RECEIVE_CONTROL,
            receive_control::ENABLE
                | receive_control::ACCEPT_BROADCAST
                | receive_control::STRIP_CHECKSUM
                | long,
        );
        Ok(())
    }

    /// Tells the card where the transmit ring lies.
    pub fn start_transmitting(&self, ring: &FrameTransmitRing) -> Result<(), StartError> {
        use register::{transmit_control as control, transmit_queue as queue};
        self.place(queue::BASE_LOW, queue::BASE_HIGH, ring.memory().device_address());
        self.write(queue::BYTES, ring.size().bytes() as u32);
        self.write(queue::HEAD, 0);
        self.write(queue::TAIL, 0);
        self.enable_queue(queue::CONTROL, 8, 1)?;
        self.write(
            register::TRANSMIT_CONTROL,
            control::ENABLE
                | control::PAD_SHORT_PACKETS
                | control::COLLISION_THRESHOLD
                | control::COLLISION_DISTANCE
                | control::RETRANSMIT_ON_LATE_COLLISION,
        );
        Ok(())
    }

    fn place(&self, low: usize, high: usize, device_address: u64) {
        self.write(low, device_address as u32);
        self.write(high, (device_address >> 32) as u32);
    }

    fn enable_queue(&self, control: usize, prefetch: u8, host: u8) -> Result<(), StartError> {
        use register::queue_control::{ENABLE, thresholds};
        self.write(control, thresholds(prefetch, host) | ENABLE);
        match wait_for(LOAD_LIMIT_NS, || self.read(control) & ENABLE != 0) {
            true => Ok(()),
            false => Err(StartError::QueueRefused),
        }
    }

    /// Connects causes with vectors and lets those of receiving and of the card's state interrupt.
    /// A message clears its cause and masks its vector by itself, so that none comes before
    /// [`Registers::unmask`], and one that is due is sent then.
    pub fn start_interrupts(&self, receive_interval_us: u16) {
        use register::{interrupt_mode as mode, vector};
        self.write(
            register::INTERRUPT_MODE,
            mode::READ_CLEARS | mode::MULTIPLE_VECTORS | mode::AUTO_MASK | mode::PENDING_TABLE,
        );
        let queue_vectors = vector::valid(RECEIVE_VECTOR) | vector::valid(TRANSMIT_VECTOR) << 8;
        self.write(register::QUEUE_VECTORS, queue_vectors);
        self.write(register::OTHER_VECTORS, vector::valid(OTHER_VECTOR) << 8);
        self.write(register::throttle(RECEIVE_VECTOR), moderation::throttle(receive_interval_us));
        self.write(register::throttle(TRANSMIT_VECTOR), moderation::throttle(0));
        self.write(register::throttle(OTHER_VECTOR), moderation::throttle(0));
        self.write(register::VECTOR_AUTO_CLEAR, USED_VECTORS);
        self.write(register::VECTOR_AUTO_MASK, USED_VECTORS);
        self.write(register::CAUSE_MASK_SET, CAUSES);
        self.unmask(OTHER_VECTOR);
        self.unmask(RECEIVE_VECTOR);
    }

    /// Packets that the card dropped since the last call: damaged ones, and those without room.
    pub fn take_drops(&self) -> (u32, u32) {
        (self.read(register::CHECKSUM_ERRORS), self.read(register::MISSED_PACKETS))
    }
}
