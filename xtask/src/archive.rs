//! The boot archive: everything the node has when it starts, in one tar.
//!
//! It holds `nos.toml`, `symbols`, the modules, and every file that `nos.toml` names. The loader hands it to the kernel as its
//! module. Owners and times are left out, so that the same content gives the same archive.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use config::Config;

use crate::guest;
use crate::kernel::Kernel;
use crate::workspace;

/// A configuration, and where the files that it names are looked for.
#[derive(Debug, Clone)]
pub struct Source {
    pub text: Vec<u8>,
    pub config: Config,
    pub problems: Vec<config::Problem>,
    folder: PathBuf,
}

impl Source {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Source> {
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        Ok(Self::from_text(workspace::read_bytes(path)?, folder))
    }

    /// Takes a configuration's text as it is, mistakes included: the node has to come up with it.
    pub fn from_text(text: Vec<u8>, folder: PathBuf) -> Source {
        let (config, problems) = config::parse(&text);
        Source { text, config, problems, folder }
    }

    /// The names of the files that the guests boot from.
    pub fn guest_files(&self) -> BTreeSet<&str> {
        let kernels = self.config.guests.iter().map(|guest| guest.kernel.as_str());
        let initrds = self.config.guests.iter().filter_map(|guest| guest.initrd.as_deref());
        kernels.chain(initrds).collect()
    }

    /// Whether a file is one of those that this program makes.
    pub fn needs_demonstration_files(&self) -> bool {
        self.guest_files().iter().any(|name| guest::FILES.contains(name))
    }
}

/// What is in an archive that was written, and what was to be and is not.
#[derive(Debug, Default)]
pub struct Report {
    pub bytes: usize,
    /// Names that the configuration has and no file answers to. The node refuses the guests that need them.
    pub missing: Vec<String>,
}

/// Writes the boot archive to `path`.
pub fn write(
    path: &Path,
    kernel: &Kernel,
    source: &Source,
    demonstration: Option<&guest::Files>,
) -> Result<Report> {
    let mut report = Report::default();
    let mut builder = tar::Builder::new(Vec::new());
    append(&mut builder, "nos.toml", &source.text)?;
    append(&mut builder, "symbols", &workspace::read_bytes(&kernel.symbols)?)?;
    for (name, file) in &kernel.modules {
        append(&mut builder, &format!("modules/{name}.ko"), &workspace::read_bytes(file)?)?;
    }
    for name in source.guest_files() {
        // A file beside the configuration comes before the one that this program makes under the same name.
        let beside = source.folder.join(name);
        let file =
            if beside.is_file() { Some(beside) } else { demonstration.and_then(|files| files.path(name)) };
        match file {
            Some(file) => append(&mut builder, name, &workspace::read_bytes(&file)?)?,
            None => report.missing.push(name.to_owned()),
        }
    }
    let bytes = builder.into_inner().context("finishing the boot archive")?;
    report.bytes = bytes.len();
    workspace::write_if_changed(path, &bytes)?;
    Ok(report)
}

fn append(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_ustar();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    builder
        .append_data(&mut header, name, content)
        .with_context(|| format!("putting {name} into the boot archive"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_holds_what_the_configuration_names_and_says_what_is_missing() {
        let folder = std::env::temp_dir().join(format!("nos-archive-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("own")).unwrap();
        std::fs::write(folder.join("own/kernel"), b"kernel").unwrap();
        std::fs::write(folder.join("symbols"), b"1000 a\n").unwrap();
        let text =
            "[[guest]]\nname = \"a\"\nmemory = \"64 MiB\"\nkernel = \"own/kernel\"\ninitrd = \"own/none\"\n";
        let source = Source::from_text(text.into(), folder.clone());
        std::fs::write(folder.join("m.ko"), b"module").unwrap();
        let modules = vec![("m".to_owned(), folder.join("m.ko"))];
        let kernel = Kernel { elf: folder.join("elf"), symbols: folder.join("symbols"), modules };
        let path = folder.join("boot.tar");
        let report = write(&path, &kernel, &source, None).unwrap();
        assert_eq!(report.missing, ["own/none"]);
        let bytes = std::fs::read(&path).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names: Vec<String> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(names, ["nos.toml", "symbols", "modules/m.ko", "own/kernel"]);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
