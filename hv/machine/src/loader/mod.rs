//! Puts a Linux kernel into a guest's memory and says how its first CPU starts, by the 64-bit
//! boot protocol (Linux Documentation/arch/x86/boot.rst): no real mode, no firmware.
//!
//! What firmware would have left is laid out too: the E820 map, ACPI tables, page tables that map
//! the first 4 GiB at their own addresses, a GDT. The kernel file, the initrd and the command
//! line are untrusted; every field is checked, and whatever does not fit is refused by name
//! before the guest runs.
//!
//! Why not PVH: it enters in 32-bit mode without paging, and stock kernels ship as bzImage, whose
//! PVH note is inside the compressed part. A second loader for ELF images comes with a guest
//! that needs it.

pub mod bzimage;

use core::fmt;

use virtio_device::{GuestPhysAddr, GuestRam, OutOfRange};

use crate::acpi::{self, AcpiConfig};
use crate::backend::{DescriptorTable, Gpr, Segment, SegmentAttributes, SystemState};
use crate::memory_map::{self, COMMAND_LINE_BYTES, KERNEL_SPACE_START, LOW_RAM_END, Range};
use bzimage::{BzImage, ENTRY_64_OFFSET, HEADER_OFFSET, ImageError};

/// The page tables reach this far.
const IDENTITY_MAPPED_END: u64 = 0x1_0000_0000;
const PAGE_BYTES: u64 = 4096;

/// What is to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct LinuxBoot<'a> {
    pub kernel: &'a [u8],
    pub initrd: Option<&'a [u8]>,
    pub command_line: &'a str,
    /// The guest's RAM, laid out as [`memory_map::ram_ranges`] says.
    pub ram_bytes: u64,
    pub cpus: usize,
}

/// How the first CPU starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartState {
    pub system: SystemState,
    pub rip: u64,
    /// Registers that are not zero.
    pub gprs: [(Gpr, u64); 2],
}

/// Where things came to lie, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub start: StartState,
    /// What the kernel occupies until it reads the memory map.
    pub kernel: Range,
    pub initrd: Option<Range>,
}

/// Why a guest cannot be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadError {
    Kernel(ImageError),
    /// The kernel needs this much in one run above 1 MiB.
    KernelDoesNotFit {
        needed_bytes: u64,
        ram_bytes: u64,
    },
    /// A kernel that cannot be moved wants to be where there is no RAM.
    KernelPlaceTaken {
        address: u64,
    },
    InitrdDoesNotFit {
        bytes: u64,
        below: u64,
    },
    EmptyInitrd,
    CommandLineTooLong {
        bytes: usize,
        most: u64,
    },
    CommandLineHoldsZero,
    TooManyCpus {
        cpus: usize,
    },
    /// The layout says RAM where the guest's memory has none.
    Memory(OutOfRange),
}

impl From<ImageError> for LoadError {
    fn from(error: ImageError) -> Self {
        Self::Kernel(error)
    }
}

impl From<OutOfRange> for LoadError {
    fn from(error: OutOfRange) -> Self {
        Self::Memory(error)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(error) => write!(f, "kernel: {error}"),
            Self::KernelDoesNotFit { needed_bytes, ram_bytes } => write!(
                f,
                "the kernel needs {} MiB to start, the guest has {} MiB",
                needed_bytes.div_ceil(1 << 20),
                ram_bytes >> 20
            ),
            Self::KernelPlaceTaken { address } => {
                write!(f, "the kernel must lie at {address:#x}, where the guest has no memory")
            }
            Self::InitrdDoesNotFit { bytes, below } => {
                write!(f, "no room for an initrd of {bytes} bytes below {below:#x}, beside the kernel")
            }
            Self::EmptyInitrd => f.write_str("the initrd is empty"),
            Self::CommandLineTooLong { bytes, most } => {
                write!(f, "the command line has {bytes} bytes, the kernel takes {most}")
            }
            Self::CommandLineHoldsZero => f.write_str("the command line contains a zero byte"),
            Self::TooManyCpus { cpus } => write!(f, "{cpus} CPUs, at most {} are possible", acpi::MAX_CPUS),
            Self::Memory(error) => write!(f, "guest memory: {error}"),
        }
    }
}

impl core::error::Error for LoadError {}

