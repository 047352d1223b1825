//! The body of an INFO reply: what the device is and what it may be asked for.
//!
//! ```text
//!  0  size_bytes       8   bytes of the device, whole sectors
//!  8  sector_bytes     4   a power of two, at least 512
//! 12  max_read_bytes   4   the most a READ may ask, whole sectors
//! 16  max_write_bytes  4   the most a WRITE may bring, whole sectors
//! 20  datagram_bytes   4   the most one reply to a READ carries, whole sectors
//! 24  slots            4   datagrams of all clients that the server works on at once
//! 28  flags            2   bit 0: read-only; the others are zero and to be ignored
//! 30  mtu              2   what the server's datagrams are cut for
//! 32  name            32   the disk's name, UTF-8, zeros behind it
//! 64  model           40   the disk's model, UTF-8, zeros behind it
//! ```
//!
//! A later server may append fields; a client takes the first 104 bytes and ignores the rest.

use core::fmt;

/// Bytes of the body.
pub const INFO_BYTES: usize = 104;
/// Bytes of the name's field.
pub const NAME_BYTES: usize = 32;
/// Bytes of the model's field.
pub const MODEL_BYTES: usize = 40;

/// No UDP datagram carries more; so no sector, and no datagram's worth of them, is longer.
const MAX_DATAGRAM_BYTES: u32 = 65536;

/// A text of at most `N` bytes: UTF-8 without control characters, so that it may be printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Label<N> {
    /// As much of `text` as fits; control characters become spaces, and spaces at the end go.
    pub fn new(text: &str) -> Self {
        let mut label = Self { bytes: [0; N], length: 0 };
        for character in text.chars() {
            let character = if character.is_control() { ' ' } else { character };
            let end = label.length + character.len_utf8();
            if end > N {
                break;
            }
            character.encode_utf8(&mut label.bytes[label.length..end]);
            label.length = end;
        }
        label.length = label.as_str().trim_end().len();
        label.bytes[label.length..].fill(0);
        label
    }

    /// From the wire: a hostile server's text is made harmless.
    fn from_field(field: &[u8]) -> Self {
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        match core::str::from_utf8(&field[..end]) {
            Ok(text) => Self::new(text),
            Err(error) => {
                // The part up to the first bad byte is valid by `valid_up_to`'s promise.
                Self::new(core::str::from_utf8(&field[..error.valid_up_to()]).unwrap_or(""))
            }
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // `new` is the only maker and writes whole characters.
        core::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}

impl<const N: usize> fmt::Debug for Label<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(f)
    }
}

/// A device as its server describes it. Holding a parsed one proves that its figures agree with
/// each other: a client may divide by them and add them up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Bytes of the device, whole sectors.
    pub size_bytes: u64,
    /// A power of two from 512 to 65536.
    pub sector_bytes: u32,
    /// The most a READ may ask, whole sectors, at least one.
    pub max_read_bytes: u32,
    /// The most a WRITE may bring, whole sectors, at least one.
    pub max_write_bytes: u32,
    /// The most one reply to a READ carries, whole sectors, at least one.
    pub datagram_bytes: u32,
    /// Datagrams that the server works on at once, at least one.
    pub slots: u32,
    /// Whether WRITE is refused.
    pub read_only: bool,
    /// What the server's datagrams are cut for.
    pub mtu: u16,
    /// The disk's name.
    pub name: Label<NAME_BYTES>,
    /// The disk's model.
    pub model: Label<MODEL_BYTES>,
}

/// Why a description cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InfoError {
    /// Fewer than [`INFO_BYTES`].
    Short,
    /// The sector size is not a power of two from 512 to 65536.
    SectorBytes(u32),
    /// The size is zero or not whole sectors.
    SizeBytes(u64),
    /// A limit is zero, not whole sectors, or smaller than what it contains.
    Limit,
    /// The server says that it has no slots.
    Slots,
}

impl fmt::Display for InfoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short => write!(f, "fewer than {INFO_BYTES} bytes"),
            Self::SectorBytes(bytes) => write!(f, "sectors of {bytes} bytes"),
            Self::SizeBytes(bytes) => write!(f, "a size of {bytes} bytes"),
            Self::Limit => f.write_str("limits that are not whole sectors"),
            Self::Slots => f.write_str("no slots"),
        }
    }
}

impl core::error::Error for InfoError {}

const FLAG_READ_ONLY: u16 = 1 << 0;

impl Info {
    /// The body of the reply.
    pub fn to_bytes(&self) -> [u8; INFO_BYTES] {
        let mut bytes = [0; INFO_BYTES];
        let flags = if self.read_only { FLAG_READ_ONLY } else { 0 };
        let mut rest = &mut bytes[..];
        let mut put = |field: &[u8]| {
            let (front, behind) = core::mem::take(&mut rest).split_at_mut(field.len());
            front.copy_from_slice(field);
            rest = behind;
        };
        put(&self.size_bytes.to_be_bytes());
        put(&self.sector_bytes.to_be_bytes());
        put(&self.max_read_bytes.to_be_bytes());
        put(&self.max_write_bytes.to_be_bytes());
        put(&self.datagram_bytes.to_be_bytes());
        put(&self.slots.to_be_bytes());
        put(&flags.to_be_bytes());
        put(&self.mtu.to_be_bytes());
        put(&self.name.bytes);
        put(&self.model.bytes);
        bytes
    }

