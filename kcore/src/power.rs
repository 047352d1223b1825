//! The end: power-off and reboot.

/// Turns the machine off.
pub fn off() -> ! {
    log::info!("power off");
    crate::console::take_over();
    arch::power::power_off()
}

/// Starts the machine again.
pub fn reboot() -> ! {
    log::info!("reboot");
    crate::console::take_over();
    arch::power::reboot()
}
