//! The controller's registers (NVMe sec 3.1.3): where they are and what their fields say.

/// Offsets in the register window.
pub mod offset {
    pub const CAP: usize = 0x00;
    pub const VS: usize = 0x08;
    pub const INTMS: usize = 0x0c;
    pub const CC: usize = 0x14;
    pub const CSTS: usize = 0x1c;
    pub const AQA: usize = 0x24;
    pub const ASQ: usize = 0x28;
    pub const ACQ: usize = 0x30;
    /// The first doorbell (sec 3.1.2.1 in the PCIe transport's register map).
    pub const DOORBELLS: usize = 0x1000;
}

/// The capabilities register, CAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    #[must_use]
    pub const fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// A register window that answers with ones belongs to nobody any more.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        self.0 == u64::MAX
    }

    /// Most entries of an I/O queue: MQES plus one, so 2 to 65,536 from an honest controller.
    #[must_use]
    pub const fn max_queue_entries(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// Longest time for CSTS.RDY to follow CC.EN: TO counts halves of a second.
    #[must_use]
    pub const fn ready_timeout_ns(self) -> u64 {
        ((self.0 >> 24) & 0xff) * 500_000_000
    }

    /// Bytes from one doorbell to the next.
    #[must_use]
    pub const fn doorbell_stride_bytes(self) -> usize {
        4 << ((self.0 >> 32) & 0xf)
    }

    /// Whether CC.CSS may select the NVM command set alone.
    #[must_use]
    pub const fn has_nvm_command_set(self) -> bool {
        self.0 >> 37 & 1 != 0
    }

    /// The smallest memory page that CC.MPS may select.
    #[must_use]
    pub const fn min_page_bytes(self) -> u64 {
        1 << (12 + ((self.0 >> 48) & 0xf))
    }

    /// Offset of the tail doorbell of submission queue `queue`.
    #[must_use]
    pub const fn submission_doorbell(self, queue: u16) -> usize {
        offset::DOORBELLS + 2 * queue as usize * self.doorbell_stride_bytes()
    }

    /// Offset of the head doorbell of completion queue `queue`.
    #[must_use]
    pub const fn completion_doorbell(self, queue: u16) -> usize {
        offset::DOORBELLS + (2 * queue as usize + 1) * self.doorbell_stride_bytes()
    }

    /// Bytes that the register window needs for the doorbells of queues 0 to `last_queue`.
    #[must_use]
    pub const fn window_bytes(self, last_queue: u16) -> usize {
        self.completion_doorbell(last_queue) + 4
    }
}

/// The status register, CSTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerStatus(u32);

/// Progress of a shutdown (CSTS.SHST).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    NotStarted,
    Running,
    Complete,
    Reserved,
}

impl ControllerStatus {
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw)
    }

    /// Reserved bits read as zero, so all ones is the answer of an empty slot.
    #[must_use]
    pub const fn is_gone(self) -> bool {
        self.0 == u32::MAX
    }

    #[must_use]
    pub const fn is_ready(self) -> bool {
        !self.is_gone() && self.0 & 1 != 0
    }

    /// CSTS.CFS: the controller cannot even report errors by completions.
    #[must_use]
    pub const fn is_fatal(self) -> bool {
        !self.is_gone() && self.0 & 2 != 0
    }

    #[must_use]
    pub const fn shutdown(self) -> Shutdown {
        match self.0 >> 2 & 0b11 {
            0 => Shutdown::NotStarted,
            1 => Shutdown::Running,
            2 => Shutdown::Complete,
            _ => Shutdown::Reserved,
        }
    }
}

/// Values of the configuration register, CC: this driver uses 4 KiB pages, round robin
/// arbitration, the NVM command set, and the entry sizes of [`crate::SUBMISSION_BYTES`] and
/// [`crate::COMPLETION_BYTES`], so only three values are ever written.
pub mod configuration {
    /// IOSQES is 2^6 bytes, IOCQES is 2^4 bytes; MPS, AMS and CSS are zero.
    const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
    pub const DISABLED: u32 = ENTRY_SIZES;
    pub const ENABLED: u32 = ENTRY_SIZES | 1;
    /// CC.SHN: a normal shutdown, after which the volatile write cache has been written out.
    pub const SHUT_DOWN: u32 = ENABLED | 1 << 14;
}

/// The value of AQA for admin queues of this many entries each.
#[must_use]
pub const fn admin_queue_attributes(entries: u16) -> u32 {
    let zero_based = entries as u32 - 1;
    zero_based << 16 | zero_based
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_document_puts_them() {
        // QEMU 10's value: MQES 2047, CQR, TO 15, NVM + I/O command sets + admin only, CMB no.
        let capabilities = Capabilities::new(0x0000_1860_0f01_07ff | 1 << 37);
        assert_eq!(capabilities.max_queue_entries(), 2048);
        assert_eq!(capabilities.ready_timeout_ns(), 7_500_000_000);
        assert_eq!(capabilities.doorbell_stride_bytes(), 4);
        assert!(capabilities.has_nvm_command_set());
        assert_eq!(capabilities.min_page_bytes(), 4096);
        assert_eq!(capabilities.submission_doorbell(1), 0x1008);
        assert_eq!(capabilities.completion_doorbell(1), 0x100c);
        assert_eq!(capabilities.window_bytes(1), 0x1010);
    }

    #[test]
    fn extreme_capabilities_do_not_overflow() {
        let capabilities = Capabilities::new(u64::MAX);
        assert!(capabilities.is_gone());
        assert_eq!(capabilities.max_queue_entries(), 65_536);
        assert_eq!(capabilities.doorbell_stride_bytes(), 131_072);
        assert!(capabilities.window_bytes(u16::MAX) > capabilities.submission_doorbell(u16::MAX));
        assert_eq!(capabilities.min_page_bytes(), 1 << 27);
    }

    #[test]
    fn a_vanished_controller_is_neither_ready_nor_fatal() {
        let status = ControllerStatus::new(u32::MAX);
        assert!(status.is_gone() && !status.is_ready() && !status.is_fatal());
        assert!(ControllerStatus::new(1).is_ready());
        assert!(ControllerStatus::new(3).is_fatal());
        assert_eq!(ControllerStatus::new(0b1001).shutdown(), Shutdown::Complete);
    }

    #[test]
    fn admin_queues_are_announced_with_zero_based_sizes() {
        assert_eq!(admin_queue_attributes(32), 0x001f_001f);
    }
}