    /// Reads and checks the body of a reply.
    ///
    /// # Errors
    /// [`InfoError`] names the first figure that makes no sense.
    pub fn parse(body: &[u8]) -> Result<Self, InfoError> {
        let info = Self::read(body)?;
        info.check_device()?;
        if !info.datagram_bytes.is_multiple_of(info.sector_bytes) {
            return Err(InfoError::Limit);
        }
        Ok(info)
    }

    /// Reads the body of a reply. Nothing is checked but that it is long enough.
    pub(crate) fn read(body: &[u8]) -> Result<Self, InfoError> {
        let body: &[u8; INFO_BYTES] = body.first_chunk().ok_or(InfoError::Short)?;
        fn field<const N: usize>(body: &[u8; INFO_BYTES], start: usize) -> [u8; N] {
            core::array::from_fn(|index| body[start + index])
        }
        let u32_at = |start| u32::from_be_bytes(field(body, start));
        let u16_at = |start| u16::from_be_bytes(field(body, start));
        let info = Self {
            size_bytes: u64::from_be_bytes(field(body, 0)),
            sector_bytes: u32_at(8),
            max_read_bytes: u32_at(12),
            max_write_bytes: u32_at(16),
            datagram_bytes: u32_at(20),
            slots: u32_at(24),
            read_only: u16_at(28) & FLAG_READ_ONLY != 0,
            mtu: u16_at(30),
            name: Label::from_field(&body[32..32 + NAME_BYTES]),
            model: Label::from_field(&body[64..64 + MODEL_BYTES]),
        };
        Ok(info)
    }

    /// Checks what both versions of the protocol want.
    pub(crate) fn check_device(&self) -> Result<(), InfoError> {
        let sector = self.sector_bytes;
        if !sector.is_power_of_two() || !(512..=MAX_DATAGRAM_BYTES).contains(&sector) {
            return Err(InfoError::SectorBytes(sector));
        }
        if self.size_bytes == 0 || !self.size_bytes.is_multiple_of(u64::from(sector)) {
            return Err(InfoError::SizeBytes(self.size_bytes));
        }
        let whole = |limit: u32| limit != 0 && limit.is_multiple_of(sector);
        if !whole(self.max_read_bytes)
            || !whole(self.max_write_bytes)
            || self.datagram_bytes == 0
            || self.datagram_bytes > self.max_read_bytes
            || self.datagram_bytes > MAX_DATAGRAM_BYTES
            || self.max_write_bytes > MAX_DATAGRAM_BYTES
        {
            return Err(InfoError::Limit);
        }
        if self.slots == 0 {
            return Err(InfoError::Slots);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Info {
        Info {
            size_bytes: 1 << 30,
            sector_bytes: 512,
            max_read_bytes: 16384,
            max_write_bytes: 1024,
            datagram_bytes: 1024,
            slots: 256,
            read_only: true,
            mtu: 1500,
            name: Label::new("nvme0n1"),
            model: Label::new("QEMU NVMe Ctrl      "),
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = example().to_bytes();
        assert_eq!(bytes[..8], (1u64 << 30).to_be_bytes());
        assert_eq!(bytes[8..12], 512u32.to_be_bytes());
        assert_eq!(bytes[12..16], 16384u32.to_be_bytes());
        assert_eq!(bytes[16..20], 1024u32.to_be_bytes());
        assert_eq!(bytes[20..24], 1024u32.to_be_bytes());
        assert_eq!(bytes[24..28], 256u32.to_be_bytes());
        assert_eq!(bytes[28..30], [0, 1]);
        assert_eq!(bytes[30..32], 1500u16.to_be_bytes());
        assert_eq!(bytes[32..40], *b"nvme0n1\0");
        assert_eq!(bytes[64..79], *b"QEMU NVMe Ctrl\0");
        assert_eq!(Info::parse(&bytes), Ok(example()));
        let longer = [&bytes[..], &[9; 20]].concat();
        assert_eq!(Info::parse(&longer), Ok(example()));
    }

    #[test]
    fn nonsense_is_named() {
        let with = |change: fn(&mut Info)| {
            let mut info = example();
            change(&mut info);
            Info::parse(&info.to_bytes())
        };
        assert_eq!(with(|i| i.sector_bytes = 0), Err(InfoError::SectorBytes(0)));
        assert_eq!(with(|i| i.sector_bytes = 768), Err(InfoError::SectorBytes(768)));
        assert_eq!(with(|i| i.size_bytes = 0), Err(InfoError::SizeBytes(0)));
        assert_eq!(with(|i| i.size_bytes += 1), Err(InfoError::SizeBytes((1 << 30) + 1)));
        assert_eq!(with(|i| i.max_write_bytes = 0), Err(InfoError::Limit));
        assert_eq!(with(|i| i.max_read_bytes = 512), Err(InfoError::Limit));
        assert_eq!(with(|i| i.datagram_bytes = 100), Err(InfoError::Limit));
        assert_eq!(with(|i| i.slots = 0), Err(InfoError::Slots));
        assert_eq!(Info::parse(&example().to_bytes()[..103]), Err(InfoError::Short));
    }

    #[test]
    fn labels_are_cut_at_a_character_and_made_printable() {
        assert_eq!(Label::<4>::new("aéöü").as_str(), "aé");
        assert_eq!(Label::<8>::new("a\x1b[2Jb\n").as_str(), "a [2Jb");
        assert_eq!(Label::<4>::from_field(&[b'o', b'k', 0xFF, b'x']).as_str(), "ok");
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..140)) {
            if let Ok(info) = Info::parse(&bytes) {
                prop_assert!(!info.name.as_str().chars().any(char::is_control));
                prop_assert_eq!(Info::parse(&info.to_bytes()), Ok(info));
            }
        }
    }
}
