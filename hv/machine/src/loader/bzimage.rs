//! The header of a Linux bzImage (Linux Documentation/arch/x86/boot.rst, "The Real-Mode Kernel
//! Header"), checked field by field: the file may be anything.

use core::fmt;

/// Sectors of the setup part are counted in these.
const SECTOR_BYTES: usize = 512;
const BOOT_FLAG: u16 = 0xaa55;
const MAGIC: &[u8; 4] = b"HdrS";
/// 2.12 (Linux 3.8): the first version with xloadflags.
const OLDEST_VERSION: u16 = 0x020c;
const LOADED_HIGH: u8 = 1 << 0;
const XLF_KERNEL_64: u16 = 1 << 0;
/// Where the header begins in the file, and in the boot parameters.
pub const HEADER_OFFSET: usize = 0x1f1;
/// The header must leave alone what follows it in the boot parameters.
const HEADER_LIMIT: usize = 0x290;
/// The 64-bit entry point, from the start of the protected-mode part.
pub const ENTRY_64_OFFSET: u64 = 0x200;

/// Why a file is not a kernel that can be booted here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    TooShort {
        bytes: usize,
        needed: usize,
    },
    NoBootFlag {
        found: u16,
    },
    NoHeaderMagic,
    OldProtocol {
        version: u16,
    },
    NotLoadedHigh,
    No64BitEntry,
    HeaderTooLong {
        end: usize,
    },
    NoProtectedModePart,
    /// syssize says more than the file holds.
    Truncated {
        bytes: usize,
        needed: u64,
    },
    BadAlignment {
        alignment: u32,
    },
    /// init_size is smaller than the image itself.
    BadInitSize {
        init_bytes: u32,
        image_bytes: usize,
    },
    BadPreferredAddress {
        address: u64,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort { bytes, needed } => {
                write!(f, "{bytes} bytes are too few for a bzImage header ({needed} needed)")
            }
            Self::NoBootFlag { found } => write!(f, "boot flag is {found:#06x}, not 0xaa55: not a bzImage"),
            Self::NoHeaderMagic => f.write_str("no HdrS magic: not a bzImage, or one before Linux 2.0"),
            Self::OldProtocol { version } => {
                write!(f, "boot protocol {}.{:02} is older than 2.12", version >> 8, version & 0xff)
            }
            Self::NotLoadedHigh => f.write_str("a zImage, which is loaded low: only bzImages are booted"),
            Self::No64BitEntry => f.write_str("the kernel has no 64-bit entry point"),
            Self::HeaderTooLong { end } => write!(f, "the setup header ends at {end:#x}, past its place"),
            Self::NoProtectedModePart => f.write_str("nothing follows the setup sectors"),
            Self::Truncated { bytes, needed } => {
                write!(f, "cut off: {bytes} bytes of {needed} that syssize names")
            }
            Self::BadAlignment { alignment } => {
                write!(f, "kernel alignment {alignment:#x} is no power of two")
            }
            Self::BadInitSize { init_bytes, image_bytes } => {
                write!(f, "init_size {init_bytes} is less than the image's {image_bytes} bytes")
            }
            Self::BadPreferredAddress { address } => {
                write!(f, "preferred load address {address:#x} is misaligned or below 1 MiB")
            }
        }
    }
}

impl core::error::Error for ImageError {}

/// A checked header. Holding one proves that the ranges below lie in the file and that the
/// numbers make sense together; whether they fit into a guest's memory is the loader's question.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct BzImage<'a> {
    /// The setup header as the boot parameters take it over.
    pub header: &'a [u8],
    /// What is loaded: the protected-mode part.
    pub payload: &'a [u8],
    pub version: u16,
    /// The highest address an initrd's last byte may have.
    pub initrd_address_max: u32,
    pub alignment: u32,
    pub relocatable: bool,
    /// Most bytes of a command line, without its zero.
    pub command_line_max: u32,
    pub preferred_address: u64,
    /// Memory that the kernel needs from its load address on before it reads the map.
    pub init_bytes: u32,
}

