//! What a controller and its namespaces say about themselves.
//!
//! Identify data is copied out of the page that the controller wrote before it comes here, and
//! only what this driver can serve safely leaves as a value: sector sizes of 512 and 4096 bytes,
//! no metadata between the sectors, sizes whose byte count does not overflow.

use alloc::string::String;
use core::fmt;

/// Bytes of each IDENTIFY answer.
pub const IDENTIFY_BYTES: usize = 4096;

type Page = [u8; IDENTIFY_BYTES];

fn u32_at(page: &Page, offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(page, offset))
}

fn u64_at(page: &Page, offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(page, offset))
}

/// `offset` is one of this file's constants, all far from the end of the page.
fn bytes_at<const N: usize>(page: &Page, offset: usize) -> [u8; N] {
    core::array::from_fn(|place| page[offset + place])
}

/// ASCII text padded with spaces (NVMe sec 1.4.2); whatever else it contains must not reach a
/// terminal.
fn text_at(page: &Page, offset: usize, bytes: usize) -> String {
    let printable =
        |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
    let text: String =
        page[offset..offset + bytes].iter().take_while(|byte| **byte != 0).map(printable).collect();
    String::from(text.trim())
}

/// The part of the Identify Controller data that the driver acts on (NVMe sec 5.17.2.1, figure
/// 275).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    pub serial: String,
    pub model: String,
    pub firmware: String,
    /// `None` where the controller sets no limit.
    pub max_transfer_bytes: Option<u64>,
    pub namespaces: u32,
    pub has_volatile_write_cache: bool,
    /// Whether data may be described by an SGL of data blocks at dword addresses.
    pub has_sgl: bool,
    pub has_dataset_management: bool,
    pub has_write_zeroes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerError {
    /// A discovery or administrative controller: it has no disks.
    NotForIo { kind: u8 },
    /// It does not take the entry sizes that the driver announces.
    EntrySize { submission: u8, completion: u8 },
}

impl fmt::Display for ControllerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotForIo { kind } => write!(out, "a controller of type {kind} has no disks"),
            Self::EntrySize { submission, completion } => write!(
                out,
                "queue entry sizes {submission:#04x} and {completion:#04x} exclude the standard ones"
            ),
        }
    }
}

impl Controller {
    /// `min_page_bytes` is CAP.MPSMIN's, the unit of the transfer limit.
    pub fn parse(page: &Page, min_page_bytes: u64) -> Result<Self, ControllerError> {
        let kind = page[111];
        if !matches!(kind, 0 | 1) {
            return Err(ControllerError::NotForIo { kind });
        }
        // Low nibble: the required size, high nibble: the largest, both as powers of two.
        let (submission, completion) = (page[512], page[513]);
        let takes = |sizes: u8, power: u8| (sizes & 0xf) <= power && power <= sizes >> 4;
        if !takes(submission, 6) || !takes(completion, 4) {
            return Err(ControllerError::EntrySize { submission, completion });
        }
        let max_transfer_bytes = match page[77] {
            0 => None,
            // A limit too large to be counted is none.
            power => 1_u64.checked_shl(u32::from(power)).and_then(|pages| pages.checked_mul(min_page_bytes)),
        };
        Ok(Self {
            serial: text_at(page, 4, 20),
            model: text_at(page, 24, 40),
            firmware: text_at(page, 64, 8),
            max_transfer_bytes,
            namespaces: u32_at(page, 516),
            has_volatile_write_cache: page[525] & 1 != 0,
            // SGLS: 01b without alignment, 10b dwords; 11b is reserved.
            has_sgl: matches!(page[536] & 0b11, 0b01 | 0b10),
            // ONCS.
            has_dataset_management: page[520] & 1 << 2 != 0,
            has_write_zeroes: page[520] & 1 << 3 != 0,
        })
    }
}

