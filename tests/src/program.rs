//! Guests in machine code: what no well-behaved kernel would do.
//!
//! A [`Program`] is a list of steps, each a few bytes of 64-bit code; [`Program::into_kernel`] wraps them in what the
//! node takes for a Linux kernel. Encodings are from Intel's SDM, volume 2; after the boot protocol's 64-bit entry,
//! interrupts are off and memory is mapped at its own addresses.

use crate::bzimage;

/// The guest's first serial port.
const SERIAL: u16 = 0x3f8;
/// PCI configuration mechanism #1 (PCI Local Bus Specification 3.0, section 3.2.2.3.2).
const PCI_ADDRESS: u16 = 0xcf8;
const PCI_DATA: u16 = 0xcfc;

/// The width of an access to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    Byte,
    Word,
    Double,
}

/// A guest's code as it is put together.
#[derive(Debug, Clone, Default)]
pub struct Program {
    code: Vec<u8>,
}

impl Program {
    pub fn new() -> Program {
        Program::default()
    }

    /// Prints on the serial console.
    pub fn print(mut self, text: &str) -> Program {
        for byte in text.bytes() {
            self = self.out(SERIAL, Width::Byte, u32::from(byte));
        }
        self
    }

    /// `out` to a port.
    pub fn out(mut self, port: u16, width: Width, value: u32) -> Program {
        // mov dx, imm16
        self.code.extend([0x66, 0xba]);
        self.code.extend(port.to_le_bytes());
        self.out_dx(width, value)
    }

    fn out_dx(mut self, width: Width, value: u32) -> Program {
        // mov eax, imm32
        self.code.push(0xb8);
        self.code.extend(value.to_le_bytes());
        match width {
            Width::Byte => self.code.push(0xee),
            Width::Word => self.code.extend([0x66, 0xef]),
            Width::Double => self.code.push(0xef),
        }
        self
    }

    /// Takes the base of a function's BAR into RBX, and turns its I/O space and bus mastering on.
    pub fn take_bar(self, slot: u32, bar: u32) -> Program {
        let register = |offset: u32| 1 << 31 | slot << 11 | offset;
        let mut program = self
            .out(PCI_ADDRESS, Width::Double, register(0x04))
            .out(PCI_DATA, Width::Word, 0x0005)
            .out(PCI_ADDRESS, Width::Double, register(0x10 + 4 * bar));
        // mov dx, 0xcfc; in eax, dx; and eax, ~3; mov ebx, eax
        program.code.extend([0x66, 0xba, 0xfc, 0x0c, 0xed, 0x83, 0xe0, 0xfc, 0x89, 0xc3]);
        program
    }

    /// `out` to an offset of the BAR that was taken.
    pub fn bar_out(mut self, offset: u32, width: Width, value: u32) -> Program {
        // lea edx, [rbx + disp32]
        self.code.extend([0x8d, 0x93]);
        self.code.extend(offset.to_le_bytes());
        self.out_dx(width, value)
    }

    /// Stores 32 bits at an address below 2 GiB.
    pub fn store(mut self, address: u32, value: u32) -> Program {
        assert!(address < 1 << 31, "the displacement is sign-extended");
        // mov dword [disp32], imm32
        self.code.extend([0xc7, 0x04, 0x25]);
        self.code.extend(address.to_le_bytes());
        self.code.extend(value.to_le_bytes());
        self
    }

    /// Halts for ever: interrupts are off.
    pub fn halt(mut self) -> Program {
        // hlt; jmp to it
        self.code.extend([0xf4, 0xeb, 0xfd]);
        self
    }

    /// Computes for ever, without an exit of its own making.
    pub fn spin(mut self) -> Program {
        self.code.extend([0xeb, 0xfe]);
        self
    }

    /// An exception while there is no interrupt table, and none for the double fault.
    pub fn triple_fault(mut self) -> Program {
        // lidt [disp32], where zeros are; ud2
        self.code.extend([0x0f, 0x01, 0x1c, 0x25]);
        self.code.extend(bzimage::ZEROS_ADDRESS.to_le_bytes());
        self.code.extend([0x0f, 0x0b]);
        self
    }

    /// Goes on at an address, whatever is there.
    pub fn jump(mut self, address: u32) -> Program {
        // mov eax, imm32; jmp rax
        self.code.push(0xb8);
        self.code.extend(address.to_le_bytes());
        self.code.extend([0xff, 0xe0]);
        self
    }

    /// The file that a guest boots from.
    pub fn into_kernel(self) -> Vec<u8> {
        bzimage::around(&self.code)
    }
}

/// A virtio-net driver that gets as far as DRIVER_OK with one queue where the story wants it (VIRTIO 1.2 sections 3.1.1
/// and 4.1.4.3). The common configuration is at the beginning of BAR 0, as in all of the node's virtio functions.
pub fn virtio_net_with_queue(slot: u32, queue: u32, rings: Rings) -> Program {
    const DRIVER_FEATURE_SELECT: u32 = 0x08;
    const DRIVER_FEATURE: u32 = 0x0c;
    const STATUS: u32 = 0x14;
    const QUEUE_SELECT: u32 = 0x16;
    const QUEUE_SIZE: u32 = 0x18;
    const QUEUE_ENABLE: u32 = 0x1c;
    const QUEUE_ADDRESSES: u32 = 0x20;
    const VERSION_1: u32 = 1;
    let mut program = Program::new()
        .take_bar(slot, 0)
        .bar_out(STATUS, Width::Byte, 0)
        .bar_out(STATUS, Width::Byte, 1)
        .bar_out(STATUS, Width::Byte, 3)
        .bar_out(DRIVER_FEATURE_SELECT, Width::Double, 1)
        .bar_out(DRIVER_FEATURE, Width::Double, VERSION_1)
        .bar_out(STATUS, Width::Byte, 11)
        .bar_out(QUEUE_SELECT, Width::Word, queue)
        .bar_out(QUEUE_SIZE, Width::Word, rings.size);
    for (place, address) in (0..).zip([rings.descriptors, rings.available, rings.used]) {
        let [low, high] = [address & 0xffff_ffff, address >> 32].map(|half| half as u32);
        program = program.bar_out(QUEUE_ADDRESSES + 8 * place, Width::Double, low).bar_out(
            QUEUE_ADDRESSES + 8 * place + 4,
            Width::Double,
            high,
        );
    }
    program.bar_out(QUEUE_ENABLE, Width::Word, 1).bar_out(STATUS, Width::Byte, 15)
}

/// Tells the device that a queue has something for it. The notify addresses have a BAR of their own, four bytes for each
/// queue.
pub fn notify(program: Program, slot: u32, queue: u32) -> Program {
    program.take_bar(slot, 1).bar_out(4 * queue, Width::Word, queue)
}

/// Where a queue's parts lie.
#[derive(Debug, Clone, Copy)]
pub struct Rings {
    pub size: u32,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encodings_are_the_manuals() {
        assert_eq!(Program::new().out(0x3f8, Width::Byte, 0x41).code, b"\x66\xba\xf8\x03\xb8\x41\0\0\0\xee");
        assert_eq!(
            Program::new().bar_out(0x14, Width::Word, 2).code,
            b"\x8d\x93\x14\0\0\0\xb8\x02\0\0\0\x66\xef"
        );
        assert_eq!(Program::new().store(0x1000, 7).code, b"\xc7\x04\x25\0\x10\0\0\x07\0\0\0");
    }
}
