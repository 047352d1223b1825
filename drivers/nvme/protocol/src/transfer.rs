//! Physical region pages: how a command names the memory it moves data to or from.
//!
//! The memory of one request is contiguous here, so a transfer is an address and a length, and
//! the pages follow from them (NVMe sec 4.1.1): the first PRP may start at any dword, the others
//! at page boundaries. What fits one page needs the first PRP alone, which is what the netblk path
//! relies on: a payload behind 72 bytes of headers in a frame that does not cross a page.

use core::fmt;

/// The memory page size that the driver selects with CC.MPS.
pub const PAGE_BYTES: u64 = 4096;
/// Entries of the list that each command has room for.
pub const LIST_ENTRIES: usize = 32;
/// Bytes of such a list. A power of two no larger than a page, so that lists laid side by side
/// in a page-aligned buffer never cross a page, where a list would need chaining.
pub const LIST_BYTES: usize = 8 * LIST_ENTRIES;
/// What the first PRP and a full list describe wherever the memory starts.
pub const MAX_TRANSFER_BYTES: u32 = 128 * 1024;

const _: () = assert!(LIST_ENTRIES as u64 * PAGE_BYTES == MAX_TRANSFER_BYTES as u64);

/// A described piece of memory. Holding one proves that it is not empty, that its first byte is
/// dword-aligned, that it does not wrap around, and that a list of [`LIST_ENTRIES`] suffices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    address: u64,
    bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondPrp {
    /// Everything lies in the first page.
    None,
    /// The rest lies in this page.
    Page(u64),
    /// The rest needs a list; its entries are [`Transfer::list`].
    List { entries: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferError {
    Empty,
    Unaligned { address: u64 },
    TooLong { bytes: u32 },
    WrapsAround,
}

impl fmt::Display for TransferError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(out, "the memory is empty"),
            Self::Unaligned { address } => write!(out, "the address {address:#x} is not a multiple of 4"),
            Self::TooLong { bytes } => write!(out, "{bytes} bytes are more than {MAX_TRANSFER_BYTES}"),
            Self::WrapsAround => write!(out, "the memory reaches past the end of the address space"),
        }
    }
}

impl Transfer {
    pub fn plan(address: u64, bytes: u32) -> Result<Self, TransferError> {
        if bytes == 0 {
            return Err(TransferError::Empty);
        }
        if !address.is_multiple_of(4) {
            return Err(TransferError::Unaligned { address });
        }
        if bytes > MAX_TRANSFER_BYTES {
            return Err(TransferError::TooLong { bytes });
        }
        // The last page's end, not only the last byte's: the page after it must have an address.
        if address.checked_add(u64::from(bytes) + PAGE_BYTES).is_none() {
            return Err(TransferError::WrapsAround);
        }
        Ok(Self { address, bytes })
    }

    #[must_use]
    pub const fn first_prp(&self) -> u64 {
        self.address
    }

    #[must_use]
    pub const fn second_prp(&self) -> SecondPrp {
        let second_page = (self.address / PAGE_BYTES + 1) * PAGE_BYTES;
        let end = self.address + self.bytes as u64;
        if end <= second_page {
            SecondPrp::None
        } else if end <= second_page + PAGE_BYTES {
            SecondPrp::Page(second_page)
        } else {
            SecondPrp::List { entries: (end - second_page).div_ceil(PAGE_BYTES) as usize }
        }
    }

    /// The pages behind the first one, in order: the contents of the list.
    pub fn list(&self) -> impl Iterator<Item = u64> + use<> {
        let second_page = (self.address / PAGE_BYTES + 1) * PAGE_BYTES;
        let end = self.address + u64::from(self.bytes);
        (second_page..end).step_by(PAGE_BYTES as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_netblk_payload_is_one_prp() {
        // Two sectors behind 72 bytes of headers, in either half of a page.
        for frame in [0x7000, 0x7800] {
            let transfer = Transfer::plan(frame + 72, 1024).unwrap();
            assert_eq!(transfer.first_prp(), frame + 72);
            assert_eq!(transfer.second_prp(), SecondPrp::None);
        }
    }

    #[test]
    fn the_edges_between_one_two_and_many() {
        let second = |address, bytes| Transfer::plan(address, bytes).unwrap().second_prp();
        assert_eq!(second(0x1000, 4096), SecondPrp::None);
        assert_eq!(second(0x1004, 4096), SecondPrp::Page(0x2000));
        assert_eq!(second(0x1000, 8192), SecondPrp::Page(0x2000));
        assert_eq!(second(0x1004, 8192), SecondPrp::List { entries: 2 });
        assert_eq!(second(0x1ffc, MAX_TRANSFER_BYTES), SecondPrp::List { entries: 32 });
    }

    #[test]
    fn what_cannot_be_described_is_refused() {
        assert_eq!(Transfer::plan(0x1000, 0), Err(TransferError::Empty));
        assert_eq!(Transfer::plan(0x1002, 512), Err(TransferError::Unaligned { address: 0x1002 }));
        let bytes = MAX_TRANSFER_BYTES + 1;
        assert_eq!(Transfer::plan(0x1000, bytes), Err(TransferError::TooLong { bytes }));
        assert_eq!(Transfer::plan(u64::MAX - 511, 512), Err(TransferError::WrapsAround));
    }

    proptest! {
        /// What a controller would touch, page by page, is the memory that was given: no more.
        #[test]
        fn the_pages_cover_the_memory_and_nothing_else(address: u64, bytes in 1..=MAX_TRANSFER_BYTES) {
            let Ok(transfer) = Transfer::plan(address & !3, bytes) else { return Ok(()) };
            let mut pages = vec![transfer.first_prp()];
            match transfer.second_prp() {
                SecondPrp::None => prop_assert_eq!(transfer.list().count(), 0),
                SecondPrp::Page(page) => pages.push(page),
                SecondPrp::List { entries } => {
                    prop_assert!(entries <= LIST_ENTRIES);
                    pages.extend(transfer.list());
                    prop_assert_eq!(pages.len(), entries + 1);
                }
            }
            let mut left = u64::from(bytes);
            let mut expected = transfer.first_prp();
            for page in pages {
                prop_assert_eq!(page, expected);
                let here = (PAGE_BYTES - page % PAGE_BYTES).min(left);
                left -= here;
                expected = page + here;
            }
            prop_assert_eq!(left, 0);
        }
    }
}