/// The limits of commands that move no data (NVM sec 4.1.5.2, figure 102). Controllers older than
/// this structure, and those that leave a field zero, do not name theirs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandLimits {
    /// Most bytes of a WRITE ZEROES command.
    pub write_zeroes_bytes: Option<u64>,
    /// Most sectors of one range of a DATASET MANAGEMENT command.
    pub range_sectors: Option<u32>,
    /// Most sectors of all its ranges.
    pub deallocate_sectors: Option<u64>,
}

impl CommandLimits {
    /// `min_page_bytes` is CAP.MPSMIN's, the unit of WZSL.
    #[must_use]
    pub fn parse(page: &Page, min_page_bytes: u64) -> Self {
        let pages = |power: u8| 1_u64.checked_shl(u32::from(power));
        Self {
            write_zeroes_bytes: match page[1] {
                0 => None,
                power => pages(power).and_then(|pages| pages.checked_mul(min_page_bytes)),
            },
            range_sectors: Some(u32_at(page, 4)).filter(|sectors| *sectors != 0),
            deallocate_sectors: Some(u64_at(page, 8)).filter(|sectors| *sectors != 0),
        }
    }
}

/// The part of the Identify Namespace data that the driver acts on (NVM sec 4.1.5.1, figure 97).
/// Holding one proves that `sectors << sector_shift` bytes can be counted in 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub sectors: u64,
    /// 9 or 12.
    pub sector_shift: u8,
    pub write_protected: bool,
    /// Whether WRITE ZEROES may deallocate: the sectors read as zeroes then, and the controller
    /// knows the bit that allows it.
    pub zeroes_by_deallocation: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceError {
    Empty,
    /// The format in use is not in the list of formats.
    NoSuchFormat {
        format: u8,
    },
    SectorSize {
        power: u8,
    },
    Metadata {
        bytes: u16,
    },
    TooLarge {
        sectors: u64,
    },
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(out, "it has no sectors"),
            Self::NoSuchFormat { format } => write!(out, "its format {format} is not in its own list"),
            Self::SectorSize { power } => {
                write!(out, "its sectors have 2^{power} bytes; 512 and 4096 are supported")
            }
            Self::Metadata { bytes } => {
                write!(out, "its format has {bytes} bytes of metadata a sector; reformat it without")
            }
            Self::TooLarge { sectors } => write!(out, "its {sectors} sectors cannot be counted in bytes"),
        }
    }
}

impl Namespace {
    pub fn parse(page: &Page) -> Result<Self, NamespaceError> {
        let sectors = u64_at(page, 0);
        if sectors == 0 {
            return Err(NamespaceError::Empty);
        }
        // NLBAF is zero-based; the index in FLBAS has two more bits at 6:5.
        let formats = page[25];
        let format = page[26] & 0xf | (page[26] >> 5 & 0b11) << 4;
        if format > formats.min(63) {
            return Err(NamespaceError::NoSuchFormat { format });
        }
        let descriptor = u32_at(page, 128 + 4 * usize::from(format));
        let metadata_bytes = descriptor as u16;
        if metadata_bytes != 0 {
            return Err(NamespaceError::Metadata { bytes: metadata_bytes });
        }
        let power = (descriptor >> 16) as u8;
        if !matches!(power, 9 | 12) {
            return Err(NamespaceError::SectorSize { power });
        }
        if sectors > u64::MAX >> power {
            return Err(NamespaceError::TooLarge { sectors });
        }
        // DLFEAT: what deallocated sectors read as in bits 2:0, the bit of WRITE ZEROES in bit 3.
        let zeroes_by_deallocation = page[33] & 0b1111 == 0b1001;
        Ok(Self { sectors, sector_shift: power, write_protected: page[99] & 1 != 0, zeroes_by_deallocation })
    }

    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        1 << self.sector_shift
    }
}

