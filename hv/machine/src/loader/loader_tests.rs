use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;
use virtio_device::fake::VecRam;

use super::*;

const MIB: usize = 1 << 20;

/// A file with everything a loader looks at, and a recognisable payload.
fn bzimage() -> Vec<u8> {
    let mut file = vec![0; 512 * 3 + 4096];
    let mut set = |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);
    set(0x1f1, &[2]);
    set(0x1f4, &(4096u32 / 16).to_le_bytes());
    set(0x1fe, &0xaa55u16.to_le_bytes());
    set(0x200, &[0xeb, 0x6a]);
    set(0x202, b"HdrS");
    set(0x206, &0x020fu16.to_le_bytes());
    set(0x211, &[0x01]);
    set(0x22c, &0x7fff_ffffu32.to_le_bytes());
    set(0x230, &0x20_0000u32.to_le_bytes());
    set(0x234, &[1]);
    set(0x236, &0x0003u16.to_le_bytes());
    set(0x238, &2047u32.to_le_bytes());
    set(0x258, &0x100_0000u64.to_le_bytes());
    set(0x260, &0x30_0000u32.to_le_bytes());
    file[512 * 3..].fill(0xcc);
    file
}

fn boot<'a>(kernel: &'a [u8], ram_bytes: usize) -> LinuxBoot<'a> {
    LinuxBoot {
        kernel,
        initrd: None,
        command_line: "console=ttyS0 quiet",
        ram_bytes: ram_bytes as u64,
        cpus: 1,
    }
}

fn bytes_at(ram: &VecRam, address: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    ram.read(GuestPhysAddr::new(address), &mut bytes).unwrap();
    bytes
}

#[test]
fn a_kernel_goes_where_it_prefers() {
    let (file, ram) = (bzimage(), VecRam::new(32 * MIB));
    let loaded = load_linux(&ram, &boot(&file, 32 * MIB)).unwrap();
    assert_eq!(loaded.kernel, Range { start: 0x100_0000, bytes: 0x30_0000 });
    assert_eq!(loaded.start.rip, 0x100_0200);
    assert_eq!(bytes_at(&ram, 0x100_0000, 4096), vec![0xcc; 4096]);
    let line = bytes_at(&ram, memory_map::COMMAND_LINE_ADDRESS, 20);
    assert_eq!(&line, b"console=ttyS0 quiet\0");
    let page = memory_map::BOOT_PARAMS_ADDRESS;
    assert_eq!(bytes_at(&ram, page + 0x202, 4), b"HdrS");
    assert_eq!(bytes_at(&ram, page + 0x210, 1), [0xff]);
    assert_eq!(ram.read_u32(GuestPhysAddr::new(page + 0x228)), Ok(0x2_0000));
    assert_eq!(ram.read_u64(GuestPhysAddr::new(page + 0x70)), Ok(memory_map::ACPI_TABLES_ADDRESS));
    assert_eq!(bytes_at(&ram, memory_map::ACPI_TABLES_ADDRESS, 8), b"RSD PTR ");
}

#[test]
fn a_small_guest_gets_a_relocatable_kernel_lower() {
    let (mut file, ram) = (bzimage(), VecRam::new(8 * MIB));
    let loaded = load_linux(&ram, &boot(&file, 8 * MIB)).unwrap();
    assert_eq!(loaded.kernel.start, 0x20_0000);
    file[0x234] = 0;
    assert_eq!(
        load_linux(&ram, &boot(&file, 8 * MIB)),
        Err(LoadError::KernelPlaceTaken { address: 0x100_0000 })
    );
    let tiny = load_linux(&ram, &boot(&bzimage(), 4 * MIB));
    assert!(matches!(tiny, Err(LoadError::KernelDoesNotFit { needed_bytes: 0x30_0000, .. })));
}

#[test]
fn the_initrd_goes_high_and_never_over_the_kernel() {
    let (file, ram) = (bzimage(), VecRam::new(32 * MIB));
    let initrd = vec![0x5a; 10_001];
    let with = LinuxBoot { initrd: Some(&initrd), ..boot(&file, 32 * MIB) };
    let range = load_linux(&ram, &with).unwrap().initrd.unwrap();
    assert_eq!(range.start % 4096, 0);
    assert!(range.end() <= 32 * MIB as u64 && range.end() > 32 * MIB as u64 - 4096);
    assert_eq!(bytes_at(&ram, range.start, 10_001), initrd);
    assert_eq!(ram.read_u32(GuestPhysAddr::new(memory_map::BOOT_PARAMS_ADDRESS + 0x21c)), Ok(10_001));

    let large = vec![0; 14 * MIB];
    let with = LinuxBoot { initrd: Some(&large), ..boot(&file, 32 * MIB) };
    assert!(matches!(load_linux(&ram, &with), Err(LoadError::InitrdDoesNotFit { .. })));
    let with = LinuxBoot { initrd: Some(&[]), ..boot(&file, 32 * MIB) };
    assert_eq!(load_linux(&ram, &with), Err(LoadError::EmptyInitrd));
}

