//! Submission queue entries: the sixteen dwords of each command this driver sends.

use crate::attachment::{Attachment, DescriptorType, Scatter, descriptor};
use crate::transfer::{SecondPrp, Transfer};

/// A command, complete but for its identifier (NVMe sec 3.3.3.1, figure 87).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    dwords: [u32; 16],
}

/// Opcodes of the admin command set (NVMe sec 5, figure 138).
mod admin {
    pub const CREATE_SUBMISSION_QUEUE: u8 = 0x01;
    pub const CREATE_COMPLETION_QUEUE: u8 = 0x05;
    pub const IDENTIFY: u8 = 0x06;
    pub const SET_FEATURES: u8 = 0x09;
    pub const GET_FEATURES: u8 = 0x0a;
}

/// Opcodes of the NVM command set (NVM sec 3, figure 8).
mod nvm {
    pub const FLUSH: u8 = 0x00;
    pub const WRITE: u8 = 0x01;
    pub const READ: u8 = 0x02;
    pub const WRITE_ZEROES: u8 = 0x08;
    pub const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Which data structure IDENTIFY returns (NVMe sec 5.17.1, figure 273).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cns {
    Namespace = 0x00,
    Controller = 0x01,
    ActiveNamespaces = 0x02,
    /// What the NVM command set adds to the controller's data (NVM sec 4.1.5.2).
    NvmController = 0x06,
}

/// Feature identifiers (NVMe sec 5.27.1, figure 316).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    VolatileWriteCache = 0x06,
    NumberOfQueues = 0x07,
}

/// CDW12 of READ, WRITE and WRITE ZEROES (NVM sec 3.2.4, figure 43): force unit access.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// CDW12 of WRITE ZEROES (NVM sec 3.2.8, figure 72): the sectors may be deallocated.
const DEALLOCATE_ZEROES: u32 = 1 << 25;
/// CDW11 of DATASET MANAGEMENT (NVM sec 3.2.1, figure 36): deallocate.
const DEALLOCATE: u32 = 1 << 2;
/// PSDT in CDW0 (NVMe sec 3.3.3.1, figure 87): the data is described by an SGL.
const BY_SGL: u32 = 0b01 << 14;
/// CDW11 of the queue creations: the queue is one contiguous piece of memory.
const PHYSICALLY_CONTIGUOUS: u32 = 1;
/// CDW11 of CREATE I/O COMPLETION QUEUE: interrupts enabled.
const INTERRUPTS_ENABLED: u32 = 1 << 1;

impl Command {
    const fn new(opcode: u8, namespace: u32) -> Self {
        let mut dwords = [0; 16];
        // FUSE and PSDT stay zero: not fused, data is described by PRPs unless a scatter list
        // is attached.
        dwords[0] = opcode as u32;
        dwords[1] = namespace;
        Self { dwords }
    }

    const fn with_prp1(mut self, address: u64) -> Self {
        self.dwords[6] = address as u32;
        self.dwords[7] = (address >> 32) as u32;
        self
    }

    const fn with_prp2(mut self, address: u64) -> Self {
        self.dwords[8] = address as u32;
        self.dwords[9] = (address >> 32) as u32;
        self
    }

    /// `page` is the address of a whole page, which the answer fills.
    #[must_use]
    pub const fn identify(what: Cns, namespace: u32, page: u64) -> Self {
        let mut command = Self::new(admin::IDENTIFY, namespace).with_prp1(page);
        command.dwords[10] = what as u32;
        command
    }

    /// Asks for `pairs` I/O queue pairs. What was granted is in the completion's result; see
    /// [`crate::Completion::granted_queue_pairs`].
    #[must_use]
    pub const fn request_queue_pairs(pairs: u16) -> Self {
        let mut command = Self::new(admin::SET_FEATURES, 0);
        let zero_based = pairs.saturating_sub(1) as u32;
        command.dwords[10] = Feature::NumberOfQueues as u32;
        command.dwords[11] = zero_based << 16 | zero_based;
        command
    }

    #[must_use]
    pub const fn get_feature(feature: Feature) -> Self {
        let mut command = Self::new(admin::GET_FEATURES, 0);
        command.dwords[10] = feature as u32;
        command
    }

