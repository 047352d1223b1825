//! The I/O port space.
//!
//! Unsafe throughout: a port write can start a DMA or reset the machine, and only the
//! caller knows which device answers.

use x86_64::instructions::port::Port;

macro_rules! port_access {
    ($read:ident, $write:ident, $type:ty) => {
        #[doc = concat!("Reads a `", stringify!($type), "` from `port`.")]
        ///
        /// # Safety
        /// The device behind the port must be the caller's to drive, and reading this
        /// register must not break anyone's memory.
        pub unsafe fn $read(port: u16) -> $type {
            // SAFETY: the caller's promise is the one asked for here.
            unsafe { Port::new(port).read() }
        }

        #[doc = concat!("Writes a `", stringify!($type), "` to `port`.")]
        ///
        /// # Safety
        /// The device behind the port must be the caller's to drive, and the write must
        /// not make it break anyone's memory.
        pub unsafe fn $write(port: u16, value: $type) {
            // SAFETY: the caller's promise is the one asked for here.
            unsafe { Port::new(port).write(value) }
        }
    };
}

port_access!(read8, write8, u8);
port_access!(read16, write16, u16);
port_access!(read32, write32, u32);
