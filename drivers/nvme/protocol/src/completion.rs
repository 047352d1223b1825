//! Completion queue entries, and what their status means.

use core::fmt;

/// One completion (NVMe sec 3.3.3.2, figure 90), taken apart but not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dword 0, whose meaning depends on the command.
    pub result: u32,
    pub submission_head: u16,
    pub submission_queue: u16,
    pub identifier: u16,
    pub phase: bool,
    pub status: Status,
}

impl Completion {
    #[must_use]
    pub const fn new(dwords: [u32; 4]) -> Self {
        Self {
            result: dwords[0],
            submission_head: dwords[2] as u16,
            submission_queue: (dwords[2] >> 16) as u16,
            identifier: dwords[3] as u16,
            phase: phase_of(dwords[3]),
            status: Status((dwords[3] >> 17) as u16),
        }
    }

    /// The I/O queue pairs granted, from the completion of [`crate::Command::request_queue_pairs`]
    /// (NVMe sec 5.27.1.5): the smaller of both kinds, each zero-based.
    #[must_use]
    pub fn granted_queue_pairs(&self) -> u32 {
        (self.result & 0xffff).min(self.result >> 16) + 1
    }
}

/// The phase tag in the last dword of an entry. It is read on its own, before the rest: only
/// when it has changed are the other dwords the controller's latest.
#[must_use]
pub const fn phase_of(last_dword: u32) -> bool {
    last_dword & 1 << 16 != 0
}

/// The status field (NVMe sec 3.3.3.2.1): status code 7:0, type 10:8, retry delay 12:11, more
/// 13, do not retry 14.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(u16);

impl Status {
    #[must_use]
    pub const fn new(raw: u16) -> Self {
        Self(raw)
    }

    #[must_use]
    pub const fn is_success(self) -> bool {
        self.code() == 0
    }

    /// Type in bits 10:8, code in bits 7:0: what identifies the error in the document's tables.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0 & 0x7ff
    }

    #[must_use]
    pub const fn do_not_retry(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// The document's name for the errors that a log reader most likely meets (NVMe figures 93,
    /// 94 and 96; NVM figures 6 and 7).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.code() {
            0x000 => "successful completion",
            0x001 => "invalid command opcode",
            0x002 => "invalid field in command",
            0x003 => "command identifier conflict",
            0x004 => "data transfer error",
            0x005 => "commands aborted due to power loss",
            0x006 => "internal error",
            0x007 => "command abort requested",
            0x008 => "command aborted due to submission queue deletion",
            0x00b => "invalid namespace or format",
            0x013 => "PRP offset invalid",
            0x020 => "namespace is write protected",
            0x080 => "LBA out of range",
            0x081 => "capacity exceeded",
            0x082 => "namespace not ready",
            0x101 => "invalid queue identifier",
            0x102 => "invalid queue size",
            0x182 => "attempted write to read only range",
            0x280 => "write fault",
            0x281 => "unrecovered read error",
            0x286 => "access denied",
            0x287 => "deallocated or unwritten logical block",
            _ => "error",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (status type {:#x} code {:#04x})", self.name(), self.code() >> 8, self.code() & 0xff)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_document_puts_them() {
        let completion = Completion::new([0x0003_0007, 0, 0x0002_0041, 0x4503_beef]);
        assert_eq!(completion.submission_head, 0x41);
        assert_eq!(completion.submission_queue, 2);
        assert_eq!(completion.identifier, 0xbeef);
        assert!(completion.phase);
        assert_eq!(completion.status.code(), 0x281);
        assert!(!completion.status.do_not_retry());
        assert_eq!(completion.granted_queue_pairs(), 4);
    }

    #[test]
    fn an_error_is_named_in_full() {
        let status = Status::new(0x4281);
        assert!(status.do_not_retry() && !status.is_success());
        assert_eq!(status.to_string(), "unrecovered read error (status type 0x2 code 0x81)");
        assert_eq!(Status::new(0x77f).to_string(), "error (status type 0x7 code 0x7f)");
    }

    #[test]
    fn retry_hints_do_not_make_an_error() {
        assert!(Status::new(0x7800).is_success());
    }
}
