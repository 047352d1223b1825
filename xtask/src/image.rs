//! `cargo xtask image`: one file that boots by BIOS and by UEFI, burnt on a CD or written to a disk.
//!
//! GRUB loads the kernel by Multiboot2 and hands it the boot archive as its module. `grub-mkrescue` makes the image
//! hybrid: the same bytes are an ISO 9660 file system and a disk with partitions for both kinds of firmware.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::archive::{self, Source};
use crate::guest;
use crate::kernel;
use crate::progress::Step;
use crate::requirements;
use crate::run;
use crate::workspace;

/// Both consoles: a server's serial line, and its screen.
const GRUB_CONFIGURATION: &str = "\
set timeout=0
insmod all_video
menuentry nos {
    multiboot2 /boot/nos
    module2 /boot/boot.tar boot.tar
    boot
}
";

pub fn run(config: &Path) -> Result<()> {
    let source = Source::read(config)?;
    let kernel = kernel::build()?;
    let files = if source.needs_demonstration_files() { Some(guest::build()?) } else { None };
    let folder = workspace::target().join("image");
    let archive = folder.join("boot.tar");
    archive::write(&archive, &kernel, &source, files.as_ref())?;
    let image = folder.join("nos.iso");
    build(&kernel.elf, &archive, &image)?;
    println!("{}: boots from a CD, or written to a disk, by BIOS and by UEFI", image.display());
    Ok(())
}

/// Makes the image of a kernel and a boot archive.
pub fn build(elf: &Path, archive: &Path, image: &Path) -> Result<()> {
    requirements::ensure(&[
        requirements::GRUB_MKRESCUE,
        requirements::GRUB_BIOS,
        requirements::GRUB_UEFI,
        requirements::XORRISO,
        requirements::MTOOLS,
    ])?;
    let step = Step::begin("build the boot image");
    let tree = image.with_extension("tree");
    let _ = fs::remove_dir_all(&tree);
    let grub = tree.join("boot/grub");
    fs::create_dir_all(&grub).with_context(|| format!("creating {}", grub.display()))?;
    let copy = |from: &Path, to: PathBuf| {
        fs::copy(from, &to).with_context(|| format!("copying {} to {}", from.display(), to.display()))
    };
    copy(elf, tree.join("boot/nos"))?;
    copy(archive, tree.join("boot/boot.tar"))?;
    let configuration = grub.join("grub.cfg");
    fs::write(&configuration, GRUB_CONFIGURATION)
        .with_context(|| format!("writing {}", configuration.display()))?;
    run::run(&step, Command::new("grub-mkrescue").arg("-o").arg(image).arg(&tree))?;
    fs::remove_dir_all(&tree).with_context(|| format!("removing {}", tree.display()))?;
    step.done("");
    Ok(())
}
