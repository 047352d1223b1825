//! What a command needs in memory beside its data: room for it comes with its identifier.
//!
//! A PRP list, SGL descriptors, or the ranges of a DATASET MANAGEMENT command. All three are a few
//! quadwords that the controller reads, so a queue has one piece of [`ATTACHMENT_BYTES`] for each
//! identifier and does not ask what is written there.

use core::fmt;

use crate::transfer::{LIST_BYTES, SecondPrp, Transfer};

/// Bytes of an attachment at most. A power of two no larger than a page, so that none crosses a
/// page (NVMe sec 4.1.1: a PRP list that did would need chaining).
pub const ATTACHMENT_BYTES: usize = LIST_BYTES;

/// A contiguous piece of memory, as its owner describes it: not checked yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    pub bytes: u64,
}

/// Most pieces that the memory of one transfer may lie in here: those of a packet.
pub const MAX_SEGMENTS: usize = 6;

/// Bytes of an SGL descriptor (NVMe sec 4.1.2, figure 109).
pub const DESCRIPTOR_BYTES: usize = 16;

const _: () = assert!(MAX_SEGMENTS * DESCRIPTOR_BYTES <= ATTACHMENT_BYTES);

/// Descriptor types in the upper half of the last byte; the sub type in the lower half is zero:
/// the address is one (NVMe sec 4.1.2, figures 110 and 111).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescriptorType {
    DataBlock = 0x0,
    LastSegment = 0x3,
}

/// The two quadwords of a descriptor: the address; the length below and the type above.
pub(crate) const fn descriptor(kind: DescriptorType, address: u64, bytes: u32) -> [u64; 2] {
    [address, bytes as u64 | (kind as u64) << 60]
}

/// Memory in several pieces. Holding one proves that there are two at least, that each is not
/// empty, begins and ends at a multiple of four bytes, and does not wrap around, and that their
/// lengths add up to what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scatter {
    segments: [(u64, u32); MAX_SEGMENTS],
    count: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScatterError {
    /// One piece is no list, and there is room for [`MAX_SEGMENTS`].
    Count {
        segments: usize,
    },
    Unaligned,
    /// Empty, beyond the end of the address space, or not as long as the transfer.
    Length,
}

impl fmt::Display for ScatterError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { segments } => write!(out, "{segments} pieces are not 2 to {MAX_SEGMENTS}"),
            Self::Unaligned => write!(out, "a piece is not a whole number of dwords at one"),
            Self::Length => write!(out, "the pieces do not have the transfer's length"),
        }
    }
}

impl Scatter {
    /// `bytes` is what the transfer moves: a list that is longer or shorter is refused, for what a
    /// controller makes of one is its own affair (NVMe sec 4.1.2, SGLS bit 18).
    pub fn plan(segments: &[Segment], bytes: u32) -> Result<Self, ScatterError> {
        let count = segments.len();
        if !(2..=MAX_SEGMENTS).contains(&count) {
            return Err(ScatterError::Count { segments: count });
        }
        let mut list = [(0, 0); MAX_SEGMENTS];
        let mut left = u64::from(bytes);
        for (place, segment) in list.iter_mut().zip(segments) {
            // Dwords suit every controller that has SGLs at all (SGLS bits 1:0).
            if !segment.address.is_multiple_of(4) || !segment.bytes.is_multiple_of(4) {
                return Err(ScatterError::Unaligned);
            }
            let ends = segment.address.checked_add(segment.bytes).is_some();
            if segment.bytes == 0 || segment.bytes > left || !ends {
                return Err(ScatterError::Length);
            }
            left -= segment.bytes;
            // At most `bytes`.
            *place = (segment.address, segment.bytes as u32);
        }
        match left {
            // At most MAX_SEGMENTS.
            0 => Ok(Self { segments: list, count: count as u8 }),
            _ => Err(ScatterError::Length),
        }
    }

    /// The pieces, in the order of the data.
    pub fn segments(&self) -> &[(u64, u32)] {
        &self.segments[..usize::from(self.count)]
    }

    /// Bytes of the descriptors.
    pub(crate) const fn descriptor_bytes(&self) -> u32 {
        self.count as u32 * DESCRIPTOR_BYTES as u32
    }
}

/// One range of a DATASET MANAGEMENT command (NVM sec 3.2.1, figure 37). The context attributes,
/// which are hints about what will be, stay zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub first_sector: u64,
    pub sectors: u32,
}

/// What is written into an identifier's room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Nothing: the command says it all.
    None,
    /// A PRP list for the pages behind the transfer's first.
    List(Transfer),
    /// A data block descriptor for each piece.
    Scatter(Scatter),
    /// The range to deallocate.
    Range(Range),
}