/// Without the bytes, of which there are millions.
impl fmt::Debug for BzImage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BzImage")
            .field("payload_bytes", &self.payload.len())
            .field("version", &self.version)
            .field("alignment", &self.alignment)
            .field("relocatable", &self.relocatable)
            .field("preferred_address", &self.preferred_address)
            .field("init_bytes", &self.init_bytes)
            .finish_non_exhaustive()
    }
}

fn u16_at(file: &[u8], offset: usize) -> u16 {
    file.get(offset..offset + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn u32_at(file: &[u8], offset: usize) -> u32 {
    u32::from(u16_at(file, offset)) | u32::from(u16_at(file, offset + 2)) << 16
}

impl<'a> BzImage<'a> {
    pub fn parse(file: &'a [u8]) -> Result<Self, ImageError> {
        // Up to and with handover_offset, the last field of protocol 2.12.
        const NEEDED: usize = 0x268;
        if file.len() < NEEDED {
            return Err(ImageError::TooShort { bytes: file.len(), needed: NEEDED });
        }
        let found = u16_at(file, 0x1fe);
        if found != BOOT_FLAG {
            return Err(ImageError::NoBootFlag { found });
        }
        if file[0x202..0x206] != *MAGIC {
            return Err(ImageError::NoHeaderMagic);
        }
        let version = u16_at(file, 0x206);
        if version < OLDEST_VERSION {
            return Err(ImageError::OldProtocol { version });
        }
        if file[0x211] & LOADED_HIGH == 0 {
            return Err(ImageError::NotLoadedHigh);
        }
        if u16_at(file, 0x236) & XLF_KERNEL_64 == 0 {
            return Err(ImageError::No64BitEntry);
        }
        // The jump instruction's displacement says where the header ends.
        let end = 0x202 + usize::from(file[0x201]);
        if !(NEEDED..=HEADER_LIMIT).contains(&end) || end > file.len() {
            return Err(ImageError::HeaderTooLong { end });
        }
        // "For backwards compatibility, if setup_sects is 0, the real value is 4."
        let setup_sectors = if file[0x1f1] == 0 { 4 } else { usize::from(file[0x1f1]) };
        let payload = file.get((setup_sectors + 1) * SECTOR_BYTES..).unwrap_or_default();
        if payload.len() as u64 <= ENTRY_64_OFFSET {
            return Err(ImageError::NoProtectedModePart);
        }
        // syssize counts paragraphs, rounded up; signatures may follow.
        let named_bytes = u64::from(u32_at(file, 0x1f4)) * 16;
        if named_bytes > payload.len() as u64 + 15 {
            return Err(ImageError::Truncated { bytes: payload.len(), needed: named_bytes });
        }
        let alignment = u32_at(file, 0x230);
        if !alignment.is_power_of_two() {
            return Err(ImageError::BadAlignment { alignment });
        }
        let init_bytes = u32_at(file, 0x260);
        if (init_bytes as usize) < payload.len() {
            return Err(ImageError::BadInitSize { init_bytes, image_bytes: payload.len() });
        }
        let preferred_address = u64::from(u32_at(file, 0x258)) | u64::from(u32_at(file, 0x25c)) << 32;
        let misaligned = preferred_address & (u64::from(alignment) - 1) != 0;
        if misaligned || preferred_address < crate::memory_map::KERNEL_SPACE_START {
            return Err(ImageError::BadPreferredAddress { address: preferred_address });
        }
        Ok(Self {
            header: &file[HEADER_OFFSET..end],
            payload,
            version,
            initrd_address_max: u32_at(file, 0x22c),
            alignment,
            relocatable: file[0x234] != 0,
            command_line_max: u32_at(file, 0x238),
            preferred_address,
            init_bytes,
        })
    }
}
