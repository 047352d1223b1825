//! Memory as an emulated instruction sees it: linear addresses, through the guest's page tables,
//! ending in RAM or in a device.

use virtio_device::GuestPhysAddr;

use super::{Context, Failure};
use crate::backend::{CodeBits, Injection, SegmentName};
use crate::chipset::BoardLock;
use crate::walk::{WalkAccess, WalkFault, translate};

const PAGE_BYTES: u64 = 4096;

impl<B: BoardLock> Context<'_, B> {
    /// The linear address of an offset in a segment. In 64-bit code only FS and GS have a base,
    /// elsewhere addresses wrap at 4 GiB. Segment limits are not checked: whoever executes
    /// string I/O or touches a device in a limited segment is a kernel.
    pub(crate) fn linear(&self, segment: SegmentName, offset: u64) -> u64 {
        let base = self.vcpu.segment(segment).base;
        match (self.vcpu.code_bits(), segment) {
            (CodeBits::SixtyFour, SegmentName::Fs | SegmentName::Gs) => base.wrapping_add(offset),
            (CodeBits::SixtyFour, _) => offset,
            _ => base.wrapping_add(offset) & 0xffff_ffff,
        }
    }

    fn next_linear(&self, linear: u64, bytes: u64) -> u64 {
        let next = linear.wrapping_add(bytes);
        if self.vcpu.code_bits() == CodeBits::SixtyFour { next } else { next & 0xffff_ffff }
    }

    fn translate(&mut self, linear: u64, access: WalkAccess) -> Result<GuestPhysAddr, Failure> {
        match translate(self.ram, &self.vcpu.paging(), linear, access) {
            Ok(gpa) => Ok(gpa),
            Err(WalkFault::PageFault { error }) => {
                self.vcpu.set_cr2(linear);
                Err(Failure::Fault(Injection::page_fault(error)))
            }
            // The next fetch through such tables ends the guest; here it is enough to refuse.
            Err(WalkFault::TableOutsideRam { .. }) => Err(Failure::Fault(Injection::general_protection())),
        }
    }

    /// The parts of an access of up to 8 bytes: one, or two where it crosses a page.
    fn parts(&mut self, linear: u64, bytes: usize, access: WalkAccess) -> Result<[(u64, usize); 2], Failure> {
        let in_page = (PAGE_BYTES - (linear & (PAGE_BYTES - 1))) as usize;
        let first_bytes = bytes.min(in_page);
        let first = self.translate(linear, access)?.as_u64();
        let mut parts = [(first, first_bytes), (0, 0)];
        if first_bytes < bytes {
            let next = self.next_linear(linear, first_bytes as u64);
            parts[1] = (self.translate(next, access)?.as_u64(), bytes - first_bytes);
        }
        Ok(parts)
    }

    /// Whether a write of so many bytes would fault, without writing.
    pub(crate) fn check_writable(&mut self, linear: u64, bytes: usize) -> Result<(), Failure> {
        self.parts(linear, bytes.min(8), WalkAccess::Write).map(|_| ())
    }

    /// Reads 1, 2, 4 or 8 bytes.
    pub(crate) fn read_linear(&mut self, linear: u64, bytes: usize) -> Result<u64, Failure> {
        let bytes = bytes.min(8);
        let mut value = [0; 8];
        let mut done = 0;
        for (gpa, part) in self.parts(linear, bytes, WalkAccess::Read)? {
            let into = &mut value[done..done + part];
            if self.ram.read(GuestPhysAddr::new(gpa), into).is_err() {
                let device = self.read_device(gpa, part).to_le_bytes();
                value[done..done + part].copy_from_slice(&device[..part]);
            }
            done += part;
        }
        Ok(u64::from_le_bytes(value))
    }

    /// Writes the low 1, 2, 4 or 8 bytes of `value`. A fault comes before any byte is written.
    pub(crate) fn write_linear(&mut self, linear: u64, bytes: usize, value: u64) -> Result<(), Failure> {
        let bytes = bytes.min(8);
        let value = value.to_le_bytes();
        let mut done = 0;
        for (gpa, part) in self.parts(linear, bytes, WalkAccess::Write)? {
            if part == 0 {
                continue;
            }
            let from = &value[done..done + part];
            if self.ram.write(GuestPhysAddr::new(gpa), from).is_err() {
                let mut word = [0; 8];
                word[..part].copy_from_slice(from);
                self.write_device(gpa, part, u64::from_le_bytes(word));
            }
            done += part;
        }
        Ok(())
    }
}
