//! The programs that a command needs.

use std::process::Command;

use anyhow::Result;

use crate::packages::{self, Manager};
use crate::run;

/// A program, and the package it comes from on each kind of system.
#[derive(Debug, Clone, Copy)]
pub struct Requirement {
    program: Program,
    debian: &'static str,
    fedora: &'static str,
    arch: &'static str,
    brew: &'static str,
}

#[derive(Debug, Clone, Copy)]
enum Program {
    OnPath(&'static str),
    /// A file that some package brings, not a program.
    File(&'static str),
    /// QEMU, at least of this major version.
    Qemu(u32),
}

/// 8 is the first with `igb`; proved with 10.0.
const LEAST_QEMU_MAJOR: u32 = 8;

pub const QEMU: Requirement = Requirement {
    program: Program::Qemu(LEAST_QEMU_MAJOR),
    debian: "qemu-system-x86",
    fedora: "qemu-system-x86-core",
    arch: "qemu-system-x86",
    brew: "qemu",
};
/// Ends a child with its parent, whatever ends the parent.
pub const SETPRIV: Requirement = same_everywhere(Program::OnPath("setpriv"), "util-linux");
pub const XZ: Requirement =
    Requirement { fedora: "xz", arch: "xz", ..same_everywhere(Program::OnPath("xz"), "xz-utils") };
pub const DPKG_DEB: Requirement = same_everywhere(Program::OnPath("dpkg-deb"), "dpkg");
pub const GRUB_MKRESCUE: Requirement = Requirement {
    fedora: "grub2-tools-extra",
    arch: "grub",
    ..same_everywhere(Program::OnPath("grub-mkrescue"), "grub-common")
};
pub const GRUB_BIOS: Requirement = Requirement {
    fedora: "grub2-pc-modules",
    arch: "grub",
    ..same_everywhere(Program::File("/usr/lib/grub/i386-pc/multiboot2.mod"), "grub-pc-bin")
};
pub const GRUB_UEFI: Requirement = Requirement {
    fedora: "grub2-efi-x64-modules",
    arch: "grub",
    ..same_everywhere(Program::File("/usr/lib/grub/x86_64-efi/multiboot2.mod"), "grub-efi-amd64-bin")
};
pub const XORRISO: Requirement =
    Requirement { arch: "libisoburn", ..same_everywhere(Program::OnPath("xorriso"), "xorriso") };
pub const MTOOLS: Requirement = same_everywhere(Program::OnPath("mformat"), "mtools");
pub const OVMF: Requirement = Requirement {
    fedora: "edk2-ovmf",
    arch: "edk2-ovmf",
    ..same_everywhere(Program::File("/usr/share/OVMF/OVMF_CODE.fd"), "ovmf")
};
pub const QEMU_IMG: Requirement = Requirement {
    fedora: "qemu-img",
    arch: "qemu-img",
    brew: "qemu",
    ..same_everywhere(Program::OnPath("qemu-img"), "qemu-utils")
};
pub const DOSFSTOOLS: Requirement = same_everywhere(Program::File("/usr/sbin/mkfs.fat"), "dosfstools");
/// Makes taps.
pub const IPROUTE2: Requirement = same_everywhere(Program::OnPath("ip"), "iproute2");
pub const E2FSPROGS: Requirement = same_everywhere(Program::File("/usr/sbin/mkfs.ext4"), "e2fsprogs");
/// nbdinfo and nbdcopy.
pub const LIBNBD: Requirement = Requirement {
    fedora: "libnbd",
    arch: "libnbd",
    brew: "libnbd",
    ..same_everywhere(Program::OnPath("nbdcopy"), "libnbd-bin")
};
pub const FIO: Requirement = same_everywhere(Program::OnPath("fio"), "fio");

const fn same_everywhere(program: Program, package: &'static str) -> Requirement {
    Requirement { program, debian: package, fedora: package, arch: package, brew: package }
}

impl Requirement {
    fn is_met(&self) -> bool {
        match self.program {
            Program::OnPath(program) => run::installed(program),
            Program::File(path) => {
                // Systems without a split of /usr have it in /sbin or /usr/bin.
                let name = path.rsplit('/').next().unwrap_or(path);
                std::path::Path::new(path).exists() || run::installed(name)
            }
            Program::Qemu(least) => qemu_version().is_some_and(|(major, _)| major >= least),
        }
    }

    fn package(&self, manager: Option<Manager>) -> &'static str {
        match manager {
            Some(Manager::Dnf | Manager::Zypper) => self.fedora,
            Some(Manager::Pacman) => self.arch,
            Some(Manager::Brew) => self.brew,
            Some(Manager::Apt) | None => self.debian,
        }
    }
}

/// Installs what is missing of `requirements`; without the right to, the error is the command that does.
pub fn ensure(requirements: &[Requirement]) -> Result<()> {
    let manager = Manager::find();
    let mut missing: Vec<String> = Vec::new();
    for requirement in requirements.iter().filter(|requirement| !requirement.is_met()) {
        let package = requirement.package(manager).to_owned();
        if !missing.contains(&package) {
            missing.push(package);
        }
    }
    if missing.is_empty() { Ok(()) } else { packages::install(&missing) }
}

/// Major and minor version of the installed QEMU.
pub fn qemu_version() -> Option<(u32, u32)> {
    let text = run::output(Command::new(crate::qemu::PROGRAM).arg("--version")).ok()?;
    parse_qemu_version(&text)
}

fn parse_qemu_version(text: &str) -> Option<(u32, u32)> {
    let version = text.lines().next()?.split_whitespace().nth(3)?;
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemus_version_is_understood() {
        let text = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright (c) 2003-2025\n";
        assert_eq!(parse_qemu_version(text), Some((10, 0)));
        assert_eq!(parse_qemu_version("QEMU emulator version 7.2.17\n"), Some((7, 2)));
        assert_eq!(parse_qemu_version("no such thing"), None);
    }
}