/// Loads everything. On an error the guest's memory may be partly written.
pub fn load_linux(ram: &dyn GuestRam, boot: &LinuxBoot) -> Result<Loaded, LoadError> {
    if boot.cpus == 0 || boot.cpus > acpi::MAX_CPUS {
        return Err(LoadError::TooManyCpus { cpus: boot.cpus });
    }
    let image = BzImage::parse(boot.kernel)?;
    let low_ram_end = boot.ram_bytes.min(LOW_RAM_END);
    let kernel = place_kernel(&image, low_ram_end, boot.ram_bytes)?;
    let initrd = match boot.initrd {
        Some([]) => return Err(LoadError::EmptyInitrd),
        Some(bytes) => Some(place_initrd(&image, kernel, bytes.len() as u64, low_ram_end)?),
        None => None,
    };
    check_command_line(&image, boot.command_line)?;

    ram.write(GuestPhysAddr::new(kernel.start), image.payload)?;
    if let (Some(range), Some(bytes)) = (initrd, boot.initrd) {
        ram.write(GuestPhysAddr::new(range.start), bytes)?;
    }
    let line = GuestPhysAddr::new(memory_map::COMMAND_LINE_ADDRESS);
    ram.write(line, boot.command_line.as_bytes())?;
    ram.write_u8(GuestPhysAddr::new(line.as_u64() + boot.command_line.len() as u64), 0)?;
    let rsdp = acpi::install(ram, &AcpiConfig { cpus: boot.cpus })?;
    write_boot_params(ram, &image, initrd, boot, rsdp)?;
    write_page_tables(ram)?;
    write_gdt(ram)?;
    Ok(Loaded { start: start_state(kernel.start + ENTRY_64_OFFSET), kernel, initrd })
}

/// The kernel goes where it prefers, or to the first aligned place if it may be moved.
fn place_kernel(image: &BzImage, low_ram_end: u64, ram_bytes: u64) -> Result<Range, LoadError> {
    let needed_bytes = u64::from(image.init_bytes);
    let fits = |start: u64| {
        start >= KERNEL_SPACE_START && start.checked_add(needed_bytes).is_some_and(|end| end <= low_ram_end)
    };
    let preferred = image.preferred_address;
    if fits(preferred) {
        return Ok(Range { start: preferred, bytes: needed_bytes });
    }
    if !image.relocatable {
        return Err(LoadError::KernelPlaceTaken { address: preferred });
    }
    let start = KERNEL_SPACE_START.next_multiple_of(u64::from(image.alignment));
    if !fits(start) {
        return Err(LoadError::KernelDoesNotFit { needed_bytes, ram_bytes });
    }
    Ok(Range { start, bytes: needed_bytes })
}

/// The initrd goes as high as it may, so that the kernel's growth does not meet it.
fn place_initrd(image: &BzImage, kernel: Range, bytes: u64, low_ram_end: u64) -> Result<Range, LoadError> {
    let below = low_ram_end.min(u64::from(image.initrd_address_max) + 1);
    let refused = LoadError::InitrdDoesNotFit { bytes, below };
    let start = below.checked_sub(bytes).ok_or(refused)? & !(PAGE_BYTES - 1);
    // In front of a kernel that lies high there is room too, but then little memory is left.
    if start < kernel.end() { Err(refused) } else { Ok(Range { start, bytes }) }
}

fn check_command_line(image: &BzImage, line: &str) -> Result<(), LoadError> {
    let most = u64::from(image.command_line_max).min(COMMAND_LINE_BYTES - 1);
    if line.len() as u64 > most {
        return Err(LoadError::CommandLineTooLong { bytes: line.len(), most });
    }
    if line.as_bytes().contains(&0) {
        return Err(LoadError::CommandLineHoldsZero);
    }
    Ok(())
}

/// struct boot_params ("the zero page", Documentation/arch/x86/zero-page.rst).
fn write_boot_params(
    ram: &dyn GuestRam,
    image: &BzImage,
    initrd: Option<Range>,
    boot: &LinuxBoot,
    rsdp: u64,
) -> Result<(), OutOfRange> {
    /// A boot loader without a number of its own.
    const LOADER_UNDEFINED: u8 = 0xff;
    const VIDEO_MODE_NORMAL: u16 = 0xffff;
    const E820_TABLE: usize = 0x2d0;
    const E820_ENTRY_BYTES: usize = 20;

    let mut page = [0; PAGE_BYTES as usize];
    let mut set = |offset: usize, bytes: &[u8]| page[offset..offset + bytes.len()].copy_from_slice(bytes);
    set(HEADER_OFFSET, image.header);
    set(0x1fa, &VIDEO_MODE_NORMAL.to_le_bytes());
    set(0x210, &[LOADER_UNDEFINED]);
    set(0x228, &(memory_map::COMMAND_LINE_ADDRESS as u32).to_le_bytes());
    if let Some(initrd) = initrd {
        set(0x218, &(initrd.start as u32).to_le_bytes());
        set(0x21c, &(initrd.bytes as u32).to_le_bytes());
    }
    set(0x70, &rsdp.to_le_bytes());
    let map = memory_map::e820(boot.ram_bytes);
    set(0x1e8, &[map.len() as u8]);
    for (index, (range, kind)) in map.iter().enumerate() {
        let at = E820_TABLE + index * E820_ENTRY_BYTES;
        set(at, &range.start.to_le_bytes());
        set(at + 8, &range.bytes.to_le_bytes());
        set(at + 16, &(*kind as u32).to_le_bytes());
    }
    ram.write(GuestPhysAddr::new(memory_map::BOOT_PARAMS_ADDRESS), &page)
}