/// Namespace identifiers of the active namespace list (NVMe sec 5.17.2.2): ascending, and ended
/// by a zero or by the page. Whatever does not ascend ends it too.
pub fn namespace_list(page: &Page) -> impl Iterator<Item = u32> {
    let mut last = 0;
    (0..IDENTIFY_BYTES).step_by(4).map_while(move |offset| {
        let namespace = u32_at(page, offset);
        // The two highest values name no namespace (NVMe sec 3.2.1.2).
        let is_next = namespace > last && namespace < u32::MAX - 1;
        last = namespace;
        is_next.then_some(namespace)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn controller_page() -> Page {
        let mut page = [0; IDENTIFY_BYTES];
        page[4..24].copy_from_slice(b"nos                 ");
        page[24..64].copy_from_slice(b"QEMU NVMe Ctrl\x1b[2J                      ");
        page[64..72].copy_from_slice(b"10.0.2  ");
        page[77] = 7;
        page[512] = 0x66;
        page[513] = 0x44;
        page[516..520].copy_from_slice(&256_u32.to_le_bytes());
        page[520] = 0b1100;
        page[525] = 7;
        page[536] = 1;
        page
    }

    fn namespace_page(sectors: u64, power: u8) -> Page {
        let mut page = [0; IDENTIFY_BYTES];
        page[0..8].copy_from_slice(&sectors.to_le_bytes());
        page[25] = 7;
        page[26] = 4;
        page[128 + 4 * 4 + 2] = power;
        page
    }

    #[test]
    fn a_controller_is_read() {
        let controller = Controller::parse(&controller_page(), 4096).unwrap();
        assert_eq!(controller.serial, "nos");
        assert_eq!(controller.model, "QEMU NVMe Ctrl?[2J");
        assert_eq!(controller.firmware, "10.0.2");
        assert_eq!(controller.max_transfer_bytes, Some(512 * 1024));
        assert_eq!(controller.namespaces, 256);
        assert!(controller.has_volatile_write_cache && controller.has_sgl);
        assert!(controller.has_dataset_management && controller.has_write_zeroes);
    }

    #[test]
    fn what_a_controller_does_not_have_is_not_used() {
        let mut page = controller_page();
        (page[520], page[525]) = (0, 6);
        for reserved in [0b00, 0b11] {
            page[536] = reserved;
            let controller = Controller::parse(&page, 4096).unwrap();
            assert!(!controller.has_sgl && !controller.has_volatile_write_cache);
            assert!(!controller.has_dataset_management && !controller.has_write_zeroes);
        }
    }

    #[test]
    fn limits_are_named_or_not() {
        let mut page = [0; IDENTIFY_BYTES];
        assert_eq!(CommandLimits::parse(&page, 4096), CommandLimits::default());
        page[1] = 9;
        page[4..8].copy_from_slice(&2048_u32.to_le_bytes());
        page[8..16].copy_from_slice(&(1_u64 << 33).to_le_bytes());
        let limits = CommandLimits {
            write_zeroes_bytes: Some(2 << 20),
            range_sectors: Some(2048),
            deallocate_sectors: Some(1 << 33),
        };
        assert_eq!(CommandLimits::parse(&page, 4096), limits);
        page[1] = 64;
        assert_eq!(CommandLimits::parse(&page, 4096).write_zeroes_bytes, None);
    }

    #[test]
    fn a_controller_without_disks_or_with_odd_queues_is_refused() {
        let mut page = controller_page();
        page[111] = 2;
        assert_eq!(Controller::parse(&page, 4096), Err(ControllerError::NotForIo { kind: 2 }));
        let mut page = controller_page();
        page[512] = 0x77;
        let refused = ControllerError::EntrySize { submission: 0x77, completion: 0x44 };
        assert_eq!(Controller::parse(&page, 4096), Err(refused));
    }

    #[test]
    fn a_namespace_is_read() {
        let namespace = Namespace::parse(&namespace_page(131_072, 9)).unwrap();
        assert_eq!((namespace.sectors, namespace.sector_bytes()), (131_072, 512));
        assert!(!namespace.write_protected && !namespace.zeroes_by_deallocation);
        let namespace = Namespace::parse(&namespace_page(16_384, 12)).unwrap();
        assert_eq!(namespace.sector_bytes(), 4096);
    }

    #[test]
    fn zeroes_come_by_deallocation_only_where_that_reads_as_zeroes() {
        for (features, expected) in [(0b0_1001, true), (0b1_1001, true), (0b1010, false), (0b0001, false)] {
            let mut page = namespace_page(8, 9);
            page[33] = features;
            assert_eq!(Namespace::parse(&page).unwrap().zeroes_by_deallocation, expected, "{features:#b}");
        }
    }

    #[test]
    fn a_namespace_that_cannot_be_served_says_why() {
        assert_eq!(Namespace::parse(&namespace_page(0, 9)), Err(NamespaceError::Empty));
        let sizes = NamespaceError::SectorSize { power: 11 };
        assert_eq!(Namespace::parse(&namespace_page(8, 11)), Err(sizes));
        let sectors = 1 << 55;
        assert_eq!(Namespace::parse(&namespace_page(sectors, 9)), Err(NamespaceError::TooLarge { sectors }));
        let mut page = namespace_page(8, 9);
        page[128 + 4 * 4] = 8;
        assert_eq!(Namespace::parse(&page), Err(NamespaceError::Metadata { bytes: 8 }));
        let mut page = namespace_page(8, 9);
        page[26] = 8;
        assert_eq!(Namespace::parse(&page), Err(NamespaceError::NoSuchFormat { format: 8 }));
    }

    #[test]
    fn the_namespace_list_ends_at_zero_or_at_nonsense() {
        let mut page = [0; IDENTIFY_BYTES];
        for (place, namespace) in [1_u32, 2, 9, 0, 12].into_iter().enumerate() {
            page[4 * place..4 * place + 4].copy_from_slice(&namespace.to_le_bytes());
        }
        assert_eq!(namespace_list(&page).collect::<Vec<_>>(), [1, 2, 9]);
        page[12] = 5;
        assert_eq!(namespace_list(&page).collect::<Vec<_>>(), [1, 2, 9]);
    }

    fn any_page() -> impl Strategy<Value = Page> {
        proptest::collection::vec(any::<u8>(), IDENTIFY_BYTES)
            .prop_map(|bytes| bytes.try_into().expect("as many bytes as a page has"))
    }

    proptest! {
        #[test]
        fn any_page_is_judged_without_a_panic(page in any_page(), min_page_power in 12_u32..28) {
            let _ = Controller::parse(&page, 1 << min_page_power);
            let limits = CommandLimits::parse(&page, 1 << min_page_power);
            prop_assert!(limits.write_zeroes_bytes != Some(0) && limits.range_sectors != Some(0));
            let listed: Vec<_> = namespace_list(&page).collect();
            prop_assert!(listed.len() <= 1024 && listed.is_sorted());
        }

        #[test]
        fn text_is_printable(page in any_page()) {
            let text = text_at(&page, 24, 40);
            prop_assert!(text.len() <= 40 && text.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        }

        /// Random pages hardly ever get past the format, so the fields that decide are steered.
        #[test]
        fn a_namespace_that_is_accepted_can_be_counted(
            mut page in any_page(), power in 0_u8..64, metadata in 0_u8..2, format in 0_u8..64,
        ) {
            page[25] = 63;
            page[26] = format & 0xf | format >> 4 << 5;
            let descriptor = 128 + 4 * usize::from(format);
            page[descriptor..descriptor + 4].copy_from_slice(&[metadata, 0, power, 0]);
            if let Ok(namespace) = Namespace::parse(&page) {
                prop_assert!(matches!(namespace.sector_bytes(), 512 | 4096));
                prop_assert!(namespace.sectors.checked_mul(u64::from(namespace.sector_bytes())).is_some());
                prop_assert_eq!(metadata, 0);
            }
        }
    }
}
