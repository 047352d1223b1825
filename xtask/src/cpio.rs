//! An initramfs: a cpio archive of the "new ASCII" format, as Linux reads it (Documentation/driver-api/early-userspace/
//! buffer-format.rst of the kernel's sources).

/// File types of the mode field (inode(7)).
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive that is being written.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[]);
    }

    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) {
        self.entry(name, REGULAR | permissions, (0, 0), content);
    }

    pub fn symlink(&mut self, name: &str, target: &str) {
        self.entry(name, SYMLINK | 0o777, (0, 0), target.as_bytes());
    }

    pub fn character_device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(name, CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// The archive's bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        self.entries += 1;
        // A length that does not fit the format's 32 bits would be a guest of 4 GiB in memory; it is not reachable
        // from the files that are packed here.
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let fields = [
            self.entries, // inode number
            mode,
            0, // user
            0, // group
            1, // links
            0, // time of change: always the same, so that the same input gives the same bytes
            length(content.len()),
            0, // device, major and minor
            0,
            major,
            minor,
            length(name.len() + 1), // with the NUL behind it
            0,                      // checksum: not used in this format
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    /// Header with name, and content, each end at a multiple of four.
    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_format_is_exact() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, b"hello");
        let bytes = archive.finish();
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[6 + 8..6 + 16], b"000081a4");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..120], b"hello\0\0\0");
        assert_eq!(&bytes[120..126], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }

    /// If the host has a reader of its own, it has to agree.
    #[test]
    fn cpio_reads_it() {
        if !crate::run::installed("cpio") {
            return;
        }
        let mut archive = Archive::default();
        archive.directory("bin");
        archive.file("bin/x", 0o755, &[7; 1000]);
        archive.symlink("bin/y", "x");
        let mut child = Command::new("cpio")
            .args(["--list", "--verbose", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), &archive.finish()).unwrap();
        let listed = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        let lines: Vec<&str> = listed.lines().collect();
        assert!(lines[0].starts_with("drwxr-xr-x") && lines[0].ends_with(" bin"), "{listed}");
        assert!(lines[1].starts_with("-rwxr-xr-x") && lines[1].contains(" 1000 "), "{listed}");
        assert!(lines[2].ends_with("bin/y -> x"), "{listed}");
    }
}
