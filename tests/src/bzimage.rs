//! A file that a loader takes for a Linux kernel (Linux Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header").

/// Where the code is loaded; it cannot be moved.
const LOAD_ADDRESS: u32 = 0x0100_0000;
/// The 64-bit entry, from the start of the protected-mode part.
const ENTRY_64: usize = 0x200;
/// Before the entry there is nothing but zeros: good for an empty interrupt table.
pub const ZEROS_ADDRESS: u32 = LOAD_ADDRESS;

const SECTOR_BYTES: usize = 512;
const SETUP_SECTORS: usize = 1;
const ALIGNMENT: u32 = 0x20_0000;

/// The file around 64-bit code.
pub fn around(code: &[u8]) -> Vec<u8> {
    let mut payload = vec![0; ENTRY_64];
    payload.extend_from_slice(code);
    payload.resize(payload.len().next_multiple_of(16), 0);
    let mut file = vec![0; (1 + SETUP_SECTORS) * SECTOR_BYTES];
    let mut put = |offset: usize, bytes: &[u8]| file[offset..offset + bytes.len()].copy_from_slice(bytes);
    let paragraphs = u32::try_from(payload.len() / 16).expect("a short program");
    put(0x1f1, &[SETUP_SECTORS as u8]);
    put(0x1f4, &paragraphs.to_le_bytes()); // syssize
    put(0x1fe, &0xaa55_u16.to_le_bytes()); // boot_flag
    put(0x200, &[0xeb, 0x66]); // jump: its displacement is the header's end, at 0x268
    put(0x202, b"HdrS");
    put(0x206, &0x020f_u16.to_le_bytes()); // version
    put(0x211, &[1]); // loadflags: LOADED_HIGH
    put(0x214, &LOAD_ADDRESS.to_le_bytes()); // code32_start
    put(0x22c, &0x7fff_ffff_u32.to_le_bytes()); // initrd_addr_max
    put(0x230, &ALIGNMENT.to_le_bytes()); // kernel_alignment
    put(0x236, &1_u16.to_le_bytes()); // xloadflags: XLF_KERNEL_64
    put(0x238, &2047_u32.to_le_bytes()); // cmdline_size
    put(0x258, &u64::from(LOAD_ADDRESS).to_le_bytes()); // pref_address
    put(0x260, &ALIGNMENT.to_le_bytes()); // init_size
    file.extend_from_slice(&payload);
    file
}
