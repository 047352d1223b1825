//! Registers, by their offset in memory window 0, and their bits. Where a group's registers exist once
//! a queue, those of queue 0 are meant. Names are the datasheets' in full words; theirs stand behind.

/// Bytes of the window that the registers below lie in.
pub const WINDOW_BYTES: u64 = 0x10000;

/// CTRL: device control (82576 sec 8.2).
pub const CONTROL: usize = 0x0000;
pub mod control {
    pub const FULL_DUPLEX: u32 = 1 << 0;
    /// Finish what is under way on the bus and begin nothing new.
    pub const MASTER_DISABLE: u32 = 1 << 2;
    pub const SET_LINK_UP: u32 = 1 << 6;
    /// Speed and duplex by these bits rather than by the PHY's negotiation.
    pub const FORCE_SPEED: u32 = 1 << 11;
    pub const FORCE_DUPLEX: u32 = 1 << 12;
    /// Clears itself.
    pub const RESET: u32 = 1 << 26;
    /// Takes VLAN tags out of packets.
    pub const VLAN_MODE: u32 = 1 << 30;
}

/// STATUS: device status (82576 sec 8.2).
pub const STATUS: usize = 0x0008;
pub mod status {
    pub const FULL_DUPLEX: u32 = 1 << 0;
    pub const LINK_UP: u32 = 1 << 1;
    /// Which of the chip's ports this is.
    pub const PORT: u32 = 0b11 << 2;
    pub const PORT_SHIFT: u32 = 2;
    pub const SPEED: u32 = 0b11 << 6;
    pub const SPEED_SHIFT: u32 = 6;
    /// The card may begin transfers, or has some under way.
    pub const MASTER_ENABLED: u32 = 1 << 19;
}

/// EECD: the card's memory (82576 sec 8.4).
pub const MEMORY_CONTROL: usize = 0x0010;
pub mod memory_control {
    /// What follows from the memory has been loaded after the reset.
    pub const AUTO_READ_DONE: u32 = 1 << 9;
}

/// CTRL_EXT: extended device control (82576 sec 8.2).
pub const CONTROL_EXTENDED: usize = 0x0018;
pub mod control_extended {
    /// What the port is connected with: 00 is the PHY on the chip.
    pub const LINK_MODE: u32 = 0b11 << 22;
    /// A driver is there: firmware leaves the port alone.
    pub const DRIVER_LOADED: u32 = 1 << 28;
}

/// MDIC: access to the PHY's registers (82576 sec 8.2).
pub const PHY_ACCESS: usize = 0x0020;
pub mod phy_access {
    pub const DATA: u32 = 0xffff;
    pub const REGISTER_SHIFT: u32 = 16;
    /// The PHY on the chip. (The I350 and I210 take the address from another register.)
    pub const INTERNAL_PHY: u32 = 1 << 21;
    pub const WRITE: u32 = 0b01 << 26;
    pub const READ: u32 = 0b10 << 26;
    pub const READY: u32 = 1 << 28;
    pub const ERROR: u32 = 1 << 30;
}

/// Registers of every PHY (IEEE 802.3 sec 22.2.4).
pub mod phy {
    pub const CONTROL: u32 = 0;
    pub const STATUS: u32 = 1;

    pub const CONTROL_RESTART_NEGOTIATION: u16 = 1 << 9;
    pub const CONTROL_ISOLATE: u16 = 1 << 10;
    pub const CONTROL_POWER_DOWN: u16 = 1 << 11;
    pub const CONTROL_NEGOTIATE: u16 = 1 << 12;
    pub const CONTROL_LOOPBACK: u16 = 1 << 14;

    pub const STATUS_LINK_UP: u16 = 1 << 2;
    pub const STATUS_NEGOTIATED: u16 = 1 << 5;

    /// What to write to have the link negotiated anew.
    #[must_use]
    pub const fn restart_negotiation(control: u16) -> u16 {
        let cleared = control & !(CONTROL_POWER_DOWN | CONTROL_ISOLATE | CONTROL_LOOPBACK);
        cleared | CONTROL_NEGOTIATE | CONTROL_RESTART_NEGOTIATION
    }

