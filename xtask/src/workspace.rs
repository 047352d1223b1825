//! Where things are.
//!
//! Everything that a command leaves behind lies under `target/`, except what is worth keeping over a `cargo clean`:
//! downloaded packages, in the user's cache directory.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The checkout's root. Cargo tells it to what it runs; the compiled-in path serves a program started by hand.
pub fn root() -> PathBuf {
    let xtask_or_member = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask_or_member
        .ancestors()
        .find(|folder| folder.join("rustfmt.toml").is_file() && folder.join("nos.toml").is_file())
        .map_or(xtask_or_member.clone(), Path::to_path_buf)
}

/// Makes the root the current directory, so that the paths this program shows are the ones the documents show, and so
/// that the path of a UNIX socket stays within the 108 bytes that it may have (unix(7)) however deep the checkout is.
pub fn enter_root() -> Result<()> {
    let root = root();
    env::set_current_dir(&root).with_context(|| format!("entering {}", root.display()))
}

/// `target`, relative to the root. Not `CARGO_TARGET_DIR`: people and programs find the node's endpoints here.
pub fn target() -> PathBuf {
    PathBuf::from("target")
}

/// What is built for the guests, the lists of packages, and other things that are made again when they are missing.
pub fn build_dir() -> PathBuf {
    target().join("xtask")
}

/// Downloads. `NOS_CACHE` overrides; without a home directory it lies under `target/`.
pub fn cache() -> PathBuf {
    let from = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    from("NOS_CACHE")
        .or_else(|| from("XDG_CACHE_HOME").map(|cache| cache.join("nos")))
        .or_else(|| from("HOME").map(|home| home.join(".cache/nos")))
        .filter(|cache| fs::create_dir_all(cache).is_ok())
        .unwrap_or_else(|| build_dir().join("cache"))
}

/// Holds a lock file for as long as the value lives: two commands at once do not fetch or build the same thing twice.
pub fn lock(path: &Path) -> Result<fs::File> {
    let file = open_lock(path)?;
    file.lock().with_context(|| format!("locking {}", path.display()))?;
    Ok(file)
}

/// The same without waiting: `None` if another command holds it.
pub fn try_lock(path: &Path) -> Result<Option<fs::File>> {
    let file = open_lock(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("locking {}", path.display()))
        }
    }
}

fn open_lock(path: &Path) -> Result<fs::File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

/// Writes a file under another name first, so that nobody ever sees half of it; and not at all if it has this content
/// already, so that what is built from it stays current.
pub fn write_if_changed(path: &Path, content: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    replace(path, content).with_context(|| format!("writing {}", path.display()))
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let half = folder.join(format!(".{name}.{}", std::process::id()));
    fs::write(&half, content)?;
    fs::rename(&half, path)
}

/// Removes a file that may not be there.
pub fn remove(path: &Path) {
    // Nothing is lost if it stays: whoever uses the name next replaces it or says that it cannot.
    let _ = fs::remove_file(path);
}

/// The whole text of a file, with its name in the error.
pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// The bytes of a file, with its name in the error.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// SHA-256, in hexadecimal: the key of what is cached by content.
pub fn sha256_hex(content: &[u8]) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
