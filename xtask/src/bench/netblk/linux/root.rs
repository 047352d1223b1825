//! What the Linux machine boots: a kernel and an initramfs that holds its whole user space.
//!
//! Everything comes from Debian's packages, fetched with all that they depend on and unpacked into one folder, not
//! installed: no debootstrap, no root, no change to this system. Into the initramfs go the programs that are measured
//! and the libraries that they name (ELF's DT_NEEDED, to the end), which is some tens of megabytes instead of a root
//! file system of gigabytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::bench::netblk::generator::Generator;
use crate::cpio;
use crate::guest;
use crate::linux_modules;
use crate::packages::{Apt, Manager};
use crate::progress::Step;
use crate::qemu::Nic;
use crate::requirements;
use crate::run;
use crate::workspace;

const PACKAGES: [&str; 3] = ["nbd-server", "qemu-utils", "fio"];
const PROGRAMS: [&str; 3] = ["nbd-server", "qemu-nbd", "fio"];

/// The kernel for guests has no driver for real network cards; this one has.
const GENERIC_KERNEL: &str = "linux-image-amd64";

const MODULES: [&str; 8] =
    ["virtio_pci", "virtio_net", "igb", "nvme", "crc32c_generic", "crc32c_intel", "nvmet", "nvmet_tcp"];

/// Where the dynamic linker is looked for, by the x86-64 ABI.
const LINKER: &str = "lib64/ld-linux-x86-64.so.2";
/// Where the libraries of all packages come to lie.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";

/// The files, and where they are from.
#[derive(Debug, Clone)]
pub struct Root {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    /// Packages and their versions, for the report.
    pub versions: Vec<String>,
    /// The folder with the unpacked packages.
    pub unpacked: PathBuf,
}

/// Fetches and builds, or finds that it is there.
pub fn build(nic: Nic, generator: &Generator) -> Result<Root> {
    let cache = std::path::absolute(workspace::cache().join("peer")).context("finding the cache")?;
    let _lock = workspace::lock(&cache.join("lock"))?;
    let unpacked = cache.join("root");
    let versions_file = cache.join("versions");
    if !versions_file.is_file() {
        fetch(&cache, &unpacked, &versions_file)?;
    }
    let base = guest::unpack()?;
    let kernel = match nic {
        Nic::Virtio => Kernel { package: base.kernel_package, image: base.kernel, modules: base.modules },
        Nic::Igb => generic_kernel(&cache)?,
    };
    let step = Step::begin("build the Linux machine's initramfs");
    let folder = workspace::build_dir().join("peer").join(&kernel.package);
    let initramfs = folder.join("initramfs");
    let bytes = initramfs_bytes(&unpacked, &base.busybox, &kernel.modules, generator)?;
    workspace::write_if_changed(&initramfs, &bytes)?;
    step.done(format!("{} MiB, {}", bytes.len() >> 20, kernel.package));
    let mut versions: Vec<String> =
        workspace::read_text(&versions_file)?.lines().map(str::to_owned).collect();
    versions.insert(0, kernel.package);
    Ok(Root { kernel: kernel.image, initramfs, versions, unpacked })
}

struct Kernel {
    package: String,
    image: PathBuf,
    modules: PathBuf,
}

fn fetch(cache: &Path, unpacked: &Path, versions_file: &Path) -> Result<()> {
    if Manager::find() != Some(Manager::Apt) {
        bail!("the Linux machine is made of Debian's packages, and this system has no apt");
    }
    requirements::ensure(&[requirements::DPKG_DEB, requirements::XZ])?;
    let apt = Apt::prepare()?;
    let step = Step::begin("fetch what the Linux machine is made of");
    let folder = cache.join("archives");
    let archives = apt.download_with_dependencies(&step, &PACKAGES, &folder)?;
    let _ = fs::remove_dir_all(unpacked);
    let mut versions = Vec::new();
    for archive in &archives {
        run::run(&step, Command::new("dpkg-deb").arg("-x").arg(archive).arg(unpacked))?;
        let fields = ["${Package} ${Version}", "--show", "--showformat"];
        let [format, show, option] = fields;
        let shown =
            run::output(Command::new("dpkg-deb").arg(format!("{option}={format}")).arg(show).arg(archive))?;
        if PACKAGES.iter().any(|package| shown.starts_with(&format!("{package} "))) {
            versions.push(shown.trim().to_owned());
        }
    }
    let _ = fs::remove_dir_all(&folder);
    // Written last: when it is there, the rest is whole.
    workspace::write_if_changed(versions_file, format!("{}\n", versions.join("\n")).as_bytes())?;
    step.done(format!("{} packages", archives.len()));
    Ok(())
}

fn generic_kernel(cache: &Path) -> Result<Kernel> {
    let find = |package: &str| -> Option<Kernel> {
        let version = package.strip_prefix("linux-image-")?;
        let folder = cache.join(package);
        let modules = ["usr/lib/modules", "lib/modules"]
            .iter()
            .map(|path| folder.join(path).join(version))
            .find(|path| path.is_dir())?;
        let image = folder.join(format!("boot/vmlinuz-{version}"));
        image.is_file().then(|| Kernel { package: package.to_owned(), image, modules })
    };
    let mut names: Vec<String> = fs::read_dir(cache)
        .with_context(|| format!("reading {}", cache.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.ends_with(".partial"))
        .collect();
    names.sort();
    if let Some(kernel) = names.iter().rev().find_map(|name| find(name)) {
        return Ok(kernel);
    }
    let apt = Apt::prepare()?;
    let step = Step::begin("fetch a Linux kernel with drivers of real cards");
    let package = apt.dependency(GENERIC_KERNEL, "linux-image-")?;
    let archive = apt.download(&step, &package, cache)?;
    let half = cache.join(format!("{package}.partial"));
    let _ = fs::remove_dir_all(&half);
    run::run(&step, Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&half))?;
    let whole = cache.join(&package);
    fs::rename(&half, &whole).with_context(|| format!("moving {}", half.display()))?;
    workspace::remove(&archive);
    step.done(&package);
    find(&package).with_context(|| format!("{package} is unpacked, but its kernel is not where it should be"))
}

