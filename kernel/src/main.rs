//! The kernel's binary: the entry and the panic, around the library.

#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use arch::boot::BootInfo;

arch::entry!(start);

/// The beginning of the identity that modules must have been built against; set by `cargo xtask`. That
/// it stands here has the kernel linked again when what it exports has changed.
const BUILD: Option<&str> = option_env!("NOS_BUILD");

fn start(boot: &'static BootInfo) -> ! {
    kernel::start(boot, BUILD.unwrap_or("without modules"))
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    kcore::panic::panic(format_args!("{info}"), arch::backtrace::frame_pointer() as u64, None)
}