    /// Whether the PHY has a link already.
    #[must_use]
    pub const fn has_link(status: u16) -> bool {
        status & (STATUS_LINK_UP | STATUS_NEGOTIATED) == STATUS_LINK_UP | STATUS_NEGOTIATED
    }
}

/// SWSM: the semaphore of software against software and firmware (82576 sec 4.5 and 8.16).
pub const SOFTWARE_SEMAPHORE: usize = 0x5b50;
pub mod software_semaphore {
    /// Set by each read; who read it clear has it.
    pub const TAKEN: u32 = 1 << 0;
    /// Asks firmware for it; reads as set once it was given.
    pub const AGAINST_FIRMWARE: u32 = 1 << 1;
}

/// SW_FW_SYNC: who uses what that they share (82576 sec 8.16).
pub const SHARED: usize = 0x5b5c;
pub mod shared {
    /// The bit by which software holds the PHY of a port, and above it firmware's.
    #[must_use]
    pub const fn phy_of_port(port: u32) -> u32 {
        match port {
            0 => 1 << 1,
            1 => 1 << 2,
            2 => 1 << 5,
            _ => 1 << 6,
        }
    }

    pub const FIRMWARE_SHIFT: u32 = 16;
}

/// ICR, IMS, IMC: causes, read to clear; mask set; mask clear (82576 sec 8.8), at the aliases that
/// the family keeps for its forebears' drivers: QEMU's model answers at these alone.
pub const CAUSES: usize = 0x00c0;
pub const CAUSE_MASK_SET: usize = 0x00d0;
pub const CAUSE_MASK_CLEAR: usize = 0x00d8;
pub mod cause {
    pub const LINK_CHANGED: u32 = 1 << 2;
    /// The card found an error inside itself that only a reset ends (I210 and I350; reserved and
    /// never set in the 82576).
    pub const FATAL: u32 = 1 << 22;
    /// The card's transfers have lost their order.
    pub const DMA_OUT_OF_SYNC: u32 = 1 << 28;
}

/// GPIE: general purpose interrupt enable (82576 sec 8.8).
pub const INTERRUPT_MODE: usize = 0x1514;
pub mod interrupt_mode {
    /// A read of the causes clears them whatever is masked.
    pub const READ_CLEARS: u32 = 1 << 0;
    /// Each cause to a vector of its own.
    pub const MULTIPLE_VECTORS: u32 = 1 << 4;
    /// A message masks its vector.
    pub const AUTO_MASK: u32 = 1 << 30;
    /// The table of pending messages works as the PCI specification says.
    pub const PENDING_TABLE: u32 = 1 << 31;
}

/// EIMS, EIMC, EIAC, EIAM: by vector, a bit each (82576 sec 8.8).
pub const VECTOR_MASK_SET: usize = 0x1524;
pub const VECTOR_MASK_CLEAR: usize = 0x1528;
pub const VECTOR_AUTO_CLEAR: usize = 0x152c;
pub const VECTOR_AUTO_MASK: usize = 0x1530;
/// EICR: vectors that have a cause; writing ones clears.
pub const VECTOR_CAUSES: usize = 0x1580;
/// Every vector that any card of the family has.
pub const ALL_VECTORS: u32 = 0x01ff_ffff;

/// IVAR0: the vectors of queue 0; lowest byte: receive, the next: transmit.
pub const QUEUE_VECTORS: usize = 0x1700;
/// IVAR_MISC: lowest byte: the TCP timer's vector; the next: that of all other causes.
pub const OTHER_VECTORS: usize = 0x1740;
pub mod vector {
    /// How the two registers above name a vector.
    #[must_use]
    pub const fn valid(vector: u8) -> u32 {
        0x80 | vector as u32
    }

    /// A vector's bit in the masks.
    #[must_use]
    pub const fn bit(vector: u8) -> u32 {
        1 << vector
    }
}

/// EITR: the throttle of a vector; see [`crate::moderation`].
#[must_use]
pub const fn throttle(vector: u8) -> usize {
    0x1680 + 4 * vector as usize
}

