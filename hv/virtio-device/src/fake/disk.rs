//! A disk for tests: a vector, transfers that end when the test says so, and faults.

use alloc::vec;
use alloc::vec::Vec;

use super::VecRam;
use crate::block::{Backend, BlockConfig, NotTaken, Operation, Transfer, TransferLimits};
use crate::chain::Segment;
use crate::ram::{GuestPhysAddr, GuestRam};

/// A transfer that the disk has taken.
#[derive(Clone, Debug)]
pub struct Taken {
    pub operation: Operation,
    pub first_sector: u64,
    pub sectors: u32,
    pub durable: bool,
    pub data: Vec<(GuestPhysAddr, u32)>,
    pub direct: bool,
    pub token: u32,
}

/// See the module.
#[derive(Debug)]
pub struct VecDisk {
    pub bytes: Vec<u8>,
    pub config: BlockConfig,
    pub pending: Vec<Taken>,
    /// Transfers that it takes at once; the next is refused as busy.
    pub depth: usize,
    /// Every transfer that touches this sector ends badly.
    pub bad_sector: Option<u64>,
    /// It takes nothing at all and says so for good.
    pub gone: bool,
}

impl VecDisk {
    pub fn new(config: BlockConfig) -> Self {
        let bytes = config.sectors as usize * config.sector_bytes as usize;
        Self { bytes: vec![0; bytes], config, pending: Vec::new(), depth: 8, bad_sector: None, gone: false }
    }

    /// A description of a disk that can do everything, with limits that make requests be cut.
    pub const fn describe(sectors: u64, sector_bytes: u32) -> BlockConfig {
        BlockConfig {
            sector_bytes,
            sectors,
            read_only: false,
            queues: 1,
            id: *b"a disk for tests\0\0\0\0",
            max_discard_sectors: 16,
            max_write_zeroes_sectors: 8,
            limits: TransferLimits {
                max_bytes: 4 * sector_bytes,
                max_pieces: 3,
                contiguous_bytes: 0x1_0000,
                alignment_bytes: 4,
                bounce_bytes: 2 * sector_bytes,
            },
        }
    }

    /// Does the pending transfer with this number; its token, and whether it ended well.
    ///
    /// # Panics
    /// If the transfer is not what [`Transfer`] promises.
    pub fn finish(&mut self, ram: &VecRam, number: usize) -> (u32, bool) {
        let taken = self.pending.remove(number);
        let sector_bytes = self.config.sector_bytes as usize;
        let range = taken.first_sector..taken.first_sector + u64::from(taken.sectors);
        if self.bad_sector.is_some_and(|bad| range.contains(&bad)) {
            return (taken.token, false);
        }
        assert!(range.end <= self.config.sectors, "a transfer past the disk's end");
        let mut at = range.start as usize * sector_bytes;
        let end = range.end as usize * sector_bytes;
        let most = match taken.operation {
            Operation::Read | Operation::Write => self.config.limits.max_bytes / self.config.sector_bytes,
            Operation::Flush => 0,
            Operation::Discard => self.config.max_discard_sectors,
            Operation::WriteZeroes => self.config.max_write_zeroes_sectors,
        };
        assert!(taken.sectors <= most, "a transfer longer than the disk does");
        match taken.operation {
            Operation::Read | Operation::Write => {
                for (address, bytes) in &taken.data {
                    let part = &mut self.bytes[at..at + *bytes as usize];
                    let moved = match taken.operation {
                        Operation::Read => ram.write(*address, part),
                        _ => ram.read(*address, part),
                    };
                    moved.expect("data is guest memory");
                    at += *bytes as usize;
                }
                assert_eq!(at, end, "the data is exactly the sectors' bytes");
            }
            Operation::Flush => assert_eq!((at, end), (0, 0)),
            // What discarded sectors read as is the disk's choice.
            Operation::Discard => self.bytes[at..end].fill(0xdd),
            Operation::WriteZeroes => self.bytes[at..end].fill(0),
        }
        (taken.token, true)
    }
}

impl Backend for VecDisk {
    fn submit(&mut self, transfer: &Transfer<'_>) -> Result<(), NotTaken> {
        if self.gone {
            return Err(NotTaken::Failed);
        }
        if self.pending.len() >= self.depth {
            return Err(NotTaken::Busy);
        }
        let limits = &self.config.limits;
        let bytes: u32 = transfer.data.iter().map(Segment::len_bytes).sum();
        if transfer.direct {
            assert!(transfer.data.len() <= usize::from(limits.max_pieces), "more pieces than the disk takes");
            for piece in transfer.data {
                let (start, bytes) = (piece.address().as_u64(), u64::from(piece.len_bytes()));
                let alignment = u64::from(limits.alignment_bytes);
                assert!(start.is_multiple_of(alignment) && bytes.is_multiple_of(alignment));
                let last = start + bytes - 1;
                assert_eq!(start / limits.contiguous_bytes, last / limits.contiguous_bytes, "not contiguous");
            }
        } else {
            assert!(bytes <= limits.bounce_bytes, "more than the buffer holds");
        }
        self.pending.push(Taken {
            operation: transfer.operation,
            first_sector: transfer.first_sector,
            sectors: transfer.sectors,
            durable: transfer.durable,
            data: transfer.data.iter().map(|piece| (piece.address(), piece.len_bytes())).collect(),
            direct: transfer.direct,
            token: transfer.token,
        });
        Ok(())
    }
}