    #[must_use]
    pub const fn create_completion_queue(queue: u16, entries: u16, base: u64, vector: u16) -> Self {
        let mut command = Self::new(admin::CREATE_COMPLETION_QUEUE, 0).with_prp1(base);
        command.dwords[10] = (entries as u32 - 1) << 16 | queue as u32;
        command.dwords[11] = (vector as u32) << 16 | INTERRUPTS_ENABLED | PHYSICALLY_CONTIGUOUS;
        command
    }

    /// The queue's completions go to the completion queue of the same number.
    #[must_use]
    pub const fn create_submission_queue(queue: u16, entries: u16, base: u64) -> Self {
        let mut command = Self::new(admin::CREATE_SUBMISSION_QUEUE, 0).with_prp1(base);
        command.dwords[10] = (entries as u32 - 1) << 16 | queue as u32;
        command.dwords[11] = (queue as u32) << 16 | PHYSICALLY_CONTIGUOUS;
        command
    }

    #[must_use]
    pub const fn flush(namespace: u32) -> Self {
        Self::new(nvm::FLUSH, namespace)
    }

    /// `sectors` is at least one; it was checked together with the memory by
    /// [`crate::Limits::plan`], which is the only caller, as of the next ones.
    #[must_use]
    pub(crate) const fn read(
        namespace: u32,
        first_sector: u64,
        sectors: u32,
        force_unit_access: bool,
    ) -> Self {
        Self::new(nvm::READ, namespace).with_sectors(first_sector, sectors, force_unit_access)
    }

    #[must_use]
    pub(crate) const fn write(
        namespace: u32,
        first_sector: u64,
        sectors: u32,
        force_unit_access: bool,
    ) -> Self {
        Self::new(nvm::WRITE, namespace).with_sectors(first_sector, sectors, force_unit_access)
    }

    #[must_use]
    pub(crate) const fn write_zeroes(
        namespace: u32,
        first_sector: u64,
        sectors: u32,
        force_unit_access: bool,
        deallocate: bool,
    ) -> Self {
        let command = Self::new(nvm::WRITE_ZEROES, namespace);
        let mut command = command.with_sectors(first_sector, sectors, force_unit_access);
        command.dwords[12] |= if deallocate { DEALLOCATE_ZEROES } else { 0 };
        command
    }

    /// One range, which is the command's attachment.
    #[must_use]
    pub(crate) const fn deallocate(namespace: u32) -> Self {
        let mut command = Self::new(nvm::DATASET_MANAGEMENT, namespace);
        // The number of ranges is zero-based.
        command.dwords[10] = 0;
        command.dwords[11] = DEALLOCATE;
        command
    }

    /// `sectors` is 1 to 65,536.
    const fn with_sectors(mut self, first_sector: u64, sectors: u32, force_unit_access: bool) -> Self {
        self.dwords[10] = first_sector as u32;
        self.dwords[11] = (first_sector >> 32) as u32;
        let force = if force_unit_access { FORCE_UNIT_ACCESS } else { 0 };
        self.dwords[12] = (sectors - 1) | force;
        self
    }

    pub(crate) const fn with_transfer(self, transfer: &Transfer) -> Self {
        let command = self.with_prp1(transfer.first_prp());
        match transfer.second_prp() {
            SecondPrp::None | SecondPrp::List { .. } => command,
            SecondPrp::Page(page) => command.with_prp2(page),
        }
    }

    /// The first descriptor, in the command, is the one that names all the others.
    const fn with_scatter(mut self, scatter: &Scatter, address: u64) -> Self {
        let [low, high] = descriptor(DescriptorType::LastSegment, address, scatter.descriptor_bytes());
        self.dwords[0] |= BY_SGL;
        self.with_prp1(low).with_prp2(high)
    }

    /// Points the command at its attachment, which lies at `address`.
    #[must_use]
    pub const fn with_attachment(self, attachment: &Attachment, address: u64) -> Self {
        match attachment {
            Attachment::None => self,
            Attachment::List(_) => self.with_prp2(address),
            Attachment::Scatter(scatter) => self.with_scatter(scatter, address),
            Attachment::Range(_) => self.with_prp1(address),
        }
    }