impl Attachment {
    /// What a contiguous transfer needs.
    #[must_use]
    pub fn of(transfer: &Transfer) -> Self {
        match transfer.second_prp() {
            SecondPrp::None | SecondPrp::Page(_) => Self::None,
            SecondPrp::List { .. } => Self::List(*transfer),
        }
    }

    /// The quadwords, for each its place from the attachment's beginning.
    pub fn write(&self, mut put: impl FnMut(usize, u64)) {
        match self {
            Self::None => {}
            Self::List(transfer) => transfer.list().enumerate().for_each(|(place, page)| put(place, page)),
            Self::Scatter(scatter) => {
                for (place, (address, bytes)) in scatter.segments().iter().enumerate() {
                    let [low, high] = descriptor(DescriptorType::DataBlock, *address, *bytes);
                    put(2 * place, low);
                    put(2 * place + 1, high);
                }
            }
            Self::Range(range) => {
                put(0, u64::from(range.sectors) << 32);
                put(1, range.first_sector);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(attachment: &Attachment) -> Vec<u64> {
        let mut words = Vec::new();
        attachment.write(|place, word| {
            assert_eq!(place, words.len());
            words.push(word);
        });
        assert!(8 * words.len() <= ATTACHMENT_BYTES);
        words
    }

    #[test]
    fn descriptors_are_laid_out_as_the_document_says() {
        let segments =
            [Segment { address: 0x1_0000_006c, bytes: 1940 }, Segment { address: 0x2000, bytes: 2156 }];
        let scatter = Scatter::plan(&segments, 4096).unwrap();
        assert_eq!(words(&Attachment::Scatter(scatter)), [0x1_0000_006c, 1940, 0x2000, 2156]);
        assert_eq!(scatter.descriptor_bytes(), 32);
        assert_eq!(descriptor(DescriptorType::LastSegment, 0x5000, 32), [0x5000, 0x3000_0000_0000_0020]);
    }

    #[test]
    fn a_range_is_laid_out_as_the_document_says() {
        let range = Range { first_sector: 0x1_2345_6789, sectors: 0x8000_0001 };
        assert_eq!(words(&Attachment::Range(range)), [0x8000_0001_0000_0000, 0x1_2345_6789]);
    }

    #[test]
    fn what_a_controller_might_take_wrongly_is_refused() {
        let piece = |address, bytes| Segment { address, bytes };
        let plan = |segments: &[Segment]| Scatter::plan(segments, 1024);
        assert_eq!(plan(&[piece(0, 1024)]), Err(ScatterError::Count { segments: 1 }));
        let seven = [piece(0, 4); MAX_SEGMENTS + 1];
        assert_eq!(plan(&seven), Err(ScatterError::Count { segments: 7 }));
        assert_eq!(plan(&[piece(2, 512), piece(0, 512)]), Err(ScatterError::Unaligned));
        assert_eq!(plan(&[piece(0, 510), piece(0, 514)]), Err(ScatterError::Unaligned));
        assert_eq!(plan(&[piece(0, 512), piece(0, 516)]), Err(ScatterError::Length));
        assert_eq!(plan(&[piece(0, 512), piece(0, 508)]), Err(ScatterError::Length));
        assert_eq!(plan(&[piece(0, 1024), piece(0, 0)]), Err(ScatterError::Length));
        assert_eq!(plan(&[piece(u64::MAX - 3, 512), piece(0, 512)]), Err(ScatterError::Length));
    }

    proptest! {
        /// What a controller would touch is the memory that was given, piece by piece, and exactly
        /// as much as the transfer moves.
        #[test]
        fn the_descriptors_are_the_memory(
            pieces in proptest::collection::vec((any::<u64>(), 0_u64..2100), 0..9), exact: bool, bytes in 0_u32..20_000,
        ) {
            let segments: Vec<_> =
                pieces.iter().map(|(address, bytes)| Segment { address: *address & !3, bytes: *bytes & !3 }).collect();
            let total: u64 = segments.iter().map(|segment| segment.bytes).sum();
            let bytes = if exact { total as u32 } else { bytes };
            let planned = Scatter::plan(&segments, bytes);
            if exact && (2..=MAX_SEGMENTS).contains(&segments.len())
                && segments.iter().all(|piece| piece.bytes > 0 && piece.address.checked_add(piece.bytes).is_some())
            {
                prop_assert!(planned.is_ok());
            }
            if let Ok(scatter) = planned {
                prop_assert_eq!(total, u64::from(bytes));
                let written = words(&Attachment::Scatter(scatter));
                let (described, []) = written.as_chunks::<2>() else { panic!("a half descriptor") };
                prop_assert_eq!(described.len(), segments.len());
                for (descriptor, segment) in described.iter().zip(&segments) {
                    prop_assert_eq!(*descriptor, [segment.address, segment.bytes]);
                }
            }
        }
    }
}