#[test]
fn the_page_tables_map_everything_to_itself() {
    let (file, ram) = (bzimage(), VecRam::new(32 * MIB));
    let start = load_linux(&ram, &boot(&file, 32 * MIB)).unwrap().start;
    let paging = crate::backend::PagingState {
        cr0: start.system.cr0,
        cr3: start.system.cr3,
        cr4: start.system.cr4,
        efer: start.system.efer,
        privilege_level: 0,
    };
    for address in [0, 0x7000, 0x100_0200, 0xfec0_0000, 0xffff_ffff] {
        let access = crate::walk::WalkAccess::Write;
        assert_eq!(crate::walk::translate(&ram, &paging, address, access), Ok(GuestPhysAddr::new(address)));
    }
    assert!(crate::walk::translate(&ram, &paging, 1 << 32, crate::walk::WalkAccess::Read).is_err());
    let code = ram.read_u64(GuestPhysAddr::new(memory_map::GDT_ADDRESS + 0x10)).unwrap();
    assert_eq!(code, 0x00af_9b00_0000_ffff);
    assert_eq!(ram.read_u64(GuestPhysAddr::new(memory_map::GDT_ADDRESS + 0x18)), Ok(0x00cf_9300_0000_ffff));
}

#[test]
fn every_wrong_field_has_a_name() {
    let wrong = |offset: usize, bytes: &[u8]| {
        let mut file = bzimage();
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        BzImage::parse(&file).unwrap_err()
    };
    assert_eq!(wrong(0x1fe, &[0, 0]), ImageError::NoBootFlag { found: 0 });
    assert_eq!(wrong(0x202, b"HdrX"), ImageError::NoHeaderMagic);
    assert_eq!(wrong(0x206, &[0x0b, 0x02]), ImageError::OldProtocol { version: 0x020b });
    assert_eq!(wrong(0x211, &[0]), ImageError::NotLoadedHigh);
    assert_eq!(wrong(0x236, &[0, 0]), ImageError::No64BitEntry);
    assert_eq!(wrong(0x201, &[0xff]), ImageError::HeaderTooLong { end: 0x301 });
    assert_eq!(wrong(0x201, &[0x10]), ImageError::HeaderTooLong { end: 0x212 });
    assert_eq!(wrong(0x1f1, &[0xff]), ImageError::NoProtectedModePart);
    assert_eq!(wrong(0x1f4, &[0xff; 4]), ImageError::Truncated { bytes: 4096, needed: 0xffff_ffff * 16 });
    assert_eq!(wrong(0x230, &[3, 0, 0, 0]), ImageError::BadAlignment { alignment: 3 });
    assert_eq!(wrong(0x260, &[0; 4]), ImageError::BadInitSize { init_bytes: 0, image_bytes: 4096 });
    assert_eq!(wrong(0x258, &[1]), ImageError::BadPreferredAddress { address: 0x100_0001 });
    assert_eq!(wrong(0x25b, &[0]), ImageError::BadPreferredAddress { address: 0 });
    assert!(matches!(BzImage::parse(&bzimage()[..600]), Err(ImageError::TooShort { .. })));
}

#[test]
fn command_lines_and_cpus_are_bounded() {
    let (file, ram) = (bzimage(), VecRam::new(32 * MIB));
    let long = "x".repeat(2048);
    let with = LinuxBoot { command_line: &long, ..boot(&file, 32 * MIB) };
    assert_eq!(load_linux(&ram, &with), Err(LoadError::CommandLineTooLong { bytes: 2048, most: 2047 }));
    let with = LinuxBoot { command_line: "a\0b", ..boot(&file, 32 * MIB) };
    assert_eq!(load_linux(&ram, &with), Err(LoadError::CommandLineHoldsZero));
    for cpus in [0, 255] {
        let with = LinuxBoot { cpus, ..boot(&file, 32 * MIB) };
        assert_eq!(load_linux(&ram, &with), Err(LoadError::TooManyCpus { cpus }));
    }
}

#[test]
fn memory_that_is_not_there_is_an_error() {
    let file = bzimage();
    let loaded = load_linux(&VecRam::new(2 * MIB), &boot(&file, 32 * MIB));
    assert!(matches!(loaded, Err(LoadError::Memory(_))));
}

proptest! {
    #[test]
    fn any_header_is_taken_or_refused(changes in prop::collection::vec((0x1f1usize..0x270, any::<u8>()), 1..12)) {
        let mut file = bzimage();
        for (offset, byte) in changes {
            file[offset] = byte;
        }
        let low_ram_end = 8 * MIB as u64;
        if let Ok(image) = BzImage::parse(&file)
            && let Ok(kernel) = place_kernel(&image, low_ram_end, low_ram_end)
        {
            prop_assert!(kernel.start >= KERNEL_SPACE_START && kernel.end() <= low_ram_end);
            prop_assert!(kernel.bytes >= image.payload.len() as u64);
            if let Ok(initrd) = place_initrd(&image, kernel, 5000, low_ram_end) {
                prop_assert!(initrd.start >= kernel.end() && initrd.end() <= low_ram_end);
            }
        }
    }

    #[test]
    fn any_bytes_are_no_kernel(file in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = BzImage::parse(&file);
    }
}

/// With a distribution's kernel at hand: `NOS_TEST_KERNEL=/boot/vmlinuz cargo test -p machine`.
#[test]
fn a_distribution_kernel_loads() {
    extern crate std;
    let Some(path) = std::env::var_os("NOS_TEST_KERNEL") else { return };
    let file = std::fs::read(path).unwrap();
    let image = BzImage::parse(&file).unwrap();
    std::println!(
        "protocol {:#x}, prefers {:#x}, needs {} bytes, command line {}",
        image.version,
        image.preferred_address,
        image.init_bytes,
        image.command_line_max
    );
    let ram = VecRam::new(128 * MIB);
    let loaded = load_linux(&ram, &boot(&file, 128 * MIB)).unwrap();
    assert_eq!(bytes_at(&ram, loaded.kernel.start, image.payload.len()), image.payload);
}