    /// The entry as it goes into the queue.
    #[must_use]
    pub const fn with_identifier(mut self, identifier: u16) -> [u32; 16] {
        self.dwords[0] = self.dwords[0] & 0xffff | (identifier as u32) << 16;
        self.dwords
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attachment::{Range, Segment};

    #[test]
    fn a_read_is_laid_out_as_the_document_says() {
        let transfer = Transfer::plan(0x1_2345_6048, 1024).unwrap();
        let read = Command::read(7, 0x1_0000_0002, 2, true).with_transfer(&transfer);
        let entry = read.with_identifier(0xbeef);
        assert_eq!(entry[0], 0xbeef_0002);
        assert_eq!(entry[1], 7);
        assert_eq!(entry[6..10], [0x2345_6048, 1, 0, 0]);
        assert_eq!(entry[10..13], [2, 1, 0x4000_0001]);
    }

    #[test]
    fn a_write_over_two_pages_names_both() {
        let transfer = Transfer::plan(0x1_2345_6f00, 512).unwrap();
        let entry = Command::write(1, 9, 1, false).with_transfer(&transfer).with_identifier(0);
        assert_eq!(entry[0], 1);
        assert_eq!(entry[6..10], [0x2345_6f00, 1, 0x2345_7000, 1]);
        assert_eq!(entry[12], 0);
    }

    #[test]
    fn a_write_from_several_pieces_names_their_descriptors() {
        let pieces = [(0x7048, 1000), (0x9000, 24)].map(|(address, bytes)| Segment { address, bytes });
        let scatter = Attachment::Scatter(Scatter::plan(&pieces, 1024).unwrap());
        let entry =
            Command::write(1, 9, 2, false).with_attachment(&scatter, 0x3_0000_0100).with_identifier(5);
        assert_eq!(entry[0], 0x0005_4001);
        // Address, length, and the type in the topmost four bits.
        assert_eq!(entry[6..10], [0x0000_0100, 3, 32, 0x3000_0000]);
    }

    #[test]
    fn sectors_are_zeroed_and_deallocated() {
        let entry = Command::write_zeroes(2, 0x1_0000_0000, 65_536, true, true).with_identifier(1);
        assert_eq!((entry[0], entry[1]), (0x0001_0008, 2));
        assert_eq!(entry[10..13], [0, 1, 0x4200_ffff]);
        assert_eq!(Command::write_zeroes(2, 0, 1, false, false).with_identifier(1)[12], 0);
        let range = Attachment::Range(Range { first_sector: 8, sectors: 8 });
        let entry = Command::deallocate(2).with_attachment(&range, 0x4_0000_0200).with_identifier(1);
        assert_eq!((entry[0], entry[1]), (0x0001_0009, 2));
        assert_eq!(entry[6..8], [0x200, 4]);
        assert_eq!(entry[10..12], [0, 4]);
    }

    #[test]
    fn queues_are_created_with_zero_based_sizes() {
        let entry = Command::create_completion_queue(3, 512, 0x2_0000_1000, 4).with_identifier(1);
        assert_eq!(entry[0], 0x0001_0005);
        assert_eq!(entry[6..8], [0x0000_1000, 2]);
        assert_eq!(entry[10..12], [0x01ff_0003, 0x0004_0003]);
        let entry = Command::create_submission_queue(3, 512, 0x2_0000_1000).with_identifier(1);
        assert_eq!(entry[10..12], [0x01ff_0003, 0x0003_0001]);
    }

    #[test]
    fn admin_commands_carry_their_parameters() {
        let entry = Command::identify(Cns::ActiveNamespaces, 5, 0x3000).with_identifier(2);
        assert_eq!((entry[0], entry[1], entry[6], entry[10]), (0x0002_0006, 5, 0x3000, 2));
        let entry = Command::request_queue_pairs(4).with_identifier(2);
        assert_eq!(entry[10..12], [7, 0x0003_0003]);
        let entry = Command::get_feature(Feature::VolatileWriteCache).with_identifier(2);
        assert_eq!((entry[0], entry[10]), (0x0002_000a, 6));
        assert_eq!(Command::flush(9).with_identifier(1)[..2], [0x0001_0000, 9]);
    }
}
