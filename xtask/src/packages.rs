//! Packages of the system's package manager.
//!
//! On Debian and its relatives, apt is used with lists of its own under `target/`: the mirror comes from the system's
//! configuration, the suites are the system's own plus, on Debian, its backports (Debian 12's own QEMU is too old).
//! So nothing of the system's configuration changes, and fetching a package needs neither root nor a fresh
//! `apt-get update` of the system. Elsewhere the package manager is used as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::progress::Step;
use crate::run;
use crate::workspace;

/// The package manager of this system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manager {
    Apt,
    Dnf,
    Pacman,
    Zypper,
    Brew,
}

impl Manager {
    /// The one that is installed.
    pub fn find() -> Option<Manager> {
        [
            ("apt-get", Manager::Apt),
            ("dnf", Manager::Dnf),
            ("pacman", Manager::Pacman),
            ("zypper", Manager::Zypper),
            ("brew", Manager::Brew),
        ]
        .into_iter()
        .find(|(program, _)| run::installed(program))
        .map(|(_, manager)| manager)
    }

    /// The command that installs packages; apt's is [`Apt::install_command`].
    fn install_words(self) -> &'static [&'static str] {
        match self {
            Manager::Apt => &["apt-get", "install", "--yes"],
            Manager::Dnf => &["dnf", "install", "--assumeyes"],
            Manager::Pacman => &["pacman", "-S", "--noconfirm", "--needed"],
            Manager::Zypper => &["zypper", "--non-interactive", "install"],
            Manager::Brew => &["brew", "install"],
        }
    }

    /// Homebrew refuses to run as root; the others need it.
    fn needs_root(self) -> bool {
        self != Manager::Brew
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Installs packages, or says how to.
pub fn install(packages: &[String]) -> Result<()> {
    let Some(manager) = Manager::find() else {
        bail!("no package manager that this program knows; install by hand: {}", packages.join(" "));
    };
    let mut command = if manager == Manager::Apt {
        Apt::prepare()?.install_command(packages)
    } else {
        let words = manager.install_words();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(packages);
        command
    };
    if manager.needs_root() && !is_root() {
        bail!(
            "this machine lacks {}. Not being root, this program does not install them. Run\n\n    sudo {}\n\nand then \
             the same command again",
            packages.join(", "),
            run::show(&command)
        );
    }
    let step = Step::begin(format!("install {}", packages.join(" ")));
    // A question of debconf would wait for an answer that nobody sees.
    command.env("DEBIAN_FRONTEND", "noninteractive");
    run::run(&step, &mut command)?;
    step.done("");
    Ok(())
}

/// apt with our own lists.
pub struct Apt {
    folder: PathBuf,
    codename: String,
    has_backports: bool,
}

impl Apt {
    /// Writes the sources list and fetches the lists, if they are older than a day.
    pub fn prepare() -> Result<Apt> {
        let folder = std::path::absolute(workspace::build_dir().join("apt")).context("finding target/")?;
        let _lock = workspace::lock(&folder.join("lock"))?;
        let release = workspace::read_text(Path::new("/etc/os-release"))?;
        let field = |name: &str| os_release_field(&release, name);
        let codename = field("VERSION_CODENAME").context("/etc/os-release names no VERSION_CODENAME")?;
        let is_debian = field("ID").as_deref() == Some("debian");
        let apt = Apt { folder, has_backports: is_debian, codename };
        for sub in ["lists/partial", "archives/partial"] {
            let path = apt.folder.join(sub);
            fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        }
        let uris = run::output(Command::new("apt-get").args(["update", "--print-uris"]))
            .context("asking apt for the system's mirror")?;
        let sources = sources_list(&uris, &apt.codename, is_debian)?;
        let list = apt.folder.join("sources.list");
        let stamp = apt.folder.join("fetched");
        let fresh = fs::read_to_string(&list).is_ok_and(|old| old == sources)
            && fs::metadata(&stamp).and_then(|stamp| stamp.modified()).is_ok_and(|fetched| {
                fetched.elapsed().is_ok_and(|age| age < std::time::Duration::from_secs(24 * 60 * 60))
            });
        if !fresh {
            let step = Step::begin("fetch the lists of packages");
            workspace::write_if_changed(&list, sources.as_bytes())?;
            run::run(&step, apt.command("apt-get").arg("update"))?;
            fs::write(&stamp, "").with_context(|| format!("writing {}", stamp.display()))?;
            step.done("");
        }
        Ok(apt)
    }

    /// A program of apt's, told to use our lists.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let option = |name: &str, value: &Path| format!("{name}={}", value.display());
        command
            .args(["-o", &option("Dir::Etc::SourceList", &self.folder.join("sources.list"))])
            .args(["-o", "Dir::Etc::SourceParts=/dev/null"])
            .args(["-o", &option("Dir::State::Lists", &self.folder.join("lists"))])
            // The caches of the package index and of archives: the system's belong to root and to other lists.
            .args(["-o", &option("Dir::Cache", &self.folder)])
            .args(["-o", "APT::Sandbox::User="])
            // A system that is set up for containers throws its lists and caches away after each command.
            .args(["-o", "APT::Update::Post-Invoke="])
            .args(["-o", "Acquire::Languages=none"]);
        command
    }

    /// QEMU, and what it depends on, comes from the backports where there are any.
    fn install_command(&self, packages: &[String]) -> Command {
        let mut command = self.command("apt-get");
        command.args(["install", "--yes", "--no-install-recommends"]);
        if self.has_backports && packages.iter().any(|package| package.starts_with("qemu-")) {
            command.args(["-t", &format!("{}-backports", self.codename)]);
        }
        command.args(packages);
        command
    }

    /// The package of this name that `depends` on: metapackages name the real one.
    pub fn dependency(&self, package: &str, prefix: &str) -> Result<String> {
        let depends = run::output(self.command("apt-cache").args(["depends", package]))?;
        depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .find(|name| name.starts_with(prefix))
            .map(str::to_owned)
            .with_context(|| format!("{package} depends on no {prefix}*"))
    }

    /// Fetches a package's archive into `folder`, without installing anything, and returns its path.
    pub fn download(&self, step: &Step, package: &str, folder: &Path) -> Result<PathBuf> {
        let scratch = folder.join(format!("partial-{package}"));
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).with_context(|| format!("creating {}", scratch.display()))?;
        run::run(step, self.command("apt-get").args(["download", package]).current_dir(&scratch))?;
        let archive = fs::read_dir(&scratch)
            .with_context(|| format!("reading {}", scratch.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .with_context(|| format!("apt-get download {package} left no package"))?;
        let kept = folder.join(archive.file_name().unwrap_or_default());
        fs::rename(&archive, &kept).with_context(|| format!("moving {}", archive.display()))?;
        let _ = fs::remove_dir_all(&scratch);
        Ok(kept)
    }
}

impl Apt {
    /// Fetches packages and everything that they depend on into `folder`, as if nothing were installed, and returns
    /// the archives' paths. QEMU's come from the backports where there are any, as those that are installed do.
    pub fn download_with_dependencies(
        &self,
        step: &Step,
        packages: &[&str],
        folder: &Path,
    ) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(folder.join("partial"))
            .with_context(|| format!("creating {}", folder.display()))?;
        let nothing_installed = folder.join("status");
        workspace::write_if_changed(&nothing_installed, b"")?;
        let mut command = self.command("apt-get");
        command
            .args(["-o", &format!("Dir::State::status={}", nothing_installed.display())])
            .args(["-o", &format!("Dir::Cache::archives={}", folder.display())])
            .args(["install", "--download-only", "--yes", "--no-install-recommends"]);
        for package in packages {
            if self.has_backports && package.starts_with("qemu-") {
                command.arg(format!("{package}/{}-backports", self.codename));
            } else {
                command.arg(package);
            }
        }
        run::run(step, &mut command)?;
        let mut archives: Vec<PathBuf> = fs::read_dir(folder)
            .with_context(|| format!("reading {}", folder.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .collect();
        archives.sort();
        Ok(archives)
    }
}

fn os_release_field(release: &str, name: &str) -> Option<String> {
    release.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix('=')?;
        Some(value.trim_matches('"').to_owned())
    })
}

