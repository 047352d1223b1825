//! The demonstration guests' files: a Debian kernel and an initramfs with BusyBox.
//!
//! Both come from Debian's packages, which are fetched and unpacked but not installed. The initramfs holds BusyBox, the
//! kernel's virtio modules in the order in which they need each other, and an init that brings up the network as the
//! command line says (see `config::Config::guest_command_line`), serves a page and a file over HTTP, says that it is
//! ready, and gives a shell on the serial console.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cpio;
use crate::linux_modules;
use crate::packages::{Apt, Manager};
use crate::progress::Step;
use crate::requirements;
use crate::run;
use crate::workspace;

/// The names under which the files are in the boot archive.
pub const FILES: [&str; 2] = [KERNEL, INITRAMFS];
const KERNEL: &str = "guests/vmlinuz";
const INITRAMFS: &str = "guests/initramfs";

const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";
const BUSYBOX_PACKAGE: &str = "busybox-static";

/// What the guests' bus and network card need; the modules that these depend on come with them.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];

/// Modules for devices that not every guest has: PCI device number (0x1040 and the virtio type), module. Init loads them
/// where there is the device, so that the others boot no later for it.
const MODULES_BY_DEVICE: [(&str, &str); 3] =
    [("1042", "virtio_blk"), ("1043", "virtio_console"), ("1044", "virtio_rng")];

/// The built files.
#[derive(Debug, Clone)]
pub struct Files {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// The package the kernel came from, for the summary.
    pub kernel_package: String,
}

impl Files {
    /// The file behind a name of the boot archive.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        match name {
            KERNEL => Some(self.kernel.clone()),
            INITRAMFS => Some(self.initramfs.clone()),
            _ => None,
        }
    }
}

/// Fetches and builds them, or finds that they are there.
pub fn build() -> Result<Files> {
    let unpacked = unpack()?;
    let step = Step::begin("build the guests' initramfs");
    let folder = workspace::build_dir().join("guests");
    let initramfs = folder.join("initramfs");
    workspace::write_if_changed(&initramfs, &initramfs_bytes(&unpacked)?)?;
    let kernel = folder.join("vmlinuz");
    workspace::write_if_changed(&kernel, &workspace::read_bytes(&unpacked.kernel)?)?;
    step.done(&unpacked.kernel_package);
    Ok(Files { kernel, initramfs, kernel_package: unpacked.kernel_package })
}

/// The packages' content.
pub struct Unpacked {
    pub kernel_package: String,
    pub kernel: PathBuf,
    /// The folder with all modules of that kernel.
    pub modules: PathBuf,
    pub busybox: PathBuf,
}

/// Fetches and unpacks the packages, or finds that they are.
pub fn unpack() -> Result<Unpacked> {
    let cache = std::path::absolute(workspace::cache().join("packages")).context("finding the cache")?;
    let _lock = workspace::lock(&cache.join("lock"))?;
    if let Some(unpacked) = find_unpacked(&cache) {
        return Ok(unpacked);
    }
    if Manager::find() != Some(Manager::Apt) {
        bail!(
            "the guests' kernel and BusyBox come from Debian's packages, and this system has no apt. Put a Linux \
             kernel and an initramfs of your own beside a configuration file, name them in it, and use --config"
        );
    }
    requirements::ensure(&[requirements::DPKG_DEB, requirements::XZ])?;
    let apt = Apt::prepare()?;
    let step = Step::begin("fetch the guests' kernel and BusyBox");
    let kernel_package = apt.dependency(KERNEL_PACKAGE, "linux-image-")?;
    for package in [kernel_package.as_str(), BUSYBOX_PACKAGE] {
        let archive = apt.download(&step, package, &cache)?;
        // Unpacked under another name first: a folder that is there is whole.
        let half = cache.join(format!("{package}.partial"));
        let whole = cache.join(package);
        let _ = fs::remove_dir_all(&half);
        run::run(&step, Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&half))?;
        let _ = fs::remove_dir_all(&whole);
        fs::rename(&half, &whole).with_context(|| format!("moving {}", half.display()))?;
        workspace::remove(&archive);
    }
    step.done("");
    find_unpacked(&cache)
        .context("the packages are unpacked, but a kernel, its modules or BusyBox are not in them")
}

