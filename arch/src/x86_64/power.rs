pub fn power_off() -> ! { todo!() }
pub fn reboot() -> ! { todo!() }