/// The first 4 GiB at their own addresses, in pages of 2 MiB: one level-4 table, one level-3
/// table, four level-2 tables.
fn write_page_tables(ram: &dyn GuestRam) -> Result<(), OutOfRange> {
    const PRESENT_WRITABLE: u64 = 0x3;
    const LARGE: u64 = 0x80;
    const LARGE_PAGE_BYTES: u64 = 2 << 20;
    let root = memory_map::PAGE_TABLES_ADDRESS;
    let level3 = root + PAGE_BYTES;
    let level2 = level3 + PAGE_BYTES;
    ram.write(GuestPhysAddr::new(root), &[0; 2 * PAGE_BYTES as usize])?;
    ram.write_u64(GuestPhysAddr::new(root), level3 | PRESENT_WRITABLE)?;
    for table in 0..4 {
        let address = level2 + table * PAGE_BYTES;
        ram.write_u64(GuestPhysAddr::new(level3 + 8 * table), address | PRESENT_WRITABLE)?;
    }
    for page in 0..IDENTITY_MAPPED_END / LARGE_PAGE_BYTES {
        let entry = (page * LARGE_PAGE_BYTES) | PRESENT_WRITABLE | LARGE;
        ram.write_u64(GuestPhysAddr::new(level2 + 8 * page), entry)?;
    }
    Ok(())
}

/// __BOOT_CS is selector 0x10 and __BOOT_DS 0x18, by the protocol.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
const GDT_ENTRIES: usize = 4;

fn write_gdt(ram: &dyn GuestRam) -> Result<(), OutOfRange> {
    let descriptors: [u64; GDT_ENTRIES] = [0, 0, descriptor(CODE.attributes), descriptor(DATA.attributes)];
    for (index, entry) in descriptors.into_iter().enumerate() {
        ram.write_u64(GuestPhysAddr::new(memory_map::GDT_ADDRESS + 8 * index as u64), entry)?;
    }
    Ok(())
}

/// A flat descriptor: limit 4 GiB, base 0.
fn descriptor(attributes: SegmentAttributes) -> u64 {
    0x000f_0000_0000_ffff | u64::from(attributes.0 & 0xf0ff) << 40
}

const CODE: Segment =
    Segment { selector: BOOT_CS, attributes: SegmentAttributes::CODE_64, limit_bytes: u32::MAX, base: 0 };
const DATA: Segment =
    Segment { selector: BOOT_DS, attributes: SegmentAttributes::DATA_32, limit_bytes: u32::MAX, base: 0 };

/// "64-bit BOOT PROTOCOL": long mode, paging on with the identity map, flat segments, interrupts
/// off, RSI the address of the boot parameters.
fn start_state(entry: u64) -> StartState {
    const CR0_PE_ET_NE_WP_PG: u64 = 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;
    const CR4_PAE: u64 = 1 << 5;
    const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
    let reset = SystemState::RESET;
    StartState {
        system: SystemState {
            cr0: CR0_PE_ET_NE_WP_PG,
            cr3: memory_map::PAGE_TABLES_ADDRESS,
            cr4: CR4_PAE,
            efer: EFER_LME_LMA,
            es: DATA,
            cs: CODE,
            ss: DATA,
            ds: DATA,
            fs: DATA,
            gs: DATA,
            gdtr: DescriptorTable {
                base: memory_map::GDT_ADDRESS,
                limit_bytes: (GDT_ENTRIES * 8 - 1) as u16,
            },
            idtr: DescriptorTable { base: 0, limit_bytes: 0 },
            ..reset
        },
        rip: entry,
        gprs: [(Gpr::RSI, memory_map::BOOT_PARAMS_ADDRESS), (Gpr::RSP, memory_map::STACK_TOP)],
    }
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;