fn initramfs_bytes(
    unpacked: &Path,
    busybox: &Path,
    modules: &Path,
    generator: &Generator,
) -> Result<Vec<u8>> {
    let mut archive = cpio::Archive::default();
    let directories = [
        "bin", "dev", "etc", "lib", LIBRARIES, "lib64", "modules", "proc", "root", "run", "sys", "tmp", "var",
    ];
    for directory in directories {
        archive.directory(directory);
    }
    archive.symlink("var/run", "../run");
    // Until devtmpfs is mounted, init's own input and output need a device.
    archive.character_device("dev/console", 5, 1);
    archive.file("init", 0o755, include_bytes!("init.sh"));
    archive.file("etc/passwd", 0o644, b"root::0:0:root:/root:/bin/sh\n");
    archive.file("bin/busybox", 0o755, &workspace::read_bytes(busybox)?);
    archive.symlink("bin/sh", "busybox");
    archive.file("bin/load", 0o755, &workspace::read_bytes(&generator.program)?);
    let libraries = Libraries::find(unpacked)?;
    let mut wanted = BTreeMap::new();
    for program in PROGRAMS {
        let bytes = workspace::read_bytes(&program_path(unpacked, program)?)?;
        libraries.collect(&bytes, &mut wanted)?;
        archive.file(&format!("bin/{program}"), 0o755, &bytes);
    }
    for (name, bytes) in &wanted {
        archive.file(&format!("{LIBRARIES}/{name}"), 0o755, bytes);
    }
    archive.file(LINKER, 0o755, &workspace::read_bytes(&linker_path(unpacked)?)?);
    let mut order = String::new();
    for (name, module) in linux_modules::in_order(modules, &MODULES)? {
        archive.file(&format!("modules/{name}.ko"), 0o644, &module);
        order.push_str(&name);
        order.push('\n');
    }
    archive.file("modules/order", 0o644, order.as_bytes());
    Ok(archive.finish())
}

/// A program of the unpacked packages.
pub fn program_path(unpacked: &Path, program: &str) -> Result<PathBuf> {
    ["usr/bin", "usr/sbin", "bin", "sbin"]
        .iter()
        .map(|folder| unpacked.join(folder).join(program))
        .find(|path| path.is_file())
        .with_context(|| format!("no {program} in the packages"))
}

/// The dynamic linker. In the package it is a link to an absolute path, which here would be this system's.
pub fn linker_path(unpacked: &Path) -> Result<PathBuf> {
    let name = LINKER.rsplit('/').next().unwrap_or(LINKER);
    library_folders(unpacked)
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|path| fs::symlink_metadata(path).is_ok_and(|data| data.is_file()))
        .context("no dynamic linker in the packages")
}

/// The folders with libraries.
pub fn library_folders(unpacked: &Path) -> Vec<PathBuf> {
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"]
        .iter()
        .map(|folder| unpacked.join(folder))
        .collect()
}

/// The unpacked libraries by the names under which programs ask for them.
struct Libraries(BTreeMap<String, PathBuf>);

impl Libraries {
    fn find(unpacked: &Path) -> Result<Self> {
        let mut libraries = BTreeMap::new();
        for folder in library_folders(unpacked) {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries {
                let entry = entry.with_context(|| format!("reading {}", folder.display()))?;
                if let Ok(name) = entry.file_name().into_string()
                    && name.contains(".so")
                    && entry.path().is_file()
                {
                    libraries.entry(name).or_insert(entry.path());
                }
            }
        }
        Ok(Self(libraries))
    }

    /// Adds the libraries that a program or a library needs, and those that these need.
    fn collect(&self, elf: &[u8], wanted: &mut BTreeMap<String, Vec<u8>>) -> Result<()> {
        for name in needed(elf)? {
            if wanted.contains_key(&name) {
                continue;
            }
            let path = self.0.get(&name).with_context(|| format!("{name} is in none of the packages"))?;
            let bytes = workspace::read_bytes(path)?;
            wanted.insert(name, bytes.clone());
            self.collect(&bytes, wanted)?;
        }
        Ok(())
    }
}

/// The names in DT_NEEDED.
fn needed(elf: &[u8]) -> Result<Vec<String>> {
    use object::elf;
    use object::read::elf::FileHeader as _;
    let header = elf::FileHeader64::<object::Endianness>::parse(elf).context("reading a program")?;
    let endian = header.endian().context("reading a program")?;
    let sections = header.sections(endian, elf).context("reading a program's sections")?;
    let table = sections.dynamic_table(endian, elf).context("reading what a program needs")?;
    let mut names = Vec::new();
    for entry in table.iter().filter(|entry| entry.tag == elf::DT_NEEDED) {
        let name = table.string(entry).context("reading what a program needs")?;
        names.push(String::from_utf8_lossy(name).into_owned());
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_which_libraries_it_needs() {
        let own = fs::read("/proc/self/exe").unwrap();
        let names = needed(&own).unwrap();
        assert!(names.iter().any(|name| name.starts_with("libc.so")), "{names:?}");
        assert!(needed(b"no program").is_err());
    }
}