/// RCTL: receive control (82576 sec 8.10).
pub const RECEIVE_CONTROL: usize = 0x0100;
pub mod receive_control {
    pub const ENABLE: u32 = 1 << 1;
    /// Packets of more than 1522 bytes are packets.
    pub const LONG_PACKETS: u32 = 1 << 5;
    pub const ACCEPT_BROADCAST: u32 = 1 << 15;
    /// Leaves out the Ethernet checksum.
    pub const STRIP_CHECKSUM: u32 = 1 << 26;
}

/// RLPML: the longest packet, with its checksum, when long ones are packets (82576 sec 8.10).
pub const LONGEST_PACKET: usize = 0x5004;
/// RXCSUM: receive checksums; 0: none computed (82576 sec 8.10).
pub const RECEIVE_CHECKSUM: usize = 0x5000;
/// MTA: the table of multicast hashes, so many double words (82576 sec 8.10).
pub const MULTICAST_TABLE: usize = 0x5200;
pub const MULTICAST_TABLE_LENGTH: usize = 128;

/// RAL, RAH: receive addresses (82576 sec 8.10).
pub const RECEIVE_ADDRESS_LOW: usize = 0x5400;
pub const RECEIVE_ADDRESS_HIGH: usize = 0x5404;
pub mod receive_address {
    pub const HIGH_VALID: u32 = 1 << 31;
}

/// Registers of the receive queue (82576 sec 8.10; RDBAL, RDBAH, RDLEN, SRRCTL, RDH, RDT, RXDCTL).
pub mod receive_queue {
    pub const BASE_LOW: usize = 0xc000;
    pub const BASE_HIGH: usize = 0xc004;
    pub const BYTES: usize = 0xc008;
    pub const SPLIT: usize = 0xc00c;
    pub const HEAD: usize = 0xc010;
    pub const TAIL: usize = 0xc018;
    pub const CONTROL: usize = 0xc028;

    /// SRRCTL: a packet's buffers of `bytes` each (whole KiB, at most 127), described by advanced
    /// descriptors of one buffer.
    #[must_use]
    pub const fn one_buffer(bytes: u32) -> u32 {
        const ADVANCED_ONE_BUFFER: u32 = 0b001 << 25;
        ADVANCED_ONE_BUFFER | (bytes >> 10)
    }
}

/// Registers of the transmit queue (82576 sec 8.12; TDBAL, TDBAH, TDLEN, TDH, TDT, TXDCTL).
pub mod transmit_queue {
    pub const BASE_LOW: usize = 0xe000;
    pub const BASE_HIGH: usize = 0xe004;
    pub const BYTES: usize = 0xe008;
    pub const HEAD: usize = 0xe010;
    pub const TAIL: usize = 0xe018;
    pub const CONTROL: usize = 0xe028;
}

/// RXDCTL and TXDCTL: how a queue fetches descriptors and writes them back.
pub mod queue_control {
    pub const ENABLE: u32 = 1 << 25;

    /// Fetch ahead when fewer than `prefetch` are on the chip and `host` or more wait in memory; write
    /// back each at once (a threshold of 1; the 82576 delays MSI-X messages with any other).
    #[must_use]
    pub const fn thresholds(prefetch: u8, host: u8) -> u32 {
        const WRITE_BACK_EACH: u32 = 1 << 16;
        WRITE_BACK_EACH | (host as u32 & 0x1f) << 8 | prefetch as u32 & 0x1f
    }
}

/// TCTL: transmit control (82576 sec 8.12).
pub const TRANSMIT_CONTROL: usize = 0x0400;
pub mod transmit_control {
    pub const ENABLE: u32 = 1 << 1;
    pub const PAD_SHORT_PACKETS: u32 = 1 << 3;
    pub const COLLISION_THRESHOLD: u32 = 15 << 4;
    pub const COLLISION_DISTANCE: u32 = 64 << 12;
    pub const RETRANSMIT_ON_LATE_COLLISION: u32 = 1 << 24;
}

/// CRCERRS, MPC: packets with a wrong checksum; packets for which there was no room (82576 sec 8.18).
/// A read clears them.
pub const CHECKSUM_ERRORS: usize = 0x4000;
pub const MISSED_PACKETS: usize = 0x4010;