fn find_unpacked(cache: &Path) -> Option<Unpacked> {
    let busybox = ["usr/bin/busybox", "bin/busybox"]
        .iter()
        .map(|path| cache.join(BUSYBOX_PACKAGE).join(path))
        .find(|path| path.is_file())?;
    let mut kernels: Vec<Unpacked> = fs::read_dir(cache)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let kernel_package = entry.file_name().into_string().ok()?;
            let version =
                kernel_package.strip_prefix("linux-image-").filter(|name| !name.ends_with(".partial"))?;
            let kernel = entry.path().join(format!("boot/vmlinuz-{version}"));
            let modules = ["usr/lib/modules", "lib/modules"]
                .iter()
                .map(|path| entry.path().join(path).join(version))
                .find(|path| path.is_dir())?;
            kernel.is_file().then(|| Unpacked {
                kernel_package: kernel_package.clone(),
                kernel,
                modules,
                busybox: busybox.clone(),
            })
        })
        .collect();
    kernels.sort_by(|left, right| left.kernel_package.cmp(&right.kernel_package));
    kernels.pop()
}

fn initramfs_bytes(unpacked: &Unpacked) -> Result<Vec<u8>> {
    let mut archive = cpio::Archive::default();
    for directory in ["bin", "dev", "etc", "proc", "root", "sys", "tmp", "modules", "www"] {
        archive.directory(directory);
    }
    // Until devtmpfs is mounted, init's own input and output need a device.
    archive.character_device("dev/console", 5, 1);
    archive.file("bin/busybox", 0o755, &workspace::read_bytes(&unpacked.busybox)?);
    archive.symlink("bin/sh", "busybox");
    archive.file("init", 0o755, include_bytes!("guest/init.sh"));
    archive.file("etc/passwd", 0o644, b"root::0:0:root:/root:/bin/sh\n");
    let mut order = String::new();
    for (name, module) in linux_modules::in_order(&unpacked.modules, &MODULES)? {
        archive.file(&format!("modules/{name}.ko"), 0o644, &module);
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    for (device, module) in MODULES_BY_DEVICE {
        let mut more = String::new();
        for (name, module) in linux_modules::in_order(&unpacked.modules, &[module])? {
            if !order.lines().any(|loaded| loaded == name) {
                archive.file(&format!("modules/{name}.ko"), 0o644, &module);
                more.push_str(&name);
                more.push('\n');
            }
        }
        archive.file(&format!("modules/order.{device}"), 0o644, more.as_bytes());
    }
    let payload = payload();
    archive.file("www/payload.bin", 0o644, &payload);
    let sum = format!("{}  payload.bin\n", workspace::sha256_hex(&payload));
    archive.file("www/payload.sha256", 0o644, sum.as_bytes());
    Ok(archive.finish())
}

/// How long [`payload`] is. A little over 1 MiB and no round number, so that the last frame of a transfer is a short one.
pub const PAYLOAD_BYTES: usize = (1 << 20) + 12_345;

/// The file that guests serve each other: the same on every machine, and not to be compressed or guessed.
pub fn payload() -> Vec<u8> {
    // A xorshift generator (Marsaglia 2003) with a fixed seed.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..PAYLOAD_BYTES)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // The low byte.
            state.to_le_bytes()[0]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_the_same_everywhere() {
        let payload = payload();
        assert_eq!(payload.len(), PAYLOAD_BYTES);
        let different: std::collections::HashSet<u8> = payload[..4096].iter().copied().collect();
        assert!(different.len() > 200);
        assert_eq!(payload[..4], self::payload()[..4]);
    }

    #[test]
    fn init_says_what_the_node_listens_for() {
        let init = include_str!("guest/init.sh");
        let said = format!("{}$name{}", announce::GUEST_INIT_PREFIX, announce::GUEST_INIT_SUFFIX);
        assert!(init.contains(&said), "init.sh does not print {said:?}");
    }
}