/// The sources list: every suite of this release that the system's own configuration names a mirror for, and the
/// backports beside the release itself.
fn sources_list(print_uris: &str, codename: &str, is_debian: bool) -> Result<String> {
    let components = if is_debian { "main" } else { "main universe" };
    let keyring = ["debian", "ubuntu"]
        .iter()
        .map(|system| format!("/usr/share/keyrings/{system}-archive-keyring.gpg"))
        .find(|path| path.contains("debian") == is_debian && Path::new(path).is_file());
    let options = keyring.map_or(String::new(), |path| format!("[signed-by={path}] "));
    let mut list = String::new();
    // Lines look like: 'http://mirror/debian/dists/bookworm/InRelease' file-name 0
    for uri in print_uris.lines().filter_map(|line| line.strip_prefix('\'')?.split('\'').next()) {
        let Some((base, suite)) = uri.strip_suffix("/InRelease").and_then(|uri| uri.rsplit_once("/dists/"))
        else {
            continue;
        };
        let of_this_release = suite == codename
            || ["updates", "security"].iter().any(|part| suite == format!("{codename}-{part}"));
        if of_this_release {
            list.push_str(&format!("deb {options}{base} {suite} {components}\n"));
        }
        if suite == codename && is_debian {
            list.push_str(&format!("deb {options}{base} {suite}-backports {components}\n"));
        }
    }
    if list.is_empty() {
        bail!("apt's own configuration names no mirror for {codename}");
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const URIS: &str = "'http://mirror.example/debian/dists/bookworm/InRelease' a 0 \n\
        'http://mirror.example/debian/dists/bookworm-updates/InRelease' b 0 \n\
        'http://mirror.example/debian-security/dists/bookworm-security/InRelease' c 0 \n\
        'http://other.example/dists/nodistro/InRelease' d 0 \n\
        'http://mirror.example/debian/dists/bookworm/main/binary-amd64/Packages.xz' e 0 \n";

    #[test]
    fn the_mirror_is_the_systems_and_the_backports_are_added() {
        let list = sources_list(URIS, "bookworm", true).unwrap();
        let suites: Vec<&str> = list.lines().filter_map(|line| line.split(' ').rev().nth(1)).collect();
        assert_eq!(suites, ["bookworm", "bookworm-backports", "bookworm-updates", "bookworm-security"]);
        assert!(list.lines().all(|line| line.contains("http://mirror.example/debian")));
        assert!(sources_list(URIS, "trixie", true).is_err());
    }

    #[test]
    fn other_systems_get_their_own_suites_only() {
        let uris = "'http://mirror.example/ubuntu/dists/noble/InRelease' a 0 \n";
        let list = sources_list(uris, "noble", false).unwrap();
        assert!(list.ends_with("http://mirror.example/ubuntu noble main universe\n"), "{list}");
        assert_eq!(list.lines().count(), 1);
    }

    #[test]
    fn os_release_is_read_with_and_without_quotes() {
        let release =
            "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nVERSION_CODENAME=bookworm\n";
        assert_eq!(os_release_field(release, "ID").as_deref(), Some("debian"));
        assert_eq!(os_release_field(release, "VERSION").as_deref(), None);
        assert_eq!(
            os_release_field(release, "PRETTY_NAME").as_deref(),
            Some("Debian GNU/Linux 12 (bookworm)")
        );
    }
}
