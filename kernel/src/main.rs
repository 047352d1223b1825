//! The kernel's binary.
#![no_std]
#![no_main]

use arch::boot::BootInfo;
use core::fmt::Write;

#[unsafe(no_mangle)]
extern "Rust" fn kernel_main(boot: &'static BootInfo) -> ! {
    let _ = writeln!(arch::serial::Writer, "nos: booted by {:?}", boot.protocol);
    arch::cpu::halt_forever()
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let _ = writeln!(arch::serial::Writer, "{info}");
    arch::cpu::halt_forever()
}
